"""Rejection sampling: executions from the prior, each kept with a probability in proportion to its likelihood.

With a bound c on the log likelihood, an execution is accepted with probability g(y | x)/exp(c). What is accepted are
independent, exact draws from the posterior, and

    Ẑ = exp(c) · (accepted)/(tried).

Hard conditions, likelihoods of zero or one such as discrete data compared with a simulation, have the bound c = 0, and
so has every density of discrete observations. Any other program needs the bound from the user.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpyro.distributions as dist

from anabranch import errors
from anabranch.divide import Division
from anabranch.divide.distributions import unwrapped
from anabranch.engines.sampler import Sampler, Session, recordings_of
from anabranch.engines.traces import Traces
from anabranch.settings import check, finite, whole

__all__ = ["Rejection"]


@dataclass(frozen=True)
class Rejection(Sampler):
    """Exact draws, by rejection.

    Args:
        log_bound: what the log likelihood never exceeds; None: 0, for programs with discrete observations alone.
        batch: executions at a time.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def dice(total):
        ...     one = ab.sample("one", dist.DiscreteUniform(1, 6))
        ...     two = ab.sample("two", dist.DiscreteUniform(1, 6))
        ...     ab.observe("total", dist.Delta(one + two), total)
        >>> posterior = ab.infer(dice, 11, engine=ab.engines.Rejection(), budget=20_000)
        >>> abs(posterior.log_evidence - -2.8904) < 4 * posterior.log_evidence_sd  # log 2/36
        True
    """

    log_bound: float | None = None
    batch: int = 10_000

    independent: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, log_bound=finite().or_none(), batch=whole(1))

    def check(self, division: Division) -> None:
        if self.log_bound is not None:
            return
        for recording in recordings_of(division):
            for observation in recording.observations:
                support = getattr(observation.distribution, "support", None)
                if support is not None and not support.is_discrete and not _is_certain(observation.distribution):
                    raise errors.EngineCannotRun(
                        "Rejection needs a bound on the likelihood, and the density of a continuous observation or a "
                        "factor has no bound that it could know",
                        site=observation.name,
                        where=observation.where,
                        remedy="Give it one, Rejection(log_bound=...), or use ImportanceSampling",
                    )

    def sample(self, session: Session) -> None:
        session.collect(self.batch, lambda n: self._tried(session, n))

    def _tried(self, session: Session, n: int) -> tuple[Traces, np.ndarray]:
        """Executions, and their log weights: the bound for those that are accepted."""
        bound = 0.0 if self.log_bound is None else float(self.log_bound)
        traces = session.runner.execute(n)
        log_likelihood = traces.valid_log_likelihood
        highest = float(log_likelihood.max())
        if highest > bound + 1e-9 * max(1.0, abs(bound)):
            raise errors.EngineCannotRun(
                f"an execution has a log likelihood of {highest:.6g}, above the bound of {bound:.6g}",
                remedy=f"Give Rejection a log_bound of more than {highest:.6g} that nothing exceeds, or use "
                "ImportanceSampling, which needs none",
            )
        return traces, np.where(np.log(session.rng.random(n)) < log_likelihood - bound, bound, -np.inf)


def _is_certain(distribution: dist.Distribution) -> bool:
    """Whether it has one value only: its density is zero or one, unless it states a `log_density` of its own.

    One above zero would break the bound; `sample` then finds it.
    """
    return isinstance(unwrapped(distribution), dist.Delta)
