"""Auto: the method that suits the path, when it changes, and which estimate it believes."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import lax
from scipy.stats import norm, poisson

import anabranch as ab
from anabranch.conquer import Auto, Estimate, PathTarget
from anabranch.conquer.auto import AutoState, _reconciled
from anabranch.conquer.marginal import sum_out
from anabranch.conquer.mode_mixture import ModeMixtureState


def discrete():
    k = ab.sample("k", dist.Categorical(jnp.ones(3) / 3))
    ab.observe("y", dist.Normal(jnp.arange(3.0)[k], 1.0), 1.0)


def infinite():
    ab.observe("y", dist.Normal(ab.sample("k", dist.Poisson(3.0)) * 1.0, 1.0), 2.0)


def real():
    ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)


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


def test_a_path_without_coordinates_is_one_evaluation():
    def program():
        ab.observe("y", dist.Normal(1.0 if ab.sample("k", dist.Bernoulli(0.3)) else 0.0, 1.0), 1.0)

    for path in ab.find_paths(program):
        target, rng = PathTarget(path), np.random.default_rng(0)
        state = Auto().advance(target, Auto().start(target, rng), rng, 1_000)
        estimate = Auto().estimate(target, state)
        assert (estimate.log_evidence_sd, target.evaluations) == (0.0, 1)


def test_few_evaluations_give_a_laplace_estimate_and_more_of_them_the_modes():
    target, rng = target_of(real), np.random.default_rng(0)
    state = Auto().advance(target, Auto().start(target, rng), rng, 500)
    assert state.method == "laplace"
    assert not target._differentiated
    first = Auto().estimate(target, state)
    state = Auto().advance(target, state, rng, 10_000)
    assert state.method == "modes"
    assert state.before == ()  # it is not compared with an estimate by gradients
    later = Auto().estimate(target, state)
    for estimate in (first, later):
        assert abs(estimate.log_evidence - NORMAL) < 4 * estimate.log_evidence_sd < 1
    assert later.log_evidence_sd < first.log_evidence_sd


def test_without_a_gradient_it_needs_few_evaluations():
    estimate, _ = solved(no_gradient, evaluations=400)
    assert abs(estimate.log_evidence - NORMAL) < 4 * estimate.log_evidence_sd < 0.5
    assert estimate.evaluations < 600


def test_jumps_are_no_obstacle():
    estimate, _ = solved(jumps, evaluations=20_000, visits=3)
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


def test_a_laplace_estimate_without_a_gradient_is_compared_with_later_ones():
    target, rng = target_of(no_gradient), np.random.default_rng(0)
    state = Auto().advance(target, Auto().start(target, rng), rng, 400)
    assert state.method == "laplace"
    poor = replace(state.state, points=state.state.points[:20], log_weights=state.state.log_weights[:20])
    state = replace(state, state=poor, spent=30_000)
    assert Auto()._next(target, state) == "particles"
    assert len(Auto()._switched(target, state, "particles").before) == 1


def test_what_was_summed_out_is_not_given_to_chains():
    """Ten means, a weight, and fifteen assignments that are summed out: chains could not be compiled for them."""

    def program(y):
        mu = ab.sample("mu", dist.Normal(0.0, 5.0).expand([10]).to_event(1))
        z = ab.sample("z", dist.Bernoulli(0.5).expand([len(y)]).to_event(1))
        ab.observe("y", dist.Normal(jnp.where(z == 1, mu[0], mu[1]) + 0.01 * mu.sum(), 1.0), y)

    target = sum_out(target_of(lambda: program(np.arange(15.0))))
    assert target.dim == 10 < target.path.dim
    state = AutoState("particles", ModeMixtureState(points=np.zeros((2, 10)), log_weights=np.zeros(2)), spent=30_000)
    assert Auto()._next(target, state) == "temper"


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


# Which estimate it believes -------------------------------------------------------------------------------------------


def said(log_evidence, sd, ess=1000.0, k=0.3, method="a"):
    nothing = Estimate.nothing(1, 5, method)
    return replace(nothing, log_evidence=log_evidence, log_evidence_sd=sd, ess=ess, pareto_k=k)


def test_the_smallest_error_is_believed_among_those_that_agree():
    best = _reconciled([said(-1.0, 0.1), said(-1.05, 0.01, method="b")], 99)
    assert (best.method, best.log_evidence_sd, best.evaluations) == ("b", 0.01, 99)


def test_what_says_significantly_more_is_believed():
    """A method that fails misses mass, however sure it is of the rest."""
    best = _reconciled([said(-3.0, 0.001), said(-1.0, 0.1, method="b")], 1)
    assert (best.method, best.log_evidence) == ("b", -1.0)


def test_weights_that_can_be_trusted_come_first():
    best = _reconciled([said(-1.0, 0.01, k=0.9), said(-1.0, 0.05, method="b")], 1)
    assert (best.method, best.log_evidence_sd) == ("b", 0.05)


def test_without_trust_the_error_covers_what_they_disagree_about():
    best = _reconciled([said(-1.3, 0.1, ess=20), said(-1.0, 0.2, k=0.9, method="b")], 1)
    assert (best.method, best.log_evidence_sd) == ("a", pytest.approx(0.3))


def test_an_error_beyond_use_has_no_voice():
    assert _reconciled([said(5.0, 3.0, method="wild"), said(-1.0, 0.1)], 1).method == "a"


def test_nothing_remains_nothing():
    assert _reconciled([Estimate.nothing(1, 5, "a"), Estimate.nothing(1, 5, "b")], 7).log_evidence == -np.inf
