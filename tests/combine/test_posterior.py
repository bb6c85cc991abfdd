"""A posterior's numbers against exact ones, within its own error bars, and the calibration of those."""

import logging
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
import solved
from anabranch import errors
from anabranch.combine import Posterior, Run, Solution
from anabranch.combine.evidence import join, missing, unsolved_mass
from anabranch.conquer.estimate import Estimate
from calibration import check_calibrated
from helpers import interpreted


@pytest.fixture(scope="module")
def division():
    return solved.divided()


@pytest.fixture(scope="module")
def posterior(division):
    return solved.posterior(division, n=2000)


def test_the_reference_by_quadrature(division):
    path = next(path for path in division if path.dim == 1)
    x = np.linspace(-8, 10, 4001)
    density = np.exp(path.evaluate(x[:, None], compile=False).log_density)
    assert np.isclose(np.trapezoid(density, x), solved.evidences()[1], rtol=1e-10)
    assert np.isclose(np.trapezoid(density * x, x) / np.trapezoid(density, x), solved.means()[1], rtol=1e-10)


def test_evidence_and_weights_are_within_their_errors(posterior):
    assert abs(posterior.log_evidence - solved.log_evidence()) < 3 * posterior.log_evidence_sd < 0.1
    for solution, weight, sd in zip(
        posterior.solutions, posterior.evidence.weights, posterior.evidence.weight_sds, strict=True
    ):
        assert abs(weight - solved.weights()[solution.path.dim]) < 3 * sd < 0.05


def answers(posterior):
    """What is asked of a posterior: for each question the answer and its error."""
    k = [solution.path.dim for solution in posterior.solutions].index(1)
    return (
        (posterior.evidence.log_evidence, posterior.evidence.log_evidence_sd),
        (posterior.evidence.weights[k], posterior.evidence.weight_sds[k]),
        posterior.expectation(lambda draw: draw["mean"]),
        posterior.expectation(lambda draw: draw["mu"]),
    )


@pytest.mark.parametrize("seeds", [125, pytest.param(500, marks=pytest.mark.slow)])
def test_the_errors_are_calibrated(division, seeds):
    weights = solved.weights()[1:]
    # The mean of mu is that of `mean` under model 1, and a fifth of it under model 2.
    given_mu = weights @ (solved.means()[1:] * [1, 0.2]) / weights.sum()
    truths = [solved.log_evidence(), weights[0], solved.weights() @ solved.means(), given_mu]
    found = np.array([answers(solved.posterior(division, seed, n=300)) for seed in range(seeds)])
    for k, name in enumerate(["log evidence", "weight", "expectation", "expectation over the paths with the name"]):
        check_calibrated({name: (found[:, k, 0] - truths[k]) / found[:, k, 1]}, of=4, min_scores=seeds)


def test_the_sum_of_weights_has_no_error_and_a_single_path_none(division):
    posterior = solved.posterior(division)
    assert np.isclose(posterior.evidence.weights.sum(), 1)
    alone = Posterior(division.program, posterior.solutions[:1], solved.run())
    assert alone.evidence.weight_sds[0] == 0


def test_paths_is_a_table_sorted_by_weight_with_nan_for_what_was_never_solved(division, posterior):
    unsolved = [*posterior.solutions[:2], Solution(posterior.solutions[2].path, None)]
    frame = Posterior(division.program, unsolved[::-1], solved.run()).paths
    assert list(frame.columns) == [
        "path", "weight", "weight_sd", "log_evidence", "log_evidence_sd", "ess", "pareto_k", "r_hat", "tail",
        "dim", "evaluations", "terms", "visits", "method", "prior_probability",
    ]  # fmt: skip
    assert frame.weight[0] > frame.weight[1]
    assert frame.iloc[2][["weight", "weight_sd", "log_evidence", "ess"]].isna().all()
    assert frame.evaluations[2] == 0


def test_what_was_not_solved_enters_the_error_of_the_evidence(division, posterior):
    first = posterior.solutions[0]
    others = [Solution(solution.path, None) for solution in posterior.solutions[1:]]
    mass = sum(solution.path.prior_probability for solution in others)
    assert np.isclose(unsolved_mass([first, *others], 0.99), mass + 0.01)
    evidence = join([first, *others], None)
    solutions, weights = [first, *others], np.array([1.0] + [0.0] * len(others))
    gap = missing(solutions, weights, None)
    assert evidence.log_evidence_sd > gap
    # If the rest were as likely as what was solved, log Z would be low by just that.
    assert np.isclose(gap, np.log1p(mass / first.path.prior_probability))
    assert missing(others, weights[1:], None) == np.inf


def test_what_was_looked_at_last_stands_for_what_was_not_solved(division, posterior):
    """First looks go from the more to the less promising paths: the last of two solved ones is like the third."""
    first, second, third = posterior.solutions
    weights = np.array([0.75, 0.25, 0.0])
    for order, last, weight in (((1, 2), second, 0.25), ((2, 1), first, 0.75)):
        visited = [replace(each, first_visit=k) for each, k in zip((first, second), order, strict=True)]
        gap = missing([*visited, Solution(third.path, None)], weights, None)
        assert np.isclose(gap, np.log1p(third.path.prior_probability * weight / last.path.prior_probability))


def test_a_cheap_look_counts_as_solved(division, posterior):
    nothing = Solution(posterior.solutions[1].path, Estimate.nothing(1, 10, "look"))
    assert unsolved_mass([posterior.solutions[0], nothing], None) == 0
    evidence = join([posterior.solutions[0], nothing], None)
    assert np.isfinite(evidence.log_evidence_sd)
    assert list(evidence.weights) == [1, 0]


def test_an_unknown_error_of_a_path_makes_all_weights_unknown(division, posterior):
    one_draw = Estimate.from_weights(np.zeros((1, 1)), np.array([-8.0]), 1, "one")
    path = next(s.path for s in posterior.solutions if s.path.dim == 1)
    other = next(s for s in posterior.solutions if s.path.dim == 2)
    evidence = join([Solution(path, one_draw), other], None)
    assert evidence.log_evidence_sd == np.inf
    assert np.isinf(evidence.weight_sds).all()


def test_nothing_found_is_said(division):
    nothing = [Solution(path, Estimate.nothing(path.dim, 5, "look")) for path in division]
    posterior = Posterior(division.program, nothing, solved.run())
    assert posterior.log_evidence == -np.inf
    assert "log evidence -inf" in repr(posterior)
    for ask in (
        lambda: posterior.probability("model"),
        lambda: posterior.draws(5),
        lambda: posterior.expectation(len),
        posterior.stacking,
        posterior.plot,
    ):
        with pytest.raises(errors.NoDraws, match="no point of positive density"):
            ask()


# Probabilities ----------------------------------------------------------------------------------------------------


def test_probability_of_a_fixed_site_and_of_a_deterministic(posterior):
    for name, values in (("model", (0, 1, 2)), ("twice", (0, 2, 4))):
        probability = posterior.probability(name)
        assert all(type(value) is int for value in probability)
        assert list(probability.values()) == sorted(probability.values(), reverse=True)
        assert np.isclose(sum(probability.values()), 1)
        for value, exact in zip(values, solved.weights(), strict=True):
            assert abs(probability[value] - exact) < 0.03


def test_probability_of_a_continuous_quantity_is_refused(posterior):
    with pytest.raises(errors.NotDiscrete, match=r"'mu' takes real values.*expectation"):
        posterior.probability("mu")
    with pytest.raises(errors.NotDiscrete, match="'mean' takes real values"):
        posterior.probability("mean")


def test_an_unknown_name_gets_the_near_ones(posterior):
    with pytest.raises(errors.UnknownName, match=r"'modle'.*Did you mean 'model'"):
        posterior.probability("modle")
    with pytest.raises(errors.UnknownName, match="There are: mean, model, mu, shift, twice"):
        posterior.probability("qqq")
    with pytest.raises(KeyError):
        posterior.probability("qqq")


def varied():
    n = ab.sample("n", dist.Categorical(np.array([0.25, 0.75])))
    z = ab.sample("z", dist.Bernoulli(jnp.array([0.3, 0.5])))
    if n == 1:
        extra = ab.sample("extra", dist.Poisson(2.0))
        ab.deterministic("even", extra % 2 == 0)
        ab.deterministic("half", 0.5)
    ab.deterministic("real", 1.0 * extra if n == 1 else 0.25)
    ab.factor("likes ones", 0.5 * z.sum())


@pytest.fixture(scope="module")
def discrete():
    """Two paths with discrete variables, all their values enumerated up to a bound that is never reached."""
    division = ab.find_paths(varied, executions=50)
    solutions = []
    for path in division:
        extra = np.arange(40.0) if path.dim == 3 else np.zeros(1)
        grid = np.stack(np.meshgrid([0.0, 1.0], [0.0, 1.0], extra, indexing="ij"), axis=-1).reshape(-1, 3)
        points = grid[:, : path.dim]
        log_density = path.evaluate(points, compile=False).log_density
        total = float(np.logaddexp.reduce(log_density))
        solutions.append(Solution(path, Estimate.from_draws(points, log_density, total, 0.0, len(points), "Enumerate")))
    return Posterior(division.program, solutions, Run("Done.", 0, 0, 0.0, 0))


def test_probabilities_over_variables_of_the_paths(discrete):
    probability = discrete.probability("z")
    weights = {
        (a, b): (0.3 if a else 0.7) * 0.5 * np.exp(0.5 * (a + b)) for a in (0, 1) for b in (0, 1)
    }  # fmt: skip
    total = sum(weights.values())
    assert probability.keys() == weights.keys()
    for value, weight in weights.items():
        assert np.isclose(probability[value], weight / total)


def test_executions_without_the_name_are_none(discrete):
    even = discrete.probability("even")
    assert np.isclose(even[None], 0.25)
    assert np.isclose(even[True], 0.75 * (1 + np.exp(-4)) / 2)
    assert set(map(type, even)) == {bool, type(None)}
    assert np.isclose(discrete.probability("half")[0.5], 0.75)
    assert np.isclose(discrete.probability("real")[0.25], 0.25)


def test_enumerated_values_have_no_error(discrete):
    assert all(solution.is_exact for solution in discrete.solutions)
    mean, sd = discrete.expectation(lambda draw: draw["extra"])
    assert np.isclose(mean, 2.0)
    assert sd == 0
    assert discrete.log_evidence_sd == 0
    assert not discrete.warnings


# Expectations -----------------------------------------------------------------------------------------------------


def test_expectation_of_an_array_and_of_the_result(posterior):
    exact = solved.weights() @ solved.means()
    mean, sd = posterior.expectation(lambda draw: draw.result["mean"] * draw.result["grid"])
    assert mean.shape == sd.shape == (7,)
    assert (abs(mean - exact * solved.GRID) <= 3 * sd).all()
    assert sd[6] < 0.1


def test_a_resample_adds_its_error(posterior):
    exact = solved.weights() @ solved.means()
    full = posterior.expectation(lambda draw: draw["mean"])
    calls = []
    mean, sd = posterior.expectation(lambda draw: calls.append(1) or draw["mean"], max_draws=100)
    assert len(calls) <= 300
    assert abs(mean - exact) < 3 * sd
    assert 1.5 * full[1] < sd < 0.2


def error_of_the_mean(division, points, **diagnostics):
    """Of a posterior with one path and these draws."""
    path = next(path for path in division if path.dim == 1)
    estimate = Estimate.from_draws(points, np.zeros(len(points)), -5.0, 0.01, len(points), "draws", **diagnostics)
    posterior = Posterior(division.program, [Solution(path, estimate)], solved.run())
    return posterior.expectation(lambda draw: draw["mu"])[1]


def test_chains_count_by_their_effective_size(division):
    points = np.random.default_rng(0).normal(size=(1000, 1))
    few, many = (error_of_the_mean(division, points, ess=ess) for ess in (10.0, 1000.0))
    assert np.isclose(few, 10 * many, rtol=1e-10)
    assert np.isclose(many, points.std() / np.sqrt(1000))


def test_weights_with_a_heavy_tail_have_a_larger_error(division):
    points = np.random.default_rng(0).normal(size=(1000, 1))
    unknown, light, heavy = (error_of_the_mean(division, points, pareto_k=k) for k in (np.nan, 0.4, 0.6))
    assert light == unknown
    assert np.isclose(heavy, 1000**0.05 * light)


def test_expectation_says_what_no_draw_has_and_passes_other_errors_on(posterior):
    with pytest.raises(errors.UnknownName, match=r"reads: it lacks 'nope'\. There are: mean, model, mu, shift, twice"):
        posterior.expectation(lambda draw: draw["nope"])
    with pytest.raises(errors.UnknownName, match=r"it lacks .*'shift' or 'nope'"):
        posterior.expectation(lambda draw: draw["shift"] + draw["nope"])
    with pytest.raises(errors.UnknownName, match="no path has a site or deterministic 'nope'"):
        posterior.expectation(lambda draw: draw["mean"] + posterior.probability("nope")[0])
    with pytest.raises(KeyError, match="mine"):
        posterior.expectation(lambda draw: {}["mine"])
    with pytest.raises(ValueError, match=r"one shape at all draws; it has .* Ask for one number"):
        posterior.expectation(lambda draw: np.zeros(len(draw)))
    with pytest.raises(ValueError, match="max_draws"):
        posterior.expectation(len, max_draws=0)


def test_what_goes_wrong_in_the_function_says_on_which_path(posterior):
    with pytest.raises(IndexError) as raised:
        posterior.expectation(lambda draw: [0.0, 1.0][int(draw["model"])])
    assert raised.value.__notes__ == ["anabranch: raised by the function on the path: model = 2"]


def test_a_number_is_no_function_of_a_draw_and_a_name_none_to_predict_by(posterior):
    with pytest.raises(TypeError, match=r"^f must be a function of a draw, or the name of a site .*; got 3\.$"):
        posterior.expectation(3)
    with pytest.raises(TypeError, match=r"^f must be a function of a draw; got 'K'\.$"):
        posterior.predict("K")


# Draws, predictions and likelihoods -------------------------------------------------------------------------------


def test_draws_take_paths_by_weight_and_points_by_theirs(posterior):
    draws = posterior.draws(4000, seed=3)
    for solution, weight in zip(posterior.solutions, posterior.evidence.weights, strict=True):
        assert abs(draws.paths.count(solution.path.description) - 4000 * weight) <= 1
    exact = solved.weights() @ solved.means()
    assert abs(np.mean(draws["mean"]) - exact) < 3 * posterior.expectation(lambda draw: draw["mean"])[1]
    # In random order: the first part is a sample, too.
    half = draws[:2000]
    assert len(set(half.paths)) == 3
    assert abs(np.mean(half["mean"]) - exact) < 4 * 0.5 / np.sqrt(1000)


def test_draws_are_read_as_a_dictionary_of_samples(posterior):
    draws = posterior.draws(50)
    samples = dict(draws)
    assert list(samples) == draws.keys() == draws.names
    assert "mu" in draws
    assert "nope" not in draws
    assert draws[3] in draws
    assert posterior.draws(50)[3] not in draws
    for name, values in draws.items():
        np.testing.assert_array_equal(samples[name], values)
    assert samples["mu"].mask.any()


def test_a_draw_is_a_mapping_with_path_and_result(posterior):
    draw = next(draw for draw in posterior.draws(50) if draw.path == "model = 2")
    assert set(draw) == {"model", "mu", "shift", "mean", "twice"}
    assert len(draw) == 5
    assert "nope" not in draw
    assert draw["model"] == 2
    assert np.isclose(draw["mu"] + draw["shift"], draw["mean"])
    assert draw.result["mean"] == draw["mean"]
    assert draw.result["label"] == "a word"
    assert draw.get("nope") is None
    assert "mu=" in repr(draw)
    with pytest.raises(errors.UnknownName, match=r"model = 2.*has no 'nope'\. It has: model, mu, shift, mean, twice"):
        draw["nope"]


@pytest.mark.parametrize("n", [1, 7, 8])
def test_a_constant_with_as_many_entries_as_draws_is_not_taken_apart(posterior, n):
    alone = Posterior(posterior.program, posterior.solutions[:1], posterior.run)
    for draw in alone.draws(n):
        np.testing.assert_array_equal(draw.result["grid"], solved.GRID)
        assert np.ndim(draw["mu"]) == 0


def test_what_some_draws_lack_is_masked(posterior):
    draws = posterior.draws(200)
    shift = draws["shift"]
    assert isinstance(shift, np.ma.MaskedArray)
    np.testing.assert_array_equal(shift.mask, [path != "model = 2" for path in draws.paths])
    assert not isinstance(draws["model"], np.ma.MaskedArray)
    frame = draws.to_dataframe()
    assert frame["shift"].isna().sum() == shift.mask.sum()
    assert frame.columns[0] == "path"
    assert len(draws.results) == 200
    with pytest.raises(errors.UnknownName, match=r"There are: .*mu"):
        draws["nope"]


QUESTIONS = {
    "draws": lambda posterior, n, seed: posterior.draws(n, seed=seed),
    "predict": lambda posterior, n, seed: posterior.predict(len, n, seed=seed),
    "replicate": lambda posterior, n, seed: posterior.replicate(n, seed=seed),
    "log_likelihood": lambda posterior, n, seed: posterior.log_likelihood(n, seed=seed),
    "to_arviz": lambda posterior, n, seed: posterior.to_arviz(n=n, seed=seed),
}


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize(
    ("n", "seed", "kind", "message"),
    [
        (0, 0, ValueError, "n must be a whole number, at least 1; got 0"),
        (-1, 0, ValueError, "n must be a whole number, at least 1; got -1"),
        (2.5, 0, TypeError, "n must be a whole number, at least 1; got 2.5"),
        (5, "x", TypeError, "seed must be a whole number, at least 0; got 'x'"),
        (5, -3, ValueError, "seed must be a whole number, at least 0; got -3"),
    ],
)
def test_numbers_of_draws_and_seeds_are_checked(posterior, question, n, seed, kind, message):
    with pytest.raises(kind, match=rf"^{message}\.$"):
        QUESTIONS[question](posterior, n, seed)


def test_the_same_seed_gives_the_same_draws(posterior):
    np.testing.assert_array_equal(posterior.draws(20, seed=1)["mean"], posterior.draws(20, seed=1)["mean"])
    assert (posterior.draws(20, seed=1)["mean"] != posterior.draws(20, seed=2)["mean"]).any()


def vectors():
    n = ab.sample("n", dist.Categorical(np.array([0.5, 0.5]))) + 1
    x = ab.sample("x", dist.Normal(jnp.zeros(n), 1.0))
    ab.observe("y", dist.Normal(x, 1.0), np.zeros(n))


def by_prior(path, n=500):
    draws = path.prior(n)
    log_likelihood = path.evaluate(draws.points, compile=False).log_likelihood
    return Solution(
        path, Estimate.from_weights(draws.points, log_likelihood + draws.log_probability, draws.attempts, "prior")
    )


def test_values_of_different_shapes_come_as_a_list(caplog):
    division = ab.find_paths(vectors, executions=50)
    posterior = Posterior(division.program, [by_prior(path) for path in division], solved.run())
    x = posterior.draws(50)["x"]
    assert isinstance(x, list)
    assert {value.shape for value in x} == {(1,), (2,)}
    assert {"x[0]", "x[1]"} < set(posterior.draws(50).to_dataframe().columns)
    assert isinstance(posterior.log_likelihood(50)["y"], list)
    # Only one of the paths has the observations of the heaviest.
    with caplog.at_level(logging.WARNING, "anabranch"):
        assert len(posterior.stacking()) == 1
    assert "stacking leaves out 1 of 2 paths" in caplog.text
    assert f"with a total weight of {posterior.evidence.weights[1]:.3g}:" in caplog.text


def test_predict_calls_the_function_with_or_without_a_generator(posterior):
    assert np.array_equal(posterior.predict(lambda draw: draw["mean"], 50), posterior.draws(50)["mean"])
    new = posterior.predict(lambda draw, rng: rng.normal(draw["mean"], 1.0), 4000)
    exact = solved.weights() @ solved.means()
    assert abs(new.mean() - exact) < 4 * new.std() / np.sqrt(2000)
    assert isinstance(posterior.predict(lambda draw: [0] * len(draw), 50), list)
    assert len(posterior.predict(lambda draw, scale=2: draw["mean"] * scale, 5)) == 5


def test_replicates_have_the_predictive_distribution(posterior):
    new = posterior.replicate(6000)["y"]
    assert new.shape == (6000, 4)
    variance = 1 + solved.weights() @ (SPREAD_AFTER + solved.means() ** 2) - (solved.weights() @ solved.means()) ** 2
    # The four share their mean, so a column counts, not all together.
    assert abs(new[:, 0].mean() - solved.weights() @ solved.means()) < 4 * np.sqrt(variance / 3000)
    assert abs(new[:, 0].var() - variance) < 4 * variance * np.sqrt(2 / 3000)
    assert np.corrcoef(new[:, 0], new[:, 1])[0, 1] > 0.05


SPREAD_AFTER = solved.SPREAD / (1 + len(solved.Y) * solved.SPREAD)


def test_log_likelihood_is_that_of_each_observation_at_the_draws(posterior):
    log_likelihood = posterior.log_likelihood(300, seed=5)
    means = posterior.draws(300, seed=5)["mean"]
    np.testing.assert_allclose(log_likelihood["y"], norm.logpdf(solved.Y, means[:, None], 1.0), rtol=1e-12)


N = 16


def scattered():
    """Observations that one path lacks, one that is scaled and masked, a factor, and one seen many times."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        ab.observe("up", dist.Poisson(jnp.exp(x)), np.array([1, 2, 0]))
        ab.factor("push", 3.0)
    ab.factor("pull", -(x**2))
    ab.observe("masked", dist.Normal(x, 1.0).mask(np.array([True, False])), np.array([0.5, 99.0]))
    ab.observe("event", dist.MultivariateNormal(x * jnp.ones(2), jnp.eye(2)), np.zeros((3, 2)))


@pytest.mark.parametrize("find", [ab.find_paths, interpreted])
def test_log_likelihoods_add_up_to_the_paths_own(find):
    division = find(scattered)
    division.explore(10, seed=1)
    posterior = Posterior(division.program, [by_prior(path, N) for path in division], solved.run())
    log_likelihood = posterior.log_likelihood(N)
    draws = posterior.draws(N)
    assert log_likelihood["masked"].shape == (N, 2)
    assert log_likelihood["event"].shape == (N, 3)
    assert (log_likelihood["masked"][:, 1] == 0).all()
    assert isinstance(log_likelihood["up"], np.ma.MaskedArray)
    np.testing.assert_array_equal(np.ma.getmaskarray(log_likelihood["up"])[:, 0], draws["x"] <= 0)
    total = sum(np.ma.filled(part, 0.0).reshape(N, -1).sum(axis=1) for part in log_likelihood.values())
    for path in division:
        mine = np.array([draw.path == path.description for draw in draws])
        points = draws["x"][mine][:, None]
        expected = path.evaluate(points, compile=False).log_likelihood
        np.testing.assert_allclose(total[mine], expected, rtol=1e-10)
    new = posterior.replicate(N)
    assert set(new) == {"up", "masked", "event"}
    assert new["event"].shape == (N, 3, 2)
    assert new["masked"].shape == (N, 2)
    assert np.issubdtype(new["up"].dtype, np.integer)
    assert np.abs(new["masked"]).max() < 10


def sequences():
    """One path with two decision sequences, of which one records something more."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        ab.deterministic("above", x)
        ab.deterministic("sign", 1)
    else:
        ab.deterministic("sign", -1)
    ab.observe("y", dist.Normal(x, 1.0), 1.0)


def test_decision_sequences_of_one_path_are_told_apart():
    division = ab.find_paths(sequences, executions=50)
    assert len(division) == 1
    posterior = Posterior(division.program, [by_prior(division.paths[0], 20_000)], solved.run())
    exact = norm.sf(0, 0.5, np.sqrt(0.5))
    probability = posterior.probability("sign")
    assert abs(probability[1] - exact) < 0.02
    mean, sd = posterior.expectation(lambda draw: draw["x"] > 0)
    assert abs(mean - exact) < 3 * sd < 0.05
    # The mean of a normal variable above zero.
    expected = 0.5 + np.sqrt(0.5) * norm.pdf(0, 0.5, np.sqrt(0.5)) * np.sqrt(0.5) / exact
    mean, sd = posterior.expectation(lambda draw: draw["above"])
    assert abs(mean - expected) < 3 * sd < 0.1
    assert np.array_equal(posterior.draws(100)["above"].mask, posterior.draws(100)["sign"] == -1)
    assert np.isfinite(posterior.log_likelihood(300)["y"]).all()


# Stacking ---------------------------------------------------------------------------------------------------------


def stacked(program, n=500):
    division = ab.find_paths(program, executions=50)
    return Posterior(division.program, [by_prior(path, n) for path in division], solved.run()).stacking()


def test_stacking_that_can_be_trusted_says_nothing(posterior, caplog):
    with caplog.at_level(logging.WARNING, "anabranch"):
        table = posterior.stacking()
    assert table["pareto_k"].isna().sum() == 1  # of the path without variables, which is exact
    assert caplog.text == ""


def one_far_off():
    x = ab.sample("x", dist.Normal(0.0, 10.0))
    ab.observe("y", dist.Normal(x, 0.1), 3.0)


def drawn_coin():
    p = 0.2 + 0.6 * ab.sample("z", dist.Bernoulli(0.5))
    ab.observe("y", dist.Bernoulli(p), np.array([1, 0, 1]))


@pytest.mark.parametrize("program", [one_far_off, drawn_coin])
def test_stacking_with_ratios_in_doubt_is_said(program, caplog):
    with caplog.at_level(logging.WARNING, "anabranch"):
        table = stacked(program)
    assert not table["pareto_k"][0] < 0.7
    assert "pareto_k is above 0.7, or NaN" in caplog.text
    assert "on 1 of 1 paths" in caplog.text


def without_data():
    if ab.sample("x", dist.Normal(0.0, 1.0)) > 0:
        ab.sample("z", dist.Normal(0.0, 1.0))
    ab.factor("f", 1.0)


def data_by_sequence():
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.observe("above" if x > 0 else "below", dist.Normal(x, 1.0), 1.0)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (without_data, r"the heaviest path \(.*\) has no observations\. Add observe"),
        (data_by_sequence, r"has different observations in different executions\. Add observe"),
    ],
)
def test_stacking_needs_observations(program, message):
    with pytest.raises(errors.NoObservations, match=message):
        stacked(program)
