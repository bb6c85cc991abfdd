"""Short forms of path descriptions."""

import re

__all__ = ["shortened", "without_repeats"]


def without_repeats(description: str) -> str:
    """The description without repeated names: of visits to the same site only the number is kept.

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


def shortened(text: str, length: int) -> str:
    """The text cut in its middle: two descriptions may differ at either end."""
    return text if len(text) <= length else f"{text[: length // 2]}…{text[len(text) - (length - length // 2 - 1) :]}"
