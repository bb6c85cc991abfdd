"""Importance weights: their mean, its error, diagnostics (effective sample size, Pareto k), and resampling."""

import numpy as np
from scipy.special import logsumexp, ndtri

__all__ = [
    "effective_sample_size", "extrapolated_log_mean", "generalised_pareto", "log_mean", "pareto_k", "relative_sd",
    "systematic", "tail_size",
]  # fmt: skip

_MIN_TAIL = 5
"""Weights that a fit of the tail needs."""


def log_mean(log_weights: np.ndarray) -> float:
    """log (1/n) Σ w_i: the log evidence, for weights γ/q of draws from q (paper, equation of Ẑ_k in appendix D)."""
    return float(logsumexp(log_weights) - np.log(len(log_weights))) if len(log_weights) else -np.inf


def extrapolated_log_mean(log_weights: np.ndarray) -> float:
    """log E[w] extrapolated from the upper quantiles of the log weights.

    If log w is normal with median m and standard deviation s, then log E[w] = m + s²/2, which a mean of n weights does
    not reach where s² > 2 log n. Here s is the largest (Q(p) − m)/Φ⁻¹(p) over some upper quantiles Q(p). The lower half
    of the weights does not count: draws far outside the mass make its tail arbitrarily long.
    """
    kept = np.sort(log_weights[log_weights > -np.inf])
    n = len(kept)
    if not n:
        return -np.inf
    middle = float(np.median(kept))
    tails = np.array([max(0.5 / n, tail) for tail in (0.16, 0.05, 0.01, 0.001) if tail * n >= 1] + [0.5 / n])
    quantiles = np.quantile(kept, 1 - tails, method="hazen")
    scale = float(np.max((quantiles - middle) / np.maximum(-ndtri(np.minimum(tails, 0.49)), 0.1)))
    return middle + 0.5 * scale**2 + float(np.log(n / len(log_weights)))


def relative_sd(log_weights: np.ndarray) -> float:
    """The standard deviation of one weight, relative to the mean weight: σ_k / Z_k in the paper's appendix F."""
    centre = log_mean(log_weights)
    return float(np.exp(log_weights - centre).std()) if np.isfinite(centre) else np.inf


def effective_sample_size(log_weights: np.ndarray) -> float:
    """(Σ w)² / Σ w²: the number of equally weighted draws with the same precision."""
    top = np.max(log_weights, initial=-np.inf)
    if not np.isfinite(top):
        return 0.0
    weights = np.exp(log_weights - top)
    return float(weights.sum() ** 2 / (weights**2).sum())


def systematic(weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Systematic resampling: the numbers of n entries, entry i about n·weights_i/Σ weights times, in order."""
    cumulative = np.cumsum(weights)
    positions = (np.arange(n) + rng.uniform()) / n * cumulative[-1]
    last = np.flatnonzero(weights)[-1]  # rounding must not take an entry without weight
    return np.minimum(np.searchsorted(cumulative, positions, side="right"), last)


def pareto_k(log_weights: np.ndarray) -> float:
    """The shape of the generalised Pareto distribution fitted to the largest weights (Vehtari et al., 2024).

    Below 0.5 the weights have a finite variance, above 0.7 their mean is unreliable. The fit is the empirical Bayes
    estimator of Zhang and Stephens (2009) with the weak prior of the former paper. NaN where there are too few weights.
    """
    size = tail_size(len(log_weights))
    if size == 0 or not np.isfinite(log_weights).any():
        return np.nan
    log_weights = np.sort(log_weights)
    cutoff = log_weights[-size - 1]
    if not np.isfinite(cutoff):
        return np.inf  # fewer positive weights than the tail has
    tail = np.exp(log_weights[-size:] - log_weights[-1]) - np.exp(cutoff - log_weights[-1])
    if tail[-1] <= 1e-12:
        return -np.inf  # equal weights have no tail
    return generalised_pareto(np.maximum(tail, 1e-300))[0]


def tail_size(n: int) -> int:
    """The number of the n weights that form the tail; 0 where there are too few to fit."""
    size = min(n // 5, int(np.ceil(3 * np.sqrt(n))))
    return size if size >= _MIN_TAIL else 0


def generalised_pareto(x: np.ndarray) -> tuple[float, float]:
    """Shape and scale from sorted exceedances, by the mean of a profile likelihood over a grid of rates."""
    n = len(x)
    points = 30 + int(np.sqrt(n))
    grid = 1 - np.sqrt(points / (np.arange(1, points + 1) - 0.5))
    grid = grid / (3 * x[int(n / 4 + 0.5) - 1]) + 1 / x[-1]
    shape = np.log1p(-grid[:, None] * x).mean(axis=1)
    profile = n * (np.log(-grid / shape) - shape - 1)
    rate = float(np.exp(profile - logsumexp(profile)) @ grid)
    k = float(np.log1p(-rate * x).mean())
    return (k * n + 0.5 * 10) / (n + 10), -k / rate
