"""How much to do at a time, so that a time limit is kept.

Work that cannot be interrupted, or is lost if it is, goes on in pieces. Where the time is limited, the first piece is
small, and each of the next as large as the last one shows to be quick enough. Where it is not, a piece is as large as
it may be: nothing depends on the clock then, and the same seed gives the same answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from anabranch.limits import time_limit

__all__ = ["LONGEST_PIECE", "Pace"]

LONGEST_PIECE = 0.25
"""Seconds that a piece should take at most; more overrun the time limit by more."""
_TIME_SHARE = 0.05
"""The same as a share of the time limit."""
_GROWTH = 4
"""How many times as large as the last a piece may be; more adapt sooner, and overrun by more."""


@dataclass
class Pace:
    """The size of the next piece of some work; under a time limit, the first piece has the size that is given."""

    next_size: int = 1

    def size(self, most: int) -> int:
        """The size of the next piece, of so much that is to do: at least one."""
        return most if time_limit() is None else max(min(most, self.next_size), 1)

    @contextmanager
    def measured(self, size: int) -> Iterator[None]:
        """Within this, a piece of that size is done; an exception leaves the next size as it was."""
        limits = time_limit()
        if limits is None or limits.seconds is None:
            yield
            return
        started = limits.elapsed
        yield
        each = max(limits.elapsed - started, 1e-9) / size
        longest = min(LONGEST_PIECE, _TIME_SHARE * limits.seconds)
        self.next_size = max(min(int(longest / each), _GROWTH * size), 1)
