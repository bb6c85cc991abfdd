"""Gradients by NumPy: those of XLA, and of differences; on the paper's programs, and where something is special."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import errors, programs
from anabranch.divide import dispatch, host_gradient
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program

CASES = {
    "branching": (programs.branching, 2.0),
    "function_induction": (programs.function_induction, *programs.function_induction_data()),
    "mixture": (programs.mixture, programs.mixture_data()),
    "misspecified_mixture": (programs.misspecified_mixture, programs.mixture_data()),
    "planar_mixture": (programs.planar_mixture, programs.planar_mixture_data()),
}


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """What other tests have compiled is not there: compilations are counted."""
    monkeypatch.setattr(dispatch, "_functions", dispatch._Functions())


def path_of(program, *args, **kwargs):
    return ab.find_paths(program, *args, executions=50, **kwargs).paths[0]


def mixture_path(K, data=None):
    return rebuild(Program(programs.mixture, (programs.mixture_data() if data is None else data,)), [[np.array(K - 1)]])


def check(path, points, inverse_temperature=0.7):
    """By NumPy, by XLA and by differences."""
    evaluation, gradient = path.differentiate(points, inverse_temperature, compile=False)
    assert path._backend._gradient.compilations == 0
    compiled, expected = path.differentiate(points, inverse_temperature)
    for name in ("log_prior", "log_likelihood", "log_jacobian"):
        np.testing.assert_allclose(getattr(evaluation, name), getattr(compiled, name), rtol=1e-10, atol=1e-10)
    assert (evaluation.guard == compiled.guard).all()
    scale = 1 + np.abs(expected).max(axis=1, keepdims=True)
    np.testing.assert_allclose(gradient / scale, expected / scale, rtol=0, atol=1e-11)
    step, inside = 1e-6, evaluation.inside
    for column in np.flatnonzero(~path.discrete):
        shift = step * np.eye(path.dim)[column]
        up, down = (path.evaluate(points + s, compile=False) for s in (shift, -shift))
        both = inside & up.inside & down.inside
        tempered = [each.log_prior + inverse_temperature * each.log_likelihood for each in (up, down)]
        differences = (tempered[0] - tempered[1])[both] / (2 * step)
        scale = 1 + np.abs(expected[both]).max(axis=1)
        np.testing.assert_allclose(gradient[both, column] / scale, differences / scale, rtol=0, atol=1e-3)


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_xla_and_of_differences(name):
    program, *data = CASES[name]
    paths = sorted(ab.find_paths(program, *data, executions=100).paths, key=lambda path: path.dim)
    for path in dict.fromkeys([paths[0], paths[len(paths) // 2], paths[-1]]):
        if path.dim:
            check(path, path.prior(20, seed=1).points)


@pytest.mark.parametrize("n", [1, 3, 40, 500])
def test_any_number_of_points_gives_a_row_for_each(n):
    path = mixture_path(9)
    points = path.prior(n, seed=2).points
    gradient = path.differentiate(points, compile=False)[1]
    assert gradient.shape == (n, 9)
    one_by_one = np.concatenate([path.differentiate(point[None], compile=False)[1] for point in points[:5]])
    np.testing.assert_allclose(gradient[:5], one_by_one, rtol=1e-10, atol=1e-10)


def test_no_points_give_no_rows():
    assert mixture_path(2).differentiate(np.zeros((0, 2)), compile=False)[1].shape == (0, 2)


def test_values_alone_are_those_that_come_with_the_gradient():
    path = mixture_path(7)
    points = path.prior(90, seed=3).points
    evaluation, alone = (
        path.differentiate(points, compile=False)[0],
        path.evaluate_as_differentiated(points, compile=False),
    )
    for name in ("log_prior", "log_likelihood", "log_jacobian", "guard"):
        assert (getattr(evaluation, name) == getattr(alone, name)).all()


def test_each_decision_sequence_is_differentiated_by_itself():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(jnp.log(x) if x > 0 else jnp.log(-x), 1.0), 0.3)

    path = path_of(program)
    assert len(path.decisions) == 2
    points = path.prior(50, seed=2).points
    assert np.isfinite(path.differentiate(points, compile=False)[1]).all()
    check(path, points)


def test_discrete_coordinates_have_a_gradient_of_zero():
    def program():
        n = ab.sample("n", dist.Poisson(3.0))
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)) * n, 1.0), 0.3)

    path = path_of(program)
    _, gradient = path.differentiate(path.prior(20, seed=0).points, compile=False)
    assert (gradient[:, path.discrete] == 0).all()
    assert (gradient[:, ~path.discrete] != 0).any()


def test_where_the_derivative_is_no_number_differences_of_the_density_take_its_place():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(jnp.where(x > 0, jnp.sqrt(x), 0.0), 1.0), 0.3)

    path = path_of(program)
    _, gradient = path.differentiate(np.array([[-1.0], [0.5]]), compile=False)
    np.testing.assert_allclose(gradient[0], 1.0, rtol=1e-6)
    backend = path._backend
    assert (backend._gradient.compilations, backend._function.compilations) == (0, 0)


def test_paths_with_the_same_code_are_traced_once(monkeypatch):
    traced, trace = [], host_gradient._trace_of
    monkeypatch.setattr(host_gradient, "_traces", type(host_gradient._traces)())
    monkeypatch.setattr(host_gradient, "_trace_of", lambda *args: traced.append(args) or trace(*args))
    data = programs.mixture_data()
    one, other = mixture_path(4, data), mixture_path(4, data + 0.25)
    points = one.prior(5, seed=0).points
    there = [path.differentiate(points, compile=False)[1] for path in (one, other)]
    assert len(traced) == 1
    assert not np.allclose(*there)
    np.testing.assert_allclose(there[1], other.differentiate(points)[1], rtol=1e-9)


def test_the_trace_is_as_long_for_forty_means_as_for_four():
    four, forty = (mixture_path(K).host_cost() for K in (4, 40))
    assert forty.calls == four.calls
    assert forty.operations == four.operations
    assert 4 < forty.numbers / four.numbers < 10


def test_a_primitive_that_only_jax_evaluates_leaves_the_gradient_to_xla():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
        ab.observe("y", dist.Normal(jnp.abs(jnp.fft.fft(x)), 1.0).to_event(1), np.ones(4))

    path = path_of(program)
    points = np.random.default_rng(0).normal(size=(3, 4))
    assert path.host_cost() is None
    _, gradient = path.differentiate(points, compile=False)
    assert path._backend._gradient.compilations == 1
    np.testing.assert_array_equal(gradient, path.differentiate(points)[1])


def test_the_turns_of_a_scan_count_for_the_evaluation_and_not_for_the_compilation():
    def program(length):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        last, _ = jax.lax.scan(lambda carry, _: (jnp.sin(carry) * x, None), x, None, length=length)
        ab.observe("y", dist.Normal(last, 1.0), 0.0)

    short, long = (path_of(program, length).host_cost() for length in (10, 1010))
    assert long.calls - short.calls >= 1_000
    assert long.numbers - short.numbers >= 1_000
    assert long.operations == short.operations


def test_a_path_that_cannot_be_differentiated_says_so():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(jax.lax.while_loop(lambda a: a < 3, lambda a: a + 1.5, x), 1.0), 0.0)

    with pytest.raises(errors.NoGradient, match="cannot be differentiated"):
        path_of(program).differentiate(np.zeros((1, 1)), compile=False)
