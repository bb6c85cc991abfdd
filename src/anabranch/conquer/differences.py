"""A quadratic function from its values at 1 + 2d + d(d − 1)/2 points: differences give its gradient and its Hessian.

f(s) = f(0) + gᵀs − ½ sᵀΛs:    g_i = (f(e_i) − f(−e_i))/2,    Λ_ii = 2f(0) − f(e_i) − f(−e_i),
                                Λ_ij = f(e_i) + f(e_j) − f(e_i + e_j) − f(0)
"""

from typing import NamedTuple

import numpy as np

__all__ = ["Quadratics", "difference_steps", "quadratics"]


class Quadratics(NamedTuple):
    """Quadratic functions, one for each row: the value at zero, the gradient g there, and the precision Λ."""

    top: np.ndarray
    gradient: np.ndarray
    precision: np.ndarray


def difference_steps(size: int) -> np.ndarray:
    """The points at which values of a function of so many coordinates are taken: zero, one step up or down in each, and
    one up in two of them."""
    units = np.eye(size)
    first, second = np.triu_indices(size, 1)
    return np.concatenate([np.zeros((1, size)), units, -units, units[first] + units[second]])


def quadratics(values: np.ndarray, size: int) -> Quadratics:
    """Quadratic functions of so many coordinates from their values at the steps, one in each row.

    Example:
        >>> steps = difference_steps(2)
        >>> values = 3 + steps @ [1, 2] - 0.5 * np.einsum("ni,ij,nj->n", steps, [[4, 1], [1, 5]], steps)
        >>> top, gradient, precision = quadratics(values[None], 2)
        >>> float(top[0]), gradient[0].tolist(), precision[0].tolist()
        (3.0, [1.0, 2.0], [[4.0, 1.0], [1.0, 5.0]])
    """
    top, up, down, both = np.split(values, [1, size + 1, 2 * size + 1], axis=1)
    first, second = np.triu_indices(size, 1)
    place = np.diag(np.arange(size))
    place[first, second] = place[second, first] = size + np.arange(len(first))
    mixed = up[:, first] + up[:, second] - both - top
    precision = np.concatenate([2 * top - up - down, mixed], axis=1)[:, place]
    return Quadratics(top[:, 0], (up - down) / 2, precision)
