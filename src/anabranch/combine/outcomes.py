"""The outcomes of executions at draws, which the interpreter makes once.

Each picture and each question asks for the draws of a posterior anew. Compiled paths answer in no time; on those that
the interpreter runs, each draw is a run of the program's Python, and what it gave is kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from anabranch.divide import NamedValues

__all__ = ["outcomes_at"]

MAX_KEPT = 20_000
"""Draws of a path whose outcomes are kept; more take more memory, some kilobytes each."""
_kept: WeakKeyDictionary[Any, dict[bytes, NamedValues | None]] = WeakKeyDictionary()


def outcomes_at(path: Any, points: np.ndarray) -> list[NamedValues]:
    """What `path.outcomes` gives; without running the program again where the interpreter has run it at a point."""
    if not path.interpreted or getattr(path, "is_without_program", False):
        return list(path.outcomes(points))
    points = np.ascontiguousarray(points, float)
    keys, kept = [row.tobytes() for row in points], _kept.setdefault(path, {})
    new = {key: i for i, key in enumerate(keys) if key not in kept}
    if len(kept) + len(new) > MAX_KEPT:
        return list(path.outcomes(points))
    if new:
        rows = list(new.values())
        made = {int(part.index[0]): part for part in path.outcomes(points[rows])}  # one for each point, if it has one
        kept.update((key, made.get(i)) for i, key in enumerate(new))
    found = ((i, kept[key]) for i, key in enumerate(keys))
    return [replace(part, index=np.array([i])) for i, part in found if part is not None]
