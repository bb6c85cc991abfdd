"""Points spread over a path before anything is known of its posterior."""

from __future__ import annotations

import numpy as np

from anabranch.conquer.ascent import climb
from anabranch.conquer.student import StudentMixture, root_of
from anabranch.conquer.target import Target

__all__ = ["broad", "climbed", "spread_of", "spread_out"]

_STEPS = 40
_STARTS, _CLIMBS = 32, 60
"""Points of the prior from which methods with gradients begin, and steps of the climb from each."""


def spread_out(target: Target, n: int, rng: np.random.Generator) -> np.ndarray:
    """About n points of the path: draws from its prior where that can be had, and those known already.

    Where the guards are rarely met, what is known is spread by random-walk steps that leave the prior, restricted to
    the path, unchanged.
    """
    prior = target.prior(n, rng).points
    points = np.concatenate([prior, target.known])[: max(n, len(prior))]
    if len(prior) >= n // 2 or not len(points):
        return points
    return _wander(target, points[rng.integers(len(points), size=n)], rng)


def _wander(target: Target, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
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


def climbed(target: Target, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points of the prior after a short climb, their log densities, and the spread of the prior; no points if none."""
    prior = spread_out(target, _STARTS, rng)[:_STARTS]
    if not len(prior):
        return prior, np.zeros(0), np.ones(target.dim)
    spread = spread_of(prior)
    return *climb(target, prior, spread, _CLIMBS), spread


def spread_of(points: np.ndarray) -> np.ndarray:
    """The standard deviation of each coordinate; one where that says nothing."""
    spread = points.std(axis=0)
    return np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)


def broad(points: np.ndarray, freedom: float = 3.0) -> StudentMixture:
    """One heavy-tailed component as wide as the points, a few far ones aside."""
    low, middle, high = np.quantile(points, [0.16, 0.5, 0.84], axis=0)
    width = np.maximum((high - low) / 2, 1e-3 * (1 + np.abs(middle)))
    clipped = np.clip(points, middle - 4 * width, middle + 4 * width)
    trust = len(points) / (len(points) + 2 * points.shape[1])
    scale = np.diag(width**2)
    if len(points) > 1:
        scale = trust * np.atleast_2d(np.cov(clipped.T)) + (1 - trust) * scale
    scale = scale + 1e-9 * np.diag(width**2)
    return StudentMixture(clipped.mean(axis=0)[None], root_of(scale)[None], np.ones(1), np.array([freedom]))
