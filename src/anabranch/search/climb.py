"""A climb from path to path, before a walk: where few of the paths can be visited, chance finds none with mass.

From the heaviest path known, the deciding sites are gone through in turn. For each, the paths with all its other values
are visited, and the heaviest of them is the next to go on from (iterated conditional modes). The climb ends with a
sweep in which no path was heavier. Sites that only the other path has are drawn from their prior, several times.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anabranch.allocate import PathRecord
from anabranch.divide import number_of_choices, paths_with, values_of_choice
from anabranch.search.state import SearchState

__all__ = ["Climb"]


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
