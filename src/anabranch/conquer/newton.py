"""Newton's method without gradients: derivatives are differences of the density.

For densities that few evaluations must do for: on the host before anything is compiled, and of programs that the
interpreter runs.
"""

import numpy as np

from anabranch.conquer.ascent import Modes, newton_step, positive, widths
from anabranch.conquer.target import Target

__all__ = ["newton", "newton_cost"]

_ITERATIONS = 6
"""Newton steps, at most."""


def newton_cost(dim: int) -> int:
    """Evaluations from each point."""
    return _ITERATIONS * (2 + 2 * dim + dim * (dim - 1) // 2)


def newton(target: Target, points: np.ndarray, scales: np.ndarray) -> tuple[Modes, bool]:
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
