"""Resampling: the ancestor of each particle of the next generation (Douc, Cappé and Moulines, 2005)."""

import numpy as np

from anabranch.settings import one_of, share

__all__ = ["SCHEME", "SCHEMES", "effective_sizes", "resampled"]

SCHEMES = ("multinomial", "stratified", "systematic")
SCHEME = {"resampling": one_of(*SCHEMES), "threshold": share()}
"""The rules for the settings of resampling."""


def resampled(log_weights: np.ndarray, scheme: str, rng: np.random.Generator) -> np.ndarray:
    """For each row of weights (R, N) the numbers of N ancestors, chosen in proportion to their weights.

    A row of zero weights keeps its particles.
    """
    rows, n = log_weights.shape
    top = log_weights.max(axis=1, keepdims=True)
    weights = np.where(top > -np.inf, np.exp(log_weights - np.where(top > -np.inf, top, 0.0)), 1.0)
    ends = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    ends[:, -1] = 1.0
    if scheme == "multinomial":
        places = rng.random((rows, n))  # not sorted, since one of them may be replaced by a reference
    else:
        shift = rng.random((rows, n if scheme == "stratified" else 1))
        places = (np.arange(n) + shift) / n
    # All rows at once: the cumulative weights of row r are between r and r + 1.
    offset = np.arange(rows)[:, None]
    found = np.searchsorted((ends + offset).ravel(), (places + offset).ravel(), side="right").reshape(rows, n)
    return np.minimum(found - offset * n, n - 1)


def effective_sizes(log_weights: np.ndarray) -> np.ndarray:
    """(Σ w)²/Σ w² of each row; zero for a row of zero weights."""
    top = log_weights.max(axis=1, keepdims=True)
    weights = np.where(top > -np.inf, np.exp(log_weights - np.where(top > -np.inf, top, 0.0)), 0.0)
    squares = (weights**2).sum(axis=1)
    return np.where(squares > 0, weights.sum(axis=1) ** 2 / np.where(squares > 0, squares, 1.0), 0.0)
