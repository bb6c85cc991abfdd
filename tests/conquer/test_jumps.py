"""Jumps of densities: found where an index, a comparison or a sort makes them, and nowhere else."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer import PathTarget
from anabranch.conquer.jumps import has_jumps, is_climbable

Y = np.random.default_rng(0).standard_normal(30) + np.where(np.arange(30) < 12, 0.0, 4.0)
DESIGN = np.random.default_rng(1).standard_normal((30, 6))
TIMES = np.arange(30.0)


def regression():
    slopes = ab.sample("slopes", dist.Normal(0.0, 1.0).expand([6]).to_event(1))
    ab.observe("y", dist.Normal(DESIGN @ slopes, jnp.exp(ab.sample("log_sd", dist.Normal(0.0, 1.0)))), Y)


def narrow_mixture():
    means = ab.sample("means", dist.Normal(0.0, 10.0).expand([3]).to_event(1))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(3) / 3), dist.Normal(means, 0.1)), Y)


def funnel():
    log_scale = ab.sample("log_scale", dist.Normal(0.0, 3.0))
    x = ab.sample("x", dist.Normal(0.0, jnp.exp(log_scale / 2)).expand([5]).to_event(1))
    ab.observe("y", dist.Normal(x, 1.0), Y[:5])


def simplex():
    shares = ab.sample("shares", dist.Dirichlet(jnp.full(4, 0.5)))
    ab.observe("counts", dist.Multinomial(20, shares), np.array([9, 6, 4, 1]))


def guarded():
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    if x[0] > x[1]:
        ab.sample("other", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(x.sum(), 0.1), 0.5)


def kink():
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    ab.observe("y", dist.Laplace(jnp.abs(x), 0.01), np.array([0.5, 0.1, 0.0]))


def steep_kink():
    """The slope changes by 2,000 within a standard deviation of the prior."""
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    ab.observe("y", dist.Normal(jnp.abs(x), 0.02), np.array([0.4, 0.8, 1.2, 1.8]))


def floor():
    ab.observe("y", dist.Normal(jnp.floor(ab.sample("x", dist.Normal(0.0, 10.0))), 0.3), 14.1)


def change_point():
    change = ab.sample("change", dist.Uniform(0.0, 30.0))
    means = ab.sample("means", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    ab.observe("y", dist.Normal(means[jnp.where(change > TIMES, 0, 1)], 1.0), Y)


def sorted_change_points():
    changes = jnp.sort(ab.sample("changes", dist.Uniform(0.0, 30.0).expand([3]).to_event(1)))
    means = ab.sample("means", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
    ab.observe("y", dist.Normal(means[jnp.searchsorted(changes, TIMES)], 1.0), Y)


def threshold(at=0.0):
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(jnp.where(x > at, 1.0, 0.0), 0.5), 0.2)


def walled():
    """A jump between two walls, beyond which the density is zero: most segments cross a wall as well."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.factor("walls", jnp.where(jnp.abs(x) < 0.7, 0.0, -jnp.inf))
    ab.observe("y", dist.Normal(jnp.where(x > 0, 1.0, 0.0), 0.5), 0.2)


def one_of_many():
    """Only the last of eight coordinates makes the density jump."""
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    ab.observe("y", dist.Normal(x[:7], 0.5), Y[:7])
    ab.observe("z", dist.Normal(jnp.round(3 * x[7]), 0.5), 1.0)


def without_mass():
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.factor("never", jnp.where(x < 1e9, -jnp.inf, 0.0))


def target_of(program, *args):
    return PathTarget(max(ab.find_paths(program, *args, executions=50).paths, key=lambda each: each.dim))


@pytest.mark.parametrize(
    "program", [regression, narrow_mixture, funnel, simplex, guarded, kink, steep_kink, without_mass]
)
def test_what_is_continuous_has_no_jumps(program):
    assert not has_jumps(target_of(program))


@pytest.mark.parametrize("program", [floor, change_point, sorted_change_points, threshold, walled, one_of_many])
def test_what_depends_on_an_index_or_a_comparison_jumps(program):
    assert has_jumps(target_of(program))


def test_one_threshold_is_found_wherever_it_is():
    assert all(has_jumps(target_of(threshold, at)) for at in (-1.0, -0.5, 0.5, 1.0))


def test_many_dimensions_are_looked_into_at_fewer_points():
    def program():
        slopes = ab.sample("slopes", dist.Normal(0.0, 1.0).expand([60]).to_event(1))
        ab.observe("y", dist.Normal(slopes, 1.0), np.zeros(60))

    target = target_of(program)
    assert not has_jumps(target)
    assert target.evaluations <= 50 + 60 * 26  # prior draws, and one segment along each coordinate


@pytest.mark.parametrize(("program", "expected"), [(regression, True), (change_point, False)])
def test_it_is_looked_into_once(program, expected):
    target = target_of(program)
    assert target.climbable is None
    assert is_climbable(target) is target.climbable is expected
    spent = target.evaluations
    assert 0 < spent < 1_600
    assert is_climbable(target) is expected
    assert target.evaluations == spent


def test_without_a_gradient_nothing_is_looked_into():
    def program():
        k = ab.sample("k", dist.Poisson(3.0))
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)) + k, 1.0), 2.0)

    target = target_of(program)
    assert not is_climbable(target)
    assert target.evaluations == 0
