"""What a path may have beyond its estimate: where its own diagnostics fail, and where a limit left it unvisited.

Z_k = p_k E[g | k]. Of a path that was visited, the diagnostics of the weights say whether the estimate can be trusted,
and the weights themselves, extrapolated, what it may be (`Estimate.log_possible`). Of one that was not, only its prior
probability p_k is known, and how the mean likelihoods E[g | k] of the other paths vary.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from anabranch.allocate.first_visits import MARGIN
from anabranch.allocate.path_table import PathRecord, PathTable

__all__ = ["MANY_VISITED", "is_doubtful", "possible_of_unvisited", "why_doubtful"]

_FEW_VISITED, MANY_VISITED = 5, 30
"""Paths visited from which on the largest likelihood, or their own evidence, says what the others may have."""


def is_doubtful(entry: PathRecord) -> bool:
    """Whether the path has an estimate that its own diagnostics do not vouch for."""
    return entry.estimate is not None and not entry.gave_up and not entry.estimate.is_trusted


def why_doubtful(entry: PathRecord) -> str:
    """Why they do not, as a clause."""
    assert entry.estimate is not None
    k = "" if np.isnan(entry.estimate.pareto_k) else f" and a Pareto k of {entry.estimate.pareto_k:.2g}"
    return f"its estimate rests on {entry.estimate.ess:.1f} effective draws{k}"


def possible_of_unvisited(ledger: PathTable, waiting: Collection[PathRecord]) -> dict[PathRecord, float]:
    """The log evidence that each path may have that was not visited: of those waiting for it, or sketched.

    Nothing is known of their likelihood, or what a sketch says. The mean likelihoods of the other paths say how it
    varies: theirs may be as far above the best of those as that is above the middle; but once a few paths were climbed,
    no further above the largest likelihood than where paths are looked for at all.
    """
    visited = sum(entry.visits > 0 for entry in ledger)
    means = np.array([entry.log_mean_likelihood for entry in ledger])
    means, largest = means[np.isfinite(means)], max(entry.target.best_likelihood for entry in ledger)
    best = float(2 * means.max() - np.median(means)) if len(means) > 1 else largest + MARGIN
    best = min(best, largest + MARGIN) if visited >= _FEW_VISITED else best
    unvisited = [each for each in ledger if not each.visits and (each.estimate is not None or each in waiting)]
    return {entry: _possible(entry, best, ledger) for entry in unvisited}


def _possible(entry: PathRecord, best: float, ledger: PathTable) -> float:
    """What a path may have if its mean likelihood is the best that it may be."""
    prior = entry.path.log_prior_probability
    bound = prior + best if prior > -np.inf else ledger.log_evidence
    return bound if entry.estimate is None else max(min(bound, entry.log_possible), entry.log_evidence)
