"""`scan` and `cond` of NumPyro, run as loops and branches of Python."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import cond, scan
from scipy.special import logsumexp
from scipy.stats import norm

import anabranch as ab

pytestmark = pytest.mark.one_in(2)

Y = np.array([0.3, -0.8, 1.9, 2.4])


def only_path(program, *args):
    (path,) = ab.find_paths(program, *args, executions=50).paths
    return path


def random_walk(y):
    def step(x, value):
        x = numpyro.sample("x", dist.Normal(0.9 * x, 0.5))
        numpyro.deterministic("double", 2 * x)
        numpyro.sample("y", dist.Normal(x, 1.0), obs=value)
        return x, x

    last, xs = scan(step, 0.0, jnp.asarray(y))
    return last, xs


def by_a_loop(y):
    x = 0.0
    for t, value in enumerate(y):
        x = ab.sample(f"x[{t}]", dist.Normal(0.9 * x, 0.5))
        ab.observe(f"y[{t}]", dist.Normal(x, 1.0), value)


def test_a_scan_has_the_density_of_a_loop():
    scanned, looped = only_path(random_walk, Y), only_path(by_a_loop, Y)
    assert scanned.addresses == looped.addresses == ("x[0]", "x[1]", "x[2]", "x[3]")
    points = np.random.default_rng(0).normal(size=(5, 4))
    one, other = scanned.evaluate(points), looped.evaluate(points)
    np.testing.assert_allclose(one.log_density, other.log_density, rtol=1e-12)
    (named,) = scanned.outcomes(points)
    last, xs = named.result
    np.testing.assert_allclose(xs, points)
    np.testing.assert_allclose(last, points[:, 3])
    np.testing.assert_allclose(named.deterministics["double[2]"], 2 * points[:, 2])


def test_a_scan_of_hidden_states_is_eliminated():
    transitions, means = np.array([[0.9, 0.1], [0.3, 0.7]]), np.array([0.0, 2.0])

    def program(y):
        def step(z, value):
            z = numpyro.sample("z", dist.Categorical(jnp.asarray(transitions)[z]))
            numpyro.sample("y", dist.Normal(jnp.asarray(means)[z], 1.0), obs=value)
            return z, None

        scan(step, 0, jnp.asarray(y))

    y = np.random.default_rng(0).normal(size=40) + 1.0
    posterior = ab.infer(program, y, seed=0)
    alpha = np.log(transitions[0]) + norm.logpdf(y[0], means, 1.0)
    for value in y[1:]:
        alpha = logsumexp(alpha[:, None] + np.log(transitions), axis=0) + norm.logpdf(value, means, 1.0)
    assert posterior.log_evidence == pytest.approx(logsumexp(alpha), abs=1e-8)
    assert sum(posterior.probability("z[7]").values()) == pytest.approx(1.0)


def test_backwards_and_by_its_length():
    def program():
        def step(x, _):
            return numpyro.sample("x", dist.Normal(x, 1.0)), x

        return scan(step, 5.0, None, length=3, reverse=True)

    path = only_path(program)
    assert path.addresses == ("x[2]", "x[1]", "x[0]")
    (named,) = path.outcomes(np.array([[1.0, 2.0, 3.0]]))
    last, before = named.result
    np.testing.assert_allclose(np.broadcast_to(last, (1,)), [3.0])
    np.testing.assert_allclose(np.asarray(before)[0], [2.0, 1.0, 5.0])


def test_loops_in_loops():
    def program():
        def outer(x, _):
            def inner(x, _):
                return numpyro.sample("x", dist.Normal(x, 1.0)), None

            return scan(inner, x, None, length=2)

        scan(outer, 0.0, None, length=2)

    assert len(set(only_path(program).addresses)) == 4


def test_a_cond_divides_the_program():
    def program():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        y = cond(x > 0, lambda _: numpyro.sample("y", dist.Normal(3.0, 1.0)), lambda offset: x + offset, 0.5)
        numpyro.sample("z", dist.Normal(y, 1.0), obs=1.0)

    paths = ab.find_paths(program, executions=100).paths
    assert {path.addresses for path in paths} == {("x", "y"), ("x",)}
    posterior = ab.infer(program, seed=0, tolerance=0.02)
    grid = np.linspace(-8, 0, 4_001)
    below = np.trapezoid(norm.pdf(grid) * norm.pdf(1.0, grid + 0.5, 1.0), grid)
    exact = np.log(0.5 * norm.pdf(1.0, 3.0, np.sqrt(2)) + below)
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.1
