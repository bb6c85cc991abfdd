"""The evidence of the program and the weights of its paths (paper, section 4.3).

    Ẑ = Σ_k Ẑ_k,    w_k = Ẑ_k / Ẑ.

The paths are estimated independently, each with a relative error s_k of Ẑ_k. To first order (the delta method)

    sd(log Ẑ)² = Σ_k w_k² s_k²,
    sd(w_k)²   = w_k² ((1 − 2 w_k) s_k² + Σ_j w_j² s_j²).

The errors of paths that no second method has confirmed add up as they are (`path_table.total_evidence`).

A path whose diagnostics fail may have more evidence, up to a possible Z_k' > Ẑ_k. This is no scatter but a bound: with
D = Σ_k (Z_k' − Ẑ_k)/Ẑ over these paths, log Ẑ may be low by log(1 + D), every weight may be too large by the factor
1 + D, and that of such a path too small. Paths that were not found in time may have evidence as well, which is in D.

A method that samples the whole program estimates all paths from the same draws, and gives its own `Evidence`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from anabranch.allocate.path_table import total_evidence
from anabranch.combine.solution import Solution

__all__ = ["Evidence", "doubts_of", "join", "missing", "unsolved_mass", "weight_sds_of"]


LEAST = 1e-300
"""Weight of a path with mass at least, where it would be rounded to zero and part of the mass is not known."""


@dataclass(frozen=True)
class Evidence:
    """log Ẑ with its error, None where a method does not give them, and the weight of each path with its error."""

    log_evidence: float | None
    log_evidence_sd: float | None
    weights: np.ndarray
    weight_sds: np.ndarray
    doubtful_share: float = 0.0
    """D/(1 + D), the share of the posterior mass that may be where no draws are."""
    max_sampled_sd: float = 0.0
    """The largest error of a weight that more evaluations would reduce: paths not solved or not found are not in it."""

    def reordered(self, order: Sequence[int]) -> Evidence:
        return replace(self, weights=self.weights[order], weight_sds=self.weight_sds[order])


def join(
    solutions: Sequence[Solution],
    prior_mass_found: float | None,
    log_possible_not_found: float | None = None,
    known_share: tuple[float, float] | None = None,
) -> Evidence:
    """Add up the paths. A path without an estimate or without mass has a weight of zero.

    If a walk over paths has estimated the share of the mass on the paths known, with its error, some of the paths stand
    for the others, and no more is missing.
    """
    total, weights, errors, sd = total_evidence([solution.represented for solution in solutions])
    if not np.isfinite(total):
        return Evidence(total, np.inf, weights, weights)
    doubt = doubts_of(solutions, total, weights)
    solved = whole = 1 + doubt.sum()
    log_whole = float(np.logaddexp(0.0, _log_doubt(solutions, total, doubt)))
    if known_share is None:
        whole += 0.0 if log_possible_not_found is None else np.exp(min(log_possible_not_found - total, 700.0))
        unseen = missing(solutions, weights, prior_mass_found)
        not_in_time = -np.inf if log_possible_not_found is None else log_possible_not_found - total
        gap = np.hypot(unseen, np.logaddexp(log_whole, not_in_time))
        whole += np.expm1(min(unseen, 700.0))
    else:
        share, share_sd = known_share
        gap, sd = log_whole, max(sd, share_sd / share)
        solved = whole = whole + share_sd / share
    if whole > 1:
        # Draws of the lightest paths say how much an answer may differ where the mass is not known.
        has_mass = np.array([solution.log_evidence > -np.inf for solution in solutions])
        weights = np.where(has_mass, np.maximum(weights, LEAST), weights)
    scatter = weight_sds_of(weights, np.where(weights > 0, errors, 0.0), sd)
    sampled, weight_sds = (np.hypot(scatter, np.abs((weights + doubt) / mass - weights)) for mass in (solved, whole))
    return Evidence(
        total, float(np.hypot(sd, gap)), weights, weight_sds, float(1 - 1 / whole), float(sampled.max(initial=0.0))
    )


def doubts_of(solutions: Sequence[Solution], log_evidence: float, weights: np.ndarray) -> np.ndarray:
    """The mass that each path may have beyond its weight, by its diagnostics, relative to Ẑ."""
    possible = np.exp(np.minimum([solution.log_possible - log_evidence for solution in solutions], 700.0))
    return np.maximum(possible - weights, 0.0)


def _log_doubt(solutions: Sequence[Solution], log_evidence: float, doubts: np.ndarray) -> float:
    """log Σ of the same, of which one may be too large for a floating-point number."""
    possible = np.array([solution.log_possible - log_evidence for solution in solutions])
    with np.errstate(divide="ignore"):
        return float(logsumexp(np.where(possible > 700.0, possible, np.log(doubts))))


def weight_sds_of(weights: np.ndarray, relative: np.ndarray, sd: float) -> np.ndarray:
    """sd(w_k), from the weights, the relative errors s_k, and sd(log Ẑ)."""
    if not np.isfinite(sd):
        return np.where((weights > 0) & (weights < 1), np.inf, 0.0)
    # (1 − 2w)s² + Σw²s² as a sum of squares, which rounding does not make negative: (1 − w)²s² and the others' w²s².
    others = np.maximum(sd**2 - (weights * relative) ** 2, 0.0)
    return weights * np.sqrt(((1 - weights) * relative) ** 2 + others)


def unsolved_mass(solutions: Sequence[Solution], prior_mass_found: float | None) -> float:
    """The prior probability of the paths found without an estimate, and of the paths not found.

    The prior probabilities of the solved paths do not enter: where guards decide, they are estimates, and their sum
    scatters about one.
    """
    unsolved = sum(solution.path.prior_probability for solution in solutions if solution.estimate is None)
    not_found = 0.0 if prior_mass_found is None else 1.0 - prior_mass_found
    return float(np.clip(unsolved + not_found, 0.0, 1.0))


def missing(
    solutions: Sequence[Solution], weights: np.ndarray, prior_mass_found: float | None, one_in: int = 3
) -> float:
    """By how much log Ẑ is low if the unsolved prior mass is as likely as the paths visited last.

    First visits go from the more to the less promising paths, so that the mean likelihood of the unsolved mass is taken
    to be that of the last third of them (`one_in`). This is no bound: most paths far from the data have no mass, and a
    single one may have all.
    """
    mass = unsolved_mass(solutions, prior_mass_found)
    if mass == 0:
        return 0.0
    prior = np.array([solution.path.prior_probability for solution in solutions])
    solved = [k for k, solution in enumerate(solutions) if solution.estimate is not None and prior[k] > 0]
    # A path that was solved for says nothing of what chance has not met yet.
    solved = [k for k in solved if not solutions[k].path.apart] or solved
    if any(solutions[k].first_visit for k in solved):
        solved = sorted(solved, key=lambda k: solutions[k].first_visit)[-max(len(solved) // one_in, 1) :]
    return float(np.log1p(mass * weights[solved].sum() / prior[solved].sum())) if solved else np.inf
