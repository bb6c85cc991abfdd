"""Divide, Conquer, and Combine: the settings, ours and the paper's (paper, section 4 and appendix B).

    divide      execute the program from its prior, T_0 times: the first paths
    repeat      choose the paths that get the next share of the evaluations          (allocate)
                spend it on them, all at once                                       (conquer)
                propose from where they are, and remember every path that this finds (divide)
    combine     Ẑ = Σ Ẑ_k, and the draws of each path with the weight Ẑ_k/Ẑ

The loop itself is in `search`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from anabranch.allocate import UCB, ActiveSet, Allocator
from anabranch.combine import Posterior
from anabranch.conquer import Auto, RandomWalk, Strategy
from anabranch.divide import Division
from anabranch.limits import Limits
from anabranch.report.progress import Progress
from anabranch.search import Search
from anabranch.settings import check, flag, functions, instance, whole
from anabranch.workers import Workers, one_blas_thread

__all__ = ["DCC"]


@dataclass(frozen=True)
class DCC:
    """Divide, Conquer, and Combine. The settings are for those who want to know; the default has nothing to configure.

    Args:
        strategy: how a path is solved.
        allocator: which paths get the next share of the evaluations.
        executions: T_0, executions from the prior that find the first paths.
        most_executions: as many at most, while few of them find another path: the others cost next to nothing.
        proposals: global proposals from each path that was visited in a round, with thrift only from those with mass.
        systematic: whether all the paths around one with mass are looked for, beside what the proposals find.
        active: which of the paths found are given evaluations.
        allocations: of a round.
        share: evaluations of an allocation.
        first_share: evaluations of the first one on a path; by default what the budget allows for all of them.
        thrifty: whether paths are left alone once a look has shown them to be negligible, or to be known well enough.
        summed: discrete variables are summed out of a path if that takes at most this many evaluations for a point.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.DCC(executions=100), budget=50_000)
        >>> bool(abs(posterior.log_evidence - -3.1495) < 3 * posterior.log_evidence_sd < 0.05)
        True
    """

    strategy: Strategy = field(default_factory=Auto)
    allocator: Allocator = field(default_factory=UCB)
    executions: int = 1_000
    max_executions: int = 50_000
    proposals: int = 100
    systematic: bool = True
    active: ActiveSet = field(default_factory=lambda: ActiveSet(threshold=3))
    allocations: int = 16
    share: int = 5_000
    evaluations_per_first_visit: int | None = None
    prune_negligible: bool = True
    summed: int = 64

    def __post_init__(self) -> None:
        check(
            self,
            strategy=functions("start", "advance", "estimate", example="anabranch.conquer.SMC()"),
            allocator=functions("choose", example="anabranch.allocate.UCB()"),
            executions=whole(1),
            max_executions=whole(),
            proposals=whole(),
            systematic=flag(),
            active=instance(ActiveSet, "an ActiveSet()"),
            allocations=whole(1),
            share=whole(1),
            evaluations_per_first_visit=whole(1).or_none(),
            prune_negligible=flag(),
            summed=whole(),
        )

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
    ) -> DCC:
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
            most_active: a bound on the active paths.

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
            active=ActiveSet(threshold=C_0, growth=0.01, most=max_active),
            allocations=8,
            share=10 * N * (M + 1),
            prune_negligible=False,
            summed=0,
        )

    def run(self, division: Division, limits: Limits, seed: int, workers: int, progress: Progress) -> Posterior:
        """Find paths, solve them, and join the answers, until a limit is reached."""
        search = Search(self, division, limits, seed, progress)
        with one_blas_thread(), Workers(workers, limits) as pool:
            return search.posterior(search.go(pool))
