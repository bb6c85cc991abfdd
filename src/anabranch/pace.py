"""How much to do at a time, so that a limit on the time is kept.

Work that cannot be interrupted, or is lost if it is, goes on in pieces. Where the time is limited, the first piece is
small, and each of the next as large as the last one shows to be quick enough. Where it is not, a piece is as large as
it may be: nothing depends on the clock then, and the same seed gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from anabranch.limits import Limits, time_limit

__all__ = ["LONGEST_PIECE", "Pace"]

LONGEST_PIECE = 0.25
"""Seconds that a piece should take, at most."""
_SHARE = 0.05
"""The same, as a share of the time."""
_GROWTH = 4
"""How many times as large as the last a piece may be."""
_INSTANT = 1e-9


class Pace:
    """The size of the next piece of some work.

    Example:
        >>> pace = Pace()
        >>> n = pace.size(1000)  # there is no limit
        >>> with pace.measured(n):
        ...     squares = [i**2 for i in range(n)]
        >>> n
        1000
    """

    def __init__(self, first: int = 1) -> None:
        self._next = first

    def size(self, most: int) -> int:
        """How much to do now, if there is so much to do: at least one."""
        return most if time_limit() is None else max(min(most, self._next), 1)

    @contextmanager
    def measured(self, size: int) -> Iterator[None]:
        """Within this, a piece of that size is done; what raises leaves the pace as it was."""
        limits = time_limit()
        started = limits.elapsed if limits is not None else 0.0
        yield
        if limits is not None:
            each = max(limits.elapsed - started, _INSTANT) / size
            self._next = max(min(int(_longest(limits) / each), _GROWTH * size), 1)


def _longest(limits: Limits) -> float:
    assert limits.seconds is not None
    return min(LONGEST_PIECE, _SHARE * limits.seconds)
