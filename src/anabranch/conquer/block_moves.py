"""Moves of one whole block of exchangeable ones: a superfluous component of a mixture may be anywhere else.

A block has rows of coordinates, and a part of each simplex of weights. In a mixture of more components than clusters
some are nearly empty, and two may share a cluster; no small step leads from one such arrangement to another. Here block
i is drawn anew, its coordinates and its weight together, from a mixture of Student's t distributions that is fitted to
the blocks of the particles of the other half of the chains. Its weight w_i goes

    to all others     they keep their proportions, and the sum of all weights is one; or
    to a partner j    w_i + w_j = s is kept, and so are all other weights, as when a cluster is split or merged.

Let b = (coordinates, log w_i/(1 − w_i)) and g(b) the density of the mixture. The coordinates of a simplex have the
volume dx = Π dw / Π w, so that dx = db · (a factor that the first move does not change); for the second one it is
db · s (1 − w_i)/(s − w_i) · (another such factor). So the move from x to x' is accepted with the probability

    min(1, γ_β(x') g(b) J(x') / (γ_β(x) g(b') J(x))),     J = 1 or s (1 − w_i)/(s − w_i).

The blocks are then put back in order, if the density has one ordering only: it is the density of classes of points that
differ by a permutation, and the move treats all members of a class alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.random import Generator

from anabranch.conquer.mixture_fit import fit_to_points
from anabranch.conquer.population import broad
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.symmetry import Exchangeable, simplex_coordinates, simplex_parts

__all__ = ["BlockProposal", "Redrawn", "can_move"]

_MAX_FITTED = 1_500
"""Blocks to which a mixture is fitted; more make it slower, and hardly better."""
_BROAD = 0.2
"""The share of a component as wide as all blocks together."""
_LEAST = 1e-12
"""Weights nearer to zero or one are left alone: rounding would move the others."""


@dataclass(frozen=True)
class Redrawn:
    """Points with one block drawn anew, log g(b')/g(b) − log J(x')/J(x), and where the move is possible at all."""

    points: np.ndarray
    loss: np.ndarray
    possible: np.ndarray


def can_move(blocks: Exchangeable) -> bool:
    """Whether each family has a row for each block or a part for each, not both, as a matrix of transitions has."""
    return not any(family.by_row and family.by_part for family in blocks.families)


@dataclass(frozen=True)
class BlockProposal:
    """The distribution of the blocks of some points."""

    blocks: Exchangeable
    mixture: StudentMixture

    @classmethod
    def of(cls, blocks: Exchangeable, points: np.ndarray, rng: Generator) -> Self:
        """The distribution of all blocks of these points."""
        parts = _parts(blocks, points)
        every = np.concatenate([_features(blocks, points, parts, np.full(len(points), i)) for i in range(blocks.size)])
        every = every[np.isfinite(every).all(axis=1)]
        chosen = every[rng.permutation(len(every))[:_MAX_FITTED]]
        return cls(blocks, fit_to_points(chosen, rng).joined(broad(every), _BROAD))

    @classmethod
    def of_halves(
        cls, blocks: Exchangeable, halves: tuple[np.ndarray, np.ndarray], rng: Generator
    ) -> tuple[Self, Self]:
        """The distribution of the blocks of each half."""
        one, other = halves
        return cls.of(blocks, one, rng), cls.of(blocks, other, rng)

    def redrawn(self, points: np.ndarray, rng: Generator) -> Redrawn:
        """One block of each point drawn anew; its weight comes from a partner, or from all others."""
        n, rows = len(points), np.arange(len(points))
        chosen = rng.integers(self.blocks.size, size=n)
        partner = (chosen + rng.integers(1, self.blocks.size, size=n)) % self.blocks.size
        paired = rng.uniform(size=n) < 0.5
        parts, drawn = _parts(self.blocks, points), self.mixture.draw(n, rng)
        width = drawn.shape[1] - parts.shape[1]
        former = _features(self.blocks, points, parts, chosen)
        moved, new = points.copy(), parts.copy()
        moved[rows[:, None], _rows(self.blocks)[chosen]] = drawn[:, :width]
        here, total = parts[rows, :, chosen], parts[rows, :, chosen] + parts[rows, :, partner]
        there = 1 / (1 + np.exp(-drawn[:, width:]))
        with np.errstate(all="ignore"):
            shared = parts * ((1 - there) / (1 - here))[:, :, None]
            new = np.where(paired[:, None, None], parts, shared)
            new[rows, :, partner] = np.where(paired[:, None], total - there, new[rows, :, partner])
            new[rows, :, chosen] = there
            change = np.log((1 - there) / (total - there)) - np.log((1 - here) / (total - here))
            loss = self.mixture.log_density(drawn) - self.mixture.log_density(np.nan_to_num(former))
        possible = _are_inside(parts) & _are_inside(new)
        new = np.where(possible[:, None, None], new, 1 / self.blocks.size)
        for columns, each in zip(_simplexes(self.blocks), np.moveaxis(new, 1, 0), strict=True):
            moved[:, columns] = simplex_coordinates(each)
        change = np.where(paired[:, None] & possible[:, None], change, 0.0).sum(axis=1)
        return Redrawn(np.where(possible[:, None], moved, points), loss - change, possible)


def _are_inside(parts: np.ndarray) -> np.ndarray:
    return np.asarray(((parts > _LEAST) & (parts < 1 - _LEAST)).all(axis=(1, 2)))


def _rows(blocks: Exchangeable) -> np.ndarray:
    """The columns of the coordinates of each block, a row for each."""
    return np.concatenate([family.columns for family in blocks.families if not family.by_part], axis=1)


def _simplexes(blocks: Exchangeable) -> Sequence[np.ndarray]:
    """The columns of each simplex."""
    return [columns for family in blocks.families if family.by_part for columns in family.columns]


def _parts(blocks: Exchangeable, points: np.ndarray) -> np.ndarray:
    """The parts of each simplex: (points, simplexes, K)."""
    parts = [simplex_parts(points[:, columns]) for columns in _simplexes(blocks)]
    return np.stack(parts, axis=1) if parts else np.zeros((len(points), 0, blocks.size))


def _features(blocks: Exchangeable, points: np.ndarray, parts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The coordinates of one block of each point, and the log odds of its parts."""
    rows = np.arange(len(points))
    here = parts[rows, :, chosen]
    with np.errstate(all="ignore"):
        odds = np.log(here) - np.log1p(-here)
    return np.concatenate([points[rows[:, None], _rows(blocks)[chosen]], odds], axis=1)
