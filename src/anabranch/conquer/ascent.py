"""From over-dispersed starts to modes: the paper's greedy start (appendix F), with gradients.

Many starts climb together by Adam, in units of the prior's spread; the distinct best are then polished by Newton steps
with a damping that adapts (Levenberg and Marquardt), whose Hessians come from differences of the batched gradient, so
that nothing but the gradient is ever compiled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from anabranch.conquer.target import Target

__all__ = ["Modes", "climb", "distinct", "polish"]

_RATE, _DECAY = 0.15, 0.97
_FLATTEST = 0.25
"""Least curvature in units of the prior's spread: a direction that the density leaves flat is about as wide as that."""


@dataclass(frozen=True)
class Modes:
    """Points where the density is locally largest: positions (m, d), log densities (m,), and minus the Hessians of the
    log density (m, d, d), made positive definite."""

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


def climb(target: Target, starts: np.ndarray, spread: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Ascend from each start by Adam; the best points met, and their log densities.

    A climber that leaves the path goes back to its best point and loses its momentum and half of its rate.
    """
    points, best = starts.copy(), starts.copy()
    evaluation, gradient = target.differentiate(points)
    highest = evaluation.log_density
    first, second, age = (np.zeros_like(points) for _ in range(3))
    rate = np.full((len(points), 1), _RATE)
    for _ in range(iterations):
        age += 1
        step = gradient * spread
        first, second = 0.9 * first + 0.1 * step, 0.99 * second + 0.01 * step**2
        points = points + spread * rate * (first / (1 - 0.9**age)) / (np.sqrt(second / (1 - 0.99**age)) + 1e-12)
        rate = rate * _DECAY
        evaluation, gradient = target.differentiate(points)
        value = evaluation.log_density
        better = value > highest
        best[better], highest = points[better], np.maximum(highest, value)
        lost = ~evaluation.inside
        if lost.any():
            points[lost], rate[lost] = best[lost], rate[lost] / 2
            first[lost], second[lost], age[lost] = 0.0, 0.0, 0.0
            gradient[lost] = 0.0
    return best, highest


def distinct(points: np.ndarray, log_density: np.ndarray, spread: np.ndarray, most: int) -> np.ndarray:
    """Which points to keep: the best, then those that lie far from all that were kept, best first; at most `most`."""
    order = np.argsort(-log_density, kind="stable")
    order = order[np.isfinite(log_density[order])]
    kept: list[int] = []
    for i in order:
        away = np.abs((points[kept] - points[i]) / spread).max(axis=1) if kept else np.inf
        if np.all(away > 0.05):
            kept.append(int(i))
        if len(kept) == most:
            break
    return np.array(kept, int)


def polish(target: Target, points: np.ndarray, spread: np.ndarray, iterations: int = 10) -> Modes:
    """Newton steps with adaptive damping from each point, all points together."""
    n, d = points.shape
    points, damping = points.copy(), np.full(n, 1e-3)
    evaluation, gradient = target.differentiate(points)
    value = evaluation.log_density
    steps = np.tile(1e-4 * spread, (n, 1))
    hessian = _curvature(target, points, steps)
    moving = np.ones(n, bool)
    for _ in range(iterations):
        active = np.flatnonzero(moving)
        if not len(active):
            break
        tried = points[active] + _newton(gradient[active], hessian[active], damping[active], spread)
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
            steps[refresh] = _steps(hessian[refresh], spread)
            hessian[refresh] = _curvature(target, points[refresh], steps[refresh])
    hessian = _curvature(target, points, _steps(hessian, spread))
    return Modes(points, value, _positive(hessian, spread))


def _newton(gradient: np.ndarray, hessian: np.ndarray, damping: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The ascent step, in units of the prior's spread: uphill even where the curvature has the wrong sign."""
    scaled = hessian * spread[:, None] * spread
    values, vectors = np.linalg.eigh(scaled)
    values = np.maximum(np.abs(values), 1e-8) + damping[:, None] * np.maximum(np.abs(values).max(1, keepdims=True), 1.0)
    along = np.einsum("nji,nj->ni", vectors, gradient * spread)
    return np.einsum("nij,nj->ni", vectors, along / values) * spread


def _curvature(target: Target, points: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Minus the Hessian at each point, by central differences of the gradient."""
    n, d = points.shape
    shift = steps[:, :, None] * np.eye(d)
    both = np.concatenate([points[:, None] + shift, points[:, None] - shift]).reshape(-1, d)
    gradient = np.nan_to_num(target.differentiate(both)[1], posinf=0.0, neginf=0.0)
    up, down = gradient[: n * d].reshape(n, d, d), gradient[n * d :].reshape(n, d, d)
    hessian = -(up - down) / (2 * steps[:, :, None])
    return 0.5 * (hessian + hessian.transpose(0, 2, 1))


def _steps(hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """Steps for differences: a hundredth of the width of the mode, and no more than that of the prior."""
    curvature = np.abs(np.einsum("nii->ni", hessian))
    return 1e-2 / np.sqrt(np.maximum(curvature, 1 / spread**2))


def _positive(hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(hessian * spread[:, None] * spread)
    values = np.maximum(np.abs(values), _FLATTEST)
    return (vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1) / spread[:, None] / spread
