"""Metropolis-Hastings engines that change one site at a time (paper, sections 3.1 and 7: LMH and RMH)."""

from dataclasses import dataclass

import numpy as np

from anabranch.combine import Posterior
from anabranch.engines.centred import centred_posterior
from anabranch.engines.markov import ChainEngine, Chains, ChainSteps
from anabranch.engines.sampler import Session
from anabranch.engines.walk import Walk
from anabranch.limits import Pace
from anabranch.settings import check, share

__all__ = ["LightweightMH", "RandomWalkMH"]

_MAX_STEPS = 500
"""Steps of each chain between two checks of the limits."""


@dataclass(frozen=True)
class LightweightMH(ChainEngine):
    """Lightweight Metropolis-Hastings: one site at a time, proposed from its prior.

    Args:
        chains: that run side by side; errors come from how they differ.
        warmup: the share of the budget whose states are not kept.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.engines.LightweightMH(), budget=50_000)
        >>> mean, sd = posterior.expectation(lambda draw: "z1" in draw)
        >>> abs(mean - 0.0769) < 4 * sd < 0.1
        True
    """

    chains: int = 100
    warmup: float = 0.2

    def sample(self, session: Session) -> None:
        _run_chains(self, session, local_share=0.0)


@dataclass(frozen=True)
class RandomWalkMH(ChainEngine):
    """Random-walk Metropolis-Hastings: one site at a time, from its prior or by a local move.

    Args:
        chains: that run side by side; errors come from how they differ.
        warmup: the share of the budget whose states are not kept.
        local_share: the share of local moves.
        importance_samples: the share of the budget for importance samples centred on the states of the chains; they
            estimate the evidence, which chains alone do not (paper, section 7).

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> engine = ab.engines.RandomWalkMH(importance_samples=0.5)
        >>> posterior = ab.infer(programs.branching, 2.0, engine=engine, budget=50_000)
        >>> abs(posterior.log_evidence - -3.1495) < 0.1
        True
    """

    chains: int = 100
    warmup: float = 0.2
    local_share: float = 0.5
    importance_samples: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, local_share=share(), importance_samples=share(one=False))

    def sample(self, session: Session) -> None:
        _run_chains(self, session, self.local_share, until=1 - self.importance_samples)

    def posterior(self, session: Session) -> Posterior:
        return centred_posterior(session) if self.importance_samples else session.posterior()


def _run_chains(engine: ChainEngine, session: Session, local_share: float, until: float = 1.0) -> None:
    """Run chains until the session ends, or until a share of it is over."""
    walk = Walk(session, engine.start(session), local_share)
    chains, number = Chains(session, walk.state, engine.warmup * until, cost=1), len(walk.state)
    max_steps, steps, pace = max(1, min(session.limits.budget // (8 * number), _MAX_STEPS)), 1, Pace()
    while session.goes_on() and (session.progressed < until or not chains.steps):
        if chains.warming_up:
            walk.local.learn(walk.state)
        moving = np.arange(number) < session.left  # all of them, except at the end of the budget
        length = pace.size(max(min(steps, session.left // number), 1))
        chain_steps = ChainSteps.begun(length, moving, chains.every, chains.steps)
        try:
            with session.until(until if chains.made else 1.0), pace.measured(length):
                walk.advance(chain_steps)
        finally:
            # Also after a limit or an interrupt.
            chains.add_steps(chain_steps, walk.state)
        steps = min(2 * steps, max_steps)
