"""The loop of `DCC`: choose paths, spend evaluations on them, propose from where they are (paper, appendix B).

A round has a fixed number of allocations, all chosen before any of them runs, and every task draws from a generator of
its own, seeded by the path and the visit: the answer does not depend on how many threads there are.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from anabranch import errors
from anabranch.allocate import PathRecord, PathSummary, PathTable
from anabranch.allocate.doubt import MANY_VISITED, is_doubtful, possible_of_unvisited, why_doubtful
from anabranch.allocate.first_visits import HEAVY, MANY, NEGLIGIBLE, by_promise, is_easy, is_unknown, that_may_matter
from anabranch.combine import Posterior, Run, Solution
from anabranch.combine.evidence import Evidence, join
from anabranch.combine.history import History
from anabranch.conquer import Estimate, Target
from anabranch.conquer.auto import GLANCE_BELOW, GLANCE_DIM
from anabranch.conquer.marginal import sum_out
from anabranch.conquer.prior_sampling import prior_estimate
from anabranch.divide import Division, Executions
from anabranch.divide.discover import Proposals, counts_of, neighbours, propose
from anabranch.divide.remedies import hours_warning
from anabranch.limits import LimitReached, Limits, enforced
from anabranch.report.progress import Progress, Status
from anabranch.workers import Workers

if TYPE_CHECKING:
    from anabranch.dcc import DCC

__all__ = ["Search"]

logger = logging.getLogger("anabranch")

_DEAR = 10
"""How much less an interpreted path is given at once: each of its evaluations takes a run of the Python."""
_MODES_NEED = 6_000
"""Evaluations with which the modes of a path are found, as a rule."""
_MATTERS, _ENOUGH = 0.01, 30_000
"""Weight of a path that matters, and evaluations that it must have had before its answer counts as settled."""
_NOTES = 5
"""Paths that something is wrong with, of which the posterior speaks by name."""
_RUNS = 2_000
"""Runs of the program's Python, one for each path found, after which the prior is no longer explored."""
_IN_VAIN = 8
"""First looks, and a tenth of the paths that may matter at least, that found nothing before there are fewer of them."""
_SEARCHES = 10
"""Rounds of proposals from the paths with mass before the answer counts as settled."""
_EXPLORING = 0.3
"""The share of the time that executions from the prior may take."""
_SLACK = 2.0
"""By which factor a visit may exceed the evaluations it is meant to take, before it is ended."""
_SPENT, _LEAST = 0.01, 500
"""The share of the budget that is not worth another round, and evaluations below which an allocation is not."""
_SKETCH, _SKETCH_BELOW = 16, 1_000
"""Prior draws of a sketch, and evaluations for each path below which one is made in case that nothing better comes."""
_DRAWN = 100_000
"""Evaluations that drawing what was summed out may take, when a path is done."""
_DOUBTED = 0.1
"""Possible mass of a path that its diagnostics do not vouch for, relative to the tolerance, from which on it gets
another visit."""
_DOUBT_SHARE, _DOUBT_MOST = 4, 200_000
"""One in so many of the evaluations go to such paths, and to one of them at most so many."""


class Task(NamedTuple):
    """A visit: the path, the evaluations it is meant to take, and those at which it is ended."""

    entry: PathRecord
    evaluations: int
    most: int


class Outcome(NamedTuple):
    """What a visit leaves: the target, the strategy's state, the estimate, why the path was given up, if it was."""

    target: Target
    state: Any
    estimate: Estimate | None
    gave_up: str = ""
    is_visit: bool = True
    """False if the time ended it before it came to anything: the estimate is the one from before."""


class Search:
    """One run: the division, the ledger, and what is left of the limits."""

    def __init__(self, settings: DCC, division: Division, limits: Limits, seed: int, progress: Progress) -> None:
        self.settings, self.division, self.limits, self.seed, self.progress = settings, division, limits, seed, progress
        self.ledger = PathTable()
        self.executions = 0
        self.rounds = self.looked = self.idle = 0
        self.cut_short = True  # unless it comes to an end by itself
        self.history = History()
        self.gains: list[float] = []  # by how much each first look raised log Ẑ
        self.unseen: dict[PathRecord, float] = {}  # at the end: the paths not visited, and what they may have
        self.active = settings.active

    def go(self, workers: Workers) -> str:
        """Rounds, until there is a reason to stop, which is returned."""
        try:
            with enforced(self.limits):
                self.explore()
                self.sketch(workers)
                reason = self.rounds_until_stopped(workers)
        except LimitReached:
            reason = self.limits.exceeded(0)
        except KeyboardInterrupt:
            self.limits.cancelled.set()
            reason = ""
        if self.limits.is_over and not any(entry.is_known for entry in self.ledger):
            if self.limits.cancelled.is_set():
                raise KeyboardInterrupt
            raise self.too_little_time()
        return reason or "It was interrupted; what had been computed by then is kept."

    def rounds_until_stopped(self, workers: Workers) -> str:
        while True:
            if reason := self.spent():
                return reason
            chosen = self.choose()
            if not chosen:
                self.cut_short = False
                given_up = ", was given up" if any(entry.gave_up for entry in self.ledger) else ""
                return f"Nothing was left to do: every path found is solved exactly{given_up} or has no mass."
            before = self.ledger.evaluations
            self.conquer(chosen, workers)
            self.limits.check()
            self.idle = self.idle + 1 if self.ledger.evaluations == before else 0
            self.discover([task.entry for task in chosen])
            self.rounds += 1
            self.show()
            if not self.spent() and (reason := self.is_settled()):
                return reason

    def spent(self) -> str:
        """Why no other round can begin, or nothing: what is left of the budget is not worth one."""
        budget, evaluations = self.limits.budget, self.ledger.evaluations
        too_little = self.rounds and budget - evaluations < max(_SPENT * budget, self.idle * _LEAST)
        return self.limits.exceeded(budget if too_little else evaluations)

    def too_little_time(self) -> errors.LimitTooSmall:
        """The error for a run that ends before any path has an estimate."""
        found = f"{len(self.ledger)} paths were found, and none of them" if len(self.ledger) else "no path"
        return errors.LimitTooSmall(
            f"the {self.limits.seconds:g} seconds were over when {found} had an estimate",
            where=self.division.where,
            remedy="Give the run more seconds, or make an execution of the program cheaper: less data, a shorter loop, "
            "jax.numpy in place of Python numbers",
        )

    # Allocate ---------------------------------------------------------------------------------------------------

    def choose(self) -> list[Task]:
        """The paths of the next round, each with its evaluations: first looks before anything else."""
        evidence = {key: entry.log_evidence for key, entry in self.ledger.entries.items() if entry.visits}
        self.active = self.active.advance(evidence, np.random.default_rng((self.seed, 0, self.rounds)))
        left = max(self.limits.budget - self.ledger.evaluations, 1)
        if fresh := self.to_look_at():
            # Half a round: the sooner the mass is found, the less is spent where there is none.
            waiting, fresh = len(fresh), fresh[: max(self.settings.allocations // 2, len(fresh) // 50, 1)]
            share = self.settings.evaluations_per_first_visit or self.evaluations_per_first_visit()
            most = min(max(left // waiting, int(_SLACK * share)), max(left // len(fresh), 1))
            return [Task(entry, self.first_look(entry, min(share, most)), most) for entry in fresh]
        if doubted := self.doubted()[: self.settings.allocations // 2]:
            share = min(_ENOUGH, self.doubt_most(len(doubted)), max(int(left / _SLACK / len(doubted)), 1))
            return [Task(entry, share, int(_SLACK * share)) for entry in doubted]
        weights, total = self.ledger.weights(), self.ledger.log_evidence
        entries = [each for each in self.chosen() if each.visits and not each.gave_up and self.is_worth(each, total)]
        under_explored = set(self.under_explored(weights))
        entries = self.unsettled(entries, weights, under_explored) or entries
        number = int(np.clip(left / (_SLACK * _LEAST), 1, self.settings.allocations))
        times = Counter(self.allocator_choice([PathSummary(entry.visits, entry.estimate) for entry in entries], number))
        # Where many paths share the mass, each gets less at a time.
        share = min(self.settings.share, max(self.limits.budget // (10 * len(self.ledger)), self.settings.share // 10))
        share = min(share, max(int(left / _SLACK / max(times.total(), 1)), 1))
        tasks = []
        for entry, count in ((entries[i], count) for i, count in times.items()):
            evaluations = min(count * share, self.needed(entry, weights[entry.path.signature], entry in under_explored))
            tasks.append(Task(entry, evaluations, int(_SLACK * count * share)))
        return tasks

    def doubted(self) -> list[PathRecord]:
        """The paths that may have mass although their estimates say that they have little or none.

        The diagnostics of a visit (effective draws, Pareto k) say when its estimate cannot be trusted. Such a path is
        not negligible until it was looked at properly: it gets visits, up to a share of the budget.
        """
        tolerance = self.limits.tolerance or 0.005
        if not self.settings.prune_negligible or not np.isfinite(self.ledger.log_evidence):
            return []
        least = self.ledger.log_evidence + np.log(_DOUBTED * tolerance)
        doubted = [each for each in self.ledger if each.visits and is_doubtful(each) and each.log_possible > least]
        most = self.doubt_most(len(doubted))
        return sorted((each for each in doubted if each.target.evaluations < most), key=lambda each: -each.log_possible)

    def doubt_most(self, number: int) -> int:
        """Evaluations that each of so many doubted paths may have had."""
        return int(min(self.limits.budget / (_DOUBT_SHARE * max(number, 1)), _DOUBT_MOST))

    def evaluations_per_first_visit(self) -> int:
        """Half of the budget for all first looks together; but where the paths are not many, enough to find modes."""
        each = self.limits.budget // len(self.ledger)
        least = min(each, _MODES_NEED) if len(self.ledger) <= MANY else 300
        return int(np.clip(each // 2, max(least, 300), 10_000))

    def first_look(self, entry: PathRecord, share: int) -> int:
        """The evaluations of a first look: no more than a glance takes where many small paths would be compiled."""
        many = len(self.ledger) > MANY and entry.target.dim <= GLANCE_DIM and share < _MODES_NEED
        return min(share, GLANCE_BELOW - 1) if many else share

    def unsettled(
        self, entries: Sequence[PathRecord], weights: Mapping[Any, float], under_explored: set[PathRecord]
    ) -> list[PathRecord]:
        """Those of the paths on which it depends whether the tolerance is met."""
        tolerance = self.limits.tolerance
        if tolerance is None or not self.settings.prune_negligible:
            return []
        least = tolerance / (2 * np.sqrt(len(entries) or 1))
        return [each for each in entries if each in under_explored or weights[each.path.signature] * each.error > least]

    def needed(self, entry: PathRecord, weight: float, under_explored: bool) -> int:
        """About the evaluations after which the tolerance would be met with some room: more would be wasted."""
        tolerance = self.limits.tolerance
        if tolerance is None or not self.settings.prune_negligible or not np.isfinite(entry.error):
            return self.limits.budget
        least = _ENOUGH if under_explored else self.settings.share // 10
        return int(max(entry.target.evaluations * (2 * weight * entry.error / tolerance) ** 2, least))

    def allocator_choice(self, arms: Sequence[PathSummary], number: int) -> list[int]:
        rng = np.random.default_rng((self.seed, 0, self.rounds, 1))
        return self.settings.allocator.choose(arms, number, rng) if arms else []

    def chosen(self) -> list[PathRecord]:
        """The entries of the paths that may share the evaluations."""
        return [self.ledger.entries[key] for key in self.active.chosen if key in self.ledger.entries]

    def to_look_at(self) -> list[PathRecord]:
        """The paths never visited that should be: active ones, and after them, with thrift, any that may matter."""
        unknown = [entry for entry in self.ledger if is_unknown(entry, self.ledger)]
        sketched = [entry for entry in unknown if entry.log_evidence > self.ledger.log_evidence - NEGLIGIBLE]
        if sketched:
            return sorted(sketched, key=lambda entry: -entry.log_evidence)
        active = set(self.active.chosen)
        fresh = [entry for entry in unknown if entry.path.signature in active]
        if not self.settings.prune_negligible:
            return by_promise(fresh)
        likely = that_may_matter(unknown, self.ledger, strictly=True)
        if self.was_in_vain(max(_IN_VAIN, len(likely) // 10)):
            return by_promise([entry for entry in likely if is_easy(entry, self.ledger)])
        return by_promise(that_may_matter(fresh, self.ledger) or likely)

    def is_worth(self, entry: PathRecord, total: float) -> bool:
        """Whether more evaluations could matter: of a path whose look showed it to be negligible they could not."""
        if not self.settings.prune_negligible or entry.estimate is None:
            return True
        possible = entry.log_evidence + np.log1p(min(entry.estimate.weight_sd, 1e6))
        return bool(possible > total - NEGLIGIBLE)

    def was_in_vain(self, last: int) -> bool:
        """Whether the last so many first looks found nothing."""
        tolerance = self.limits.tolerance or 0.005
        return len(self.gains) > last and sum(self.gains[-last:]) < tolerance / 5

    # Conquer ----------------------------------------------------------------------------------------------------

    def sketch(self, workers: Workers) -> None:
        """Estimate each path coarsely, where a limit may leave nothing for anything better."""
        if self.limits.seconds is None and self.limits.budget > _SKETCH_BELOW * len(self.ledger):
            return
        entries = by_promise(list(self.ledger))[: max(self.limits.budget // (4 * _SKETCH), 1)]
        for entry, estimate in zip(entries, workers.map(self.sketched, entries), strict=True):
            entry.estimate = estimate
        self.limits.check()

    def sketched(self, entry: PathRecord) -> Estimate | None:
        """The estimate from a few prior draws; nothing where that fails, which the visits will speak of."""
        rng = np.random.default_rng((self.seed, 1 + entry.number, 0, 5))
        entry.target.allow(4 * _SKETCH)
        try:
            with np.errstate(all="ignore"):
                estimate = prior_estimate(entry.target, _SKETCH, rng)
        except Exception:
            return None
        return estimate if estimate.log_evidence > -np.inf else None

    def conquer(self, chosen: Sequence[Task], workers: Workers) -> None:
        """Spend the evaluations, on all the chosen paths at once."""
        before = self.ledger.log_evidence
        looks = all(is_unknown(task.entry, self.ledger) for task in chosen)
        spent, evaluations = [task.entry.target.evaluations for task in chosen], self.ledger.evaluations
        outcomes = workers.map(self.visit, chosen)
        for (entry, _, _), outcome, earlier in zip(chosen, outcomes, spent, strict=True):
            if outcome is None:
                continue
            entry.target, entry.state, entry.estimate, entry.gave_up, is_visit = outcome
            if not is_visit:
                continue
            # Noted as if the visits, which are made at the same time, came one after the other.
            evaluations += entry.target.evaluations - earlier
            self.note(entry, evaluations)
            entry.visits += 1
            if not entry.look:
                self.looked += 1
                entry.look = self.looked
        self.check_some_solved()
        if looks:
            after = self.ledger.log_evidence
            gain = after - before if np.isfinite(before) and np.isfinite(after) else np.inf
            self.gains += [gain / len(chosen)] * len(chosen)

    def note(self, entry: PathRecord, evaluations: int) -> None:
        """Remember that a path was visited, and what is known by now."""
        self.history.add(evaluations, self.ledger.log_evidence, entry.path.description, None,
                         entry.target.evaluations, entry.log_evidence)  # fmt: skip

    def visit(self, task: Task) -> Outcome | None:
        """One allocation; nothing if the time is over. What goes wrong on one path must not lose what is known."""
        self.limits.check()
        entry, strategy, target, state = task.entry, self.settings.strategy, task.entry.target, task.entry.state
        rng = np.random.default_rng((self.seed, 1 + entry.number, entry.visits))
        target.allow(task.most)
        try:
            # Far from the mass, densities and their derivatives overflow: that is no news.
            with np.errstate(all="ignore"):
                if state is None and self.settings.summed:
                    target = sum_out(target, self.settings.summed)
                evaluations = self.affordable(task, target)
                if state is None:
                    state = strategy.start(target, rng)
                state = strategy.advance(target, state, rng, evaluations)
                estimate = strategy.estimate(target, state)
                if self.limits.is_over and not estimate.is_informative:
                    return Outcome(target, state, entry.estimate, is_visit=False)
                return Outcome(target, state, self.better(entry, estimate))
        except LimitReached:
            if self.limits.is_over:
                return Outcome(target, entry.state, entry.estimate, is_visit=False)
            kept = entry.estimate or Estimate.nothing(target.dim, target.evaluations, type(strategy).__name__)
            return Outcome(target, entry.state, kept)
        except Exception as error:
            logger.warning("the path (%s) was given up: %s", entry.path.description, error)
            kept = entry.estimate or Estimate.nothing(target.dim, target.evaluations, type(strategy).__name__)
            remark, too_late = f"It was given up: {error}", isinstance(error, errors.LimitTooSmall)
            return Outcome(target, state, replace(kept, remarks=(*kept.remarks, remark)), remark, not too_late)

    @staticmethod
    def better(entry: PathRecord, estimate: Estimate) -> Estimate:
        """The estimate of a visit; where that came to nothing, the sketch that there was before."""
        if not estimate.is_informative and not entry.visits and entry.estimate is not None:
            return replace(entry.estimate, evaluations=estimate.evaluations, remarks=estimate.remarks)
        return estimate

    def affordable(self, task: Task, target: Target) -> int:
        """The evaluations of a visit: more where a point takes several, fewer where the interpreter or the time asks.

        Only with a time limit does this depend on the clock.
        """
        evaluations = task.evaluations
        if not task.entry.visits and target.cost > 1:
            evaluations = min(evaluations * target.cost, int(task.most / _SLACK))
        if task.entry.path.interpreted:
            evaluations = evaluations // _DEAR
        if self.limits.seconds is not None and target.seconds > 0:
            rate = target.evaluations / target.seconds
            waiting = sum(not entry.visits for entry in self.ledger) + 1
            seconds = (self.limits.seconds - self.limits.elapsed) / (_SLACK * waiting)
            evaluations = min(evaluations, max(int(rate * seconds), 2 * _SKETCH))
        return max(min(evaluations, task.most), 1)

    def check_some_solved(self) -> None:
        solved = self.ledger.solved
        if any(entry.is_known for entry in solved):
            return
        if solved and all(entry.gave_up for entry in solved) and len(solved) == len(self.ledger):
            raise errors.StrategyCannotRun(
                f"no path could be solved; the first ({solved[0].path.description}): {solved[0].gave_up}",
                remedy="Leave the choice of the strategy to Auto, the default",
            )

    # Divide -----------------------------------------------------------------------------------------------------

    def explore(self) -> None:
        """Execute the program from its prior; and go on with it, for as long as that costs next to nothing."""
        arrivals = self.executed(self.settings.executions, self.seed)
        while self.executions < self.settings.max_executions and self.exploring_is_cheap():
            more = min(self.executions, self.settings.max_executions - self.executions)
            arrivals += self.executed(more)
        self.division.check_some_end()
        self.ledger.update(self.division, arrivals)
        counts = counts_of(arrivals)
        self.active = self.active.proposed(counts)
        if self.settings.prune_negligible:
            self.admit(self.ledger.entries)
        self.say_how_long()

    def say_how_long(self) -> None:
        """Warn of a run that will take hours by the rate at which the interpreter runs the program."""
        left, rate = self.division.interpreted_at, self.division.seconds_per_run
        if left is None or rate is None:
            return
        limits = self.limits
        if text := hours_warning(rate, limits.budget, limits.seconds, left.where, left.remedy):
            logger.warning("%s.", text)

    def executed(self, executions: int, seed: int | None = None) -> list[Executions]:
        """Executions from the prior, in a part of the time; in all of it, while they have not found a single path."""
        self.executions += executions
        try:
            with enforced(self.limits.within(_EXPLORING)):
                return self.division.explore(executions, seed)
        except LimitReached:
            if len(self.division):
                return []
        return self.division.explore(executions, seed)

    def exploring_is_cheap(self) -> bool:
        """Whether few executions make the program's Python run."""
        interpreted = any(path.interpreted for path in self.division.by_signature.values())
        in_time = not self.limits.within(_EXPLORING).time_is_over
        return in_time and not interpreted and self.division.python_runs < _RUNS

    def discover(self, visited: Sequence[PathRecord]) -> None:
        """Propose from the paths just visited, and look around those with mass."""
        weights = self.ledger.weights()
        least = min(HEAVY, max(weights.values(), default=0.0)) if self.settings.prune_negligible else 0.0
        heavy = [each for each in visited if self.is_current(each) and weights[each.path.signature] >= least]
        for entry in sorted(heavy, key=lambda entry: -entry.log_evidence)[: self.settings.allocations]:
            rng = np.random.default_rng((self.seed, 1 + entry.number, entry.visits, 1))
            points = self.states(entry, rng)
            if self.settings.proposals and len(points):
                self.remember(entry, weights[entry.path.signature], propose(self.division, entry.path, points, rng))
        if self.settings.systematic:
            weights = self.ledger.weights()
            self.look_around([entry for key, entry in self.ledger.entries.items() if weights[key] >= HEAVY])

    def is_current(self, entry: PathRecord) -> bool:
        """Whether the path is still one of the program's, which may have taken another form meanwhile."""
        return entry.path is self.division.by_signature.get(entry.path.signature)

    def look_around(self, entries: Sequence[PathRecord]) -> None:
        """Find the paths around each of these, once."""
        weights = self.ledger.weights()
        for entry in entries:
            if entry.expanded or not self.is_current(entry):
                continue
            weight = weights[entry.path.signature]
            entry.expanded = True
            rng = np.random.default_rng((self.seed, 1 + entry.number, entry.visits, 2))
            around = neighbours(self.division, entry.path, self.states(entry, rng), rng)
            self.remember(entry, weight, around)
            self.admit(around.counts)

    def states(self, entry: PathRecord, rng: np.random.Generator) -> np.ndarray:
        """Some draws of a path, from which to propose, in its own coordinates."""
        estimate = entry.estimate
        if estimate is None or not len(estimate.points):
            return np.zeros((0, entry.path.dim))
        weights = np.exp(estimate.log_weights)
        n = max(min(self.settings.proposals or 20, self.settings.share // entry.target.cost // 10), 1)
        return entry.executions(estimate.points[rng.choice(len(weights), n, p=weights / weights.sum())], rng)

    def admit(self, signatures: Iterable[Any]) -> None:
        """Let paths be active at once: those that the prior leads to, and those next to one with mass."""
        self.active = self.active.proposed({each: int(np.ceil(self.active.required)) for each in signatures})

    def remember(self, entry: PathRecord, weight: float, proposals: Proposals) -> None:
        """Count what was proposed, C_k, and enter what is new."""
        self.executions += sum(proposals.counts.values())
        self.active = self.active.proposed(proposals.counts)
        self.ledger.update(self.division, proposals.arrivals)
        for signature in proposals.counts:
            found = self.ledger.entries.get(signature)
            if found is not None and found is not entry and weight > found.parent:
                found.parent, found.parent_likelihood = weight, entry.log_mean_likelihood

    # When to stop -----------------------------------------------------------------------------------------------

    def is_settled(self) -> str:
        """Why the answer is good enough, or nothing."""
        tolerance = self.limits.tolerance
        if tolerance is None or not np.isfinite(self.ledger.log_evidence) or self.monte_carlo_error() > tolerance:
            return ""
        if self.under_explored(self.ledger.weights()) or self.to_look_at() or self.doubted():
            return ""
        # The error of the sampling alone: what was never found or solved, more evaluations would not make smaller.
        if self.evidence().weight_sds.max() > tolerance or self.finds_more():
            return ""
        self.cut_short = False
        error = self.evidence().log_evidence_sd
        if error is not None and error > tolerance:
            return (
                f"Sampling errors are below {tolerance:g}; paths not solved or not found are the rest of that of log Z."
            )
        return f"log Z and the weights of the paths are known to {tolerance:g}."

    def finds_more(self) -> bool:
        """Whether many more proposals, which cost next to nothing, lead to paths that were not known."""
        weights, before = self.ledger.weights(), len(self.ledger)
        if self.settings.systematic and before <= MANY:
            self.look_around(that_may_matter(self.ledger.solved, self.ledger, strictly=True))
            if len(self.ledger) > before:
                return bool(self.to_look_at())
        heavy = [entry for key, entry in self.ledger.entries.items() if weights[key] > _MATTERS]
        for search in range(_SEARCHES if self.settings.proposals else 0):
            for entry in heavy:
                rng = np.random.default_rng((self.seed, 1 + entry.number, self.rounds, 4, search))
                found = propose(self.division, entry.path, self.states(entry, rng), rng)
                self.remember(entry, weights[entry.path.signature], found)
            if len(self.ledger) > before:
                return bool(self.to_look_at())
        return False

    def monte_carlo_error(self) -> float:
        """The standard error of log Ẑ, as far as it comes from sampling."""
        weights = self.ledger.weights()
        terms = ((weights[key], entry.estimate) for key, entry in self.ledger.entries.items())
        return float(np.sqrt(sum((w * each.log_evidence_sd) ** 2 for w, each in terms if w > 0 and each is not None)))

    def under_explored(self, weights: Mapping[Any, float]) -> list[PathRecord]:
        """The paths with mass that were given too little to have shown a mode that their first look missed."""
        matter = [self.ledger.entries[key] for key, weight in weights.items() if weight > _MATTERS]
        enough = min(_ENOUGH, self.limits.budget // max(20, 10 * len(matter)))
        by_sampling = (each for each in matter if each.error > 0 and not (each.gave_up or each.path.interpreted))
        return [each for each in by_sampling if each.target.evaluations < enough]

    # Combine ----------------------------------------------------------------------------------------------------

    def evidence(self) -> Evidence:
        """The evidence and the weights by now."""
        solutions = [self.solution(entry, entry.estimate) for entry in self.ledger]
        return join(solutions, self.run(""))

    def solution(self, entry: PathRecord, estimate: Estimate | None) -> Solution:
        """A path with this estimate, which is None where it was given up with nothing."""
        if entry.gave_up and entry.log_evidence == -np.inf:
            estimate = None
        possible, doubt = self.possible(entry)
        return Solution(entry.path, estimate, entry.visits, entry.look, possible, doubt)

    def possible(self, entry: PathRecord) -> tuple[float, str]:
        """log of the evidence that a path may have beside what its estimate says, and why."""
        if entry in self.unseen:
            return self.unseen[entry], "it was found, and a limit came before its first visit"
        if is_doubtful(entry):
            return entry.log_possible, why_doubtful(entry)
        return -np.inf, ""

    def posterior(self, stopped: str) -> Posterior:
        """What is known by now."""
        # Of many visited, the last stand for the rest (`combine.evidence.missing`).
        few = sum(entry.visits > 0 for entry in self.ledger) < MANY_VISITED
        self.unseen = possible_of_unvisited(self.ledger, set(self.to_look_at()) if self.cut_short and few else set())
        run = self.run(stopped)  # before what was summed out is drawn, which is no part of the inference
        solutions = [self.solution(entry, self.in_own_coordinates(entry)) for entry in self.ledger]
        return Posterior(self.division.program, solutions, run)

    def run(self, stopped: str) -> Run:
        """How the run went."""
        return Run(
            stopped=stopped,
            evaluations=self.ledger.evaluations,
            executions=self.executions,
            seconds=self.limits.elapsed,
            seed=self.seed,
            prior_mass_found=self.division.prior_mass_found,
            prior_mass_truncated=self.division.prior_mass_truncated,
            notes=tuple(self.notes()),
            settings=repr(self.settings),
            history=self.history,
        )

    def notes(self) -> Iterator[str]:
        """What the user asked for and did not get, and what went wrong on single paths."""
        for name in sorted(self.division.unmet):
            yield f"split names the site {name!r}, which no execution has met. Check its spelling."
        if self.has_only_glanced():
            yield (
                f"The budget allows no more than a glance at each of {len(self.ledger)} paths, and a glance may miss "
                f"where the mass is. Give a budget of at least {len(self.ledger) * GLANCE_BELOW:,}."
            )
        for entry in itertools.islice((each for each in self.ledger if each.gave_up), _NOTES):
            yield f"The path ({entry.path.description}): {entry.gave_up}"
        for entry in itertools.islice((each for each in self.ledger if each.path.is_often_invalid), _NOTES):
            yield (
                f"The density of the path ({entry.path.description}) is NaN or infinite at {entry.path.invalid} of "
                f"{entry.path.evaluated} points, which count as outside it. Mass there, as at the very edge of a "
                "support, is missing from log Z: write that site on another scale."
            )

    def has_only_glanced(self) -> bool:
        """Whether there was too little for the first looks at paths that are not so many that this has to be."""
        if (
            not 1 < len(self.ledger) <= MANY
            or not self.settings.prune_negligible
            or self.settings.evaluations_per_first_visit
        ):
            return False
        sampled = [entry for entry in self.ledger.solved if entry.path.dim and not entry.path.interpreted]
        return len(sampled) > 1 and self.limits.budget < GLANCE_BELOW * len(self.ledger)

    def in_own_coordinates(self, entry: PathRecord) -> Estimate | None:
        """The estimate with what was summed out of its draws drawn."""
        estimate = entry.estimate
        if estimate is None or estimate.points.shape[1] == entry.path.dim:
            return estimate
        rng = np.random.default_rng((self.seed, 1 + entry.number, entry.visits, 3))
        n = int(min(len(estimate.points), np.clip(_DRAWN / entry.target.cost, 100, 4_000)))
        if n == 0:
            return replace(estimate, points=np.zeros((0, entry.path.dim)))
        weights = np.exp(estimate.log_weights)
        chosen = rng.choice(len(weights), n, p=weights / weights.sum())
        points = entry.executions(estimate.points[chosen], rng)
        return replace(estimate, points=points, log_weights=np.full(n, -np.log(n)), ess=min(estimate.ess, n))

    def show(self) -> None:
        """Tell the progress display."""
        ledger = self.ledger
        known = ledger.log_evidence, self.monte_carlo_error()
        self.progress.update(Status(len(ledger), len(ledger.solved), *known, ledger.evaluations, self.limits.budget))
