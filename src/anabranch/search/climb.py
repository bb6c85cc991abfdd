"""Climbs from path to path, before a walk: where few of the paths can be visited, chance finds none with mass.

From the heaviest path known, the deciding sites are gone through in turn. For each, the paths with all its other values
are visited, and the heaviest of them is the next to go on from (iterated conditional modes). The climb ends with a
sweep in which no path was heavier. Sites that only the other path has are drawn from their prior, several times.

A climb ends on a hill, and a higher one may be many changes away: a tree with another split at its root needs other
splits below it, too. So climbs start at several paths: the heaviest of the simplest, which have the fewest decisions
and grow; the heaviest of all; and others at random. They end once three were made and the highest hill was found twice,
and the later ones when they have had their share of the time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.allocate import PathRecord
from anabranch.divide import number_of_choices, paths_with, values_of_choice
from anabranch.search.state import SearchState

__all__ = ["Climb", "Climbs", "starts_of"]

ENOUGH = 3
"""Climbs after which no more are made, if two of them have ended at the highest hill."""


@dataclass
class Climb:
    """A climb under way.

    Attributes:
        at: the path that it has come to.
        labels: the sites that are labels of a partition.
        max_sweeps: sweeps after which it ends in any case.
        tries: how often each value is tried, with new draws of sites that only the other path has.
        turn: deciding sites gone through so far.
        since: those since the last step up.
        tried: the paths with the other values of the present site.
    """

    at: PathRecord
    labels: frozenset[str]
    max_sweeps: int = 6
    tries: int = 6
    turn: int = 0
    since: int = 0
    tried: list[PathRecord] = field(default_factory=list)

    def is_over(self) -> bool:
        """Whether a sweep has found nothing heavier, or there were enough of them."""
        number = number_of_choices(self.at.path, self.labels)
        return self.since >= number or self.turn >= self.max_sweeps * number

    def fresh(self, state: SearchState) -> list[PathRecord]:
        """Paths to visit before the next step; none once the climb is over."""
        while not self.is_over():
            state.limits.check()
            if not self.tried:
                self.tried = self._others(state)
            if waiting := [record for record in self.tried if not record.visits and not record.gave_up]:
                return waiting
            self.step()
        return []

    def step(self) -> None:
        """Go to the heaviest path tried, if it is heavier, and on to the next site."""
        best = max(self.tried, key=lambda record: record.log_evidence, default=self.at)
        is_heavier = best.log_evidence > self.at.log_evidence
        self.at = best if is_heavier else self.at
        self.turn, self.since, self.tried = self.turn + 1, 0 if is_heavier else self.since + 1, []

    def _others(self, state: SearchState) -> list[PathRecord]:
        number = self.turn % number_of_choices(self.at.path, self.labels)
        values = values_of_choice(self.at.path, self.labels, number) * self.tries
        rng = np.random.default_rng((state.seed, 0, 9, self.turn))
        found = paths_with(state.division, values, rng)
        state.executions += len(values)
        state.table.update(state.division)
        paths = dict.fromkeys(path for path in found if path is not None)
        return [state.table.records[path.signature] for path in paths if path.signature in state.table.records]


@dataclass
class Climbs:
    """Climbs from several starts, one after the other.

    Attributes:
        starts: the paths at which climbs are still to start.
        labels: the sites that are labels of a partition.
        share: of the time and the evaluations, after which no more is climbed but for the first time.
        climb: the one under way.
        tops: where those that are over have ended.
    """

    starts: list[PathRecord]
    labels: frozenset[str]
    share: float = 0.35
    climb: Climb | None = None
    tops: list[PathRecord] = field(default_factory=list)

    def is_over(self, state: SearchState) -> bool:
        """Whether no more is to be climbed."""
        if not self.tops:
            return not (self.starts or self.climb)
        if state.limits.within(self.share).time_is_over or state.table.evaluations > self.share * state.limits.budget:
            return True
        highest = max(self.tops, key=lambda record: record.log_evidence)
        is_settled = len(self.tops) >= ENOUGH and Counter(self.tops)[highest] > 1
        return self.climb is None and (is_settled or not self.starts)

    def fresh(self, state: SearchState) -> list[PathRecord]:
        """Paths to visit before the next step; none once the climbs are over."""
        while not self.is_over(state):
            if self.climb is None:
                self.climb = Climb(self.starts.pop(0), self.labels)
            if waiting := self.climb.fresh(state):
                return waiting
            self.tops.append(self.climb.at)
            self.climb = None
        return []


def starts_of(records: Sequence[PathRecord], number: int, rng: np.random.Generator) -> list[PathRecord]:
    """Where to start: the heaviest of the simplest of these paths, the heaviest of all, and others at random."""
    heaviest = max(records, key=lambda record: record.log_evidence)
    simplest = min(records, key=lambda record: (len(record.path.recording.fixed), -record.log_evidence))
    others = [records[i] for i in rng.permutation(len(records))]
    return list(dict.fromkeys([simplest, heaviest, *others]))[:number]
