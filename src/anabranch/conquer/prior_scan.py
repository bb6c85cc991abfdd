"""A scan of the prior for modes that climbs have missed.

A narrow mode has a small basin, and climbs from a few hundred starts miss it. Many draws of the prior cost one
evaluation each, and the topographical method (Törn and Viitanen, 1992) chooses among them where to climb: at those that
are higher than all their nearest neighbours. There are few of these, and in a basin with some draws there is one. The
draws with the largest likelihood climb the likelihood first: at the foot of a spike it rises, by its last digits even,
where the density still falls with the prior.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from anabranch.conquer.ascent import climb_likelihood
from anabranch.conquer.jumps import is_climbable
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.population import coordinate_sd
from anabranch.conquer.second_opinion import CLIMB, climbed
from anabranch.conquer.symmetry import fold
from anabranch.conquer.target import Target

__all__ = ["scanned", "summits"]

_MAX_DRAWS = 40_000
"""Draws of a scan; more find modes with smaller basins, and take time."""
_MAX_DIM = 10
"""Dimensions up to which the nearest of so many draws say something of a point."""
_MAX_CLIMBS = 256
"""Draws that climb."""
_MAX_LIKELY = 64
"""Draws with the largest likelihood that climb."""
_FIRST_NEIGHBOURS = 3
"""Nearest neighbours by which most draws are dismissed."""


def scanned(
    target: Target, modes: ModeMixture, state: ModeMixtureState, rng: Generator, evaluations: int
) -> tuple[ModeMixtureState, int]:
    """The state with the modes that its proposal misses and that a scan with at most about so many evaluations finds;
    and the number of draws."""
    if target.dim > _MAX_DIM or target.path.interpreted or not is_climbable(target):
        return state, 0
    draws = target.prior(min(evaluations - evaluations // 4, _MAX_DRAWS), rng).points
    if len(draws) <= 2 * _neighbours(target.dim):
        return state, len(draws)
    points = fold(draws, state.symmetries)
    evaluation, climbs = target.evaluate(points), min(_MAX_CLIMBS, evaluations // (4 * CLIMB) + 1)
    likelihood = np.where(evaluation.inside, evaluation.log_likelihood, -np.inf)
    likely = np.argsort(-likelihood, kind="stable")[: min(_MAX_LIKELY, climbs // 4)]
    high = summits(points, evaluation.log_density)[: climbs - len(likely)]
    lifted = climb_likelihood(target, points[likely], 0.3 * state.parts[1].scales, CLIMB)
    starts = np.concatenate([lifted, points[high]])
    return climbed(target, modes, state, starts, evaluations // 4)[0], len(draws)


def summits(points: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """The points that are higher than all their nearest neighbours, the highest first.

    Example:
        >>> x = np.linspace(-3.0, 3.0, 601)[:, None]
        >>> two_modes = np.logaddexp(-((x[:, 0] - 1.0) ** 2), -100.0 * (x[:, 0] + 2.0) ** 2)
        >>> x[summits(x, two_modes)].ravel().round(2).tolist()
        [-2.0, 1.0]
    """
    finite = np.flatnonzero(np.isfinite(heights))
    if len(finite) <= _FIRST_NEIGHBOURS:
        return finite[np.argsort(-heights[finite], kind="stable")]
    scaled = points[finite] / coordinate_sd(points[finite])
    from scipy.spatial import KDTree  # slow to import, and not needed by every run

    tree, left = KDTree(scaled), np.arange(len(finite))
    for neighbours in (_FIRST_NEIGHBOURS, _neighbours(points.shape[1])):
        _, nearest = tree.query(scaled[left], min(neighbours + 1, len(finite)))
        own = heights[finite[left]]
        left = left[(heights[finite[nearest]] <= own[:, None]).all(axis=1)]
    chosen = finite[left]
    return chosen[np.argsort(-heights[chosen], kind="stable")]


def _neighbours(dim: int) -> int:
    """More leave fewer summits, and lose those of basins with few draws."""
    return 2 * dim + 2
