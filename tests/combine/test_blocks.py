"""Draws of the whole program in independent blocks: the errors that follow, and evidence that an engine gives."""

import logging
from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
import solved
from anabranch import errors
from anabranch.combine import Posterior, Solution
from anabranch.combine.evidence import Evidence
from anabranch.conquer.estimate import Estimate
from anabranch.engines import ImportanceSampling
from anabranch.engines.collection import BLOCKS, Collection
from anabranch.limits import Limits
from anabranch.progress import make_progress
from calibration import check_calibrated

Y = 1.0
SHARE = 0.4
"""The prior probability of the path that has x."""


def shifted(y):
    """A path without variables, and one with a normal mean."""
    moved = ab.sample("moved", dist.Bernoulli(SHARE))
    mean = ab.sample("x", dist.Normal(0.0, 1.0)) if moved else 0.0
    ab.deterministic("mean", mean)
    ab.observe("y", dist.Normal(mean, 1.0), y)


EVIDENCES = np.array([(1 - SHARE) * norm.pdf(Y), SHARE * norm.pdf(Y, 0, np.sqrt(2))])
WEIGHT = EVIDENCES[1] / EVIDENCES.sum()
MEAN_OF_X = Y / 2


@pytest.fixture(scope="module")
def division():
    return ab.find_paths(shifted, Y, executions=50)


def sampled(division, moved, x, log_weights, blocks):
    """Solutions by draws of the whole program, in the order of the dimension of the paths."""
    total = np.logaddexp.reduce(log_weights)
    solutions = []
    for path in sorted(division.paths, key=lambda path: path.dim):
        mine = moved == path.dim
        log_share = np.logaddexp.reduce(log_weights[mine]) - total if mine.any() else -np.inf
        points = x[mine, None][:, : path.dim]
        estimate = Estimate.from_draws(
            points, log_weights[mine], log_share, np.inf, int(mine.sum()), "ByHand", blocks=blocks[mine] % BLOCKS
        )
        solutions.append(Solution(path, estimate))
    return solutions


def by_prior(division, rng, n, copies=1):
    """Importance sampling from the prior; each draw is taken so many times, and all of them are one block."""
    moved, x = rng.uniform(size=n) < SHARE, rng.normal(size=n)
    log_weights = norm.logpdf(Y, np.where(moved, x, 0.0), 1.0)
    return sampled(division, *(np.repeat(each, copies) for each in (moved, x, log_weights, np.arange(n))))


def collected(solutions):
    """The weights of paths that were sampled together, with errors, as the library has them of draws by hand."""
    met, paths = Collection("ByHand", seed=0, weighted=True), [solution.path for solution in solutions]
    for k, solution in enumerate(solutions):
        if len(solution.points):
            log_weights = solution.estimate.log_weights + solution.log_evidence
            met.add_all(paths, np.full(len(log_weights), k), log_weights, solution.blocks, solution.blocks)
    known = [dict(zip(met.masses, each, strict=True)) for each in met.weights()]
    return tuple(np.array([each.get(path, 0.0) for path in paths]) for each in known)


def joined(division, solutions, log_evidence=None, log_evidence_sd=None):
    evidence = Evidence(log_evidence, log_evidence_sd, *collected(solutions))
    return Posterior(division.program, solutions, solved.run(), evidence)


def inferred(division, engine, budget, seed):
    """What `ab.infer` does once the program is divided."""
    with make_progress(False) as display:
        return engine.run(division, Limits(budget, tolerance=None), seed, 1, display)


def weight_of_moved(posterior):
    k = [solution.path.dim for solution in posterior.solutions].index(1)
    return posterior.evidence.weights[k], posterior.evidence.weight_sds[k]


def mean_of(draw):
    return draw["mean"]


# Errors -----------------------------------------------------------------------------------------------------------


REPETITIONS = 400


def check_errors(found, truths):
    """Pairs of estimate and its error, for each repetition and quantity; the scatter is compared with the mean square
    of the errors."""
    estimates, sds = np.moveaxis(np.array(found), -1, 0)
    for k, z in enumerate(((estimates - truths) / np.sqrt((sds**2).mean(axis=0))).T):
        check_calibrated({f"quantity {k}": z}, of=len(truths))


def test_the_errors_of_importance_sampling_match_its_scatter(division):
    found = []
    for seed in range(REPETITIONS):
        posterior = inferred(division, ImportanceSampling(), 100, seed)
        log_evidence = posterior.log_evidence, posterior.log_evidence_sd
        given_moved = posterior.expectation(lambda draw: draw["x"])
        found.append([log_evidence, weight_of_moved(posterior), posterior.expectation(mean_of), given_moved])
    check_errors(found, [np.log(EVIDENCES.sum()), WEIGHT, WEIGHT * MEAN_OF_X, MEAN_OF_X])


def test_expectations_stay_right_where_only_some_draws_are_kept(division, monkeypatch):
    """Of 4,000 draws about 100 are kept, with weights of their own."""
    monkeypatch.setattr(Collection, "max_kept", 100)
    truths = np.array([WEIGHT, MEAN_OF_X, MEAN_OF_X**2 + 0.5])
    scores = []
    for seed in range(20):
        posterior = inferred(division, ImportanceSampling(batch=200), 4_000, seed)
        assert 50 < sum(len(solution.points) for solution in posterior.solutions) <= 200
        share, sd = posterior.expectation(lambda draw: draw["moved"])
        means, sds = posterior.expectation(lambda draw: [draw["x"], draw["x"] ** 2])
        means, sds = np.array([share, *means]), np.array([sd, *sds])
        assert (sds < 0.3).all()
        scores.append((means - truths) / sds)
        weight, sd = weight_of_moved(posterior)  # of all the draws
        assert abs(weight - WEIGHT) < 4 * sd < 0.05
    assert (np.abs(np.mean(scores, axis=0)) < 4 / np.sqrt(20)).all()
    # The share is known of all the draws: its error, of those that are kept, is too large.
    check_calibrated({"x²": np.transpose(scores)[2]}, min_scores=20)


def test_the_errors_of_a_resample_match_its_scatter(division):
    """Of twenty times as many draws as the function is called at: the weight of the path is known as before."""
    rng = np.random.default_rng(1)
    found = []
    for _ in range(REPETITIONS):
        posterior = joined(division, by_prior(division, rng, 1000))
        mean, sd = posterior.expectation(lambda draw: [draw["moved"], draw["mean"]], max_draws=30)
        found.append(list(zip(mean, sd, strict=True)))
        np.testing.assert_allclose(found[-1][0], weight_of_moved(posterior), rtol=1e-9)
    check_errors(found, [WEIGHT, WEIGHT * MEAN_OF_X])


def test_the_error_is_that_of_a_mean_over_blocks(division):
    """Blocks of equal weight: the standard error of the mean of their means, with one less than their number."""
    rng = np.random.default_rng(2)
    moved, x, blocks = rng.uniform(size=60) < 0.5, rng.normal(size=60), np.arange(60) % 3
    posterior = joined(division, sampled(division, moved, x, np.zeros(60), 7 * blocks))
    for values, answer in (
        (np.where(moved, x, 0.0), posterior.expectation(mean_of)),
        (moved, weight_of_moved(posterior)),
        (moved, posterior.expectation(lambda draw: draw["moved"])),
    ):
        means = values.reshape(20, 3).mean(axis=0)
        np.testing.assert_allclose(answer, (means.mean(), means.std(ddof=1) / np.sqrt(3)), rtol=1e-9)


def test_copies_of_a_draw_in_its_block_add_nothing(division):
    once, copied = (joined(division, by_prior(division, np.random.default_rng(3), 50, n)) for n in (1, 4))
    np.testing.assert_allclose(copied.expectation(mean_of), once.expectation(mean_of), rtol=1e-9)
    np.testing.assert_allclose(weight_of_moved(copied), weight_of_moved(once), rtol=1e-9)
    apart = [by_themselves(solution, 1000 * k) for k, solution in enumerate(copied.solutions)]
    ratio = joined(division, apart).expectation(mean_of)[1] / once.expectation(mean_of)[1]
    assert np.isclose(ratio, np.sqrt((200 / 199) / (50 / 49)) / 2, rtol=1e-9)


def by_themselves(solution, first):
    blocks = first + np.arange(len(solution.points))
    return replace(solution, estimate=replace(solution.estimate, blocks=blocks))


def test_one_block_has_no_error_and_a_warning_says_so(division):
    draws = by_prior(division, np.random.default_rng(5), 400)
    alone = [replace(s, estimate=replace(s.estimate, blocks=np.zeros(len(s.points), int))) for s in draws]
    posterior = joined(division, alone, -2.0, np.inf)
    mean, sd = posterior.expectation(lambda draw: [draw["mean"], 1.0])
    assert np.isfinite(mean).all()
    assert np.isposinf(sd).all()
    assert np.isposinf(posterior.evidence.weight_sds).all()
    assert posterior.warnings == [
        "All draws come from one chain or run, so their errors cannot be estimated. Run several."
    ]
    assert not joined(division, draws, -2.0, 0.05).warnings


def test_a_single_path_that_all_blocks_visit_has_no_error_of_its_weight(division):
    (_, moved) = by_prior(division, np.random.default_rng(6), 50)
    weights, sds = collected([moved])
    assert weights == pytest.approx([1.0], abs=1e-12)
    assert sds[0] < 1e-12


def test_blocks_go_with_the_points_that_are_kept():
    points, log_weights, blocks = np.arange(4.0)[:, None], np.array([0.0, -np.inf, -1.0, -2.0]), np.array([5, 6, 7, 7])
    estimate = Estimate.from_draws(points, log_weights, -1.0, 0.1, 4, "ByHand", blocks=blocks)
    assert list(estimate.points[:, 0]) == [0, 2, 3]
    assert list(estimate.blocks) == [5, 7, 7]
    assert Estimate.from_weights(points, log_weights, 4, "ByHand").blocks is None


# Evidence that an engine gives ------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_given_evidence_stays_with_its_paths(division, order):
    solutions = by_prior(division, np.random.default_rng(7), 200)
    weights, sds = np.array([0.7, 0.3]), np.array([0.05, 0.02])
    chosen = list(order)
    evidence = Evidence(-5.0, 0.25, weights[chosen], sds[chosen])
    posterior = Posterior(division.program, [solutions[k] for k in order], solved.run(), evidence)
    assert (posterior.log_evidence, posterior.log_evidence_sd) == (-5.0, 0.25)
    for solution, weight, sd in zip(
        posterior.solutions, posterior.evidence.weights, posterior.evidence.weight_sds, strict=True
    ):
        assert (weight, sd) == (weights[solution.path.dim], sds[solution.path.dim])
    assert posterior.solutions[0].log_evidence > posterior.solutions[1].log_evidence
    assert posterior.probability("moved") == {0: 0.7, 1: 0.3}
    assert posterior.draws(100).paths.count("moved = 0") == 70


def test_an_engine_has_found_all_that_it_looks_for(division):
    """The paths in which an engine found nothing, or which it never visited, are no unsolved ones."""
    (still, _) = by_prior(division, np.random.default_rng(8), 400)
    moved = next(path for path in division if path.dim == 1)
    nothing = Solution(moved, Estimate.nothing(1, 10, "ByHand"))
    assert not joined(division, [still], -2.0, 0.05).warnings
    assert not joined(division, [still, nothing], -2.0, 0.05).warnings
    nowhere = joined(division, [nothing])
    assert nowhere.log_evidence is None
    assert not nowhere.warnings
    not_kept = Posterior(division.program, [nothing], solved.run(), Evidence(-2.0, 0.1, np.ones(1), np.zeros(1)))
    for posterior in (nowhere, not_kept):
        for ask in (lambda p: p.draws(1), lambda p: p.expectation(mean_of), lambda p: p.plot()):
            with pytest.raises(errors.NoDraws, match="no point of positive density"):
                ask(posterior)


@pytest.fixture(scope="module")
def without_evidence(division):
    return joined(division, by_prior(division, np.random.default_rng(9), 400))


def test_every_question_has_an_answer_without_evidence(without_evidence):
    posterior = without_evidence
    assert posterior.log_evidence is None
    assert posterior.log_evidence_sd is None
    assert posterior.warnings == []
    weight, sd = weight_of_moved(posterior)
    assert abs(weight - WEIGHT) < 3 * sd < 0.1
    assert posterior.probability("moved")[1] == pytest.approx(weight)
    mean, sd = posterior.expectation(mean_of)
    assert abs(mean - WEIGHT * MEAN_OF_X) < 3 * sd < 0.15
    assert posterior.draws(10)["mean"].shape == (10,)
    assert posterior.replicate(10)["y"].shape == (10,)
    assert posterior.to_arviz(path="moved = 1", n=12).posterior["x"].shape == (4, 3)
    frame = posterior.paths
    assert frame[["log_evidence", "log_evidence_sd"]].isna().all(axis=None)
    assert frame[["weight", "weight_sd", "ess"]].notna().all(axis=None)
    assert list(posterior.stacking()["weight"].sort_values()) == sorted(posterior.evidence.weights)


def test_draws_of_a_path_without_variables_are_all_alike_and_in_no_doubt(division, caplog):
    (still, _) = by_prior(division, np.random.default_rng(9), 400)
    with caplog.at_level(logging.WARNING, "anabranch"):
        (row,) = joined(division, [still]).stacking().itertuples()
    assert np.isnan(row.pareto_k)  # there is no tail
    assert np.isclose(row.elpd, norm.logpdf(Y))
    assert caplog.text == ""


def test_sampled_draws_are_never_exact(division):
    """Not even where their weights have no scatter: how many draws a path got is chance."""
    (still, _) = by_prior(division, np.random.default_rng(11), 20)
    without_scatter = replace(still.estimate, log_evidence_sd=0.0)
    assert not Solution(still.path, without_scatter).is_exact
    assert Solution(still.path, replace(without_scatter, blocks=None)).is_exact


def test_large_errors_of_weights_are_a_warning_without_evidence(division):
    few = by_prior(division, np.random.default_rng(9), 400)
    halves = [replace(s, estimate=replace(s.estimate, blocks=np.arange(len(s.points)) % 2 + 2 * k))
              for k, s in enumerate(few)]  # fmt: skip
    (warning,) = joined(division, halves).warnings
    assert warning.startswith("The path weights have errors of up to 0.")


@pytest.mark.parametrize("evidence", [(), (-2.0, 0.05)])
def test_blocks_and_given_evidence_come_back_from_a_folder(division, evidence, tmp_path):
    posterior = joined(division, by_prior(division, np.random.default_rng(10), 400), *evidence)
    posterior.save(tmp_path / "run")
    again = ab.load(tmp_path / "run")
    assert again.log_evidence == posterior.log_evidence
    assert again.log_evidence_sd == posterior.log_evidence_sd
    np.testing.assert_array_equal(again.evidence.weights, posterior.evidence.weights)
    np.testing.assert_array_equal(again.evidence.weight_sds, posterior.evidence.weight_sds)
    for ours, theirs in zip(again.solutions, posterior.solutions, strict=True):
        np.testing.assert_array_equal(ours.blocks, theirs.blocks)
    assert again.expectation(mean_of) == posterior.expectation(mean_of)
    assert repr(again) == repr(posterior)
