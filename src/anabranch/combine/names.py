"""Names of sites and deterministics, and of their elements, such as z[3]."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from anabranch import errors
from anabranch.combine.draws import Draw
from anabranch.combine.solution import Solution
from anabranch.divide import Path
from anabranch.label import is_label

__all__ = ["Place", "check_name", "listed_names", "place_of", "reader"]


class Place(NamedTuple):
    """A site or deterministic, and the position of one of its elements; empty for all of it."""

    name: str
    element: tuple[int, ...]


def place_of(path: Path, name: str) -> Place | None:
    """What a name means on a path: a site, a deterministic, or an element of one, such as z[3]."""
    return _place(path.names, name)


def _place(names: Sequence[str], name: str) -> Place | None:
    if name in names:
        return Place(name, ())
    element = re.fullmatch(r"(.+)\[(\d+(?:,\s*\d+)*)\]", name)
    if element is None or element[1] not in names:
        return None
    return Place(element[1], tuple(map(int, element[2].split(","))))


def listed_names(solutions: Sequence[Solution]) -> str:
    """The sites and deterministics of all paths, for a message."""
    return ", ".join(_all_names(solutions)[: errors.MAX_NAMES])


def _all_names(solutions: Sequence[Solution]) -> list[str]:
    return sorted({name for solution in solutions for name in solution.path.names})


def check_name(solutions: Sequence[Solution], name: str) -> None:
    """Raise `UnknownName` if no path has the name."""
    if any(place_of(solution.path, name) for solution in solutions):
        return
    raise errors.UnknownName.among(f"no path has a site or deterministic {name!r}", name, _all_names(solutions))


def reader(solutions: Sequence[Solution], f: str | Callable[[Draw], Any]) -> Callable[[Draw], Any]:
    """A function of a draw: f itself, or what reads the site or deterministic with that name, or an element of it."""
    if not isinstance(f, str):
        return f
    check_name(solutions, f)
    name = f

    def read(draw: Draw) -> Any:
        place = _place(list(draw), name)
        if place is None:
            return draw[name]  # raises the error that names it
        if is_label(draw[place.name]):
            return draw[place.name]
        value = np.asarray(draw[place.name])
        has = len(place.element) == value.ndim and all(map(int.__lt__, place.element, value.shape))
        return value[place.element] if has or not place.element else None

    return read
