"""One visit to a path: a function of the task, the settings and the seed, wherever it is made.

A visit draws from a generator of its own, seeded by the path and the visit. What it leaves, it returns: the next visit
to the path may be made by another thread, in another process or on another machine, and gives the same numbers. Only
with a time limit does a visit depend on the clock.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anabranch import errors
from anabranch.allocate import PathRecord, Visit
from anabranch.conquer import Estimate, Target
from anabranch.conquer.contiguous import contiguous
from anabranch.conquer.elimination import eliminate, rechecked
from anabranch.conquer.integrated import Integrated, NotConjugate, verify
from anabranch.conquer.prior_sampling import prior_estimate
from anabranch.conquer.strategy import integrated
from anabranch.divide import name_work
from anabranch.limits import LimitReached, Limits, current

if TYPE_CHECKING:
    from anabranch.dcc import DCC

__all__ = ["Outcome", "Task", "Visitor", "given_up"]

logger = logging.getLogger("anabranch")


@dataclass(frozen=True)
class Task:
    """A path to visit, and what was found out about it so far.

    Attributes:
        number: of the path, in the order of discovery.
        visits: how often it was visited.
        evaluations, max_evaluations: those that the visit should take, and those at which it is ended.
        waiting: paths that were not visited yet, with which it shares the time.
        target, state, estimate: the density, the state of the strategy, and the estimate so far.
    """

    number: int
    visits: int
    evaluations: int
    max_evaluations: int
    waiting: int
    target: Target
    state: Any = None
    estimate: Estimate | None = None

    @classmethod
    def of(cls, visit: Visit, waiting: int) -> Task:
        """The task of a visit."""
        record = visit.record
        limits = visit.evaluations, visit.max_evaluations
        return cls(record.number, record.visits, *limits, waiting, record.target, record.state, record.estimate)


class Outcome(NamedTuple):
    """What a visit leaves: the target, the strategy's state, the estimate, and why the path was given up, if it was."""

    target: Target
    state: Any
    estimate: Estimate | None
    gave_up: str = ""
    is_visit: bool = True
    """False if the time ended the visit before it had an estimate: the estimate is the previous one."""
    is_cut: bool = False
    """Whether the run was over when the visit ended, which may have cut it short."""

    def enter(self, record: PathRecord) -> None:
        """Enter the outcome in the record of the path."""
        record.target, record.state, record.estimate, record.gave_up = self[:4]


@dataclass(frozen=True)
class Visitor:
    """Makes visits, with the settings and the seed of a run; whoever calls it does so within the limits of the run."""

    settings: DCC
    seed: int

    def __call__(self, task: Task) -> Outcome:
        """Make one visit. An error gives up this path, and no other."""
        limits = current() or Limits()
        limits.check()
        outcome = self._visited(task, limits)
        return outcome._replace(state=contiguous(outcome.state), is_cut=limits.is_over)

    def _visited(self, task: Task, limits: Limits) -> Outcome:
        settings, strategy = self.settings, self.settings.local_strategy
        target, inner, rng = task.target, task.state, self._rng(task)
        name_work(target.path.description)
        target.allow(task.max_evaluations)
        try:
            # Far from the mass, densities and their derivatives overflow.
            with np.errstate(all="ignore"):
                if inner is None and settings.elimination is not None:
                    target = eliminate(target, settings.elimination, rng)
                evaluations = self._affordable(task, target, limits)
                without = integrated(strategy, target, evaluations)
                if without is not target:
                    task, target, inner = _begun_again(task, without), without, None
                if inner is None:
                    inner = strategy.start(target, rng)
                inner = strategy.advance(target, inner, rng, max(evaluations // target.cost, 1))
                spent = target.account.evaluations
                estimate = replace(strategy.estimate(target, inner), notes=target.notes, evaluations=spent)
                if isinstance(target, Integrated):
                    verify(target, estimate, self._rng(task, 7))
                if settings.elimination is not None:
                    other, estimate = rechecked(target, estimate, settings.elimination, rng)
                    if other is not target:
                        target, inner = other, strategy.start(other, rng)
                if limits.is_over and not estimate.is_informative:
                    return Outcome(target, inner, task.estimate, is_visit=False)
                return Outcome(target, inner, self._better(task, target, estimate))
        except NotConjugate:
            assert isinstance(target, Integrated)
            return self._visited(_whole_again(task, target), limits)
        except LimitReached:
            if limits.is_over:
                return Outcome(target, task.state, task.estimate, is_visit=False)
            return Outcome(target, task.state, self._better(task, target, _kept(task, target, strategy)))
        except Exception as error:
            if limits.is_over:  # what fails while the run ends says nothing of the path
                return Outcome(target, task.state, task.estimate, is_visit=False)
            return given_up(replace(task, target=target, state=inner), strategy, error)

    def prior_estimate(self, task: Task) -> Estimate | None:
        """The estimate from a few prior draws; None where that fails, which the visit will report."""
        draws = self.settings.visiting.prior_draws
        task.target.allow((4 if task.target.path.interpreted else 1) * draws)  # attempts count there
        try:
            with np.errstate(all="ignore"):
                estimate = prior_estimate(task.target, draws, self._rng(task, 5))
        except Exception:
            return None
        return estimate if estimate.log_evidence > -np.inf else None

    def _rng(self, task: Task, *purpose: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, 1 + task.number, task.visits, *purpose))

    def _better(self, task: Task, target: Target, estimate: Estimate) -> Estimate:
        """The estimate of a visit; if that found no mass, for want of evaluations maybe, the one before, or a prior
        estimate."""
        if estimate.is_informative:
            return estimate
        kept = task.estimate if task.visits or task.estimate else self.prior_estimate(task)
        if kept is None or not (kept.is_of_prior or kept.is_informative):
            return estimate
        kept = _not_visited(kept, target) if kept.is_of_prior else kept
        points = kept.points if kept.points.shape[1] == target.dim else kept.points[:, target.columns]
        return replace(kept, points=points, evaluations=target.account.evaluations, remarks=estimate.remarks)

    def _affordable(self, task: Task, target: Target, limits: Limits) -> int:
        """The evaluations of a visit: fewer by the interpreter or the time limit."""
        evaluations, settings = task.evaluations, self.settings
        if target.path.interpreted:
            visiting = settings.visiting
            least = min(evaluations, visiting.min_interpreted)
            evaluations = max(evaluations // visiting.interpreted_divisor, least)
        if limits.seconds is not None and target.seconds > 0:
            rate = target.account.evaluations / target.seconds
            seconds = (limits.seconds - limits.elapsed) / (settings.thresholds.overrun * (task.waiting + 1))
            evaluations = min(evaluations, max(int(rate * seconds), 2 * settings.visiting.prior_draws))
        return max(min(evaluations, task.max_evaluations), 1)


def _not_visited(estimate: Estimate, target: Target) -> Estimate:
    """An estimate by n prior draws, where the visit found none: a part of the prior with less than 1/n of the
    mass, which they may have missed, has the largest likelihood that the visit has met."""
    log_rare = target.path.log_prior_probability - np.log(max(len(estimate.points), 1))
    possible = max(estimate.log_possible, float(log_rare + target.best_likelihood))
    return replace(estimate, log_possible=possible, is_confirmed=False)


def _begun_again(task: Task, target: Target) -> Task:
    """The task with another target, for which the state is not; draws without some of its coordinates are of no use."""
    estimate = task.estimate
    if estimate is not None and estimate.points.shape[1] != target.dim:
        is_whole = estimate.points.shape[1] == target.path.dim
        estimate = replace(estimate, points=estimate.points[:, target.columns]) if is_whole else None
    return replace(task, target=target, state=None, estimate=estimate)


def _whole_again(task: Task, target: Integrated) -> Task:
    """The task with all coordinates of the path, after those integrated out have turned out not to be what they seemed.
    Nothing that was found out without them counts."""
    whole = target.target
    logger.info("the path (%s) is visited with all its coordinates", whole.path.description)
    whole.is_integrable, whole.climbable = False, None
    left = int(min(max(target.account.allowed - target.account.evaluations, 1), task.max_evaluations))
    return replace(task, target=whole, state=None, estimate=None, max_evaluations=left,
                   evaluations=min(task.evaluations, left))  # fmt: skip


def given_up(task: Task, strategy: object, error: Exception) -> Outcome:
    """The outcome of a visit that failed: the previous estimate, and a remark."""
    logger.warning("the path (%s) was given up: %s", task.target.path.description, error)
    kept, remark = _kept(task, task.target, strategy), f"It was given up: {error}"
    is_visit = not isinstance(error, errors.LimitTooSmall)
    return Outcome(task.target, task.state, replace(kept, remarks=(*kept.remarks, remark)), remark, is_visit)


def _kept(task: Task, target: Target, strategy: object) -> Estimate:
    """The previous estimate of a path whose visit failed, or one without mass."""
    return task.estimate or Estimate.nothing(target.dim, target.account.evaluations, type(strategy).__name__)
