"""Recordings of paths that nobody asks for are dropped, and made again from their decisions."""

import gc
import pickle
import tracemalloc

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.divide import divide, kept
from bits import bits
from small_runs import SMALL, coins

BYTES = 8_000
"""Of a known path with ten decisions, about, where its recording would take fifty thousand."""


def selection(X, y):
    mean = jnp.zeros(len(y))
    for j in range(X.shape[1]):
        if ab.sample(f"z{j}", dist.Bernoulli(0.5)):
            mean = mean + X[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 1.0))
    ab.deterministic("prior", "normal")
    ab.observe("y", dist.Normal(mean, 1.0), y)


def walk(y):
    """Decisions on reals, and on sites whose parameters are random."""
    p, x = ab.sample("p", dist.Beta(2.0, 2.0)), 0.0
    for i in range(2):
        x = x + ab.sample(f"step{i}", dist.Normal(0.0, 1.0))
        if x > 0.3:
            x = 0.5 * x
        if ab.sample(f"turn{i}", dist.Bernoulli(p)):
            x = -x
    ab.observe("y", dist.Normal(x, 1.0), y)


def data(p, n=20):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, X[:, 0] + rng.standard_normal(n)


def subsets(start, stop, p):
    rows = np.arange(start, stop)[:, None] >> np.arange(p) & 1
    return {f"z{j}": rows[:, j] for j in range(p)}


@pytest.fixture
def few_are_kept(monkeypatch):
    """At any time, hardly more recordings than are used at once."""
    monkeypatch.setattr(kept, "_MAX_NODES", 0)
    monkeypatch.setattr(kept, "_LEAST", 3)
    monkeypatch.setattr(kept, "_MIN_ADDED", 1)


def test_a_known_path_takes_few_bytes(few_are_kept):
    p, division = 10, divide(selection, data(10), {})
    division.route(subsets(0, 100, p))
    gc.collect()
    tracemalloc.start()
    try:
        division.route(subsets(100, 200, p))
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(division) == 200
    assert taken / 100 < BYTES


@pytest.mark.parametrize(
    ("program", "args", "limits"),
    [(selection, data(4), {}), (walk, (1.0,), {"budget": 1_000, "engine": SMALL}), (coins, (8,), {"budget": 5_000})],
    ids=["selection", "walk", "coins"],
)
def test_the_answer_is_the_same_whatever_is_dropped(program, args, limits, request):
    expected = bits(ab.infer(program, *args, seed=1, tolerance=None, **limits))
    request.getfixturevalue("few_are_kept")
    assert bits(ab.infer(program, *args, seed=1, tolerance=None, **limits)) == expected


def test_paths_are_found_in_the_same_order(request):
    def found():
        division = divide(walk, (1.0,), {})
        division.explore(300, seed=0)
        rng = np.random.default_rng(0)
        for seed in range(5):  # without counting, so that runs lead past nodes that are known
            steps = {f"step{i}": rng.normal(0, 2, 40) for i in range(2)}
            division.route({**steps, **{f"turn{i}": rng.integers(0, 2, 40) for i in range(2)}}, seed=seed)
        masses = [path.log_prior_probability for path in division.by_signature.values()]
        return [path.description for path in division.by_signature.values()], masses, division.python_runs

    expected = found()
    request.getfixturevalue("few_are_kept")
    assert found() == expected


def test_a_path_is_what_it_was_after_its_recording_was_dropped(few_are_kept):
    division, p = divide(selection, data(4), {}), 5
    division.route(subsets(21, 22, p))
    [path] = division.paths
    points = np.random.default_rng(0).standard_normal((4, path.dim))

    def of(path):
        return (
            path.description, path.dim, path.addresses, path.names, path.constants, path.decisions,
            path.evaluate(points).log_density.tobytes(), path.prior(10, seed=1).points.tobytes(),
            [(site.name, site.shape, site.support, site.columns) for site in path.sites], path.discrete.tobytes(),
        )  # fmt: skip

    before, recording, density = of(path), path.recording, path._backend
    division.route(subsets(0, 20, p))
    assert not path._kept[0].is_there
    assert path.recording is recording  # as long as somebody has it
    assert path._backend is not density
    del recording, density
    division.route(subsets(0, 20, p))
    division.route(subsets(22, 32, p))
    assert of(path) == before
    assert of(pickle.loads(pickle.dumps(path))) == before


def test_recordings_that_are_in_use_are_kept_as_far_as_they_fit(monkeypatch):
    monkeypatch.setattr(kept, "_MAX_NODES", 500)
    monkeypatch.setattr(kept, "_LEAST", 1)
    division, p = divide(selection, data(6), {}), 6
    division.route(subsets(0, 64, p))
    there = [path._kept[0] for path in division.paths if path._kept[0].is_there]
    assert 0 < len(there) < 64
    assert sum(each.nodes for each in there[: -kept._MIN_ADDED]) <= 500


def test_values_computed_with_a_recording_stay_with_it(few_are_kept):
    """What is added to a graph after the run has numbers that depend on the order in which it is asked for."""
    division, p = divide(selection, data(4), {}), 5
    [group] = division.route(subsets(21, 22, p))
    scores = group.scores().log_likelihood
    group.over_members(group.recording.once(kept_total))
    recording = group.recording
    division.route(subsets(0, 20, p))
    assert group.recording is recording
    del recording
    gc.collect()
    assert np.array_equal(group.over_members(group.recording.once(kept_total)), np.full(1, 2.0))
    assert np.array_equal(group.scores().log_likelihood, scores)


def kept_total(recording):
    """A computation that adds to the graph of a recording."""
    with recording.trace.current():
        return jnp.asarray(recording.sites[-1].value) * 0.0 + 2.0
