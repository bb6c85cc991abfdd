"""Coordinates that are Gaussian given the others, integrated out: against closed forms and quadrature by SciPy."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, nbinom, norm

import anabranch as ab
from anabranch.conquer import Auto, PathTarget, Quadrature, solve
from anabranch.conquer.gaussian_marginal import gaussian_marginal
from anabranch.divide import quadratic_columns

RNG = np.random.default_rng(0)
X = RNG.standard_normal((20, 3))
Y = X @ np.array([1.0, -0.5, 0.0]) + 0.4 * RNG.standard_normal(20)
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def regression():
    """Three coefficients, Gaussian given the noise."""
    sd = ab.sample("sd", dist.HalfNormal(2.0))
    b = ab.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    ab.observe("y", dist.Normal(X @ b, sd), Y)


def groups():
    """A mean and eight effects, centred, Gaussian given their spread."""
    mean, spread = ab.sample("mean", dist.Normal(0.0, 10.0)), ab.sample("spread", dist.HalfNormal(10.0))
    effects = ab.sample("effects", dist.Normal(mean, spread).expand([8]).to_event(1))
    ab.observe("y", dist.Normal(effects, ERRORS), EFFECTS)


def two_scales():
    """A level for each of two halves of the data, Gaussian given the noise and the spread of the levels."""
    sd, spread = ab.sample("sd", dist.LogNormal(0.0, 0.5)), ab.sample("spread", dist.Gamma(2.0, 2.0))
    levels = [ab.sample(f"level{i}", dist.Normal(0.0, spread)) for i in range(2)]
    ab.observe("y", dist.Normal(jnp.repeat(jnp.stack(levels), 10), sd), Y)


def path_of(program):
    return ab.find_paths(program).paths[0]


def integrated(program):
    marginal = gaussian_marginal(PathTarget(path_of(program)), 2, 30, np.random.default_rng(0))
    assert marginal is not None
    return marginal


def log_regression(sd: float) -> float:
    return float(multivariate_normal.logpdf(Y, np.zeros(20), sd**2 * np.eye(20) + X @ X.T))


def log_groups(spread: float) -> float:
    covariance = np.diag(ERRORS**2 + spread**2) + 100.0
    return float(multivariate_normal.logpdf(EFFECTS, np.zeros(8), covariance))


def log_two_scales(sd: float, spread: float) -> float:
    block = sd**2 * np.eye(10) + spread**2
    return float(sum(multivariate_normal.logpdf(half, np.zeros(10), block) for half in (Y[:10], Y[10:])))


def evidence_of(name: str) -> float:
    if name == "regression":
        return np.log(
            quad(lambda s: np.exp(log_regression(s)) * 2 * norm.pdf(s, 0, 2), 0, 20, epsabs=0, epsrel=1e-11, limit=200)[
                0
            ]
        )
    if name == "groups":
        top = log_groups(5.0)
        f = lambda s: np.exp(log_groups(s) - top) * 2 * norm.pdf(s, 0, 10)  # noqa: E731
        return top + np.log(quad(f, 0, 120, epsabs=0, epsrel=1e-11, limit=200)[0])

    return log_evidence_of_two_scales()


@cache
def log_evidence_of_two_scales(spacing: float = 0.02) -> float:
    """A sum over a grid in the logarithms of both scales: of what decays this smoothly it is the integral."""
    u, v = np.meshgrid(np.arange(-5.0, 5.0, spacing), np.arange(-22.0, 5.0, spacing), indexing="ij")
    noise, common = np.exp(2 * u), np.exp(2 * u) + 10 * np.exp(2 * v)  # variances about the mean of ten, and of it
    log_density = norm.logpdf(u, 0.0, 0.5) + 2 * np.log(2.0) + 2 * v - 2 * np.exp(v)
    for half in (Y[:10], Y[10:]):
        mean = half.mean()
        log_density -= 0.5 * (9 * np.log(noise) + np.log(common) + 10 * np.log(2 * np.pi))
        log_density -= 0.5 * (((half - mean) ** 2).sum() / noise + 10 * mean**2 / common)
    return float(logsumexp(log_density) + 2 * np.log(spacing))


PROGRAMS = {"regression": regression, "groups": groups, "two_scales": two_scales}


@pytest.mark.parametrize(("name", "kept"), [("regression", ["sd"]), ("groups", ["spread"]),
                                            ("two_scales", ["sd", "spread"])])  # fmt: skip
def test_the_columns_are_found(name, kept):
    path = path_of(PROGRAMS[name])
    columns = {site.name: np.arange(path.dim)[site.columns] for site in path.sites}
    rest = np.setdiff1d(np.arange(path.dim), np.concatenate([columns[each] for each in kept]))
    np.testing.assert_array_equal(quadratic_columns(path), rest)


def test_a_product_of_two_is_not_quadratic_in_both():
    def program():
        a, b = ab.sample("a", dist.Normal(0.0, 1.0)), ab.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        ab.observe("y", dist.Normal(a * b, 1.0).to_event(1), np.array([1.0, 2.0]))

    path = path_of(program)
    np.testing.assert_array_equal(quadratic_columns(path), [1, 2])  # the larger of the two


@pytest.mark.parametrize("support", [dist.HalfNormal(1.0), dist.Uniform(0.0, 1.0), dist.StudentT(3.0, 0.0, 1.0)])
def test_what_is_not_gaussian_is_kept(support):
    def program():
        x = ab.sample("x", support)
        ab.observe("y", dist.Normal(x, ab.sample("sd", dist.HalfNormal(1.0))), 0.3)

    assert not len(quadratic_columns(path_of(program)))
    assert gaussian_marginal(PathTarget(path_of(program)), 2, 30, np.random.default_rng(0)) is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_density_is_the_integral(name):
    marginal = integrated(PROGRAMS[name])
    points = np.random.default_rng(1).normal(0.0, 0.7, (6, marginal.dim))
    closed = {"regression": log_regression, "groups": log_groups, "two_scales": log_two_scales}[name]
    evaluation = marginal.evaluate(points)
    exact = [closed(*np.exp(point)) for point in points]
    np.testing.assert_allclose(evaluation.log_density - evaluation.log_prior, exact, rtol=1e-9, atol=1e-8)


@pytest.mark.parametrize("scale", [1e-8, 1e-6, 1e-3, 1e2])
def test_far_from_the_centre_rounding_is_made_up_for(scale):
    """With a spread of 1e-8, effects of about ten determine their mean to eight digits."""
    evaluation = integrated(groups).evaluate(np.log([[scale]]))
    assert abs(evaluation.log_density[0] - evaluation.log_prior[0] - log_groups(scale)) < 1e-7


def test_what_rounding_hides_is_no_density():
    evaluation = integrated(groups).evaluate(np.array([[-40.0], [12.0], [300.0]]))
    assert (evaluation.log_density < -1e6).all()


def test_the_reference_of_two_coordinates():
    assert log_evidence_of_two_scales() == pytest.approx(log_evidence_of_two_scales(0.03), abs=1e-10)


def test_two_coordinates():
    with np.errstate(all="ignore"):  # as in a visit
        estimate = solve(Quadrature(max_dim=2), PathTarget(path_of(two_scales)), 80_000)
    assert estimate.log_evidence_sd < 1e-5
    assert abs(estimate.log_evidence - evidence_of("two_scales")) < 1e-5


@pytest.mark.parametrize("name", ["regression", "groups"])
def test_the_evidence_by_quadrature_is_exact(name):
    posterior = ab.infer(PROGRAMS[name], seed=0)
    assert posterior.paths["method"].tolist() == ["Quadrature"]
    assert posterior.log_evidence_sd < 1e-5
    assert abs(posterior.log_evidence - evidence_of(name)) < max(4 * posterior.log_evidence_sd, 1e-6)


def far_from_the_prior():
    rate, x = ab.sample("rate", dist.Gamma(2.0, 2.0)), ab.sample("x", dist.Normal(0.0, 1.0))
    ab.observe("count", dist.Poisson(rate), 26)
    ab.observe("y", dist.Normal(x, 1.0), 1.0)


def test_the_range_is_extended_as_far_as_there_is_mass():
    """Far beyond the prior draws with which it begins, whatever the last bits of its edges are."""
    target = PathTarget(path_of(far_from_the_prior))
    exact = nbinom(2, 2 / 3).logpmf(26) + norm(0.0, np.sqrt(2.0)).logpdf(1.0)
    found = [solve(Quadrature(max_scan=0), target, 2_000, seed=seed).log_evidence for seed in range(12)]
    np.testing.assert_allclose(found, exact, atol=2e-6)


def test_draws_of_what_was_integrated_out_have_the_right_moments():
    """E[b | y] = Σ_sd p(sd | y) E[b | sd, y], on a grid."""
    posterior = ab.infer(regression, seed=1)
    grid = np.linspace(0.1, 3.0, 2_000)
    weights = np.array([log_regression(s) for s in grid]) + norm.logpdf(grid, 0.0, 2.0)
    weights = np.exp(weights - logsumexp(weights))
    precisions = [np.eye(3) + X.T @ X / s**2 for s in grid]
    means = np.array([np.linalg.solve(p, X.T @ Y / s**2) for p, s in zip(precisions, grid, strict=True)])
    second = np.array([np.diag(np.linalg.inv(p)) for p in precisions]) + means**2
    for i in range(3):
        mean, error = posterior.expectation(lambda draw, i=i: draw["b"][i])
        assert abs(mean - weights @ means[:, i]) < 4 * error < 0.1
        square, error = posterior.expectation(lambda draw, i=i: draw["b"][i] ** 2)
        assert abs(square - weights @ second[:, i]) < 4 * error < 0.15
    mean, error = posterior.expectation(lambda draw: draw["sd"])
    assert abs(mean - weights @ grid) < 4 * error < 0.05


def test_a_run_without_a_tolerance_leaves_what_more_evaluations_cannot_change():
    """The error of the integration is above that of rounding; after the scan the path has many draws and no visits."""
    settings = Auto(quadrature=Quadrature(tolerance=1e-4, max_scan=1_000))
    posterior = ab.infer(regression, budget=300_000, tolerance=None, seed=0, engine=ab.DCC(strategy=settings))
    [path] = posterior.paths.itertuples()
    assert path.method == "Quadrature"
    assert path.visits <= 5
    assert posterior.run.evaluations < 50_000
    assert "solved exactly" in posterior.run.stopped
    assert len(posterior.solutions[0].points) > 10_000


def test_where_draws_take_many_evaluations_a_scan_does_not_make_them_fewer():
    settings, target, rng = (
        Quadrature(max_rows=20_000),
        PathTarget(ab.find_paths(regression).paths[0]),
        np.random.default_rng(0),
    )
    target.allow(100_000)
    with np.errstate(all="ignore"):  # as in a visit
        state = settings.advance(target, settings.start(target, rng), rng, 20_000)
        assert len(state.points) == 2_000  # ten evaluations each
        assert len(settings.advance(target, state, rng, 20_000).points) == 2_000


def test_a_jump_is_left_to_other_methods():
    """The cells do not come to an end, or the draws contradict them: no exact answer is claimed."""

    def program():
        z = ab.sample("z", dist.Normal(0.0, 1.0))
        level = ab.sample("level", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(level, jnp.where(z > 0.123456, 0.1, 2.0)), 0.5)

    posterior = ab.infer(program, seed=0, budget=200_000)
    above = norm.sf(0.123456)
    exact = np.log(above * norm.pdf(0.5, 0, np.sqrt(1.01)) + (1 - above) * norm.pdf(0.5, 0, np.sqrt(5.0)))
    assert abs(posterior.log_evidence - exact) < max(4 * posterior.log_evidence_sd, 1e-6)


def test_a_narrow_mode_far_from_the_others_is_found_or_not_claimed():
    """Two levels of noise explain the data, one of them in a small part of the prior of the scale."""

    def program():
        u = ab.sample("u", dist.Normal(0.0, 3.0))
        level = ab.sample("level", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(level, 1.0), 0.0)
        ab.factor("narrow", jnp.logaddexp(-0.5 * u**2, 8.0 - 0.5 * ((u - 2.7) / 1e-3) ** 2))

    posterior = ab.infer(program, seed=0, budget=300_000)
    wide = np.log(np.sqrt(1 / (1 + 1 / 9)) / 3)
    narrow = 8.0 + np.log(1e-3 * np.sqrt(2 * np.pi)) + norm.logpdf(2.7, 0, 3)
    exact = norm.logpdf(0.0, 0, np.sqrt(2)) + np.logaddexp(wide, narrow)
    assert abs(posterior.log_evidence - exact) < max(4 * posterior.log_evidence_sd, 1e-4)


def test_it_can_be_left_out():
    engine = ab.DCC(strategy=Auto(quadrature=Quadrature(max_gaussian=0)))
    posterior = ab.infer(regression, seed=0, engine=engine, budget=100_000)
    assert posterior.paths["method"].tolist() != ["Quadrature"]
    assert abs(posterior.log_evidence - evidence_of("regression")) < 4 * posterior.log_evidence_sd < 0.1


def test_quadrature_refuses_what_it_does_not_suit():
    with pytest.raises(ab.errors.StrategyCannotRun, match="more than 8 of them"):
        Quadrature(max_gaussian=8).start(PathTarget(path_of(groups)), np.random.default_rng(0))
