"""ModeMixture on paths whose evidence is known, its error against the scatter over seeds, and modes that it missed."""

import pickle
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal, norm

import anabranch as ab
from anabranch import errors
from anabranch.conquer import ModeMixture, PathTarget
from anabranch.conquer.mode_mixture import ModeMixtureState
from anabranch.conquer.student import StudentMixture
from calibration import check_calibrated, z_scores
from exact import named

pytestmark = pytest.mark.one_in(2)


def solve(path, seed, evaluations=20_000, visits=1, strategy=None, begin=None):
    strategy = strategy or ModeMixture()
    target, rng = PathTarget(path), np.random.default_rng(seed)
    state = strategy.start(target, rng) if begin is None else begin
    for _ in range(visits):
        state = strategy.advance(target, state, rng, evaluations)
    return strategy.estimate(target, state)


def the_path(program, *args):
    return max(ab.find_paths(program, *args, executions=100).paths, key=lambda each: each.dim)


@cache
def regression(dim):
    """A linear regression with correlated regressors, and its log evidence."""
    rng = np.random.default_rng(dim)
    design = rng.standard_normal((40, dim)) + rng.standard_normal((40, 1))
    y = design @ rng.standard_normal(dim) + rng.standard_normal(40)

    def program():
        slopes = ab.sample("slopes", dist.Normal(0.0, 1.0).expand([dim]).to_event(1))
        ab.observe("y", dist.Normal(design @ slopes, 1.0), y)

    return the_path(program), float(multivariate_normal(np.zeros(40), design @ design.T + np.eye(40)).logpdf(y))


def beyond_a_guard():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if x > 2:
            ab.sample("z", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x, 1.0), 1.0)

    return the_path(program), norm(0, np.sqrt(2)).logpdf(1.0) + norm(0.5, np.sqrt(0.5)).logsf(2.0)


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_the_errors_are_calibrated(times):
    scores = {}
    for dim, seeds, evaluations in ((1, 30, 3_000), (5, 18, 6_000), (20, 4, 20_000)):
        path, exact = regression(dim)
        estimates = [solve(path, 1_000 * dim + seed, evaluations) for seed in range(seeds * times)]
        assert max(each.log_evidence_sd for each in estimates) < 0.03
        assert max(each.pareto_k for each in estimates) < 0.7
        scores[f"{dim} coefficients"] = z_scores(estimates, exact)
    path, exact = beyond_a_guard()
    scores["a guard"] = z_scores([solve(path, seed, 3_000) for seed in range(28 * times)], exact)
    check_calibrated(scores, min_scores=80 * times)


MASS = np.array([0.85, 0.15])


def two_modes(width):
    """Modes at -20 and 15, with these masses, under a wide prior: the rest of the line has none."""
    x = ab.sample("x", dist.Normal(0.0, 10.0))
    heights = dist.Normal(jnp.array([-20.0, 15.0]), width).log_prob(x) + jnp.log(MASS)
    ab.factor("data", jnp.logaddexp(heights[0], heights[1]) - dist.Normal(0.0, 10.0).log_prob(x))


def test_separated_modes_have_their_masses():
    path = the_path(two_modes, 0.05)
    z = []
    for seed in range(10):
        estimate = solve(path, seed)
        weights = np.exp(estimate.log_weights)
        assert weights[estimate.points[:, 0] < 0].sum() == pytest.approx(MASS[0], abs=0.05)
        z.append(estimate.log_evidence / estimate.log_evidence_sd)
        assert estimate.log_evidence_sd < 0.05
    assert np.abs(z).max() < 4


def test_a_mode_that_the_first_search_missed_is_added_later():
    """The modes are so narrow that no draw of the defensive component will hit them: only a climb finds the other."""
    path = the_path(two_modes, 1e-3)
    light = StudentMixture(np.array([[15.0]]), np.full((1, 1, 1), 1e-3), np.ones(1), np.array([5.0]))
    wide = StudentMixture(np.zeros((1, 1)), np.full((1, 1, 1), 10.0), np.ones(1), np.array([3.0]))
    begin = ModeMixtureState(light, wide)
    first = solve(path, 0, evaluations=1_000, begin=begin)
    assert first.log_evidence == pytest.approx(np.log(MASS[1]), abs=0.1)  # and nothing shows that it is wrong
    later = solve(path, 0, evaluations=20_000, visits=3, begin=begin)
    assert abs(later.log_evidence) < 4 * later.log_evidence_sd < 0.1
    weights = np.exp(later.log_weights)
    assert weights[later.points[:, 0] < 0].sum() == pytest.approx(MASS[0], abs=0.03)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("component", ["broad", "prior"])
def test_weights_count_the_defensive_components(component, share):
    """A proposal that is off, and too few evaluations to adapt it: the mean of many estimates is right all the same."""
    path, exact = regression(1)
    strategy = ModeMixture(**{component: share})
    mode = np.array([[float(solve(path, 0).points.mean())]])
    off = StudentMixture(mode + 0.3, np.full((1, 1, 1), 0.15), np.ones(1), np.array([5.0]))
    wide = StudentMixture(mode, np.full((1, 1, 1), 1.0), np.ones(1), np.array([3.0]))
    ratios = np.exp([
        solve(path, seed, evaluations=600, strategy=strategy, begin=ModeMixtureState(off, wide)).log_evidence - exact
        for seed in range(60)
    ])  # fmt: skip
    error = ratios.std() / np.sqrt(len(ratios))
    assert error < 0.03
    assert abs(ratios.mean() - 1) < 4 * error


def test_exchangeable_components_count_all_their_copies():
    case = named("three_components")
    path = the_path(case.program, *case.args)
    estimates = [solve(path, seed, evaluations=30_000, visits=2) for seed in range(8)]
    z = [(each.log_evidence - case.log_evidence) / each.log_evidence_sd for each in estimates]
    assert max(each.log_evidence_sd for each in estimates) < 0.05
    assert np.abs(z).max() < 4
    # The labels are back: any component is the largest as often as any other.
    for estimate in estimates[:3]:
        share = np.bincount(estimate.points.argmax(axis=1), np.exp(estimate.log_weights), minlength=3)
        np.testing.assert_allclose(share, 1 / 3, atol=0.05)


def test_an_estimate_of_a_state_is_always_the_same_and_more_visits_make_it_better():
    case = named("three_components")
    path, strategy = the_path(case.program, *case.args), ModeMixture()
    target, rng = PathTarget(path), np.random.default_rng(0)
    state = strategy.advance(target, strategy.start(target, rng), rng, 20_000)
    one, other = strategy.estimate(target, state), strategy.estimate(target, pickle.loads(pickle.dumps(state)))
    np.testing.assert_array_equal(one.points, other.points)
    assert one.log_evidence == other.log_evidence
    later = strategy.estimate(target, strategy.advance(target, state, rng, 60_000))
    assert later.log_evidence_sd < 0.7 * one.log_evidence_sd


def test_a_visit_keeps_to_its_evaluations():
    path, _ = regression(5)
    for evaluations in (2_000, 20_000):
        target, rng, strategy = PathTarget(path), np.random.default_rng(0), ModeMixture()
        state = strategy.advance(target, strategy.start(target, rng), rng, evaluations)
        assert target.evaluations < 1.25 * evaluations
        spent = target.evaluations
        strategy.advance(target, state, rng, evaluations)
        assert target.evaluations - spent < 1.25 * evaluations + 200


def test_a_path_without_mass_is_no_error():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.factor("never", jnp.where(x < 1e9, -jnp.inf, 0.0))

    estimate = solve(the_path(program), 0)
    assert estimate.log_evidence == -np.inf
    assert estimate.remarks


def test_what_it_cannot_run_on_is_said():
    def discrete():
        ab.observe("y", dist.Normal(ab.sample("k", dist.Poisson(3.0)) * 1.0, 1.0), 2.0)

    with pytest.raises(errors.StrategyCannotRun, match=r"ModeMixture.*discrete coordinates.*Use SMC"):
        solve(the_path(discrete), 0)


@pytest.mark.parametrize(
    "wrong",
    [{"starts": 0}, {"iterations": 0}, {"max_modes": 0}, {"rounds": 0}, {"broad": 0.0}, {"broad": 1.0}, {"prior": 1.0}],
)
def test_settings_are_checked(wrong):
    [name] = wrong
    with pytest.raises(ValueError, match=name):
        ModeMixture(**wrong)


def test_what_failed_is_tried_again():
    """Mass that starts six standard deviations away is not found at once; whoever goes on spends evaluations."""

    def program():
        ab.factor("far", jnp.where(ab.sample("x", dist.Normal(0.0, 1.0)) > 6.0, 0.0, -jnp.inf))

    target, rng, strategy = PathTarget(the_path(program)), np.random.default_rng(0), ModeMixture()
    state = strategy.advance(target, strategy.start(target, rng), rng, 1_000)
    assert state.failed
    before = target.evaluations
    strategy.advance(target, state, rng, 1_000)
    assert target.evaluations > before


def test_draws_that_decide_are_not_those_of_the_estimate():
    def program():
        ab.sample("x", dist.Normal(jnp.zeros(25), 1.0).to_event(1))

    target, rng, strategy = PathTarget(the_path(program)), np.random.default_rng(0), ModeMixture()
    state = strategy.advance(target, strategy.start(target, rng), rng, 200_000)
    assert state.rounds > 0
    assert state.pooled
