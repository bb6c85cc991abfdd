"""The search for modes: a race of climbs, the mirror images of the best ends, and Newton steps to the tops.

Most ends of a race lie on the same few hills, and not at the top yet. So the highest go to the top first, a few at a
time, and those of the others that lie on the hill of a mode found (`on_hills`) need not: the evaluations go to hills
that are new. A mode of a lower hill is found where before all evaluations went to one hill, and the ends say how many
modes there are, and how many of them are still unknown (`unseen_modes`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from anabranch.conquer.ascent import Modes, distinct, polish, race, race_cost, reflections, widths
from anabranch.conquer.symmetry import Exchangeable, fold
from anabranch.conquer.target import Target
from anabranch.limits import LimitReached

__all__ = ["Found", "ModeSearch", "folded", "joined", "on_hills", "starts_among"]

_MAX_MIRRORED = 8
"""Ends of climbs whose mirror images are evaluated."""
_MAX_BEST = 16
"""Starts that are the best points known; the others are random."""
_BATCH = 4
"""Ends that go to the top at a time; as many as modes are known while others are found."""
_TOLERANCE, _ROUNDING = 0.2, 0.05
"""By how much the height of an end may differ from that of a quadratic hill: relative to the drop, and in nats."""
_MAX_DROP = 30.0
"""Nats below the top down to which hills are looked at."""


class Found(NamedTuple):
    """The modes, and the ends of the climbs that led to them with their heights."""

    modes: Modes
    ends: np.ndarray
    heights: np.ndarray


@dataclass(frozen=True)
class ModeSearch:
    """A search: climbs at most, steps of each, nats below the best that count, and modes at most."""

    starts: int
    iterations: int
    depth: float
    max_modes: int

    def number_of_starts(self, evaluations: int) -> int:
        """The largest number of starts whose race takes at most so many evaluations."""
        possible = range(5, self.starts + 1)
        return 4 + bisect_right(possible, evaluations, key=lambda n: race_cost(n, self.iterations))

    def run(self, target: Target, starts: np.ndarray, scales: np.ndarray, evaluations: int) -> Found:
        """The distinct modes that climbs lead to, as many as a quarter of the evaluations allow."""
        ends, tops = race(target, starts, scales, self.iterations)
        points, heights = self._mirrored(target, ends, tops, scales, evaluations // 10)
        most = int(np.clip(evaluations // 4 // (10 * target.dim + 10), 1, self.max_modes))
        near = np.where(heights > heights.max() - 2 * self.depth, heights, -np.inf)
        return Found(_tops(target, points, near, scales, most, evaluations // 10), ends, tops)

    def _mirrored(
        self, target: Target, points: np.ndarray, heights: np.ndarray, scales: np.ndarray, evaluations: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The points, and mirror images of the highest that are about as high; twice, for images of images."""
        number = int(np.clip(evaluations // (2 * len(reflections(points[:1]))), 1, _MAX_MIRRORED))
        for _ in range(2):
            images = reflections(points[distinct(points, heights, scales, number)])
            there = target.evaluate(images).log_density
            high = there > heights.max() - self.depth
            points, heights = np.concatenate([points, images[high]]), np.concatenate([heights, there[high]])
        return points, heights


def _tops(
    target: Target, points: np.ndarray, heights: np.ndarray, scales: np.ndarray, most: int, evaluations: int
) -> Modes:
    """The modes to whose tops Newton's method comes from at most so many of the points, on as many hills; once it has
    taken so many evaluations, only as long as it finds other modes."""
    modes, is_new, enough = None, True, target.evaluations + evaluations
    while np.isfinite(heights).any() and (modes is None or len(modes) < most):
        if not is_new and target.evaluations > enough:
            break
        known = 0 if modes is None else len(modes)
        n = min(max(known, _BATCH) if is_new else _BATCH, most - known)
        chosen = distinct(points, heights, scales, n)
        try:
            found = polish(target, points[chosen], scales)
        except LimitReached:
            if modes is None:
                raise
            break
        is_new = modes is None or not on_hills(found.points, found.log_density, modes).all()
        modes = found if modes is None else joined(modes, found)
        heights = np.where(on_hills(points, heights, found), -np.inf, heights)
        heights[chosen] = -np.inf
    assert modes is not None
    return modes


def joined(one: Modes, other: Modes) -> Modes:
    """The modes of both."""
    return Modes(
        np.concatenate([one.points, other.points]),
        np.concatenate([one.log_density, other.log_density]),
        np.concatenate([one.precision, other.precision]),
    )


def on_hills(points: np.ndarray, heights: np.ndarray, modes: Modes) -> np.ndarray:
    """Which points with these heights lie on the hill of one of the modes: they are as far below its top as its
    curvature says."""
    found = np.zeros(len(points), bool)
    for mode, top, precision in zip(modes.points, modes.log_density, modes.precision, strict=True):
        away = points - mode
        expected = 0.5 * np.einsum("nd,de,ne->n", away, precision, away)
        difference = np.abs(top - heights - expected)
        found |= (expected < _MAX_DROP) & (difference < _TOLERANCE * expected + _ROUNDING)
    return found


def starts_among(population: np.ndarray, log_density: np.ndarray, n: int, rng: Generator) -> np.ndarray:
    """Some of the best of the population, then random ones of it, two in three moved away from its median."""
    best = population[np.argsort(-log_density, kind="stable")[: min(n // 2, _MAX_BEST)]]
    others = population[rng.integers(len(population), size=n - len(best))]
    centre = np.median(population, axis=0)
    factor = np.where(np.arange(len(others)) % 3 == 0, 1.0, rng.uniform(1.5, 3.5, len(others)))
    return np.concatenate([best, centre + factor[:, None] * (others - centre)])


def folded(
    target: Target, modes: Modes, symmetries: Sequence[Exchangeable], scales: np.ndarray
) -> tuple[Modes, list[Exchangeable]]:
    """The modes in one order, by the key that separates their components best.

    They are polished again, since a fold may change the curvature (in the coordinates of a simplex).
    """
    symmetries = [each.with_best_key(modes.points, widths(modes.precision, scales)) for each in symmetries]
    points = fold(modes.points, symmetries)
    chosen = distinct(points, modes.log_density, scales, len(points))
    return polish(target, points[chosen], scales), symmetries
