"""The schedule of a run: rules that are asked in turn which paths to visit next, and with how many evaluations.

The default has three: `FirstVisits` of paths without an estimate, `DoubtedPaths` whose diagnostics fail, and
`Refinement`, which shares the evaluations between the paths with mass by an `Allocator`. `DCC(schedule=...)` takes
others: a rule that comes first owns the first visits, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from anabranch.allocate.active import ActiveSet
from anabranch.allocate.path_table import PathRecord, PathTable
from anabranch.limits import TOLERANCE, Limits

if TYPE_CHECKING:
    from anabranch.dcc import DCC

__all__ = ["AllocationState", "ScheduleRule", "Visit", "next_visits", "waiting_paths"]


class Visit(NamedTuple):
    """A path to visit, the evaluations that the visit should take, and those at which it is ended."""

    record: PathRecord
    evaluations: int
    max_evaluations: int
    is_first: bool = False
    """Whether the path has no estimate of a visit yet, or only one without mass."""


@dataclass(kw_only=True)
class AllocationState:
    """What a rule sees of a run.

    Attributes:
        settings: of the run.
        limits: of the run.
        seed: of the run.
        table: the paths found so far.
        active: which of them are active.
        rounds: rounds so far.
        gains: by how much each of the first visits so far raised log Ẑ.
    """

    settings: DCC
    limits: Limits
    seed: int = 0
    table: PathTable = field(default_factory=PathTable)
    active: ActiveSet = field(default_factory=ActiveSet)
    rounds: int = 0
    gains: list[float] = field(default_factory=list)

    @property
    def evaluations_left(self) -> int:
        """Evaluations that are left of the budget, at least one."""
        return max(self.limits.budget - self.table.evaluations, 1)

    @property
    def tolerance(self) -> float:
        """The tolerance of the run; the default where it has none."""
        return self.limits.tolerance or TOLERANCE

    @property
    def active_records(self) -> list[PathRecord]:
        """The records of the paths that are active in this round."""
        return [self.table.records[key] for key in self.active.chosen if key in self.table.records]


@runtime_checkable
class ScheduleRule(Protocol):
    """A frozen dataclass of settings with two functions of the state of a run, which they do not change."""

    def visits(self, state: AllocationState) -> list[Visit]:
        """The visits of the next round; an empty list leaves the round to the next rule.

        All are chosen before any of them runs, so that the answer does not depend on how many run at once.
        """

    def waiting(self, state: AllocationState) -> list[PathRecord]:
        """The paths that the rule will visit before the run may stop at its tolerance."""


def next_visits(rules: Sequence[ScheduleRule], state: AllocationState) -> list[Visit]:
    """The visits of the first rule that has any, after paths became active; none if nothing is left to do."""
    evidence = {key: record.log_evidence for key, record in state.table.records.items() if record.visits}
    state.active = state.active.advance(evidence, np.random.default_rng((state.seed, 0, state.rounds)))
    return next((visits for rule in rules if (visits := rule.visits(state))), [])


def waiting_paths(rules: Sequence[ScheduleRule], state: AllocationState) -> list[PathRecord]:
    """The paths that the rules will visit before the run may stop at its tolerance."""
    return [record for rule in rules for record in rule.waiting(state)]
