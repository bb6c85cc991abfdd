"""Refinement: more evaluations for paths with an estimate, shared by an `Allocator`, until the tolerance is met."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from anabranch.allocate.path_summary import PathSummary
from anabranch.allocate.path_table import PathRecord
from anabranch.allocate.schedule import AllocationState, Visit
from anabranch.settings import check, finite, positive, whole

__all__ = ["Refinement", "under_explored"]


@dataclass(frozen=True)
class Refinement:
    """Visit the heaviest under-explored paths, as long as there are any; then share a round between the paths by the
    allocator, none of them more than it needs to the tolerance.

    Args:
        max_ratio: by how much the part of a path in the error, its weight times its error, may be below the largest
            for it to get more; a larger one spreads the evaluations.
        growth: a visit has this part of the path's evaluations so far at least, and no more than a quarter of what is
            left is spent so; less makes more rounds.
        min_settling: evaluations with which an under-explored path may be settled; fewer visit more of them in vain.
        min_divisor: one in so many of the evaluations of a visit is the least that a path gets where many share the
            mass; a larger one spreads a round over more paths.
    """

    max_ratio: float = 4.0
    growth: float = 0.25
    min_settling: int = 5_000
    min_divisor: int = 10

    def __post_init__(self) -> None:
        check(self, max_ratio=positive(), growth=finite(0), min_settling=whole(1),
              min_divisor=whole(1))  # fmt: skip

    def visits(self, state: AllocationState) -> list[Visit]:
        if state.settings.prune_negligible and (unsettled := self.waiting(state)):
            return self._settling(state, unsettled)
        return self._shared(state)

    def _settling(self, state: AllocationState, unsettled: list[PathRecord]) -> list[Visit]:
        """One visit to each of the heaviest paths that are under-explored, long enough for most of them."""
        settings, thresholds, left = state.settings, state.settings.thresholds, state.evaluations_left
        number = int(np.clip(left // self.min_settling, 1, settings.allocations))
        chosen = sorted(unsettled, key=lambda each: -each.log_evidence)[:number]
        each = min(thresholds.evaluations_that_settle // 2, max(int(left / thresholds.overrun / len(chosen)), 1))
        return [Visit(record, each, int(thresholds.overrun * each)) for record in chosen]

    def _shared(self, state: AllocationState) -> list[Visit]:
        """A round shared by the allocator."""
        settings, thresholds, left = state.settings, state.settings.thresholds, state.evaluations_left
        errors, records = state.errors(), self.candidates(state)
        if settings.prune_negligible:
            least = max((errors[each] for each in records), default=0.0) / self.max_ratio
            if state.limits.tolerance is not None:  # those on which it depends whether it is met
                least = max(least, state.limits.tolerance / (2 * np.sqrt(len(records) or 1)))
            records = [each for each in records if errors[each] > least] or records
        number = int(np.clip(left / (thresholds.overrun * thresholds.min_visit), 1, settings.allocations))
        rng = np.random.default_rng((state.seed, 0, state.rounds, 1))
        summaries = [PathSummary(record.visits, record.estimate) for record in records]
        times = Counter(settings.allocator.choose(summaries, number, rng) if records else [])
        # Where many paths share the mass, each gets less at a time.
        fewest = settings.evaluations_per_visit // self.min_divisor
        each = min(settings.evaluations_per_visit, max(state.limits.budget // (10 * len(state.table)), fewest))
        each = min(each, max(int(left / thresholds.overrun / max(times.total(), 1)), 1))
        visits = []
        for record, count in ((records[i], count) for i, count in times.items()):
            needed = self.evaluations_to_tolerance(record, errors[record], fewest, state)
            most = max(count * each, min(int(self.growth * record.evaluations), left // (4 * len(times))))
            visits.append(Visit(record, min(most, needed), int(thresholds.overrun * most)))
        return visits

    def waiting(self, state: AllocationState) -> list[PathRecord]:
        """The under-explored paths."""
        return under_explored(state)

    def candidates(self, state: AllocationState) -> list[PathRecord]:
        """The active paths with an estimate that is not negligible, even within its error."""
        table, thresholds = state.table, state.settings.thresholds
        active = (table.records[key] for key in state.active.chosen if key in table.records)
        records = [each for each in active if each.visits and not each.gave_up]
        if not state.settings.prune_negligible:
            return records
        least = table.log_evidence - thresholds.negligible
        return [each for each in records if each.estimate is None or _log_upper(each) > least]

    def evaluations_to_tolerance(self, record: PathRecord, error: float, least: int, state: AllocationState) -> int:
        """About the evaluations after which the path's part of the error is half of the tolerance."""
        tolerance = state.limits.tolerance
        if tolerance is None or not state.settings.prune_negligible or not np.isfinite(error):
            return state.limits.budget
        return int(max(record.evaluations * (2 * error / tolerance) ** 2, least))


def _log_upper(record: PathRecord) -> float:
    """log Ẑ_k plus the standard deviation of a weight."""
    assert record.estimate is not None
    return record.log_evidence + float(np.log1p(min(record.estimate.weight_sd, 1e6)))


def under_explored(state: AllocationState) -> list[PathRecord]:
    """The under-explored paths: with mass, and too few evaluations to show a mode that the first visit missed, or
    without the confirmation of another method."""
    thresholds, importance = state.settings.thresholds, state.importance()
    matter = [record for record, share in importance.items() if share > thresholds.weight_that_matters]
    enough = min(thresholds.evaluations_that_settle, state.limits.budget // max(20, 10 * len(matter)))
    by_sampling = (each for each in matter if not (each.is_exact or each.gave_up or each.path.interpreted))
    return [each for each in by_sampling if each.evaluations < enough or not each.is_confirmed]
