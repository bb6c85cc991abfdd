"""Even shares: the plainest rule, to compare the others with."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.allocate.path_summary import PathSummary

__all__ = ["Uniform"]


@dataclass(frozen=True)
class Uniform:
    """The arm with the fewest visits is next, the first of those.

    Example:
        >>> paths = [PathSummary(2, None), PathSummary(0, None), PathSummary(1, None)]
        >>> Uniform().choose(paths, n=4, rng=np.random.default_rng(0))
        [1, 1, 2, 0]
    """

    def choose(self, arms: Sequence[PathSummary], n: int, rng: np.random.Generator) -> list[int]:
        visits = {k: arm.visits for k, arm in enumerate(arms) if not arm.exact}
        chosen: list[int] = []
        while visits and len(chosen) < n:
            chosen.append(min(visits, key=visits.__getitem__))
            visits[chosen[-1]] += 1
        return chosen
