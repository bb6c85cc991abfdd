"""Probabilities of discrete variables by their conditional distributions, not by counting draws.

    p(z = v | data) = E[p(z = v | x, data)]

over draws of the other coordinates x of a path (Rao and Blackwell). Where z was summed out, p(z | x, data) is exact
(`Eliminated.conditionals`), and so is the probability of a path without other coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from anabranch.combine.parts import effective_draws
from anabranch.combine.solution import Solution
from anabranch.conquer.elimination import Eliminated, Elimination, eliminate
from anabranch.conquer.target import PathTarget
from anabranch.conquer.weights import systematic

__all__ = ["Share", "conditional_probabilities"]

_MAX_POINTS, _MIN_POINTS, _MAX_NUMBERS = 4_000, 200, 2**28
"""Draws over which conditional distributions are averaged: as many as have so many numbers in their tables."""
_WINDOWED = 200
"""Draws by which windows are chosen for variables with infinitely many values."""


class Share(NamedTuple):
    """The share of the mass of a path that has a value, and the Monte Carlo variance of that."""

    mean: float
    variance: float


def conditional_probabilities(solution: Solution) -> Mapping[int, Mapping[int, Share]]:
    """For each coordinate of a path that can be summed out the probability of each of its values."""
    points, weights = solution.points, solution.weights
    if not len(points):
        return {}
    rng = np.random.default_rng(0)
    some = points[systematic(weights, _WINDOWED, rng)]
    target = eliminate(PathTarget(solution.path), Elimination(max_enumerated=0), rng, some)
    if not isinstance(target, Eliminated):
        return {}
    per_draw = 1 / effective_draws(solution)
    n = min(_MAX_NUMBERS // max(sum(each.numbers for each in target.tables), 1), _MAX_POINTS)
    if len(points) > n and target.dim:
        if n < _MIN_POINTS:
            return {}  # their mean would have a larger error than the counts of all draws
        points = points[systematic(weights, n, rng)]
        weights = np.full(len(points), 1 / len(points))
        per_draw += 1 / len(points)  # the variance of resampling
    others, inverse = np.unique(points[:, target.columns], axis=0, return_inverse=True)
    shares = np.bincount(inverse.reshape(-1), weights, minlength=len(others))
    found = target.conditionals(others, list(target.values))
    out = {}
    for (column, values), each in zip(target.values.items(), found, strict=True):
        means = shares @ each
        variances = per_draw * (shares @ (each - means) ** 2)
        out[column] = {v: Share(*pair) for v, *pair in zip(values, means.tolist(), variances.tolist(), strict=True)}
    return out
