"""Student-t proposals around a centre, for continuous and discrete coordinates.

The coordinates are independent: x = c + s t, where t has Student's distribution with ν degrees of freedom; discrete
coordinates are rounded. The density of a continuous coordinate and the mass of a discrete one are

    f(x) = t_ν((x − c)/s) / s,   P(x) = T_ν((x + ½ − c)/s) − T_ν((x − ½ − c)/s).

The tails are heavy because a site on an interval or on the positive numbers has exponential tails in unconstrained
coordinates: normal proposals would give weights of infinite variance.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln, stdtr

from anabranch.conquer.student import DF

__all__ = ["StudentKernel"]

_CONSTANT = gammaln((DF + 1) / 2) - gammaln(DF / 2) - 0.5 * np.log(DF * np.pi)


@dataclass(frozen=True)
class StudentKernel:
    """Scales of the coordinates (last axis), and which coordinates are discrete.

    The proposal is symmetric: the density of x around c is that of c around x.
    """

    scales: np.ndarray
    discrete: np.ndarray

    def draw(self, centres: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """A draw around each centre; centres and scales broadcast."""
        shape = np.broadcast_shapes(np.shape(centres), np.shape(self.scales))
        points = centres + self.scales * rng.standard_t(DF, shape)
        return np.where(self.discrete, np.rint(points), points)

    def log_densities(self, points: np.ndarray, centres: np.ndarray) -> np.ndarray:
        """The log density or mass of each coordinate; its sum over the last axis is that of the point."""
        distance, scales = np.broadcast_arrays(np.abs(points - centres), self.scales)
        logs = _CONSTANT - np.log(scales) - 0.5 * (DF + 1) * np.log1p((distance / scales) ** 2 / DF)
        if self.discrete.any():
            logs[..., self.discrete] = _log_cell(distance[..., self.discrete], scales[..., self.discrete])
        return logs


def _log_cell(distance: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """The log probability of the unit cell at this distance, by lower tails, which are accurate far out."""
    mass = stdtr(DF, (0.5 - distance) / scales) - stdtr(DF, (-0.5 - distance) / scales)
    with np.errstate(divide="ignore"):
        return np.log(mass)
