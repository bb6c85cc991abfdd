"""Exact answers for the programs of benchmarks/wide.py, and samplers written for one of them each."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import gammaln, logsumexp

SPREAD, NOISE, CONCENTRATION = 3.0, 1.0, 1.0
"""Of the means of clusters, of the points of one, and of the Chinese restaurant process."""
BATCHES = 20
"""Batches of sweeps from which the errors of a sampler are estimated."""


def log_evidences(X: np.ndarray, y: np.ndarray, included: np.ndarray) -> np.ndarray:
    """The log evidence of models, rows of a matrix of which predictors are in, with the prior of the row."""
    p, n = X.shape[1], len(y)
    mask = included.astype(float)
    precision = np.eye(p) + mask[:, :, None] * (X.T @ X) * mask[:, None, :]
    linear = mask * (X.T @ y)
    explained = (linear * np.linalg.solve(precision, linear[..., None])[..., 0]).sum(axis=1)
    log_determinant = np.linalg.slogdet(precision)[1]
    return -0.5 * (n * np.log(2 * np.pi) + log_determinant + y @ y - explained) - p * np.log(2)


def all_models(X: np.ndarray, y: np.ndarray, at_once: int = 8_192) -> tuple[float, np.ndarray]:
    """The log evidence and the inclusion probabilities, by a sum over all models."""
    p = X.shape[1]
    parts = []
    for start in range(0, 2**p, at_once):
        included = (np.arange(start, min(start + at_once, 2**p))[:, None] >> np.arange(p)) & 1
        logs = log_evidences(X, y, included)
        parts.append((logsumexp(logs), np.exp(logs - logs.max()) @ included / np.exp(logs - logs.max()).sum()))
    totals = np.array([total for total, _ in parts])
    shares = np.exp(totals - logsumexp(totals))
    return float(logsumexp(totals)), shares @ np.array([each for _, each in parts])


def gibbs_over_models(X: np.ndarray, y: np.ndarray, sweeps: int, chains: int = 200) -> np.ndarray:
    """Inclusion probabilities by a collapsed Gibbs sampler, which draws each indicator given the others."""
    p, rng = X.shape[1], np.random.default_rng(0)
    state, total = rng.random((chains, p)) < 0.2, np.zeros(p)
    for sweep in range(sweeps):
        for j in rng.permutation(p):
            both = np.repeat(state, 2, axis=0)
            both[::2, j], both[1::2, j] = False, True
            logs = log_evidences(X, y, both)
            state[:, j] = rng.random(chains) < 1 / (1 + np.exp(logs[::2] - logs[1::2]))
        if sweep >= sweeps // 5:
            total += state.mean(axis=0)
    return total / (sweeps - sweeps // 5)


def log_marginal(points: np.ndarray) -> float:
    """The log evidence of points in one cluster."""
    n, precision = len(points), SPREAD**-2 + len(points) / NOISE**2
    fit = (points.sum() / NOISE**2) ** 2 / precision
    scale = -n * np.log(NOISE) - np.log(SPREAD) - 0.5 * np.log(precision)
    return float(scale - 0.5 * n * np.log(2 * np.pi) - 0.5 * ((points**2).sum() / NOISE**2 - fit))


def all_partitions(y: np.ndarray) -> tuple[float, dict[tuple[int, int], float], float]:
    """The log evidence, the probability that two points are together, and the mean number of clusters: by a recursion
    over subsets, in which the first point that is left picks its companions."""
    n = len(y)

    @cache
    def block(members: int) -> float:
        index = [i for i in range(n) if members >> i & 1]
        return log_marginal(y[index]) + gammaln(len(index)) + np.log(CONCENTRATION)

    @cache
    def total(left: int, power: int = 1) -> float:
        if not left:
            return 0.0
        first = left & -left
        rest, logs = left ^ first, []
        companions = rest
        while True:
            logs.append(block(first | companions) + total(rest ^ companions))
            if not companions:
                return float(logsumexp(logs))
            companions = (companions - 1) & rest

    everything = 2**n - 1
    normaliser = gammaln(CONCENTRATION) - gammaln(n + CONCENTRATION)
    evidence = total(everything) + normaliser
    blocks = [(m, np.exp(block(m) + total(everything ^ m) + normaliser - evidence)) for m in range(1, everything + 1)]
    together = {
        (i, j): sum(p for m, p in blocks if m >> i & 1 and m >> j & 1) for i in range(n) for j in range(i + 1, n)
    }
    return evidence, together, sum(p for _, p in blocks)


def gibbs_over_partitions(y: np.ndarray, sweeps: int, seed: int = 0) -> list[tuple[np.ndarray, float]]:
    """Which points are together and the number of clusters, by a collapsed Gibbs sampler: means of twenty batches."""
    rng, n = np.random.default_rng(seed), len(y)
    labels = np.zeros(n, int)
    first, kept = sweeps // 5, (sweeps - sweeps // 5) // BATCHES
    batches = [(np.zeros((n, n)), np.zeros(1)) for _ in range(BATCHES)]
    for sweep in range(sweeps):
        for i in range(n):
            others = np.delete(np.arange(n), i)
            found = np.unique(labels[others])
            members = [others[labels[others] == k] for k in found]
            logs = [np.log(len(m)) + log_marginal(np.append(y[m], y[i])) - log_marginal(y[m]) for m in members]
            logs = np.array([*logs, np.log(CONCENTRATION) + log_marginal(y[[i]])])
            chosen = rng.choice(len(logs), p=np.exp(logs - logsumexp(logs)))
            labels[i] = found[chosen] if chosen < len(found) else labels.max() + 1
        if first <= sweep < first + kept * BATCHES:
            together, clusters = batches[(sweep - first) // kept]
            together += (labels[:, None] == labels) / kept
            clusters += len(np.unique(labels)) / kept
    return [(together, float(clusters[0])) for together, clusters in batches]


def mean_and_error(batches: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    return np.mean(batches, axis=0), np.std(batches, axis=0, ddof=1) / np.sqrt(len(batches))


def all_trees(X: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The log evidence of all trees that split the same predictors, by a recursion over nodes."""
    sides = np.array([X[:, j] <= np.quantile(X[:, j], c / 10) for j in range(X.shape[1]) for c in range(1, 10)])

    def leaves(members: np.ndarray) -> np.ndarray:
        count, precision = members.sum(axis=-1), 2.0**-2 + members.sum(axis=-1) / 0.5**2
        explained = (members @ y / 0.5**2) ** 2 / precision
        scale = np.log(2.0) + 0.5 * np.log(precision) + count * np.log(0.5 * np.sqrt(2 * np.pi))
        return -scale - 0.5 * (members @ y**2 / 0.5**2 - explained)

    def grow(members: np.ndarray, depth: int) -> dict[str, float]:
        share = 0.5 if depth else 0.9
        each_split = np.log(share / len(sides))
        out: dict[str, list[float]] = {"-": [np.log1p(-share) + float(leaves(members))]}
        last = leaves(members & sides) + leaves(members & ~sides)
        for number, side in enumerate(sides):
            j = number // 9
            if depth == 2:
                out.setdefault(f"({j} - -)", []).append(each_split + last[number])
                continue
            left, right = grow(members & side, depth + 1), grow(members & ~side, depth + 1)
            for (one, a), (other, b) in product(left.items(), right.items()):
                out.setdefault(f"({j} {one} {other})", []).append(each_split + a + b)
        return {tree: float(logsumexp(logs)) for tree, logs in out.items()}

    return grow(np.ones(len(y), bool), 0)


def kernel_evidences(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """The log of the evidence of some kernels with one length, times their prior probability: by quadrature.

    They are the one that made the data, `sum(linear, periodic)`, and those that have less or something else in it.
    """
    z = np.linspace(-5.0, 5.0, 1_201)
    log_weights = -0.5 * z**2 + np.log((z[1] - z[0]) / np.sqrt(2 * np.pi))
    gaps, line, noise = x[:, None] - x, np.outer(x, x), 0.05 * np.eye(len(x))
    shapes = {
        "smooth": lambda length: np.exp(-0.5 * gaps**2 / length**2),
        "periodic": lambda length: np.exp(-2 * np.sin(np.pi * gaps / length) ** 2),
    }
    out = {}
    for name, shape in shapes.items():
        alone = [shape(length) for length in np.exp(0.5 * z)]
        for kernel, log_prior, covariances in (
            (name, np.log(0.2), alone),
            (f"sum(linear, {name})", np.log(2 * 0.2**3), [each + line for each in alone]),
            (f"product(linear, {name})", np.log(2 * 0.2**3), [each * line for each in alone]),
        ):
            logs = [log_normal(y, covariance + noise) for covariance in covariances]
            out[kernel] = float(logsumexp(logs + log_weights)) + log_prior
    return out


def log_normal(y: np.ndarray, covariance: np.ndarray) -> float:
    """The log density of a normal distribution with the mean zero."""
    lower = np.linalg.cholesky(covariance)
    white = solve_triangular(lower, y, lower=True)
    return float(-0.5 * white @ white - np.log(np.diag(lower)).sum() - 0.5 * len(y) * np.log(2 * np.pi))
