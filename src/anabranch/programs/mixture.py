"""The mixture of section 3: Gaussian clusters, their number unknown, the assignments summed out."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import anabranch as ab

__all__ = ["misspecified_mixture", "mixture", "mixture_data", "uncertain_mixture_data"]


def mixture(y: Any, rate: float = 9.0) -> Any:
    """K ~ Poisson(rate) + 1; mu_k ~ Uniform(20 (k-1) / K, 20 k / K); y_n ~ the even mixture of Normal(mu_k, 0.1)."""
    K = ab.deterministic("K", ab.sample("extra", dist.Poisson(rate)) + 1)
    mu = [ab.sample(f"mu{k}", dist.Uniform(20 * k / K, 20 * (k + 1) / K)) for k in range(K)]
    clusters = dist.Normal(jnp.stack(mu), 0.1)
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(K) / K), clusters), y)
    return K


def misspecified_mixture(y: Any) -> Any:
    """The same under a prior that puts K near 91 (section 7.2)."""
    return mixture(y, rate=90.0)


def mixture_data(seed: int = 0) -> np.ndarray:
    """150 points from five clusters."""
    rng = np.random.default_rng(seed)
    centres = np.array([2.1, 5.7, 10.4, 13.2, 18.9])
    return centres[rng.integers(0, 5, 150)] + 0.1 * rng.standard_normal(150)


def uncertain_mixture_data(seed: int = 16) -> np.ndarray:
    """150 points of five clusters, drawn from the model: p(K = 5 | y) is 0.9997, and K = 6 has nearly all of the rest.

    This is the first seed with 0.95 < p(K = 5 | y) < 0.9999. One of its clusters, of 32 points, lies at the border of
    two of the cells that six components have, and two of six explain it nearly as well as one of five.
    """
    rng = np.random.default_rng(seed)
    centres = 20 * (np.arange(5) + rng.uniform(size=5)) / 5
    return centres[rng.integers(0, 5, 150)] + 0.1 * rng.standard_normal(150)
