"""Coordinates that are gamma or beta given the others, integrated out: against closed forms and quadrature by SciPy."""

from __future__ import annotations

import logging
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import dblquad, quad
from scipy.special import betaln, gammaln, logsumexp
from scipy.stats import beta, cauchy, gamma, kstest, norm, poisson
from scipy.stats import t as student_t

import anabranch as ab
from anabranch.conquer import Auto, PathTarget
from anabranch.conquer.conjugate import find_conjugates
from anabranch.conquer.integrated import Integrated, NotConjugate
from anabranch.conquer.jumps import is_climbable
from anabranch.conquer.symmetry import find_symmetries
from anabranch.conquer.target_state import restored, state_of_target
from anabranch.divide import rebuild

RNG = np.random.default_rng(0)
TIMES = np.linspace(0.02, 0.98, 40)
COUNTS = RNG.poisson(np.where(TIMES < 0.35, 2.0, 6.0))
COINS = RNG.random(40) < np.where(TIMES < 0.6, 0.2, 0.8)
WAITS = RNG.exponential(np.where(TIMES < 0.5, 0.3, 1.5))
CURVE = np.sin(2.5 * TIMES) + 0.3 * RNG.standard_normal(40)
AHEAD = np.array([4, 6, 3])


def places_of(k, sites):
    if not k:
        return jnp.zeros(0)
    if sites:
        return jnp.stack([ab.sample(f"place_{i}", dist.Uniform(0.0, 1.0)) for i in range(k)])
    return ab.sample("places", dist.Uniform(jnp.zeros(k), 1.0))


def segments(k, of_segment, observed, sites=False):
    """k change points, and a value on each segment, as one site or as one of several."""
    places = places_of(k, sites)
    if sites:
        values = jnp.stack([ab.sample(f"value_{i}", of_segment) for i in range(k + 1)])
    else:
        values = ab.sample("values", of_segment.expand([k + 1]))
    observed(values[(TIMES[:, None] > jnp.sort(places)).sum(axis=1)])


def counts(k=2, sites=False):
    segments(k, dist.Gamma(2.0, 0.5), lambda rates: ab.observe("y", dist.Poisson(rates), COUNTS), sites)


def coins(k=1):
    segments(k, dist.Beta(2.0, 3.0), lambda p: ab.observe("y", dist.Bernoulli(p), COINS))


def waits(k=1):
    segments(k, dist.Exponential(2.0), lambda rates: ab.observe("y", dist.Exponential(rates), WAITS))


def curve():
    """A nonlinear mean with a gamma precision."""
    speed, precision = ab.sample("speed", dist.Normal(2.0, 1.0)), ab.sample("precision", dist.Gamma(2.0, 0.5))
    ab.observe("y", dist.Normal(jnp.sin(speed * TIMES), 1 / jnp.sqrt(precision)), CURVE)


def variance():
    """The same with an inverse gamma variance."""
    speed, square = ab.sample("speed", dist.Normal(2.0, 1.0)), ab.sample("square", dist.InverseGamma(2.0, 0.5))
    ab.observe("y", dist.Normal(jnp.sin(speed * TIMES), jnp.sqrt(square)), CURVE)


def path_of(program, *args):
    return ab.find_paths(program, *args).paths[0]


def integrated(program, *args):
    target = PathTarget(path_of(program, *args))
    found = find_conjugates(target)
    assert found is not None
    return Integrated(target, found)


def gamma_segment(shape, rate, total, number):
    """log ∫ Gamma(r; shape, rate) r^total exp(−number r) dr."""
    return shape * np.log(rate) - gammaln(shape) + gammaln(shape + total) - (shape + total) * np.log(rate + number)


def of_counts(part):
    return gamma_segment(2.0, 0.5, COUNTS[part].sum(), part.sum()) - gammaln(COUNTS[part] + 1).sum()


def of_coins(part):
    heads = COINS[part].sum()
    return betaln(2.0 + heads, 3.0 + part.sum() - heads) - betaln(2.0, 3.0)


def of_waits(part):
    return gamma_segment(1.0, 2.0, part.sum(), WAITS[part].sum())


def of_curve(speed):
    half = ((CURVE - np.sin(speed * TIMES)) ** 2).sum() / 2
    return gamma_segment(2.0, 0.5, 20.0, half) - 20 * np.log(2 * np.pi)


def named(target, points, name):
    return target.path.values(target.executions(points, np.random.default_rng(0)))[name]


@pytest.mark.parametrize(
    ("program", "of_part"), [(counts, of_counts), (coins, of_coins), (waits, of_waits)], ids=lambda x: x.__name__
)
def test_the_integral_over_segments_is_the_closed_form(program, of_part):
    target = integrated(program)
    points = target.prior(50, np.random.default_rng(1)).points
    evaluation = target.evaluate(points)
    for place, found in zip(np.sort(named(target, points, "places")), evaluation.log_likelihood, strict=True):
        segment = (TIMES[:, None] > place).sum(axis=1)
        expected = sum(of_part(segment == i) for i in range(len(place) + 1))
        assert abs(found - expected) < 1e-9
    prior = -np.logaddexp(0, points) - np.logaddexp(0, -points)
    np.testing.assert_allclose(evaluation.log_prior, prior.sum(axis=1), atol=1e-9)


@pytest.mark.parametrize("program", [curve, variance])
def test_the_integral_over_a_precision_and_its_gradient(program):
    target = integrated(program)
    assert target.conjugates.power.tolist() == [1.0 if program is curve else -1.0]
    points = np.linspace(-3.0, 6.0, 15)[:, None]
    evaluation, gradient = target.differentiate(points)
    np.testing.assert_allclose(evaluation.log_likelihood, [of_curve(x) for x in points[:, 0]], atol=1e-9)
    np.testing.assert_allclose(evaluation.log_density, target.evaluate(points).log_density, atol=1e-9)
    up, down = (target.evaluate(points + step).log_density for step in (1e-5, -1e-5))
    np.testing.assert_allclose(gradient[:, 0], (up - down) / 2e-5, rtol=1e-6, atol=1e-6)
    assert is_climbable(target)


def test_draws_are_from_the_conditional_distribution():
    point = np.zeros((4_000, 1))
    for program, of_part, name in ((waits, gamma_part, "values"), (coins, beta_part, "values")):
        draws = named(integrated(program), point, name)
        for i, part in enumerate((TIMES <= 0.5, TIMES > 0.5)):
            assert kstest(draws[:, i], of_part(part).cdf).pvalue > 0.01
        assert abs(np.corrcoef(draws.T)[0, 1]) < 0.06


def gamma_part(part):
    return gamma(1.0 + part.sum(), scale=1 / (2.0 + WAITS[part].sum()))


def beta_part(part):
    return beta(2.0 + COINS[part].sum(), 3.0 + (~COINS[part]).sum())


def test_a_point_takes_two_evaluations():
    target = integrated(counts)
    before = target.account.evaluations
    target.evaluate(target.prior(10, np.random.default_rng(0)).points)
    assert target.account.evaluations == before + 20
    target.allow(100)
    assert target.left == 50


@pytest.mark.parametrize("sites", [False, True])
def test_places_are_exchangeable_once_rates_are_integrated_out(sites):
    target = integrated(counts, 3, sites)
    points = target.prior(50, np.random.default_rng(0)).points
    assert target.dim == 3
    assert [each.size for each in find_symmetries(target, points)] == [3]
    assert not is_climbable(target)


# What has another form ------------------------------------------------------------------------------------------------


def factored(log_factor):
    """A rate, with a factor."""
    rate = ab.sample("rate", dist.Gamma(2.0, 1.0))
    ab.observe("y", dist.Poisson(rate), 3)
    ab.factor("other", log_factor(rate))


@pytest.mark.parametrize(
    "log_factor",
    [
        lambda r: -1e-3 * r**2,
        lambda r: 1e-3 * jnp.sin(r),
        lambda r: jnp.where(r > 30.0, 5.0, 0.0),
        lambda r: -0.1 * jnp.clip(r, 0.0, 40.0),
        lambda r: -0.1 * jnp.maximum(r, 1e-3),
        lambda r: 0.01 * jnp.floor(r),
        lambda r: -jnp.abs(r - 1e-9),
    ],
    ids=["square", "sine", "where", "clip", "maximum", "floor", "abs"],
)
def test_nearly_conjugate_densities_are_not_integrated(log_factor):
    assert find_conjugates(PathTarget(path_of(factored, log_factor))) is None


def test_bounds_that_change_nothing_are_none():
    found = find_conjugates(PathTarget(path_of(factored, lambda r: -0.1 * jnp.maximum(r, 0.0))))
    assert found is not None


def coupled(strength):
    a, b = ab.sample("a", dist.Gamma(2.0, 1.0)), ab.sample("b", dist.Gamma(3.0, 1.0))
    ab.observe("y", dist.Poisson(jnp.stack([a, b])), np.array([2, 5]))
    ab.factor("coupling", -strength * a * b)


def test_of_two_that_are_coupled_one_is_integrated():
    assert len(integrated(coupled, 0.0).conjugates.columns) == 2
    target = integrated(coupled, 1e-3)
    assert len(target.conjugates.columns) == 1
    (column,) = target.columns
    shape, total, other = ((2.0, 2, (3.0, 5)), (3.0, 5, (2.0, 2)))[column]
    u = np.array([[0.3], [1.4]])
    rate = np.exp(u[:, 0])
    expected = gamma.logpdf(rate, shape) + u[:, 0] + poisson.logpmf(total, rate)
    expected += gamma_segment(other[0], 1.0, other[1], 1 + 1e-3 * rate) - gammaln(other[1] + 1)
    np.testing.assert_allclose(target.evaluate(u).log_density, expected, atol=1e-9)


def hierarchy():
    """Rates that are gamma given their scale, which is gamma given them: the rates are integrated out."""
    scale = ab.sample("scale", dist.Gamma(2.0, 1.0))
    ab.observe("y", dist.Poisson(ab.sample("rates", dist.Gamma(2.0 * jnp.ones(3), scale))), AHEAD)


def of_hierarchy():
    def at(scale):
        return np.exp(gamma.logpdf(scale, 2.0) + sum(gamma_segment(2.0, scale, y, 1) - gammaln(y + 1) for y in AHEAD))

    return np.log(quad(at, 0, 40, epsabs=1e-14)[0])


def test_the_larger_part_of_a_hierarchy_is_integrated():
    assert integrated(hierarchy).conjugates.columns.tolist() == [1, 2, 3]
    posterior = ab.infer(hierarchy, seed=0, budget=60_000)
    assert abs(posterior.log_evidence - of_hierarchy()) < 4 * posterior.log_evidence_sd < 0.1


def elsewhere():
    """A rate that is gamma where x is below 2.5, and not above, where the posterior is."""
    x, rate = ab.sample("x", dist.Normal(0.0, 1.0)), ab.sample("rate", dist.Gamma(2.0, 1.0))
    ab.observe("y", dist.Poisson(rate), 3)
    ab.observe("at", dist.Normal(x, 0.3), 3.2)
    ab.factor("above", jnp.where(x > 2.5, -0.1 * rate**2, 0.0))


def of_elsewhere():
    def at(rate, x):
        logs = norm.logpdf(x) + norm.logpdf(3.2, x, 0.3) + gamma.logpdf(rate, 2.0) + poisson.logpmf(3, rate)
        return np.exp(logs - 0.1 * rate**2 * (x > 2.5))

    return np.log(sum(dblquad(at, *ends, 0.0, 25.0, epsabs=1e-10)[0] for ends in ((0.0, 2.5), (2.5, 6.0))))


def test_another_form_where_no_prior_draw_was_costs_the_integration_not_the_answer(caplog):
    target = integrated(elsewhere)
    with pytest.raises(NotConjugate):
        target.evaluate(np.array([[3.0]]))
    with caplog.at_level(logging.INFO, "anabranch"):
        posterior = ab.infer(elsewhere, seed=0, budget=100_000)
    assert "is visited with all its coordinates" in caplog.text
    assert abs(posterior.log_evidence - of_elsewhere()) < 4 * posterior.log_evidence_sd < 0.2
    assert posterior.run.evaluations < 102_000


# Inference ------------------------------------------------------------------------------------------------------------


def changes():
    k = int(ab.sample("K", dist.DiscreteUniform(0, 3)))
    counts(k, sites=True)


@cache
def of_changes():
    """log evidence of each K: by the numbers of change points between two data in turn, by dynamic programming."""
    gaps, n = np.log(np.diff(np.concatenate([[0.0], TIMES, [1.0]]))), len(TIMES)
    index = np.arange(n)
    segment = cache(lambda i, j: of_counts((index >= i) & (index < j)))
    states = {(0, 0): 0.0}
    for j, gap in enumerate(gaps):
        following = {}
        for (used, begun), log in states.items():
            for more in range(4 - used):
                inside = segment(begun, j) if more else 0.0  # segments without data have the mass one
                key = used + more, j if more else begun
                following[key] = np.logaddexp(
                    following.get(key, -np.inf), log + more * gap - gammaln(more + 1) + inside
                )
        states = following
    ends = [(used, log + segment(begun, n)) for (used, begun), log in states.items()]
    return np.array([logsumexp([log for u, log in ends if u == k]) + gammaln(k + 1) for k in range(4)]) - np.log(4)


def test_change_points_with_rates_of_their_own():
    exact = of_changes()
    posterior = ab.infer(changes, seed=0, budget=400_000)
    truth = np.exp(exact - logsumexp(exact))
    found = posterior.probability("K")
    assert abs(posterior.log_evidence - logsumexp(exact)) < 4 * posterior.log_evidence_sd < 0.1
    assert 0.5 * sum(abs(found.get(k, 0.0) - p) for k, p in enumerate(truth)) < 0.02
    for k, row in posterior.paths.set_index("path").iterrows():
        assert abs(row.log_evidence - exact[int(k[-1])]) < 4 * row.log_evidence_sd + 1e-9
    assert posterior.paths.set_index("path").loc["K = 0", "method"] == "Conjugate"


def test_all_coordinates_integrated_out_is_exact():
    posterior = ab.infer(counts, 0, seed=0)
    assert abs(posterior.log_evidence - of_counts(np.ones(40, bool))) < 1e-9
    assert posterior.paths["method"].tolist() == ["Conjugate"]
    mean, sd = posterior.expectation(lambda draw: draw["values"][0])
    assert abs(mean - (2.0 + COUNTS.sum()) / 40.5) < 4 * sd < 0.1


@pytest.mark.parametrize("program", [curve, variance])
def test_a_precision(program):
    posterior = ab.infer(program, seed=0, budget=60_000)
    truth = np.log(quad(lambda x: np.exp(norm.logpdf(x, 2.0) + of_curve(x)), -4, 8, epsabs=0, limit=200)[0])
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.05


def test_the_density_goes_on_from_its_state():
    """A target made again has the same frame, and counts on."""
    target = integrated(counts)
    target.target.is_integrable = True
    points = target.prior(20, np.random.default_rng(0)).points
    target.evaluate(points)
    is_climbable(target)
    state = state_of_target(target)
    other = restored(PathTarget(rebuild(target.path.program, target.path.choices)), state, None)
    assert isinstance(other, Integrated)
    assert (other.account.evaluations, other.climbable) == (target.account.evaluations, False)
    assert other.target.is_integrable
    assert state_of_target(other).conjugates.is_same(state.conjugates)
    np.testing.assert_array_equal(other.evaluate(points).log_density, target.evaluate(points).log_density)
    assert isinstance(restored(other, state_of_target(other.target), None), PathTarget)


def test_a_saved_run_goes_on(tmp_path):
    first = ab.infer(counts, 1, seed=0, tolerance=None, budget=30_000)
    first.save(tmp_path / "run")
    loaded, whole = (each.more(budget=30_000) for each in (ab.load(tmp_path / "run", counts, 1), first))
    assert loaded.log_evidence == whole.log_evidence
    assert loaded.run.evaluations == whole.run.evaluations > first.run.evaluations


def test_programs_without_such_sites_are_not_probed():
    def program():
        ab.observe("y", dist.StudentT(3.0, ab.sample("x", dist.Cauchy(0.0, 1.0)), 1.0), 1.0)

    target = PathTarget(path_of(program))
    assert Auto().integrated(target, 100_000) is target
    assert target.account.evaluations == 0
    assert target.is_integrable is False


def discrete_changes():
    """Zero to two change points between counts, with a gamma rate on each side."""
    k = int(ab.sample("K", dist.DiscreteUniform(0, 2)))
    places = jnp.stack([ab.sample(f"place_{i}", dist.DiscreteUniform(1, 39)) for i in range(k)]) if k else jnp.zeros(0)
    rates = ab.sample("rates", dist.Gamma(2.0, 0.5).expand([k + 1]))
    ab.observe("y", dist.Poisson(rates[(np.arange(40)[:, None] >= jnp.sort(places)).sum(axis=1)]), COUNTS)


def test_discrete_change_points_are_enumerated_once_rates_are_integrated_out():
    index = np.arange(40)
    segment = cache(lambda i, j: of_counts((index >= i) & (index < j)) if i < j else 0.0)
    logs = [segment(0, 40)]
    logs.append(logsumexp([segment(0, i) + segment(i, 40) for i in range(1, 40)]) - np.log(39))
    pairs = [sorted((i, j)) for i in range(1, 40) for j in range(1, 40)]
    logs.append(logsumexp([segment(0, i) + segment(i, j) + segment(j, 40) for i, j in pairs]) - 2 * np.log(39))
    posterior = ab.infer(discrete_changes, seed=0, budget=200_000)
    assert posterior.paths["method"].tolist() == ["Conjugate"] * 3
    assert abs(posterior.log_evidence - (logsumexp(logs) - np.log(3))) < 1e-9
    for k, probability in enumerate(np.exp(logs - logsumexp(logs))):
        assert abs(posterior.probability("K")[k] - probability) < 1e-9


def decided():
    """A probability that the decision depends on is beta in both paths."""
    p, x = ab.sample("p", dist.Beta(2.0, 1.0)), ab.sample("x", dist.Cauchy(0.0, 1.0))
    ab.observe("y", dist.StudentT(3.0, x if ab.sample("up", dist.Bernoulli(p)) else -x, 1.0), 3.0)


def test_a_probability_that_decides_the_path():
    found = quad(lambda x: cauchy.pdf(x) * student_t.pdf(3.0 - x, 3.0), -np.inf, np.inf)[0]
    posterior = ab.infer(decided, seed=0, budget=60_000)
    for path, probability in (("up = 1", 2 / 3), ("up = 0", 1 / 3)):
        row = posterior.paths.set_index("path").loc[path]
        assert abs(row.log_evidence - np.log(found * probability)) < 4 * row.log_evidence_sd < 0.1
