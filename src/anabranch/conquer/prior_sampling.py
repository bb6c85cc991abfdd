"""Prior sampling: the cheapest estimate of a path.

With draws x_i from the prior within the path, whose prior probability is p_k,

    Ẑ_k = p_k · (1/n) Σ_i g(y | x_i),

importance sampling with the prior as the proposal (paper, section 4.2). It comes first where the time is limited.
"""

from dataclasses import replace

import numpy as np

from anabranch.conquer.estimate import PRIOR, Estimate
from anabranch.conquer.target import Target
from anabranch.conquer.weights import log_mean
from anabranch.divide import prior_is_sampled

__all__ = ["prior_estimate"]


def prior_estimate(target: Target, n: int, rng: np.random.Generator) -> Estimate:
    """The estimate from at most n prior draws; without mass where the prior cannot be sampled.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget
        >>> def coin(heads):
        ...     ab.observe("heads", dist.Binomial(10, ab.sample("p", dist.Beta(1.0, 1.0))), heads)
        >>> target = PathTarget(ab.find_paths(coin, 7).paths[0])
        >>> estimate = prior_estimate(target, 1_000, np.random.default_rng(0))
        >>> bool(abs(estimate.log_evidence - np.log(1 / 11)) < 3 * estimate.log_evidence_sd < 0.2)
        True
    """
    draws = target.prior(n, rng) if prior_is_sampled(target.path) else None
    if draws is None or not len(draws.points):
        return Estimate.nothing(target.dim, target.evaluations, PRIOR)
    evaluation = target.evaluate(draws.points)
    log_likelihood = np.where(evaluation.inside, evaluation.log_likelihood, -np.inf)
    log_weights = draws.log_probability + draws.log_weights - log_mean(draws.log_weights) + log_likelihood
    estimate = Estimate.from_weights(draws.points, log_weights, target.evaluations, PRIOR)
    # Equal weights do not mean that there is no error.
    sd = float(np.hypot(max(estimate.log_evidence_sd, 1 / len(draws.points)), draws.log_probability_sd))
    return replace(estimate, log_evidence_sd=sd)
