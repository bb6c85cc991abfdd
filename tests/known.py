"""Paths whose evidence and posterior are known in closed form, and paths that do not suit every strategy."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.stats import multivariate_normal, norm, truncnorm

import anabranch as ab
from anabranch.divide import Path


@dataclass(frozen=True)
class Known:
    """A path with its log evidence and the posterior mean and standard deviation of each coordinate."""

    path: Path
    log_evidence: float
    mean: np.ndarray
    sd: np.ndarray


def regression(dim: int, size: int = 100) -> Known:
    """Normal coefficients, normal noise, and a design with correlations of 0.7."""
    rng = np.random.default_rng(0)
    design = rng.standard_normal((size, dim)) * np.sqrt(0.3) + rng.standard_normal((size, 1)) * np.sqrt(0.7)
    y = design @ (0.5 * rng.standard_normal(dim)) + rng.standard_normal(size)

    def program(y):
        b = ab.sample("b", dist.Normal(jnp.zeros(dim), 1.0).to_event(1))
        ab.observe("y", dist.Normal(jnp.asarray(design) @ b, 1.0).to_event(1), y)

    covariance = np.linalg.inv(design.T @ design + np.eye(dim))
    exact = multivariate_normal(np.zeros(size), design @ design.T + np.eye(size)).logpdf(y)
    path = ab.find_paths(program, y).paths[0]
    return Known(path, float(exact), covariance @ design.T @ y, np.sqrt(np.diag(covariance)))


def _half_space():
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    if x > 2:
        ab.sample("z", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(x, 1.0), 1.0)


def half_space() -> Known:
    """A guard that 2 % of the prior meets: the path beyond it."""
    path = next(p for p in ab.find_paths(_half_space, executions=2000).paths if "z" in p.addresses)
    exact = norm(0, np.sqrt(2)).logpdf(1.0) + norm(0.5, np.sqrt(0.5)).logsf(2.0)
    cut = truncnorm((2 - 0.5) / np.sqrt(0.5), np.inf, 0.5, np.sqrt(0.5))
    return Known(path, float(exact), np.array([cut.mean(), 0.0]), np.array([cut.std(), 1.0]))


# What needs coordinates that are all real, and a gradient, cannot run these -------------------------------------------


def _counted():
    n = ab.sample("n", dist.Poisson(3.0))
    ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)) + n, 1.0), 2.0)


def leaves_jax():
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    ab.observe("y", dist.Normal(x, 1.0), 2.0)


def _decided():
    ab.observe("y", dist.Normal(1.0 if ab.sample("x", dist.Bernoulli(0.5)) else 0.0, 1.0), 2.0)


UNSUITED = [
    (_counted, "discrete.* Use SMC"),
    (leaves_jax, "no gradient.* Use SMC"),
    (_decided, "no coordinates.*Enumerate"),
]
"""Programs whose paths need another strategy than one by gradients, and what the error says."""
