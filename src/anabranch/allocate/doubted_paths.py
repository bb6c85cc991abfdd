"""Paths that may have mass although their estimates say that they have little or none.

The diagnostics of a visit (effective draws, Pareto k) say when its estimate cannot be trusted, and the weights,
extrapolated, what the evidence may be (`Estimate.log_possible`). It gets a part of the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from anabranch.allocate.path_table import PathRecord
from anabranch.allocate.refinement import under_explored
from anabranch.allocate.schedule import AllocationState, Visit
from anabranch.settings import check, positive, share, whole

__all__ = ["DoubtedPaths"]


@dataclass(frozen=True)
class DoubtedPaths:
    """Visit the paths whose diagnostics fail, those that may have the most mass first.

    Args:
        min_mass: possible mass of a path, over the tolerance, from which on it gets a visit; less costs more.
        max_ratio: by how much the possible mass of a path may be below the largest for it to get a visit; more spreads
            the evaluations.
        budget_share: the part of the budget that all these visits take at most.
        max_budget_share: the same where the mass that these paths may have exceeds the error of the evidence.
        max_evaluations: evaluations of one such path at most; more solve difficult paths, and starve others.
    """

    min_mass: float = 0.1
    max_ratio: float = 20.0
    budget_share: float = 0.25
    max_budget_share: float = 0.6
    max_evaluations: int = 200_000

    def __post_init__(self) -> None:
        check(self, min_mass=positive(), max_ratio=positive(), budget_share=share(), max_budget_share=share(),
              max_evaluations=whole(1))  # fmt: skip

    def visits(self, state: AllocationState) -> list[Visit]:
        settings, thresholds = state.settings, state.settings.thresholds
        doubted = self.waiting(state)[: settings.allocations // 2]
        # Every second round is for paths that have mass for certain, as long as these are under-explored.
        if not doubted or (state.rounds % 2 and under_explored(state)):
            return []
        left = max(int(state.evaluations_left / thresholds.overrun / len(doubted)), 1)
        evaluations = min(thresholds.evaluations_that_settle, self._max_evaluations(doubted, state), left)
        return [Visit(record, evaluations, int(thresholds.overrun * evaluations)) for record in doubted]

    def waiting(self, state: AllocationState) -> list[PathRecord]:
        """The paths whose diagnostics fail, and that have not had their part of the budget."""
        total = state.table.log_evidence
        if not state.settings.prune_negligible or not np.isfinite(total):
            return []
        least = total + np.log(self.min_mass * state.tolerance)
        doubted = [each for each in state.table if each.visits and each.is_doubtful and each.log_possible > least]
        largest = max((each.log_possible for each in doubted), default=-np.inf)
        doubted = [each for each in doubted if each.log_possible > largest - np.log(self.max_ratio)]
        most = self._max_evaluations(doubted, state)
        return sorted((each for each in doubted if each.evaluations < most), key=lambda each: -each.log_possible)

    def _max_evaluations(self, doubted: Sequence[PathRecord], state: AllocationState) -> int:
        """Evaluations that each of the doubted paths may have had."""
        logs = [each.log_possible for each in doubted]
        possible = np.exp(min(float(logsumexp(logs)) - state.table.log_evidence, 0.0)) if logs else 0.0
        is_main_error = state.table.total.log_evidence_sd < possible
        share = self.max_budget_share if is_main_error else self.budget_share
        return int(min(state.limits.budget * share / max(len(doubted), 1), self.max_evaluations))
