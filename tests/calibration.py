"""Whether standard errors are right: z-scores of many runs, pooled, and held to bounds that chance seldom exceeds.

The error of a good estimate, in units of the standard error that it states, is a standard normal number. Over the n
runs of a pool, Σz² is then a χ² number with n degrees of freedom, and the mean of z is normal with standard deviation
1/√n: quantiles of these are the bounds, with `SLACK` for standard errors that are only nearly right. The pool is held
to them, and each of its parts as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

__all__ = ["FALSE_ALARMS", "MAX_POOLS", "MIN_SCORES", "SLACK", "Bounds", "bounds", "check_calibrated", "z_scores"]

FALSE_ALARMS = 9e-4
"""The probability that any pool of the tests fails although all of its standard errors are right."""
MAX_POOLS = 20
"""The pools, at most; each has the same share of the false alarms."""
SLACK = 1.05
"""The factor by which a standard error may be wrong: it is an estimate itself, and larger where that is in doubt."""
MIN_SCORES = 400
"""Of a pool that sees a standard error that is wrong by 30 % nine times of ten, and a bias of half a standard error
nearly always."""


class Bounds(NamedTuple):
    """What the mean square and the absolute mean of n z-scores exceed with a given probability."""

    low: float
    high: float
    mean: float


def bounds(n: int, level: float) -> Bounds:
    """A quarter of the probability for each end of the mean square, half for the mean."""
    square = stats.chi2(n)
    mean = stats.norm.isf(level / 4) / np.sqrt(n)
    return Bounds(square.ppf(level / 4) / n / SLACK**2, square.isf(level / 4) / n * SLACK**2, mean * SLACK)


def z_scores(estimates: Iterable[Any], exact: float) -> np.ndarray:
    """Of log evidences: of `Estimate`s or of `Posterior`s."""
    return np.array([(each.log_evidence - exact) / each.log_evidence_sd for each in estimates])


def check_calibrated(parts: Mapping[str, Any], *, of: int = 1, min_scores: int = MIN_SCORES) -> None:
    """Fail unless the z-scores of the parts, together and each by itself, are those of right standard errors.

    Runs of one pool should have different random numbers. Several quantities of the same runs are a pool each, `of` so
    many, which together count as one. With fewer than `MIN_SCORES` a pool sees less, and cries wolf as seldom.
    """
    scores = {name: np.ravel(z) for name, z in parts.items()}
    pooled = np.concatenate(list(scores.values()))
    assert len(pooled) >= min_scores
    level = FALSE_ALARMS / MAX_POOLS / of / 2
    wrong = []
    for name, z, part in [("all", pooled, level)] + [(k, z, level / len(scores)) for k, z in scores.items()]:
        low, high, mean = bounds(len(z), part)
        square = np.mean(z**2)
        report = f"{name}: of {len(z)} z-scores the mean is {z.mean():.3f}, the mean square {square:.3f}"
        if not low <= square <= high or not abs(z.mean()) <= mean:
            wrong.append(f"{report}; the bounds are ±{mean:.3f} and {low:.3f} to {high:.3f}")
    assert not wrong, "\n".join(wrong)
