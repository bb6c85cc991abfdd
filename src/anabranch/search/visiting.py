"""Conquer: visit the chosen paths, all at once, each with its strategy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from anabranch import errors
from anabranch.allocate import PathRecord, Visit
from anabranch.allocate.first_visits import by_promise
from anabranch.conquer import Estimate, Target
from anabranch.conquer.elimination import eliminate, rechecked
from anabranch.conquer.prior_sampling import prior_estimate
from anabranch.divide import name_work
from anabranch.limits import LimitReached
from anabranch.search.state import SearchState
from anabranch.settings import check, whole
from anabranch.workers import Workers

__all__ = ["Visiting"]

logger = logging.getLogger("anabranch")


class Outcome(NamedTuple):
    """What a visit leaves: the target, the strategy's state, the estimate, and why the path was given up, if it was."""

    target: Target
    state: Any
    estimate: Estimate | None
    gave_up: str = ""
    is_visit: bool = True
    """False if the time ended the visit before it had an estimate: the estimate is the previous one."""


@dataclass(frozen=True)
class Visiting:
    """Visits of paths, and prior estimates before the first of them.

    Args:
        interpreted_divisor: an interpreted path gets one in so many of the evaluations at once, since each takes a run
            of the Python; a smaller one makes rounds longer.
        prior_draws: draws of a prior estimate; more make it better, and the first visits later.
        max_prior_estimates: paths that get one at most, the most promising ones; more make the first visits later.
        min_evaluations_per_path: budget for each path below which it gets a prior estimate first, in case that there is
            no other; a run with a time limit always does.
    """

    interpreted_divisor: int = 10
    prior_draws: int = 16
    max_prior_estimates: int = 64
    min_evaluations_per_path: int = 100

    def __post_init__(self) -> None:
        check(self, interpreted_divisor=whole(1), prior_draws=whole(1), max_prior_estimates=whole(),
              min_evaluations_per_path=whole())  # fmt: skip

    def make_prior_estimates(self, state: SearchState, workers: Workers) -> None:
        """Estimate each path by a few prior draws, where a limit may leave nothing for a visit."""
        limits = state.limits
        if limits.seconds is None and limits.budget > self.min_evaluations_per_path * len(state.table):
            return
        most = min(max(limits.budget // (4 * self.prior_draws), 1), self.max_prior_estimates)
        records = by_promise(list(state.table), state)[:most]
        estimates = workers.map(partial(self._prior_estimate, state), records)
        for record, estimate in zip(records, estimates, strict=True):
            record.estimate = estimate
        limits.check()

    def _prior_estimate(self, state: SearchState, record: PathRecord) -> Estimate | None:
        """The estimate from a few prior draws; None where that fails, which the visit will report."""
        record.target.allow((4 if record.path.interpreted else 1) * self.prior_draws)  # attempts count there
        try:
            with np.errstate(all="ignore"):
                estimate = prior_estimate(record.target, self.prior_draws, state.rng(record, 5))
        except Exception:
            return None
        return estimate if estimate.log_evidence > -np.inf else None

    def conquer(self, state: SearchState, visits: Sequence[Visit], workers: Workers) -> None:
        """Make the visits, and enter their outcomes in the table."""
        table, before = state.table, state.table.log_evidence
        spent, started = [visit.record.target.evaluations for visit in visits], table.evaluations
        evaluations = started
        outcomes = workers.map(partial(self._visit, state), visits)
        for visit, outcome, earlier in zip(visits, outcomes, spent, strict=True):
            if outcome is None:
                continue
            record = visit.record
            record.target, record.state, record.estimate, record.gave_up, is_visit = outcome
            if not is_visit:
                continue
            # The history has the visits, which are made at the same time, one after the other.
            evaluations += record.target.evaluations - earlier
            state.history.add(evaluations, table.log_evidence, record.path.description, None,
                              record.target.evaluations, record.log_evidence)  # fmt: skip
            record.visits += 1
            if not record.first_visit:
                state.first_visits += 1
                record.first_visit = state.first_visits
        _check_some_solved(state)
        if all(visit.is_first for visit in visits):
            after = table.log_evidence
            gain = after - before if np.isfinite(before) and np.isfinite(after) else np.inf
            state.gains += [gain / len(visits)] * len(visits)
        state.idle_rounds = state.idle_rounds + 1 if table.evaluations == started else 0
        state.limits.check()

    def _visit(self, state: SearchState, visit: Visit) -> Outcome | None:
        """One visit. An error gives up this path, and no other."""
        state.limits.check()
        record, settings = visit.record, state.settings
        name_work(record.path.description)
        strategy, target, inner = settings.local_strategy, record.target, record.state
        rng = state.rng(record)
        target.allow(visit.max_evaluations)
        try:
            # Far from the mass, densities and their derivatives overflow.
            with np.errstate(all="ignore"):
                if inner is None and settings.elimination is not None:
                    target = eliminate(target, settings.elimination, rng)
                evaluations = self._affordable(state, visit, target)
                if inner is None:
                    inner = strategy.start(target, rng)
                inner = strategy.advance(target, inner, rng, evaluations)
                estimate = replace(strategy.estimate(target, inner), notes=target.notes)
                if settings.elimination is not None:
                    other, estimate = rechecked(target, estimate, settings.elimination, rng)
                    if other is not target:
                        target, inner = other, strategy.start(other, rng)
                if state.limits.is_over and not estimate.is_informative:
                    return Outcome(target, inner, record.estimate, is_visit=False)
                return Outcome(target, inner, self._better(state, record, target, estimate))
        except LimitReached:
            if state.limits.is_over:
                return Outcome(target, record.state, record.estimate, is_visit=False)
            return Outcome(target, record.state, self._better(state, record, target, _kept(record, target, strategy)))
        except Exception as error:
            if state.limits.is_over:  # what fails while the run ends says nothing of the path
                return Outcome(target, record.state, record.estimate, is_visit=False)
            logger.warning("the path (%s) was given up: %s", record.path.description, error)
            kept, remark = _kept(record, target, strategy), f"It was given up: {error}"
            is_visit = not isinstance(error, errors.LimitTooSmall)
            return Outcome(target, inner, replace(kept, remarks=(*kept.remarks, remark)), remark, is_visit)

    def _better(self, state: SearchState, record: PathRecord, target: Target, estimate: Estimate) -> Estimate:
        """The estimate of a visit; if that found no mass, for want of evaluations maybe, the one before, or a prior
        estimate."""
        if estimate.is_informative:
            return estimate
        kept = record.estimate if record.visits or record.estimate else self._prior_estimate(state, record)
        if kept is None or not (kept.is_of_prior or kept.is_informative):
            return estimate
        points = kept.points if kept.points.shape[1] == target.dim else kept.points[:, target.columns]
        return replace(kept, points=points, evaluations=target.evaluations, remarks=estimate.remarks)

    def _affordable(self, state: SearchState, visit: Visit, target: Target) -> int:
        """The evaluations of a visit: fewer by the interpreter or the time limit.

        Only with a time limit does this depend on the clock.
        """
        evaluations, limits, overrun = visit.evaluations, state.limits, state.settings.thresholds.overrun
        if visit.record.path.interpreted:
            evaluations = evaluations // self.interpreted_divisor
        if limits.seconds is not None and target.seconds > 0:
            rate = target.evaluations / target.seconds
            waiting = sum(not record.visits for record in state.table) + 1
            seconds = (limits.seconds - limits.elapsed) / (overrun * waiting)
            evaluations = min(evaluations, max(int(rate * seconds), 2 * self.prior_draws))
        return max(min(evaluations, visit.max_evaluations), 1)


def _kept(record: PathRecord, target: Target, strategy: Any) -> Estimate:
    """The previous estimate of a path whose visit failed, or one without mass."""
    return record.estimate or Estimate.nothing(target.dim, target.evaluations, type(strategy).__name__)


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
