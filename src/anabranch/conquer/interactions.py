"""Which discrete coordinates of a density interact, found by evaluating it.

Coordinates i and j do not interact if

    γ(z_i, z_j) γ(z_i', z_j') = γ(z_i', z_j) γ(z_i, z_j')

for prior and density alike, with the others held, at points from the prior. Coordinates on which a guard depends always
count as interacting. Coordinates that interact, directly or through others, form a group.
"""

from collections.abc import Sequence

import numpy as np
from numpy.random import Generator
from scipy.sparse.csgraph import connected_components

from anabranch.conquer.target import Target
from anabranch.divide import guarded

__all__ = ["agree", "distinct_rows", "find_groups", "max_rows", "probe_points", "references"]

_MAX_ROWS, _MAX_NUMBERS = 65_536, 2**23
"""Rows that are evaluated at once, and the numbers in them: 64 MiB."""
_PROBES, _CHECKS = 6, 48
"""Points at which pairs are tested, and at which the groups are then checked as a whole."""


def max_rows(target: Target) -> int:
    """The number of points of the target that are evaluated at once."""
    return max(1, min(_MAX_ROWS, _MAX_NUMBERS // max(target.dim, 1)))


def probe_points(target: Target, rng: Generator) -> np.ndarray:
    """Points of positive density, from the prior and from the executions that found the path."""
    points = np.concatenate([target.known[:_PROBES], target.prior(_CHECKS, rng).points])
    return points[target.evaluate(points).log_density > -np.inf] if len(points) else points


def references(target: Target, columns: np.ndarray, probes: np.ndarray) -> np.ndarray:
    """Values of z from the probes, first some with positive density at every probe; none if there are no such.

    Where the support of z depends on the other coordinates there may be none, and groups cannot be summed one by one.
    """
    candidates = distinct_rows(probes[:_PROBES, columns])
    for number, values in enumerate(candidates):
        rows = probes.copy()
        rows[:, columns] = values
        if (target.evaluate(rows).log_density > -np.inf).all():
            return np.roll(candidates, -number, axis=0)
    return candidates[:0]


def find_groups(
    target: Target, columns: np.ndarray, values: Sequence[range], probes: np.ndarray, rng: Generator
) -> list[np.ndarray]:
    """The groups of the columns with these values, as positions in `columns`, tested at a few of the probes."""
    m = len(columns)
    first, second = np.triu_indices(m, 1)
    of_guards = guarded(target.path)[columns]
    interact = of_guards[:, None] & of_guards
    for probe in probes[:_PROBES]:
        other = _other_values(probe[columns], values, rng)
        rows = np.tile(probe, (1 + m, 1))
        rows[1 + np.arange(m), columns] = other
        alone = _logs(target, rows)
        for start in range(0, len(first), max_rows(target)):
            i, j = (each[start : start + max_rows(target)] for each in (first, second))
            rows, numbers = np.tile(probe, (len(i), 1)), np.arange(len(i))
            rows[numbers, columns[i]], rows[numbers, columns[j]] = other[i], other[j]
            for logs, single in zip(_logs(target, rows), alone, strict=True):
                interact[i, j] |= ~agree(single[0] + logs, single[1 + i] + single[1 + j])
    count, labels = connected_components(interact, directed=False)
    return [np.flatnonzero(labels == label) for label in range(count)]


def _logs(target: Target, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The log density and the log prior."""
    evaluation = target.evaluate(rows)
    return evaluation.log_density, np.where(evaluation.inside, evaluation.log_prior, -np.inf)


def _other_values(current: np.ndarray, values: Sequence[range], rng: Generator) -> np.ndarray:
    """For each coordinate a value other than the current one, if there is one."""
    sizes = np.array([len(each) for each in values])
    starts = np.array([each.start for each in values])
    return starts + (current - starts + rng.integers(1, np.maximum(sizes, 2))) % sizes


def agree(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether logarithms are equal up to rounding; infinite ones must be the same."""
    finite = np.isfinite(one) & np.isfinite(other)
    a, b = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    near = np.abs(a - b) <= 1e-6 + 1e-9 * (np.abs(a) + np.abs(b))
    return np.where(finite, near, one == other)


def distinct_rows(rows: np.ndarray) -> np.ndarray:
    """The rows without repetition, in the order in which they first occur."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
