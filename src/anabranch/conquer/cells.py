"""Cells with Gauss-Legendre nodes: the mass of each, the polynomial through values at its nodes, and draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.weights import systematic

__all__ = ["LOWEST", "Cells", "Draws", "Rule", "drawn"]

LOWEST = 1_000.0
"""Nats below the largest value of a cell from which on a density is as good as zero."""


@dataclass(frozen=True)
class Cells:
    """Boxes with the log density and the log prior at the nodes of each, (cells, nodes)."""

    low: np.ndarray
    high: np.ndarray
    logs: np.ndarray
    priors: np.ndarray

    @property
    def log_volumes(self) -> np.ndarray:
        return np.log(self.high - self.low).sum(axis=1)

    def log_masses(self, log_weights: np.ndarray) -> np.ndarray:
        """log ∫ γ over each cell."""
        return logsumexp(self.logs + log_weights, axis=1) + self.log_volumes

    def take(self, chosen: np.ndarray) -> Cells:
        return Cells(self.low[chosen], self.high[chosen], self.logs[chosen], self.priors[chosen])

    def join(self, *others: Cells) -> Cells:
        parts = [self, *others]
        return Cells(*(np.concatenate([getattr(p, name) for p in parts]) for name in ("low", "high", "logs", "priors")))


class Rule:
    """A product Gauss-Legendre rule on the unit box."""

    def __init__(self, order: int, dim: int) -> None:
        nodes, weights = np.polynomial.legendre.leggauss(order if dim == 1 else max(2 * order // 3, 2))
        self.along, self.dim = (nodes + 1) / 2, dim
        self.nodes = np.stack(np.meshgrid(*[self.along] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
        log_weights = np.log(weights / 2)
        self.log_weights = np.stack(np.meshgrid(*[log_weights] * dim, indexing="ij"), axis=-1).sum(axis=-1).ravel()
        apart = self.along[:, None] - self.along + np.eye(len(nodes))
        self._barycentric = 1 / apart.prod(axis=1)

    def interpolated(self, values: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The polynomial through the values at the nodes, rows, at a place in the unit box for each row."""
        values = np.maximum(values, values.max(axis=1, initial=-np.inf, keepdims=True) - LOWEST)
        values = values.reshape(len(values), *[len(self.along)] * self.dim)
        for axis in range(self.dim):
            away = place[:, axis, None] - self.along
            basis = self._barycentric / np.where(away == 0, 1e-300, away)
            basis /= basis.sum(axis=1, keepdims=True)
            values = np.einsum("nk,nk...->n...", basis, values)
        return values


class Draws(NamedTuple):
    """Points, the log density at each by interpolation, and that of the distribution that they are drawn from."""

    points: np.ndarray
    log_density: np.ndarray
    log_q: np.ndarray


def drawn(cells: Cells, rule: Rule, n: int, rng: Generator) -> Draws:
    """Points that are uniform within cells chosen by their mass."""
    masses = cells.log_masses(rule.log_weights)
    share = np.exp(masses - logsumexp(masses))
    chosen = systematic(share, n, rng)
    place = rng.random((n, cells.low.shape[1]))
    width = cells.high[chosen] - cells.low[chosen]
    log_q = np.log(share[chosen]) - np.log(width).sum(axis=1)
    return Draws(cells.low[chosen] + width * place, rule.interpolated(cells.logs[chosen], place), log_q)
