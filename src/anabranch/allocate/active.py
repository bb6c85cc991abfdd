"""The total and the active set of paths (paper, appendix E).

All paths found are in the total set, with a count C_k of how often executions and global proposals ended in them. Only
the active ones get budget. A path becomes active when its count reaches C_0, which grows with the iteration t,

    C_k ≥ C_0 (1 + growth · t):

the more was computed, the more often a path must be proposed to become active. If the number of active paths is
bounded, one must leave for each that enters, the one with the least evidence. Now and then a random inactive path is
visited, so that every path is visited in the end and the algorithm stays consistent.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from anabranch.settings import check, finite, instance, share, whole

__all__ = ["ActiveSet"]


@dataclass(frozen=True)
class ActiveSet:
    """Which paths, by any hashable key, get evaluations. Each method returns another set.

    Args:
        threshold: C_0 at first.
        growth: by how much of itself C_0 grows with each iteration.
        max_active: the largest number of active paths, or None.
        visit: the probability that an iteration visits an inactive path.
        counts: C_k of every path found, since it last left the active ones.
        active: the active paths, in the order in which they entered.
        visitor: the inactive path that this iteration visits, or None.
        iteration: t.

    Example:
        >>> paths = ActiveSet(threshold=2, max_active=2).proposed({"K = 1": 5, "K = 2": 2, "K = 3": 1})
        >>> paths = paths.advance({}, np.random.default_rng(0))
        >>> paths.active
        ('K = 1', 'K = 2')
        >>> paths = paths.proposed({"K = 3": 1}).advance({"K = 1": -80.0, "K = 2": -9.5}, np.random.default_rng(0))
        >>> paths.active
        ('K = 2', 'K = 3')
    """

    threshold: int = 1
    growth: float = 0.0
    max_active: int | None = None
    visit: float = 0.1
    counts: Mapping[Hashable, int] = field(default_factory=dict)
    active: tuple[Hashable, ...] = ()
    visitor: Hashable | None = None
    iteration: int = 0

    def __post_init__(self) -> None:
        counts, active = instance(Mapping, "a mapping from paths to counts"), instance(tuple, "a tuple of paths")
        check(self, threshold=whole(1), growth=finite(0), max_active=whole(1).or_none(), visit=share(), counts=counts,
              active=active, visitor=instance(Hashable, "a path, or None"), iteration=whole())  # fmt: skip

    @property
    def required(self) -> float:
        """C_0 at this iteration."""
        return self.threshold * (1 + self.growth * self.iteration)

    @property
    def inactive(self) -> tuple[Hashable, ...]:
        """The paths found that are not active, in the order in which they were found."""
        active = set(self.active)
        return tuple(key for key in self.counts if key not in active)

    @property
    def chosen(self) -> tuple[Hashable, ...]:
        """The paths to share the budget of this iteration: the active ones, and the visitor if there is one."""
        return self.active if self.visitor is None else (*self.active, self.visitor)

    def proposed(self, counts: Mapping[Hashable, int]) -> Self:
        """After so many more executions or proposals ended in these paths; a count of zero only adds the path."""
        total = dict(self.counts)
        for key, count in counts.items():
            total[key] = total.get(key, 0) + count
        return replace(self, counts=total)

    def advance(self, log_evidence: Mapping[Hashable, float], rng: np.random.Generator) -> Self:
        """The next iteration, given the evidence of the paths that have an estimate.

        Paths that were proposed often enough enter, the most often proposed first. An active path without an estimate
        cannot leave: it has not had its chance. One that leaves has to be proposed anew to come back.
        """
        after = replace(self, iteration=self.iteration + 1, visitor=None)
        ready = [key for key in self.inactive if self.counts[key] >= after.required]
        for key in sorted(ready, key=lambda key: -self.counts[key]):
            after = after._entered(key, log_evidence)
        inactive = after.inactive
        if inactive and rng.uniform() < self.visit:
            after = replace(after, visitor=inactive[rng.integers(len(inactive))])
        return after

    def _entered(self, key: Hashable, log_evidence: Mapping[Hashable, float]) -> Self:
        if self.max_active is None or len(self.active) < self.max_active:
            return replace(self, active=(*self.active, key))
        estimated = [each for each in self.active if each in log_evidence]
        if not estimated:
            return self
        least = min(estimated, key=log_evidence.__getitem__)
        stay = tuple(each for each in self.active if each != least)
        return replace(self, active=(*stay, key), counts={**self.counts, least: 0})
