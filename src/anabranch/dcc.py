"""Divide, Conquer, and Combine: the settings of the default (paper, section 4).

    divide      execute the program from its prior, T_0 times: the first paths
    repeat      choose the paths that get the next evaluations                     (allocate)
                visit them, all at once                                            (conquer)
                propose from their draws, and remember every path that this finds  (divide)
    combine     Ẑ = Σ Ẑ_k, and the draws of each path with the weight Ẑ_k/Ẑ

The loop itself is `search.loop`. The paper's own algorithm, `DCC.paper()`, is in `paper/`.
"""

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from anabranch.allocate import SCHEDULE, UCB, ActiveSet, Allocator, ScheduleRule, Thresholds
from anabranch.checkpoint import Checkpoint, Continuing, VisitLog
from anabranch.combine import PosteriorWithEvidence
from anabranch.conquer import Auto, Elimination, PerPath, Strategy
from anabranch.conquer.per_path import Choice
from anabranch.divide import Division, helped
from anabranch.execution import Executor, executor_of
from anabranch.limits import Limits
from anabranch.paper import PaperDCC
from anabranch.progress import Progress
from anabranch.search import Combining, Discovery, SearchState, Stopping, Visiting, Walking, infer_paths
from anabranch.settings import check, flag, functions, instance, several, site_values, whole

__all__ = ["DCC"]


@dataclass(frozen=True, repr=False)
class DCC:
    """Divide, Conquer, and Combine. The default needs no settings.

    Args:
        strategy: the method that solves a path; or for some paths only, by their descriptions or by a function of the
            path, and `Auto` for the others (`conquer.PerPath`).
        allocator: the rule that shares the evaluations between the paths with mass.
        executions: T_0, executions from the prior that find the first paths.
        max_executions: as many at most, while few of them make the program's Python run.
        proposals: global proposals from each path of a round; with `prune_negligible`, only from those with mass.
        systematic: whether all neighbours of a path with mass are proposed, too.
        active: which of the paths found get evaluations.
        allocations: visits of a round.
        evaluations_per_visit: evaluations of a visit.
        evaluations_per_first_visit: evaluations of the first visit of a path; by default, as the budget allows.
        prune_negligible: whether paths get no more visits once they are negligible or meet the tolerance.
        elimination: how discrete variables are summed out of a path; None: they are not.
        schedule: the rules that choose the visits of a round; the first that has any owns the round.
        thresholds: the thresholds that the steps below share.
        discovery: how long to explore the prior, and to search on before a run stops.
        visiting: how much a visit is given.
        walking: when paths that are too many to visit are walked over.
        stopping: when a run stops.
        combining: how the posterior is made.
        start: paths to begin with, each by the values of some of its sites: `[{"K": 5}, {"K": 6, "outlier": 1}]`. The
            other sites are drawn from the prior. Each path that this finds is visited, however rare it is a priori.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.DCC(executions=100), budget=50_000)
        >>> bool(abs(posterior.log_evidence - -3.1495) < 3 * posterior.log_evidence_sd < 0.05)
        True
    """

    strategy: Strategy | Choice = field(default_factory=Auto)
    allocator: Allocator = field(default_factory=UCB)
    executions: int = 1_000
    max_executions: int = 50_000
    proposals: int = 100
    systematic: bool = True
    active: ActiveSet = field(default_factory=lambda: ActiveSet(threshold=3))
    allocations: int = 16
    evaluations_per_visit: int = 5_000
    evaluations_per_first_visit: int | None = None
    prune_negligible: bool = True
    elimination: Elimination | None = field(default_factory=Elimination)
    schedule: Sequence[ScheduleRule] = SCHEDULE
    thresholds: Thresholds = field(default_factory=Thresholds)
    discovery: Discovery = field(default_factory=Discovery)
    visiting: Visiting = field(default_factory=Visiting)
    walking: Walking = field(default_factory=Walking)
    stopping: Stopping = field(default_factory=Stopping)
    combining: Combining = field(default_factory=Combining)
    start: Sequence[Mapping[str, Any]] | Mapping[str, Any] = ()

    paper: ClassVar[type[PaperDCC]] = PaperDCC
    """The paper's own algorithm, every hyper-parameter under the paper's name: `DCC.paper(N=10, M=10)`."""

    def __post_init__(self) -> None:
        is_function = callable(self.strategy) and not isinstance(self.strategy, type)
        if isinstance(self.strategy, Mapping) or (is_function and not hasattr(self.strategy, "start")):
            object.__setattr__(self, "strategy", PerPath(self.strategy))
        rules = "a rule with visits and waiting, or several, such as anabranch.allocate.FirstVisits()"
        check(self, strategy=functions("start", "advance", "estimate", example="anabranch.conquer.SMC()"),
              allocator=functions("choose", example="anabranch.allocate.UCB()"), executions=whole(1),
              max_executions=whole(), proposals=whole(), systematic=flag(), allocations=whole(1),
              evaluations_per_visit=whole(1), evaluations_per_first_visit=whole(1).or_none(), prune_negligible=flag(),
              elimination=instance(Elimination, "an Elimination()").or_none(),
              active=instance(ActiveSet, "an ActiveSet()"),
              schedule=several(ScheduleRule, rules), thresholds=instance(Thresholds, "Thresholds()"),
              discovery=instance(Discovery, "a Discovery()"), visiting=instance(Visiting, "a Visiting()"),
              walking=instance(Walking, "a Walking()"),
              stopping=instance(Stopping, "a Stopping()"), combining=instance(Combining, "a Combining()"),
              start=site_values())  # fmt: skip

    @property
    def local_strategy(self) -> Strategy:
        """The strategy as one object, also where there are several."""
        return cast(Strategy, self.strategy)

    @property
    def starts(self) -> tuple[dict[str, Any], ...]:
        """The paths to begin with, also where there is one."""
        return cast(tuple[dict[str, Any], ...], self.start)

    def run(
        self,
        division: Division,
        limits: Limits,
        seed: int,
        workers: int | Executor,
        progress: Progress,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> PosteriorWithEvidence:
        """Find paths, solve them, and combine the answers, until a limit is reached."""
        visit_log = VisitLog(self, division.program)
        if checkpoint is not None:
            visit_log = Checkpoint(checkpoint, self, division, limits, seed)
        state = SearchState(settings=self, limits=limits, seed=seed, active=self.active, division=division,
                            visit_log=visit_log)  # fmt: skip
        return self.searched(state, executor_of(workers), progress)

    def searched(self, state: SearchState, executor: Executor, progress: Progress) -> PosteriorWithEvidence:
        """Search until a limit is reached; the posterior keeps the state, to go on from there."""
        with state.visit_log.opened(), executor.opened(state.limits) as workers, helped(workers.helpers):
            posterior = infer_paths(state, workers, progress)
        posterior.resume = Continuing(state, executor)
        return posterior

    def __repr__(self) -> str:
        """The settings; the schedule and those after it only if they are not the default."""
        given, default = vars(self), vars(DCC())
        always = set(itertools.takewhile(lambda name: name != "schedule", given))
        shown = {name: value for name, value in given.items() if name in always or value != default[name]}
        return f"DCC({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
