"""Summing out against the brute-force sum over all values."""

from __future__ import annotations

import itertools
import tracemalloc
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import logsumexp

import anabranch as ab
from anabranch import errors
from anabranch.conquer import interactions, marginal
from anabranch.conquer.marginal import Marginal, sum_out
from anabranch.conquer.smc import SMC
from anabranch.conquer.target import PathTarget, Target
from anabranch.divide import Path
from calibration import check_calibrated

Y = np.array([-2.0, -1.5, 0.3, 2.2, 2.4])


def only_path(program: Any, *args: Any) -> Path:
    (path,) = ab.find_paths(program, *args, executions=20).paths
    return path


def mixture(y):
    """Three components; the assignments are independent of each other, given the rest."""
    mu = ab.sample("mu", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
    w = ab.sample("w", dist.Dirichlet(np.ones(3)))
    z = ab.sample("z", dist.Categorical(w).expand([len(y)]).to_event(1))
    ab.observe("y", dist.Normal(mu[z], 1.0), y)


def chain():
    """Each state depends on the one before: no two of them are independent given nothing."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    z = ab.sample("z0", dist.Bernoulli(0.5))
    for i in range(1, 5):
        z = ab.sample(f"z{i}", dist.Bernoulli(jnp.where(z, 0.9, 0.2)))
        ab.observe(f"y{i}", dist.Normal(x * z, 1.0), 1.0)


def pairs():
    """Two values for each observation that interact with each other, and with no others."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    for i in range(3):
        a = ab.sample(f"a{i}", dist.Bernoulli(0.3))
        b = ab.sample(f"b{i}", dist.DiscreteUniform(1, 3))
        ab.observe(f"y{i}", dist.Normal(x + a * b, 1.0), 0.7 * i)


def impossible_values():
    """A category of probability zero, and one that the data exclude."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    z = ab.sample("z", dist.Categorical(np.array([0.5, 0.5, 0.0])).expand([3]).to_event(1))
    low = jnp.array([-3.0, x, 0.0])
    ab.observe("y", dist.Uniform(low[z], 4.0), np.array([0.1, 0.5, -0.4]))


def moving_zeros(y):
    """Which assignments have a density depends on the two centres: there are none that have one everywhere."""
    centres = ab.sample("centres", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    z = ab.sample("z", dist.Bernoulli(0.5).expand([len(y)]).to_event(1))
    ab.observe("y", dist.Uniform(centres[z] - 1, centres[z] + 1), y)


def guarded():
    """A guard that some of the values fail."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    z = ab.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1))
    if x + z.sum() > 1.5:
        ab.observe("y", dist.Normal(x * z[0], 1.0), 1.0)
    else:
        ab.sample("other", dist.Normal(0.0, 1.0))


def moving_support():
    """The transform of x depends on z."""
    z = ab.sample("z", dist.Bernoulli(0.4).expand([2]).to_event(1))
    x = ab.sample("x", dist.Uniform(0.0, 1.0 + z.sum()))
    ab.observe("y", dist.Normal(x, 0.5), 1.0)


def guarded_path() -> Path:
    return next(path for path in ab.find_paths(guarded, split={"z": False}).paths if "other" not in path.addresses)


CASES = {
    "mixture": (lambda: only_path(mixture, Y), 11),
    "chain": (lambda: only_path(chain), 32),
    "pairs": (lambda: only_path(pairs), 16),
    "impossible values": (lambda: only_path(impossible_values), 7),
    "moving zeros": (lambda: only_path(moving_zeros, np.array([-0.9, 0.0, 0.9])), 8),
    "guarded": (guarded_path, 8),
    "moving support": (lambda: only_path(moving_support), 4),
}


def every_value(marginal: Marginal) -> np.ndarray:
    return np.array(list(itertools.product(*marginal._values)), float)


def brute(marginal: Marginal, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log density and log prior by the sum over all values, and the log density of every value."""
    z = every_value(marginal)
    points = np.empty((len(x), len(z), marginal.path.dim))
    points[..., marginal.columns], points[..., marginal.summed] = x[:, None], z
    evaluation = marginal.path.evaluate(points.reshape(-1, marginal.path.dim), compile=False)
    logs = evaluation.log_density.reshape(len(x), len(z))
    priors = np.where(evaluation.inside, evaluation.log_prior, -np.inf).reshape(len(x), len(z))
    return logsumexp(logs, axis=1), logsumexp(priors, axis=1), logs


def as_marginal(target: Target) -> Marginal:
    assert isinstance(target, Marginal)
    return target


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[Marginal, int, np.ndarray]:
    make, terms = CASES[request.param]
    marginal = as_marginal(sum_out(PathTarget(make())))
    x = np.random.default_rng(1).normal(size=(12, marginal.dim)) * 1.5
    return marginal, terms, x


def test_density_is_the_sum(case):
    marginal, terms, x = case
    assert marginal.cost == terms
    assert not marginal.discrete.any()
    before = marginal.evaluations
    evaluation = marginal.evaluate(x)
    log_density, log_prior, _ = brute(marginal, x)
    np.testing.assert_allclose(evaluation.log_density, log_density, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(evaluation.log_prior, log_prior, rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(evaluation.inside, log_prior > -np.inf)
    assert np.isfinite(log_density).any()
    assert marginal.evaluations - before >= len(x)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_gradient(case, beta):
    marginal, _, x = case
    x = x[np.isfinite(marginal.evaluate(x).log_density)]

    def tempered(points):
        evaluation = marginal.evaluate(points)
        return evaluation.log_prior + beta * evaluation.log_likelihood

    evaluation, gradient = marginal.differentiate(x, beta)
    np.testing.assert_allclose(evaluation.log_density, marginal.evaluate(x).log_density, rtol=1e-9, atol=1e-9)
    h = 1e-5
    shifts = h * np.eye(marginal.dim)
    expected = np.stack([(tempered(x + s) - tempered(x - s)) / (2 * h) for s in shifts], axis=1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_executions_draw_from_the_conditional(case):
    marginal, _, x = case
    rng = np.random.default_rng(2)
    log_density, _, logs = brute(marginal, x)
    values = every_value(marginal)
    for i in np.flatnonzero(np.isfinite(log_density))[:3]:
        n = 4000
        drawn = marginal.executions(np.repeat(x[i : i + 1], n, axis=0), rng)
        assert (drawn[:, marginal.columns] == x[i]).all()
        assert np.isfinite(marginal.path.evaluate(drawn).log_density).all()
        probability = np.exp(logs[i] - log_density[i])
        # The number of each value of each coordinate, against its marginal probability.
        for j, column in enumerate(marginal.summed):
            for value in marginal._values[j]:
                expected = probability[values[:, j] == value].sum()
                error = np.sqrt(max(expected * (1 - expected), 1e-9) / n)
                assert abs((drawn[:, column] == value).mean() - expected) < 4.5 * error + 1e-9


def test_prior_and_known_drop_the_columns(case):
    marginal, _, _ = case
    draws = marginal.prior(50, np.random.default_rng(0))
    assert draws.points.shape == (50, marginal.dim)
    assert len(draws.log_weights) == 50
    assert marginal.known.shape == (0, marginal.dim)


def test_many_points_take_several_blocks():
    marginal = as_marginal(sum_out(PathTarget(only_path(pairs))))
    x = np.random.default_rng(0).normal(size=(9_000, 1))
    whole = marginal.evaluate(x).log_density
    np.testing.assert_allclose(whole[-5:], marginal.evaluate(x[-5:]).log_density, rtol=1e-10)
    assert len(marginal.evaluate(x[:0]).log_density) == 0


def test_rare_interaction_is_not_overlooked():
    """Only where all twelve are one do they interact: no pair shows it at random values."""

    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.5).expand([12]).to_event(1))
        ab.observe("y", dist.Normal(x + jnp.all(z == 1), 1.0), 1.0)

    target = PathTarget(only_path(program))
    assert sum_out(target) is target


def test_interaction_far_from_the_prior_is_noticed_where_it_is_met():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.5).expand([12]).to_event(1))
        ab.observe("y", dist.Normal(jnp.where(x > 8.0, z.prod(), z[0] + x), 1.0), 12.0)
        ab.observe("each", dist.Normal(z, 1.0), np.zeros(12))

    marginal = as_marginal(sum_out(PathTarget(only_path(program))))
    marginal.evaluate(np.linspace(-3.0, 3.0, 200)[:, None])
    with pytest.raises(errors.StrategyCannotRun, match="not independent everywhere"):
        marginal.evaluate(np.linspace(8.5, 10.0, 200)[:, None])


def test_checking_costs_little():
    marginal = as_marginal(sum_out(PathTarget(only_path(mixture, Y))))
    before = marginal.evaluations
    marginal.evaluate(np.zeros((640, marginal.dim)))
    assert marginal.evaluations - before < 1.05 * 640 * marginal.cost


@pytest.mark.parametrize(("states", "steps"), [(3, 13), (4, 15)])
def test_histories_of_hidden_states_are_counted_and_not_built(states, steps):
    """They are one group, of three million and of a billion terms."""

    def hidden(y):
        level = ab.sample("level", dist.Normal(0.0, 1.0))
        z = 0
        for t in range(len(y)):
            z = ab.sample(f"z{t}", dist.Categorical((0.1 + 0.7 * jnp.eye(states)[z]) / (0.7 + 0.1 * states)))
            ab.observe(f"y{t}", dist.Normal(level + z, 1.0), y[t])

    target = PathTarget(only_path(hidden, np.linspace(0.0, 2.0, steps)))
    tracemalloc.start()
    try:
        assert sum_out(target) is target
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_pairs_are_looked_at_in_blocks(monkeypatch):
    rows = []
    evaluate = PathTarget.evaluate
    monkeypatch.setattr(PathTarget, "evaluate", lambda self, points: rows.append(len(points)) or evaluate(self, points))
    y = np.linspace(-2.0, 6.0, 30)
    whole = sum_out(PathTarget(only_path(mixture, y)))
    assert max(rows) > 400
    rows.clear()
    monkeypatch.setattr(interactions, "_MAX_NUMBERS", 100 * whole.target.dim)
    assert sum_out(PathTarget(only_path(mixture, y))).cost == whole.cost
    assert max(rows) <= 3 * 54  # as many as check the groups, at three values each
    monkeypatch.setattr(marginal, "_MAX_PAIRS", 100)
    target = PathTarget(only_path(mixture, y))
    assert sum_out(target) is target


def test_left_alone():
    def continuous():
        ab.sample("x", dist.Normal(0.0, 1.0))

    def infinite():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x * ab.sample("k", dist.Poisson(2.0)), 1.0), 1.0)

    def enumerable():
        ab.sample("z", dist.Bernoulli(0.5).expand([5]).to_event(1))

    def large():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x + ab.sample("n", dist.Binomial(100, 0.5)), 1.0), 1.0)

    for program in (continuous, infinite, enumerable, large):
        target = PathTarget(only_path(program))
        assert sum_out(target) is target
    assert as_marginal(sum_out(PathTarget(only_path(large)), max_terms=101)).cost == 101
    chained = PathTarget(only_path(chain))
    assert sum_out(chained, max_terms=31) is chained


def test_infinite_sites_stay_beside_finite_ones():
    def program():
        k = ab.sample("k", dist.Poisson(2.0))
        z = ab.sample("z", dist.Bernoulli(0.3))
        ab.observe("y", dist.Normal(k + z, 1.0), 2.5)

    marginal = as_marginal(sum_out(PathTarget(only_path(program))))
    assert marginal.dim == 1
    assert marginal.discrete.all()
    k = np.arange(12.0)
    expected = stats.poisson.pmf(k, 2) * sum(
        share * stats.norm.pdf(2.5, k + z, 1.0) for z, share in enumerate((0.7, 0.3))
    )
    np.testing.assert_allclose(np.exp(marginal.evaluate(k[:, None]).log_density), expected, rtol=1e-10)


@pytest.mark.slow
def test_tempering_with_assignments_summed_out():
    """The evidence of a mixture of two known components with unknown share, by the sum over assignments."""

    def program(y):
        w = ab.sample("w", dist.Beta(1.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(w).expand([len(y)]).to_event(1))
        ab.observe("y", dist.Normal(3.0 * z, 1.0), y)

    y = np.array([0.2, -0.5, 2.8, 3.3, 1.5, 0.9])
    logs = []
    for z in itertools.product((0, 1), repeat=len(y)):
        ones = sum(z)
        # ∫ w^ones (1 − w)^(n − ones) dw = 1 / ((n + 1) C(n, ones))
        beta = -np.log(len(y) + 1) - np.log(stats.binom.pmf(ones, len(y), 0.5) * 2 ** len(y))
        logs.append(beta + stats.norm.logpdf(y, 3.0 * np.array(z), 1.0).sum())
    exact = logsumexp(logs)
    path, scores, sds = only_path(program, y), [], []
    for seed in range(60):
        target, rng, method = sum_out(PathTarget(path)), np.random.default_rng(seed), SMC(chains=64)
        state = method.advance(target, method.start(target, rng), rng, 8_000)
        estimate = method.estimate(target, state)
        scores.append((estimate.log_evidence - exact) / estimate.log_evidence_sd)
        sds.append(estimate.log_evidence_sd)
    assert np.mean(sds) < 0.09
    check_calibrated({"assignments summed out": scores}, min_scores=60)
