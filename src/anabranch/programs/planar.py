"""The mixture of figure 1: one Gaussian cluster in the plane, or two, each with a mean and a covariance."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import anabranch as ab

__all__ = ["planar_mixture", "planar_mixture_data"]


def planar_mixture(y: Any) -> Any:
    """One cluster or two, each as likely; the covariance is given by standard deviations and a correlation."""
    K = ab.deterministic("K", ab.sample("extra", dist.Bernoulli(0.5)) + 1)
    means, factors = [], []
    for k in range(K):
        means.append(ab.sample(f"mu{k}", dist.Normal(np.zeros(2), 3.0).to_event(1)))
        sd = ab.sample(f"sd{k}", dist.LogNormal(np.zeros(2), 0.5).to_event(1))
        r = ab.sample(f"r{k}", dist.Uniform(-0.99, 0.99))
        factors.append(jnp.array([[sd[0], 0.0], [r * sd[1], jnp.sqrt(1 - r**2) * sd[1]]]))
    clusters = dist.MultivariateNormal(jnp.stack(means), scale_tril=jnp.stack(factors))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(K) / K), clusters), y)
    return K


def planar_mixture_data(seed: int = 0) -> np.ndarray:
    """80 points in the plane, of two clusters that are stretched in different directions."""
    rng = np.random.default_rng(seed)
    first = rng.multivariate_normal([-1.5, -1.0], [[1.0, 0.5], [0.5, 0.6]], 40)
    second = rng.multivariate_normal([1.5, 1.5], [[0.5, -0.4], [-0.4, 0.8]], 40)
    return np.concatenate([first, second])
