"""Resampling is unbiased: a particle has on average as many children as its share of the weight."""

from __future__ import annotations

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import multivariate_normal

import anabranch as ab
from anabranch import errors
from anabranch.engines import SMC
from anabranch.engines.particle_filter import SCHEMES, effective_sizes, resampled

WEIGHTS = np.array([0.05, 0.4, 0.0, 0.25, 0.3])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_children_are_as_many_as_the_weight_says(scheme: str) -> None:
    rows = 20_000
    with np.errstate(divide="ignore"):
        chosen = resampled(np.tile(np.log(WEIGHTS), (rows, 1)), scheme, np.random.default_rng(0))
    counts = (chosen[:, :, None] == np.arange(5)).sum(axis=1)
    error = counts.std(axis=0) / np.sqrt(rows)
    assert (np.abs(counts.mean(axis=0) - 5 * WEIGHTS) <= 4 * error).all()
    assert (counts[:, 2] == 0).all()
    largest = {"multinomial": 5, "stratified": 3, "systematic": 2}[scheme]
    assert counts[:, 1].max() == largest


def test_multinomial_ancestors_come_in_no_order() -> None:
    """One of them is replaced by a reference: if they were in order, it would be the one with the lowest number."""
    chosen = resampled(np.zeros((20_000, 4)), "multinomial", np.random.default_rng(0))
    assert np.abs(chosen.mean(axis=0) - 1.5).max() < 4 * np.sqrt(1.25 / 20_000)


def test_rows_do_not_mix() -> None:
    log_weights = np.full((3, 4), -np.inf)
    log_weights[0, 1], log_weights[1, 0], log_weights[1, 3] = -1e4, -700.0, -700.0
    chosen = resampled(log_weights, "systematic", np.random.default_rng(0))
    assert (chosen[0] == 1).all()
    assert sorted(chosen[1]) == [0, 0, 3, 3]
    assert sorted(chosen[2]) == [0, 1, 2, 3]  # nothing to choose by: all stay


def test_effective_sizes() -> None:
    log_weights = np.array([[0.0, 0.0, -np.inf, -np.inf], [-5e3, -5e3, -5e3, -5e3], [-np.inf] * 4])
    assert effective_sizes(log_weights) == pytest.approx([2.0, 4.0, 0.0])


def test_what_is_not_a_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="resampling must be one of multinomial, stratified, systematic; got 'sorted'"):
        SMC(resampling="sorted")
    with pytest.raises(ValueError, match="threshold must be a share"):
        SMC(threshold=1.5)


def series(y):
    level = ab.sample("level", dist.Normal(0.0, 3.0))
    for t, value in enumerate(y):
        ab.observe(f"y{t}", dist.Normal(level, 0.3), value)


def test_moves_after_resampling_make_copies_of_a_particle_differ():
    """Without them, 30 observations leave few of 20 levels in each filter; with them, nearly every particle has one."""

    def levels(rejuvenation):
        engine = ab.engines.SMC(particles=20, threshold=1.0, rejuvenation=rejuvenation, min_runs=1)
        budget = 20 * (1 + 29 * rejuvenation)
        posterior = ab.infer(series, np.full(30, 1.2), engine=engine, budget=budget, tolerance=None)
        return len(np.unique(posterior.solutions[0].points))

    assert levels(0) <= 4
    assert levels(3) >= 12


def test_the_parameters_of_smc2_are_named_or_those_before_the_first_observation():
    def walk(y):
        drift = ab.sample("drift", dist.Normal(0.0, 1.0))
        x = 0.0
        for t in range(len(y)):
            x = ab.sample(f"x{t}", dist.Normal(x + drift, 0.5))
            ab.observe(f"y{t}", dist.Normal(x, 0.5), y[t])

    y = np.array([1.0, 2.0, 3.0])
    steps = np.arange(1, 4)
    covariance = np.outer(steps, steps) + 0.25 * np.minimum.outer(steps, steps) + 0.25 * np.eye(3)
    truth = multivariate_normal(np.zeros(3), covariance).logpdf(y)
    for parameters in (None, ["drift"]):
        engine = ab.engines.SMC2(particles=10, thetas=20, parameters=parameters)
        posterior = ab.infer(walk, y, engine=engine, budget=30_000, tolerance=None)
        assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 0.4
    with pytest.raises(errors.EngineCannotRun, match="SMC2 is to move 'drfit', which is no site of walk"):
        ab.infer(walk, y, engine=ab.engines.SMC2(parameters=["drfit"]), budget=1_000)
    with pytest.raises(errors.EngineCannotRun, match="'x1' depends on sites that are not parameters"):
        ab.infer(walk, y, engine=ab.engines.SMC2(parameters=["x1"], particles=5, thetas=10), budget=5_000)
