"""The exact answers of the mixture (section 3): log p(y | K) for K = 1 to 15, and the density of a new point.

Given K, component k lies in cell k = [20 (k − 1) / K, 20 k / K], so that the components are in order. A point between
the centres of cells k and k + 1 has its nearest component in one of the two, or none nearby. With these two terms
alone, the likelihood is a chain,

    p(y | μ) = Π_k ψ_k(μ_k, μ_(k+1)),    ψ_k = Π_n (Normal(y_n; μ_k, 0.1²) + Normal(y_n; μ_(k+1), 0.1²)) / K,

with n over the points between the two centres, and the integral over μ is done from left to right, one component at a
time, on Gauss-Legendre nodes. The terms left out are positive, and none is larger than with its component at the end of
its cell that is nearest to the point: adding these to ψ_k bounds p(y | K) from above. With all K components at their
nearest, each for each point, the bound needs no integral, and shows that the K beyond 15 do not matter.

`python -m truth.mixture`, in the folder tests, computes the stored answers again, in a minute or two.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from anabranch import programs
from truth import rounding, write

__all__ = ["log_likelihood", "log_likelihood_bound", "log_likelihood_bound_beyond", "main", "predictive_density"]

EXTENT = 20.0
SD = 0.1
COMPONENTS = range(1, 16)
"""The K whose likelihood is computed."""
BOUNDED = range(16, 401)
"""The K whose likelihood is bounded one by one; all larger ones share a bound."""
COARSE, FINE = 8, 11
"""Gauss-Legendre nodes per panel."""
PANEL = 0.05
"""The largest width of a panel: the posterior of a component with 30 points has a standard deviation of 0.02."""
GRADED = PANEL * 0.5 ** np.arange(1, 6)
"""Panel edges near the ends of a cell, where a truncated posterior falls fastest."""


def log_likelihood(y: np.ndarray, K: int, nodes_per_panel: int, upper: bool = False) -> float:
    """log p(y | K) by the chain: slightly below it, or slightly above it if `upper`."""
    if K == 1:
        nodes, log_weight = cell_rule(1, 1, nodes_per_panel)
        return float(logsumexp(log_weight + norm.logpdf(y[:, None], nodes, SD).sum(0)))
    pair = np.clip(np.floor(y * K / EXTENT - 0.5), 0, K - 2) + 1  # y is between the centres of cells `pair`, `pair` + 1
    nodes, message = cell_rule(K, 1, nodes_per_panel)
    for k in range(1, K):
        next_nodes, log_weight = cell_rule(K, k + 1, nodes_per_panel)
        points = y[pair == k]
        omitted = log_nearest(points, K, [j for j in range(1, K + 1) if j not in (k, k + 1)]) if upper else None
        log_psi = log_pair_factor(points, nodes, next_nodes, omitted) - len(points) * np.log(K)
        message = logsumexp(message[:, None] + log_psi, axis=0) + log_weight
        nodes = next_nodes
    return float(logsumexp(message))


def cell_rule(K: int, k: int, nodes_per_panel: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes of μ_k in its cell, and the log prior mass of each."""
    width = EXTENT / K
    ends = np.linspace(0, width, int(np.ceil(width / PANEL)) + 1)
    ends = np.unique(np.concatenate([ends, GRADED, width - GRADED]))
    nodes, weights = np.polynomial.legendre.leggauss(nodes_per_panel)
    half = np.diff(ends)[:, None] / 2
    at = (k - 1) * width + ends[:-1, None] + half * (1 + nodes)
    return at.ravel(), np.log(half * weights / width).ravel()


def log_pair_factor(y: np.ndarray, left: np.ndarray, right: np.ndarray, omitted: np.ndarray | None) -> np.ndarray:
    """log K^n ψ_k at all pairs of nodes: Σ_n log(Normal(y_n; μ_k, 0.1²) + Normal(y_n; μ_(k+1), 0.1²) + omitted_n)."""
    out = np.zeros((len(left), len(right)))
    for n, point in enumerate(y):
        log_right = norm.logpdf(point, right, SD)
        if omitted is not None:
            log_right = np.logaddexp(log_right, omitted[n])
        out += np.logaddexp(norm.logpdf(point, left, SD)[:, None], log_right)
    return out


def log_nearest(y: np.ndarray, K: int, components: list[int]) -> np.ndarray:
    """log Σ_k Normal(y_n; μ_k, 0.1²) with each component at the place in its cell that is nearest to y_n."""
    cell = np.array(components)
    nearest = np.clip(y[:, None], EXTENT * (cell - 1) / K, EXTENT * cell / K)
    return logsumexp(norm.logpdf(y[:, None], nearest, SD), axis=1) if components else np.full(len(y), -np.inf)


def log_likelihood_bound(y: np.ndarray, K: int) -> float:
    """An upper bound of log p(y | K): every component is at its nearest to every point."""
    return float(np.sum(log_nearest(y, K, list(range(1, K + 1))) - np.log(K)))


def log_likelihood_bound_beyond(y: np.ndarray, K: int) -> float:
    """An upper bound of log p(y | K) for this K and all larger ones.

    Over cells of width w = 20 / K, the largest values of a density with one peak f sum to at most 1 / w + 2 f: every
    point has a density of at most 1 / 20 + 2 f / K, which falls with K.
    """
    return float(len(y) * np.log(1 / EXTENT + 2 * norm.pdf(0.0, 0.0, SD) / K))


def predictive_density(y: np.ndarray, at: np.ndarray, nodes_per_panel: int = FINE) -> np.ndarray:
    """p(y* | y, K = 5) = (1/5) Σ_k ∫ Normal(y*; μ_k, 0.1²) p(μ_k | y) dμ_k.

    Each cell holds one cluster, ten deviations or more from its ends: the posterior of a component is that given the
    points of its own cell.
    """
    K = 5
    density = np.zeros(len(at))
    for k in range(1, K + 1):
        nodes, log_weight = cell_rule(K, k, nodes_per_panel)
        points = y[(y >= EXTENT * (k - 1) / K) & (y < EXTENT * k / K)]
        log_posterior = log_weight + norm.logpdf(points[:, None], nodes, SD).sum(0)
        posterior = np.exp(log_posterior - logsumexp(log_posterior))
        density += norm.pdf(at[:, None], nodes, SD) @ posterior / K
    return density


def main() -> None:
    """Compute the stored answers, and print them."""
    y, at = programs.mixture_data(), np.linspace(0, EXTENT, 401)
    store("mixture", y, {"y": at, "density": predictive_density(y, at)})
    store("uncertain", programs.uncertain_mixture_data(), {"y": [], "density": []})


def store(name: str, y: np.ndarray, predictive: dict[str, Any]) -> None:
    """Compute log p(y | K) for each K, print it, and store it with the data and the predictive density."""
    values, errors = {}, {}
    for K in COMPONENTS:
        values[K] = log_likelihood(y, K, FINE)
        coarse, above = (log_likelihood(y, K, COARSE, upper) for upper in (False, True))
        errors[K] = abs(values[K] - coarse) + (above - coarse) + rounding(values[K])
        print(f"K {K:2}  log p(y | K) {values[K]:18.9f}  nodes {values[K] - coarse:8.1e}  terms {above - coarse:8.1e}")
    answers = {
        "how": "A chain over the components on Gauss-Legendre nodes, two terms of the mixture for each point. Errors "
        "are the change from fewer nodes, plus the most that the other terms could add, plus what rounding may add.",
        "y": y,
        "log_likelihood_given_K": values,
        "error": errors,
        "predictive": predictive,
    }
    write(name, answers)


if __name__ == "__main__":
    main()
