"""Tempering from a mixture fitted to a population, and the density over one ordering."""

from dataclasses import replace
from itertools import permutations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer import PathTarget
from anabranch.conquer.ordered import Ordered
from anabranch.conquer.second_opinion import may_be_fitted
from anabranch.conquer.smc import SMC, SMCState
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.symmetry import find_symmetries, fold
from anabranch.conquer.warm_tempering import WarmPopulation, missed_by_halves
from calibration import check_calibrated

MEANS = np.array([0.0, 1.5, 4.0, -2.0, -1.0])
TEMPERING = SMC(chains=32, draws=64)


def exchangeable():
    """Five numbers known up to their order, within 0.5; the evidence is one."""
    x = ab.sample("x", dist.Normal(0.0, 3.0).expand([5]))
    orders = jnp.asarray(list(permutations(MEANS)))
    heights = dist.Normal(orders, 0.5).log_prob(x).sum(axis=1)
    ab.factor("data", jax.scipy.special.logsumexp(heights) - jnp.log(120.0) - dist.Normal(0.0, 3.0).log_prob(x).sum())


@pytest.fixture(scope="module")
def path():
    return ab.find_paths(exchangeable, executions=20).paths[0]


@pytest.fixture(scope="module")
def symmetries(path):
    target = PathTarget(path)
    return tuple(find_symmetries(target, target.prior(50, np.random.default_rng(0)).points))


def of_the_prior(target, rng, sweeps=2):
    state = TEMPERING.start(target, rng)
    while len(state.sweeps) < sweeps:
        state = TEMPERING.advance(target, state, rng, 5_000)
    return state


def test_one_ordering_has_all_of_the_evidence(path, symmetries):
    whole = PathTarget(path)
    ordered = Ordered(whole, symmetries)
    points = np.random.default_rng(0).normal(size=(200, 5))
    points[:50] = fold(points[:50], symmetries)
    evaluation, gradient = ordered.differentiate(points)
    inside = (np.diff(points[:, symmetries[0].keys], axis=1) >= 0).all(axis=1)
    assert 50 <= inside.sum() < 200
    assert (evaluation.inside == inside).all()
    expected = PathTarget(path).differentiate(points)
    np.testing.assert_allclose(evaluation.log_density[inside], expected[0].log_density[inside] + np.log(120.0))
    np.testing.assert_array_equal(gradient, expected[1])
    assert ordered.evaluations == whole.evaluations == 200
    assert np.isneginf(ordered.evaluate(points).log_density[~inside]).all()
    assert Ordered(PathTarget(path), symmetries).known.shape == (0, 5)
    with jax.enable_x64(True):
        by_jax = jax.vmap(ordered.log_density_function())(points)
    np.testing.assert_allclose(by_jax, ordered.evaluate(points).log_density)


def of_sampling(estimate, bias):
    """The error without what the first population may have missed."""
    return np.sqrt(estimate.log_evidence_sd**2 - bias**2)


def warm_estimate(path, symmetries, seed):
    """The first estimate of a warm population, and the part of its error that is no scatter."""
    target, rng = PathTarget(path), np.random.default_rng(seed)
    warm = WarmPopulation.fitted(target, of_the_prior(target, rng), symmetries, rng)
    bias = warm.bias
    while (estimate := warm.estimate(target, TEMPERING)) is None:
        warm = warm.advanced(target, TEMPERING, rng, 10_000)
    assert estimate.method == "WarmSMC"
    return estimate, bias


@pytest.mark.parametrize(("seeds", "min_scores"), [(3, 3), pytest.param(40, 40, marks=pytest.mark.slow)])
def test_the_errors_of_sampling_are_calibrated(path, symmetries, seeds, min_scores):
    """Over one ordering there is one mode, of which the first population has missed nothing. What it may have missed is
    left out: of twenty particles it is the larger part of the error."""
    estimates = [warm_estimate(path, symmetries, seed) for seed in range(seeds)]
    scores = [each.log_evidence / of_sampling(each, bias) for each, bias in estimates]
    assert max(of_sampling(*each) for each in estimates) < 0.2
    check_calibrated({"log evidence": np.array(scores)}, min_scores=min_scores)


@pytest.mark.parametrize("seeds", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_the_error_has_what_a_population_of_few_particles_missed(path, seeds):
    """Without the symmetries there are 120 modes, and most of them have no particle."""
    estimates = [warm_estimate(path, (), seed)[0] for seed in range(seeds)]
    scores = np.array([each.log_evidence / each.log_evidence_sd for each in estimates])
    assert np.abs(scores).max() < 4
    assert np.mean(scores**2) < 2.5
    assert np.median([each.log_evidence_sd for each in estimates]) < 0.5


@pytest.mark.slow
def test_the_error_is_smaller_than_that_of_the_prior_for_the_same_evaluations(path, symmetries):
    """The first population is large enough for what it may have missed to be a small part."""
    target, rng = PathTarget(path), np.random.default_rng(1)
    from_prior = of_the_prior(target, rng, sweeps=4)
    warm, before = WarmPopulation.fitted(target, from_prior, symmetries, rng), target.evaluations
    bias = warm.bias
    warm = warm.advanced(target, TEMPERING, rng, 30_000)
    spent = target.evaluations - before
    cold_target = PathTarget(path)
    cold = TEMPERING.estimate(cold_target, TEMPERING.advance(cold_target, SMCState(), rng, spent))
    estimate = warm.estimate(target, TEMPERING)
    assert of_sampling(estimate, bias) < 0.5 * cold.log_evidence_sd
    assert estimate.log_evidence_sd < 0.7 * cold.log_evidence_sd
    order = np.argsort(estimate.points, axis=1)
    shares = [(order[:, 0] == column).mean() for column in range(5)]
    assert min(shares) > 0.12, "the labels are random"


def test_a_better_population_gives_a_better_start_and_keeps_the_former_answer(path, symmetries):
    target, rng = PathTarget(path), np.random.default_rng(2)
    first = replace(WarmPopulation.fitted(target, of_the_prior(target, rng), symmetries, rng), fitted_to=1.0)
    warm = first
    while warm.mixture is first.mixture:
        warm = warm.advanced(target, TEMPERING, rng, 10_000)
    assert not warm.population.sweeps
    assert warm.fitted_to > 2.0
    former = warm.estimate(target, TEMPERING)
    assert abs(former.log_evidence) < 4 * former.log_evidence_sd
    while len(warm.population.sweeps) < 2:
        warm = warm.advanced(target, TEMPERING, rng, 10_000)
    assert warm.estimate(target, TEMPERING) is not former


def test_what_the_particles_have_missed_is_found_from_the_wide_component():
    def two_modes():
        x = ab.sample("x", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        parts = jnp.stack([dist.Normal(mean, 0.5).log_prob(x).sum() for mean in (-3.0, 3.0)])
        ab.factor("data", jax.scipy.special.logsumexp(parts) - jnp.log(2.0) - dist.Normal(0.0, 3.0).log_prob(x).sum())

    target, rng = PathTarget(ab.find_paths(two_modes, executions=20).paths[0]), np.random.default_rng(3)
    population = of_the_prior(target, rng)
    halves = tuple(
        replace(s, points=s.points[s.points[:, 0] > 0], founders=s.founders[s.points[:, 0] > 0])
        for s in population.sweeps
    )
    warm = WarmPopulation.fitted(target, replace(population, sweeps=halves), (), rng)
    while len(warm.population.sweeps) < 4:
        warm = replace(warm, fitted_to=np.inf).advanced(target, TEMPERING, rng, 10_000)
    estimate = warm.estimate(target, TEMPERING)
    assert abs(estimate.log_evidence) < 4 * estimate.log_evidence_sd < 1.0
    assert 0.2 < np.exp(estimate.log_weights)[estimate.points[:, 0] < 0].sum() < 0.8


@pytest.mark.parametrize(("modes", "least", "most"), [(1, 0.0, 0.01), (12, 0.99, 1.0)])
def test_what_a_mixture_misses_is_seen_by_halves(modes, least, most):
    """Each family is at one mode: with one of them, one half shows where the other is, and with a mode for each it does
    not."""
    rng = np.random.default_rng(0)
    families = np.repeat(np.arange(12), 50)
    centres = rng.uniform(-100.0, 100.0, size=(modes, 3))
    points = centres[families % modes] + 0.1 * rng.standard_normal((600, 3))
    wide = StudentMixture.single(np.zeros(3), 60.0 * np.eye(3), df=3.0)
    assert least <= missed_by_halves(points, may_be_fitted(families), wide, rng) <= most
