"""The evidence of the program and the weights of its paths (paper, section 4.3).

    Ẑ = Σ_k Ẑ_k,    w_k = Ẑ_k / Ẑ.

The paths are estimated independently, each with a relative error s_k of Ẑ_k. To first order (the delta method)

    sd(log Ẑ)² = Σ_k w_k² s_k²,
    sd(w_k)²   = w_k² ((1 − 2 w_k) s_k² + Σ_j w_j² s_j²).

A path whose estimate is in doubt may have more, up to a possible Z_k' > Ẑ_k that its diagnostics allow. This is no
scatter but a bound: with D = Σ_k (Z_k' − Ẑ_k)/Ẑ over these paths, log Ẑ may be low by log(1 + D), every weight may be
too large by the factor 1 + D, and that of such a path too small.

A method that samples the whole program estimates all paths from the same draws, and gives its own `Evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from anabranch.combine.solution import Run, Solution

__all__ = ["Evidence", "join", "missing", "unsolved_mass"]

_LAST = 3
"""One in so many of the solved paths, those looked at last, stand for what was not solved."""


@dataclass(frozen=True)
class Evidence:
    """log Ẑ with its error, None where a method does not give them, and the weight of each path with its error."""

    log_evidence: float | None
    log_evidence_sd: float | None
    weights: np.ndarray
    weight_sds: np.ndarray

    def reordered(self, order: Sequence[int]) -> Evidence:
        """The same for the paths in another order."""
        return replace(self, weights=self.weights[order], weight_sds=self.weight_sds[order])


def join(solutions: Sequence[Solution], run: Run) -> Evidence:
    """Add the paths up. A path without an estimate, or in which no mass was found, has a weight of zero."""
    logs = np.array([solution.log_evidence for solution in solutions])
    errors = np.array([np.inf if s.estimate is None else s.estimate.log_evidence_sd for s in solutions])
    total = float(logsumexp(logs)) if len(logs) else -np.inf
    if not np.isfinite(total):
        return Evidence(total, np.inf, np.zeros(len(logs)), np.zeros(len(logs)))
    weights = np.exp(logs - total)
    # What was found to be nothing adds no error, though its own is infinite.
    relative = np.where(weights > 0, errors, 0.0)
    sd = float(np.sqrt(np.sum((weights * relative) ** 2)))
    more = np.exp(np.minimum([solution.log_possible - total for solution in solutions], 700.0))
    doubt = np.maximum(more - weights, 0.0)
    gap = np.hypot(missing(solutions, weights, run), np.log1p(doubt.sum()))
    weight_sds = np.hypot(_weight_sds(weights, relative, sd), _doubted(weights, doubt))
    return Evidence(total, float(np.hypot(sd, gap)), weights, weight_sds)


def _doubted(weights: np.ndarray, doubt: np.ndarray) -> np.ndarray:
    """By how much each weight may be wrong, if the paths in doubt have all the mass that they may have."""
    return np.abs((weights + doubt) / (1 + doubt.sum()) - weights)


def _weight_sds(weights: np.ndarray, relative: np.ndarray, sd: float) -> np.ndarray:
    if not np.isfinite(sd):
        return np.where((weights > 0) & (weights < 1), np.inf, 0.0)
    # (1 − 2w)s² + Σw²s² as a sum of squares, which rounding does not make negative: (1 − w)²s² and the others' w²s².
    others = np.maximum(sd**2 - (weights * relative) ** 2, 0.0)
    return weights * np.sqrt(((1 - weights) * relative) ** 2 + others)


def unsolved_mass(solutions: Sequence[Solution], run: Run) -> float:
    """The prior probability of paths that were found and never given budget, and of what was never found.

    A path with an estimate counts as solved, even where a cheap look was all it got. The prior probabilities of the
    solved paths do not enter: where guards decide, they are estimates, and their sum scatters about one.
    """
    unsolved = sum(solution.path.prior_probability for solution in solutions if solution.estimate is None)
    unexplored = 0.0 if run.prior_mass_found is None else 1.0 - run.prior_mass_found
    return float(np.clip(unsolved + unexplored, 0.0, 1.0))


def missing(solutions: Sequence[Solution], weights: np.ndarray, run: Run) -> float:
    """By how much log Ẑ is low if what was not solved is as likely as what was looked at last.

    What was not solved is a share of the prior, `unsolved_mass`. First looks go from the more to the less promising
    paths, so that its mean likelihood is taken to be that of the last third of them. Nobody can know that it is: most
    paths far from the data hold nothing, and one good one may hold all.
    """
    mass = unsolved_mass(solutions, run)
    if mass == 0:
        return 0.0
    prior = np.array([solution.path.prior_probability for solution in solutions])
    solved = [k for k, solution in enumerate(solutions) if solution.estimate is not None and prior[k] > 0]
    if any(solutions[k].look for k in solved):
        solved = sorted(solved, key=lambda k: solutions[k].look)[-max(len(solved) // _LAST, 1) :]
    return float(np.log1p(mass * weights[solved].sum() / prior[solved].sum())) if solved else np.inf
