"""Stacking: path weights by predictive performance (Yao et al., 2018).

    max_w Σ_i log Σ_k w_k p_k(y_i | y_−i)    over the simplex,

by expectation maximisation, w_k ← w_k g_k with g_k = (1/n) Σ_i p_ki / Σ_j w_j p_ji. The objective is concave, and
within n (max_k g_k − 1) of its maximum, which is the stopping rule.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.observed import Parts, pointwise
from anabranch.combine.psis import leave_one_out
from anabranch.combine.solution import Solution
from anabranch.conquer.estimate import MAX_PARETO_K
from anabranch.conquer.weights import systematic

__all__ = ["MAX_DRAWS", "is_summed", "stack", "stacking_weights", "weighted_pointwise"]

logger = logging.getLogger("anabranch")

MAX_DRAWS = 4_000
"""Draws of a path that are used: time against the variance of the leave-one-out densities."""
_MAX_STEPS = 20_000
_TOLERANCE = 1e-6
"""The stopping rule in nats per observation."""


def stack(candidates: Sequence[tuple[Solution, float]]) -> list[dict[str, Any]]:
    """A row for each of the paths, given with their weights, that has the observations of the first one."""
    compared, logs, shapes = [], [], []
    expected = None
    for solution, weight in candidates:
        log_weights, names, log_likelihood = weighted_pointwise(solution, MAX_DRAWS)
        if expected is None and not names:
            what = "has no observations" if names is not None else "has different observations in different executions"
            raise errors.NoObservations(
                f"stacking needs data to predict: the heaviest path ({solution.path.description}) {what}",
                remedy="Add observe statements that every execution of the path meets",
            )
        expected = expected or names
        if names == expected:
            log_predictive, k = leave_one_out(log_weights, log_likelihood)
            compared.append((solution, weight))
            logs.append(log_predictive)
            shapes.append(float(np.max(k)))
    _warn(candidates, [solution for solution, _ in compared], shapes)
    rows = zip(compared, stacking_weights(np.array(logs)), logs, shapes, strict=True)
    return [
        {"path": solution.path.description, "stacking_weight": float(stacked), "weight": weight,
         "elpd": float(log_predictive.sum()), "pareto_k": k}
        for (solution, weight), stacked, log_predictive, k in rows
    ]  # fmt: skip


def _warn(candidates: Sequence[tuple[Solution, float]], compared: list[Solution], shapes: list[float]) -> None:
    """Log which paths were left out, and where the Pareto k is too large."""
    kept = set(map(id, compared))
    others = [weight for solution, weight in candidates if id(solution) not in kept]
    if others:
        logger.warning(
            "stacking leaves out %d of %d paths, with a total weight of %.3g: their observations are not those of the "
            "heaviest path (%s)",
            len(others), len(candidates), sum(others), compared[0].path.description,
        )  # fmt: skip
    doubtful = [each for each, k in zip(compared, shapes, strict=True) if not k <= MAX_PARETO_K and not is_summed(each)]
    if doubtful:
        logger.warning(
            "stacking: pareto_k is above %g, or NaN (too few draws, or many alike), on %d of %d paths, such as (%s): "
            "their elpd and the stacking weights are not reliable",
            MAX_PARETO_K, len(doubtful), len(compared), doubtful[0].path.description,
        )  # fmt: skip


def is_summed(solution: Solution) -> bool:
    """True if leave-one-out is an exact sum over all values, which needs no tail."""
    return solution.path.dim == 0 or (solution.is_exact and len(solution.points) <= MAX_DRAWS)


def stacking_weights(log_predictive: np.ndarray) -> np.ndarray:
    """The weights that maximise the objective, given log p_ki with the shape (paths, observations)."""
    density = np.exp(log_predictive - log_predictive.max(axis=0))
    weights = np.full(len(density), 1 / len(density))
    for _ in range(_MAX_STEPS):
        gain = (density / (weights @ density)).mean(axis=1)
        if gain.max() - 1 < _TOLERANCE:
            break
        weights = weights * gain
    return weights / weights.sum()


def weighted_pointwise(solution: Solution, max_draws: int) -> tuple[np.ndarray, Parts | None, np.ndarray]:
    """Log weights (S,) of draws, the observations, and log likelihoods (S, n) of each part of each observation.

    The observations are None if they differ within the path.
    """
    estimate = solution.estimate
    assert estimate is not None
    points, log_weights = estimate.points, estimate.log_weights
    if len(points) > max_draws:
        # A fixed seed: a posterior gives one answer to one question.
        chosen = systematic(np.exp(log_weights), max_draws, np.random.default_rng(0))
        if solution.path.discrete.all():
            points, log_weights = points[chosen], np.zeros(max_draws)
        else:  # a draw taken several times has a larger weight: among equal ratios a tail has no shape
            chosen, counts = np.unique(chosen, return_counts=True)
            points, log_weights = points[chosen], np.log(counts)
    return log_weights, *pointwise(solution.path, points)
