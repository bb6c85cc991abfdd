"""Steps and proposals around a centre, for real and for whole numbers.

Each coordinate is independent: x = c + s t with t of Student's distribution with ν degrees of freedom, and where the
coordinate holds whole numbers, x is rounded. The density of a real coordinate and the mass of a whole one are

    f(x) = t_ν((x − c)/s) / s,   P(x) = T_ν((x + ½ − c)/s) − T_ν((x − ½ − c)/s).

The tails are heavier than those of a normal distribution, because a site on an interval or on the positive numbers has
exponential tails in unconstrained coordinates: normal proposals would give it weights of infinite variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, stdtr

__all__ = ["StudentKernel"]

FREEDOM = 5.0
_CONSTANT = gammaln((FREEDOM + 1) / 2) - gammaln(FREEDOM / 2) - 0.5 * np.log(FREEDOM * np.pi)


@dataclass(frozen=True)
class StudentKernel:
    """Scales, one for each coordinate (last axis), and which coordinates hold whole numbers.

    Between whole centres and real ones alike the step is symmetric: the density of x around c is that of c around x.

    Example:
        >>> kernel = StudentKernel(scales=np.array([1.0, 2.0]), discrete=np.array([False, True]))
        >>> kernel.draw(np.array([0.5, 3.0]), np.random.default_rng(0)).round(3)
        array([0.641, 3.   ])
        >>> kernel.log_densities(np.array([0.5, 4.0]), np.array([0.5, 3.0])).round(3)
        array([-0.969, -1.816])
    """

    scales: np.ndarray
    discrete: np.ndarray

    def draw(self, centres: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A draw around each centre; centres and scales broadcast."""
        shape = np.broadcast_shapes(np.shape(centres), np.shape(self.scales))
        points = centres + self.scales * rng.standard_t(FREEDOM, shape)
        return np.where(self.discrete, np.rint(points), points)

    def log_densities(self, points: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """The log density or mass of each coordinate: the sum over the last axis is that of the point."""
        distance, scales = np.broadcast_arrays(np.abs(points - centres), self.scales)
        logs = _CONSTANT - np.log(scales) - 0.5 * (FREEDOM + 1) * np.log1p((distance / scales) ** 2 / FREEDOM)
        if self.discrete.any():
            logs[..., self.discrete] = _log_cell(distance[..., self.discrete], scales[..., self.discrete])
        return logs


def _log_cell(distance: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The log probability of the unit cell at this distance: by lower tails, which stay accurate far out."""
    mass = stdtr(FREEDOM, (0.5 - distance) / scales) - stdtr(FREEDOM, (-0.5 - distance) / scales)
    with np.errstate(divide="ignore"):
        return np.log(mass)
