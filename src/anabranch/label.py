"""Labels: text that a program keeps under a name, such as a formula, the name of a curve, or a tuple of such."""

from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Label", "is_label", "is_same"]


@dataclass(frozen=True)
class Label:
    """A label as one leaf: JAX would take a tuple apart, and None for nothing."""

    value: Any


def is_label(value: Any) -> bool:
    """Whether a value is text, None, or a tuple of these with plain numbers between them.

    >>> is_label("x*sqrt(x)"), is_label(("poly", 3)), is_label((1, 2)), is_label(2.0)
    (True, True, False, False)
    """
    return value is None or isinstance(value, str) or (_is_plain(value) and _has_text(value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bool | int | float)


def _has_text(value: Any) -> bool:
    return any(map(_has_text, value)) if isinstance(value, tuple) else value is None or isinstance(value, str)


def is_same(one: np.ndarray | Label, other: np.ndarray | Label) -> bool:
    """Whether two constants are the same: numbers, or labels."""
    if isinstance(one, Label) or isinstance(other, Label):
        return one == other
    return np.array_equal(one, other)
