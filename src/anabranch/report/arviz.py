"""Draws of one path for ArviZ."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from anabranch.combine.draws import by_observation, draws_of, pick
from anabranch.combine.observed import log_likelihoods
from anabranch.combine.solution import Solution

__all__ = ["to_arviz"]


def to_arviz(name: str, solution: Solution, n: int, seed: int) -> Any:
    """n equally weighted draws of a path as one chain, with the log likelihood of the observations."""
    import arviz

    (picked,) = pick([solution], np.ones(1), n, seed)
    picked = replace(picked, positions=np.arange(n))
    draws = draws_of([picked], n)
    return arviz.from_dict(
        posterior=_in_every_draw({each: draws[each] for each in draws.names}),
        log_likelihood=_in_every_draw(by_observation([picked], n, log_likelihoods)),
        posterior_attrs={"path": solution.path.description, "program": name},
    )


def _in_every_draw(columns: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays that have a value in every draw, with a first axis for the chain."""
    return {name: value[None] for name, value in columns.items() if type(value) is np.ndarray}
