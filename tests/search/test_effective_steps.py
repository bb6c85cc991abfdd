"""Walkers that are on their way from where they began are told from those that have settled."""

from types import SimpleNamespace

import numpy as np
import pytest

from anabranch.search import Walking
from anabranch.search.effective_steps import effective_steps, features_of
from anabranch.search.walk import Walk


def walkers(steps: int, keep: float, start: float, seed: int = 0) -> np.ndarray:
    """Autoregressive walkers with the variance one, all of which begin at one place."""
    rng, x, out = np.random.default_rng(seed), np.full(24, start), []
    for _ in range(steps):
        x = keep * x + np.sqrt(1 - keep**2) * rng.standard_normal(24)
        out.append(x)
    return np.array(out)


@pytest.mark.parametrize("keep", [0.0, 0.8, 0.95])
def test_settled_walkers_have_as_many_steps_as_are_independent(keep):
    found = [effective_steps([walkers(400, keep, 0.0, seed)[100:]]) for seed in range(20)]
    independent = 24 * 300 * (1 - keep) / (1 + keep)
    assert independent / 2.5 < np.median(found) < independent * 2.5


@pytest.mark.parametrize("start", [8.0, -8.0])
def test_walkers_on_their_way_have_hardly_any(start):
    for seed in range(20):
        x = walkers(80, 0.98, start, seed)[40:]
        assert abs(x.mean()) > 1.5  # the mean is far from zero, although there are 24 walkers
        assert effective_steps([x]) < 5
        assert effective_steps([walkers(80, 0.0, 0.0, seed)[40:], x]) < 5  # the least of them counts


def test_what_does_not_vary_has_no_say():
    assert effective_steps([np.ones((10, 4))]) == np.inf
    assert effective_steps([np.ones((10, 4)), walkers(10, 0.0, 0.0)]) < np.inf


def made_state(x: np.ndarray) -> SimpleNamespace:
    """A state with a path for each number that walkers had."""
    numbers, where = np.unique(x, return_inverse=True)
    table = [
        SimpleNamespace(number=i, log_evidence=each, path=SimpleNamespace(log_prior_probability=-3.0, dim=2))
        for i, each in enumerate(numbers)
    ]
    steps = list(where.reshape(x.shape))
    return SimpleNamespace(table=table, walk=Walk([table[i] for i in steps[-1]], frozenset(), steps=steps))


def test_a_walk_that_has_not_settled_has_no_say():
    """All walkers descend from the top of one hill to where the mass is."""
    settled, on_their_way = made_state(walkers(96, 0.5, 0.0)), made_state(walkers(96, 0.99, 20.0))
    records = {record.number: record for record in on_their_way.table}
    first, *constant = features_of(records, np.stack(on_their_way.walk.steps))
    assert first.shape == (96, 24)
    assert all(np.ptp(each) == 0 for each in constant)
    assert Walking().has_settled(settled)
    assert not Walking().has_settled(on_their_way)
    assert Walking().estimate(on_their_way) is None
