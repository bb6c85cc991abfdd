"""Overdispersed points of a path, from which methods start, and the prior mass of the path."""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator

from anabranch.conquer.ascent import climb
from anabranch.conquer.student import StudentMixture, safe_cholesky
from anabranch.conquer.symmetry import Exchangeable, fold
from anabranch.conquer.target import Target
from anabranch.divide import prior_is_sampled

__all__ = ["broad", "broad_as_prior", "climbed", "coordinate_sd", "log_prior_mass", "overdispersed_points"]

_STEPS = 40
"""Metropolis steps that disperse points where prior draws are rare."""
_STARTS, _CLIMBS = 32, 60
"""Prior draws from which methods with gradients climb, and steps of each climb."""
_PRIOR_DRAWS, _MIN_PRIOR_DRAWS = 500, 50
"""Prior draws that show how wide the prior is, and the number up to which they are too few."""


def overdispersed_points(target: Target, n: int, rng: Generator) -> np.ndarray:
    """About n points of the path: prior draws, and points of the executions that found it.

    Where prior draws rarely meet the guards, the points are dispersed by random-walk Metropolis steps on the prior.
    """
    prior = target.prior(n, rng).points
    points = np.concatenate([prior, target.known])[: max(n, len(prior))]
    if len(prior) >= n // 2 or not len(points):
        return points
    return _dispersed(target, points[rng.integers(len(points), size=n)], rng)


def _dispersed(target: Target, points: np.ndarray, rng: Generator) -> np.ndarray:
    """Metropolis steps on the prior within the path, each along a few coordinates and of a random size."""
    n, d = points.shape
    log_prior = _log_prior(target, points)
    for _ in range(_STEPS):
        size = 10 ** rng.uniform(-2, 0.5, (n, 1))
        moved = rng.uniform(size=(n, d)) < max(1 / d, 0.3)
        step = size * rng.standard_normal((n, d)) * moved
        tried = points + np.where(target.discrete, np.round(3 * step), step)
        there = _log_prior(target, tried)
        accepted = np.log(rng.uniform(size=n)) < there - log_prior
        points = np.where(accepted[:, None], tried, points)
        log_prior = np.where(accepted, there, log_prior)
    return points


def _log_prior(target: Target, points: np.ndarray) -> np.ndarray:
    evaluation = target.evaluate(points)
    return np.where(evaluation.inside, evaluation.log_prior, -1e300)


def climbed(target: Target, rng: Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prior draws after a short climb, their log densities, and the standard deviations of the prior."""
    prior = overdispersed_points(target, _STARTS, rng)[:_STARTS]
    if not len(prior):
        return prior, np.zeros(0), np.ones(target.dim)
    sd = coordinate_sd(prior)
    return *climb(target, prior, sd, _CLIMBS), sd


def coordinate_sd(points: np.ndarray) -> np.ndarray:
    """The standard deviation of each coordinate; one where it is zero or not finite."""
    sd = points.std(axis=0)
    return np.where(np.isfinite(sd) & (sd > 0), sd, 1.0)


def broad(points: np.ndarray) -> StudentMixture:
    """One heavy-tailed component as wide as the points, outliers clipped."""
    low, middle, high = np.quantile(points, [0.16, 0.5, 0.84], axis=0)
    width = np.maximum((high - low) / 2, 1e-3 * (1 + np.abs(middle)))
    clipped = np.clip(points, middle - 4 * width, middle + 4 * width)
    trust = len(points) / (len(points) + 2 * points.shape[1])
    scale = np.diag(width**2)
    if len(points) > 1:
        scale = trust * np.atleast_2d(np.cov(clipped.T)) + (1 - trust) * scale
    return StudentMixture.single(clipped.mean(axis=0), safe_cholesky(scale + 1e-9 * np.diag(width**2)), df=3.0)


def broad_as_prior(
    target: Target, points: np.ndarray, rng: Generator, symmetries: Sequence[Exchangeable] = ()
) -> StudentMixture:
    """One component as wide as the prior, in one order of exchangeable blocks; as the points where prior draws are
    rare."""
    prior = fold(target.prior(_PRIOR_DRAWS, rng).points, symmetries)
    return broad(prior if len(prior) > _MIN_PRIOR_DRAWS else points)


def log_prior_mass(target: Target, rng: Generator) -> float:
    """The log prior probability of the path, where its prior can be drawn from exactly; else NaN."""
    if target.path.interpreted or not prior_is_sampled(target.path):
        return np.nan
    drawn = target.prior(100, rng)
    is_exact = drawn.log_probability_sd == 0 and np.ptp(drawn.log_weights) < 1e-9
    return drawn.log_probability if is_exact else np.nan
