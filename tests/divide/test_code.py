"""Compiled code is shared by densities that differ in their arrays alone, and gives what each would give by itself."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax import monitoring

import anabranch as ab

X = np.random.default_rng(0).normal(size=(12, 4))
Y = X @ np.array([1.0, -2.0, 0.0, 0.5])


def selection(x, y):
    """A regression on the columns that are included."""
    chosen = [j for j in range(x.shape[1]) if ab.sample(f"in{j}", dist.Bernoulli(0.3))]
    mean = sum((x[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 2.0)) for j in chosen), jnp.zeros(len(y)))
    ab.observe("y", dist.Normal(mean, 1.0), y)


def loop(y, scale=1.0):
    """The data are numbers in a loop, which are packed."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    for t in range(len(y)):
        ab.observe(f"y{t}", dist.Normal(x * t, scale), y[t])


@pytest.fixture
def compiled():
    """The events of XLA's compiler, which are counted."""
    events = []

    def listen(event, _, **__):
        if event.endswith("backend_compile_duration"):
            events.append(event)

    monitoring.register_event_duration_secs_listener(listen)
    yield events
    monitoring.unregister_event_duration_listener(listen)


def paths_with(division, size):
    return [path for path in division.paths if path.dim == size]


def test_paths_that_differ_in_their_arrays_share_one_compilation(compiled):
    division = ab.find_paths(selection, X, Y)
    pairs, rng = paths_with(division, 2), np.random.default_rng(1)
    assert len(pairs) == 6
    points, before = rng.normal(size=(5, 2)), None
    for path in pairs:
        [first, second] = [int(site.name[1:]) for site in path.sites if site.name.startswith("b")]
        mean = points @ X[:, [first, second]].T
        exact = dist.Normal(mean, 1.0).log_prob(Y).sum(axis=1)
        slope = (Y - mean) @ X[:, [first, second]] - points / 4.0
        evaluation, gradient = path.differentiate(points)
        np.testing.assert_allclose(evaluation.log_likelihood, exact, rtol=1e-5)
        np.testing.assert_allclose(gradient, slope, rtol=1e-9)
        before = len(compiled) if before is None else before
        assert len(compiled) == before, "the first of them compiles for all"
    prior = {path.log_prior_probability for path in pairs}
    assert max(prior) - min(prior) < 1e-12


def test_a_second_run_compiles_nothing(compiled):
    answers = []
    for seed in (3, 3):
        before = len(compiled)
        answers.append(ab.infer(loop, [0.1, 1.2, 2.3, 2.8], seed=seed, budget=30_000).log_evidence)
        counts = len(compiled) - before
    assert counts == 0
    assert answers[0] == answers[1]


def test_other_numbers_are_other_code_and_other_arrays_are_not():
    points = np.array([[0.3], [-1.0]])
    for y, scale in (([0.5, 1.0, 2.0, 3.5], 1.0), ([1.5, 0.0, 2.0, 2.5], 1.0), ([1.5, 0.0, 2.0, 2.5], 0.7)):
        [path] = ab.find_paths(loop, y, scale).paths
        exact = dist.Normal(points * np.arange(4), scale).log_prob(np.array(y)).sum(axis=1)
        np.testing.assert_allclose(path.evaluate(points).log_likelihood, exact, rtol=1e-6)
        np.testing.assert_allclose(path.evaluate(points, compile=False).log_likelihood, exact, rtol=1e-6)

    def code(*args):
        return ab.find_paths(loop, *args).paths[0]._backend.densities[0].code[0].key

    assert code([0.5, 1.0, 2.0, 3.5], 1.0) == code([9.0, 1.0, 2.0, 3.0], 1.0)
    assert code([0.5, 1.0, 2.0, 3.5], 1.0) != code([0.5, 1.0, 2.0, 3.5], 0.7)


def test_constants_are_not_compiled_by_themselves(compiled):
    """A compilation is one event: operations on constants are part of it."""

    def program(y):
        z = ab.sample("z", dist.Categorical(jnp.ones(3) / 3).expand([len(y)]))
        ab.observe("y", dist.Normal(jnp.array([0.0, 1.0, ab.sample("m", dist.Normal(0.0, 2.0))])[z], 1.0), y)

    from anabranch.conquer import PathTarget
    from anabranch.conquer.elimination import Elimination, eliminate

    [path] = ab.find_paths(program, np.linspace(-1.0, 3.0, 17)).paths
    target = eliminate(PathTarget(path), Elimination(), np.random.default_rng(0))
    before = len(compiled)
    target.differentiate(np.zeros((3, 1)))
    assert len(compiled) - before == 1


def test_prior_draws_of_some_columns_are_those_of_all():
    """Nothing is drawn but what the columns depend on, and the same numbers."""

    def program():
        rate = ab.sample("rate", dist.Gamma(2.0, 1.0))
        width = ab.sample("width", dist.Uniform(0.0, rate))
        z = ab.sample("z", dist.Categorical(jnp.ones(3) / 3).expand([40]))
        ab.observe("y", dist.Normal(width * z, 1.0), jnp.ones(40))

    [path] = ab.find_paths(program).paths
    columns = np.arange(path.dim)[path.sites[1].columns]
    every, some = path.prior(30, seed=4), path.prior(30, seed=4, columns=columns)
    np.testing.assert_array_equal(every.points[:, :2], some.points[:, :2])
    assert not some.points[:, 2:].any()
    assert some.log_probability == every.log_probability
