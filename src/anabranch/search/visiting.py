"""Conquer: visit the chosen paths, all at once, each with its strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from anabranch import errors
from anabranch.allocate import Visit
from anabranch.allocate.first_visits import by_promise
from anabranch.search.state import SearchState
from anabranch.search.visit import Task
from anabranch.settings import check, whole
from anabranch.workers import Workers

__all__ = ["Visiting"]


@dataclass(frozen=True)
class Visiting:
    """Visits of paths, and prior estimates before the first of them.

    Args:
        interpreted_divisor: an interpreted path gets one in so many of the evaluations at once, since each takes a run
            of the Python; a smaller one makes rounds longer.
        min_interpreted: evaluations of such a visit at least; fewer make more rounds, and a mixture is not adapted.
        prior_draws: draws of a prior estimate; more make it better, and the first visits later.
        max_prior_estimates: paths that get one at most, the most promising ones; more make the first visits later.
        min_evaluations_per_path: budget for each path below which it gets a prior estimate first, in case that there is
            no other; a run with a time limit always does.
    """

    interpreted_divisor: int = 10
    min_interpreted: int = 2_000
    prior_draws: int = 16
    max_prior_estimates: int = 64
    min_evaluations_per_path: int = 100

    def __post_init__(self) -> None:
        check(self, interpreted_divisor=whole(1), min_interpreted=whole(1), prior_draws=whole(1),
              max_prior_estimates=whole(), min_evaluations_per_path=whole())  # fmt: skip

    def make_prior_estimates(self, state: SearchState, workers: Workers) -> None:
        """Estimate each path by a few prior draws, where a limit may leave nothing for a visit."""
        limits = state.limits
        if limits.seconds is None and limits.budget > self.min_evaluations_per_path * len(state.table):
            return
        most = min(max(limits.budget // (4 * self.prior_draws), 1), self.max_prior_estimates)
        records = by_promise(list(state.table), state)[:most]
        tasks = [Task.of(Visit(record, 0, 0), 0) for record in records]
        estimates = workers.map(state.visitor.prior_estimate, tasks)
        for record, estimate in zip(records, estimates, strict=True):
            record.estimate = estimate
        limits.check()

    def conquer(self, state: SearchState, visits: Sequence[Visit], workers: Workers) -> None:
        """Make the visits, and enter their outcomes in the table."""
        table, before = state.table, state.table.log_evidence
        spent, started = [visit.record.evaluations for visit in visits], table.evaluations
        evaluations = started
        waiting = sum(not record.visits for record in table)
        tasks = [_task(visit, waiting) for visit in visits]
        outcomes, total = state.visit_log.visit(workers, state.visitor, tasks), before
        for visit, outcome, earlier in zip(visits, outcomes, spent, strict=True):
            if outcome is None:
                continue
            record = visit.record
            is_new = record.estimate is None
            outcome.enter(record)
            # One more summand; of many paths, all of them take a while to add up.
            total = float(np.logaddexp(total, record.log_evidence)) if is_new else table.log_evidence
            if not outcome.is_visit:
                continue
            # The history has the visits, which are made at the same time, one after the other.
            evaluations += record.evaluations - earlier
            state.history.add(evaluations, total, record.path.description, None,
                              record.evaluations, record.log_evidence)  # fmt: skip
            record.visits += 1
            record.is_scouted = visit.is_scout
            if not record.first_visit:
                state.first_visits += 1
                record.first_visit = state.first_visits
        _check_some_solved(state)
        if all(visit.is_first and not visit.is_scout for visit in visits):
            after = table.log_evidence
            gain = after - before if np.isfinite(before) and np.isfinite(after) else np.inf
            state.gains += [gain / len(visits)] * len(visits)
        state.idle_rounds = state.idle_rounds + 1 if table.evaluations == started else 0
        state.limits.check()


def _task(visit: Visit, waiting: int) -> Task:
    """The task of a visit. After a scout the first visit begins anew: a scout may have seen one mode of many."""
    task = Task.of(visit, waiting)
    return replace(task, state=None) if visit.record.is_scouted else task


def _check_some_solved(state: SearchState) -> None:
    """Raise `StrategyCannotRun` if the strategy gave up every path."""
    solved = state.table.solved
    if any(record.is_informative for record in solved):
        return
    if solved and all(record.gave_up for record in solved) and len(solved) == len(state.table):
        raise errors.StrategyCannotRun(
            f"no path could be solved; the first ({solved[0].path.description}): {solved[0].gave_up}",
            remedy="Leave the choice of the strategy to Auto, the default",
        )
