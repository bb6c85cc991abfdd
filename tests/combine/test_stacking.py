"""Leave-one-out prediction against its exact value, and stacking against its optimum."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import logsumexp
from scipy.stats import genpareto, norm

import solved
from anabranch.combine.psis import leave_one_out, smoothed
from anabranch.combine.stacking import stacking_weights


def test_leave_one_out_is_exact_up_to_its_error():
    variance = 5.0
    after = variance / (1 + 4 * variance)
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(40):
        mean = rng.normal(after * solved.Y.sum(), np.sqrt(after), 1000)
        log_predictive, k = leave_one_out(np.zeros(1000), norm.logpdf(solved.Y, mean[:, None], 1.0))
        assert (k < 0.7).all()
        errors.append(log_predictive - solved.leave_one_out(variance))
    mean, sd = np.mean(errors, axis=0), np.std(errors, axis=0)
    assert (sd < 0.02).all()
    assert (np.abs(mean) < 4 * sd / np.sqrt(40) + 0.002).all()


def test_leave_one_out_with_weighted_draws():
    after = 5.0 / 21
    rng = np.random.default_rng(0)
    mean = rng.normal(after * solved.Y.sum(), 1.0, 20_000)
    log_weights = norm.logpdf(mean, after * solved.Y.sum(), np.sqrt(after)) - norm.logpdf(
        mean, after * solved.Y.sum(), 1.0
    )
    log_predictive, _ = leave_one_out(log_weights, norm.logpdf(solved.Y, mean[:, None], 1.0))
    np.testing.assert_allclose(log_predictive, solved.leave_one_out(5.0), atol=0.02)


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_smoothing_finds_the_shape_and_keeps_the_mean_of_a_known_tail(shape):
    shapes, smooth, raw = [], [], []
    for seed in range(60):
        ratios = genpareto.rvs(shape, size=2000, random_state=np.random.default_rng(seed)) + 1
        log_ratios, k = smoothed(np.log(ratios))
        assert log_ratios.max() <= np.log(ratios).max() + 1e-12
        shapes.append(k)
        smooth.append(np.exp(logsumexp(log_ratios)) / 2000)
        raw.append(ratios.mean())
    assert abs(np.mean(shapes) - shape) < 0.1
    assert np.std(smooth) < 1.05 * np.std(raw)
    if shape < 0.5:
        assert abs(np.mean(smooth) - (1 + 1 / (1 - shape))) < 4 * np.std(smooth) / np.sqrt(60)


def test_there_may_be_no_tail():
    for log_ratios in (np.zeros(1000), np.arange(10.0), np.r_[np.zeros(990), np.full(10, 3.0)]):
        same, k = smoothed(log_ratios)
        np.testing.assert_array_equal(same, log_ratios)
        assert np.isnan(k)


def test_stacking_weights_are_the_optimum():
    log_predictive = np.random.default_rng(0).normal(0.0, 1.0, (4, 60))
    log_predictive[2] -= 2.0  # predicts worse than the others together everywhere

    def loss(free):
        weights = np.exp(free - logsumexp(free))
        return -logsumexp(log_predictive, axis=0, b=weights[:, None]).mean()

    weights = stacking_weights(log_predictive)
    best = min(minimize(loss, start, method="Nelder-Mead", options={"maxiter": 4000}).fun for start in np.eye(4))
    ours = -logsumexp(log_predictive, axis=0, b=weights[:, None]).mean()
    assert ours < best + 1e-5
    assert np.isclose(weights.sum(), 1)
    assert weights[2] < 1e-3


def test_densities_that_underflow_are_no_trouble():
    weights = stacking_weights(np.array([[-2000.0, -3000.0], [-2001.0, -4000.0]]))
    np.testing.assert_allclose(weights, [1, 0], atol=1e-5)


def test_stacking_of_a_posterior():
    posterior = solved.posterior(solved.divided(), n=3000)
    table = posterior.stacking()
    assert list(table.columns) == ["path", "stacking_weight", "weight", "elpd", "pareto_k"]
    assert np.isclose(table.stacking_weight.sum(), 1)
    for variance, description in zip(solved.SPREAD, ("model = 0", "model = 1", "model = 2"), strict=True):
        row = table[table.path == description].iloc[0]
        expected = norm.logpdf(solved.Y).sum() if variance == 0 else solved.leave_one_out(variance).sum()
        assert abs(row.elpd - expected) < 0.03
    assert len(posterior.stacking(paths=2)) == 2
    with pytest.raises(ValueError, match="paths"):
        posterior.stacking(paths=0)
