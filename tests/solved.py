"""A program whose posterior is known, solved by hand: what the tests of combine and report work on."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro.distributions as dist
from scipy.stats import multivariate_normal, norm

import anabranch as ab
from anabranch.combine import Posterior, Run, Solution
from anabranch.conquer.estimate import Estimate
from anabranch.divide import Division, Path
from helpers import disguised

Y = np.array([0.9, 1.6, 0.4, 1.3])
PRIOR = np.array([0.5, 0.3, 0.2])
SPREAD = np.array([0.0, 1.0, 5.0])
"""Prior variance of the mean of the data under each model."""
GRID = np.arange(7.0)


def choice(y: Any) -> dict[str, Any]:
    """Three models of the mean of normal data: zero, one normal variable, or the sum of two."""
    model = ab.sample("model", dist.Categorical(PRIOR))
    mean = 0.0
    if model > 0:
        mean = ab.sample("mu", dist.Normal(0.0, 1.0))
    if model > 1:
        mean = mean + ab.sample("shift", dist.Normal(0.0, 2.0))
    ab.deterministic("mean", mean)
    ab.deterministic("twice", 2.0 * model)
    ab.observe("y", dist.Normal(disguised(mean), 1.0), y)
    return {"mean": mean, "grid": GRID, "label": "a word"}


def evidences() -> np.ndarray:
    """Z_k, the prior probability included."""
    n = len(Y)
    return np.array(
        [p * multivariate_normal.pdf(Y, np.zeros(n), np.eye(n) + s) for p, s in zip(PRIOR, SPREAD, strict=True)]
    )


def log_evidence() -> float:
    return float(np.log(evidences().sum()))


def weights() -> np.ndarray:
    return evidences() / evidences().sum()


def means() -> np.ndarray:
    """The posterior mean of the mean of the data under each model."""
    return SPREAD * Y.sum() / (1 + len(Y) * SPREAD)


def leave_one_out(variance: float) -> np.ndarray:
    """log p(y_i | y_−i) for normal data whose mean has a normal prior."""
    out = []
    for i, value in enumerate(Y):
        rest = np.delete(Y, i)
        after = variance / (1 + len(rest) * variance)
        out.append(norm.logpdf(value, after * rest.sum(), np.sqrt(1 + after)))
    return np.array(out)


def divided() -> Division:
    return ab.find_paths(choice, Y, executions=100)


def posterior_normal(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Mean and covariance of a path's posterior in its coordinates, which are the values of its sites."""
    prior = np.array([1.0, 4.0])[: path.dim]
    precision = np.diag(1 / prior) + len(Y)
    covariance = np.linalg.inv(precision)
    return covariance @ np.full(path.dim, Y.sum()), covariance


def solved(path: Path, rng: np.random.Generator, n: int = 400) -> Solution:
    """By importance sampling from a normal that is wider than the posterior."""
    if path.dim == 0:
        log_density = path.evaluate(np.zeros((1, 0)), compile=False).log_density
        return Solution(path, Estimate.from_draws(np.zeros((1, 0)), np.zeros(1), log_density[0], 0.0, 1, "exact"), 1)
    mean, covariance = posterior_normal(path)
    proposal = multivariate_normal(mean, 2.0 * covariance)
    points = np.atleast_2d(proposal.rvs(n, random_state=rng)).reshape(n, path.dim)
    log_weights = path.evaluate(points, compile=False).log_density - proposal.logpdf(points)
    return Solution(path, Estimate.from_weights(points, log_weights, n, "importance"), 2)


def run(**changes: Any) -> Run:
    return Run(**{"stopped": "The example ended.", "evaluations": 801, "executions": 100, "seconds": 0.5, "seed": 0}
               | changes)  # fmt: skip


def posterior(division: Division, seed: int = 0, n: int = 400) -> Posterior:
    rng = np.random.default_rng(seed)
    paths = sorted(division.paths, key=lambda path: path.dim)
    return Posterior(division.program, [solved(path, rng, n) for path in paths], run())
