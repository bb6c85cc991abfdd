"""Rejection sampling: executions from the prior, each kept with a probability in proportion to its likelihood.

With a bound c on the log likelihood, an execution is accepted with probability g(y | x)/exp(c). The accepted executions
are independent, exact draws from the posterior, and

    Ẑ = exp(c) · (accepted)/(tried).

The bound is c = 0 for hard conditions, whose likelihood is zero or one, and for discrete observations. For any other
program the user gives the bound.
"""

from dataclasses import dataclass

import numpy as np
import numpyro.distributions as dist

from anabranch import errors
from anabranch.divide import Division, unwrapped
from anabranch.engines.sampler import Session, WeightedSampler, recordings_of
from anabranch.engines.traces import Traces
from anabranch.settings import check, finite, whole

__all__ = ["Rejection"]


@dataclass(frozen=True)
class Rejection(WeightedSampler):
    """Exact draws, by rejection.

    Args:
        log_bound: an upper bound of the log likelihood; None: 0, for programs with discrete observations alone.
        batch: executions at a time: more are faster and take more memory.

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

    def __post_init__(self) -> None:
        check(self, log_bound=finite().or_none(), batch=whole(1))

    def check(self, division: Division) -> None:
        if self.log_bound is not None:
            return
        for recording in recordings_of(division):
            for observation in recording.observations:
                support = getattr(observation.distribution, "support", None)
                # `sample` finds a point mass whose `log_density` breaks the bound.
                certain = isinstance(unwrapped(observation.distribution), dist.Delta)
                if support is not None and not support.is_discrete and not certain:
                    raise errors.EngineCannotRun(
                        "Rejection needs a bound on the likelihood, and there is none that holds for every continuous "
                        "observation or factor",
                        at=observation,
                        remedy="Give it one, Rejection(log_bound=...), or use ImportanceSampling",
                    )

    def sample(self, session: Session) -> None:
        session.collect(self.batch, lambda n: self._tried(session, n))

    def _tried(self, session: Session, n: int) -> tuple[Traces, np.ndarray]:
        """Executions with their log weights: the bound for those that are accepted."""
        bound = 0.0 if self.log_bound is None else float(self.log_bound)
        traces = session.runner.execute(n)
        log_likelihood = traces.valid_log_likelihood
        largest = float(log_likelihood.max())
        if largest > bound + 1e-9 * max(1.0, abs(bound)):
            raise errors.EngineCannotRun(
                f"an execution has a log likelihood of {largest:.6g}, above the bound of {bound:.6g}",
                remedy=f"Give Rejection a log_bound above {largest:.6g} that no execution exceeds, or use "
                "ImportanceSampling, which needs none",
            )
        return traces, np.where(np.log(session.rng.random(n)) < log_likelihood - bound, bound, -np.inf)
