"""The compiled backend: one compilation per path, and equations of the same form run as one."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.divide.compiled import MAX_BLOCK, MIN_BLOCK, NUMBERS_PER_BLOCK, numbers_per_point
from anabranch.divide.packing import Forms, plan
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program


def path_of(program, *args, **kwargs):
    return ab.find_paths(program, *args, executions=50, **kwargs).paths[0]


def mixture_path(K):
    return rebuild(Program(programs.mixture, (programs.mixture_data(),)), [[np.array(K - 1)]])


def branches():
    """One path with two decision sequences that differ in more than a guard."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    if x > 0:
        scale = ab.sample("scale", dist.Exponential(1.0))
        ab.observe("y", dist.Normal(jnp.log(x), scale), 0.3)
    else:
        scale = ab.sample("scale", dist.Uniform(0.5, 2.0))
        ab.observe("y", dist.Cauchy(jnp.log(-x), scale), 0.3)
    return scale


def test_a_path_is_compiled_once_whatever_the_number_of_points():
    path = mixture_path(3)
    block = path._backend.block
    for n in (1, 7, block, block + 1, 3 * block - 5):
        points = np.random.default_rng(n).normal(size=(n, 3))
        assert path.evaluate(points).log_density.shape == (n,)
        for inverse_temperature in (0.0, 0.5, 1.0):
            assert path.differentiate(points, inverse_temperature)[1].shape == (n, 3)
    assert path._backend._function.compilations == 1
    assert path._backend._gradient.compilations == 1


def test_the_more_a_point_takes_the_smaller_is_a_block():
    blocks = {K: mixture_path(K)._backend.block for K in (1, 10, 20, 90)}
    assert blocks == {1: MAX_BLOCK, 10: 256, 20: 128, 90: MIN_BLOCK}
    densities = mixture_path(20)._backend.densities
    assert NUMBERS_PER_BLOCK / 2 < blocks[20] * sum(map(numbers_per_point, densities)) <= NUMBERS_PER_BLOCK


def test_the_steps_of_a_scan_count_as_often_as_they_are_taken():
    def program(length):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        last, _ = jax.lax.scan(lambda carry, _: (jnp.sin(carry) * x, None), x, None, length=length)
        ab.observe("y", dist.Normal(last, 1.0), 0.0)

    short, long = (numbers_per_point(path_of(program, length)._backend.densities[0]) for length in (10, 1010))
    assert 2000 <= long - short <= 4000


def test_no_points_give_no_rows():
    path = mixture_path(2)
    assert path.evaluate(np.zeros((0, 2))).log_density.shape == (0,)
    assert path.differentiate(np.zeros((0, 2)))[1].shape == (0, 2)


def test_a_path_of_no_dimensions_has_a_density():
    def coin():
        ab.sample("heads", dist.Bernoulli(0.25))
        ab.observe("y", dist.Normal(0.0, 1.0), 0.5)

    path = ab.find_paths(coin, split=["heads"]).paths[0]
    assert path.dim == 0
    expected = np.log(0.75) - 0.5 * np.log(2 * np.pi) - 0.125
    np.testing.assert_allclose(path.evaluate(np.zeros((2, 0))).log_density, expected, rtol=1e-12)


def test_two_decision_sequences_are_one_density_without_nan():
    division = ab.find_paths(branches)
    [path] = division.paths
    assert len(path.decisions) == 2
    points = path.prior(200, seed=2).points
    x = path.values(points)["x"]
    assert (x > 0).any()
    assert (x < 0).any()
    compiled, host = path.evaluate(points), path.evaluate(points, compile=False)
    assert compiled.guard.all()
    np.testing.assert_allclose(compiled.log_density, host.log_density, rtol=1e-12)
    _, gradient = path.differentiate(points)
    assert np.isfinite(gradient).all()
    step = 1e-6
    for column in range(2):
        shift = step * np.eye(2)[column]
        up, down = (path.evaluate(points + s, compile=False).log_density for s in (shift, -shift))
        np.testing.assert_allclose(gradient[:, column], (up - down) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("K", [4, 12, 40])
def test_means_drawn_one_by_one_are_packed(K):
    density = mixture_path(K)._backend.densities[0]
    packed = plan(Forms(density.graph), density.evaluator.steps)
    assert len(packed) < 50 < 6 * K + 40 < len(density.evaluator.steps) + 40
    lanes = sum(len(step) if isinstance(step, list) else 1 for step in packed)
    assert lanes == len(density.evaluator.steps)


@pytest.mark.parametrize("K", [2, 3, 9])
def test_packing_does_not_change_the_density(K):
    path = mixture_path(K)
    points = path.prior(30, seed=K).points
    np.testing.assert_allclose(
        path.evaluate(points).log_density, path.evaluate(points, compile=False).log_density, rtol=1e-12
    )


def test_packing_keeps_lanes_apart_that_share_some_inputs():
    """Mixed orders, constants that differ, inputs from several packs, and one lane used by all."""

    def program():
        base = ab.sample("base", dist.Normal(0.0, 1.0))
        xs = [ab.sample(f"x{i}", dist.Normal(base * i, 1.0 + i)) for i in range(5)]
        ys = [ab.sample(f"y{i}", dist.Normal(jnp.sin(xs[4 - i]) + xs[i], 1.0)) for i in range(5)]
        for i in range(4):
            ab.observe(f"z{i}", dist.StudentT(3.0, xs[i] * ys[i + 1] - ys[0], jnp.exp(0.1 * i * base)), 0.3 * i)
        ab.observe(
            "all",
            dist.MultivariateNormal(jnp.concatenate([jnp.stack(xs[:3]), jnp.stack(ys[2:])]), jnp.eye(6)),
            np.ones(6),
        )

    path = path_of(program)
    points = np.random.default_rng(0).normal(size=(20, path.dim))
    np.testing.assert_allclose(
        path.evaluate(points).log_density, path.evaluate(points, compile=False).log_density, rtol=1e-11
    )


def test_points_of_the_wrong_shape_are_refused():
    path = mixture_path(3)
    with pytest.raises(ValueError, match=r"points must have shape \(n, 3\)"):
        path.evaluate(np.zeros((4, 2)))
    with pytest.raises(ValueError, match=r"points must have shape \(n, 3\)"):
        path.differentiate(np.zeros(3))
