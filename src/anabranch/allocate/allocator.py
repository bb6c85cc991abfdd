"""The protocol of an allocation rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from anabranch.allocate.path_summary import PathSummary

__all__ = ["Allocator"]


class Allocator(Protocol):
    """A frozen dataclass of settings with one function."""

    def choose(self, arms: Sequence[PathSummary], n: int, rng: np.random.Generator) -> list[int]:
        """The arms that get the n allocations of a round, as indices; one may come several times.

        All are chosen before any of them runs, so that the answer does not depend on how many run at once. Arms that
        were never visited come first. Where every estimate is exact, there is nothing to choose, and the list is empty.
        """
