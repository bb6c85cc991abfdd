"""Gaussian paths: which they are, and their evidence and posterior against closed forms."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from scipy.stats import multivariate_normal

import anabranch as ab
import known
from anabranch import errors
from anabranch.conquer import Auto, Gaussian, PathTarget, solve
from anabranch.divide import is_quadratic

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((12, 3)), RNG.standard_normal(12)


def linear():
    b = ab.sample("b", dist.Normal(jnp.zeros(3), 2.0).to_event(1))
    ab.observe("y", dist.Normal(X @ b, 0.5), Y)


def random_walk():
    x = ab.sample("x0", dist.Normal(0.0, 1.0))
    for i in range(4):
        x = ab.sample(f"x{i + 1}", dist.Normal(0.9 * x, 0.3))
        ab.observe(f"y{i}", dist.Normal(x, 0.5), Y[i])


def process():
    distance = (X[:, None, 0] - X[None, :, 0]) ** 2
    kernel = np.exp(-0.5 * distance) + 1e-3 * np.eye(12)
    f = ab.sample("f", dist.MultivariateNormal(jnp.zeros(12), kernel))
    ab.observe("y", dist.Normal(f, 0.5), Y)


def indexed():
    means = ab.sample("means", dist.Normal(1.0, 3.0).expand([3]).to_event(1))
    ab.observe("y", dist.Normal(means[np.arange(12) % 3] / 2 - 1, 0.5), Y)


def unknown_noise():
    b = ab.sample("b", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(b * X[:, 0], ab.sample("sd", dist.HalfNormal(1.0))), Y)


def logistic():
    ab.observe("y", dist.Bernoulli(logits=ab.sample("b", dist.Normal(0.0, 1.0)) * X[:, 0]), Y > 0)


def product():
    mean = ab.sample("a", dist.Normal(0.0, 1.0)) * ab.sample("b", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(mean, 1.0), 1.0)


def absolute():
    ab.observe("y", dist.Normal(jnp.abs(ab.sample("a", dist.Normal(0.0, 1.0))), 1.0), 1.0)


def kinked():
    a = ab.sample("a", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(jnp.where(a > 0, a, 2 * a), 1.0), 1.0)


def scanned():
    a = ab.sample("a", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(lax.fori_loop(0, 2, lambda i, x: x * x, a), 1.0), 1.0)


def bounded():
    ab.observe("y", dist.Normal(ab.sample("a", dist.Uniform(0.0, 1.0)), 1.0), 1.0)


def heavy_tail():
    ab.observe("y", dist.Normal(ab.sample("a", dist.StudentT(3.0)), 1.0), 1.0)


def guarded():
    a = ab.sample("a", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(a if a > 0 else 3 * a, 1.0), 1.0)


GAUSSIAN = [linear, random_walk, process, indexed]
OTHERS = [unknown_noise, logistic, product, absolute, kinked, scanned, bounded, heavy_tail, guarded]


def path_of(program: Any) -> ab.Path:
    return max(ab.find_paths(program, executions=20).paths, key=lambda path: path.prior_probability)


@pytest.mark.parametrize("program", GAUSSIAN)
def test_gaussian_paths_are_recognised(program):
    assert is_quadratic(path_of(program))


@pytest.mark.parametrize("program", OTHERS)
def test_other_paths_are_not(program):
    path = path_of(program)
    assert not is_quadratic(path)
    with pytest.raises(errors.StrategyCannotRun, match="not quadratic"):
        solve(Gaussian(), PathTarget(path), 1_000)


def exact_linear() -> float:
    return multivariate_normal(np.zeros(12), 4 * X @ X.T + 0.25 * np.eye(12)).logpdf(Y)


def exact_process() -> float:
    kernel = np.exp(-0.5 * (X[:, None, 0] - X[None, :, 0]) ** 2) + 1e-3 * np.eye(12)
    return multivariate_normal(np.zeros(12), kernel + 0.25 * np.eye(12)).logpdf(Y)


def exact_walk() -> float:
    """By the covariance of the states."""
    steps = np.array([[0.9 ** (i - j) if i >= j else 0.0 for j in range(5)] for i in range(5)])
    states = steps @ np.diag([1.0] + [0.09] * 4) @ steps.T
    return multivariate_normal(np.zeros(4), states[1:, 1:] + 0.25 * np.eye(4)).logpdf(Y[:4])


def exact_indexed() -> float:
    one = (np.arange(12) % 3)[:, None] == np.arange(3)
    return multivariate_normal(np.full(12, -0.5), (9 / 4) * one @ one.T + 0.25 * np.eye(12)).logpdf(Y)


@pytest.mark.parametrize(
    ("program", "exact"),
    [(linear, exact_linear), (process, exact_process), (random_walk, exact_walk), (indexed, exact_indexed)],
)
def test_the_evidence_is_exact(program, exact):
    estimate = solve(Auto(), PathTarget(path_of(program)), 2_000)
    assert estimate.method == "Gaussian"
    assert abs(estimate.log_evidence - exact()) < 1e-8
    assert abs(estimate.log_evidence - exact()) < 4 * estimate.log_evidence_sd < 1e-7
    assert estimate.has_exact_evidence
    assert estimate.is_confirmed


def test_draws_have_the_moments_of_the_posterior():
    case = known.regression(5)
    estimate = solve(Gaussian(), PathTarget(case.path), 4_000)
    assert abs(estimate.log_evidence - case.log_evidence) < 1e-8
    z = (estimate.points.mean(axis=0) - case.mean) / (case.sd / np.sqrt(len(estimate.points)))
    assert np.abs(z).max() < 4
    assert np.allclose(estimate.points.std(axis=0), case.sd, rtol=0.06)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scales_far_from_one_are_found(scale):
    def program():
        ab.observe("y", dist.Normal(ab.sample("a", dist.Normal(5 * scale, 3 * scale)), scale), 4 * scale)

    estimate = solve(Gaussian(), PathTarget(path_of(program)), 500)
    exact = dist.Normal(5 * scale, np.sqrt(10.0) * scale).log_prob(4 * scale)
    assert abs(estimate.log_evidence - float(exact)) < 1e-5
    assert np.isclose(estimate.points.mean(), (5 * scale / 9 + 4 * scale) / (1 / 9 + 1), rtol=0.2)


def test_a_density_that_cannot_be_normalised_is_left_to_the_others():
    def program():
        a = ab.sample("a", dist.Normal(0.0, 1.0))
        ab.factor(a**2)

    target = PathTarget(path_of(program))
    assert solve(Gaussian(), target, 500).log_evidence == -np.inf
    assert solve(Auto(), PathTarget(path_of(program)), 3_000).method != "Gaussian"


def test_a_visit_with_too_few_evaluations_comes_again():
    target, rng = PathTarget(path_of(process)), np.random.default_rng(0)
    target.allow(5_000)
    state = Auto().start(target, rng)
    target.allow(20)
    state = Auto().advance(target, state, rng, 20)
    assert not Auto().estimate(target, state).is_informative
    target.allow(5_000)
    state = Auto().advance(target, state, rng, 5_000)
    assert abs(Auto().estimate(target, state).log_evidence - exact_process()) < 1e-8


def test_the_dimension_is_bounded():
    with pytest.raises(errors.StrategyCannotRun):
        solve(Gaussian(max_dim=2), PathTarget(path_of(linear)), 1_000)
    with pytest.raises(errors.BadSetting):
        Gaussian(max_dim=0)
