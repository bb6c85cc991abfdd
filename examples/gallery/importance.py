"""Importance sampling from a Student-t distribution at the mode: evidences to compare with, without the library."""

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize
from scipy.stats import multivariate_t


def importance_sampling(log_density: Callable, start: np.ndarray, draws: int = 100_000, error: float = 0.01) -> float:
    """log ∫ exp(log_density), with draws from a Student-t distribution at the mode above the start.

    The density takes points in rows. Its error must be below the one given.
    """
    options = {"maxiter": 50_000, "maxfev": 50_000, "xatol": 1e-6, "fatol": 1e-9, "adaptive": True}
    mode = minimize(lambda x: -log_density(x[None])[0], start, method="Nelder-Mead", options=options).x
    proposal = multivariate_t(mode, 1.3 * covariance(log_density, mode), df=6, seed=0)
    points = proposal.rvs(draws).reshape(draws, -1)
    log_weights = log_density(points) - proposal.logpdf(points)
    weights = np.exp(log_weights - log_weights.max())
    assert weights.std() / weights.mean() / np.sqrt(draws) < error, "the reference is not accurate"
    return float(np.log(weights.mean()) + log_weights.max())


def covariance(log_density: Callable, mode: np.ndarray, step: float = 1e-3) -> np.ndarray:
    """The inverse of minus the Hessian at the mode, by differences."""
    eye, signs = np.eye(len(mode)) * step, ((1, 1), (1, -1), (-1, 1), (-1, -1))
    corners = np.array([mode + a * u + b * v for u in eye for v in eye for a, b in signs])
    second = log_density(corners).reshape(len(mode), len(mode), 4) @ np.array([1, -1, -1, 1]) / (4 * step**2)
    return np.linalg.inv(-(second + second.T) / 2)
