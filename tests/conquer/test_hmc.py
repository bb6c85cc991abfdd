"""HMC and NUTS with bridge sampling, on paths whose evidence is known."""

from __future__ import annotations

import pickle
from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import kstest, multivariate_normal, norm

import anabranch as ab
from anabranch import errors
from anabranch.conquer import Elimination, solve
from anabranch.conquer.elimination import eliminate
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.hmc import HMC, NUTS, Chains, ChainState
from anabranch.conquer.target import PathTarget
from anabranch.divide import Path
from anabranch.divide.compiled import log_density_function
from calibration import check_calibrated, z_scores
from known import UNSUITED, Known, half_space, leaves_jax, regression


def banana():
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.sample("y", dist.Normal(x**2, 0.5))


@pytest.fixture(scope="module")
def five() -> Known:
    return regression(5)


@pytest.fixture(scope="module")
def beyond() -> Known:
    return half_space()


def run(strategy: Chains, path: Path, seed: int, evaluations: int, parts: int = 1) -> tuple[Estimate, ChainState]:
    target, rng = PathTarget(path), np.random.default_rng(seed)
    state = strategy.start(target, rng)
    for _ in range(parts):
        state = strategy.advance(target, state, rng, evaluations // parts)
    return strategy.estimate(target, state), state


def check(known: Known, estimates: list[Estimate], within: float) -> np.ndarray:
    """The z-scores of the evidence; its errors are as small as was said, means and spreads are within theirs."""
    for e in estimates:
        assert e.log_evidence_sd < within
        assert e.r_hat < 1.03
        means = (e.points.mean(axis=0) - known.mean) / known.sd * np.sqrt(e.ess)
        assert (np.abs(means) < 4.5).all()
        spreads = e.points.std(axis=0) / known.sd
        assert (np.abs(spreads - 1) < 5 / np.sqrt(e.ess)).all()
    return z_scores(estimates, known.log_evidence)


@pytest.mark.parametrize(
    "seeds", [(4, 2, 2, 2), pytest.param((176, 88, 88, 66), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_the_errors_are_calibrated(seeds, five, beyond):
    one = regression(1)
    scores = {
        "HMC, five coefficients": check(
            five, [run(HMC(), five.path, seed, 30_000)[0] for seed in range(seeds[0])], within=0.02
        ),
        "NUTS, one coordinate": check(
            one, [run(NUTS(), one.path, 2_000 + seed, 20_000)[0] for seed in range(seeds[1])], within=0.01
        ),
        "HMC, a guard": guards_reject(beyond, seeds[2]),
        "HMC, a banana": a_banana(seeds[3]),
    }
    check_calibrated(scores, min_scores=sum(seeds))


def guards_reject(beyond: Known, seeds: int) -> np.ndarray:
    estimates = [run(HMC(), beyond.path, 4_000 + seed, 60_000)[0] for seed in range(seeds)]
    assert all(60_000 < e.evaluations < 65_000 for e in estimates)
    assert all((e.points[:, 0] > 2).all() for e in estimates)
    assert all("were divergent" in e.remarks[0] for e in estimates)
    return check(beyond, estimates, within=0.02)


def a_banana(seeds: int) -> np.ndarray:
    path = ab.find_paths(banana).paths[0]
    estimates = [run(HMC(), path, 6_000 + seed, 200_000)[0] for seed in range(seeds)]
    for e in estimates:
        assert e.log_evidence_sd < 0.06
        thinned = e.points[:: max(int(2 * len(e.points) / e.ess), 1), 0]
        assert kstest(thinned, norm.cdf).pvalue > 1e-5
    return z_scores(estimates, 0.0)


@pytest.mark.slow
def test_nuts_of_sixty_coefficients():
    sixty = regression(60)
    estimates = [run(NUTS(), sixty.path, seed, 150_000)[0] for seed in range(2)]
    check(sixty, estimates, within=0.03)
    assert (np.abs(z_scores(estimates, sixty.log_evidence)) < 5).all()
    assert all(e.ess > 1000 for e in estimates)


def test_going_on_spends_what_was_asked_for(five):
    """Many small advances: one warm-up, at most a block of steps too much, and all the proposals where they are new."""
    strategy, target, rng = HMC(), PathTarget(five.path), np.random.default_rng(3)
    state = strategy.advance(target, strategy.start(target, rng), rng, 1000)
    first = strategy.estimate(target, state)
    for _ in range(20):
        spent, fitted_at = target.evaluations, state.fitted_at
        state = strategy.advance(target, state, rng, 2000)
        new = state.log_density.size if state.fitted_at > fitted_at else 0
        assert 2000 <= target.evaluations - spent < 3000 + new
    assert state.steps < 4 * state.fitted_at
    last = strategy.estimate(target, state)
    assert last.log_evidence_sd < 0.5 * first.log_evidence_sd
    assert abs(last.log_evidence - five.log_evidence) < 4 * last.log_evidence_sd


def test_too_many_draws_are_thinned(five):
    estimate, state = run(HMC(max_draws=1000), five.path, 0, 60_000, parts=6)
    assert state.thin >= 4
    assert 500 <= len(estimate.points) <= 1000
    assert abs(estimate.log_evidence - five.log_evidence) < 4 * estimate.log_evidence_sd < 0.2


def test_a_state_is_plain_data_and_the_seed_decides(five):
    strategy, target = HMC(), PathTarget(five.path)
    begun = strategy.advance(target, strategy.start(target, np.random.default_rng(0)), np.random.default_rng(1), 5000)
    pickled = pickle.dumps(begun)
    states = [
        strategy.advance(target, state, np.random.default_rng(2), 5000) for state in (begun, pickle.loads(pickled))
    ]
    assert pickle.dumps(begun) == pickled
    for each in fields(ChainState):
        if each.name != "sides":
            np.testing.assert_array_equal(*(getattr(state, each.name) for state in states))
    assert strategy.estimate(target, states[0]).log_evidence == strategy.estimate(target, states[1]).log_evidence


def test_leapfrog_steps_are_counted(five):
    """The start's climb, the leapfrog steps and the proposals: each a computation of the density."""
    target, rng = PathTarget(five.path), np.random.default_rng(0)
    strategy = HMC(trajectory=1e-9, warmup=25)  # one leapfrog step for each transition
    state = strategy.start(target, rng)
    spent = target.evaluations
    state = strategy.advance(target, state, rng, 1)
    blocks, chains = 1 + 4, 4
    proposals = sum(len(side.log_target) for side in state.sides)
    assert target.evaluations - spent == blocks * chains * (25 + 1) + proposals


def test_initial_points_are_used(five):
    initial = five.mean + 0.1 * np.random.default_rng(0).standard_normal((2, 5))
    target, rng = PathTarget(five.path), np.random.default_rng(0)
    state = HMC(initial=initial).start(target, rng)
    assert state.positions.shape == (4, 5)
    assert all(any((row == start).all() for start in initial) for row in state.positions)
    with pytest.raises(ValueError, match=r"initial must have shape \(n, 5\)"):
        HMC(initial=np.zeros((3, 2))).start(target, rng)


def test_a_path_far_narrower_than_the_first_units():
    """One initial point says nothing of the scale; here every leap of one unit would leave the path."""

    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if jnp.abs(x - 0.5) < 1e-4:
            ab.sample("y", dist.Normal(0.0, 1e-4))

    values = {"x": np.full(3, 0.5)}
    path = next(e.path for e in ab.find_paths(program, executions=10).route(values, seed=0) if "y" in e.path.addresses)
    estimate, _ = run(HMC(initial=np.array([[0.5, 0.0]])), path, 0, 60_000)
    exact = np.log(norm.cdf(0.5001) - norm.cdf(0.4999))
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 0.2
    assert estimate.r_hat < 1.05


def test_initial_points_outside_the_path(beyond):
    with pytest.raises(ValueError, match="none of the points lies in the path"):
        HMC(initial=np.zeros((3, 2))).start(PathTarget(beyond.path), np.random.default_rng(0))


class Unreachable(PathTarget):
    """A path of which no point is known."""

    def prior(self, n, rng):
        draws = super().prior(n, rng)
        return type(draws)(draws.points[:0], draws.log_weights[:0], -np.inf, np.inf, draws.attempts)


def test_a_path_without_a_known_point_gives_nothing(five):
    target, rng, strategy = Unreachable(five.path), np.random.default_rng(0), HMC()
    state = strategy.advance(target, strategy.start(target, rng), rng, 1000)
    estimate = strategy.estimate(target, state)
    assert estimate.log_evidence == -np.inf
    assert estimate.log_evidence_sd == np.inf
    assert estimate.remarks == ("No point of the path was found.",)


def test_before_warming_up_nothing_is_known(five):
    strategy, target = NUTS(), PathTarget(five.path)
    estimate = strategy.estimate(target, strategy.start(target, np.random.default_rng(0)))
    assert estimate.log_evidence_sd == np.inf
    assert estimate.remarks == ("Warm-up is not over.",)


@pytest.mark.parametrize(("program", "message"), UNSUITED)
def test_paths_that_do_not_suit(program, message):
    target = PathTarget(ab.find_paths(program, executions=20).paths[0])
    with pytest.raises(errors.StrategyCannotRun, match=message):
        NUTS().start(target, np.random.default_rng(0))


def test_chains_on_a_path_from_which_discrete_variables_are_summed_out():
    """Two points with an unknown level, each of which may be shifted: four normal densities, by hand."""

    def program(y):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.3).expand([2]).to_event(1))
        ab.observe("y", dist.Normal(x + 3.0 * z, 1.0), y)

    y = np.array([0.2, 2.9])
    exact = np.log(sum(
        p * multivariate_normal.pdf(y, 3.0 * np.array(z), np.eye(2) + 1.0)
        for z, p in (((0, 0), 0.49), ((0, 1), 0.21), ((1, 0), 0.21), ((1, 1), 0.09))
    ))  # fmt: skip
    target = eliminate(
        PathTarget(ab.find_paths(program, y, executions=20).paths[0]), Elimination(), np.random.default_rng(0)
    )
    estimate = solve(HMC(), target, 20_000)
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chains": 1}, "chains must be a whole number, at least 2"),
        ({"warmup": 0}, "warmup must be"),
        ({"acceptance": 1.0}, "acceptance must be a share, above 0 and below 1"),
        ({"trajectory": 0.0}, "trajectory must be a positive number"),
        ({"max_leapfrogs": 0}, "max_leapfrogs must be"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        HMC(**settings)


def test_the_setting_of_nuts_is_checked():
    with pytest.raises(ValueError, match="max_doublings must be"):
        NUTS(max_doublings=0)


# The density as a function of JAX -----------------------------------------------------------------------------------


def two_sequences():
    """Each side has no derivative where the other holds."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    mean = jnp.sqrt(x) if x > 0 else -jnp.sqrt(-x)
    ab.observe("y", dist.Normal(mean, 1.0), 1.0)


def test_the_function_is_the_density_of_the_path(beyond):
    both = ab.find_paths(two_sequences).paths[0]
    assert len(both.decisions) == 2
    for path in (both, beyond.path):
        points = np.random.default_rng(0).normal(1.0, 2.0, (50, path.dim))
        evaluation, gradient = path.differentiate(points)
        with jax.enable_x64(True):
            value, slope = jax.jit(jax.vmap(jax.value_and_grad(log_density_function(path))))(points)
        np.testing.assert_allclose(value, evaluation.log_density, rtol=1e-12)
        np.testing.assert_allclose(slope, np.where(evaluation.inside[:, None], gradient, 0.0), rtol=1e-9)


def test_an_interpreted_path_has_no_such_function():
    with pytest.raises(errors.NoGradient, match="run by the interpreter"):
        log_density_function(ab.find_paths(leaves_jax, executions=20).paths[0])
