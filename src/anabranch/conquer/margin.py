"""The distribution of one coordinate of some points, from which it is drawn anew: a histogram, and a wide tail.

The bins have the same number of points each, so that they are narrow where the points are dense. A part of the draws
has Student's distribution with three degrees of freedom, as wide as the points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

__all__ = ["Margin"]

_BINS, _POINTS = 40, 5
"""Bins at most, and points in a bin at least."""
_TAIL, _DF = 0.3, 3.0
"""The share of the tail, and its degrees of freedom."""
_CONSTANT = np.log(2) - np.log(np.pi) - 0.5 * np.log(_DF)
"""log of the density of the tail at its centre, times its scale."""


@dataclass(frozen=True)
class Margin:
    """The edges of the bins, and the centre and the scale of the tail.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> margin = Margin.of(rng.standard_normal(1_000))
        >>> x = np.linspace(-500, 500, 1_000_001)
        >>> round(float(np.exp(margin.log_density(x)).sum() * 1e-3), 2)
        1.0
        >>> bool(0.9 < margin.draw(10_000, rng).std() < 2.0)
        True
    """

    edges: np.ndarray
    centre: float
    scale: float

    @classmethod
    def of(cls, values: np.ndarray) -> Margin:
        """The distribution of these values."""
        bins = int(np.clip(len(values) // _POINTS, 1, _BINS))
        edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)))
        scale = float(values.std())
        edges = edges if len(edges) > 1 else edges[0] + np.array([-1.0, 1.0])
        return cls(edges, float(np.median(values)), scale if scale > 0 else 1.0)

    def draw(self, n: int, rng: Generator) -> np.ndarray:
        """Independent draws."""
        bins = rng.integers(len(self.edges) - 1, size=n)
        inside = self.edges[bins] + rng.uniform(size=n) * np.diff(self.edges)[bins]
        return np.where(rng.uniform(size=n) < _TAIL, self.centre + self.scale * rng.standard_t(_DF, n), inside)

    def log_density(self, x: np.ndarray) -> np.ndarray:
        """The log density of the draws."""
        bins = np.searchsorted(self.edges, x, side="right") - 1
        last = len(self.edges) - 2
        height = (1 - _TAIL) / ((last + 1) * np.diff(self.edges)[np.clip(bins, 0, last)])
        distance = (x - self.centre) / self.scale
        tail = _TAIL / self.scale * np.exp(_CONSTANT - (_DF + 1) / 2 * np.log1p(distance**2 / _DF))
        return np.log(np.where((bins >= 0) & (bins <= last), height, 0.0) + tail)
