"""How much mass is on modes that a mixture has no component for: by the ends of the climbs.

Climbs from many starts end at modes. Where each of them ends at another one, most modes have not been seen; where each
mode was met several times, hardly any is left (Good, 1953). With f_1 modes met by one climb, and f_2 met by two,

    f_1 (f_1 − 1) / (2 (f_2 + 1))

is an estimate of the number of those that none has met (Chao, 1984; the form without bias), rather too small. They are
taken to have the mean mass of those met once. To this comes the mass of modes that were met and have no component,
since a search may find more than it can use.

Two ends are at the same mode if the same component of the mixture explains them, and only a mode that no other explains
counts: without its component γ/q there would exceed all the weights that were drawn. So the components on a bent ridge,
of which one does for the other, are no modes, and a hill with one component has no unseen mass, however few climbs met
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anabranch.conquer.ascent import Modes
from anabranch.conquer.target import Target

__all__ = ["Ends", "Explained", "ends_at", "unseen_share"]

_MARGIN = 1.0
"""Nats above the largest weight from which on a point is not explained."""
_SAME = 0.05
"""The distance of two ends at the same mode, in units of the scales of the broad component, in each coordinate."""


class Ends(NamedTuple):
    """The ends of climbs that came near the highest, with their log density and log prior density, and the heights of
    the modes to which they lead."""

    points: np.ndarray
    log_density: np.ndarray
    log_prior: np.ndarray
    tops: np.ndarray


@dataclass(frozen=True)
class Explained:
    """What a mixture says of the ends.

    Attributes:
        log_ratio: log γ/q at each.
        without: the same, without the component that explains it most.
        component: this component.
        largest: the largest log weight of the draws.
    """

    log_ratio: np.ndarray
    without: np.ndarray
    component: np.ndarray
    largest: float

    @property
    def is_missed(self) -> np.ndarray:
        """Which ends no component explains."""
        return self.log_ratio > self.largest + _MARGIN

    @property
    def is_alone(self) -> np.ndarray:
        """Which ends a single component explains."""
        return ~self.is_missed & (self.without > self.largest + _MARGIN)


def ends_at(target: Target, points: np.ndarray, modes: Modes) -> Ends:
    """The ends at these points. A climb may have ended below the top: by the mean curvature of the modes known,
    a Newton step raises it by half of gᵀ H⁻¹ g, and no higher than the highest of them."""
    evaluation, gradient = target.differentiate(points)
    covariance = np.linalg.inv(modes.precision).mean(axis=0)
    gain = 0.5 * np.einsum("nd,de,ne->n", gradient, covariance, gradient)
    highest = np.maximum(evaluation.log_density, modes.log_density.max())
    tops = np.minimum(evaluation.log_density + np.nan_to_num(gain), highest)
    return Ends(points, evaluation.log_density, evaluation.log_prior, tops)


def unseen_share(ends: Ends, explained: Explained, shares: np.ndarray, scales: np.ndarray) -> float:
    """The mass on modes without a component, relative to that of the mixture, whose components have these shares.

    Example:
        >>> x = np.arange(6.0)[:, None]  # each end is at another mode, and the last of them has no component
        >>> ends, at = Ends(x, *np.zeros((3, 6))), np.arange(6) % 5
        >>> explained = Explained(np.where(x[:, 0] < 5, 0.0, 9.0), np.full(6, 9.0), at, 0.0)
        >>> round(unseen_share(ends, explained, np.full(5, 0.2), np.ones(1)), 6)  # 15 unseen modes, and one known
        3.2
    """
    missed, alone = explained.is_missed, explained.is_alone
    if not missed.any() and not alone.any():
        return 0.0
    tops, counts, are_missed = _modes(ends, explained, scales)
    heights = np.exp(tops - tops.max())
    of_alone = shares[np.unique(explained.component[alone])].sum() / shares.sum()
    known = heights[~are_missed].sum()
    masses = heights * (of_alone / known if known > 0 else 1 / len(shares))
    once, twice = counts == 1, counts == 2
    unseen = once.sum() * (once.sum() - 1) / (2 * (twice.sum() + 1))
    of_unseen = unseen * masses[once].mean() if once.any() else 0.0
    return float(masses[are_missed].sum() + of_unseen)


def _modes(ends: Ends, explained: Explained, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The height of each mode, how many ends are there, and whether it has no component."""
    groups = [explained.is_alone & (explained.component == j) for j in np.unique(explained.component)]
    groups = [group for group in groups if group.any()]
    number, left = len(groups), explained.is_missed.copy()
    while left.any():
        top = np.argmax(np.where(left, ends.tops, -np.inf))
        near = left & (np.abs((ends.points - ends.points[top]) / scales) <= _SAME).all(axis=1)
        groups.append(near)
        left &= ~near
    tops = np.array([ends.tops[group].max() for group in groups])
    counts = np.array([group.sum() for group in groups])
    return tops, counts, np.arange(len(groups)) >= number
