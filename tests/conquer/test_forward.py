"""Programs in which nothing is observed: the posterior is the prior, and the evidence one."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
from anabranch import errors
from anabranch.conquer import Auto, Forward, PathTarget


def real(y=None):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def counts(y=None):
    k = numpyro.sample("k", dist.Poisson(3.0))
    numpyro.sample("y", dist.Poisson(k + 1.0), obs=y)


def fixed(y=None):
    k = numpyro.sample("k", dist.DiscreteUniform(1, 4))
    x = sum(numpyro.sample(f"x{i}", dist.Normal(1.0, 1.0)) for i in range(k))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def guarded(y=None):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    mean = 0.0
    if x > 1:
        mean = numpyro.sample("above", dist.Normal(x, 1.0))
    elif x > -1:
        mean = numpyro.sample("between", dist.Gamma(2.0, 1.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def weighted(y=None):
    p = numpyro.sample("p", dist.Beta(2.0, 1.0))
    x = numpyro.sample("x", dist.Normal(5.0, 1.0)) if numpyro.sample("b", dist.Bernoulli(p)) else 0.0
    numpyro.sample("y", dist.Normal(x, 1.0), obs=y)


def certain(y=None):
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(numpyro.sample("d", dist.Delta(x)), 1.0), obs=y)


# Mean and variance of y, by the laws of total expectation and variance.
ABOVE, BETWEEN = norm.sf(1.0), 1 - 2 * norm.sf(1.0)
MEAN_GUARDED = norm.pdf(1.0) + BETWEEN * 2.0
SQUARE_GUARDED = norm.pdf(1.0) + ABOVE + ABOVE + BETWEEN * 6.0 + 1.0
EXACT = {
    real: (0.0, 2.0, True),
    counts: (4.0, 7.0, True),
    fixed: (2.5, 2.5 + 1.25 + 1.0, True),
    guarded: (MEAN_GUARDED, SQUARE_GUARDED - MEAN_GUARDED**2, False),
    weighted: (10 / 3, 2 / 3 * 26 - (10 / 3) ** 2 + 1.0, False),
    certain: (0.0, 2.0, True),
}


@pytest.mark.parametrize("program", EXACT)
def test_without_data_the_posterior_is_the_prior(program):
    mean, variance, is_exact = EXACT[program]
    posterior = ab.infer(program, None, seed=1, workers=1)
    assert abs(posterior.log_evidence) < max(4 * posterior.log_evidence_sd, 1e-9)
    assert posterior.log_evidence_sd < (1e-9 if is_exact else 0.01)
    assert not posterior.warnings
    assert set(posterior.paths["method"]) == {"Forward"}
    estimate, sd = posterior.expectation(lambda draw: draw["y"])
    assert abs(estimate - mean) < 4 * sd < 0.2
    draws = posterior.draws(4_000, seed=0)["y"]
    assert abs(draws.mean() - mean) < 4 * np.sqrt(variance / 4_000)
    assert abs(draws.var() / variance - 1) < 0.15


def test_the_weight_of_each_path_is_its_prior_probability():
    posterior = ab.infer(guarded, None, seed=2)
    weights = posterior.paths.sort_values("weight")
    for weight, sd, exact in zip(
        weights["weight"], weights["weight_sd"], [norm.sf(1.0), norm.sf(1.0), BETWEEN], strict=True
    ):
        assert abs(weight - exact) < 4 * sd < 0.02


def target_of(program, *args):
    return PathTarget(ab.find_paths(program, *args).paths[0])


def test_visits_add_up():
    target, method, rng = target_of(guarded), Forward(), np.random.default_rng(0)
    state = method.start(target, rng)
    errors_so_far = []
    for _ in range(3):
        state = method.advance(target, state, rng, 10_000)
        estimate = method.estimate(target, state)
        errors_so_far.append(estimate.log_evidence_sd)
        assert abs(estimate.log_evidence - np.log(BETWEEN)) < 4 * estimate.log_evidence_sd
    np.testing.assert_allclose(errors_so_far, [np.sqrt((1 / BETWEEN - 1) / n) for n in (1e4, 2e4, 3e4)], rtol=0.2)
    assert 30_000 <= target.evaluations < 45_000
    assert estimate.evaluations == target.evaluations


def test_a_path_too_improbable_for_a_float():
    def program():
        for i in range(200):
            if ab.sample(f"b{i}", dist.Bernoulli(np.array(0.01))):
                ab.sample(f"x{i}", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=1)
    values = {f"b{i}": np.array([1]) for i in range(200)}
    [executions] = division.route(values)
    target, rng = PathTarget(executions.path), np.random.default_rng(0)
    state = Forward().advance(target, Forward().start(target, rng), rng, 100)
    estimate = Forward().estimate(target, state)
    assert estimate.log_evidence == pytest.approx(200 * np.log(0.01))
    assert estimate.log_evidence_sd < 1e-9


def test_forward_is_for_paths_with_a_prior_alone():
    def improper():
        with numpyro.handlers.scale(scale=2.0):
            ab.sample("x", dist.Normal(0.0, 1.0))

    for program, args in ((real, (0.7,)), (improper, ())):
        target = target_of(program, *args)
        with pytest.raises(errors.StrategyCannotRun, match=r"more than a prior.*Auto"):
            Forward().start(target, np.random.default_rng(0))
        assert Auto().start(target, np.random.default_rng(0)).method != "forward"


@pytest.mark.parametrize("setting", ["min_attempts", "max_draws"])
def test_settings(setting):
    with pytest.raises(ValueError, match=f"{setting} must be a whole number, at least 1"):
        Forward(**{setting: 0})
