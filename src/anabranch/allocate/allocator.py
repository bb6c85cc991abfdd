"""The protocol of an allocator."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from anabranch.allocate.path_summary import PathSummary

__all__ = ["Allocator"]


class Allocator(Protocol):
    """A frozen dataclass of settings with one function, which shares a round between paths (arms).

    `DCC` asks it for the paths that were visited: first visits, and which paths are left out, are decided by the
    `ScheduleRule`s before it. A rule of your own in `DCC(schedule=...)` decides these, too.
    """

    def choose(self, arms: Sequence[PathSummary], n: int, rng: np.random.Generator) -> list[int]:
        """The arms that get the n allocations of a round, as indices; one may come several times.

        All are chosen before any of them runs, so that the answer does not depend on how many run at once. Arms without
        a visit come first. Where every estimate is exact, the list is empty.
        """
