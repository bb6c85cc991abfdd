"""Jumps of a density: coordinates along which the gradient says nothing of how the density changes.

An index, a comparison or a sort that depends on a coordinate makes the density jump, and its gradient there is zero or
wrong. A jump is found by bisection: along each coordinate, a segment is halved again and again, and the half is kept
over which the change of log γ differs more from the integral of its derivative (by the trapezoidal rule). Where log γ
is smooth, the difference vanishes with the cube of the length; a jump stays.
"""

from __future__ import annotations

import numpy as np

from anabranch import errors
from anabranch.conquer.population import coordinate_sd
from anabranch.conquer.target import Target

__all__ = ["has_jumps", "is_climbable"]

_POINTS, _HALVINGS = 8, 24
"""Points in the middle of segments, and how often each is halved."""
_MAX_EVALUATIONS = 1_000
"""Evaluations of the search; in many dimensions it has fewer points."""
_MIN_JUMP = 0.02
"""Nats by which log γ jumps, at least."""


def is_climbable(target: Target) -> bool:
    """Whether the density has a gradient in all coordinates, and no jumps; it is looked into once."""
    if target.climbable is None:
        try:
            target.climbable = target.has_gradient and not target.discrete.any() and not has_jumps(target.source)
        except errors.NoGradient:
            target.climbable = False
    return target.climbable


def has_jumps(target: Target) -> bool:
    """Whether log γ jumps along some coordinate, somewhere within a standard deviation of prior draws."""
    rng = np.random.default_rng(0)
    number = int(np.clip(_MAX_EVALUATIONS / (target.dim * (_HALVINGS + 2)), 1, _POINTS))
    # Draws of a path apart are expensive, and later ones rest on the first, which must not have this seed.
    drawn = target.known[:0] if target.path.apart and len(target.known) else target.prior(50, rng).points
    points = np.concatenate([drawn, target.known])
    points = points[target.evaluate(points).inside] if len(points) else points
    if not len(points):
        return False
    starts = np.repeat(points[rng.permutation(len(points))[:number]], target.dim, axis=0)
    column = np.tile(np.arange(target.dim), len(starts) // target.dim)
    length = 2 * coordinate_sd(points)[column]
    starts[np.arange(len(starts)), column] -= length / 2
    return bool(_jumps(target, starts, column, length).any())


def _jumps(target: Target, starts: np.ndarray, column: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Whether a jump is found on each segment, from a start along a column."""
    rows = np.arange(len(starts))

    def at(place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        points = starts.copy()
        points[rows, column] += place * length
        evaluation, gradient = target.differentiate(points)
        return evaluation.log_density, gradient[rows, column] * length

    low, high = np.zeros(len(starts)), np.ones(len(starts))
    (f_low, g_low), (f_high, g_high) = at(low), at(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        f, g = at(middle)
        left = _excess(f_low, f, g_low, g, middle - low) >= _excess(f, f_high, g, g_high, high - middle)
        low, f_low, g_low = (np.where(left, a, b) for a, b in ((low, middle), (f_low, f), (g_low, g)))
        high, f_high, g_high = (np.where(left, a, b) for a, b in ((middle, high), (f, f_high), (g, g_high)))
    with np.errstate(invalid="ignore"):  # both ends may be outside
        change = np.abs(f_high - f_low)
    excess = _excess(f_low, f_high, g_low, g_high, high - low)
    return (excess > 0.5 * change) & (excess > _MIN_JUMP)


def _excess(f_low: np.ndarray, f_high: np.ndarray, g_low: np.ndarray, g_high: np.ndarray, h: np.ndarray) -> np.ndarray:
    """By how much the change of log γ differs from the integral of its derivative; zero where it is not finite."""
    with np.errstate(invalid="ignore"):
        excess = np.abs(f_high - f_low - h * (g_low + g_high) / 2)
    return np.nan_to_num(excess, nan=0.0, posinf=0.0)
