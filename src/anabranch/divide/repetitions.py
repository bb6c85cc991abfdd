"""What many paths of a program are told apart by, and which of them are recorded twice."""

from __future__ import annotations

from functools import cached_property
from typing import Any

__all__ = ["Repetitions", "Signature"]


class Signature(tuple[Any, ...]):
    """A tuple that is hashed once: tables of thousands of paths are looked up by it."""

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __hash__(self) -> int:
        return self._hash


class Repetitions:
    """Decides which paths are recorded a second time, to find a program that does not repeat itself: the first ones,
    and then one in so many.

    Args:
        first: how many of the first.
        one_in: one in so many of the others.
    """

    def __init__(self, first: int = 32, one_in: int = 8) -> None:
        self.first, self.one_in, self._asked = first, one_in, 0

    def is_due(self) -> bool:
        """Whether the path that is asked about now is recorded again."""
        self._asked += 1
        return self._asked <= self.first or self._asked % self.one_in == 0
