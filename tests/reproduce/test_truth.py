"""The stored answers: of the data of today, and the same by other ways than the one they were worked out in."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm, poisson

from anabranch import programs
from anabranch.reproduce.truth import induction_truth, mixture_truth, read, uncertain_mixture_truth
from truth.induction import Resolution, log_predictive_densities, paths, posterior, solve
from truth.mixture import BOUNDED, log_likelihood, log_likelihood_bound, log_likelihood_bound_beyond

SMALL = Resolution(one=1201, two=501, radius=300, angle=300)
SMALLER = Resolution(one=401, two=251, radius=300, angle=300)
HEAVY = ("x+sx2", "sx2+x", "sx+sx2", "sx2+sx")
SD = 0.1


@pytest.fixture(scope="module")
def heavy_paths():
    """The paths that have mass, on a coarse grid."""
    x, y = programs.function_induction_data()
    return [solve(path, x, y, SMALL) for path in paths() if path.shape in HEAVY]


# The data -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["function_induction_data", "function_induction_test_data"])
def test_induction_refuses_other_data(monkeypatch, name):
    x, y = getattr(programs, name)(seed=7)
    monkeypatch.setattr(programs, name, lambda: (x, y))
    with pytest.raises(ValueError, match=r"induction are not those of.* `python -m truth\.induction`"):
        induction_truth()


def test_mixture_refuses_other_data(monkeypatch):
    y = programs.mixture_data()
    monkeypatch.setattr(programs, "mixture_data", lambda: y[1:])
    with pytest.raises(ValueError, match=r"mixture are not those of.* `python -m truth\.mixture`"):
        mixture_truth(9.0)


# Function induction -------------------------------------------------------------------------------------------------


def test_prior_and_weights_of_paths_sum_to_one():
    truth = induction_truth()
    assert len(truth.weights) == 26
    assert sum(path.prior for path in paths()) == pytest.approx(1, abs=1e-12)
    assert sum(truth.weights.values()) == pytest.approx(1, abs=1e-9)
    assert logsumexp(list(truth.log_evidence_of.values())) == pytest.approx(truth.log_evidence, abs=1e-9)
    stored = read("induction", {})
    assert max(stored["log_evidence_error"], stored["lppd_error"]) < 1e-8


def test_coarse_quadrature_gives_the_stored_evidence_and_lppd(heavy_paths):
    truth = induction_truth()
    for solved in heavy_paths:
        assert solved.log_evidence == pytest.approx(truth.log_evidence_of[solved.path.shape], abs=1e-8)
    x, y = programs.function_induction_test_data()
    assert log_predictive_densities(posterior(heavy_paths, x), y).sum() == pytest.approx(truth.lppd, abs=1e-8)


@pytest.mark.parametrize("point", [0, 17])
def test_predictive_density_is_the_ratio_of_evidence_with_and_without_the_point(heavy_paths, point):
    """p(y* | D) = p(D, y*) / p(D)."""
    x, y = programs.function_induction_data()
    x_new, y_new = (values[[point]] for values in programs.function_induction_test_data())
    joint = [solve(s.path, np.append(x, x_new), np.append(y, y_new), SMALL).log_evidence for s in heavy_paths]
    expected = logsumexp(joint) - logsumexp([s.log_evidence for s in heavy_paths])
    assert log_predictive_densities(posterior(heavy_paths, x_new), y_new)[0] == pytest.approx(expected, abs=1e-8)


def prior_draws(shape: str, x: np.ndarray, draws: int, rng: np.random.Generator) -> np.ndarray:
    """The function of this shape at x, with coefficients drawn from the prior: (draws, points)."""
    a, b = rng.standard_normal((2, draws, 1))
    if shape.startswith("sin("):
        return np.sin(a * prior_draws(shape[4:-1], x, draws, rng))
    if "+" in shape:
        left, right = shape.split("+")
        return a * prior_draws(left, x, draws, rng) + b * prior_draws(right, x, draws, rng)
    if shape.startswith("s"):
        return np.sin(a * prior_draws(shape[1:], x, draws, rng))
    return np.broadcast_to({"x": x, "x2": x**2}[shape], (draws, len(x)))


@pytest.mark.parametrize("path", paths(), ids=lambda path: path.shape)
def test_evidence_of_three_points_is_the_mean_likelihood_of_prior_draws(path):
    x, y = np.array([-0.7, 0.4, 1.3]), np.array([-0.3, 0.5, 0.9])
    functions = prior_draws(path.shape, x, 40_000, np.random.default_rng(0))
    likelihood = path.prior * np.exp(norm.logpdf(y, functions, 0.5).sum(1))
    standard_error = likelihood.std() / np.sqrt(len(likelihood))
    assert abs(np.exp(solve(path, x, y, SMALLER).log_evidence) - likelihood.mean()) < 4 * standard_error + 1e-12


def test_evidence_of_the_heaviest_path_is_that_of_importance_sampling():
    """All coefficients of a x + b sin(c x²) are drawn; (b, c) and (−b, −c) are one function, so half are enough."""
    x, y = programs.function_induction_data()
    rng = np.random.default_rng(0)
    centre, scale = np.array([-1.0, 2.0, 5.0]), np.array([0.15, 0.2, 0.1])
    theta = centre + scale * rng.standard_normal((100_000, 3))
    a, b, c = theta.T[..., None]
    log_density = norm.logpdf(y, a * x + b * np.sin(c * x**2), 0.5).sum(1)
    log_weight = np.log(2) + log_density + (norm.logpdf(theta) - norm.logpdf(theta, centre, scale)).sum(1)
    estimate = logsumexp(log_weight) - np.log(len(theta))
    standard_error = np.exp(log_weight - estimate).std() / np.sqrt(len(theta))
    stored = induction_truth().log_evidence_of["x+sx2"] - np.log(0.2 * 0.35 * 0.3 * 0.5)
    assert standard_error < 0.02
    assert abs(estimate - stored) < 4 * standard_error


@pytest.mark.parametrize("column", [25, 60, 190])
def test_curves_are_those_of_draws(heavy_paths, column):
    """Functions drawn from the posterior have the mean and the quantiles that are stored."""
    truth, draws, rng = induction_truth(), 20_000, np.random.default_rng(column)
    prediction = posterior(heavy_paths, truth.predictive_x[[column]])
    node = rng.choice(len(prediction.log_weight), draws, p=np.exp(prediction.log_weight))
    f = rng.normal(prediction.mean[node, 0], np.sqrt(prediction.variance[node, 0]))
    root = np.sqrt(draws)
    assert abs(f.mean() - truth.predictive_mean[column]) < 4 * f.std() / root
    assert abs(np.mean(f < truth.predictive_lower[column]) - 0.05) < 4 * np.sqrt(0.05 * 0.95) / root
    assert abs(np.mean(f < truth.predictive_upper[column]) - 0.95) < 4 * np.sqrt(0.05 * 0.95) / root


# Mixture ------------------------------------------------------------------------------------------------------------


def log_evidence_of_one(points: np.ndarray, low: float, high: float) -> float:
    """log ∫ Π_n Normal(y_n; μ, 0.1²) dμ / (high − low) over [low, high], in closed form."""
    n = len(points)
    if n == 0:
        return 0.0
    sd = SD / np.sqrt(n)
    inside = norm.cdf(high, points.mean(), sd) - norm.cdf(low, points.mean(), sd)
    log_peak = norm.logpdf(points, points.mean(), SD).sum() - norm.logpdf(0, 0, sd)
    with np.errstate(divide="ignore"):
        return log_peak + np.log(inside) - np.log(high - low)


def log_evidence_by_assignment(y: np.ndarray, K: int) -> float:
    """log p(y | K) as a sum over all K^n ways to assign the points to the components, each in closed form."""

    @cache
    def term(k: int, members: tuple[int, ...]) -> float:
        return log_evidence_of_one(y[list(members)], 20 * k / K, 20 * (k + 1) / K)

    totals = []
    for assigned in itertools.product(range(K), repeat=len(y)):
        groups = {k: tuple(n for n, of in enumerate(assigned) if of == k) for k in set(assigned)}
        totals.append(sum(term(k, members) for k, members in groups.items()))
    return logsumexp(totals) - len(y) * np.log(K)


def test_five_components_in_closed_form():
    """Each cell holds one cluster, so that all other assignments have no mass."""
    y, truth = programs.mixture_data(), mixture_truth(9.0)
    cells = [(4 * k, 4 * k + 4) for k in range(5)]
    expected = sum(log_evidence_of_one(y[(y >= low) & (y < high)], low, high) for low, high in cells) - 150 * np.log(5)
    assert truth.log_likelihood[5] == pytest.approx(expected, abs=1e-8)
    assert read("mixture", {})["error"]["5"] < 1e-8


@pytest.mark.parametrize(
    ("y", "K"),
    [([2.1, 2.4, 15.0], 1), ([9.8, 10.1, 12.0], 2), ([3.2, 3.4, 9.9, 10.1, 16.0], 6), ([1.8, 2.0, 2.2, 2.8], 15)],
)
def test_chain_and_its_upper_bound_enclose_the_sum_over_assignments(y, K):
    y = np.array(y)
    exact = log_evidence_by_assignment(y, K)
    assert log_likelihood(y, K, 8) <= exact + 1e-9
    assert log_likelihood(y, K, 8) == pytest.approx(exact, abs=1e-3)
    assert log_likelihood(y, K, 8, upper=True) >= exact - 1e-9
    assert log_likelihood_bound_beyond(y, K) >= log_likelihood_bound(y, K) >= exact


@pytest.mark.parametrize("K", [7, 12, 15])
def test_coarse_chain_gives_the_stored_likelihood(K):
    stored = mixture_truth(9.0).log_likelihood[K]
    assert log_likelihood(programs.mixture_data(), K, 6) == pytest.approx(stored, abs=1e-6)


def test_likelihoods_are_below_their_bounds_and_errors_are_small():
    y, truth = programs.mixture_data(), mixture_truth(9.0)
    assert all(truth.log_likelihood[K] < log_likelihood_bound(y, K) for K in truth.log_likelihood)
    assert all(error < 1e-5 for error in read("mixture", {})["error"].values())


@pytest.mark.parametrize("rate", [9.0, 90.0])
def test_five_components_have_the_mass(rate):
    truth, y = mixture_truth(rate), programs.mixture_data()
    assert sum(truth.probability.values()) == pytest.approx(1, abs=1e-12)
    assert truth.probability[5] > 1 - 1e-6
    omitted = [poisson.logpmf(K - 1, rate) + log_likelihood_bound(y, K) for K in BOUNDED]
    omitted.append(poisson.logsf(BOUNDED.stop - 2, rate) + log_likelihood_bound_beyond(y, BOUNDED.stop))
    error = sum(truth.probability[int(K)] * error for K, error in read("mixture", {})["error"].items())
    assert error + np.exp(logsumexp(omitted) - truth.log_evidence) < 1e-7


def test_five_clusters_of_the_uncertain_data_are_nearly_certain():
    """By a coarse chain, without the stored numbers; the clusters were drawn from the model with K = 5."""
    truth, y = uncertain_mixture_truth(), programs.uncertain_mixture_data()
    assert 0.95 < truth.probability[5] < 0.9999
    logs = {K: poisson.logpmf(K - 1, 9.0) + log_likelihood(y, K, 6) for K in (5, 6)}
    assert truth.probability[6] / truth.probability[5] == pytest.approx(np.exp(logs[6] - logs[5]), rel=1e-5)
    assert sum(truth.probability.values()) == pytest.approx(1, abs=1e-12)
    omitted = [poisson.logpmf(K - 1, 9.0) + log_likelihood_bound(y, K) for K in BOUNDED]
    omitted.append(poisson.logsf(BOUNDED.stop - 2, 9.0) + log_likelihood_bound_beyond(y, BOUNDED.stop))
    error = sum(truth.probability[int(K)] * error for K, error in read("uncertain", {})["error"].items())
    assert error + np.exp(logsumexp(omitted) - truth.log_evidence) < 1e-7


def test_data_of_earlier_seeds_have_a_certain_number_of_clusters():
    """The seed is the first one with an uncertain number: p(K = 5) is within 1e-4 of one for the others."""
    for seed in (0, 6, 14):  # the three with the most for K = 6
        y = programs.uncertain_mixture_data(seed)
        logs = [poisson.logpmf(K - 1, 9.0) + log_likelihood(y, K, 3) for K in (5, 6, 7)]
        assert np.exp(logs[0] - logsumexp(logs)) > 0.9999


def test_density_of_a_new_point():
    """Given the cluster's n points it is Normal(mean, 0.1² + 0.1²/n), and a cluster is as likely as another."""
    y, truth = programs.mixture_data(), mixture_truth(9.0)
    clusters = [y[(y >= 4 * k) & (y < 4 * k + 4)] for k in range(5)]
    expected = sum(norm.pdf(truth.predictive_y, c.mean(), SD * np.sqrt(1 + 1 / len(c))) for c in clusters) / 5
    np.testing.assert_allclose(truth.predictive_density, expected, rtol=1e-8, atol=1e-12)
    assert np.trapezoid(truth.predictive_density, truth.predictive_y) == pytest.approx(1, abs=1e-6)
