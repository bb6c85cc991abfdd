"""The best point of a path (paper, figure 1): the values at which the density of the program is largest.

    x* = argmax γ_k(x) over the draws, then over steps from the best of them,

with γ_k the density of the named values, without the Jacobian of the coordinates. The steps are an evolution strategy
with one parent: the best of some normal steps is taken if it is better, and their size doubles or shrinks with that.
"""

import numpy as np

from anabranch.divide import Path

__all__ = ["best_point"]

_MAX_DRAWS, _MAX_RUNS = 2_000, 100
"""Draws that are compared, and so many where the interpreter runs the program for each."""
_STEPS, _ROUNDS, _SMALLEST = 32, 300, 1e-7
"""Steps of a round, the most rounds, and the size of a step, in standard deviations of the draws, that ends them."""
_GROW, _SHRINK = 2.0, 0.7


def best_point(path: Path, points: np.ndarray) -> np.ndarray:
    """The coordinates of the point of the largest density, of the draws or near the best of them.

    Discrete coordinates have the values of that draw.
    """
    rng = np.random.default_rng(0)
    most = _MAX_RUNS if path.interpreted else _MAX_DRAWS
    some = points if len(points) <= most else points[rng.choice(len(points), most, replace=False)]
    heights = _heights(path, some)
    best, height = some[heights.argmax()], heights.max()
    moving = np.where(path.discrete, 0.0, points.std(axis=0))
    if path.interpreted or not moving.any():
        return best
    size = 1.0
    for _ in range(_ROUNDS):
        one = np.eye(path.dim)[rng.integers(path.dim, size=_STEPS)]
        which = np.where(rng.random((_STEPS, 1)) < 0.5, one, 1.0)
        tried = best + size * moving * which * rng.standard_normal((_STEPS, path.dim))
        heights = _heights(path, tried)
        if heights.max() > height:
            best, height, size = tried[heights.argmax()], heights.max(), min(_GROW * size, 1.0)
        else:
            size *= _SHRINK
        if size < _SMALLEST:
            break
    return best


def _heights(path: Path, points: np.ndarray) -> np.ndarray:
    """log γ_k of the named values; minus infinity outside the path."""
    evaluation = path.evaluate(points, compile=False)
    with np.errstate(invalid="ignore"):
        heights = evaluation.log_density - evaluation.log_jacobian
    return np.where(heights < np.inf, heights, -np.inf)
