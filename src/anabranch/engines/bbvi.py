"""Black-box variational inference (Ranganath, Gerrish and Blei, 2014) with a mean-field guide made automatically.

The guide has an independent factor for each site (see `mean_field`), and is fitted by score-function gradients with
control variates (see `variational`). A share ε of the executions comes from the prior p, which shows sites and values
that the guide does not have yet. With this defensive mixture in the denominator, the weights after the fit,

    w = γ(x) / ((1 − ε) q(x) + ε p(x)),

are defined for every execution that the prior can draw, and never exceed the likelihood divided by ε (Hesterberg,
Weighted average importance sampling and defensive mixture distributions, 1995).
"""

from dataclasses import dataclass

import numpy as np

from anabranch.engines.mean_field import MeanField
from anabranch.engines.sampler import Session
from anabranch.engines.traces import Traces
from anabranch.engines.variational import VariationalEngine
from anabranch.settings import check, share

__all__ = ["BBVI"]


@dataclass(frozen=True)
class BBVI(VariationalEngine):
    """Variational inference without gradients of the program, by a guide of independent sites.

    Args:
        fit: the share of the budget, or of the time, for the fit; the rest is for weighted executions from the guide.
        batch: executions for one step of the fit.
        rate: the length of the first steps, in standard deviations of a site or in logits; it falls to zero.
        from_prior: the share of executions from the prior.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.engines.BBVI(), budget=20_000)
        >>> abs(posterior.log_evidence - -3.1495) < 4 * posterior.log_evidence_sd < 0.05
        True
    """

    fit: float = 0.5
    batch: int = 200
    rate: float = 0.1
    from_prior: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, from_prior=share(zero=False, one=False))

    def sample(self, session: Session) -> None:
        guide = self.fitted(session)
        session.collect(self.draws_batch, lambda n: self._weighed(session, guide, n))

    def fitted(self, session: Session) -> MeanField:
        def step(n: int, rate: float) -> None:
            population = guide.execute(session.runner, n, self.from_prior, session.rng)
            guide.climb(population, rate)
            guide.learn(population, session.runner)

        guide = MeanField()
        self.climb(session, step)
        return guide

    def _weighed(self, session: Session, guide: MeanField, n: int) -> tuple[Traces, np.ndarray]:
        population = guide.execute(session.runner, n, self.from_prior, session.rng)
        traces, log_prior = population.traces, population.traces.log_prior
        log_guide = np.log1p(-self.from_prior) + population.log_guide
        log_q = np.logaddexp(log_guide, np.log(self.from_prior) + log_prior)
        with np.errstate(invalid="ignore"):
            return traces, np.where(traces.log_density > -np.inf, traces.log_density - log_q, -np.inf)
