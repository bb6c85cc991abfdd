"""Programs with exact answers on which every engine is tried: fixed and varying support, discrete and continuous."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

import anabranch as ab
from exact import Exact, Part, named


def normal_mean(y: np.ndarray) -> None:
    """A normal mean and its data, one observation at a time."""
    mu = ab.sample("mu", dist.Normal(1.0, 2.0))
    for t, value in enumerate(y):
        ab.observe(f"y{t}", dist.Normal(mu, 1.5), value)
    ab.deterministic("mean", mu)


def normal_mean_parts(y: np.ndarray) -> Iterator[Part]:
    """The data are jointly normal; the posterior mean is that of a conjugate pair."""
    n = len(y)
    joint = multivariate_normal(np.full(n, 1.0), 4.0 + 2.25 * np.eye(n))
    precision = 1 / 4 + n / 2.25
    yield Part(float(joint.logpdf(y)), {}, {"mean": float((1 / 4 + y.sum() / 2.25) / precision)})


def kalman(y: np.ndarray) -> None:
    """A linear Gaussian state space."""
    x = ab.sample("x0", dist.Normal(0.0, 1.0))
    for t, value in enumerate(y):
        if t:
            x = ab.sample(f"x{t}", dist.Normal(0.9 * x, 0.7))
        ab.observe(f"y{t}", dist.Normal(x, 0.8), value)
    ab.deterministic("last", x)


def kalman_parts(y: np.ndarray) -> Iterator[Part]:
    """The Kalman filter."""
    mean, variance, total = 0.0, 1.0, 0.0
    for t, value in enumerate(y):
        if t:
            mean, variance = 0.9 * mean, 0.81 * variance + 0.49
        spread = variance + 0.64
        total += -0.5 * (np.log(2 * np.pi * spread) + (value - mean) ** 2 / spread)
        gain = variance / spread
        mean, variance = mean + gain * (value - mean), (1 - gain) * variance
    yield Part(float(total), {}, {"last": float(mean)})


START, STAY, LEVELS = 0.7, np.array([0.8, 0.6]), np.array([-1.0, 1.2])


def hidden_markov(y: np.ndarray) -> None:
    """A hidden Markov model whose states are variables."""
    state = ab.sample("s0", dist.Bernoulli(1 - START))
    for t, value in enumerate(y):
        if t:
            state = ab.sample(f"s{t}", dist.Bernoulli(jnp.where(state == 0, 1 - STAY[0], STAY[1])))
        ab.observe(f"y{t}", dist.Normal(jnp.where(state == 0, LEVELS[0], LEVELS[1]), 1.0), value)
    ab.deterministic("last", state)


def hidden_branches(y: np.ndarray) -> None:
    """The same with branches in Python: a path for each sequence of states."""
    state = 0
    for t, value in enumerate(y):
        p = (START if t == 0 else STAY[0]) if state == 0 else 1 - STAY[1]
        state = 0 if ab.sample(f"s{t}", dist.Bernoulli(1 - p)) == 0 else 1
        ab.observe(f"y{t}", dist.Normal(LEVELS[state], 1.0), value)
    ab.deterministic("last", state)


def hidden_markov_parts(y: np.ndarray) -> Iterator[Part]:
    """The forward algorithm."""
    log_move = np.log([[STAY[0], 1 - STAY[0]], [1 - STAY[1], STAY[1]]])
    forward = np.log([START, 1 - START])
    for t, value in enumerate(y):
        if t:
            forward = logsumexp(forward[:, None] + log_move, axis=0)
        forward = forward - 0.5 * (value - LEVELS) ** 2 - 0.5 * np.log(2 * np.pi)
    for state in (0, 1):
        yield Part(float(forward[state]), {"last": state})


def stopped(y: np.ndarray) -> None:
    """As many observations as a walk has steps: their number differs from path to path."""
    n = 0
    mu = ab.sample("mu", dist.Normal(0.0, 1.0))
    while n < len(y) and ab.sample(f"go{n}", dist.Bernoulli(0.6)):
        ab.observe(f"y{n}", dist.Normal(mu, 1.0), y[n])
        n += 1
    ab.deterministic("n", n)


def stopped_parts(y: np.ndarray) -> Iterator[Part]:
    """Given n, the observations are jointly normal."""
    for n in range(len(y) + 1):
        prior = n * np.log(0.6) + (np.log(0.4) if n < len(y) else 0.0)
        joint = multivariate_normal(np.zeros(n), 1.0 + np.eye(n)).logpdf(y[:n]) if n else 0.0
        yield Part(float(prior + joint), {"n": n})


SERIES = np.array([0.3, -0.8, 1.4, 0.9, 1.7, -0.2])

CASES: list[Exact] = [
    Exact("normal_mean", normal_mean, (np.array([0.2, 1.9, 1.1]),), normal_mean_parts),
    Exact("kalman", kalman, (SERIES,), kalman_parts),
    Exact("hidden_markov", hidden_markov, (SERIES,), hidden_markov_parts),
    Exact("hidden_branches", hidden_branches, (SERIES[:4],), hidden_markov_parts),
    Exact("stopped", stopped, (np.array([0.4, 0.1, -0.5]),), stopped_parts),
    named("coin"),
    named("figure_two"),
    named("barrier"),
    named("survival"),
]

PEAK = -0.5 * np.log(2 * np.pi)  # of the log density of a standard normal
BOUNDS = {
    "normal_mean": 3 * (PEAK - np.log(1.5)),
    "kalman": 6 * (PEAK - np.log(0.8)),
    "hidden_markov": 6 * PEAK,
    "hidden_branches": 4 * PEAK,
    # Four deaths in one group and two in the other: no rates make these data more likely than those that suit them.
    "survival": 4 * (np.log(4 / 7.2) - 1) + 2 * (np.log(2 / 13.1) - 1),
}
"""What the log likelihood of a program never exceeds; zero for the others."""


def scores(case: Exact, posterior: ab.Posterior) -> dict[str, tuple[float, float]]:
    """The error in standard errors, and the standard error, of log Z, of each probability and of each expectation."""
    out = {}
    if posterior.log_evidence is not None:
        out["log Z"] = _score(posterior.log_evidence - case.log_evidence, posterior.log_evidence_sd)
    for name, truth in case.probabilities.items():
        value = max(truth, key=truth.__getitem__)
        mean, sd = posterior.expectation(lambda draw, name=name, value=value: float(draw[name] == value))
        out[f"{name} = {value}"] = _score(mean - truth[value], sd)
    for name, (function, truth) in case.expectations.items():
        mean, sd = posterior.expectation(function)
        out[name] = _score(mean - truth, sd)
    return out


def _score(error: float, sd: float) -> tuple[float, float]:
    return 0.0 if abs(error) < 1e-12 else error / sd, sd
