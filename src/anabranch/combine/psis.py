"""Pareto smoothed importance sampling, and leave-one-out prediction by it (Vehtari et al., 2017 and 2024).

The density of one observation given the others is

    p(y_i | y_−i) ≈ Σ_s r_is p(y_i | θ_s) / Σ_s r_is,    r_is = v_s / p(y_i | θ_s),

over draws θ_s of the posterior with weights v_s. The largest of the ratios r_is are replaced by the quantiles of a
generalised Pareto distribution fitted to them, truncated at the largest ratio.
"""

import numpy as np
from scipy.special import boxcox1p, logsumexp

from anabranch.conquer.weights import generalised_pareto, tail_size

__all__ = ["leave_one_out", "smoothed"]


def leave_one_out(log_weights: np.ndarray, log_likelihood: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log p(y_i | y_−i) and the Pareto k of its ratios, from draws with weights (S,) and log likelihoods (S, n)."""
    n = log_likelihood.shape[1]
    out, shapes = np.empty(n), np.empty(n)
    for i in range(n):
        log_ratios, shapes[i] = smoothed(log_weights - log_likelihood[:, i])
        out[i] = logsumexp(log_ratios + log_likelihood[:, i]) - logsumexp(log_ratios)
    return out, shapes


def smoothed(log_ratios: np.ndarray) -> tuple[np.ndarray, float]:
    """The log ratios with their tail smoothed, and its Pareto k; NaN if there are too few ratios to fit a tail."""
    size = tail_size(len(log_ratios))
    order = np.argsort(log_ratios)
    top = log_ratios[order[-1]]
    if size == 0:
        return log_ratios, np.nan
    tail = order[-size:]
    cutoff = np.exp(log_ratios[order[-size - 1]] - top)
    exceedances = np.exp(log_ratios[tail] - top) - cutoff
    if exceedances[0] <= 0 or exceedances[-1] <= 1e-12:
        return log_ratios, np.nan  # too many equal ratios for a tail
    k, scale = generalised_pareto(exceedances)
    probabilities = (np.arange(size) + 0.5) / size
    quantiles = -scale * boxcox1p(-probabilities, -k)
    out = log_ratios.copy()
    out[tail] = np.minimum(np.log(quantiles + cutoff), 0.0) + top
    return out, k
