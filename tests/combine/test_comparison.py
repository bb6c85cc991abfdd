"""Comparisons of posteriors, and odds of groups of executions, against closed forms."""

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import anabranch as ab
import solved
from anabranch import errors
from anabranch.combine import Posterior


def normal(y, scale):
    """Normal data whose mean has a normal prior."""
    ab.observe("y", dist.Normal(ab.sample("mu", dist.Normal(0.0, scale)), 1.0), y)


def log_evidence(scale):
    return multivariate_normal.logpdf(solved.Y, np.zeros(4), np.eye(4) + scale**2)


SCALES = {"narrow": 1.0, "wide": 30.0, "middle": 5.0**0.5}


@pytest.fixture(scope="module")
def models():
    return {name: ab.infer(normal, solved.Y, scale, budget=20_000) for name, scale in SCALES.items()}


@pytest.fixture(scope="module")
def table(models):
    return ab.compare(models, prior={"narrow": 1, "wide": 4, "middle": 1}).table


def test_evidences_and_bayes_factors_are_exact_within_their_errors(table):
    best = max(map(log_evidence, SCALES.values()))
    assert table.log_evidence.is_monotonic_decreasing
    assert table.log_bayes_factor.iloc[0] == table.log_bayes_factor_sd.iloc[0] == 0
    for name, scale in SCALES.items():
        row = table.loc[name]
        assert abs(row.log_evidence - log_evidence(scale)) < 4 * row.log_evidence_sd < 0.1
        assert abs(row.log_bayes_factor - (log_evidence(scale) - best)) <= 4 * row.log_bayes_factor_sd < 0.2


def test_probabilities_take_the_prior_odds(table):
    weights = np.array([np.exp(log_evidence(SCALES[name])) * (4 if name == "wide" else 1) for name in table.index])
    assert np.isclose(table.probability.sum(), 1)
    assert (np.abs(table.probability - weights / weights.sum()) < 4 * table.probability_sd).all()
    assert (table.probability_sd < 0.02).all()


def test_elpd_is_that_of_leaving_one_out_and_stacking_its_optimum(table):
    exact = {name: solved.leave_one_out(scale**2) for name, scale in SCALES.items()}
    best = max(exact, key=lambda name: exact[name].sum())
    for name, log_predictive in exact.items():
        row, difference = table.loc[name], log_predictive - exact[best]
        assert abs(row.elpd - log_predictive.sum()) < 0.04
        assert np.isclose(row.elpd_sd, 2 * log_predictive.std(ddof=1), rtol=0.05)
        assert abs(row.elpd_difference - difference.sum()) < 0.05
        assert np.isclose(row.elpd_difference_sd, 2 * difference.std(ddof=1), atol=0.03)
    assert (table.pareto_k < 0.7).all()
    assert np.isclose(table.stacking_weight.sum(), 1)
    assert table.stacking_weight[best] > 0.9


def test_it_prints_and_plots_itself(models, tmp_path):
    comparison = ab.compare(models)
    lines = repr(comparison).splitlines()
    assert lines[0].split()[0] == "model"
    assert [line.split()[0] for line in lines[1:4]] == comparison.table.index.tolist()
    assert "±" in lines[1]
    assert comparison._repr_html_().count("<tr>") == 4
    figure = comparison.plot(file=tmp_path / "comparison.png")
    assert (tmp_path / "comparison.png").stat().st_size > 1000
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == comparison.table.index.tolist()


def test_a_model_with_random_control_flow_is_compared_by_all_its_paths(models):
    """The mixture of three models has the leave-one-out density of the mixture."""
    posterior = solved.posterior(solved.divided(), n=4000)
    row = ab.compare({"choice": posterior, **models}).table.loc["choice"]
    evidences = solved.evidences()
    exact = 0.0
    for i in range(4):
        rest = np.delete(solved.Y, i)
        without = [
            p * multivariate_normal.pdf(rest, np.zeros(3), np.eye(3) + s)
            for p, s in zip(solved.PRIOR, solved.SPREAD, strict=True)
        ]
        exact += np.log(evidences.sum() / np.sum(without))
    assert abs(row.elpd - exact) < 0.05


def test_what_cannot_be_compared_is_said(models):
    def other_name(y, scale):
        ab.observe("data", dist.Normal(ab.sample("mu", dist.Normal(0.0, scale)), 1.0), y)

    renamed = ab.infer(other_name, solved.Y, 1.0, budget=20_000)
    same = ab.compare({"a": models["narrow"], "b": renamed})
    assert np.isfinite(same.table.elpd).all()
    assert not same.notes
    shorter = ab.infer(normal, solved.Y[:3], 1.0, budget=20_000)
    different = ab.compare({"a": models["narrow"], "b": shorter})
    assert different.table.elpd.isna().all()
    assert any("do not observe the same data" in note for note in different.notes)
    chains = ab.infer(normal, solved.Y, 1.0, engine=ab.engines.LightweightMH(chains=4), budget=500)
    without = ab.compare({"a": models["narrow"], "b": chains})
    assert without.table.probability.isna().all()
    assert np.isfinite(without.table.elpd).all()
    assert any("The engine of b gives no evidence" in note for note in without.notes)
    assert "-" in repr(without)


@pytest.mark.parametrize("wrong", [{}, {"a": 1, "b": 2}, [1, 2]])
def test_models_must_be_posteriors_by_name(wrong):
    with pytest.raises(errors.BadSetting, match="two or more posteriors by name"):
        ab.compare(wrong)


def test_prior_must_fit_the_models(models):
    with pytest.raises(errors.BadSetting, match="a number for each model"):
        ab.compare(models, prior={"narrow": 1.0})
    with pytest.raises(errors.BadSetting, match=r"prior\['wide'\] must be a positive number"):
        ab.compare(models, prior={"narrow": 1, "wide": -4, "middle": 1})


# Odds -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def posterior():
    return solved.posterior(solved.divided(), n=2000)


def test_odds_of_paths_are_those_of_their_evidences(posterior):
    weights = solved.weights()
    found = posterior.odds(lambda draw: draw["model"] > 0)
    assert (
        abs(found.log_posterior_odds - np.log(weights[1:].sum() / weights[0])) < 4 * found.log_posterior_odds_sd < 0.2
    )
    assert np.isclose(found.prior_odds, 1.0)
    assert found.log_prior_odds_sd == 0
    assert np.isclose(found.bayes_factor, found.posterior_odds)
    assert repr(found).startswith("Odds(posterior ")
    assert "prior 1 ± 0" in repr(found)


def test_odds_against_another_group_leave_out_the_rest(posterior):
    weights = solved.weights()
    found = posterior.odds(lambda draw: draw["model"] == 2, against=lambda draw: draw["model"] == 1)
    assert abs(found.log_posterior_odds - np.log(weights[2] / weights[1])) < 4 * found.log_posterior_odds_sd < 0.2
    assert np.isclose(found.prior_odds, 2 / 3)
    assert found.log_prior_odds_sd == 0
    with pytest.raises(ValueError, match="in both groups"):
        posterior.odds(lambda draw: draw["model"] > 0, against=lambda draw: draw["model"] > 1)


def test_odds_within_a_path_are_those_of_its_draws(posterior):
    """Executions that have `mu`: a priori it is standard normal, a posteriori known for each model."""
    found = posterior.odds(lambda draw: draw["mu"] > 0)
    assert abs(found.log_prior_odds) < 4 * found.log_prior_odds_sd < 0.3
    weights = solved.weights()[1:] / solved.weights()[1:].sum()
    means, sds = solved.means()[1:] * [1, 0.2], np.sqrt([1 / 5, 17 / 21])
    above = weights @ norm.cdf(means / sds)
    assert abs(found.log_posterior_odds - np.log(above / (1 - above))) < 4 * found.log_posterior_odds_sd < 0.6


def test_odds_far_beyond_floats_are_finite_logarithms():
    def two(y):
        far = ab.sample("far", dist.Bernoulli(0.25))
        ab.observe("y", dist.Normal(50.0 if far else 0.0, 1.0), y)

    found = ab.infer(two, 0.0).odds(lambda draw: draw["far"] == 0)
    assert np.isclose(found.log_bayes_factor, 1250.0)
    assert found.log_bayes_factor_sd == 0
    assert np.isclose(found.prior_odds, 3.0)
    assert found.bayes_factor == np.inf
    assert "exp(1250 ± 0)" in repr(found)


def test_a_group_without_draws_has_an_infinite_error(posterior):
    found = posterior.odds(lambda draw: draw["model"] == 7)
    assert found.log_posterior_odds == -np.inf
    assert found.log_posterior_odds_sd == np.inf
    assert found.posterior_odds == 0


def test_mass_that_doubtful_paths_may_have_is_in_the_error(posterior):
    from dataclasses import replace

    heaviest = posterior.solutions[0]
    doubtful = replace(heaviest, log_possible=heaviest.log_evidence + np.log(3.0), doubt="few draws")
    other = Posterior(posterior.program, [doubtful, *posterior.solutions[1:]], posterior.run)
    group = heaviest.path.description
    sure, doubted = (each.odds(lambda draw: draw.path == group) for each in (posterior, other))
    assert doubted.log_posterior_odds == sure.log_posterior_odds
    assert np.isclose(doubted.log_posterior_odds_sd, np.hypot(sure.log_posterior_odds_sd, np.log(3.0)))


@pytest.mark.parametrize("engine", [ab.engines.SMC(particles=500), ab.engines.LightweightMH(chains=4)])
def test_engines_give_odds_from_whole_executions(engine):
    posterior = ab.infer(solved.choice, solved.Y, engine=engine, budget=1_500)
    found = posterior.odds(lambda draw: draw["model"] > 0)
    weights = solved.weights()
    assert (
        abs(found.log_posterior_odds - np.log(weights[1:].sum() / weights[0])) < 4 * found.log_posterior_odds_sd < 1.2
    )
    assert np.isclose(found.prior_odds, 1.0)


def test_an_improper_prior_has_no_prior_odds():
    def improper(y):
        model = ab.sample("model", dist.Bernoulli(0.5))
        mu = ab.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ())) if model else 0.0
        ab.observe("y", dist.Normal(mu, 1.0), y)

    found = ab.infer(improper, solved.Y, budget=20_000).odds(lambda draw: draw["model"] == 1)
    exact = np.log(np.sqrt(2 * np.pi / 4)) + 2 * solved.Y.mean() ** 2
    assert abs(found.log_posterior_odds - exact) < 4 * found.log_posterior_odds_sd < 0.1
    assert np.isnan(found.log_prior_odds)
    assert "prior not known" in repr(found)


def test_posteriors_without_their_programs_are_compared_by_evidence(models, tmp_path):
    models["narrow"].save(tmp_path / "narrow")
    some = {"narrow": ab.load(tmp_path / "narrow"), "wide": models["wide"]}
    comparison = ab.compare(some)
    expected = log_evidence(SCALES["wide"]) - log_evidence(SCALES["narrow"])
    factor, sd = comparison.table.log_bayes_factor.iloc[1], comparison.table.log_bayes_factor_sd.iloc[1]
    assert abs(factor - expected) < 4 * sd + 1e-6 < 0.1
    assert comparison.table.elpd.isna().all()
    [note] = comparison.notes
    assert note.startswith("The program of narrow was not loaded: whether the data are the same was not checked")
