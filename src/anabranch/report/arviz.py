"""Draws of one path for ArviZ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.combine.draws import Draws, drawn_at, pick
from anabranch.combine.observed import log_likelihoods
from anabranch.combine.solution import Solution

if TYPE_CHECKING:
    from anabranch.combine.posterior import Posterior

__all__ = ["to_arviz"]


def to_arviz(posterior: Posterior, solution: Solution, n: int, seed: int) -> Any:
    """n equally weighted draws of a path as one chain, with the log likelihood of the observations."""
    import arviz

    (picked,) = pick([solution], np.ones(1), n, seed)
    draws: list[Any] = [None] * n
    for i, draw in drawn_at(solution.path, picked.points):
        draws[i] = draw
    parts = log_likelihoods(solution.path, picked.points)
    return arviz.from_dict(
        posterior=_common(Draws(draws)),
        log_likelihood=_joined(parts, n),
        posterior_attrs={"path": solution.path.description, "program": posterior.program.name},
    )


def _common(draws: Draws) -> dict[str, np.ndarray]:
    """What every draw has, with an axis for the chain."""
    columns = {name: draws[name] for name in draws.names}
    return {
        name: value[None]
        for name, value in columns.items()
        if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray)
    }


def _joined(parts: Any, n: int) -> dict[str, np.ndarray]:
    names = set.intersection(*(set(part.values) for part in parts))
    out: dict[str, np.ndarray] = {}
    for part in parts:
        for name in sorted(names):
            values = part.values[name]
            out.setdefault(name, np.full((1, n, *values.shape[1:]), np.nan))[0, part.index] = values
    return out
