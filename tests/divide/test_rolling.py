"""Loops of a program are rolled into a scan, which computes what the turns compute one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp

import anabranch as ab
from anabranch import errors
from anabranch.divide import code as coding
from anabranch.divide.code import coded
from anabranch.divide.density import Density
from anabranch.divide.packing import Forms, plan
from anabranch.divide.rolling import Roll
from anabranch.limits import Limits, enforced
from helpers import use_false_clock

Y = np.random.default_rng(0).normal(size=40)


def arma(y):
    mu, phi = ab.sample("mu", dist.Normal(0.0, 3.0)), ab.sample("phi", dist.Normal(0.0, 0.5))
    theta, scale = ab.sample("theta", dist.Normal(0.0, 0.5)), ab.sample("scale", dist.HalfCauchy(2.5))
    error = y[0] - mu - phi * mu
    for t in range(1, len(y)):
        mean = mu + phi * y[t - 1] + theta * error
        error = y[t] - mean
        ab.observe(f"y{t}", dist.Normal(mean, scale), y[t])


def second_order(y):
    """Each turn reads what the two before it computed, and the shocks are one site."""
    shocks = ab.sample("shocks", dist.Normal(0.0, 1.0).expand([len(y)]))
    a = ab.sample("a", dist.Normal(0.0, 0.3))
    before, x = 0.1 * a, 0.2 * a
    for t in range(len(y)):
        before, x = x, jnp.tanh(a * x + 0.3 * before) + shocks[t]
        ab.observe(f"y{t}", dist.Normal(x, 0.5), y[t])


def hidden_markov(y):
    stay, means = ab.sample("stay", dist.Beta(2.0, 2.0)), ab.sample("means", dist.Normal(0.0, 1.0).expand([2]))
    steps = jnp.log(jnp.stack([jnp.stack([stay, 1 - stay]), jnp.stack([1 - stay, stay])]))
    log_mass = dist.Normal(means, 1.0).log_prob(y[0])
    for t in range(1, len(y)):
        log_mass = logsumexp(log_mass[:, None] + steps, axis=0) + dist.Normal(means, 1.0).log_prob(y[t])
    ab.factor("y", logsumexp(log_mass))


def two_loops(y):
    """The second loop does something else, and begins with what the first one ended with."""
    a, x = ab.sample("a", dist.Normal(0.0, 0.5)), 1.0
    for t in range(len(y)):
        x = jnp.sin(a * x) + y[t]
        x = x * a
    for t in range(len(y)):
        x = jnp.cos(x + y[t]) - 0.5 * a
        x = x / (1.0 + a * a)
        ab.observe(f"y{t}", dist.Normal(x, 1.0), y[t])


def recordings(program, *data):
    return [recording for path in ab.find_paths(program, *data).paths for recording in path.recordings]


def eager(code, arguments, point):
    """Density and gradient at a point, one operation at a time."""
    with jax.enable_x64(True):

        def total(point):
            prior, likelihood, _, _ = code.traced(point, [jnp.asarray(x) for x in arguments])
            return prior + likelihood

        return jax.value_and_grad(total)(jnp.asarray(point))


@pytest.mark.parametrize(
    "program",
    [two_loops, *(pytest.param(each, marks=pytest.mark.slow) for each in (arma, second_order, hidden_markov))],
)
def test_a_rolled_loop_has_the_density_and_gradient_of_its_turns(program, monkeypatch):
    [path] = ab.find_paths(program, Y).paths
    density, points = path.recording.once(Density), 0.4 * np.random.default_rng(1).normal(size=(3, path.dim))
    rolled, _ = density.code
    loops = [step for step in rolled.steps if isinstance(step, Roll)]
    assert len(loops) == (2 if program is two_loops else 1)
    assert all(len(loop.turns) >= 30 for loop in loops)
    evaluation, gradient = path.differentiate(points)
    by_numpy = density.at(points)
    np.testing.assert_allclose(evaluation.log_prior, by_numpy[0], rtol=1e-12)
    np.testing.assert_allclose(evaluation.log_likelihood, by_numpy[1], rtol=1e-12)
    monkeypatch.setattr(coding, "rolled_plan", lambda graph, steps, ends: plan(Forms(graph), steps))
    unrolled, arguments = coded(density)
    assert len(unrolled.steps) > 2 * len(rolled.steps)
    value, slope = eager(unrolled, arguments, points[0])
    np.testing.assert_allclose(evaluation.log_prior[0] + evaluation.log_likelihood[0], value, rtol=1e-12)
    np.testing.assert_allclose(gradient[0], slope, rtol=1e-12, atol=1e-12 * np.abs(slope).max())


def test_operations_do_not_grow_with_the_turns_and_the_key_does():
    codes = [recordings(arma, np.tile(Y, repeats))[0].once(Density).code[0] for repeats in (1, 3)]
    assert len(codes[0].steps) == len(codes[1].steps)
    assert codes[0].key != codes[1].key


def test_loops_over_other_data_share_their_code():
    others = np.concatenate([Y[:3], Y[:2:-1]])  # the turns before the loop is rolled have their numbers as constants
    codes, arguments = zip(*(recordings(arma, y)[0].once(Density).code for y in (Y, others)), strict=True)
    assert codes[0].key == codes[1].key
    assert [x.shape for x in arguments[0]] == [x.shape for x in arguments[1]]


def test_a_recurrence_that_changes_on_its_way_is_rolled_where_it_does_not():
    def changes(y):
        a, x = ab.sample("a", dist.Normal(0.0, 0.5)), 1.0
        kept = []
        for t in range(90):
            kept.append(x)
            # From the middle on, a turn reads the one before the last.
            x = jnp.sin(a * (x if t < 50 else kept[-2])) + 0.1 * t
        ab.observe("y", dist.Normal(x, 1.0), y)

    [path] = ab.find_paths(changes, 0.3).paths
    density = path.recording.once(Density)
    loops = [step for step in density.code[0].steps if isinstance(step, Roll)]
    assert 30 < max(len(loop.turns) for loop in loops) < 90
    points = np.array([[0.3], [-0.8]])
    evaluation, gradient = path.differentiate(points)
    np.testing.assert_allclose(evaluation.log_likelihood, density.at(points)[1], rtol=1e-12)
    ahead, behind = density.at(points + 1e-6), density.at(points - 1e-6)
    slope = (ahead[0] + ahead[1] - behind[0] - behind[1]) / 2e-6
    np.testing.assert_allclose(gradient[:, 0], slope, rtol=1e-5)


def test_steps_without_a_period_stay_as_they_are():
    functions = [jnp.sin, jnp.cos, jnp.tanh, jnp.exp, jnp.arctan]

    def irregular(y):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        for choice in np.random.default_rng(3).integers(0, 5, 120):
            x = functions[choice](0.5 * x)
        ab.observe("y", dist.Normal(x, 1.0), y)

    [recording] = recordings(irregular, 0.3)
    density = recording.once(Density)
    planned = plan(Forms(density.graph), density.evaluator.steps)
    assert [type(step) for step in density.code[0].steps] == [type(step) for step in planned]


def test_guards_inside_a_loop_hold_where_their_turns_hold():
    def barrier(y):
        drift, x = ab.sample("drift", dist.Normal(0.0, 1.0)), 0.0
        for t in range(40):
            x = 0.9 * x + drift
            x = x + 0.1 * y[t]
            if x > 4.0:
                ab.sample("excess", dist.Normal(0.0, 1.0))
                break
        ab.observe("end", dist.Normal(x, 1.0), 1.0)

    [path] = [path for path in ab.find_paths(barrier, Y).paths if path.dim == 1]  # never above
    assert any(isinstance(step, Roll) for step in path.recording.once(Density).code[0].steps)
    points = np.linspace(-1.0, 1.0, 21)[:, None]
    compiled, by_numpy = path.evaluate(points), path.evaluate(points, compile=False)
    np.testing.assert_array_equal(compiled.inside, by_numpy.inside)
    assert 0 < compiled.inside.sum() < len(points)
    inside = compiled.inside
    np.testing.assert_allclose(compiled.log_likelihood[inside], by_numpy.log_likelihood[inside], rtol=1e-12)


def test_the_expected_time_to_compile_counts_the_operations_of_one_turn():
    def long_loop(y):
        a, x = ab.sample("a", dist.Normal(0.0, 0.5)), 1.0
        for _ in range(3_000):
            x = jnp.sin(a * x)
        ab.observe("y", dist.Normal(x, 1.0), y)

    [path] = ab.find_paths(long_loop, 0.3).paths
    with enforced(Limits(seconds=60)):
        assert np.isfinite(path.differentiate(np.array([[0.3]]))[1]).all()


def test_what_is_inside_a_loop_of_jax_counts_for_the_time_to_compile(monkeypatch):
    def body(x, _):
        for _ in range(900):
            x = jnp.sin(x)
        return x, None

    def program(y):
        x, _ = jax.lax.scan(body, ab.sample("a", dist.Normal(0.0, 0.5)), None, length=2)
        ab.observe("y", dist.Normal(x, 1.0), y)

    [path] = ab.find_paths(program, 0.3).paths
    use_false_clock(monkeypatch, step=1e-6)  # which tracing takes no time of
    with enforced(Limits(seconds=1)), pytest.raises(errors.CompilationTooLong):
        path.evaluate(np.array([[0.3]]))
