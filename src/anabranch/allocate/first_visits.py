"""First visits: which of the paths found get one, in which order, and with how many evaluations.

Where there are more than a few paths, each is scouted before: a few hundred evaluations tell roughly how much mass it
has, and the first visits begin with the heaviest.

Of a program with thousands of paths most have no mass. That of a path is its prior probability times its mean
likelihood, Z_k = p_k E[g | k]; so a bound on the mean likelihood rules paths out without a visit.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.allocate.path_table import PathRecord
from anabranch.allocate.schedule import AllocationState, Visit
from anabranch.conquer.strategy import can_scout, cheapest_visit, exact_visit
from anabranch.settings import check, finite, share, whole

__all__ = ["FirstVisits", "by_promise", "that_may_matter"]


@dataclass(frozen=True)
class FirstVisits:
    """Visit each path once before any other is refined, the most promising first.

    Args:
        min_evaluations: evaluations of a first visit at least; fewer visit more paths, and find less of their mass.
        max_evaluations: evaluations of a first visit at most; more find modes that a later visit would.
        evaluations_to_modes: evaluations with which most paths show their modes, which a first visit has unless the
            paths are many; fewer leave more to later visits.
        max_rounds: rounds in which all paths get their first visit; more find mass sooner, by fewer visits at a time.
        max_tries: visits after which a path without mass counts as empty; fewer may miss mass.
        max_tries_without_evidence: the same while no path has mass.
        budget_share: the part of the evaluations left that all first visits take even if they are in vain.
        min_in_vain: first visits without a gain, and a tenth of the paths that may matter at least, after which only
            easy paths get one; fewer may miss a path.
        easy_dim: dimensions up to which a path is easy to visit.
        easy_log_prior: log prior probability from which on a path gets its visit all the same.
        scouting: evaluations of a scout; more put the paths into a better order, and take longer.
        min_scouted: paths from which on each is scouted; with fewer, the order of their first visits hardly matters.
    """

    min_evaluations: int = 300
    max_evaluations: int = 10_000
    evaluations_to_modes: int = 6_000
    max_rounds: int = 50
    max_tries: int = 3
    max_tries_without_evidence: int = 30
    budget_share: float = 0.5
    min_in_vain: int = 8
    easy_dim: int = 8
    easy_log_prior: float = -6.0
    scouting: int = 500
    min_scouted: int = 8

    def __post_init__(self) -> None:
        counts = ("min_evaluations", "max_evaluations", "evaluations_to_modes", "max_rounds", "max_tries",
                  "max_tries_without_evidence", "min_in_vain", "easy_dim", "min_scouted")  # fmt: skip
        check(self, scouting=whole(), **dict.fromkeys(counts, whole(1)), budget_share=share(), easy_log_prior=finite())

    def visits(self, state: AllocationState) -> list[Visit]:
        waiting, settings, left = self.waiting(state), state.settings, state.evaluations_left
        if not waiting:
            return []
        # Half a round: the sooner the mass is found, the less is spent where there is none.
        chosen = waiting[: max(settings.allocations // 2, len(waiting) // self.max_rounds, 1)]
        scouted = [record for record in chosen if self.is_to_scout(record, state)]
        if scouted:
            most = int(settings.thresholds.overrun * self.scouting)
            return [Visit(record, self.scouting, most, is_first=True, is_scout=True) for record in scouted]
        return self.visits_of(chosen, state, left // len(waiting))

    def visits_of(self, chosen: Sequence[PathRecord], state: AllocationState, most: int = 0) -> list[Visit]:
        """First visits of these paths; each takes so many evaluations at most, or more if that is too few."""
        settings, left = state.settings, state.evaluations_left
        evaluations = settings.evaluations_per_first_visit or self.evaluations(state)
        overrun = int(settings.thresholds.overrun * evaluations)
        share = max(left // len(chosen), 1)
        most = min(max(most, overrun), share)
        visits = []
        for record in chosen:
            each = self.affordable(record, min(evaluations, most), state)
            exact = exact_visit(settings.local_strategy, record.path)
            each = exact if each < exact <= share else each
            visits.append(Visit(record, each, max(most, each), True))
        return visits

    def waiting(self, state: AllocationState) -> list[PathRecord]:
        """The paths to visit: those that the user has named, and active ones; after them, if negligible ones are
        pruned, any that may matter."""
        log_evidence = state.table.log_evidence
        unvisited = [record for record in state.table if self.needs_visit(record, state, log_evidence)]
        named = [record for record in unvisited if record.is_named and not record.visits]
        others = [record for record in unvisited if not record.is_named or record.visits]
        return [*named, *self._promising(others, state, log_evidence)]

    def _promising(
        self, unvisited: Sequence[PathRecord], state: AllocationState, log_evidence: float
    ) -> list[PathRecord]:
        """Those of the paths that chance has found that are to be visited, the most promising first."""
        if not unvisited:
            return []
        active, prunes = set(state.active.chosen), state.settings.prune_negligible
        fresh = [record for record in unvisited if record.path.signature in active]
        likely = that_may_matter(unvisited, state, by_mean=True) if prunes else fresh
        chosen = that_may_matter(fresh, state) or likely if prunes else fresh
        if to_scout := [record for record in chosen if self.is_to_scout(record, state)]:
            return by_promise(to_scout, state)
        least = log_evidence - state.settings.thresholds.negligible
        estimated = [record for record in unvisited if record.log_evidence > least]
        if estimated:  # by scouts, or from a few prior draws
            return sorted(estimated, key=lambda record: -record.log_evidence)
        if prunes and self.are_in_vain(max(self.min_in_vain, len(likely) // 10), state):
            if self.are_expensive(likely, state):
                chosen = [record for record in likely if self.is_easy(record, state)]
            least -= state.settings.thresholds.likelihood_margin
            chosen = [each for each in chosen if each.log_possible > least or not self.is_hard(each, state)]
        return by_promise(chosen, state)

    def is_to_scout(self, record: PathRecord, state: AllocationState) -> bool:
        """Whether a path is scouted before its first visit: one of several paths, and of fewer than many."""
        settings = state.settings
        if record.visits or record.is_named or settings.evaluations_per_first_visit or state.has_many_paths:
            return False
        is_cheap = self.evaluations(state) > 2 * settings.thresholds.overrun * self.scouting
        return is_cheap and len(state.table) >= self.min_scouted and can_scout(settings.local_strategy, record.path)

    def needs_visit(self, record: PathRecord, state: AllocationState, log_evidence: float) -> bool:
        """Whether a path has no estimate of a visit, a rough one that a limit has ended, or too few visits to conclude
        that it has no mass; given the log evidence of all paths."""
        if record.gave_up:
            return False
        if record.estimate is None or not record.visits or (record.is_scouted and not state.has_many_paths):
            return True
        if record.estimate.is_rough and not state.has_many_paths:
            may_matter = record.log_possible > log_evidence - state.settings.thresholds.negligible
            return may_matter and record.visits < self.max_tries
        if record.is_exact or (record.log_evidence != -np.inf and not record.estimate.is_of_prior):
            return False
        if not state.has_many_paths and log_evidence == -np.inf:
            return record.visits < self.max_tries_without_evidence
        # Of many paths, one without a point of positive density is taken to be empty at once.
        is_empty = state.has_many_paths and record.target.best_likelihood == -np.inf
        return record.visits < (1 if is_empty else self.max_tries)

    def evaluations(self, state: AllocationState) -> int:
        """Half of the budget for all first visits together; unless the paths are many, enough to find modes."""
        each = state.limits.budget // len(state.table)
        least = max(0 if state.has_many_paths else min(each, self.evaluations_to_modes), self.min_evaluations)
        return int(np.clip(each // 2, least, self.max_evaluations))

    def affordable(self, record: PathRecord, evaluations: int, state: AllocationState) -> int:
        """The evaluations of a first visit: of many paths, no more than the strategy can use without compiling."""
        if not state.has_many_paths or evaluations >= self.evaluations_to_modes:
            return evaluations
        below = cheapest_visit(state.settings.local_strategy, record.target.dim)
        return min(evaluations, below - 1) if below else evaluations

    def are_in_vain(self, last: int, state: AllocationState) -> bool:
        """Whether the last so many first visits found no mass."""
        return len(state.gains) > last and sum(state.gains[-last:]) < state.tolerance / 5

    def are_expensive(self, records: Sequence[PathRecord], state: AllocationState) -> bool:
        """Whether first visits of all these paths would take more than their part of the evaluations left."""
        return len(records) * self.evaluations(state) > self.budget_share * state.evaluations_left

    def is_hard(self, record: PathRecord, state: AllocationState) -> bool:
        """Whether a scout has seen a path that is not easy to visit."""
        return record.is_scouted and not self.is_easy(record, state)

    def is_easy(self, record: PathRecord, state: AllocationState) -> bool:
        """Whether to visit a path after many visits in vain: it has few dimensions, or some of the prior mass.

        Of many paths, only those that were proposed from a path that matters, and those without mass so far.
        """
        cheap = record.path.dim <= self.easy_dim
        if state.has_many_paths:
            return record.visits > 0 or (cheap and record.parent >= state.settings.thresholds.weight_that_matters)
        return cheap or record.path.log_prior_probability > self.easy_log_prior


def that_may_matter(
    records: Sequence[PathRecord], state: AllocationState, *, by_mean: bool = False
) -> list[PathRecord]:
    """The records whose paths are not ruled out by their prior probability.

    The mean likelihood of a path is at most a margin above the largest likelihood so far; by means, a smaller margin
    above the largest mean likelihood so far, or above the largest likelihood in the path itself if that is known. A
    path that only proposals have found has no known prior probability.
    """
    solved, total, thresholds = state.table.solved, state.table.log_evidence, state.settings.thresholds
    if by_mean:
        best, margin = (
            max((each.log_mean_likelihood for each in solved), default=np.nan),
            thresholds.mean_likelihood_margin,
        )
    else:
        best, margin = (
            max((each.target.best_likelihood for each in solved), default=np.nan),
            thresholds.likelihood_margin,
        )
    if not np.isfinite([best, total]).all():
        return list(records)
    least, out = total - thresholds.negligible - margin, []
    for record in records:
        prior = record.path.log_prior_probability
        if prior == -np.inf or prior + max(best, record.target.best_likelihood) > least:
            out.append(record)
    return out


def by_promise(records: Sequence[PathRecord], state: AllocationState) -> list[PathRecord]:
    """The most promising first, then those that were scouted, and last those that were visited and had no mass.

    Two orders take turns, since each fails where the other does not: those proposed from where the mass is, of them the
    simplest; and those that would have the most mass if their mean likelihood were that of where they were proposed.
    """

    def simplicity(record: PathRecord) -> tuple[float, ...]:
        prior = -record.path.log_prior_probability
        if record.parent < state.settings.thresholds.weight_with_mass:
            return 0.0, prior, record.number
        # Weights of the same order are as good as each other.
        return np.floor(-np.log10(record.parent)) - 10, record.path.dim, prior, record.number

    turns = zip(sorted(records, key=simplicity), sorted(records, key=_likeliness), strict=True)
    return sorted(dict.fromkeys(itertools.chain.from_iterable(turns)), key=_tries)


def _tries(record: PathRecord) -> tuple[float, ...]:
    """How often a path was visited; one that was only scouted has a place by its evidence."""
    return record.visits - record.is_scouted, -record.log_evidence if record.is_scouted else -np.inf


def _likeliness(record: PathRecord) -> tuple[float, ...]:
    prior = record.path.log_prior_probability
    return -(record.parent_likelihood + prior) if prior > -np.inf else -np.inf, -prior, record.number
