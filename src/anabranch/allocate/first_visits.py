"""Which of the paths found deserve a first look, and which comes first.

Of a program with thousands of paths most have no mass. That of a path is its prior probability times a mean of its
likelihood, Z_k = p_k E[g | k]; so a bound on that mean tells which can be left alone without ever being looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from anabranch.allocate.path_table import PathRecord, PathTable

__all__ = ["HEAVY", "MANY", "MARGIN", "NEGLIGIBLE", "by_promise", "is_easy", "is_unknown", "that_may_matter"]

HEAVY = 1e-4
"""Weight from which on the paths around a path are looked for."""
NEGLIGIBLE = 20.0
"""Nats below the evidence at which a path is negligible."""
MANY = 100
"""Paths from which on each gets less attention."""
MARGIN, _STRICT_MARGIN = 50.0, 10.0
"""Nats by which the best likelihood seen, or the best mean likelihood of a path, may yet be exceeded."""
_FEW, _RARE = 8, -6.0
"""Dimensions in which a look is cheap, and the log prior probability of a path that it would be wrong to leave out."""
_CLOSE = 0.01
"""Weight of a path from which others are proposed that it would be wrong to leave out."""
_TRIES, _LAST_TRIES = 3, 30
"""Visits after which a path in which no mass was found is taken to have none; while none was found anywhere, more."""


def is_unknown(entry: PathRecord, ledger: PathTable) -> bool:
    """Whether nothing is known of a path yet; that no mass was found at once does not say that there is none."""
    if entry.gave_up:
        return False
    if entry.estimate is None or not entry.visits:
        return True
    found_nothing = entry.log_evidence == -np.inf and entry.estimate.log_evidence_sd > 0
    # Of many paths, one that shows no point of positive density is believed at once.
    tries = _TRIES if len(ledger) <= MANY or entry.target.best_likelihood > -np.inf else 1
    if found_nothing and len(ledger) <= MANY and ledger.log_evidence == -np.inf:
        tries = _LAST_TRIES
    return found_nothing and entry.visits < tries


def that_may_matter(entries: Sequence[PathRecord], ledger: PathTable, strictly: bool = False) -> list[PathRecord]:
    """The entries whose paths could have mass at all.

    The mean likelihood of a path is at most a little above the best likelihood seen anywhere; if judged strictly, above
    the best mean. A path behind guards, that only proposals have found, has no known prior probability: it may matter.
    """
    solved, total = ledger.solved, ledger.log_evidence
    if strictly:
        best = max((each.log_mean_likelihood for each in solved), default=np.nan) + _STRICT_MARGIN
    else:
        best = max((each.target.best_likelihood for each in solved), default=np.nan) + MARGIN
    if not np.isfinite([best, total]).all():
        return list(entries)
    priors = [entry.path.log_prior_probability for entry in entries]
    least = total - NEGLIGIBLE - best
    return [entry for entry, prior in zip(entries, priors, strict=True) if prior > least or prior == -np.inf]


def is_easy(entry: PathRecord, ledger: PathTable) -> bool:
    """Whether to look at a path even after many looks in vain: it costs little, or a part of the prior is in it.

    Of many paths, only those that were proposed from a path with mass, or at which an earlier look failed.
    """
    cheap = entry.path.dim <= _FEW
    if len(ledger) > MANY:
        return entry.visits > 0 or (cheap and entry.parent >= _CLOSE)
    return cheap or entry.path.log_prior_probability > _RARE


def by_promise(entries: Sequence[PathRecord]) -> list[PathRecord]:
    """The most promising first, those at which a look has found nothing after all others.

    Two orders take turns, since each is blind where the other sees: those proposed from where the mass is, of them the
    simplest; and those that would have the most mass if their mean likelihood were that of where they were proposed.
    """
    turns = zip(sorted(entries, key=_simplicity), sorted(entries, key=_likeliness), strict=True)
    return sorted(dict.fromkeys(itertools.chain.from_iterable(turns)), key=lambda entry: entry.visits)


def _simplicity(entry: PathRecord) -> tuple[float, ...]:
    prior = -entry.path.log_prior_probability
    if entry.parent < HEAVY:
        return 0.0, prior, entry.number
    # Weights of the same order are as good as each other.
    return np.floor(-np.log10(entry.parent)) - 10, entry.path.dim, prior, entry.number


def _likeliness(entry: PathRecord) -> tuple[float, ...]:
    prior = entry.path.log_prior_probability
    return -(entry.parent_likelihood + prior) if prior > -np.inf else -np.inf, -prior, entry.number
