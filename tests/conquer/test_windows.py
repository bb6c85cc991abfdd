"""Discrete variables with infinitely or very many values, against closed forms and long sums."""

from __future__ import annotations

import logging
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions.conjugate import NegativeBinomial  # not in `distributions` before NumPyro 0.22
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp

import anabranch as ab
from anabranch.conquer import Auto, Elimination, PathTarget, solve
from anabranch.conquer.elimination import Eliminated, eliminate, rechecked
from anabranch.conquer.elimination.blocks import Block
from anabranch.conquer.elimination.windows import WindowSearch
from anabranch.divide import Bounds, Path, integer_bounds

pytestmark = pytest.mark.one_in(3)

K = np.arange(4_000)


def thinned(rate, p, y):
    """y is Poisson with the rate times p."""
    n = ab.sample("n", dist.Poisson(rate))
    ab.observe("y", dist.Binomial(n, p), y)


def mixed_rate(y, p=0.4, shape=2.0, scale=10.0):
    """y is negative binomial."""
    rate = ab.sample("rate", dist.Gamma(shape, 1 / scale))
    n = ab.sample("n", dist.Poisson(rate))
    ab.observe("y", dist.Binomial(n, p), y)


def the_path(program, *args, **kwargs) -> Path:
    return ab.find_paths(program, *args, executions=100, **kwargs).paths[0]


def windowed(program, *args, settings: Elimination | None = None, **kwargs) -> Eliminated:
    target = eliminate(PathTarget(the_path(program, *args, **kwargs)), settings or Elimination(), rng())
    assert isinstance(target, Eliminated)
    assert target.cut
    return target


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# Exact paths ----------------------------------------------------------------------------------------------------------


def check_exact(posterior, exact, tolerance=1e-9):
    assert posterior.log_evidence == pytest.approx(exact, abs=tolerance)
    assert posterior.log_evidence_sd == 0
    assert posterior.paths["method"].tolist() == ["Elimination"]
    assert posterior.paths["tail"][0] <= 1e-12
    assert not posterior.warnings


@pytest.mark.parametrize(
    ("rate", "p", "y", "most"),
    [
        (5.0, 0.3, 2, 40),
        (5.0, 0.9, 60, 40),
        (5.0, 0.9, 300, 200),
        (1_000.0, 0.1, 10, 700),
        (5_000.0, 0.5, 2_600, 1_200),
    ],
    ids=["near the prior", "far in its tail", "further", "far below it", "a large rate"],
)
def test_poisson_thinning(rate, p, y, most):
    check_exact(ab.infer(thinned, rate, p, y, seed=0), stats.poisson.logpmf(y, rate * p))
    (window,) = windowed(thinned, rate, p, y).values.values()
    assert len(window) < most


def test_probabilities_and_draws_of_a_count():
    posterior = ab.infer(thinned, 40.0, 0.3, 15, seed=0)
    exact = stats.poisson.pmf(K - 15, 28.0)
    found = posterior.probability("n")
    for n in range(25, 70):
        assert found[n] == pytest.approx(exact[n], abs=1e-10)
    mean, sd = posterior.expectation(lambda draw: draw["n"])
    assert abs(mean - 43.0) < 4 * sd < 2.0


def repeated_counts(y):
    """An N-mixture: several counts of the same animals."""
    n = ab.sample("n", dist.Poisson(40.0))
    with numpyro.plate("visits", len(y)):
        numpyro.sample("y", dist.Binomial(n, 0.25), obs=y)


def test_repeated_counts():
    y = np.array([10, 12, 9, 15])
    exact = logsumexp(stats.poisson.logpmf(K, 40) + stats.binom.logpmf(y[:, None], K, 0.25).sum(axis=0))
    check_exact(ab.infer(repeated_counts, y, seed=0), exact)


@pytest.mark.parametrize(
    ("prior", "log_prior"),
    [
        (lambda: dist.GammaPoisson(3.0, 0.25), stats.nbinom.logpmf(K, 3.0, 0.2)),
        (lambda: NegativeBinomial(2.5, probs=0.5), stats.nbinom.logpmf(K, 2.5, 0.5)),
        (lambda: dist.Geometric(0.125), stats.geom.logpmf(K + 1, 0.125)),
        (lambda: dist.ZeroInflatedPoisson(0.25, 8.0),
         np.log(0.75 * stats.poisson.pmf(K, 8.0) + 0.25 * (K == 0) + 1e-300)),
        (lambda: dist.MixtureSameFamily(dist.Categorical(jnp.array([0.5, 0.5])), dist.Poisson(jnp.array([4.0, 400.0]))),
         np.logaddexp(stats.poisson.logpmf(K, 4.0), stats.poisson.logpmf(K, 400.0)) - np.log(2)),
    ],
    ids=["gamma-Poisson", "negative binomial", "geometric", "zero-inflated", "two modes"],
)  # fmt: skip
def test_other_families(prior, log_prior):
    def program(y):
        ab.observe("y", dist.Poisson(ab.sample("n", prior()) + 0.5), y)

    own = the_path(program, 12).evaluate(K[:, None].astype(float)).log_density
    assert logsumexp(own) == pytest.approx(logsumexp(log_prior + stats.poisson.logpmf(12, K + 0.5)), abs=3e-6)
    check_exact(ab.infer(program, 12, seed=0), logsumexp(own))  # the beta function of JAX has six digits


def test_a_sum_of_two():
    def program(y):
        a, b = ab.sample("a", dist.Poisson(7.0)), ab.sample("b", dist.Poisson(11.0))
        ab.observe("y", dist.Normal(a + b, 0.5), y)

    exact = logsumexp(stats.poisson.logpmf(K, 18.0) + stats.norm.logpdf(40.25, K, 0.5))
    check_exact(ab.infer(program, 40.25, seed=0), exact)


def test_a_chain():
    def program(y):
        n = ab.sample("n", dist.Poisson(5.0))
        for t, value in enumerate(y):
            n = ab.sample(f"n{t}", dist.Poisson(0.75 * n + 1))
            ab.observe(f"y{t}", dist.Normal(n, 1.0), value)

    y, k = np.array([6.0, 8.0, 9.0, 14.0, 25.0, 11.0, 8.0]), np.arange(200)
    alpha = stats.poisson.logpmf(k, 5.0)
    for value in y:
        alpha = logsumexp(alpha[:, None] + stats.poisson.logpmf(k, 0.75 * k[:, None] + 1), axis=0)
        alpha += stats.norm.logpdf(value, k, 1.0)
    check_exact(ab.infer(program, y, seed=0), logsumexp(alpha))


@pytest.mark.parametrize("inner", ["binomial", "uniform"])
def test_a_support_that_depends_on_another_variable(inner):
    def program(y):
        n = ab.sample("n", dist.Poisson(30.0))
        m = ab.sample("m", dist.Binomial(n, 0.25) if inner == "binomial" else dist.DiscreteUniform(0, n))
        ab.observe("y", dist.Normal(m, 1.0), y)

    k, m = np.arange(300)[:, None], np.arange(300)
    given = stats.binom.logpmf(m, k, 0.25) if inner == "binomial" else np.where(m <= k, -np.log1p(k), -np.inf)
    exact = logsumexp(stats.poisson.logpmf(k, 30.0) + given + stats.norm.logpdf(20.0, m, 1.0))
    check_exact(ab.infer(program, 20.0, seed=0), exact)


def test_a_lower_bound_that_is_random():
    def program(y):
        low = ab.sample("low", dist.Poisson(10.0))
        ab.observe("y", dist.Normal(ab.sample("m", dist.DiscreteUniform(-low, low)), 1.0), y)

    k, m = np.arange(200)[:, None], np.arange(-200, 201)
    inside = np.where(np.abs(m) <= k, -np.log(2 * k + 1), -np.inf)
    exact = logsumexp(stats.poisson.logpmf(k, 10.0) + inside + stats.norm.logpdf(-7.5, m, 1.0))
    path = the_path(program, -7.5)
    assert integer_bounds(path) == (Bounds(0, None), Bounds(None, None))
    check_exact(ab.infer(program, -7.5, seed=0), exact)


def test_a_wide_range_is_summed_around_its_mode():
    def program(y):
        n = ab.sample("n", dist.DiscreteUniform(0, 10**6))
        ab.observe("y", dist.Normal(n, 100.0), y)

    check_exact(ab.infer(program, 480_000.25, seed=0), -np.log(10**6 + 1))
    (window,) = windowed(program, 480_000.25).values.values()
    assert len(window) < 2_500


def test_ranges_for_which_there_is_room_are_not_cut():
    def program(y):
        n = ab.sample("n", dist.DiscreteUniform(0, 5_000))
        ab.observe("y", dist.Normal(n, 10.0), y + ab.sample("k", dist.Bernoulli(0.5)))

    target = eliminate(PathTarget(the_path(program, 700.0)), Elimination(max_enumerated=0), rng())
    assert isinstance(target, Eliminated)
    assert not target.cut
    assert target.evaluations == 0


def test_a_guard_on_a_count():
    def program():
        n = ab.sample("n", dist.Poisson(4.0))
        ab.observe("y", dist.Normal(n, 2.0), 1.0 if n > 6 else 3.0)

    posterior = ab.infer(program, seed=0, split={"n": False})
    data = np.where(K > 6, 1.0, 3.0)
    exact = logsumexp(stats.poisson.logpmf(K, 4.0) + stats.norm.logpdf(data, K, 2.0))
    assert posterior.log_evidence == pytest.approx(exact, abs=1e-9)


# Beside other coordinates ---------------------------------------------------------------------------------------------


def test_density_and_gradient_are_those_of_the_sum():
    target = windowed(mixed_rate, 30)
    x = np.log(np.array([20.0, 50.0, 90.0]))[:, None]
    exact = stats.gamma.logpdf(np.exp(x), 2.0, scale=10.0) + x + stats.poisson.logpmf(30, 0.4 * np.exp(x))
    np.testing.assert_allclose(target.evaluate(x).log_density, exact[:, 0], atol=1e-9)
    _, gradient = target.differentiate(x)
    np.testing.assert_allclose(gradient, 2.0 - np.exp(x) / 10 + 30 - 0.4 * np.exp(x), atol=1e-7)
    assert target.tails(x).max() < 1e-12


def test_a_rate_that_is_random():
    posterior = ab.infer(mixed_rate, 30, seed=0, tolerance=0.02)
    exact = stats.nbinom.logpmf(30, 2.0, 1 / 5)
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.1
    assert posterior.paths["tail"][0] < 1e-12


def test_windows_of_a_plate_have_one_size():
    """So that one operation sums all of them."""

    def program(y):
        rate = ab.sample("rate", dist.Gamma(2.0, 0.2))
        n = ab.sample("n", dist.Poisson(rate).expand([len(y)]).to_event(1))
        ab.observe("y", dist.Binomial(n, 0.4), y)

    y = np.array([3, 7, 2, 9, 5, 30, 1, 4])
    target = windowed(program, y)
    assert len({len(window) for window in target.values.values()}) == 1
    (tables,) = target.tables
    assert len(tables.plan.batches) == 1
    x = np.log(np.array([5.0, 10.0, 20.0]))[:, None]
    exact = stats.gamma.logpdf(np.exp(x), 2.0, scale=5.0) + x + stats.poisson.logpmf(y, 0.4 * np.exp(x)).sum(1)[:, None]
    np.testing.assert_allclose(target.evaluate(x).log_density, exact[:, 0], atol=1e-9)


def test_where_the_prior_of_a_real_depends_on_a_count():
    """The sum over the prior is over the window, too, and its draws come from all values."""

    def program(y):
        n = ab.sample("n", dist.Poisson(8.0))
        v = ab.sample("v", dist.Normal(n, 1.0))
        ab.observe("y", dist.Normal(v, 1.0), y)

    target = windowed(program, 20.0)
    v = np.array([3.0, 8.0, 15.0])[:, None]
    exact = logsumexp(stats.poisson.logpmf(K, 8.0) + stats.norm.logpdf(v, K, 1.0), axis=1)
    np.testing.assert_allclose(target.evaluate(v).log_prior, exact, atol=1e-9)
    np.testing.assert_allclose(target.evaluate(v).log_density, exact + stats.norm.logpdf(20.0, v[:, 0], 1.0), atol=1e-9)


def test_a_heavy_tailed_rate_does_not_make_the_window_wide():
    def program(y):
        rate = ab.sample("rate", dist.HalfCauchy(10.0))
        n = ab.sample("n", dist.Poisson(rate))
        ab.observe("y", dist.Binomial(n, 0.5), y)

    target = windowed(program, 7)
    assert len(target.values[1]) < 2_000
    rates = np.array([2.0, 10.0, 40.0])
    exact = stats.halfcauchy.logpdf(rates, scale=10.0) + np.log(rates) + stats.poisson.logpmf(7, rates / 2)
    np.testing.assert_allclose(target.evaluate(np.log(rates)[:, None]).log_density, exact, atol=1e-9)


# What is not cut ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "concentration"), [(1e4, 0.1), (1e7, 2.0)])
def test_a_long_tail_is_not_cut(mean, concentration, caplog):
    def program():
        n = ab.sample("n", dist.NegativeBinomial2(mean, concentration))
        ab.observe("y", dist.Normal(jnp.log1p(n), 1.0), 3.0)

    target = PathTarget(the_path(program))
    with caplog.at_level(logging.INFO, "anabranch"):
        assert eliminate(target, Elimination(), rng()) is target
    assert "1 of 1 discrete variables were sampled, not summed out: they need too many values" in caplog.text


def test_a_tail_with_a_power_is_not_cut():
    """p(n) falls as n^(−2.5): the ratio of neighbours tends to one, and 10⁻¹² of the mass lies beyond 10⁸."""

    def program():
        n = ab.sample("n", dist.Geometric(0.01))
        ab.factor("power", -n * jnp.log(0.99) - 2.5 * jnp.log1p(n))

    target = PathTarget(the_path(program))
    assert eliminate(target, Elimination(), rng()) is target


def test_too_large_a_pair_keeps_one_of_two():
    def program(y):
        n = ab.sample("n", dist.Poisson(400.0))
        m = ab.sample("m", dist.Binomial(n, 0.5))
        ab.observe("y", dist.Normal(m, 20.0), y)

    target = eliminate(PathTarget(the_path(program, 210.0)), Elimination(max_factor=2**12), rng())
    assert isinstance(target, Eliminated)
    assert target.columns.tolist() == [0]
    n = np.array([350.0, 400.0, 450.0])
    inner = stats.binom.logpmf(K, n[:, None], 0.5) + stats.norm.logpdf(210.0, K, 20.0)
    exact = stats.poisson.logpmf(n, 400.0) + logsumexp(inner, axis=1)
    np.testing.assert_allclose(target.evaluate(n[:, None]).log_density, exact, atol=1e-9)


# Windows that are wrong -----------------------------------------------------------------------------------------------


def planted(target: Eliminated, values: dict[int, range]) -> Eliminated:
    """The target with another window."""
    (tables,) = target.tables
    other = type(tables)(tables.factors, values, tables.order)
    return Eliminated(
        target.target, Block([other], values, target.block.max_factor), cut=dict.fromkeys(values, (True, True))
    )


@pytest.mark.parametrize("window", [range(35), range(30, 45), range(60, 70)])
def test_a_planted_window_of_an_exact_path_is_found_out(window):
    target = planted(windowed(thinned, 40.0, 0.5, 30), {0: window})
    estimate = solve(Auto(), target, 100)
    other, checked = rechecked(target, estimate, Elimination(), rng())
    assert isinstance(other, Eliminated)
    missing = stats.poisson.logpmf(30, 20.0) - estimate.log_evidence
    assert checked.log_evidence_sd >= 0.99 * missing
    assert "of its mass lies beyond the values over which its discrete variables are summed" in checked.remarks[0]
    right, found = rechecked(other, solve(Auto(), other, 100), Elimination(), rng())
    assert right is other
    assert found.log_evidence == pytest.approx(stats.poisson.logpmf(30, 20.0), abs=1e-9)
    assert found.tail <= 1e-12
    assert not found.remarks


def test_a_good_window_stays():
    target = windowed(thinned, 40.0, 0.5, 30)
    estimate = solve(Auto(), target, 100)
    assert rechecked(target, estimate, Elimination(), rng())[0] is target
    plain = PathTarget(target.path)
    assert rechecked(plain, estimate, Elimination(), rng()) == (plain, estimate)


def test_a_run_with_a_planted_window_starts_again(monkeypatch):
    """The first windows end where the prior draws do: too early for these data, whatever the rate."""
    judge, calls = WindowSearch._judged, []

    def lax(self, tables, windows, cut):
        calls.append(windows)
        if len(calls) == 1:
            return {}, {column: range(72, 90) for column in windows}
        return judge(self, tables, windows, cut)

    monkeypatch.setattr(WindowSearch, "_judged", lax)
    monkeypatch.setattr(WindowSearch, "_with_bulk", lambda self, column, needed, window: needed)
    posterior = ab.infer(mixed_rate, 70, 0.5, seed=0, budget=40_000)
    exact = stats.nbinom.logpmf(70, 2.0, 1 / 6)
    assert len(calls) > 1
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.1
    assert not posterior.warnings


def test_a_budget_that_ends_before_the_other_windows_is_said(monkeypatch):
    """The windows are wrong every time."""
    monkeypatch.setattr(WindowSearch, "_judged", lambda self, tables, windows, cut: ({}, {1: range(70, 80)}))
    monkeypatch.setattr(WindowSearch, "_with_bulk", lambda self, column, needed, window: needed)
    posterior = ab.infer(mixed_rate, 70, 0.5, seed=0, budget=20_000)
    missing = stats.nbinom.logpmf(70, 2.0, 1 / 6) - posterior.log_evidence
    assert missing > 0.1
    assert posterior.log_evidence_sd > 0.3 * missing
    assert any("of its mass lies beyond the values" in warning for warning in posterior.warnings)


def test_random_rate_by_quadrature():
    """The reference of the tests above."""
    by_quad = quad(lambda r: stats.gamma.pdf(r, 2.0, scale=10.0) * stats.poisson.pmf(30, 0.4 * r), 0, 400)[0]
    assert np.log(by_quad) == pytest.approx(stats.nbinom.logpmf(30, 2.0, 1 / 5), abs=1e-8)


def test_settings():
    assert replace(Elimination(), tail=1e-6).tail == 1e-6
    for bad in ({"tail": 0.0}, {"tail": 1.0}, {"max_values": 0}):
        with pytest.raises(ab.errors.BadSetting, match=next(iter(bad))):
            Elimination(**bad)
