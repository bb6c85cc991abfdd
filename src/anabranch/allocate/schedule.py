"""The schedule of a run: rules that are asked in turn which paths to visit next, and with how many evaluations.

The default has three: `FirstVisits` of paths without an estimate, `DoubtedPaths` whose diagnostics fail, and
`Refinement`, which shares the evaluations between the paths with mass by an `Allocator`. `DCC(schedule=...)` takes
others: a rule that comes first owns the first visits, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

import numpy as np

from anabranch.allocate.active import ActiveSet
from anabranch.allocate.path_table import PathRecord, PathTable
from anabranch.limits import TOLERANCE, Limits
from anabranch.settings import check, finite, positive, share, whole

if TYPE_CHECKING:
    from anabranch.dcc import DCC

__all__ = ["AllocationState", "ScheduleRule", "Thresholds", "Visit"]


class Visit(NamedTuple):
    """A path to visit, the evaluations that the visit should take, and those at which it is ended."""

    record: PathRecord
    evaluations: int
    max_evaluations: int
    is_first: bool = False
    """Whether the path has no estimate of a visit yet, or only one without mass."""
    is_scout: bool = False
    """Whether the visit only shows where the path comes in the order of first visits: it leaves its estimate alone."""


@runtime_checkable
class ScheduleRule(Protocol):
    """A frozen dataclass of settings with two functions of the state of a run, which they do not change."""

    def visits(self, state: AllocationState) -> list[Visit]:
        """The visits of the next round; an empty list leaves the round to the next rule.

        All are chosen before any of them runs, so that the answer does not depend on how many run at once.
        """

    def waiting(self, state: AllocationState) -> list[PathRecord]:
        """The paths that the rule will visit before the run may stop at its tolerance."""


@dataclass(frozen=True)
class Thresholds:
    """The thresholds that several steps of a run share.

    Args:
        weight_with_mass: weight from which on paths are proposed from a path; less finds more, by more executions.
        weight_that_matters: weight from which on a path must be estimated well before the run stops; less costs more.
        evaluations_that_settle: evaluations after which such an estimate is taken to miss no mode; fewer may miss one.
        negligible: nats below the log evidence at which a path is negligible; more visit paths with less mass.
        many_paths: paths above which each gets less: one try, no neighbours at the end, only a Laplace estimate first.
        likelihood_margin: nats by which a path may exceed the largest likelihood so far; more rule out fewer paths.
        mean_likelihood_margin: the same above the largest mean likelihood of a path, for the paths visited last.
        poor_error: error of log Z from which on paths with mass are refined between first visits; less does so sooner.
        overrun: the factor by which a visit may exceed its evaluations; less cuts more visits short.
        min_visit: evaluations below which a visit is not worthwhile; more leave more of the budget unspent.
    """

    weight_with_mass: float = 1e-4
    weight_that_matters: float = 0.01
    evaluations_that_settle: int = 30_000
    negligible: float = 20.0
    many_paths: int = 100
    likelihood_margin: float = 50.0
    mean_likelihood_margin: float = 10.0
    poor_error: float = 0.1
    overrun: float = 2.0
    min_visit: int = 500

    def __post_init__(self) -> None:
        check(self, weight_with_mass=share(), weight_that_matters=share(), evaluations_that_settle=whole(1),
              negligible=finite(0), many_paths=whole(1), likelihood_margin=finite(0), mean_likelihood_margin=finite(0),
              poor_error=positive(), overrun=positive(), min_visit=whole(1))  # fmt: skip


@dataclass(kw_only=True)
class AllocationState:
    """What a rule sees of a run: the paths found so far, which of them are active, the rounds so far, and the gains,
    by how much each of the first visits raised log Ẑ. While a walk over paths goes on, it owns the first visits."""

    settings: DCC
    limits: Limits
    seed: int = 0
    table: PathTable = field(default_factory=PathTable)
    active: ActiveSet = field(default_factory=ActiveSet)
    rounds: int = 0
    gains: list[float] = field(default_factory=list)
    is_walking: bool = False

    @property
    def evaluations_left(self) -> int:
        """Evaluations that are left of the budget, at least one."""
        return max(self.limits.budget - self.table.evaluations, 1)

    @property
    def tolerance(self) -> float:
        """The tolerance of the run; the default where it has none."""
        return self.limits.tolerance or TOLERANCE

    def errors(self) -> dict[PathRecord, float]:
        """The part of each path in the error that the tolerance is for: w_k s_k, if that is the error of log Z."""
        return {record: weight * record.error if weight else 0.0 for record, weight in self.table.weights().items()}

    def importance(self) -> dict[PathRecord, float]:
        """How much each path matters for that error, as shares: the weights, if it is that of log Z."""
        return self.table.weights()

    @property
    def has_many_paths(self) -> bool:
        """Whether there are so many paths that each gets less."""
        return len(self.table) > self.settings.thresholds.many_paths

    def next_visits(self) -> list[Visit]:
        """The visits of the first rule that has any, after paths became active; none if nothing is left to do.

        Where the error is large and the last first visits found little, the first rule comes last in every second
        round: the light paths that it would visit do not come before a heavy one with a poor estimate.
        """
        evidence = {key: record.log_evidence for key, record in self.table.records.items() if record.visits}
        self.active = self.active.advance(evidence, np.random.default_rng((self.seed, 0, self.rounds)))
        rules = self._rules
        if self.rounds % 2 and self.settings.prune_negligible and self._is_refinement_due:
            rules = (*rules[1:], rules[0])
        return next((visits for rule in rules if (visits := rule.visits(self))), [])

    @property
    def _is_refinement_due(self) -> bool:
        """Whether the error is large, and the last first visits raised the evidence by less than that."""
        last = self.gains[-self.settings.allocations :]
        error = self.table.total.log_evidence_sd
        poor = self.settings.thresholds.poor_error
        return len(last) == self.settings.allocations and sum(last) < poor < error

    @property
    def _rules(self) -> tuple[ScheduleRule, ...]:
        rules = tuple(self.settings.schedule)
        return rules[1:] if self.is_walking else rules

    def waiting(self) -> list[PathRecord]:
        """The paths that the rules will visit before the run may stop at its tolerance."""
        return [record for rule in self._rules for record in rule.waiting(self)]
