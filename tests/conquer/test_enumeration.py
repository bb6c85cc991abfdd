"""Enumeration against sums by hand."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import anabranch as ab
from anabranch import errors
from anabranch.conquer.elimination import Elimination, eliminate
from anabranch.conquer.enumeration import Enumerate
from anabranch.conquer.target import PathTarget
from anabranch.divide import Path
from anabranch.divide.support import finite_values, prior_is_sampled


def only_path(program: Any, *args: Any) -> Path:
    (path,) = ab.find_paths(program, *args, executions=20).paths
    return path


def network(y):
    n = ab.sample("n", dist.Binomial(3, 0.4))
    u = ab.sample("u", dist.DiscreteUniform(2, 4))
    z = ab.sample("z", dist.Categorical(np.array([0.2, 0.5, 0.3])))
    ab.observe("y", dist.Normal(n + u * (z == 1), 1.0), y)


def network_sum(y: float) -> dict[tuple[int, int, int], float]:
    return {
        (n, u, z): stats.binom.pmf(n, 3, 0.4) / 3 * [0.2, 0.5, 0.3][z] * stats.norm.pdf(y, n + u * (z == 1), 1.0)
        for n, u, z in itertools.product(range(4), range(2, 5), range(3))
    }


def test_all_values():
    target, rng, method = PathTarget(only_path(network, 4.5)), np.random.default_rng(0), Enumerate()
    estimate = method.estimate(target, method.advance(target, method.start(target, rng), rng, 100))
    terms = network_sum(4.5)
    assert estimate.log_evidence == pytest.approx(np.log(sum(terms.values())), abs=1e-12)
    assert estimate.log_evidence_sd == 0
    assert estimate.evaluations == len(estimate.points) == len(terms) == 36
    weights = dict(zip(map(tuple, estimate.points.astype(int).tolist()), np.exp(estimate.log_weights), strict=True))
    assert weights == pytest.approx({key: term / sum(terms.values()) for key, term in terms.items()}, rel=1e-10)


def test_goes_on_where_it_was():
    target, rng, method = PathTarget(only_path(network, 4.5)), np.random.default_rng(0), Enumerate()
    state = method.advance(target, method.start(target, rng), rng, 10)
    partial = method.estimate(target, state)
    exact = np.log(sum(network_sum(4.5).values()))
    assert partial.log_evidence < exact
    assert partial.log_evidence_sd == np.inf
    assert "10 of the 36" in partial.remarks[0]
    first, kept = state, pickle.dumps(state)
    for _ in range(5):
        state = method.advance(target, state, rng, 10)
    assert pickle.dumps(first) == kept
    assert method.estimate(target, state).log_evidence == pytest.approx(exact, abs=1e-12)
    assert target.evaluations == 36
    assert method.advance(target, state, rng, 10) is state


def test_before_the_first_value():
    target, rng = PathTarget(only_path(network, 4.5)), np.random.default_rng(0)
    estimate = Enumerate().estimate(target, Enumerate().start(target, rng))
    assert estimate.log_evidence == -np.inf
    assert estimate.log_evidence_sd == np.inf


def test_what_is_summed_in_parts_is_the_whole():
    target, rng, method = PathTarget(only_path(network, 4.5)), np.random.default_rng(0), Enumerate()
    state = method.start(target, rng)
    for _ in range(4):
        state = method.advance(target, state, rng, 9)
    estimate = method.estimate(target, state)
    terms = network_sum(4.5)
    assert estimate.log_evidence == pytest.approx(np.log(sum(terms.values())), abs=1e-12)
    weights = dict(zip(map(tuple, estimate.points.astype(int).tolist()), np.exp(estimate.log_weights), strict=True))
    assert weights == pytest.approx({key: term / sum(terms.values()) for key, term in terms.items() if term > 0})


def test_no_coordinates():
    def program():
        if ab.sample("fair", dist.Bernoulli(0.25)):
            ab.observe("heads", dist.Binomial(10, 0.5), 9)
        else:
            ab.sample("p", dist.Beta(1.0, 1.0))

    path = next(path for path in ab.find_paths(program).paths if path.dim == 0)
    target, rng, method = PathTarget(path), np.random.default_rng(0), Enumerate()
    estimate = method.estimate(target, method.advance(target, method.start(target, rng), rng, 1))
    assert estimate.log_evidence == pytest.approx(np.log(0.25 * 10 / 2**10))
    assert estimate.evaluations == 1
    assert estimate.points.shape == (1, 0)


def test_a_path_without_mass_is_exactly_that():
    def program():
        if ab.sample("a", dist.Bernoulli(0.5)):
            ab.observe("y", dist.Uniform(0.0, 1.0), 2.0)

    path = next(path for path in ab.find_paths(program).paths if path.fault is not None)
    target, rng, method = PathTarget(path), np.random.default_rng(0), Enumerate()
    estimate = method.estimate(target, method.advance(target, method.start(target, rng), rng, 1))
    assert estimate.log_evidence == -np.inf
    assert estimate.log_evidence_sd == 0


def test_guards_exclude_values():
    def program():
        n = ab.sample("n", dist.Binomial(6, 0.5))
        if n > 2:
            ab.observe("y", dist.Normal(n, 1.0), 3.0)
        else:
            ab.sample("other", dist.Bernoulli(0.5))

    division = ab.find_paths(program, split={"n": False})
    path = next(path for path in division.paths if "other" not in path.addresses)
    target, rng, method = PathTarget(path), np.random.default_rng(0), Enumerate()
    estimate = method.estimate(target, method.advance(target, method.start(target, rng), rng, 100))
    n = np.arange(3, 7)
    assert estimate.log_evidence == pytest.approx(
        np.log((stats.binom.pmf(n, 6, 0.5) * stats.norm.pdf(3.0, n, 1.0)).sum())
    )
    assert sorted(estimate.points[:, 0]) == n.tolist()


def test_too_many_values():
    def program():
        ab.sample("z", dist.Bernoulli(0.5).expand([30]).to_event(1))

    with pytest.raises(errors.StrategyCannotRun, match=r"1,073,741,824 values.*SMC"):
        Enumerate().start(PathTarget(only_path(program)), np.random.default_rng(0))


@pytest.mark.parametrize("distribution", [dist.Normal(0.0, 1.0), dist.Poisson(1.0)])
def test_infinitely_many_values(distribution):
    def program():
        ab.sample("x", distribution)

    with pytest.raises(errors.StrategyCannotRun, match="Use SMC"):
        Enumerate().start(PathTarget(only_path(program)), np.random.default_rng(0))


def test_independent_sites_beyond_what_can_be_enumerated():
    """2**24 values, but the product of 24 sums."""

    def program(y):
        z = ab.sample("z", dist.Bernoulli(0.3).expand([24]).to_event(1))
        ab.observe("y", dist.Normal(2.0 * z, 1.0), y)

    y = np.linspace(-1.0, 3.0, 24)
    target, rng, method = (
        eliminate(PathTarget(only_path(program, y)), Elimination(), np.random.default_rng(0)),
        np.random.default_rng(0),
        Enumerate(),
    )
    assert target.dim == 0
    estimate = method.estimate(target, method.advance(target, method.start(target, rng), rng, 100))
    each = 0.7 * stats.norm.pdf(y, 0, 1), 0.3 * stats.norm.pdf(y, 2, 1)
    assert estimate.log_evidence == pytest.approx(np.log(sum(each)).sum(), abs=1e-10)
    assert estimate.log_evidence_sd == 0
    drawn = target.executions(estimate.points, rng)
    assert len(drawn) == 1000
    expected = each[1] / sum(each)
    np.testing.assert_allclose(drawn.mean(axis=0), expected, atol=4.5 * np.sqrt(0.25 / 1000))


def test_points_that_are_kept_are_bounded():
    """Beyond the bound they are drawn by their densities: the sum stays exact, and the draws have its moments."""

    def program():
        z = ab.sample("z", dist.Bernoulli(0.3).expand([10]).to_event(1))
        v = ab.sample("v", dist.Categorical(jnp.array([0.1, 0.2, 0.7])))
        ab.observe("y", dist.Normal(z.sum() + v, 1.0), 5.0)

    target, rng = PathTarget(only_path(program)), np.random.default_rng(0)
    method = Enumerate(max_numbers=11 * 2_000)
    state = method.start(target, rng)
    while state.done < 3 * 2**10:
        state = method.advance(target, state, rng, 700)
        assert len(state.points) <= 2_000
        assert state.points.dtype == np.int8
    estimate = method.estimate(target, state)
    counts, extra = np.arange(11), np.arange(3)
    joint = stats.binom.pmf(counts, 10, 0.3)[:, None] * np.array([0.1, 0.2, 0.7])
    joint = joint * stats.norm.pdf(5.0, counts[:, None] + extra, 1.0)
    assert estimate.log_evidence == pytest.approx(np.log(joint.sum()), abs=1e-9)
    weights = np.exp(estimate.log_weights)
    mean = weights @ estimate.points[:, :10].sum(axis=1) / weights.sum()
    assert mean == pytest.approx((joint.sum(axis=1) @ counts) / joint.sum(), abs=0.1)


def test_what_is_kept_takes_a_byte_for_each_value():
    def program():
        ab.sample("z", dist.Bernoulli(0.5).expand([17]).to_event(1))

    target, rng, method = PathTarget(only_path(program)), np.random.default_rng(0), Enumerate()
    state = method.advance(target, method.start(target, rng), rng, 2**17)
    assert state.points.nbytes == 17 * 2**17


def test_bad_settings():
    with pytest.raises(ValueError, match="max_values must be a whole number, at least 1"):
        Enumerate(max_values=0)


# What sites say of themselves -----------------------------------------------------------------------------------------


def test_finite_values():
    def program():
        ab.sample("z", dist.Categorical(jnp.ones(3) / 3).expand([2]).to_event(1))
        k = ab.sample("k", dist.Poisson(3.0))
        ab.sample("b", dist.Binomial(np.array([2, 5]), 0.3).to_event(1))
        ab.sample("w", dist.Binomial(k, 0.3))
        ab.sample("m", dist.Multinomial(3, jnp.ones(2) / 2))
        ab.sample("bb", dist.BetaBinomial(1.0, 1.0, total_count=4))
        ab.sample("zero", dist.ZeroInflatedPoisson(0.3, 2.0))

    assert finite_values(only_path(program)) == (
        *[range(3)] * 2, None, range(3), range(6), None, *[range(4)] * 2, range(5), None,
    )  # fmt: skip


def test_finite_values_where_the_bound_is_decided():
    def program():
        n = ab.sample("n", dist.DiscreteUniform(2, 3))
        for _ in range(n):
            ab.sample(dist.Bernoulli(0.5))
        ab.sample("b", dist.Binomial(n, 0.5))

    for path in ab.find_paths(program).paths:
        n = next(int(site.value) for site in path.sites if site.name == "n")
        assert finite_values(path) == (*[range(2)] * n, range(n + 1))


def test_finite_values_of_several_decision_sequences():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        total = 3 if x > 0 else 5
        ab.sample("b", dist.Binomial(total, 0.5))

    path = only_path(program)
    assert len(path.decisions) == 2
    assert finite_values(path) == (None, range(6))


def test_a_mask_leaves_the_values_of_a_site_as_they_are():
    def masked():
        ab.sample("z", dist.Bernoulli(0.5).mask(False))

    path = only_path(masked)
    assert finite_values(path) == (range(2),)
    assert not prior_is_sampled(path)


def test_interpreted_sites_promise_nothing():
    def interpreted():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.sample("n", dist.Binomial(2 + int(float(x) > 0), 0.5))

    path = only_path(interpreted)
    assert path.interpreted
    assert finite_values(path) == (None, None)
    assert prior_is_sampled(path)
