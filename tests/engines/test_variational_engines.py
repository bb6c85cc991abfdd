"""BBVI and SVI, on programs whose evidence and posterior are known."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.special import logsumexp
from scipy.stats import betabinom, binom, norm, poisson

import anabranch as ab
from anabranch import errors
from anabranch.divide import find_paths
from anabranch.engines.bbvi import BBVI
from anabranch.engines.importance import guided
from anabranch.engines.mean_field import Categories, Normals, SiteDraws
from anabranch.engines.parametrised_guide import ParametrisedGuide
from anabranch.engines.pathwise import Pathwise
from anabranch.engines.runner import Runner
from anabranch.engines.sampler import Session
from anabranch.engines.svi import SVI
from anabranch.engines.variational import Adam, bounded, centred
from anabranch.limits import Limits
from anabranch.progress import make_progress
from exact import named
from helpers import use_false_clock

pytestmark = pytest.mark.one_in(6)

Program = Callable[..., Any]


def infer(engine: Any, program: Program, *args: Any, budget: int = 20_000, seed: int = 0) -> ab.Posterior:
    return ab.infer(program, *args, engine=engine, budget=budget, seed=seed, tolerance=None)


def fitted(engine: BBVI, program: Program, *args: Any, budget: int, seed: int = 0) -> Any:
    """The guide of BBVI after its fit."""
    with make_progress(False) as display:
        return engine.fitted(Session(engine, find_paths(program, *args), Limits(budget), seed, display))


def check(posteriors: list[ab.Posterior], log_evidence: float, within: float) -> None:
    """The evidence is right, within its own errors, and these are neither too large nor too small."""
    z = np.array([(p.log_evidence - log_evidence) / p.log_evidence_sd for p in posteriors])
    assert (abs(z) < 4).all()
    assert abs(z.mean()) < 3.3 / np.sqrt(len(z))
    assert all(p.log_evidence_sd < within for p in posteriors)


def check_probabilities(posterior: ab.Posterior, name: str, exact: dict[Any, float]) -> None:
    for value, probability in exact.items():
        if probability > 0.01:
            mean, error = posterior.expectation(lambda draw, value=value: draw[name] == value, max_draws=20_000)
            assert abs(mean - probability) < 4 * error + 1e-3
            assert error < 0.05


# Programs ------------------------------------------------------------------------------------------------------------


def normal_model(y: np.ndarray) -> None:
    ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(1.0, 2.0)), 1.0), y)


Y = np.array([2.4, 1.9, 3.1])
MEAN, SD = (1 / 4 + Y.sum()) / (1 / 4 + 3), np.sqrt(1 / (1 / 4 + 3))
LOG_Z = float(norm.logpdf(Y, MEAN).sum() + norm.logpdf(MEAN, 1, 2) - norm.logpdf(MEAN, MEAN, SD))


def normal_guide(y: np.ndarray) -> None:
    scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
    ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), scale))


def many_sites(y: float) -> None:
    """As many sites as a Poisson number says."""
    n = int(ab.sample("n", dist.Poisson(2.0)))
    ab.observe("y", dist.Normal(sum((ab.sample(f"x{i}", dist.Normal(1.0, 1.0)) for i in range(n)), 0.0), 0.5), y)


def many_sites_log_evidence(y: float) -> tuple[float, dict[int, float]]:
    n = np.arange(60)
    terms = poisson.logpmf(n, 2.0) + norm.logpdf(y, n, np.sqrt(n + 0.25))
    return float(logsumexp(terms)), dict(enumerate(np.exp(terms - logsumexp(terms))))


def not_below_zero(y: float) -> None:
    """Executions below zero have density zero."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    if x < 0:
        ab.factor("never", -np.inf)
    ab.observe("y", dist.Normal(x, 0.5), y)


def not_below_zero_log_evidence(y: float) -> float:
    return float(norm.logpdf(y, 0, np.sqrt(1.25)) + norm.logcdf(0.8 * y / np.sqrt(0.2)))


# The gradient and its steps ------------------------------------------------------------------------------------------


def test_the_control_variate_is_the_mean_of_the_others():
    f = np.array([1.0, 5.0, -2.0, 0.5])
    others = [np.delete(f, i).mean() for i in range(4)]
    np.testing.assert_allclose(centred(f), f - others)


def test_f_is_bounded_from_below():
    assert bounded(np.full(3, -np.inf)) is None
    np.testing.assert_allclose(bounded(np.array([-np.inf, 1.0, 0.0])), [-49.0, 1.0, 0.0])
    # Where f is far apart everywhere, the bound is further down.
    f = np.array([-np.inf, 0.0, -1e3, -2e3, -3e3])
    np.testing.assert_allclose(bounded(f), [-1.5e4, 0.0, -1e3, -2e3, -3e3])


def test_adam_climbs():
    at, adam = np.array([5.0, -3.0]), Adam((2,))
    for i in range(500):
        at = at + 0.1 * (1 - i / 500) * adam.step(-at)
    np.testing.assert_allclose(at, 0.0, atol=1e-2)


def elbo_gradient(mean: float, scale: float) -> np.ndarray:
    """The gradient of the bound for the normal model, by m and log s of a normal guide."""
    return np.array([(MEAN - mean) / SD**2, 1 - scale**2 / SD**2])


def agrees(gradients: list[Any], exact: np.ndarray) -> None:
    gradients = np.array(gradients)
    error = gradients.std(axis=0, ddof=1) / np.sqrt(len(gradients))
    assert (abs(gradients.mean(axis=0) - exact) < 4 * error).all()
    assert (error < 0.1 * abs(exact)).all()


def test_the_gradient_of_a_factor():
    rng, factor = np.random.default_rng(0), Normals(np.zeros(10))
    factor.mean, factor.log_scale = np.array(1.2), np.array(np.log(0.8))
    gradients = []
    for _ in range(2000):
        u = 1.2 + 0.8 * factor.noise(20, rng)
        met = SiteDraws(np.arange(20), u, np.zeros(20), np.zeros(20))
        log_density = norm.logpdf(Y, u[:, None]).sum(axis=1) + norm.logpdf(u, 1, 2)
        gradients.append(factor.gradient(met, centred(log_density - factor.log_density(met)) / 20))
    agrees(gradients, elbo_gradient(1.2, 0.8) * [0.8, 1.0])  # steps of the mean are in units of s


def test_the_gradient_of_a_factor_with_values():
    """Each logit by finite differences of the bound, with a value that is not possible."""
    rng, factor = np.random.default_rng(1), Categories(np.array([0, 0, 1, 2, 2, 2]))
    reward, possible = np.array([1.0, -2.0, 5.0]), np.array([[True, True, False]])

    def bound(logits: np.ndarray) -> float:
        log_q = logits[:2] - logsumexp(logits[:2])
        return float(np.exp(log_q) @ (reward[:2] - log_q))

    exact = [(bound(factor.logits + h) - bound(factor.logits - h)) / 2e-5 for h in 1e-5 * np.eye(3)]
    gradients = []
    for _ in range(3000):
        probabilities = np.exp(factor.logits[:2]) / np.exp(factor.logits[:2]).sum()
        values = rng.choice(2, 20, p=probabilities)
        met = SiteDraws(np.arange(20), values, np.zeros(20), np.zeros(20), possible)
        gradients.append(factor.gradient(met, centred(reward[values] - factor.log_density(met)) / 20))
    gradients = np.array(gradients)
    error = gradients.std(axis=0, ddof=1) / np.sqrt(len(gradients))
    assert (abs(gradients.mean(axis=0) - exact) < 4 * error + 1e-9).all()
    assert (error[:2] < 0.05).all()
    assert exact[2] == 0


def gradients(guide: Program, program: Program, *args: Any, estimator: str, steps: int, n: int = 50) -> dict[str, list]:
    """Gradients at the initial value of the parameters."""
    division = find_paths(program, *args)
    runner, drawn = Runner(division, 1), ParametrisedGuide(guide, division.program, 2)
    pathwise, out = Pathwise(drawn), {}
    for _ in range(steps):
        traces, f = guided(runner, drawn, n)
        found = drawn.gradient(f) if estimator == "score" else pathwise.gradient(traces, f)
        for name, gradient in found.items():
            out.setdefault(name, []).append(gradient)
    return out


@pytest.mark.parametrize(("estimator", "steps"), [("score", 600), ("pathwise", 100)])
def test_the_gradient_of_a_guide(estimator, steps):
    found = gradients(normal_guide, normal_model, Y, estimator=estimator, steps=steps)
    agrees(list(zip(found["loc"], found["scale"], strict=True)), elbo_gradient(0.0, 1.0))


def mixed_model(y: float) -> None:
    z = ab.sample("z", dist.Bernoulli(0.3))
    a = ab.sample("a", dist.Gamma(2.0, 1.0))
    b = ab.sample("b", dist.Normal(jnp.where(z, a, -a), 1.0))
    c = ab.sample("c", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    ab.observe("y", dist.Normal(b + c[0] * c[1], 1.0), y)


def mixed_guide(y: float) -> None:
    """Sites of several kinds, each of which depends on those before."""
    a = ab.sample("a", dist.Gamma(numpyro.param("shape", 3.0, constraint=constraints.positive), 2.0))
    logit = numpyro.param("logit", 0.3) + 0.2 * a
    z = ab.sample("z", dist.Bernoulli(logits=logit))
    b = ab.sample("b", dist.Normal(numpyro.param("slope", jnp.array([0.5, -0.5]))[z] * a, 0.8))
    root = numpyro.param("root", jnp.eye(2), constraint=constraints.lower_cholesky)
    ab.sample("c", dist.MultivariateNormal(jnp.stack([0.1 * b, b * 0.0]), scale_tril=root))


def test_both_gradients_have_the_same_mean():
    score = gradients(mixed_guide, mixed_model, 1.0, estimator="score", steps=40, n=500)
    pathwise = gradients(mixed_guide, mixed_model, 1.0, estimator="pathwise", steps=20, n=500)
    assert score.keys() == pathwise.keys() == {"shape", "logit", "slope", "root"}
    for name in score:
        one, other = np.array(score[name]), np.array(pathwise[name])
        variance = one.var(axis=0, ddof=1) / len(one) + other.var(axis=0, ddof=1) / len(other)
        assert (abs(one.mean(axis=0) - other.mean(axis=0)) < 4 * np.sqrt(variance)).all()
        assert (np.sqrt(variance) < 0.25).all()


@pytest.mark.parametrize(
    "proposal",
    [
        lambda a, b: dist.LogNormal(a, b),
        lambda a, b: dist.Weibull(b, 1.5),
        lambda a, b: dist.TransformedDistribution(
            dist.Normal(0.0, 1.0), [dist.transforms.AffineTransform(a, b), dist.transforms.ExpTransform()]
        ),
    ],
    ids=["lognormal", "weibull", "transformed"],
)
def test_draws_move_with_the_parameters(proposal):
    def program():
        ab.observe("y", dist.Normal(ab.sample("x", dist.Gamma(2.0, 1.0)), 2.0), 1.2)

    def guide():
        a, b = numpyro.param("a", 0.2), numpyro.param("b", 0.4, constraint=constraints.positive)
        ab.sample("x", proposal(a, b))

    def bound(a: float, log_b: float) -> float:
        """The bound by the trapezoidal rule in log x."""
        log_x = np.linspace(-20, 5, 20_001)
        x = jnp.exp(log_x)
        log_q = proposal(a, jnp.exp(log_b)).log_prob(x)
        f = dist.Gamma(2.0, 1.0).log_prob(x) + dist.Normal(x, 2.0).log_prob(1.2) - log_q
        return float(jnp.sum(jnp.where(log_q > -500, jnp.exp(log_q + log_x) * f, 0.0)) * (log_x[1] - log_x[0]))

    found = gradients(guide, program, estimator="pathwise", steps=40, n=250)
    with jax.enable_x64(True):
        at = np.array([0.2, np.log(0.4)])
        exact = [(bound(*(at + h)) - bound(*(at - h))) / 2e-4 for h in 1e-4 * np.eye(2)]
    for name, slope in zip(("a", "b"), exact, strict=True):
        error = np.std(found[name], ddof=1) / np.sqrt(len(found[name]))
        assert abs(np.mean(found[name]) - slope) <= 4 * error < 0.1


# BBVI ----------------------------------------------------------------------------------------------------------------


def test_bbvi_where_the_guide_can_be_the_posterior():
    check([infer(BBVI(), normal_model, Y, seed=seed) for seed in range(8)], LOG_Z, within=0.01)
    [factor] = fitted(BBVI(), normal_model, Y, budget=60_000).factors.values()
    assert abs(factor.mean - MEAN) < 0.02 * SD
    assert abs(np.exp(factor.log_scale) - SD) < 0.02 * SD


def test_bbvi_finds_the_bias_of_a_coin():
    def flips(heads):
        ab.observe("heads", dist.Binomial(20, ab.sample("p", dist.Beta(2.0, 2.0))), heads)

    exact = float(betabinom.logpmf(15, 20, 2, 2))
    posteriors = [infer(BBVI(), flips, 15, seed=seed) for seed in range(6)]
    check(posteriors, exact, within=0.01)
    mean, error = posteriors[0].expectation(lambda draw: draw["p"])
    assert abs(mean - 17 / 24) < 4 * error < 0.02


@pytest.mark.parametrize(
    ("name", "discrete", "within"),
    [
        ("figure_two", "left", 0.02),
        ("coin", "fair", 0.03),
        ("geometric_count", "n", 0.05),
        ("counts", "shared", 0.02),
        ("categories", "K", 0.02),
        ("alarm", "rings", 0.02),
        ("change_point", "time", 0.05),
        ("barrier", "steps", 0.05),
        ("jumpy", "rounded", 0.05),
    ],
)
def test_bbvi_on_programs_with_several_paths(name, discrete, within):
    case = named(name)
    posteriors = [infer(BBVI(), case.program, *case.args, seed=seed, budget=12_000) for seed in range(2)]
    check(posteriors, case.log_evidence, within)
    check_probabilities(posteriors[0], discrete, case.probabilities[discrete])


@pytest.mark.slow
def test_bbvi_with_as_many_sites_as_a_poisson_number_says():
    log_evidence, probabilities = many_sites_log_evidence(4.0)
    posteriors = [infer(BBVI(), many_sites, 4.0, seed=seed, budget=12_000) for seed in range(2)]
    check(posteriors, log_evidence, within=0.1)
    check_probabilities(posteriors[0], "n", probabilities)


def test_bbvi_keeps_out_of_density_zero():
    posteriors = [infer(BBVI(), not_below_zero, 0.2, seed=seed) for seed in range(5)]
    check(posteriors, not_below_zero_log_evidence(0.2), within=0.02)
    [factor] = fitted(BBVI(), not_below_zero, 0.2, budget=20_000).factors.values()
    assert np.isfinite([factor.mean, factor.log_scale]).all()
    assert norm.cdf(0, factor.mean, np.exp(factor.log_scale)) < 0.05


def test_bbvi_where_everything_has_density_zero():
    def program():
        ab.sample("x", dist.Normal(0.0, 1.0))
        ab.factor("never", -np.inf)

    assert infer(BBVI(), program, budget=2_000).log_evidence == -np.inf


@pytest.mark.parametrize("fixed", [True, False])
def test_bbvi_where_possible_values_depend_on_the_execution(fixed):
    def program(y):
        top = ab.sample("top", dist.DiscreteUniform(1, 4))
        top = int(top) if fixed else top
        number = ab.sample("number", dist.DiscreteUniform(0, top))
        ab.observe("y", dist.Normal(number, 0.7), y)

    terms = {
        (top, number): norm.logpdf(2.2, number, 0.7) - np.log(4 * (top + 1))
        for top in range(1, 5)
        for number in range(top + 1)
    }
    exact = float(logsumexp(list(terms.values())))
    posteriors = [infer(BBVI(), program, 2.2, seed=seed) for seed in range(4)]
    check(posteriors, exact, within=0.02)
    tops = {t: sum(np.exp(v - exact) for (top, _), v in terms.items() if top == t) for t in range(1, 5)}
    check_probabilities(posteriors[0], "top", tops)


def test_bbvi_never_leads_a_program_where_it_cannot_go():
    """A list indexed by a site whose values differ from path to path."""
    case = named("chinese_restaurant_of_six")
    posterior = infer(BBVI(), case.program, case.args[0][:3], budget=6_000)
    exact = logsumexp([part.log_evidence for part in case.parts(case.args[0][:3])])
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.2


def test_bbvi_with_vectors_of_discrete_sites():
    def program(y):
        z = ab.sample("z", dist.Bernoulli(0.3).expand([4]).to_event(1))
        k = ab.sample("k", dist.Poisson(1.5).expand([2]).to_event(1))
        ab.observe("y", dist.Normal(jnp.sum(z) + jnp.sum(k), 0.8), y)

    terms = [
        binom.logpmf(z, 4, 0.3) + poisson.logpmf(k, 3.0) + norm.logpdf(5.0, z + k, 0.8)
        for z, k in itertools.product(range(5), range(60))
    ]
    check([infer(BBVI(), program, 5.0, seed=seed) for seed in range(4)], float(logsumexp(terms)), within=0.05)


def test_bbvi_leaves_what_binds_its_numbers_to_the_prior():
    def program(y):
        x = ab.sample("x", dist.Multinomial(3, np.array([0.2, 0.3, 0.5])))
        ab.observe("y", dist.Normal(x[0], 0.6), y)

    exact = logsumexp([binom.logpmf(k, 3, 0.2) + norm.logpdf(1.4, k, 0.6) for k in range(4)])
    check([infer(BBVI(), program, 1.4, seed=seed) for seed in range(4)], float(exact), within=0.02)
    assert fitted(BBVI(), program, 1.4, budget=4_000).factors == {}


def test_bbvi_where_one_name_has_two_kinds_of_site():
    def program(y):
        real = ab.sample("real", dist.Bernoulli(0.5))
        x = ab.sample("x", dist.Normal(1.0, 1.0) if real else dist.Poisson(1.0))
        ab.observe("y", dist.Normal(x, 0.5), y)

    n = np.arange(60)
    whole = logsumexp(poisson.logpmf(n, 1.0) + norm.logpdf(2.0, n, 0.5))
    exact = np.logaddexp(whole, norm.logpdf(2.0, 1.0, np.sqrt(1.25))) - np.log(2)
    check([infer(BBVI(), program, 2.0, seed=seed) for seed in range(4)], float(exact), within=0.05)


def test_bbvi_on_a_program_that_leaves_jax():
    case = named("leaves_jax")
    posterior = infer(BBVI(batch=50), case.program, *case.args, budget=400)
    assert abs(posterior.log_evidence - case.log_evidence) < 4 * posterior.log_evidence_sd < 1.0


def test_a_factor_takes_in_new_values():
    factor = Categories(np.array([3, 3, 5]))
    factor.adam.step(np.ones(2))
    factor.learn(np.array([4, 4, 3, 9]))
    np.testing.assert_array_equal(factor.values, [3, 4, 5, 9])
    probabilities = np.exp(factor.logits) / np.exp(factor.logits).sum()
    assert probabilities[0] / probabilities[2] == pytest.approx(2.5 / 1.5)
    assert probabilities[1] / probabilities[3] == pytest.approx(2.5 / 1.5)
    assert factor.adam.first.shape == factor.adam.second.shape == (4,)
    assert factor.adam.first[1] == factor.adam.first[3] == 0
    factor.learn(np.array([4, 5]))
    assert len(factor.values) == 4


def test_the_same_seed_gives_the_same_answer():
    case = named("figure_two")
    for engine in (BBVI(), SVI(branching_guide)):
        one, again = (infer(engine, case.program, *case.args, budget=4_000, seed=3) for _ in range(2))
        assert one.log_evidence == again.log_evidence
        np.testing.assert_array_equal(one.draws(50)["z0"], again.draws(50)["z0"])
        assert one.log_evidence != infer(engine, case.program, *case.args, budget=4_000, seed=4).log_evidence


def test_the_budget_and_the_time_are_kept(monkeypatch):
    posterior = infer(BBVI(fit=0.3), normal_model, Y, budget=5_000)
    assert posterior.run.evaluations == 5_000
    assert sum(len(solution.points) for solution in posterior.solutions) == pytest.approx(3_500, abs=200)
    use_false_clock(monkeypatch, step=0.0001)
    timed = ab.infer(normal_model, Y, engine=BBVI(), seconds=0.5, tolerance=None)
    assert timed.run.stopped == "The 0.5 seconds are over."
    check([timed], LOG_Z, within=0.05)


def test_it_stops_when_the_error_is_small():
    posterior = ab.infer(normal_model, Y, engine=BBVI(), budget=60_000, tolerance=0.02)
    assert posterior.run.evaluations < 40_000
    assert posterior.log_evidence_sd < 0.02


# SVI -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["score", "pathwise"])
def test_svi_where_the_guide_can_be_the_posterior(estimator):
    engine = SVI(normal_guide, rate=0.2, estimator=estimator)
    posteriors = [infer(engine, normal_model, Y, seed=seed) for seed in range(2)]
    check(posteriors, LOG_Z, within=0.01)
    found = engine.parameters(normal_model, Y, budget=60_000)
    assert abs(found["loc"] - MEAN) < 0.01 * SD
    assert abs(found["scale"] - SD) < 0.01 * SD


def test_svi_with_a_conjugate_guide():
    def flips(heads):
        ab.observe("heads", dist.Binomial(20, ab.sample("p", dist.Beta(2.0, 2.0))), heads)

    def guide(heads):
        shape = numpyro.param("shape", jnp.array([2.0, 2.0]), constraint=constraints.positive)
        ab.sample("p", dist.Beta(shape[0], shape[1]))

    engine = SVI(guide, rate=0.2)
    check([infer(engine, flips, 15)], float(betabinom.logpmf(15, 20, 2, 2)), within=0.01)
    np.testing.assert_allclose(engine.parameters(flips, 15, budget=60_000)["shape"], [17, 7], rtol=0.01)


def coin_guide(heads: int, flips: int) -> None:
    fair = ab.sample("fair", dist.Bernoulli(logits=numpyro.param("logit", 0.0)))
    if not fair:
        shape = numpyro.param("shape", jnp.ones(2), constraint=constraints.positive)
        ab.sample("bias", dist.Beta(shape[0], shape[1]))


def test_svi_where_parameters_belong_to_a_path():
    case, engine = named("coin"), SVI(coin_guide, rate=0.2)
    posterior = infer(engine, case.program, *case.args)
    check([posterior], case.log_evidence, within=0.01)
    check_probabilities(posterior, "fair", case.probabilities["fair"])
    found = engine.parameters(case.program, *case.args, budget=20_000)
    fair = case.probabilities["fair"][1]
    assert found["logit"] == pytest.approx(np.log(fair / (1 - fair)), abs=0.1)
    np.testing.assert_allclose(found["shape"], [10, 4], rtol=0.2)


def branching_guide(y: float) -> None:
    """A guide with a branch on a real number."""
    loc = numpyro.param("loc", jnp.array([0.0, 0.0]))
    z0 = ab.sample("z0", dist.Normal(loc[0], 2.0))
    if z0 < 0:
        ab.sample("z1", dist.Normal(loc[1], 2.0))


def test_svi_where_the_guide_has_guards():
    case = named("figure_two")
    posteriors = [infer(SVI(branching_guide, rate=0.2), case.program, *case.args, seed=seed) for seed in range(2)]
    check(posteriors, case.log_evidence, within=0.02)
    check_probabilities(posteriors[0], "left", case.probabilities["left"])


def test_svi_leaves_to_the_prior_what_the_guide_does_not_draw():
    log_evidence, probabilities = many_sites_log_evidence(4.0)

    def guide(y):
        ab.sample("n", dist.Poisson(numpyro.param("rate", 2.0, constraint=constraints.positive)))

    posteriors = [infer(SVI(guide), many_sites, 4.0, seed=seed, budget=10_000) for seed in range(2)]
    check(posteriors, log_evidence, within=0.05)
    check_probabilities(posteriors[0], "n", probabilities)
    assert SVI(guide).parameters(many_sites, 4.0, budget=5_000)["rate"] > 2.5


def test_svi_keeps_out_of_density_zero():
    def guide(y):
        scale = numpyro.param("scale", 1.0, constraint=constraints.positive)
        ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), scale))

    posteriors = [infer(SVI(guide), not_below_zero, 0.2, seed=seed) for seed in range(2)]
    check(posteriors, not_below_zero_log_evidence(0.2), within=0.1)


def test_a_parameter_may_be_asked_for_twice_and_inside_a_plate():
    def model(y):
        with numpyro.plate("data", 3):
            numpyro.sample("y", dist.Normal(numpyro.sample("x", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    def guide(y):
        with numpyro.plate("data", 3):
            loc = numpyro.param("loc", jnp.zeros(3))
            numpyro.sample("x", dist.Normal(0.5 * (loc + numpyro.param("loc")), 0.7071))

    engine = SVI(guide)
    check([infer(engine, model, Y)], float(norm.logpdf(Y, 0, np.sqrt(2)).sum()), within=0.01)
    np.testing.assert_allclose(engine.parameters(model, Y, budget=40_000)["loc"], Y / 2, atol=0.05)


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fit": 0.0}, "fit must be a share"),
        ({"fit": 1.0}, "fit must be a share"),
        ({"batch": 5}, "batch must be a whole number, at least 10"),
        ({"rate": 0.0}, "rate must be a positive number"),
        ({"rate": np.nan}, "rate must be a positive number"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        BBVI(**settings)
    with pytest.raises(ValueError, match=message):
        SVI(normal_guide, **settings)


def test_settings_of_one_engine_that_cannot_be():
    with pytest.raises(ValueError, match="from_prior must be a share"):
        BBVI(from_prior=0.0)
    with pytest.raises(ValueError, match="estimator must be"):
        SVI(normal_guide, estimator="other")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="guide must be a function"):
        SVI("guide")  # type: ignore[arg-type]


def refuses(guide: Program, message: str, program: Program = normal_model, args: Any = (Y,), **settings: Any) -> Any:
    with pytest.raises(errors.EngineCannotRun, match=message) as caught:
        infer(SVI(guide, **settings), program, *args, budget=2_000)
    return caught.value


def test_guides_without_anything_to_fit():
    def constant(y):
        ab.sample("x", dist.Normal(0.0, 1.0))

    def idle(y):
        numpyro.param("loc", 0.0)

    assert "ImportanceSampling(guide)" in refuses(constant, "no parameters").remedy
    refuses(idle, "draws nothing")


def test_guides_that_are_no_density():
    def certain(y):
        ab.sample("x", dist.Delta(numpyro.param("loc", 0.0)))

    def weighing(y):
        ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))
        ab.factor("more", 1.0)

    assert refuses(certain, "all its mass into one point").site == "x"
    assert refuses(weighing, "observes or weighs").site == "more"


def test_guides_without_a_gradient():
    def leaves(y):
        x = ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))
        float(x)

    def moving_support(y):
        ab.sample("x", dist.Uniform(numpyro.param("low", 0.0), 5.0))

    assert "BBVI" in refuses(leaves, "run by the interpreter").remedy
    assert refuses(moving_support, "support depends on the parameters").site == "x"


def test_guides_that_draw_nonsense():
    def unconstrained(y):
        ab.sample("x", dist.Normal(0.0, numpyro.param("scale", -1.0)))

    error = refuses(unconstrained, r"draws NaN, at the parameters scale = -1\.0")
    assert "constraints.positive" in error.remedy


def test_a_guide_that_draws_what_the_program_does_not_have():
    def guide(y):
        ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))
        ab.sample("other", dist.Normal(0.0, 1.0))

    assert refuses(guide, "the guide draws 'other'").site == "other"


def test_a_parameter_of_two_shapes():
    def guide(y):
        k = ab.sample("k", dist.Bernoulli(0.5))
        ab.sample("x", dist.Normal(jnp.sum(numpyro.param("w", jnp.zeros(int(k) + 1))), 1.0))

    def program(y):
        ab.sample("k", dist.Bernoulli(0.5))
        normal_model(y)

    refuses(guide, "'w' of the guide has different shapes", program)


@pytest.mark.parametrize(
    ("initial", "settings", "error", "message"),
    [
        (None, {}, TypeError, "'p' of the guide needs a number"),
        (lambda key: 1.0, {}, TypeError, "'p' of the guide needs a number"),
        ("one", {}, TypeError, "'p' of the guide needs a number"),
        (-1.0, {"constraint": constraints.positive}, ValueError, "'p' of the guide has the initial value -1"),
    ],
)
def test_initial_values_that_cannot_be(initial, settings, error, message):
    def guide(y):
        ab.sample("x", dist.Normal(numpyro.param("p", initial, **settings), 1.0))

    with pytest.raises(error, match=message):
        infer(SVI(guide), normal_model, Y)


def test_an_initial_value_that_is_random():
    def guide(y):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        numpyro.param("p", x)

    with pytest.raises(TypeError, match="'p' of the guide needs a number"):
        infer(SVI(guide), normal_model, Y)


def test_programs_that_are_not_smooth():
    case = named("leaves_jax")

    def for_floats(y):
        ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))
        ab.sample("affine", dist.Bernoulli(0.5))

    error = refuses(for_floats, "run by the interpreter", case.program, case.args, estimator="pathwise")
    assert "BBVI" in error.remedy
    refuses(
        normal_guide,
        r"branch of the program depends on a real quantity \(x",
        not_below_zero,
        (0.2,),
        estimator="pathwise",
    )
    refuses(
        branching_guide,
        r"branch of the guide depends on a real quantity \(z0",
        branching_program,
        (2.0,),
        estimator="pathwise",
    )


def branching_program(y: float) -> None:
    ab.sample("z0", dist.Normal(0.0, 1.0))
    normal_model(y)


def test_guides_that_do_not_move_smoothly():
    def dirichlet_program():
        p = ab.sample("p", dist.Dirichlet(jnp.ones(3)))
        ab.observe("y", dist.Categorical(p), 1)

    def dirichlet():
        ab.sample("p", dist.Dirichlet(numpyro.param("c", jnp.ones(3), constraint=constraints.positive)))

    def beta_program():
        ab.observe("y", dist.Binomial(5, ab.sample("p", dist.Beta(1.0, 1.0))), 4)

    def beta():
        ab.sample("p", dist.Beta(numpyro.param("a", 1.0, constraint=constraints.positive), 1.0))

    def positive_program():
        ab.observe("y", dist.Normal(ab.sample("x", dist.Exponential(1.0)), 1.0), 1.0)

    def real():
        ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))

    def partial(y):
        numpyro.sample("n", dist.Poisson(numpyro.param("rate", 2.0, constraint=constraints.positive)))

    refuses(dirichlet, "Dirichlet has no distribution function", dirichlet_program, (), estimator="pathwise")
    refuses(beta, "cannot be differentiated", beta_program, (), estimator="pathwise")
    refuses(real, "density zero where the guide goes", positive_program, (), estimator="pathwise")
    assert refuses(partial, "does not draw it", many_sites, (4.0,), estimator="pathwise").site == "x0"
