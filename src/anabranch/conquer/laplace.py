"""A first look at a path, on the host: Newton's method from the best of a few prior draws, without gradients.

A program may have thousands of paths, of which most have no mass: a glance costs a few hundred evaluations and no
compilation. It gives a mixture to start from (`ModeMixture.start_from`), whose weights are honest however rough it is.
"""

from __future__ import annotations

import numpy as np

from anabranch.conquer.ascent import Modes, distinct, newton_step, positive, widths
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState, mixture_on
from anabranch.conquer.population import broad, spread_out
from anabranch.conquer.symmetry import find_symmetries, fold
from anabranch.conquer.target import Target

__all__ = ["glance", "glance_cost"]

_DRAWS, _STARTS, _ITERATIONS = 32, 2, 6


def glance_cost(dim: int) -> int:
    """Evaluations that a glance needs before it can draw."""
    return _DRAWS + _STARTS * _ITERATIONS * (_stencil_size(dim) + 1)


def glance(target: Target, rng: np.random.Generator, strategy: ModeMixture) -> ModeMixtureState:
    """Where to start importance sampling, after a glance."""
    population = spread_out(target, _DRAWS, rng)
    log_density = target.evaluate(population).log_density
    inside = np.isfinite(log_density)
    if not inside.any():
        return ModeMixtureState(failed="no point of positive density was found to start from")
    population, log_density = population[inside], log_density[inside]
    defensive = broad(population)
    spread = defensive.spread
    modes, settled = _newton(target, population[distinct(population, log_density, spread, _STARTS)], spread)
    if not settled:
        return ModeMixtureState(failed="a glance was not enough to find a mode")
    symmetries = find_symmetries(target, population)
    if symmetries:
        symmetries = [each.with_best_key(modes.points, widths(modes.precision, spread)) for each in symmetries]
        modes, _ = _newton(target, fold(modes.points, symmetries), spread)
    return strategy.start_from(mixture_on(modes), defensive, symmetries)


def _newton(target: Target, points: np.ndarray, spread: np.ndarray) -> tuple[Modes, bool]:
    """Damped Newton steps from each point, derivatives by differences of the density itself; and whether they settled.

    They have if the step that would come next promises next to nothing, by the quadratic model, at the best point.
    """
    points, damping = points.copy(), np.full(len(points), 1e-3)
    steps = np.tile(0.05 * spread, (len(points), 1))
    value, gradient, hessian = _derivatives(target, points, steps)
    for _ in range(_ITERATIONS - 1):
        tried = points + newton_step(gradient, hessian, damping, spread)
        there = target.evaluate(tried).log_density
        better = there > value
        damping = np.where(better, damping / 10, damping * 10)
        if not better.any():
            continue
        points[better] = tried[better]
        steps[better] = widths(hessian[better], spread) * 0.05
        value[better], gradient[better], hessian[better] = _derivatives(target, points[better], steps[better])
    precision = positive(hessian, spread)
    best = int(np.argmax(value))
    promised = 0.5 * gradient[best] @ np.linalg.solve(precision[best], gradient[best])
    return Modes(points, value, precision), bool(promised < 0.5)


def _stencil_size(d: int) -> int:
    return 1 + 2 * d + d * (d - 1) // 2


def _derivatives(target: Target, points: np.ndarray, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value, gradient and minus the Hessian at each point; where the stencil leaves the path, as if it were flat."""
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
