"""Auto: the method that suits the path, when it changes, and the second opinion that confirms an estimate."""

import math
import pickle
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from scipy.stats import norm, poisson

import anabranch as ab
from anabranch.conquer import Auto, PathTarget
from anabranch.conquer.auto import AutoState
from anabranch.conquer.mode_mixture import ModeMixtureState
from anabranch.conquer.smc import SMCState
from helpers import disguised


def discrete():
    k = ab.sample("k", dist.Categorical(jnp.ones(3) / 3))
    ab.observe("y", dist.Normal(jnp.arange(3.0)[k], 1.0), 1.0)


def infinite():
    ab.observe("y", dist.Normal(ab.sample("k", dist.Poisson(3.0)) * 1.0, 1.0), 2.0)


def real():
    ab.observe("y", dist.Normal(disguised(ab.sample("x", dist.Normal(0.0, 1.0))), 1.0), 1.0)


def mixed():
    k = ab.sample("k", dist.Poisson(3.0))
    ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)) + k, 1.0), 2.0)


def no_gradient():
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    ab.observe("y", dist.Normal(math.fsum([x]), 1.0), 1.0)


def jumps():
    """The gradient is zero almost everywhere."""
    x = ab.sample("x", dist.Normal(0.0, 10.0))
    ab.observe("y", dist.Normal(jnp.floor(x), 0.3), 14.1)


def target_of(program):
    return PathTarget(ab.find_paths(program, executions=20).paths[0])


def solved(program, evaluations=10_000, visits=1, seed=0):
    target, rng = target_of(program), np.random.default_rng(seed)
    state = Auto().start(target, rng)
    for _ in range(visits):
        state = Auto().advance(target, state, rng, evaluations)
    return Auto().estimate(target, state), state


NORMAL = norm.logpdf(1.0, 0.0, np.sqrt(2.0))
EXACT = {
    discrete: np.log(np.mean(norm.pdf(1.0, np.arange(3), 1.0))),
    infinite: np.log(np.sum(poisson.pmf(np.arange(50), 3.0) * norm.pdf(2.0, np.arange(50), 1.0))),
    real: NORMAL,
    mixed: np.log(np.sum(poisson.pmf(np.arange(50), 3.0) * norm.pdf(2.0, np.arange(50), np.sqrt(2.0)))),
    jumps: np.log(np.sum(np.diff(norm.cdf(np.arange(-60, 62), 0, 10)) * norm.pdf(14.1, np.arange(-60, 61), 0.3))),
}


@pytest.mark.parametrize(
    ("program", "method"), [(discrete, "Enumerate"), (infinite, "SMC"), (real, "ModeMixture"), (mixed, "SMC")]
)
def test_each_path_gets_what_suits_it(program, method):
    estimate, _ = solved(program)
    assert estimate.method == method
    assert abs(estimate.log_evidence - EXACT[program]) <= 4 * estimate.log_evidence_sd + 1e-9
    assert estimate.log_evidence_sd < 0.1


def test_without_data_the_prior_is_drawn_from():
    def program():
        ab.sample("x", dist.Normal(jnp.zeros(3), 1.0).to_event(1))

    estimate, _ = solved(program)
    assert (estimate.method, estimate.is_confirmed) == ("Forward", True)
    assert estimate.log_evidence == pytest.approx(0.0, abs=1e-9)


def test_a_path_without_coordinates_is_one_evaluation():
    def program():
        ab.observe("y", dist.Normal(1.0 if ab.sample("k", dist.Bernoulli(0.3)) else 0.0, 1.0), 1.0)

    for path in ab.find_paths(program):
        target, rng = PathTarget(path), np.random.default_rng(0)
        state = Auto().advance(target, Auto().start(target, rng), rng, 1_000)
        estimate = Auto().estimate(target, state)
        assert (estimate.log_evidence_sd, target.evaluations) == (0.0, 1)


def test_few_evaluations_give_a_laplace_estimate_and_more_of_them_the_modes_and_a_second_opinion():
    target, rng = target_of(real), np.random.default_rng(0)
    methods, estimates = [], []
    state = Auto().start(target, rng)
    for evaluations in (500, 10_000, 40_000):
        state = Auto().advance(target, state, rng, evaluations)
        methods.append(state.method)
        estimates.append(Auto().estimate(target, state))
        if len(methods) == 1:
            assert not target.ways.is_differentiated
    assert methods == ["laplace", "modes", "modes"]
    for estimate in estimates:
        assert estimate.method == "ModeMixture"
        assert abs(estimate.log_evidence - NORMAL) < 4 * estimate.log_evidence_sd < 0.6
    first, second, third = estimates
    for estimate in (first, second):
        assert not estimate.is_confirmed
        assert estimate.log_evidence_sd >= Auto().unconfirmed_sd
        assert np.isnan(estimate.correction)
    assert third.is_confirmed
    assert third.log_evidence_sd < 0.01
    assert third.correction == third.log_evidence - state.first
    assert abs(third.correction) < 0.05


def test_an_estimate_of_a_state_is_always_the_same():
    target, rng = target_of(real), np.random.default_rng(0)
    state = Auto().start(target, rng)
    for _ in range(3):
        state = Auto().advance(target, state, rng, 20_000)
    spent = target.evaluations
    one, other = Auto().estimate(target, state), Auto().estimate(target, pickle.loads(pickle.dumps(state)))
    assert one.is_confirmed
    assert (one.log_evidence, one.log_evidence_sd) == (other.log_evidence, other.log_evidence_sd)
    np.testing.assert_array_equal(one.points, other.points)
    assert target.evaluations == spent


def test_without_a_gradient_it_needs_few_evaluations():
    estimate, state = solved(no_gradient, evaluations=400)
    assert state.method == "laplace"
    assert abs(estimate.log_evidence - NORMAL) < 4 * estimate.log_evidence_sd < 0.5
    assert estimate.evaluations < 600


def test_jumps_are_for_particles():
    estimate, state = solved(jumps, evaluations=30_000, visits=4)
    assert state.method == "particles"
    assert estimate.is_confirmed
    assert abs(estimate.log_evidence - EXACT[jumps]) < 4 * estimate.log_evidence_sd < 0.2


def test_a_laplace_estimate_that_failed_is_not_repeated_for_ever():
    failed = ModeMixtureState(failed="Newton's method did not converge to a mode")
    for program, following in ((real, "modes"), (no_gradient, "particles")):
        target, rng = target_of(program), np.random.default_rng(0)
        assert Auto().advance(target, AutoState("laplace", failed, attempts=1), rng, 1_000).method == "laplace"
        state = Auto().advance(target, AutoState("laplace", failed, attempts=2), rng, 1_000)
        assert state.method == following
        estimate = Auto().estimate(target, state)
        assert abs(estimate.log_evidence - NORMAL) < 4 * estimate.log_evidence_sd < 1


def test_modes_that_were_not_found_are_left_to_particles():
    failed = ModeMixtureState(failed="no point of positive density was found to start from")
    target, rng = target_of(real), np.random.default_rng(0)
    state = AutoState("modes", failed, attempts=2)
    for _ in range(4):
        state = Auto().advance(target, state, rng, 30_000)
    assert state.method == "particles"
    estimate = Auto().estimate(target, state)
    assert estimate.is_confirmed
    assert abs(estimate.log_evidence - NORMAL) < 4 * estimate.log_evidence_sd < 0.1


def loops(dim):
    """A loop of JAX on a random value has no gradient, which shows when one is asked for. Each lap adds x₀² + 0.1."""

    def program():
        x = ab.sample("x", dist.Normal(jnp.ones(dim), 1.0).to_event(1))
        total = lax.while_loop(lambda total: total < 5.0, lambda total: total + x[0] ** 2 + 0.1, 0.0)
        ab.observe("y", dist.Normal(total, 1.0), 5.5)

    lap = norm.ppf((np.arange(1_000_000) + 0.5) / 1_000_000, 1.0) ** 2 + 0.1
    return program, np.log(np.mean(norm.pdf(5.5, np.ceil(5.0 / lap) * lap, 1.0)))


@pytest.mark.parametrize("dim", [1, 6])
def test_a_gradient_that_turns_out_not_to_be_there(dim):
    program, exact = loops(dim)
    estimate, state = solved(program, evaluations=10_000, visits=3)
    assert state.method in ("laplace", "particles")
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 0.5


def test_nothing_is_known_before_the_first_visit():
    target = target_of(real)
    estimate = Auto().estimate(target, Auto().start(target, np.random.default_rng(0)))
    assert (estimate.log_evidence, estimate.log_evidence_sd) == (-np.inf, np.inf)


def test_a_path_without_mass_goes_through_all_methods_and_ends():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.factor("never", jnp.where(x < 1e9, -jnp.inf, 0.0))

    estimate, _ = solved(program, evaluations=3_000, visits=5)
    assert estimate.log_evidence == -np.inf


def test_a_visit_keeps_to_its_evaluations():
    target, rng = target_of(real), np.random.default_rng(0)
    state = Auto().start(target, rng)
    for evaluations in (600, *(8_000,) * 5):
        before = target.evaluations
        state = Auto().advance(target, state, rng, evaluations)
        assert target.evaluations - before < 1.25 * evaluations
    assert state.method == "modes"
    assert state.spent == target.evaluations


def test_particles_that_all_descend_from_one_draw_can_be_fitted():
    """Half of the families are left to the bridge, unless that leaves none."""
    target, rng = target_of(jumps), np.random.default_rng(0)
    auto = Auto()
    state = auto.start(target, rng)
    for _ in range(3):
        state = auto.advance(target, state, rng, 8_000)
    one = [replace(sweep, founders=np.ones(len(sweep.points), int)) for sweep in state.population.sweeps]
    again = auto._with_particles(target, AutoState("particles", population=SMCState(tuple(one))), rng, 8_000)
    assert again.state.failed == ""
    estimate = auto.modes.estimate(target, again.state)
    assert abs(estimate.log_evidence - EXACT[jumps]) < 4 * estimate.log_evidence_sd < 0.5
