"""Divide, Conquer, and Combine: the settings, ours and the paper's (paper, section 4 and appendix B).

    divide      execute the program from its prior, T_0 times: the first paths
    repeat      choose the paths that get the next evaluations                     (allocate)
                visit them, all at once                                            (conquer)
                propose from their draws, and remember every path that this finds  (divide)
    combine     Ẑ = Σ Ẑ_k, and the draws of each path with the weight Ẑ_k/Ẑ

The loop itself is `search.loop`.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, cast

from anabranch.allocate import SCHEDULE, UCB, ActiveSet, Allocator, ScheduleRule, Thresholds
from anabranch.combine import PosteriorWithEvidence
from anabranch.conquer import Auto, Elimination, PerPath, RandomWalk, Strategy
from anabranch.conquer.per_path import Choice
from anabranch.divide import Division
from anabranch.limits import Limits
from anabranch.progress import Progress
from anabranch.search import Combining, Discovery, SearchState, Stopping, Visiting, Walking, infer_paths
from anabranch.settings import check, flag, functions, instance, several, whole
from anabranch.workers import Workers

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
              stopping=instance(Stopping, "a Stopping()"), combining=instance(Combining, "a Combining()"))  # fmt: skip

    @property
    def local_strategy(self) -> Strategy:
        """The strategy as one object, also where there are several."""
        return cast(Strategy, self.strategy)

    @classmethod
    def paper(
        cls,
        *,
        T_0: int = 1_000,
        T_init: int = 50,
        N: int = 10,
        M: int = 10,
        C_0: int = 5,
        delta: float = 0.5,
        beta: float = 0.1,
        kappa: float = 1.0,
        T_a: int = 1_000,
        max_active: int | None = None,
    ) -> Self:
        """The paper's own algorithm (appendix B), every hyper-parameter under the paper's name.

        Args:
            T_0: executions from the prior that find the first paths.
            T_init: greedy steps of a new path, for each of its coordinates.
            N: chains of a path.
            M: importance samples of each chain at each step.
            C_0: how often a path must be proposed before it becomes active; it grows with the iterations.
            delta: δ, the share of exploration in the utility.
            beta: β, its boost of optimism.
            kappa: κ, how much the spread of the weights counts.
            T_a: weights to look ahead.
            max_active: a bound on the number of active paths.

        The paper does not say which values it used; these are ours.
        """
        T_0, T_init, T_a = (whole(1)(*each) for each in (("T_0", T_0), ("T_init", T_init), ("T_a", T_a)))
        N, M, C_0 = whole(2)("N", N), whole(2)("M", M), whole(1)("C_0", C_0)
        max_active = whole(1).or_none()("max_active", max_active)
        return cls(
            strategy=RandomWalk(chains=N, importance_samples=M, initial_steps=T_init),
            allocator=UCB(delta=delta, beta=beta, kappa=kappa, look_ahead=T_a),
            executions=T_0,
            max_executions=T_0,
            proposals=N,
            systematic=False,
            active=ActiveSet(threshold=C_0, growth=0.01, max_active=max_active),
            allocations=8,
            evaluations_per_visit=10 * N * (M + 1),
            prune_negligible=False,
            elimination=None,
            discovery=Discovery(solving=None),
        )

    def run(
        self, division: Division, limits: Limits, seed: int, workers: int, progress: Progress
    ) -> PosteriorWithEvidence:
        """Find paths, solve them, and combine the answers, until a limit is reached."""
        state = SearchState(settings=self, limits=limits, seed=seed, active=self.active, division=division)
        return self._searched(state, workers, progress)

    def _searched(self, state: SearchState, workers: int, progress: Progress) -> PosteriorWithEvidence:
        """Search until a limit is reached; the posterior keeps the state, to go on from there."""
        with Workers(workers, state.limits) as pool:
            posterior = infer_paths(state, pool, progress)

        def resume(limits: Limits, workers: int, progress: Progress) -> PosteriorWithEvidence:
            state.go_on(limits)
            return self._searched(state, workers, progress)

        posterior.resume = resume
        return posterior

    def __repr__(self) -> str:
        """The settings; the schedule and those after it only if they are not the default."""
        given, default = vars(self), vars(DCC())
        always = set(itertools.takewhile(lambda name: name != "schedule", given))
        shown = {name: value for name, value in given.items() if name in always or value != default[name]}
        return f"DCC({', '.join(f'{name}={value!r}' for name, value in shown.items())})"
