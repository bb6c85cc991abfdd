"""A climb from path to path, before a walk: where few of the paths can be visited, chance finds none with mass.

From a path, the deciding sites are gone through in turn. For each, the paths with all its other values are visited, and
the heaviest of them is the next to go on from (iterated conditional modes). The climb ends with a sweep in which no
path was heavier. Sites that only the other path has are drawn from their prior, several times.

A detour begins with another value of one site, and holds it for as long as that leads up: other values of the other
sites may have to go with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anabranch.allocate import PathRecord
from anabranch.divide import Holding, Values, number_of_choices, paths_with, values_of_choice
from anabranch.search.state import SearchState

__all__ = ["Climb"]


@dataclass(eq=False)
class Climb:
    """A climb under way.

    Attributes:
        at: the path that it has come to.
        labels: the sites that are labels of a partition.
        order: a number for a random order of the sites; they are gone through in their own order if it is None.
        begins_with: the values of the fixed sites with which it begins, and what it holds; None if it is no detour.
        max_sweeps: sweeps after which it ends in any case.
        tries: how often each value is tried, with new draws of sites that only the other path has.
        turn: deciding sites gone through so far.
        waiting: those that are to be gone through before the climb is over, the next one last.
        tried: the paths with the other values of the present site.
    """

    at: PathRecord
    labels: frozenset[str]
    order: int | None = None
    begins_with: Values | None = None
    holding: Holding | None = None
    max_sweeps: int = 6
    tries: int = 6
    turn: int = 0
    waiting: list[int] = field(init=False)
    tried: list[PathRecord] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.waiting = self._all_sites()

    def _all_sites(self) -> list[int]:
        """All sites of the path that it has come to, in the order in which they are gone through from the end."""
        number = number_of_choices(self.at.path, self.labels)
        if self.order is not None:
            return np.random.default_rng((self.order, self.turn)).permutation(number).tolist()
        return [(self.turn + i) % number for i in reversed(range(number))]

    def is_over(self) -> bool:
        """Whether a sweep has found nothing heavier, or there were enough of them."""
        return not self.waiting or self.turn >= self.max_sweeps * number_of_choices(self.at.path, self.labels)

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
        able = [record for record in self.tried if self.holding is None or self.holding.is_kept(record.path)]
        best = max(able, key=lambda record: record.log_evidence, default=self.at)
        is_first = self.begins_with is not None
        self.turn, self.tried, self.begins_with = self.turn + 1, [], None
        self.waiting.pop()
        if is_first or best.log_evidence > self.at.log_evidence:
            self.at = best
            self.waiting = self._all_sites()
        if not self.waiting and self.holding is not None:
            self.holding, self.waiting = None, self._all_sites()

    def _others(self, state: SearchState) -> list[PathRecord]:
        if self.begins_with is not None:
            values = [self.begins_with] * self.tries
        else:
            values = values_of_choice(self.at.path, self.labels, self.waiting[-1]) * self.tries
        rng = np.random.default_rng((state.seed, 0, 9, self.turn, *([] if self.order is None else [self.order])))
        found = paths_with(state.division, values, rng)
        state.executions += len(values)
        state.table.update(state.division)
        paths = dict.fromkeys(path for path in found if path is not None)
        return [state.table.records[path.signature] for path in paths if path.signature in state.table.records]
