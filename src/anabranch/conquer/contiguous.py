"""States whose arrays lie in memory as those that come from a file or another process do.

The order in which NumPy adds up depends on the strides of an array, and so does the last bit of the sum.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np

__all__ = ["contiguous"]


def contiguous(value: Any) -> Any:
    """The value with its strided arrays copied; the value itself where it has none.

    Example:
        >>> contiguous((1, np.arange(6)[::2]))[1].strides
        (8,)
    """
    if isinstance(value, np.ndarray):
        is_whole = value.flags.c_contiguous or value.flags.f_contiguous
        return value if is_whole else np.ascontiguousarray(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in fields(value)}
        changed = {name: new for name, part in parts.items() if (new := contiguous(part)) is not part}
        return replace(value, **changed) if changed else value
    if isinstance(value, tuple | list):
        items = [contiguous(part) for part in value]
        if all(new is part for new, part in zip(items, value, strict=True)):
            return value
        return value._make(items) if hasattr(value, "_make") else type(value)(items)
    return value
