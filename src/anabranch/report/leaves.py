"""Paths as the ends of the tree of decisions, also those of a posterior that was loaded without its program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anabranch.combine.saved_path import SavedPath
from anabranch.combine.solution import Solution
from anabranch.divide import CONDITION, Asked, Bounds, Leaf, leaf_of

__all__ = ["leaves_of"]

_CHOICE = re.compile(r"(?P<name>.+) = (?P<value>-?\d+)")
_CONDITION = re.compile(r".* \((?P<where>[^()]*:\d+)\)")


def leaves_of(solutions: Sequence[Solution], weights: np.ndarray) -> Iterator[Leaf]:
    """A leaf for each path with mass, with its posterior probability."""
    known: dict[Any, Any] = {}
    for solution, weight in zip(solutions, weights, strict=True):
        if weight > 0:
            path: Any = solution.path
            is_saved = isinstance(path, SavedPath)  # to rebuild it would take a run of the program
            yield _leaf_in_words(path, float(weight)) if is_saved else leaf_of(path, float(weight), known)


def _leaf_in_words(path: SavedPath, probability: float) -> Leaf:
    """A leaf by the words of the decisions, as they were saved."""
    facts: Any = path
    words = facts.decisions[0] if len(facts.decisions) == 1 else [facts.description]
    supports = {site.name: site.support for site in facts.sites}
    remark = "interpreted" if facts.interpreted else ""
    return Leaf(
        tuple((text, text) for text in words),
        facts.dim,
        probability,
        remark,
        asked=lambda number: _asked(words[number], supports),
    )


def _asked(text: str, supports: dict[str, str]) -> Asked:
    choice, condition = _CHOICE.fullmatch(text), _CONDITION.fullmatch(text)
    if choice is not None and choice["name"] in supports:
        # Of other sites the answers met are taken to be all that there are.
        support, mass = ((Bounds(0, 1),), 0.5) if supports[choice["name"]] == "boolean" else (None, 1.0)
        return Asked(choice["name"], int(choice["value"]), support, mass)
    return Asked(f"the condition at {condition['where']}" if condition else text, None, CONDITION)
