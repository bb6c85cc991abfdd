"""Whether the walkers over paths have come to where the mass is, or are still on their way.

A walk begins at the heaviest paths found, and a climb before it at the top of a hill; most of the mass may be far from
there, on paths that are light each. Let x be a number that each path has, as log Z_k. Over the steps that count, its
mean has the scatter se between the walkers, and moves by d from their first half to their second: by chance with the
scatter sd(d), and by more while walkers are on their way. With its variance σ² over all these steps,

    n_x = σ² / (se² + b²),    b² = (2 d)² where |d| > 3 sd(d), else max(d² − sd(d)², 0),

is the effective number of steps: walkers that are on their way go on. The least of several x counts. (The idea is that
of R̂ with split chains, for many short chains with one start: what all of them have in common does not average out.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from anabranch.allocate import PathRecord

__all__ = ["effective_steps", "features_of"]


def features_of(records: Mapping[int, PathRecord], steps: np.ndarray) -> list[np.ndarray]:
    """Numbers of the paths at which walkers were, in the shape of the steps: log Z_k, log p_k, and the dimensions."""
    numbers, where = np.unique(steps, return_inverse=True)
    paths = [records[int(number)] for number in numbers]
    columns = (
        [record.log_evidence for record in paths],
        [record.path.log_prior_probability for record in paths],
        [float(record.path.dim) for record in paths],
    )
    return [np.array(column)[where].reshape(steps.shape) for column in columns]


def effective_steps(features: Sequence[np.ndarray]) -> float:
    """The least n_x, of features with a row for each step and a column for each walker; infinite if none varies."""
    return min(map(_effective, features), default=np.inf)


def _effective(x: np.ndarray) -> float:
    variance, walkers = float(x.var()), x.shape[1]
    if not np.isfinite(variance) or variance <= 0:
        return np.inf
    half = len(x) // 2
    moves = x[half:].mean(axis=0) - x[:half].mean(axis=0)
    scatter, by_chance = (each.var(ddof=1) / walkers for each in (x.mean(axis=0), moves))
    square = float(moves.mean()) ** 2
    drift = 4 * square if square > 9 * by_chance else max(square - by_chance, 0.0)
    return float(variance / max(scatter + drift, 1e-300))
