"""The posterior probability of each value of a discrete site or deterministic."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from anabranch import errors
from anabranch.combine.conditional import conditional_probabilities
from anabranch.combine.solution import Solution
from anabranch.divide import Path

__all__ = ["Place", "key_of", "listed_names", "probability", "split_name"]

MAX_NAMES = 20
"""Names that a message lists."""


Conditionals = dict[int, Mapping[int, Mapping[int, float]]]
"""For some solutions, by number, the conditional probabilities of the values of their coordinates."""


def probability(
    solutions: Sequence[Solution], weights: np.ndarray, name: str, conditionals: Conditionals
) -> dict[Any, float]:
    """The probability of each value, the most probable first; None stands for executions without the name.

    The conditional probabilities that it takes are added to those given.
    """
    if not any(split_name(solution.path, name) for solution in solutions):
        near = difflib.get_close_matches(name, _all_names(solutions), n=5, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"There are: {listed_names(solutions)}"
        raise errors.UnknownName(f"no path has a site or deterministic {name!r}", remedy=hint)
    totals: dict[Any, float] = {}
    for number, (solution, weight) in enumerate(zip(solutions, weights, strict=True)):

        def conditional(column: int, number: int = number, solution: Solution = solution) -> Mapping[int, float]:
            if number not in conditionals:
                conditionals[number] = conditional_probabilities(solution)
            return conditionals[number].get(column, {})

        for value, share in _shares(solution, name, conditional) if weight > 0 else ():
            totals[value] = totals.get(value, 0.0) + float(weight * share)
    return dict(sorted(totals.items(), key=lambda item: -item[1]))


class Place(NamedTuple):
    """A site or deterministic, and the position of one of its elements; empty for all of it."""

    name: str
    element: tuple[Any, ...]


def split_name(path: Path, name: str) -> Place | None:
    """What a name means on a path: a site, a deterministic, or an element of one, such as z[3]."""
    names = path.names
    if name in names:
        return Place(name, ())
    element = re.fullmatch(r"(.+)\[(\d+(?:,\s*\d+)*)\]", name)
    if element is None or element[1] not in names:
        return None
    return Place(element[1], tuple(map(int, element[2].split(","))))


def listed_names(solutions: Sequence[Solution]) -> str:
    """The sites and deterministics of all paths, for a message."""
    return ", ".join(_all_names(solutions)[:MAX_NAMES])


def _all_names(solutions: Sequence[Solution]) -> list[str]:
    return sorted({name for solution in solutions for name in solution.path.names})


def _shares(
    solution: Solution, name: str, conditional: Callable[[int], Mapping[int, float]]
) -> Iterator[tuple[Any, float]]:
    """The values of the name on a path, each with its share of the path's weight."""
    path, place = solution.path, split_name(solution.path, name)
    if place is None:
        yield None, 1.0
        return
    site = next((site for site in path.sites if site.name == place.name), None)
    if site is not None and not site.discrete:
        raise _not_discrete(name, path)
    if site is not None and len(place.element) not in (0, len(site.shape)):
        raise IndexError(f"{name}: the site has the shape {site.shape}")
    if site is not None and site.value is not None:
        yield key_of(site.value[place.element]), 1.0
        return
    if site is not None and site.columns is not None and len(place.element) == len(site.shape):
        columns = np.arange(site.columns.start, site.columns.stop).reshape(site.shape)
        shares = {} if solution.is_exact else conditional(int(columns[place.element]))
        if shares:
            yield from shares.items()
            return
    weights = solution.weights
    for named in path.outcomes(solution.points):
        share = weights[named.index]
        both = {**named.values, **named.deterministics}
        if place.name not in both:
            yield None, share.sum()
            continue
        values = np.asarray(both[place.name])
        if not named.varies[0].get(place.name, True):
            yield key_of(values[place.element]), share.sum()
            continue
        values = values[(slice(None), *place.element)]
        distinct, group = np.unique(values, axis=0, return_inverse=True)
        whole = not np.issubdtype(values.dtype, np.inexact) or bool((values == np.round(values)).all())
        if not (whole or path.dim == 0 or len(distinct) == 1 < len(values)):
            raise _not_discrete(name, path)
        for value, total in zip(distinct, np.bincount(group.reshape(-1), share), strict=True):
            yield key_of(value), total


def key_of(value: np.ndarray) -> Any:
    """A value as Python numbers: an int where it is whole, a tuple for a vector."""
    if value.ndim:
        return tuple(key_of(part) for part in value)
    number = value.item()
    return int(number) if isinstance(number, float) and number.is_integer() else number


def _not_discrete(name: str, path: Path) -> errors.NotDiscrete:
    return errors.NotDiscrete(
        f"{name!r} takes real values on the path ({path.description}): a single value has no probability",
        remedy=f"Use expectation(lambda draw: draw[{name!r}] > 0) for that of a range, or draws(n)[{name!r}]",
    )
