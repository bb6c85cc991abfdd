"""The Laplace estimate: cheap, without gradients, and with an error that covers the truth."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

import anabranch as ab
from anabranch.conquer import ModeMixture, PathTarget
from anabranch.conquer.laplace import laplace_cost, laplace_start
from calibration import check_calibrated, z_scores
from exact import named

NAMES = "abcdef"


def sites(dim):
    def program():
        x = [ab.sample(name, dist.Normal(0.0, 1.0)) for name in NAMES[:dim]]
        for i, each in enumerate(x):
            ab.observe(f"y{i}", dist.Normal(each * (1 + i), 0.5), 1.0)

    exact = sum(multivariate_normal(0.0, 0.25 + (1 + i) ** 2).logpdf(1.0) for i in range(dim))
    return ab.find_paths(program, executions=10).paths[0], exact


@pytest.mark.parametrize("dim", [1, 3, 6])
def test_it_costs_what_it_says_and_needs_no_gradient(dim):
    path, _ = sites(dim)
    target = PathTarget(path)
    target.differentiate = None
    state = laplace_start(target, np.random.default_rng(0), ModeMixture())
    assert not state.failed
    assert target.evaluations <= laplace_cost(dim)


@pytest.mark.parametrize("seeds", [25, pytest.param(100, marks=pytest.mark.slow)])
def test_what_follows_has_an_honest_error(seeds):
    scores = {}
    for dim in (1, 2, 3, 6):
        path, exact = sites(dim)
        estimates = []
        for seed in range(seeds):
            target, rng = PathTarget(path), np.random.default_rng([dim, seed])
            state = laplace_start(target, rng, ModeMixture())
            estimates.append(ModeMixture().estimate(target, ModeMixture().advance(target, state, rng, 1_000)))
        assert max(estimate.log_evidence_sd for estimate in estimates) < 0.3
        scores[f"{dim} dimensions"] = z_scores(estimates, exact)
    check_calibrated(scores, min_scores=4 * seeds)


def test_it_finds_the_mode_of_a_smooth_density():
    path, _ = sites(2)
    state = laplace_start(PathTarget(path), np.random.default_rng(1), ModeMixture())
    exact = [1 * (1 + i) / ((1 + i) ** 2 + 0.25) for i in range(2)]
    np.testing.assert_allclose(state.proposal.means[0], exact, atol=0.02)


def test_it_sees_exchangeable_components():
    case = named("three_components")
    target = PathTarget(ab.find_paths(case.program, *case.args, executions=10).paths[0])
    state = laplace_start(target, np.random.default_rng(0), ModeMixture())
    assert [each.size for each in state.symmetries] == [3]
    assert (np.diff(state.proposal.means[:, state.symmetries[0].keys], axis=1) > 0).all()


def test_where_nothing_has_density_it_fails_in_words():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.factor("never", jnp.where(x < 1e9, -jnp.inf, 0.0))

    state = laplace_start(PathTarget(ab.find_paths(program).paths[0]), np.random.default_rng(0), ModeMixture())
    assert "no point of positive density" in state.failed


def test_the_edge_of_a_path_does_no_harm():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if x > 0:
            ab.sample("z", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x, 0.1), -0.02)

    for path in ab.find_paths(program, executions=50):
        state = laplace_start(PathTarget(path), np.random.default_rng(0), ModeMixture())
        assert np.isfinite(state.proposal.means).all()
        assert np.isfinite(state.proposal.scale_trils).all()
