"""The posterior probability of each value of a discrete site or deterministic."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.solution import Solution
from anabranch.divide import Path

__all__ = ["listed_names", "names_of", "probability"]

MAX_NAMES = 20
"""Names that a message lists."""


def probability(solutions: Sequence[Solution], weights: np.ndarray, name: str) -> dict[Any, float]:
    """The probability of each value, the most probable first; None stands for executions without the name."""
    if not any(name in names_of(solution.path) for solution in solutions):
        near = difflib.get_close_matches(name, _all_names(solutions), n=5, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are: {listed_names(solutions)}"
        raise errors.UnknownName(f"no path has a site or deterministic {name!r}", remedy=hint)
    totals: dict[Any, float] = {}
    for solution, weight in zip(solutions, weights, strict=True):
        for value, share in _shares(solution, name) if weight > 0 else ():
            totals[value] = totals.get(value, 0.0) + float(weight * share)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


def names_of(path: Path) -> list[str]:
    """The sites and deterministics that executions of a path may have."""
    return list(dict.fromkeys([*path.addresses, *(name for r in path.recordings for name in r.deterministics)]))


def listed_names(solutions: Sequence[Solution]) -> str:
    """The sites and deterministics of all paths, for a message."""
    return ", ".join(_all_names(solutions)[:MAX_NAMES])


def _all_names(solutions: Sequence[Solution]) -> list[str]:
    return sorted({name for solution in solutions for name in names_of(solution.path)})


def _shares(solution: Solution, name: str) -> Iterator[tuple[Any, float]]:
    """The values of the name on a path, each with its share of the path's weight."""
    path = solution.path
    site = next((site for site in path.sites if site.name == name), None)
    if site is not None and not site.discrete:
        raise _not_discrete(name, path)
    if site is not None and site.value is not None:
        yield _key(site.value), 1.0
        return
    if name not in names_of(path):
        yield None, 1.0
        return
    weights = solution.weights
    for named in path.outcomes(solution.points):
        share = weights[named.index]
        both = {**named.values, **named.deterministics}
        if name not in both:
            yield None, share.sum()
            continue
        values = np.asarray(both[name])
        if not named.varies[0].get(name, True):
            yield _key(values), share.sum()
            continue
        distinct, group = np.unique(values, axis=0, return_inverse=True)
        whole = not np.issubdtype(values.dtype, np.inexact) or bool((values == np.round(values)).all())
        if not (whole or path.dim == 0 or len(distinct) == 1 < len(values)):
            raise _not_discrete(name, path)
        for value, total in zip(distinct, np.bincount(group.reshape(-1), share), strict=True):
            yield _key(value), total


def _key(value: np.ndarray) -> Any:
    """A value as Python numbers: an int where it is whole, a tuple for a vector."""
    if value.ndim:
        return tuple(_key(part) for part in value)
    number = value.item()
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _not_discrete(name: str, path: Path) -> errors.NotDiscrete:
    return errors.NotDiscrete(
        f"{name!r} takes real values on the path ({path.description}): a single value has no probability",
        remedy=f"Use expectation(lambda draw: draw[{name!r}] > 0) for that of a range, or draws(n)[{name!r}]",
    )
