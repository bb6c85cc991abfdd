"""The hyper-parameters of the paper's algorithm, each under the paper's name."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from anabranch.combine import PosteriorWithEvidence
from anabranch.combine.continuation import GONE_ON, Refusal
from anabranch.divide import Division, Restarted
from anabranch.limits import Limits
from anabranch.paper.algorithm import Algorithm
from anabranch.progress import Progress
from anabranch.settings import check, finite, one_of, share, whole

__all__ = ["PaperDCC"]


@dataclass(frozen=True, kw_only=True, repr=False)
class PaperDCC:
    """The paper's own algorithm (algorithm 2 in appendix B), every hyper-parameter under the paper's name.

    The paper does not report its hyper-parameters. N, M, δ, κ and T_a have the values of the public implementation of
    the same authors' later work. Its T_0 = 100, T_init = 10, C_0 = 1 and β = 1 spread the evaluations over nearly a
    hundred paths of the mixture, where the paper visits 23 to 27: ours are chosen so that the paths are fewer, the
    heavy ones get the most, and K = 5 is visited after thousands of evaluations, as in the paper. RMH draws half of its
    proposals from the prior, as `engines.RandomWalkMH` does.

    Args:
        T_0: executions from the prior that find the first paths (section 6.2); more find more, and take time.
        T_init: greedy steps of each chain when a path becomes active (appendix F); more start nearer to a mode.
        T_w: steps of burn-in of an execution that found a path by a global proposal (section 6.2); more start nearer to
            the mass, and cost as much for a path without any.
        N: chains of a path (section 6.1); more find more modes, and make fewer steps each.
        M: importance samples around each chain after each step (appendix D); more estimate the evidence better, and
            leave fewer steps to the chains.
        C_0: how often a path must be executed or proposed before it becomes active (appendix E); more leave out paths
            that are proposed by chance.
        growth: by how much of itself C_0 grows with each iteration (appendix E); more leave more to the first paths.
        max_active: a bound on the number of active paths, or None (appendix E). The paper calls one essential where
            the prior is misspecified.
        delta: δ, the share of exploration by the tail of the weights in the utility (section 6.3).
        beta: β, the boost of paths that were seldom chosen; more spread the evaluations more evenly.
        kappa: κ, how much the spread of the weights counts beside the evidence (appendix F).
        T_a: for how many weights the exploration looks ahead (appendix F).
        draws: what π̂_k consists of: the states of the chains ("mcmc", section 4.3), or the importance samples
            ("importance", appendix D), which are better where they are efficient.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.DCC.paper(), budget=8_000, tolerance=None)
        >>> bool(abs(posterior.log_evidence - -3.1495) < 4 * posterior.log_evidence_sd < 0.4)
        True
    """

    T_0: int = 1_000
    T_init: int = 50
    T_w: int = 10
    N: int = 10
    M: int = 10
    C_0: int = 5
    growth: float = 0.01
    max_active: int | None = None
    delta: float = 0.5
    beta: float = 0.1
    kappa: float = 0.1
    T_a: int = 1_000
    draws: str = "mcmc"

    def __post_init__(self) -> None:
        check(self, T_0=whole(1), T_init=whole(), T_w=whole(), N=whole(1), M=whole(2), C_0=whole(1), growth=finite(0),
              max_active=whole(1).or_none(), delta=share(), beta=finite(0), kappa=finite(0), T_a=whole(1),
              draws=one_of("mcmc", "importance"))  # fmt: skip

    def run(
        self, division: Division, limits: Limits, seed: int, workers: int, progress: Progress
    ) -> PosteriorWithEvidence:
        """Run the algorithm until a limit is reached."""
        return _inferred(Algorithm(self, division, limits, seed, progress))

    def __repr__(self) -> str:
        return f"DCC.paper({', '.join(f'{field.name}={getattr(self, field.name)!r}' for field in fields(self))})"


class _Continuing:
    """Continues a run of the algorithm, from one posterior once, in its process."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.part = algorithm, algorithm.part

    def __call__(self, limits: Limits, workers: int | None, progress: Progress) -> PosteriorWithEvidence:
        if self.part != self.algorithm.part:
            GONE_ON(limits, workers, progress)
        self.algorithm.go_on(limits, progress)
        return _inferred(self.algorithm)

    def saved(self) -> Refusal:
        return _NOT_FROM_A_FOLDER


_NOT_FROM_A_FOLDER = Refusal(
    "a run of DCC.paper() goes on in its process alone", "Run infer again with a larger budget, or with DCC()"
)


def _inferred(algorithm: Algorithm) -> PosteriorWithEvidence:
    """Run until a limit is reached; from the start again if the division takes another form."""
    while True:
        try:
            with np.errstate(all="ignore"):  # densities overflow far from the mass
                posterior = algorithm.infer()
        except Restarted:
            algorithm = algorithm.begun_again()
            continue
        posterior.resume = _Continuing(algorithm)
        return posterior
