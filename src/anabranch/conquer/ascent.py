"""From over-dispersed starts to modes: the paper's greedy start (appendix F), with gradients.

Many starts climb together by Adam, in units of the prior's spread, the lowest dropping out on the way; the distinct
best are then polished by Newton steps
with a damping that adapts (Levenberg and Marquardt), whose Hessians come from differences of the batched gradient, so
that nothing but the gradient is ever compiled.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from anabranch.conquer.target import Target

__all__ = [
    "Modes",
    "climb",
    "distinct",
    "newton_step",
    "polish",
    "positive",
    "race",
    "race_cost",
    "reflections",
    "widths",
]

_RATE, _DECAY = 0.3, 0.93
_RACE = ((1, 0.1), (1 / 2, 0.15), (1 / 8, 0.375), (1 / 16, 0.375))
"""The stages of a race: which part of the starts is still in it, and its part of the iterations."""
_LAST = 64
"""Climbers that go the whole way, if there are so many."""
_FEW = 20
"""Dimensions up to which pairs of signs are changed."""
_STEP = 1e-2
"""Steps for differences of the gradient, relative to the width of the mode."""
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
    climbers = _Climbers.at(target, starts)
    for _ in range(iterations):
        climbers.step(target, spread)
    return climbers.best, climbers.highest


def race(target: Target, starts: np.ndarray, spread: np.ndarray, iterations: int) -> tuple[np.ndarray, np.ndarray]:
    """Climb from many starts, of which only the highest go on from stage to stage; their best points and heights.

    Which of many modes a climb leads to shows early. On the sums of sines of function induction, a race finds the
    highest mode four times as often as climbs of equal length with as many evaluations.
    """
    climbers = _Climbers.at(target, starts)
    for number, steps in _stages(len(starts), iterations):
        climbers = climbers.leading(number)
        for _ in range(steps):
            climbers.step(target, spread)
    return climbers.best, climbers.highest


def race_cost(n: int, iterations: int) -> int:
    """Evaluations of a race of n starts."""
    return n + sum(number * steps for number, steps in _stages(n, iterations))


def _stages(n: int, iterations: int) -> list[tuple[int, int]]:
    """How many climb in each stage, and how many steps."""
    return [(min(n, max(int(part * n), _LAST)), round(length * iterations)) for part, length in _RACE]


@dataclass
class _Climbers:
    """Where each climber is, the best it has met, and the moments of Adam, arrays with one row for each."""

    points: np.ndarray
    gradient: np.ndarray
    best: np.ndarray
    highest: np.ndarray
    first: np.ndarray
    second: np.ndarray
    age: np.ndarray
    rate: np.ndarray

    @classmethod
    def at(cls, target: Target, starts: np.ndarray) -> _Climbers:
        evaluation, gradient = target.differentiate(starts)
        column = np.zeros((len(starts), 1))
        nothing = np.zeros_like(starts)
        return cls(
            starts, np.where(evaluation.inside[:, None], gradient, 0.0), starts.copy(), evaluation.log_density,
            nothing, nothing, column, column + _RATE,
        )  # fmt: skip

    def leading(self, n: int) -> _Climbers:
        """The n highest of them."""
        chosen = np.sort(np.argsort(-self.highest, kind="stable")[:n])
        return _Climbers(*(getattr(self, each.name)[chosen] for each in fields(self)))

    def step(self, target: Target, spread: np.ndarray) -> None:
        slope = self.gradient * spread
        self.age = self.age + 1
        self.first, self.second = 0.9 * self.first + 0.1 * slope, 0.99 * self.second + 0.01 * slope**2
        speed = (self.first / (1 - 0.9**self.age)) / (np.sqrt(self.second / (1 - 0.99**self.age)) + 1e-12)
        self.points = self.points + spread * self.rate * speed
        self.rate = self.rate * _DECAY
        evaluation, self.gradient = target.differentiate(self.points)
        better = evaluation.log_density > self.highest
        self.best = np.where(better[:, None], self.points, self.best)
        self.highest = np.where(better, evaluation.log_density, self.highest)
        lost = ~evaluation.inside[:, None]
        self.points, self.gradient = np.where(lost, self.best, self.points), np.where(lost, 0.0, self.gradient)
        self.rate = np.where(lost, self.rate / 2, self.rate)
        self.first, self.second, self.age = (np.where(lost, 0.0, each) for each in (self.first, self.second, self.age))


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


def reflections(points: np.ndarray) -> np.ndarray:
    """Each point with the sign of one coordinate or, unless they are many, of two coordinates changed.

    What enters a density only through products, squares or sines has modes that are mirror images of each other.
    """
    d = points.shape[1]
    one = 1.0 - 2.0 * np.eye(d)
    first, second = np.triu_indices(d, k=1)
    signs = np.concatenate([one, one[first] * one[second]]) if d <= _FEW else one
    return (points[:, None] * signs).reshape(-1, d)


def polish(target: Target, points: np.ndarray, spread: np.ndarray, iterations: int = 10) -> Modes:
    """Newton steps with adaptive damping from each point, all points together."""
    n = len(points)
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
        tried = points[active] + newton_step(gradient[active], hessian[active], damping[active], spread)
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
            steps[refresh] = _STEP * widths(hessian[refresh], spread)
            hessian[refresh] = _curvature(target, points[refresh], steps[refresh])
    hessian = _curvature(target, points, _STEP * widths(hessian, spread))
    return Modes(points, value, positive(hessian, spread))


def newton_step(gradient: np.ndarray, hessian: np.ndarray, damping: np.ndarray, spread: np.ndarray) -> np.ndarray:
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


def widths(hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The width of each mode along each coordinate, that of the prior at most."""
    curvature = np.abs(np.einsum("nii->ni", hessian))
    return 1 / np.sqrt(np.maximum(curvature, 1 / spread**2))


def positive(hessian: np.ndarray, spread: np.ndarray) -> np.ndarray:
    """The Hessians made positive definite, and no flatter than the prior allows."""
    values, vectors = np.linalg.eigh(hessian * spread[:, None] * spread)
    values = np.maximum(np.abs(values), _FLATTEST)
    return (vectors * values[:, None, :]) @ vectors.transpose(0, 2, 1) / spread[:, None] / spread
