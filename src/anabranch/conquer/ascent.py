"""From overdispersed starts to modes: the paper's greedy start (appendix F), with gradients.

Many starts climb together by Adam, in units of the prior's scales, and the lowest drop out. The distinct best are
polished by Newton steps with adaptive damping (Levenberg and Marquardt). Their Hessians are differences of the
batched gradient, so that only the gradient is compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from anabranch.conquer.target import Target

__all__ = [
    "Modes", "climb", "climb_likelihood", "distinct", "newton_step", "polish", "positive", "race", "race_cost",
    "reflections", "widths",
]  # fmt: skip

_RATE, _DECAY = 0.3, 0.93
"""Adam's first step, in units of the prior's scales, and the factor of each step to the next."""
_RACE = ((1, 0.1), (1 / 2, 0.15), (1 / 8, 0.375), (1 / 16, 0.375))
"""The stages of a race: the fraction of the starts still in it, and its fraction of the iterations."""
_COLD = 1e12
"""The inverse temperature at which the likelihood alone decides, down to its last digits."""
_MIN_CLIMBERS = 64
"""Climbers in the last stage, if there are so many."""
_MAX_PAIRED_DIM = 20
"""Dimensions up to which the signs of pairs of coordinates are changed."""
_STEP = 1e-2
"""Step of the differences of the gradient, relative to the width of the mode."""
_MIN_CURVATURE = 0.25
"""In units of the prior's scales: in a direction without curvature a mode is about as wide as the prior."""


@dataclass(frozen=True)
class Modes:
    """Local maxima: points (m, d), log densities (m,), and minus their Hessians (m, d, d), made positive definite."""

    points: np.ndarray
    log_density: np.ndarray
    precision: np.ndarray

    def __len__(self) -> int:
        return len(self.points)

    def take(self, index: np.ndarray) -> Modes:
        return Modes(self.points[index], self.log_density[index], self.precision[index])

    @property
    def log_mass(self) -> np.ndarray:
        """Laplace's approximation of the mass at each mode: log γ + ½ log |2π H⁻¹|."""
        volume = np.linalg.slogdet(self.precision)[1]
        return self.log_density + 0.5 * (self.points.shape[1] * np.log(2 * np.pi) - volume)


def climb(target: Target, starts: np.ndarray, scales: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Ascend from each start by Adam; the best points and their log densities."""
    return _ascend(target, starts, scales, [(len(starts), iterations)])


def climb_likelihood(target: Target, starts: np.ndarray, scales: np.ndarray, iterations: int) -> np.ndarray:
    """Ascend the likelihood from each start by Adam; the points on the way at which the density was highest."""
    return _ascend(target, starts, scales, [(len(starts), iterations)], _COLD)[0]


def race(target: Target, starts: np.ndarray, scales: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Climb from many starts, of which the highest continue from stage to stage; the best points and log densities.

    On the sums of sines of function induction, it finds the highest mode four times as often as climbs of equal cost.
    """
    return _ascend(target, starts, scales, _stages(len(starts), iterations))


def _ascend(
    target: Target, starts: np.ndarray, scales: np.ndarray, stages: Sequence[tuple[int, int]], inverse: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Ascend log prior + inverse · log likelihood, and keep the highest points by the density itself."""
    climbers = _Climbers.at(target, starts, inverse)
    for number, steps in stages:
        climbers = climbers.leading(number)
        for _ in range(steps):
            climbers.step(target, scales)
    return climbers.best, climbers.highest


def race_cost(n: int, iterations: int) -> int:
    """Evaluations of a race of n starts."""
    return n + sum(number * steps for number, steps in _stages(n, iterations))


def _stages(n: int, iterations: int) -> list[tuple[int, int]]:
    """The climbers and the steps of each stage."""
    return [(min(n, max(int(part * n), _MIN_CLIMBERS)), round(length * iterations)) for part, length in _RACE]


@dataclass
class _Climbers:
    """The position, the best point and the moments of Adam of each climber, in rows; and the inverse temperature."""

    inverse: float
    points: np.ndarray
    gradient: np.ndarray
    best: np.ndarray
    highest: np.ndarray
    first: np.ndarray
    second: np.ndarray
    age: np.ndarray
    rate: np.ndarray

    @classmethod
    def at(cls, target: Target, starts: np.ndarray, inverse: float) -> _Climbers:
        evaluation, gradient = target.differentiate(starts, inverse)
        column, moments = np.zeros((len(starts), 1)), np.zeros_like(starts)
        gradient = np.where(evaluation.inside[:, None], gradient, 0.0)
        rate = column + _RATE
        return cls(inverse, starts, gradient, starts.copy(), evaluation.log_density, moments, moments, column, rate)

    def leading(self, n: int) -> _Climbers:
        """The n highest of them."""
        chosen = np.sort(np.argsort(-self.highest, kind="stable")[:n])
        return _Climbers(self.inverse, *(getattr(self, each.name)[chosen] for each in fields(self)[1:]))

    def step(self, target: Target, scales: np.ndarray) -> None:
        """A step of Adam; who leaves the path returns to the best point, without momentum and at half the rate."""
        slope = self.gradient * scales
        self.age = self.age + 1
        self.first, self.second = 0.9 * self.first + 0.1 * slope, 0.99 * self.second + 0.01 * slope**2
        speed = (self.first / (1 - 0.9**self.age)) / (np.sqrt(self.second / (1 - 0.99**self.age)) + 1e-12)
        self.points = self.points + scales * self.rate * speed
        self.rate = self.rate * _DECAY
        evaluation, self.gradient = target.differentiate(self.points, self.inverse)
        better = evaluation.log_density > self.highest
        self.best = np.where(better[:, None], self.points, self.best)
        self.highest = np.where(better, evaluation.log_density, self.highest)
        lost = ~evaluation.inside[:, None]
        self.points, self.gradient = np.where(lost, self.best, self.points), np.where(lost, 0.0, self.gradient)
        self.rate = np.where(lost, self.rate / 2, self.rate)
        self.first, self.second, self.age = (np.where(lost, 0.0, each) for each in (self.first, self.second, self.age))


def distinct(points: np.ndarray, log_density: np.ndarray, scales: np.ndarray, max_points: int) -> np.ndarray:
    """The indices of distinct points, the best first: each lies far from those before."""
    order = np.argsort(-log_density, kind="stable")
    order = order[np.isfinite(log_density[order])]
    kept: list[int] = []
    for i in order:
        away = np.abs((points[kept] - points[i]) / scales).max(axis=1) if kept else np.inf
        if np.all(away > 0.05):
            kept.append(int(i))
        if len(kept) == max_points:
            break
    return np.array(kept, int)


def reflections(points: np.ndarray) -> np.ndarray:
    """Each point with the sign of one coordinate, or of two where they are few, changed.

    Coordinates that enter a density only through products, squares or sines have modes that are mirror images.
    """
    d = points.shape[1]
    one = 1.0 - 2.0 * np.eye(d)
    first, second = np.triu_indices(d, k=1)
    signs = np.concatenate([one, one[first] * one[second]]) if d <= _MAX_PAIRED_DIM else one
    return (points[:, None] * signs).reshape(-1, d)


def polish(target: Target, points: np.ndarray, scales: np.ndarray, iterations: int = 10) -> Modes:
    """Newton steps with adaptive damping from all points together."""
    n = len(points)
    points, damping = points.copy(), np.full(n, 1e-3)
    evaluation, gradient = target.differentiate(points)
    value = evaluation.log_density
    steps = np.tile(1e-4 * scales, (n, 1))
    hessian = _curvature(target, points, steps)
    moving = np.ones(n, bool)
    for _ in range(iterations):
        active = np.flatnonzero(moving)
        if not len(active):
            break
        tried = points[active] + newton_step(gradient[active], hessian[active], damping[active], scales)
        there, gradient_there = target.differentiate(tried)
        gain = there.log_density - value[active]
        accepted = gain > 0
        taken = active[accepted]
        points[taken], value[taken] = tried[accepted], there.log_density[accepted]
        gradient[taken] = gradient_there[accepted]
        damping[active] = np.where(accepted, damping[active] / 10, damping[active] * 10)
        moving[active] = np.where(accepted, gain > 1e-6, damping[active] < 1e6)
        refresh = taken[gain[accepted] > 1e-6]
        if len(refresh):
            steps[refresh] = _STEP * widths(hessian[refresh], scales)
            hessian[refresh] = _curvature(target, points[refresh], steps[refresh])
    hessian = _curvature(target, points, _STEP * widths(hessian, scales))
    return Modes(points, value, positive(hessian, scales))


def newton_step(gradient: np.ndarray, hessian: np.ndarray, damping: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The ascent step, uphill even where the curvature has the wrong sign."""
    scaled = hessian * scales[:, None] * scales
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(np.abs(values), 1e-8) + damping[:, None] * np.maximum(np.abs(values).max(1, keepdims=True), 1.0)
    along = np.einsum("nji,nj->ni", vectors, gradient * scales)
    return np.einsum("nij,nj->ni", vectors, along / values) * scales


def _curvature(target: Target, points: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Minus the Hessian at each point, by central differences of the gradient."""
    n, d = points.shape
    shift = steps[:, :, None] * np.eye(d)
    both = np.concatenate([points[:, None] + shift, points[:, None] - shift]).reshape(-1, d)
    gradient = np.nan_to_num(target.differentiate(both)[1], posinf=0.0, neginf=0.0)
    up, down = gradient[: n * d].reshape(n, d, d), gradient[n * d :].reshape(n, d, d)
    hessian = -(up - down) / (2 * steps[:, :, None])
    return 0.5 * (hessian + hessian.transpose(0, 2, 1))


def widths(hessian: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The width of each mode along each coordinate, at most that of the prior."""
    curvature = np.abs(np.einsum("nii->ni", hessian))
    return 1 / np.sqrt(np.maximum(curvature, 1 / scales**2))


def positive(hessian: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The Hessians made positive definite, with at least `_MIN_CURVATURE`."""
    values, vectors = np.linalg.eigh(hessian * scales[:, None] * scales)
    values = np.maximum(np.abs(values), _MIN_CURVATURE)
    return (vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1) / scales[:, None] / scales
