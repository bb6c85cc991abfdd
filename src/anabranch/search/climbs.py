"""Climbs from several starts, to find the hills on which the mass may be.

A climb ends on a hill, and a higher one may be many changes away: a tree with another split at its root needs other
splits below it, too. So climbs start at several paths: the heaviest of the simplest, which have the fewest decisions
and grow; the heaviest of all; others at random, and between them the first again. From the third on, sites are gone
through in a random order, since what is decided first leads to one hill or to another. Once there were enough climbs
for each hill that counts, and two of them have ended on the highest, detours lead from there to other hills, one for
each other value of each site; then there are more climbs. All end when they have had their share of the time. What they
tell of hills that none has found is in `hills`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.allocate import PathRecord
from anabranch.divide import Holding, Values, changes_of
from anabranch.search.climb import Climb
from anabranch.search.state import SearchState

__all__ = ["Climbs", "starts_of"]

ENOUGH = 6
"""Climbs for each hill that counts after which no more are made, if two of them have ended at the highest."""
IN_ORDER = 2
"""Climbs that go through the sites in their own order: from the simplest path and from the heaviest."""
COUNTS = 4.6
"""By how many nats a hill that counts may be below the highest at most: a hundredth of its mass."""


@dataclass
class Climbs:
    """Climbs from several starts, one after the other.

    Attributes:
        starts: the paths at which climbs are still to start.
        labels: the sites that are labels of a partition.
        share: of the time and the evaluations, after which no more is climbed but for the first time.
        at_once: climbs that are under way together, once the first is over; more make larger batches of visits.
        under_way: these.
        tops: where those that are over have ended.
        begun: how many have begun.
        detours: what those that are still to be made from the highest top begin with, and what they hold.
        around: that top.
    """

    starts: list[PathRecord]
    labels: frozenset[str]
    share: float = 0.35
    at_once: int = 8
    under_way: list[Climb] = field(default_factory=list)
    tops: list[PathRecord] = field(default_factory=list)
    begun: int = 0
    detours: list[tuple[Values, Holding]] = field(default_factory=list)
    around: PathRecord | None = None

    def is_over(self, state: SearchState) -> bool:
        """Whether no more is to be climbed."""
        if not self.tops:
            return not (self.starts or self.under_way)
        return bool(
            state.limits.within(self.share).time_is_over or state.table.evaluations > self.share * state.limits.budget
        )

    def fresh(self, state: SearchState) -> list[PathRecord]:
        """Paths to visit before the next step; none once the climbs are over."""
        while not self.is_over(state):
            self._begin(state)
            if not self.under_way:
                return []
            waiting = {climb: climb.fresh(state) for climb in self.under_way}
            self.tops += [climb.at for climb, records in waiting.items() if not records]
            self.under_way = [climb for climb, records in waiting.items() if records]
            if self.under_way:
                return list(dict.fromkeys(record for records in waiting.values() for record in records))
        return []

    def _begin(self, state: SearchState) -> None:
        """Begin as many climbs as are to be under way."""
        while len(self.under_way) < (self.at_once if self.tops else 1):
            climb = self._next(state)
            if climb is None:
                return
            self.under_way.append(climb)

    def _next(self, state: SearchState) -> Climb | None:
        """The next climb or detour; None if there is none."""
        self.begun += 1
        if not self._is_settled() and self.starts:
            return self._from_next_start()
        highest = self._highest()
        if highest is not self.around:
            changes = changes_of(highest.path, self.labels)
            order = np.random.default_rng((state.seed, 0, 11, self.begun)).permutation(len(changes))
            self.around, self.detours = highest, [changes[i] for i in order]
        if self.detours:
            return Climb(highest, self.labels, self.begun, *self.detours.pop())
        return self._from_next_start() if self.starts else None

    def _from_next_start(self) -> Climb:
        return Climb(self.starts.pop(0), self.labels, None if self.begun <= IN_ORDER else self.begun)

    def _highest(self) -> PathRecord:
        return max(self.tops, key=lambda record: record.log_evidence)

    def _is_settled(self) -> bool:
        """Whether there were enough climbs for each hill that counts, and two have ended at the highest."""
        if not self.tops:
            return False
        times, highest = Counter(self.tops), self._highest()
        count = sum(record.log_evidence > highest.log_evidence - COUNTS for record in times)
        return len(self.tops) >= ENOUGH * count and times[highest] > 1


def starts_of(records: Sequence[PathRecord], number: int, rng: np.random.Generator) -> list[PathRecord]:
    """Where to start: the heaviest of the simplest of these paths, the heaviest of all, then others at random, and
    between them the first again, from which another order of the sites leads elsewhere."""
    heaviest = max(records, key=lambda record: record.log_evidence)
    simplest = min(records, key=lambda record: (len(record.path.recording.fixed), -record.log_evidence))
    others = [record for record in (records[i] for i in rng.permutation(len(records))) if record is not simplest]
    again = [each for other in others if other is not heaviest for each in (other, simplest)]
    return [*dict.fromkeys([simplest, heaviest]), *again][:number]
