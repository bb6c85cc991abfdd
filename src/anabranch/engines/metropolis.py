"""Metropolis-Hastings engines that change one site at a time (paper, sections 3.2 and 7: LMH and RMH)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anabranch.combine import Posterior
from anabranch.engines.centred import centred_posterior
from anabranch.engines.markov import CHAINS, Chains, Walked, starting_points
from anabranch.engines.sampler import Sampler, Session
from anabranch.engines.walk import Walk
from anabranch.pace import Pace
from anabranch.settings import check, share

__all__ = ["LightweightMH", "RandomWalkMH"]

_LONGEST = 500
"""Steps of each chain between two looks at the limits."""


@dataclass(frozen=True)
class LightweightMH(Sampler):
    """Lightweight Metropolis-Hastings: one site at a time, proposed from its prior.

    Args:
        chains: that run side by side; errors come from how they differ.
        warmup: the share of the budget whose states are not kept.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def coin(heads):
        ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
        ...     p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
        ...     ab.observe("heads", dist.Binomial(10, p), heads)
        >>> posterior = ab.infer(coin, 9, engine=ab.engines.LightweightMH(), budget=50_000)
        >>> abs(posterior.probability("fair")[1] - 0.0970) < 0.02
        True
    """

    chains: int = 100
    warmup: float = 0.2

    has_evidence: ClassVar[bool] = False
    saving: ClassVar[str] = ", or use fewer chains"
    carries_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, **CHAINS)

    def sample(self, session: Session) -> None:
        run_chains(session, self.chains, self.warmup, local_share=0.0)


@dataclass(frozen=True)
class RandomWalkMH(Sampler):
    """Random-walk Metropolis-Hastings: one site at a time, from its prior or by a local move.

    Args:
        chains: that run side by side; errors come from how they differ.
        warmup: the share of the budget whose states are not kept.
        local_share: the share of local moves.
        importance_samples: of the budget, the share that is spent on importance samples around the states of the
            chains; they give an evidence, which chains alone do not (paper, section 7).

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

    has_evidence: ClassVar[bool] = False
    saving: ClassVar[str] = ", or use fewer chains"
    carries_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, **CHAINS, local_share=share(), importance_samples=share(one=False))

    def sample(self, session: Session) -> None:
        run_chains(session, self.chains, self.warmup, self.local_share, until=1 - self.importance_samples)

    def posterior(self, session: Session) -> Posterior:
        return centred_posterior(session) if self.importance_samples else session.posterior()


def run_chains(session: Session, number: int, warmup: float, local_share: float, until: float = 1.0) -> None:
    """Chains, until the session ends, or until a share of it is over."""
    number = min(number, max(session.allowed() // 10, 1))
    walk = Walk(session, starting_points(session, number), local_share)
    chains = Chains(session, walk.state, warmup * until, cost=1)
    longest, steps, pace = max(1, min(session.limits.budget // (8 * number), _LONGEST)), 1, Pace()
    while session.goes_on() and (session.progressed < until or not chains.steps):
        if chains.warming_up:
            walk.scales.learn(walk.state)
        moving = np.arange(number) < session.left  # all of them, but at the very end of the budget
        length = pace.size(max(min(steps, session.left // number), 1))
        walked = Walked.begun(length, moving, chains.every, chains.steps)
        try:
            with session.until(until if chains.made else 1.0), pace.measured(length):
                walk.advance(walked)
        finally:
            # Also if a limit or the user ended it on the way.
            chains.add_walk(walked, walk.state)
        steps = min(2 * steps, longest)
