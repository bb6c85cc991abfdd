"""Variational inference with importance sampling, on paths whose evidence is known."""

from __future__ import annotations

import pickle

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
from anabranch import errors
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import PathTarget
from anabranch.conquer.variational import Variational, VariationalState
from anabranch.divide import Path
from calibration import check_calibrated, z_scores
from known import UNSUITED, Known, half_space, regression


def run(strategy: Variational, path: Path, seed: int, evaluations: int) -> tuple[Estimate, VariationalState]:
    target, rng = PathTarget(path), np.random.default_rng(seed)
    state = strategy.advance(target, strategy.start(target, rng), rng, evaluations)
    return strategy.estimate(target, state), state


SEEDS = pytest.mark.parametrize("times", [1, pytest.param(30, marks=pytest.mark.slow)])
"""A few seeds, and as many as a pool should have."""


@SEEDS
def test_the_errors_are_calibrated(times):
    scores = {
        "one coefficient": a_guide_that_can_be_the_posterior_is(1, 3 * times),
        "five coefficients": a_guide_that_can_be_the_posterior_is(5, 4 * times),
        "without correlations": without_correlations_the_bound_is_lower(3 * times),
        "a guard": a_guide_that_meets_guards(4 * times),
    }
    check_calibrated(scores, min_scores=14 * times)


def errors_of(runs: list[tuple[Estimate, VariationalState]], exact: float, within: float) -> np.ndarray:
    assert all(estimate.log_evidence_sd < within for estimate, _ in runs)
    return z_scores([estimate for estimate, _ in runs], exact)


def a_guide_that_can_be_the_posterior_is(dim: int, seeds: int) -> np.ndarray:
    known = regression(dim)
    path, exact = known.path, known.log_evidence
    runs = [run(Variational(), path, 1_000 * dim + seed, 40_000) for seed in range(seeds)]
    for estimate, state in runs:
        assert state.elbo == pytest.approx(exact, abs=1e-3)
        assert estimate.ess > 0.95 * len(estimate.points)
        assert estimate.remarks == ()
    return errors_of(runs, exact, within=0.003)


def without_correlations_the_bound_is_lower(seeds: int) -> np.ndarray:
    known = regression(4)
    path, exact = known.path, known.log_evidence
    runs = [run(Variational(guide="diagonal"), path, seed, 45_000) for seed in range(seeds)]
    for _, state in runs:
        assert np.count_nonzero(state.scale_tril) == 4
        assert state.elbo < exact - 0.3
    return errors_of(runs, exact, within=0.05)


def a_guide_that_meets_guards(seeds: int) -> np.ndarray:
    beyond = half_space()
    runs = [run(Variational(), beyond.path, 2_000 + seed, 50_000) for seed in range(seeds)]
    for estimate, state in runs:
        assert (estimate.points[:, 0] > 2).all()
        mean = np.exp(estimate.log_weights) @ estimate.points[:, 0]
        assert abs(mean - beyond.mean[0]) < 5 * beyond.sd[0] / np.sqrt(estimate.ess)
        assert state.elbo < beyond.log_evidence + 0.05
    return errors_of(runs, beyond.log_evidence, within=0.02)


def test_sixty_coordinates():
    known = regression(60)
    path, exact = known.path, known.log_evidence
    estimate, state = run(Variational(), path, 0, 45_000)
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 0.03
    assert state.elbo == pytest.approx(exact, abs=0.01)
    assert estimate.ess > 0.8 * len(estimate.points)


def test_the_scale_of_the_coordinates_does_not_matter():
    """A posterior ten thousand times narrower than the prior."""

    def needle():
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 10.0)), 1e-3), 1.0)

    estimate, _ = run(Variational(), ab.find_paths(needle).paths[0], 0, 40_000)
    exact = norm(0, np.sqrt(100 + 1e-6)).logpdf(1.0)
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 0.02


def test_a_banana_is_no_normal_and_the_weights_make_up_for_it():
    def banana():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.sample("y", dist.Normal(x**2, 1.0))

    path = ab.find_paths(banana).paths[0]
    for seed in range(3):
        estimate, state = run(Variational(), path, seed, 60_000)
        assert abs(estimate.log_evidence) < 4 * estimate.log_evidence_sd < 0.3
        assert state.elbo < -0.1


@pytest.fixture(scope="module")
def five() -> Known:
    return regression(5)


def test_training_can_be_interrupted(five):
    """In small parts there is an estimate after each, and after training the draws add up."""
    path, exact = five.path, five.log_evidence
    strategy, target, rng = Variational(), PathTarget(path), np.random.default_rng(0)
    state, sizes = strategy.start(target, rng), []
    for _ in range(25):
        before = target.evaluations
        state = strategy.advance(target, state, rng, 2000)
        estimate = strategy.estimate(target, state)
        sizes.append(len(state.points))
        assert 2000 <= target.evaluations - before < 2200
        assert np.isfinite(estimate.log_evidence)
    assert state.iteration == strategy.iterations
    assert sizes[0] < 1000 < 5000 < sizes[-1]
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 0.03


def test_a_state_is_plain_data_and_the_seed_decides(five):
    path = five.path
    strategy, target = Variational(), PathTarget(path)
    begun = strategy.advance(target, strategy.start(target, np.random.default_rng(0)), np.random.default_rng(1), 3000)
    pickled = pickle.dumps(begun)
    states = [
        strategy.advance(target, state, np.random.default_rng(2), 3000) for state in (begun, pickle.loads(pickled))
    ]
    assert pickle.dumps(begun) == pickled
    for name in vars(begun):
        np.testing.assert_array_equal(*(getattr(state, name) for state in states))


class Unreachable(PathTarget):
    """A path of which no point is known."""

    def prior(self, n, rng):
        draws = super().prior(n, rng)
        return type(draws)(draws.points[:0], draws.log_weights[:0], -np.inf, np.inf, draws.attempts)


def test_a_path_without_a_known_point_gives_nothing(five):
    target, rng, strategy = Unreachable(five.path), np.random.default_rng(0), Variational()
    state = strategy.advance(target, strategy.start(target, rng), rng, 1000)
    estimate = strategy.estimate(target, state)
    assert (estimate.log_evidence, estimate.log_evidence_sd) == (-np.inf, np.inf)
    assert estimate.remarks == ("No point of the path was found.",)


def test_before_training_nothing_is_known(five):
    strategy, target = Variational(), PathTarget(five.path)
    estimate = strategy.estimate(target, strategy.start(target, np.random.default_rng(0)))
    assert estimate.log_evidence_sd == np.inf
    assert estimate.remarks == ("The guide has not been trained yet.",)


@pytest.mark.parametrize(("program", "message"), UNSUITED)
def test_paths_that_do_not_suit(program, message):
    target = PathTarget(ab.find_paths(program, executions=20).paths[0])
    with pytest.raises(errors.StrategyCannotRun, match=message):
        Variational().start(target, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"guide": "banana"}, "guide must be"),
        ({"iterations": 0}, "iterations must be"),
        ({"batch": 1}, "batch must be"),
        ({"rate": 0.0}, "rate must be"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        Variational(**settings)
