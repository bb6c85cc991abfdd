"""Stacking: weights of paths by how well they predict, not by how probable they are (Yao et al., 2018).

    max_w Σ_i log Σ_k w_k p_k(y_i | y_−i)    over the simplex,

by expectation maximisation, w_k ← w_k g_k with g_k = (1/n) Σ_i p_ki / Σ_j w_j p_ji. The objective is concave, and lies
within n (max_k g_k − 1) of its maximum, which says when to stop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch import errors
from anabranch.combine.observed import log_likelihoods
from anabranch.combine.psis import leave_one_out
from anabranch.combine.solution import Solution
from anabranch.conquer.weights import systematic

__all__ = ["Stacked", "stack", "stacking_weights"]

logger = logging.getLogger("anabranch")

_MOST_DRAWS = 4_000
_MOST_STEPS = 20_000
_TOLERANCE = 1e-6
_LARGEST_K = 0.7
"""The Pareto k above which leave-one-out by importance ratios is not to be trusted (Vehtari et al., 2024)."""

_Observed = tuple[tuple[str, int], ...]
"""The names of observations, each with the number of its parts."""


@dataclass(frozen=True)
class Stacked:
    """A path with its weight, stacking weight, expected log predictive density, and largest Pareto k of its ratios."""

    solution: Solution
    weight: float
    stacking_weight: float
    elpd: float
    pareto_k: float


def stack(candidates: Sequence[tuple[Solution, float]]) -> list[Stacked]:
    """Stack paths, given with their weights, that have the same observations as the first; the others are left out."""
    compared, logs, shapes = [], [], []
    expected = None
    for solution, weight in candidates:
        log_weights, names, log_likelihood = _pointwise(solution)
        if expected is None:
            _check_observed(solution, names)
            expected = names
        if names == expected:
            log_predictive, k = leave_one_out(log_weights, log_likelihood)
            compared.append((solution, weight))
            logs.append(log_predictive)
            shapes.append(float(np.max(k)))
    stacking = stacking_weights(np.array(logs))
    stacked = [
        Stacked(solution, weight, float(w), float(log.sum()), k)
        for (solution, weight), w, log, k in zip(compared, stacking, logs, shapes, strict=True)
    ]
    _warn(candidates, stacked)
    return stacked


def _check_observed(first: Solution, names: _Observed | None) -> None:
    if names:
        return
    what = "has no observations" if names is not None else "has other observations from one execution to another"
    raise errors.NoObservations(
        f"there is nothing to stack by: the heaviest path ({first.path.description}) {what}",
        remedy="Stacking compares how paths predict data that observe statements name in every execution",
    )


def _warn(candidates: Sequence[tuple[Solution, float]], stacked: Sequence[Stacked]) -> None:
    """Say what was left out, and where the ratios are not to be trusted."""
    kept = {id(each.solution) for each in stacked}
    others = [weight for solution, weight in candidates if id(solution) not in kept]
    if others:
        logger.warning(
            "stacking leaves out %d of %d paths, with a weight of %.3g together: their observations are not those of "
            "the heaviest path (%s)",
            len(others), len(candidates), sum(others), stacked[0].solution.path.description,
        )  # fmt: skip
    doubtful = [each for each in stacked if not each.pareto_k <= _LARGEST_K and not _summed(each.solution)]
    if doubtful:
        logger.warning(
            "stacking: pareto_k is above %g, or NaN (too few draws, or many alike), on %d of %d paths, such as (%s): "
            "their elpd is in doubt, and so are the weights; there may be too few data for what is drawn",
            _LARGEST_K, len(doubtful), len(stacked), doubtful[0].solution.path.description,
        )  # fmt: skip


def _summed(solution: Solution) -> bool:
    """Whether leave-one-out is a sum over all the values there are, which needs no tail."""
    return solution.path.dim == 0 or (solution.is_exact and len(solution.points) <= _MOST_DRAWS)


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


def _pointwise(solution: Solution) -> tuple[np.ndarray, _Observed | None, np.ndarray]:
    """Log weights (S,), what was observed, and log likelihoods (S, n): each part of each observation is one.

    None is observed where the observations differ within the path.
    """
    estimate = solution.estimate
    assert estimate is not None
    points, log_weights = estimate.points, estimate.log_weights
    if len(points) > _MOST_DRAWS:
        # Always the same choice, so that a posterior has one answer.
        chosen = systematic(np.exp(log_weights), _MOST_DRAWS, np.random.default_rng(0))
        points, log_weights = points[chosen], np.zeros(_MOST_DRAWS)
    parts = log_likelihoods(solution.path, points, data_only=True)
    names = tuple((name, value[0].size) for name, value in parts[0].values.items())
    out = np.zeros((len(points), sum(size for _, size in names)))
    for part in parts:
        if tuple((name, value[0].size) for name, value in part.values.items()) != names:
            return log_weights, None, out
        if names:
            out[part.index] = np.concatenate([v.reshape(len(v), -1) for v in part.values.values()], axis=1)
    return log_weights, names, out
