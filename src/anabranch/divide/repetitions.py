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
    and then ever fewer.

    Args:
        first: how many of the first; of n paths, after them, one in n over this.
    """

    def __init__(self, first: int = 32) -> None:
        self.first, self._asked, self._next = first, 0, 1

    def is_due(self) -> bool:
        """Whether the path that is asked about now is recorded again."""
        self._asked += 1
        if self._asked < self._next:
            return False
        self._next = self._asked + max(self._asked // self.first, 1)
        return True
