"""Sequential Monte Carlo: a bootstrap particle filter over the observations of a program (paper, appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anabranch.divide import Division
from anabranch.engines.particles import Filter, check_observations
from anabranch.engines.resampling import SCHEME
from anabranch.engines.sampler import Sampler, Session
from anabranch.settings import check, whole

__all__ = ["SMC"]

_RUNS = 20
"""Filters that a budget should allow for: their difference is the error."""
_POPULATION = 20_000
"""Particles of all filters that run at the same time, at most."""


@dataclass(frozen=True)
class SMC(Sampler):
    """A bootstrap particle filter, run again and again; each run counts with its own evidence.

    Args:
        particles: of a run; fewer where the budget does not allow for twenty runs.
        resampling: "multinomial", "stratified" or "systematic".
        threshold: the effective share of the particles below which they are resampled; 1: always.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def walk(y):
        ...     x = 0.0
        ...     for t in range(len(y)):
        ...         x = ab.sample(f"x{t}", dist.Normal(x, 1.0))
        ...         ab.observe(f"y{t}", dist.Normal(x, 1.0), y[t])
        >>> posterior = ab.infer(walk, [0.5, 1.0, 2.0], engine=ab.engines.SMC(), budget=100_000)
        >>> abs(posterior.log_evidence - -4.5393) < 4 * posterior.log_evidence_sd
        True
    """

    particles: int = 1_000
    resampling: str = "systematic"
    threshold: float = 0.5

    sequential: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    fewest: ClassVar[int] = 50

    def __post_init__(self) -> None:
        check(self, particles=whole(1), **SCHEME)

    def check(self, division: Division) -> None:
        check_observations("SMC", division)

    def sample(self, session: Session) -> None:
        particles = min(self.particles, max(session.limits.budget // _RUNS, 1))
        filters = Filter(particles, self.resampling, self.threshold)
        runs = 0
        while session.goes_on():
            number = int(np.clip(session.left // particles, 1, max(_POPULATION // particles, 1)))
            swept = filters.sweep(session.runner, number, session.rng)
            blocks = runs + np.arange(number)
            runs += number
            session.collection.count(blocks)
            log_weights = swept.log_weights - np.log(particles)
            session.collection.add(swept.traces, log_weights.ravel(), np.repeat(blocks, particles))
