"""Ranks of numbers. SciPy has them in `scipy.stats`, whose import takes longer than that of the rest of the library."""

import numpy as np

__all__ = ["average_ranks"]


def average_ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each number in its column, from one; equal numbers share the mean of their ranks.

    A column with a NaN has no ranks: all of them are NaN.

    >>> average_ranks(np.array([0.5, 0.1, 0.5, 7.0])).tolist()
    [2.5, 1.0, 2.5, 4.0]
    """
    if values.ndim > 1:
        ranks = np.empty(values.shape)
        for column in np.ndindex(values.shape[1:]):
            ranks[:, *column] = average_ranks(values[:, *column])
        return ranks
    if np.isnan(values).any():
        return np.full(len(values), np.nan)
    _, groups, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[groups]
