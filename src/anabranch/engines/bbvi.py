"""Black-box variational inference (Ranganath, Gerrish and Blei, 2014) with a guide that is made by itself.

The guide has an independent factor for each site (see `mean_field`), and is fitted by the gradients of its score, with
control variates (see `variational`). A share ε of the executions comes from the prior p all the same. They show sites
and values that the guide does not know. And with them in the denominator, the weights that follow the fit,

    w = γ(x) / ((1 − ε) q(x) + ε p(x)),

reach every execution that the prior reaches, and none of them exceeds the likelihood divided by ε (Hesterberg, Weighted
average importance sampling and defensive mixture distributions, 1995).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anabranch.engines.mean_field import MeanField
from anabranch.engines.sampler import Sampler, Session
from anabranch.engines.traces import Traces
from anabranch.engines.variational import FEWEST, FIT, batch_size, weigh
from anabranch.pace import Pace
from anabranch.settings import check, share

__all__ = ["BBVI"]


@dataclass(frozen=True)
class BBVI(Sampler):
    """Variational inference without gradients of the program, by a guide of independent sites.

    Args:
        fit: the share of the budget, or of the time, that goes into the guide; the rest weighs executions from it.
        batch: executions for one step of the fit.
        rate: the length of the steps at the beginning, in standard deviations of a site or in logits; it falls to zero.
        from_prior: the share of executions that come from the prior.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.engines.bbvi import BBVI
        >>> def coin(heads):
        ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
        ...     p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
        ...     ab.observe("heads", dist.Binomial(10, p), heads)
        >>> posterior = ab.infer(coin, 9, engine=BBVI(), budget=20_000)
        >>> abs(posterior.log_evidence - -2.9890) < 4 * posterior.log_evidence_sd < 0.05
        True
    """

    fit: float = 0.5
    batch: int = 200
    rate: float = 0.1
    from_prior: float = 0.2

    independent: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check(self, **FIT, from_prior=share(zero=False, one=False))

    def sample(self, session: Session) -> None:
        guide = self.fitted(session)
        weigh(session, lambda n: self._weighed(session, guide, n))

    def fitted(self, session: Session) -> MeanField:
        """The guide, fitted with its share of the budget."""
        guide, runner, pace = MeanField(), session.runner, Pace(FEWEST)
        with session.until(self.fit):
            while session.progressed < self.fit and session.goes_on():
                rate = self.rate * max(1 - session.progressed / self.fit, 0.0)
                n = batch_size(session, self.batch, self.fit, pace)
                with pace.measured(n):
                    population = guide.execute(runner, n, self.from_prior, session.rng)
                    guide.climb(population, rate)
                    guide.learn(population, runner)
        return guide

    def _weighed(self, session: Session, guide: MeanField, n: int) -> tuple[Traces, np.ndarray]:
        population = guide.execute(session.runner, n, self.from_prior, session.rng)
        traces, log_prior = population.traces, population.traces.log_prior
        log_guide = np.log1p(-self.from_prior) + population.log_guide
        log_q = np.logaddexp(log_guide, np.log(self.from_prior) + log_prior)
        with np.errstate(invalid="ignore"):
            return traces, np.where(traces.log_density > -np.inf, traces.log_density - log_q, -np.inf)
