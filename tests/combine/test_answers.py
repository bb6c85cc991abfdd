"""Probabilities, quantiles, intervals and the summary of a posterior, against exact ones."""

import pickle

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import anabranch as ab
import solved
from anabranch import errors
from calibration import check_calibrated


@pytest.fixture(scope="module")
def division():
    return solved.divided()


@pytest.fixture(scope="module")
def posterior(division):
    return solved.posterior(division, n=2000)


MEANS, SDS = solved.means()[1:], np.sqrt(solved.SPREAD[1:] / (1 + 4 * solved.SPREAD[1:]))
"""Of `mean`, given the second and the third model."""


def quantile_of_mean(q):
    """Of `mean`, given that it is not zero."""
    weights = solved.weights()[1:] / solved.weights()[1:].sum()
    return brentq(lambda x: weights @ norm.cdf((x - MEANS) / SDS) - q, -10, 10)


def not_zero(draw):
    return draw["mean"] if draw["model"] > 0 else None


# Probabilities --------------------------------------------------------------------------------------------------------


def test_probabilities_are_a_dictionary_with_the_errors_of_expectations(posterior):
    found = posterior.probability("model")
    assert found == dict(found)
    assert isinstance(found, dict)
    assert found.keys() == found.errors.keys()
    for value, p in found.items():
        mean, sd = posterior.expectation(lambda draw, value=value: draw["model"] == value, max_draws=10_000)
        assert np.isclose(p, mean)
        assert np.isclose(found.errors[value], sd)
        assert abs(p - solved.weights()[value]) < 4 * sd < 0.05
    assert repr(found).startswith(f"{{{next(iter(found))}: 0.")
    assert repr(found).count("±") == 3
    again = pickle.loads(pickle.dumps(found))
    assert (again, again.errors) == (found, found.errors)


def test_probabilities_have_an_entry_for_executions_without_the_name():
    """A name that only one path has, with values that differ within the path."""

    def program(y):
        model = ab.sample("model", dist.Bernoulli(0.5))
        z = ab.sample("z", dist.Categorical(np.array([0.2, 0.3, 0.5]))) if model else 0
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x + z, 1.0), y)

    likelihood = norm.pdf(1.5, np.arange(3), np.sqrt(2))
    joint = np.append(0.5 * np.array([0.2, 0.3, 0.5]) * likelihood, 0.5 * likelihood[0])
    exact = dict(zip([0, 1, 2, None], joint / joint.sum(), strict=True))
    found = ab.infer(program, 1.5, budget=40_000).probability("z")
    assert found.keys() == exact.keys()
    for value, p in found.items():
        assert abs(p - exact[value]) < 4 * found.errors[value] < 0.04


def test_exact_probabilities_have_no_error():
    def coin(heads):
        fair = ab.sample("fair", dist.Bernoulli(0.5))
        ab.observe("heads", dist.Binomial(10, 0.5 if fair else 0.9), heads)

    assert set(ab.infer(coin, 7).probability("fair").errors.values()) == {0.0}


@pytest.mark.parametrize("engine", [ab.engines.ImportanceSampling(), ab.engines.SMC(particles=200)])
def test_engines_give_errors_by_their_blocks(engine):
    found = ab.infer(solved.choice, solved.Y, engine=engine, budget=6_000)
    probability = found.probability("model")
    for value, p in probability.items():
        _, sd = found.expectation(lambda draw, value=value: draw["model"] == value, max_draws=100_000)
        assert np.isclose(probability.errors[value], sd, rtol=1e-6)
        assert abs(p - solved.weights()[value]) < 4 * sd < 0.4


def test_a_single_chain_has_infinite_errors():
    found = ab.infer(solved.choice, solved.Y, engine=ab.engines.LightweightMH(chains=1), budget=300)
    assert set(found.probability("model").errors.values()) == {np.inf}
    assert found.quantile("mean", 0.5)[1] == np.inf


# Quantiles ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeds", [80, pytest.param(500, marks=pytest.mark.slow)])
def test_errors_of_quantiles_are_calibrated(division, seeds):
    levels = [0.05, 0.5, 0.9]
    truths = [quantile_of_mean(q) for q in levels]
    found = np.array([solved.posterior(division, seed, n=300).quantile(not_zero, levels) for seed in range(seeds)])
    for k, q in enumerate(levels):
        check_calibrated({f"quantile {q}": (found[:, 0, k] - truths[k]) / found[:, 1, k]}, of=3, min_scores=seeds)


def test_quantiles_and_intervals_are_exact_within_their_errors(posterior):
    median, sd = posterior.quantile(not_zero, 0.5)
    assert isinstance(median, float)
    assert abs(median - quantile_of_mean(0.5)) < 4 * sd < 0.1
    low, high, low_sd, high_sd = posterior.interval(not_zero, 0.8)
    assert abs(low - quantile_of_mean(0.1)) < 4 * low_sd < 0.2
    assert abs(high - quantile_of_mean(0.9)) < 4 * high_sd < 0.2


def test_a_name_stands_for_the_function_that_reads_it(posterior):
    assert posterior.expectation("mu") == posterior.expectation(lambda draw: draw["mu"])
    assert posterior.quantile("mu", 0.3) == posterior.quantile(lambda draw: draw["mu"], 0.3)
    with pytest.raises(errors.UnknownName, match="Did you mean 'mu'"):
        posterior.quantile("muu", 0.3)
    with pytest.raises(errors.BadSetting, match="q must be a number from 0 to 1"):
        posterior.quantile("mu", 1.5)
    with pytest.raises(errors.BadSetting, match="f must be a function of a draw, or the name"):
        posterior.quantile(3, 0.5)


def test_quantiles_of_a_discrete_variable_are_values_of_it(posterior):
    cumulative = np.cumsum(solved.weights())
    for q in (0.1, 0.5, 0.95):
        assert posterior.quantile("model", q)[0] == np.searchsorted(cumulative, q)
    values, _ = posterior.quantile(lambda draw: [draw["model"], -draw["model"]], [0.0, 1.0])
    assert values.tolist() == [[0, -2], [2, 0]]


@pytest.fixture(scope="module")
def ragged():
    def program(y):
        K = ab.sample("K", dist.DiscreteUniform(1, 2))
        mu = ab.sample("mu", dist.Normal(np.zeros(K), 1.0))
        ab.observe("y", dist.Normal(mu.sum(), 1.0), y)

    return ab.infer(program, 0.0, budget=40_000)


def test_an_element_is_read_where_it_exists(ragged):
    mean, sd = ragged.expectation("mu[1]")
    assert abs(mean) < 4 * sd < 0.1
    assert ragged.odds(lambda draw: len(draw["mu"]) > 1).prior_odds == pytest.approx(1)


# The summary ----------------------------------------------------------------------------------------------------------


def test_the_summary_has_the_moments_of_each_number_and_the_share_that_has_it(ragged):
    table = ragged.summary(mass=0.8)
    assert list(table.index) == ["K", "mu[0]", "mu[1]"]
    share = ragged.probability("K")[2]
    assert np.isclose(table.share["mu[0]"], 1)
    assert np.isclose(table.share["mu[1]"], share)
    # Given K, mu has the variance 1 − 1/(K + 1); its mean is zero.
    sd = np.sqrt(2 / 3)
    assert np.isclose(table.sd["mu[1]"], sd, rtol=0.05)
    for name in ("mu[0]", "mu[1]"):
        assert abs(table["mean"][name]) < 4 * table.mcse[name] < 0.1
        assert table.ess[name] == pytest.approx((table.sd[name] / table.mcse[name]) ** 2)
        assert table.ess[name] > 500
    assert abs(table.high["mu[1]"] - norm.ppf(0.9, 0, sd)) < 4 * ragged.quantile("mu[1]", 0.9)[1] < 0.2
    assert abs(table.low["mu[1]"] - norm.ppf(0.1, 0, sd)) < 4 * ragged.quantile("mu[1]", 0.1)[1] < 0.2


def test_the_summary_agrees_with_single_questions(posterior):
    table = posterior.summary()
    assert sorted(table.index) == ["mean", "model", "mu", "shift", "twice"]
    for name in table.index:
        mean, sd = posterior.expectation(name)
        assert (table["mean"][name], table.mcse[name]) == pytest.approx((mean, sd))
        assert (table.low[name], table.high[name]) == posterior.interval(name)[:2]
    assert list(posterior.summary(["mu"]).index) == ["mu"]
    with pytest.raises(errors.UnknownName):
        posterior.summary(["nu"])


def test_a_quantity_that_is_known_has_no_error():
    def program():
        n = ab.sample("n", dist.DiscreteUniform(0, 1))
        ab.deterministic("three", 3.0)
        ab.factor("data", 1.0 if n else 0.0)

    table = ab.infer(program).summary()
    assert table.loc["three", ["mean", "sd", "mcse"]].tolist() == pytest.approx([3, 0, 0], abs=1e-12)
    assert table.ess["three"] == np.inf


def test_the_error_of_a_probability_has_the_mass_that_a_doubted_path_may_have():
    """With too few evaluations a path is known by a draw or two. The value that it has may have much of the mass."""

    def program(y):
        k = int(ab.sample("k", dist.DiscreteUniform(1, 3)))
        df = ab.sample("df", dist.Gamma(2.0, 0.1))
        means = [ab.sample(f"mean{i}", dist.StudentT(3.0, 0.0, 3.0)) for i in range(3 * k)]
        ab.observe("y", dist.StudentT(df, sum(means), 1.0), y)

    posterior = ab.infer(program, np.random.default_rng(0).standard_t(3, 30), budget=2_000, seed=0)
    assert posterior.log_evidence_sd > 1
    probability = posterior.probability("k")
    for _, path in posterior.paths.iterrows():
        value = int(path["path"].split("=")[1])
        assert probability.errors[value] > 0.99 * path["weight_sd"] > 0.1
