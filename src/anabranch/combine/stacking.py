"""Stacking: weights of paths by how well they predict, not by how probable they are (Yao et al., 2018).

    max_w Σ_i log Σ_k w_k p_k(y_i | y_−i)    over the simplex,

by expectation maximisation, w_k ← w_k g_k with g_k = (1/n) Σ_i p_ki / Σ_j w_j p_ji. The objective is concave, and lies
within n (max_k g_k − 1) of its maximum, which says when to stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch import errors
from anabranch.combine.draws import systematic
from anabranch.combine.observed import log_likelihoods
from anabranch.combine.psis import leave_one_out
from anabranch.combine.solution import Solution

__all__ = ["Stacked", "stack", "stacking_weights"]

_MOST_DRAWS = 4_000
_MOST_STEPS = 20_000
_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Stacked:
    """A path with its stacking weight, expected log predictive density, and the largest Pareto k of its ratios."""

    solution: Solution
    weight: float
    elpd: float
    pareto_k: float


def stack(solutions: Sequence[Solution]) -> list[Stacked]:
    """Stack paths that have the same observations as the first; the others are left out."""
    compared, logs, shapes = [], [], []
    expected = None
    for solution in solutions:
        log_weights, names, log_likelihood = _pointwise(solution)
        expected = names if expected is None else expected
        if names == expected:
            log_predictive, k = leave_one_out(log_weights, log_likelihood)
            compared.append(solution)
            logs.append(log_predictive)
            shapes.append(float(np.max(k)))
    if not compared or not logs[0].size:
        raise errors.NoDraws("there are no observations to predict", remedy="Stacking needs observe statements")
    weights = stacking_weights(np.array(logs))
    return [
        Stacked(solution, float(w), float(log.sum()), k)
        for solution, w, log, k in zip(compared, weights, logs, shapes, strict=True)
    ]


def stacking_weights(log_predictive: np.ndarray) -> np.ndarray:
    """The weights of predictive densities log p_ki, (paths, observations), that predict best together."""
    density = np.exp(log_predictive - log_predictive.max(axis=0))
    weights = np.full(len(density), 1 / len(density))
    for _ in range(_MOST_STEPS):
        gain = (density / (weights @ density)).mean(axis=1)
        if gain.max() - 1 < _TOLERANCE:
            break
        weights = weights * gain
    return weights / weights.sum()


def _pointwise(solution: Solution) -> tuple[np.ndarray, tuple[tuple[str, int], ...], np.ndarray]:
    """Log weights (S,), what was observed, and log likelihoods (S, n): each part of each observation is one."""
    estimate = solution.estimate
    assert estimate is not None
    points, log_weights = estimate.points, estimate.log_weights
    if len(points) > _MOST_DRAWS:
        chosen = systematic(np.exp(log_weights), _MOST_DRAWS, np.random.default_rng(0))
        points, log_weights = points[chosen], np.zeros(_MOST_DRAWS)
    parts = log_likelihoods(solution.path, points, data_only=True)
    names = tuple((name, value[0].size) for name, value in parts[0].values.items())
    out = np.zeros((len(points), sum(size for _, size in names)))
    for part in parts:
        if tuple((name, value[0].size) for name, value in part.values.items()) != names:
            return log_weights, (), out  # the observations differ within the path
        if names:
            out[part.index] = np.concatenate([v.reshape(len(v), -1) for v in part.values.values()], axis=1)
    return log_weights, names, out
