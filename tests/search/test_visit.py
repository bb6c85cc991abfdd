"""The estimate that a visit leaves where it has found none of its own."""

from dataclasses import dataclass
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.allocate import PathRecord, Visit
from anabranch.conquer import PathTarget
from anabranch.conquer.estimate import Estimate
from anabranch.search.visit import Task, Visitor


@dataclass(frozen=True)
class LooksInVain:
    """A strategy that evaluates the density where the mass is, and is ended before it has an estimate."""

    def start(self, target, rng):
        return None

    def advance(self, target, state, rng, evaluations):
        target.evaluate(np.full((1, target.dim), 2.0))

    def estimate(self, target, state):
        return Estimate.nothing(target.dim, target.evaluations, "LooksInVain")


def spike():
    """A spike over a floor: e^9 times as high, and rarely met by a draw of the prior."""
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    ab.factor("spike", jnp.logaddexp(0.0, 9.0 - 5e3 * jnp.sum((x - 2.0) ** 2)))


def visited(strategy):
    path = ab.find_paths(spike).paths[0]
    settings = SimpleNamespace(
        local_strategy=strategy, elimination=None, visiting=SimpleNamespace(prior_draws=16, min_interpreted=1)
    )
    record = PathRecord(0, path, 0, PathTarget(path))
    return Visitor(settings, seed=0)(Task.of(Visit(record, 1_000, 1_000), 0)).estimate


def test_a_few_prior_draws_after_a_vain_visit_are_unconfirmed_and_may_have_missed_what_it_met():
    estimate = visited(LooksInVain())
    assert estimate.is_of_prior
    assert not estimate.is_confirmed
    assert abs(estimate.log_evidence) < 1e-6  # the floor, which is all that 16 draws have met
    assert estimate.log_possible == pytest.approx(9.0 - np.log(16), abs=1e-3)  # the spike
