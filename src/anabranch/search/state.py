"""The state of a run of `DCC`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from anabranch.allocate import AllocationState, PathRecord
from anabranch.combine.history import History
from anabranch.divide import Division, Solved
from anabranch.limits import Limits
from anabranch.progress import Status
from anabranch.search.expectation_error import ExpectationError, ExpectationErrors
from anabranch.search.visit import Visitor

if TYPE_CHECKING:
    from anabranch.checkpoint import VisitLog
    from anabranch.search.climbs import Climbs
    from anabranch.search.walk import Walk

__all__ = ["SearchState"]


@dataclass(kw_only=True)
class SearchState(AllocationState):
    """What the steps of the loop share.

    Attributes:
        division: the program and the paths found so far.
        executions: executions so far, from the prior and from proposals.
        is_exploration_cut: True if the time ended the executions from the prior.
        first_visits: paths visited so far.
        idle_rounds: the last so many rounds took no evaluation.
        is_cut_short: False once the run has stopped by itself, and not at a limit.
        solved: what was solved for so far.
        history: the visits so far.
        walk: the walk over paths, if there is one.
        climbs: the climbs before it, if there were any.
        is_explored: True once the prior was explored, and the rounds have begun.
        seconds, begun_at: how long the run took before it went on, and its evaluations when it did so with more budget.
        visit_log: what the visits found out, by which the run goes on in another process.
        ended: the limits of the parts of the run before this one, each of which went on from the one before (`more`).
        started_from: the root of the tree of decisions from which the paths to begin with were looked for.
        start_notes: what was not found of them.
        expectations: computes the error of the expectation that the run is asked for, if it is.
    """

    division: Division
    visit_log: VisitLog
    ended: list[Limits] = field(default_factory=list)
    executions: int = 0
    is_exploration_cut: bool = False
    first_visits: int = 0
    idle_rounds: int = 0
    is_cut_short: bool = True
    solved: Solved = field(default_factory=Solved)
    history: History = field(default_factory=History)
    walk: Walk | None = None
    climbs: Climbs | None = None
    is_explored: bool = False
    seconds: float = 0.0
    begun_at: int = 0
    started_from: object = None
    start_notes: list[str] = field(default_factory=list)
    expectations: ExpectationErrors | None = None

    def go_on(self, limits: Limits) -> None:
        """Let the run go on within other limits; the executions from the prior, too, if time had ended them."""
        self.seconds += self.limits.elapsed
        # What was interrupted, and may come to its former budget, goes on as if it had not been.
        if not (self.limits.cancelled.is_set() and limits.budget >= self.limits.budget):
            self.begun_at = self.table.evaluations
        self.ended.append(self.limits)
        self.is_explored = self.is_explored and not self.is_exploration_cut
        self.limits, self.is_cut_short, self.is_exploration_cut, self.idle_rounds = limits, True, False, 0
        self.visit_log.begin_part()

    def settle_budget(self) -> None:
        """Take the default budget of the program, if the user gave none, once it is known how the program runs."""
        self.limits = self.limits.for_program(self.division.interpreted_at is not None)

    def expectation_error(self) -> ExpectationError | None:
        """The error of the expectation that is asked for; None if none is, or no draw has what it reads."""
        if self.limits.target is None:
            return None
        if self.expectations is None or self.expectations.function is not self.limits.target:
            self.expectations = ExpectationErrors(self.limits.target)
        return self.expectations.of(self)

    def errors(self) -> dict[PathRecord, float]:
        error = self.expectation_error()
        return super().errors() if error is None else {**dict.fromkeys(self.table, 0.0), **error.of_paths}

    def importance(self) -> dict[PathRecord, float]:
        error = self.expectation_error()
        return super().importance() if error is None else {**dict.fromkeys(self.table, 0.0), **error.importance}

    @cached_property
    def visitor(self) -> Visitor:
        """Makes the visits of the run."""
        return Visitor(self.settings, self.seed)

    def rng(self, record: PathRecord, *purpose: int) -> np.random.Generator:
        """The generator for a purpose at this visit of a path: it does not depend on the order of the visits."""
        return np.random.default_rng((self.seed, 1 + record.number, record.visits, *purpose))

    @property
    def status(self) -> Status:
        """How far the run has come."""
        table, total = self.table, self.table.total
        return Status(len(table), len(table.solved), total.log_evidence, total.log_evidence_sd, table.evaluations,
                      self.limits.budget)  # fmt: skip
