"""Hills of the paths: where climbs have ended, what lies around, and what may be missing.

A walk that begins on some hills may never come to another one, and then all its steps agree on a wrong answer. What
climbs say of such hills is how often they have come to each of those that they have found: one that they have come to
once could as well not have been found. Let w_h be the share of the top of h among the evidence of all tops found, and n
the number of climbs. Then

    U = max(Σ_{h found once} w_h, m/(n + 1))

estimates the share of the hills that were not found: as Good and Turing do, with masses in the place of numbers, and at
least by the rule of succession, for a hill to which as many climbs lead as it has of the mass. It is on paths that were
not found, which have the prior mass m. Tops between which walkers go by moves nearby are on one hill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import softmax

from anabranch.allocate import PathRecord

__all__ = ["Hills"]

MAX_HILLS = 24
"""Tops that paths are compared with, the highest ones; more take longer."""
DEPTH = 10.0
"""By how many nats a top may be below the highest at most: the mass of those below it does not count."""
NEAR = 2
"""Decisions in which a path may differ from a top that a walker has come to, at most; with more it may only pass by."""
CROSSINGS = 3
"""Walkers that go from one top to another, by moves nearby, if both are on one hill: fewer may have lost their way."""

Decisions = dict[tuple[str, int], int]
"""The values of the fixed sites of a path, by their names and entries."""


@dataclass
class Hills:
    """The tops of hills, the highest first, and how many climbs have ended at each, of so many."""

    tops: list[PathRecord]
    times: list[int]
    climbs: int
    _decisions: list[Decisions] = field(default_factory=list)
    _nearest: dict[int, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, ends: Sequence[PathRecord]) -> Hills:
        """Those at which climbs have ended."""
        counts = Counter(ends)
        tops = sorted(counts, key=lambda record: (-record.log_evidence, record.number))[:MAX_HILLS]
        tops = [top for top in tops if top.log_evidence > tops[0].log_evidence - DEPTH]
        return cls(tops, [counts[top] for top in tops], len(ends), [_decisions(top) for top in tops])

    def nearest(self, record: PathRecord) -> int:
        """The number of the top that differs from a path in the fewest decisions."""
        return self._compared(record)[0]

    def missing_share(self, steps: Sequence[Sequence[PathRecord]], is_jump: np.ndarray, mass: float) -> float:
        """U, of the walkers that were at these paths after each step; `is_jump` tells which of them were not led there
        by a move nearby (steps, walkers), and `mass` is m."""
        at = np.array([[self._top(record) for record in step] for step in steps])
        hill, walkers = np.arange(len(self.tops)), _walkers_between(at, is_jump)
        for (low, high), number in sorted(walkers.items()):
            if number >= CROSSINGS:
                first, second = sorted((hill[low], hill[high]))
                hill[hill == second] = first
        weights = softmax([top.log_evidence for top in self.tops])
        times = np.bincount(hill, self.times, len(self.tops))
        return float(max(weights[times[hill] == 1].sum(), max(mass, 0.0) / (self.climbs + 1)))

    def _top(self, record: PathRecord) -> int:
        """The number of the top near which a path is; -1 if there is none."""
        number, distance = self._compared(record)
        return number if distance <= 2 * NEAR else -1

    def _compared(self, record: PathRecord) -> tuple[int, int]:
        if record.number not in self._nearest:
            mine = _decisions(record)
            distances = [_distance(mine, top) for top in self._decisions]
            self._nearest[record.number] = int(np.argmin(distances)), min(distances)
        return self._nearest[record.number]


def _walkers_between(at: np.ndarray, is_jump: np.ndarray) -> Counter[tuple[int, int]]:
    """How many walkers went from near one of two tops to near the other by moves nearby alone."""
    made: set[tuple[int, int, int]] = set()
    last = at[0].copy()
    for here, jumped in zip(at[1:], is_jump[1:], strict=True):
        last[jumped] = -1
        crossed = (here >= 0) & (last >= 0) & (here != last)
        low, high = np.sort([here[crossed], last[crossed]], axis=0)
        made.update(zip(low.tolist(), high.tolist(), np.flatnonzero(crossed).tolist(), strict=True))
        last = np.where(here >= 0, here, last)
    return Counter((low, high) for low, high, _ in made)


def _decisions(record: PathRecord) -> Decisions:
    return {
        (name, entry): value
        for name, values in record.path.fixed.items()
        for entry, value in enumerate(values.reshape(-1).tolist())
    }


def _distance(first: Decisions, second: Decisions) -> int:
    """The decisions of each that the other has not, or not with the same value."""
    same = sum(second.get(key) == value for key, value in first.items())
    return len(first) + len(second) - 2 * same
