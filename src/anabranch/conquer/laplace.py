"""A Laplace estimate of a path, on the host: Newton's method from the best of a few prior draws, without gradients.

Most paths of a large program have no mass: a Laplace estimate takes a few hundred evaluations and no compilation. The
curvature at the modes gives a mixture for importance sampling (`ModeMixture`), which corrects its errors.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from anabranch.conquer.ascent import Modes, distinct, newton_step, positive, widths
from anabranch.conquer.mixture_fit import fit_to_modes
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.population import broad, log_prior_mass, overdispersed_points
from anabranch.conquer.symmetry import find_symmetries, fold
from anabranch.conquer.target import Target
from anabranch.settings import check, whole

__all__ = ["Laplace", "laplace_cost", "laplace_start"]

_POPULATION, _STARTS, _ITERATIONS = 32, 2, 6
"""Prior draws, those of them from which Newton's method starts, and its iterations."""


@dataclass(frozen=True)
class Laplace:
    """When `Auto` makes do with a Laplace estimate.

    Args:
        below: evaluations of the first visit below which it is made; above, modes are found by compiled gradients.
        max_dim: dimensions up to which it is made; its cost grows with their square.
        draws: importance draws at the modes that it finds.
        attempts: at a path, if the first finds no mode, before more is spent.
        max_spent: evaluations of all visits up to which it suffices.
    """

    below: int = 2_500
    max_dim: int = 8
    draws: int = 200
    attempts: int = 2
    max_spent: int = 10_000

    def __post_init__(self) -> None:
        check(self, below=whole(), max_dim=whole(), draws=whole(1), attempts=whole(), max_spent=whole())

    def fits(self, target: Target, left: int) -> bool:
        """Whether the evaluations left suffice for an estimate of this target."""
        return target.dim <= self.max_dim and laplace_cost(target.dim) < max(0.75 * left, 2 * self.draws)


def laplace_cost(dim: int) -> int:
    """Evaluations of Newton's method, before the first importance draw."""
    return _POPULATION + _STARTS * _ITERATIONS * (2 + 2 * dim + dim * (dim - 1) // 2)


def laplace_start(target: Target, rng: Generator, strategy: ModeMixture) -> ModeMixtureState:
    """The state from which importance sampling starts, at the modes that Newton's method finds."""
    population = overdispersed_points(target, _POPULATION, rng)
    log_density = target.evaluate(population).log_density
    inside = np.isfinite(log_density)
    if not inside.any():
        return ModeMixtureState(failed="no point of positive density was found to start from")
    population, log_density = population[inside], log_density[inside]
    wide = broad(population)
    scales = wide.scales
    modes, converged = _newton(target, population[distinct(population, log_density, scales, _STARTS)], scales)
    if not converged:
        return ModeMixtureState(failed="Newton's method did not converge to a mode")
    symmetries = find_symmetries(target, population)
    if symmetries:
        symmetries = [each.with_best_key(modes.points, widths(modes.precision, scales)) for each in symmetries]
        modes, _ = _newton(target, fold(modes.points, symmetries), scales)
    mixture = fit_to_modes(modes, strategy.depth)
    return ModeMixtureState(mixture, wide, tuple(symmetries), log_prior_mass(target, rng))


def _newton(target: Target, points: np.ndarray, scales: np.ndarray) -> tuple[Modes, bool]:
    """Damped Newton steps from each point, with derivatives by differences of the density; and whether they converged.

    They have if the quadratic model at the best point promises less than half a nat of the next step.
    """
    points, damping = points.copy(), np.full(len(points), 1e-3)
    steps = np.tile(0.05 * scales, (len(points), 1))
    value, gradient, hessian = _derivatives(target, points, steps)
    for _ in range(_ITERATIONS - 1):
        tried = points + newton_step(gradient, hessian, damping, scales)
        there = target.evaluate(tried).log_density
        better = there > value
        damping = np.where(better, damping / 10, damping * 10)
        if not better.any():
            continue
        points[better] = tried[better]
        steps[better] = widths(hessian[better], scales) * 0.05
        value[better], gradient[better], hessian[better] = _derivatives(target, points[better], steps[better])
    precision = positive(hessian, scales)
    best = int(np.argmax(value))
    promised = 0.5 * gradient[best] @ np.linalg.solve(precision[best], gradient[best])
    return Modes(points, value, precision), bool(promised < 0.5)


def _derivatives(target: Target, points: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, gradient and minus the Hessian at each point; outside the path the density counts as flat."""
    n, d = points.shape
    first, second = np.triu_indices(d, k=1)
    shift = np.eye(d)
    stencil = np.concatenate([np.zeros((1, d)), shift, -shift, shift[first] + shift[second]])
    values = target.evaluate((points[:, None] + stencil * steps[:, None]).reshape(-1, d)).log_density
    values = values.reshape(n, -1)
    middle = values[:, :1]
    values = np.where(np.isfinite(values), values, middle)
    up, down, both = np.split(values[:, 1:], [d, 2 * d], axis=1)
    gradient = (up - down) / (2 * steps)
    hessian = np.empty((n, d, d))
    hessian[:, range(d), range(d)] = -(up + down - 2 * middle) / steps**2
    cross = -(both - up[:, first] - up[:, second] + middle) / (steps[:, first] * steps[:, second])
    hessian[:, first, second] = hessian[:, second, first] = cross
    return middle[:, 0], gradient, hessian
