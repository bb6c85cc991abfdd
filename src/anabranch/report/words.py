"""Descriptions of paths, made short."""

from __future__ import annotations

import re

__all__ = ["shortened", "without_repeats"]


def without_repeats(description: str) -> str:
    """Without the name of a site where the one before it has the same, and only the number of the visit differs.

    >>> without_repeats("rule = 3, rule[1] = 2, rule[2] = 0, stop[2] = 1")
    'rule = 3, [1] = 2, [2] = 0, stop[2] = 1'
    """
    out, former = [], None
    for part in description.split(", "):
        name = re.match(r"[\w.@:]+(?=(\[\d+\])? )", part)
        repeated = name is not None and name[0] == former and part[name.end()] == "["
        out.append(part[name.end() :] if name is not None and repeated else part)
        former = name[0] if name is not None else None
    return ", ".join(out)


def shortened(text: str, most: int) -> str:
    """Without its middle, for what distinguishes two texts may be at either end."""
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"
