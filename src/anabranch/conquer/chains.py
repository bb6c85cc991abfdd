"""Diagnostics of Markov chains: split R-hat and effective sample size (Vehtari et al., 2021).

Each chain is split in halves, and values are replaced by normal scores of their ranks. With W the mean variance within
the m halves of length n, and B/n the variance of their means,

    R̂ = √((n − 1)/n + B/(n W)),

the larger of its values for the draws and for their distances from the median, which compare scales.
The effective sample size is m n / τ, with τ = 1 + 2 Σ ρ_t summed over Geyer's initial monotone sequence of pairs.
"""

import numpy as np
from scipy.special import ndtri

from anabranch.conquer.ranks import average_ranks

__all__ = ["chain_ess", "split_r_hat"]

_MIN_STEPS = 4
"""Steps below which the diagnostics are NaN."""


def split_r_hat(chains: np.ndarray) -> float:
    """The largest rank-normalised split R-hat over the coordinates of chains (N, T, d).

    Near 1 where the chains agree, infinite where each is constant at another value, NaN for few steps or equal values.
    """
    _check(chains)
    if chains.shape[1] < _MIN_STEPS or chains.shape[2] == 0:
        return np.nan
    halves = _split(chains)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    both = np.concatenate([_r_hat(_normal_scores(halves)), _r_hat(_normal_scores(folded))])
    return float(np.max(both[~np.isnan(both)], initial=-np.inf)) if not np.isnan(both).all() else np.nan


def chain_ess(chains: np.ndarray) -> np.ndarray:
    """The rank-normalised (bulk) effective sample size of each coordinate of chains (N, T, d): an array (d,).

    NaN where there are too few steps; N T for a constant coordinate.
    """
    _check(chains)
    if chains.shape[1] < _MIN_STEPS:
        return np.full(chains.shape[2], np.nan)
    scores = _normal_scores(_split(chains))
    return np.array([_ess(scores[:, :, j]) for j in range(chains.shape[2])])


def _check(chains: np.ndarray) -> None:
    if chains.ndim != 3:
        raise ValueError(f"chains must have shape (chains, steps, coordinates); got {chains.shape}")


def _split(chains: np.ndarray) -> np.ndarray:
    """Twice as many chains of half the length, without the middle step of an odd number."""
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _normal_scores(chains: np.ndarray) -> np.ndarray:
    m, n, d = chains.shape
    ranks = average_ranks(chains.reshape(m * n, d))
    return ndtri((ranks - 3 / 8) / (m * n + 1 / 4)).reshape(m, n, d)


def _r_hat(chains: np.ndarray) -> np.ndarray:
    """R̂ of each coordinate."""
    n = chains.shape[1]
    within = chains.var(axis=1, ddof=1).mean(axis=0)
    between = chains.mean(axis=1).var(axis=0, ddof=1)
    # Equal scores have a variance of rounding errors.
    within, between = (np.where(variance < 1e-20, 0.0, variance) for variance in (within, between))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((n - 1) / n + between / within)


def _ess(chains: np.ndarray) -> float:
    """The effective sample size of one coordinate of chains (m, n)."""
    m, n = chains.shape
    covariance = _autocovariance(chains).mean(axis=0)
    within = covariance[0] * n / (n - 1)
    total = within * (n - 1) / n + chains.mean(axis=1).var(ddof=1)
    if total < 1e-20:
        return float(m * n)
    correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0
    pairs = correlation[: n - n % 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs < 0)
    pairs = np.minimum.accumulate(pairs[: negative[0]] if len(negative) else pairs)
    time = -1 + 2 * pairs.sum()
    # Antithetic chains may be worth more than independent draws; the bound is Stan's.
    return float(m * n / max(time, 1 / np.log10(m * n)))


def _autocovariance(chains: np.ndarray) -> np.ndarray:
    """The autocovariance of each chain (m, n) at each lag, by the fast Fourier transform."""
    n = chains.shape[1]
    centred = chains - chains.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, n=2 * n, axis=1)
    return np.fft.irfft(np.abs(spectrum) ** 2, n=2 * n, axis=1)[:, :n] / n
