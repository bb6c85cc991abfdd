"""Elimination of long series against forward algorithms of their own, and real variables against quadrature."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.contrib.control_flow import cond, scan
from scipy.special import logsumexp
from scipy.stats import norm

import anabranch as ab
from anabranch.conquer import Elimination, PathTarget
from anabranch.conquer.elimination import Eliminated, eliminate

A = np.array([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.25, 0.25, 0.5]])
B = np.array([[0.9, 0.1], [0.3, 0.7]])
LENGTH = 40


def series(length: int = LENGTH) -> np.ndarray:
    return np.random.default_rng(1).normal(size=length) * 1.5


def forward(log_steps: np.ndarray, log_likelihood: np.ndarray) -> np.ndarray:
    """log p(y) of points, from log steps (points or 1, T, K, K), of which the first starts in state zero, and log
    likelihoods (points, T, K)."""
    alpha = log_steps[:, 0, 0] + log_likelihood[:, 0]
    for t in range(1, log_likelihood.shape[1]):
        alpha = logsumexp(alpha[:, :, None] + log_steps[:, t], axis=1) + log_likelihood[:, t]
    return logsumexp(alpha, axis=1)


def density_of(program, *args, x: np.ndarray) -> np.ndarray:
    """The log density at values of the one real variable, without the discrete ones."""
    (path,) = ab.find_paths(program, *args, executions=20).paths
    target = eliminate(PathTarget(path), Elimination(), np.random.default_rng(0))
    assert isinstance(target, Eliminated)
    assert target.dim == 1
    assert max(tables.order.width() for tables in target.tables) <= 2
    return target.evaluate(x[:, None]).log_density


def factorial(y):
    """Two chains, one observation of both."""
    x, a, b = ab.sample("x", dist.Normal(0.0, 1.0)), 0, 0
    for t, value in enumerate(y):
        a = ab.sample(f"a{t}", dist.Categorical(jnp.asarray(A)[a]))
        b = ab.sample(f"b{t}", dist.Categorical(jnp.asarray(B)[b]))
        ab.observe(f"y{t}", dist.Normal(x + a - 2.0 * b, 1.0), value)


def test_a_factorial_model():
    y, x = series(), np.array([-1.0, 0.2, 1.3])
    states = np.array([(a, b) for a in range(3) for b in range(2)])
    steps = np.log(np.kron(A, B))[None, None].repeat(len(y), axis=1)
    likelihood = norm.logpdf(y[None, :, None], x[:, None, None] + states[:, 0] - 2.0 * states[:, 1], 1.0)
    exact = norm.logpdf(x) + forward(steps, likelihood)
    np.testing.assert_allclose(density_of(factorial, y, x=x), exact, rtol=1e-8)


def missing(y, seen):
    """Some values were not observed: there is no statement for them."""
    x, z = ab.sample("x", dist.Normal(0.0, 1.0)), 0
    for t in range(len(y)):
        z = ab.sample(f"z{t}", dist.Categorical(jnp.asarray(A)[z]))
        if seen[t]:
            ab.observe(f"y{t}", dist.Normal(x + z, 1.0), y[t])


def test_missing_data():
    y, x = series(), np.array([-1.0, 0.2, 1.3])
    seen = np.random.default_rng(2).uniform(size=len(y)) < 0.6
    likelihood = norm.logpdf(y[None, :, None], x[:, None, None] + np.arange(3), 1.0) * seen[:, None]
    exact = norm.logpdf(x) + forward(np.log(A)[None, None].repeat(len(y), axis=1), likelihood)
    np.testing.assert_allclose(density_of(missing, y, seen, x=x), exact, rtol=1e-8)


def covariates(y, u):
    """The transitions depend on a covariate and its coefficient."""
    slope, z = ab.sample("slope", dist.Normal(0.0, 1.0)), 0
    for t, value in enumerate(y):
        z = ab.sample(f"z{t}", dist.Categorical(logits=jnp.log(jnp.asarray(A)[z]) + slope * u[t] * jnp.arange(3)))
        ab.observe(f"y{t}", dist.Normal(1.0 * z, 1.0), value)


def test_covariates_in_the_transitions():
    y, x = series(), np.array([-1.0, 0.2, 1.3])
    u = np.random.default_rng(2).normal(size=len(y))
    logits = np.log(A) + x[:, None, None, None] * u[:, None, None] * np.arange(3)
    likelihood = norm.logpdf(y[None, :, None], np.arange(3.0), 1.0).repeat(len(x), axis=0)
    exact = norm.logpdf(x) + forward(logits - logsumexp(logits, axis=3, keepdims=True), likelihood)
    np.testing.assert_allclose(density_of(covariates, y, u, x=x), exact, rtol=1e-8)


def in_a_scan(y):
    """A chain in a loop of NumPyro, not annotated."""
    x = numpyro.sample("x", dist.Normal(0.0, 1.0))

    def step(z, value):
        z = numpyro.sample("z", dist.Categorical(jnp.asarray(A)[z]))
        numpyro.sample("y", dist.Normal(x + z, 1.0), obs=value)
        return z, None

    scan(step, 0, jnp.asarray(y))


def test_a_chain_in_a_scan_and_its_evidence_by_quadrature():
    y, grid = series(20), np.linspace(-5.0, 5.0, 801)
    likelihood = norm.logpdf(y[None, :, None], grid[:, None, None] + np.arange(3), 1.0)
    exact = norm.logpdf(grid) + forward(np.log(A)[None, None].repeat(len(y), axis=1), likelihood)
    np.testing.assert_allclose(density_of(in_a_scan, y, x=grid), exact, rtol=1e-8)
    posterior = ab.infer(in_a_scan, y, seed=0, tolerance=0.05)
    log_evidence = np.log(np.trapezoid(np.exp(exact), grid))
    assert abs(posterior.log_evidence - log_evidence) < 4 * posterior.log_evidence_sd < 0.3


def test_a_cond_on_a_discrete_variable_beside_a_chain():
    """The `cond` divides the program, and the chain of each part is summed out: the evidence is exact."""

    def program(y):
        kind = numpyro.sample("kind", dist.Bernoulli(0.3))
        sticky = jnp.array([[0.9, 0.1], [0.2, 0.8]])
        steps = cond(kind == 1, lambda _: sticky, lambda _: jnp.full((2, 2), 0.5), None)
        z = 0
        for t, value in enumerate(y):
            z = numpyro.sample(f"z{t}", dist.Categorical(steps[z]))
            numpyro.sample(f"y{t}", dist.Normal(2.0 * z, 1.0), obs=value)

    y = series(30)
    posterior = ab.infer(program, y, seed=0)
    likelihood = norm.logpdf(y[None, :, None], 2.0 * np.arange(2), 1.0)
    of_each = [
        np.log(p) + forward(np.log(steps)[None, None].repeat(len(y), axis=1), likelihood)[0]
        for p, steps in ((0.3, np.array([[0.9, 0.1], [0.2, 0.8]])), (0.7, np.full((2, 2), 0.5)))
    ]
    assert posterior.log_evidence == pytest.approx(logsumexp(of_each), abs=1e-8)
    assert posterior.probability("kind")[1] == pytest.approx(np.exp(of_each[0] - logsumexp(of_each)), abs=1e-8)


def test_a_cond_of_jax_on_a_state():
    """A branch of JAX on a variable that is summed out decides nothing: it is part of the graph."""

    def program(y):
        x, z = ab.sample("x", dist.Normal(0.0, 1.0)), 0
        for t, value in enumerate(y):
            z = ab.sample(f"z{t}", dist.Categorical(jnp.asarray(B)[z]))
            mean = jax.lax.cond(z == 1, lambda x: 2.0 * x, lambda x: x - 1.0, x)
            ab.observe(f"y{t}", dist.Normal(mean, 1.0), value)

    y, x = series(12), np.array([-1.0, 0.2, 1.3])
    means = np.stack([x - 1.0, 2.0 * x], axis=1)
    likelihood = norm.logpdf(y[None, :, None], means[:, None, :], 1.0)
    exact = norm.logpdf(x) + forward(np.log(B)[None, None].repeat(len(y), axis=1), likelihood)
    np.testing.assert_allclose(density_of(program, y, x=x), exact, rtol=1e-8)


@pytest.mark.parametrize(
    ("program", "beside"), [(covariates, series), (missing, lambda n: np.random.default_rng(2).uniform(size=n) < 0.6)]
)
def test_the_operations_to_compile_do_not_grow_with_the_length(program, beside):
    def operations(length: int) -> int:
        (path,) = ab.find_paths(program, series(length), beside(length), executions=20).paths
        target = eliminate(PathTarget(path), Elimination(), np.random.default_rng(0))
        assert isinstance(target, Eliminated)
        with jax.enable_x64(True):
            (call,) = jax.make_jaxpr(target.log_density_function())(np.zeros(1)).eqns
        return len(call.params["call_jaxpr"].eqns)

    assert operations(20) == operations(40)


# Chains in few exponentials ---------------------------------------------------------------------------------------

STAY = np.array([[1.0, 0.0], [0.0, 1.0]])
LEFT_TO_RIGHT = np.array([[0.8, 0.2, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]])


def shifted(y, steps, shifts):
    """A chain that starts anywhere, observed about x plus a shift for each state."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    z = ab.sample("z0", dist.Categorical(jnp.ones(len(steps)) / len(steps)))
    ab.observe("y0", dist.Normal(x + jnp.asarray(shifts)[z], 1.0), y[0])
    for t in range(1, len(y)):
        z = ab.sample(f"z{t}", dist.Categorical(jnp.asarray(steps)[z]))
        ab.observe(f"y{t}", dist.Normal(x + jnp.asarray(shifts)[z], 1.0), y[t])


def compiled(target, x):
    """Log density and gradient by compiled code, and how often the code without short cuts was compiled."""
    evaluation, gradient = target.differentiate(x[:, None])
    return evaluation.log_density, gradient[:, 0], (Eliminated._gradient, False) in target._functions


@pytest.mark.parametrize(
    ("steps", "shifts", "y", "is_lost"),
    [
        pytest.param(A, [-1.0, 0.0, 2.0], series(), False, marks=pytest.mark.slow),
        (LEFT_TO_RIGHT, [-1.0, 0.0, 2.0], series(), False),
        # What has probability e^−4000 halfway is all that remains at the end: 1e-308 is far too large for it.
        pytest.param(STAY, [0.0, 30.0], np.repeat([0.0, 33.0], [10, 30]), True, marks=pytest.mark.slow),
        (LEFT_TO_RIGHT, [0.0, 30.0, 60.0], np.repeat([60.0, -5.0], [10, 30]), True),
    ],
    ids=["all steps", "zeros", "two states apart", "one way"],
)
def test_a_chain_takes_the_long_way_where_terms_would_be_lost(steps, shifts, y, is_lost):
    x, n = np.array([-1.0, 0.2, 1.3]), len(steps)
    (path,) = ab.find_paths(shifted, y, steps, shifts, executions=20).paths
    target = eliminate(PathTarget(path), Elimination(), np.random.default_rng(0))
    log_density, gradient, was_lost = compiled(target, x)
    with np.errstate(divide="ignore"):
        logs = np.concatenate([np.full((1, 1, n, n), -np.log(n)), np.log(steps)[None, None].repeat(len(y) - 1, 1)], 1)

    def exact(x):
        likelihood = norm.logpdf(y[None, :, None], x[:, None, None] + np.array(shifts), 1.0)
        return norm.logpdf(x) + forward(logs, likelihood)

    np.testing.assert_allclose(log_density, exact(x), rtol=1e-12)
    np.testing.assert_allclose(gradient, (exact(x + 1e-5) - exact(x - 1e-5)) / 2e-5, rtol=1e-6)
    assert was_lost is is_lost
