"""Simulation-based calibration of whole programs, the path included (Talts et al., 2018).

Each program is simulated from its prior, by a second version of it in NumPy: the decisions, the other variables, the
data. Inference from the data then gives posterior draws. If the program means what its text says, and inference is
right, the truth and the draws are exchangeable: the rank of the truth among n draws, with ties broken at random and
made a number between 0 and 1, is uniform, for every function of the variables and the data. So are the probability
integral transforms of the decision on the path. Of the normal scores z of these numbers, the mean is normal and Σz² is
a χ² number; the numbers themselves have a Kolmogorov-Smirnov test.

Ranks hardly see path probabilities that are too sure. Posterior probabilities q_k of the paths are therefore compared
with q_k exp(t T_k) / Σ_j q_j exp(t T_j) as well, at the best t: T_k = −log q_k makes them sharper or flatter, and
T_k = k moves them to smaller or larger k. If q is right, the largest likelihood ratio over all simulations exceeds
exp(x), on either side of t = 0, with a probability of at most exp(−x) (Chernoff's bound).

All p-values are held to one bound, by which the probability that any test here fails although inference is right is
below 9e-4 (Bonferroni), `FALSE_ALARMS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.optimize import minimize_scalar
from scipy.special import logsumexp

import anabranch as ab

pytestmark = pytest.mark.one_in(2)

SIMULATIONS = 100
QUICK_SIMULATIONS = 6
DRAWS = 1000
BUDGET = 500_000
"""Enough for a second opinion on every path: nearly all runs stop at the tolerance."""
TOLERANCE = 0.05

FALSE_ALARMS = 9e-4
"""The probability that any test of inference in this file fails although inference is right."""
P_VALUES = 11
"""Of one test: three for each of three quantities, and two more for the path."""
TESTS = 6
"""Five programs, and a few simulations of one of them."""
LEVEL = FALSE_ALARMS / (TESTS * P_VALUES)


# Five programs, each with its simulator, which gives the data and the truth: first the decision on the path, then a
# real quantity that every path has, and the log likelihood.

Simulated = tuple[np.ndarray, dict[str, Any]]

X, AHEAD = np.linspace(-1.0, 1.0, 6), 1.5


def polynomial(y):
    """A polynomial of degree 1, 2 or 3, with heavy-tailed noise."""
    degree = ab.sample("index", dist.Categorical(jnp.array([0.3, 0.4, 0.3]))) + 1
    c = [ab.sample(f"c{k}", dist.Normal(0.0, 1.0)) for k in range(degree + 1)]
    ab.deterministic("degree", degree)
    ab.deterministic("prediction", sum(each * AHEAD**k for k, each in enumerate(c)))
    ab.observe("y", dist.StudentT(4.0, sum(each * X**k for k, each in enumerate(c)), 0.5), y)


def simulate_polynomial(rng: np.random.Generator) -> Simulated:
    degree = rng.choice([1, 2, 3], p=[0.3, 0.4, 0.3])
    c = rng.normal(0.0, 1.0, degree + 1)
    y = np.polyval(c[::-1], X) + 0.5 * rng.standard_t(4.0, len(X))
    log_likelihood = stats.t(4.0, np.polyval(c[::-1], X), 0.5).logpdf(y).sum()
    return y, {"degree": degree, "prediction": np.polyval(c[::-1], AHEAD), "log likelihood": log_likelihood}


def mixture(y):
    """One, two or three normal components of known scale; their largest mean does not depend on their labels."""
    components = ab.sample("index", dist.Categorical(jnp.array([0.3, 0.4, 0.3]))) + 1
    means = jnp.stack([ab.sample(f"mean{k}", dist.Normal(0.0, 3.0)) for k in range(components)])
    ab.deterministic("components", components)
    ab.deterministic("largest", jnp.max(means))
    shares = dist.Categorical(jnp.ones(components) / components)
    ab.observe("y", dist.MixtureSameFamily(shares, dist.Normal(means, 1.0)), y)


def simulate_mixture(rng: np.random.Generator) -> Simulated:
    components = rng.choice([1, 2, 3], p=[0.3, 0.4, 0.3])
    means = rng.normal(0.0, 3.0, components)
    y = rng.normal(means[rng.integers(components, size=6)], 1.0)
    log_likelihood = np.log(stats.norm(means, 1.0).pdf(y[:, None]).mean(axis=1)).sum()
    return y, {"components": components, "largest": means.max(), "log likelihood": log_likelihood}


DAYS = np.arange(8) + 0.5


def change_point(y):
    """Counts whose rate changes at some time, or does not: the density jumps as that time passes a day."""
    changes = ab.sample("changes", dist.Bernoulli(0.6))
    before = after = ab.sample("before", dist.Gamma(2.0, 0.5))
    time = 0.0
    if changes:
        time = ab.sample("time", dist.Uniform(0.0, 8.0))
        after = ab.sample("after", dist.Gamma(2.0, 0.5))
    ab.deterministic("last", after)
    ab.observe("y", dist.Poisson(jnp.where(time > DAYS, before, after)), y)


def simulate_change_point(rng: np.random.Generator) -> Simulated:
    changes = rng.random() < 0.6
    rate = np.full(8, rng.gamma(2.0, 1 / 0.5))
    last = rate[0]
    if changes:
        time, last = rng.uniform(0.0, 8.0), rng.gamma(2.0, 1 / 0.5)
        rate[time <= DAYS] = last
    y = rng.poisson(rate)
    return y, {"changes": int(changes), "last": last, "log likelihood": stats.poisson(rate).logpmf(y).sum()}


STEPS = np.arange(4)


def threshold(y):
    """The sign of a real number decides: a trend, or a level that begins early or late, with another noise."""
    effect = ab.sample("effect", dist.Normal(0.2, 1.0))
    if effect > 0:
        mean = effect + ab.sample("slope", dist.Exponential(2.0)) * STEPS
        scale, positive = 2.0, 1
    else:
        mean = effect * (2 * ab.sample("late", dist.Bernoulli(0.5)) <= STEPS)
        scale, positive = ab.sample("scale", dist.LogNormal(0.7, 0.5)), 0
    ab.deterministic("positive", positive)
    ab.deterministic("total", jnp.sum(mean))
    ab.observe("y", dist.Normal(mean, scale), y)


def simulate_threshold(rng: np.random.Generator) -> Simulated:
    effect = rng.normal(0.2, 1.0)
    if effect > 0:
        mean, scale = effect + rng.exponential(1 / 2.0) * STEPS, 2.0
    else:
        mean, scale = np.where(2 * rng.integers(2) <= STEPS, effect, 0.0), np.exp(rng.normal(0.7, 0.5))
    y = rng.normal(mean, scale)
    log_likelihood = stats.norm(mean, scale).logpdf(y).sum()
    return y, {"positive": int(effect > 0), "total": mean.sum(), "log likelihood": log_likelihood}


def groups(y):
    """Three groups that have the same mean, or means of their own around a common one."""
    pooled = ab.sample("pooled", dist.Bernoulli(0.4))
    centre = ab.sample("centre", dist.Normal(0.0, 2.0))
    if pooled:
        means = jnp.full(3, centre)
    else:
        spread = ab.sample("spread", dist.HalfNormal(1.5))
        means = ab.sample("means", dist.Normal(centre, spread).expand([3]))
    scale = ab.sample("scale", dist.LogNormal(0.0, 0.3))
    ab.deterministic("first", means[0])
    ab.observe("y", dist.Normal(means[:, None], scale), y)


def simulate_groups(rng: np.random.Generator) -> Simulated:
    pooled = rng.random() < 0.4
    centre = rng.normal(0.0, 2.0)
    means = np.full(3, centre) if pooled else rng.normal(centre, abs(rng.normal(0.0, 1.5)), 3)
    scale = np.exp(rng.normal(0.0, 0.3))
    y = rng.normal(means[:, None], scale, (3, 2))
    log_likelihood = stats.norm(means[:, None], scale).logpdf(y).sum()
    return y, {"pooled": int(pooled), "first": means[0], "log likelihood": log_likelihood}


SIMULATORS: dict[Callable[..., None], Callable[[np.random.Generator], Simulated]] = {
    polynomial: simulate_polynomial,
    mixture: simulate_mixture,
    change_point: simulate_change_point,
    threshold: simulate_threshold,
    groups: simulate_groups,
}


# Ranks, and their tests ---------------------------------------------------------------------------------------------


def rank(draws: np.ndarray, truth: float, rng: np.random.Generator) -> float:
    """The rank of the truth among the draws, in (0, 1): uniform if it is one draw more."""
    return (np.sum(draws < truth) + rng.random() * (1 + np.sum(draws == truth))) / (len(draws) + 1)


def transform(probabilities: Mapping[int, float], truth: int, rng: np.random.Generator) -> float:
    """The probability integral transform P(k < truth) + U P(k = truth), with U at random."""
    return sum(p for k, p in probabilities.items() if k < truth) + rng.random() * probabilities.get(truth, 0.0)


def uniformity(u: Sequence[float]) -> dict[str, float]:
    """p-values of numbers that should be uniform."""
    z = stats.norm.ppf(u)
    below, above = stats.chi2.cdf(np.sum(z**2), len(z)), stats.chi2.sf(np.sum(z**2), len(z))
    return {
        "mean": 2 * stats.norm.sf(abs(np.sum(z)) / np.sqrt(len(z))),
        "square": 2 * min(below, above),
        "Kolmogorov-Smirnov": stats.kstest(u, "uniform").pvalue,
    }


def path_probabilities(probabilities: Sequence[Mapping[int, float]], truths: Sequence[int]) -> dict[str, float]:
    """p-values, at most, of the likelihood ratios of other path probabilities."""
    values = sorted({int(k) for each in probabilities for k in each} | {int(k) for k in truths})
    q = np.array([[each.get(k, 0.0) for k in values] for each in probabilities])
    at = np.arange(len(truths)), np.searchsorted(values, truths)
    if np.any(q[at] == 0):
        return {"sharpness": 0.0, "location": 0.0}  # a path that was simulated has no probability
    log_q = np.log(q, out=np.full(q.shape, -np.inf), where=q > 0)
    return {
        "sharpness": _tilt(log_q, np.where(q > 0, -log_q, 0.0), at),
        "location": _tilt(log_q, np.broadcast_to(np.array(values, float), q.shape), at),
    }


def _tilt(log_q: np.ndarray, statistic: np.ndarray, at: tuple[np.ndarray, np.ndarray]) -> float:
    total = statistic[at].sum()

    def minus_log_ratio(t: float) -> float:
        return logsumexp(log_q + t * statistic, axis=1).sum() - t * total

    return min(1.0, 2 * np.exp(minimize_scalar(minus_log_ratio, bounds=(-10.0, 10.0), method="bounded").fun))


class Calibration(NamedTuple):
    """Of many simulations: the ranks of each quantity, and the probabilities of the path with the true one."""

    ranks: dict[str, list[float]]
    probabilities: list[Mapping[int, float]]
    paths: list[int]

    def p_values(self) -> dict[str, float]:
        found = {f"{name}, {test}": p for name, u in self.ranks.items() for test, p in uniformity(u).items()}
        return found | {f"path, {test}": p for test, p in path_probabilities(self.probabilities, self.paths).items()}

    def check(self) -> None:
        """Fail if a p-value is below the level, or is no number."""
        found = self.p_values()
        assert len(found) == P_VALUES
        wrong = [f"{name}: p = {p:.2g}" for name, p in found.items() if not p >= LEVEL]
        assert not wrong, "\n".join([f"with {len(self.paths)} simulations", *wrong])


def simulate_and_infer(program: Callable[..., None], simulations: int, budget: int = BUDGET) -> Calibration:
    out = Calibration({}, [], [])
    for seed in range(simulations):
        rng = np.random.default_rng([list(SIMULATORS).index(program), seed])
        y, truth = SIMULATORS[program](rng)
        posterior = ab.infer(program, y, seed=seed, budget=budget, tolerance=TOLERANCE, progress=False)
        path, real, _ = truth
        out.probabilities.append(posterior.probability(path))
        out.paths.append(truth[path])
        log_likelihood = posterior.log_likelihood(DRAWS, seed)["y"].reshape(DRAWS, -1).sum(axis=1)
        for name, u in {
            path: transform(out.probabilities[-1], truth[path], rng),
            real: rank(posterior.draws(DRAWS, seed)[real], truth[real], rng),
            "log likelihood": rank(log_likelihood, truth["log likelihood"], rng),
        }.items():
            out.ranks.setdefault(name, []).append(u)
    return out


# Inference ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("program", SIMULATORS, ids=lambda program: program.__name__)
def test_the_truth_is_one_draw_more(program):
    simulate_and_infer(program, SIMULATIONS).check()


def test_the_truth_is_one_draw_more_in_a_few_simulations():
    """They see an answer that is far off; all five programs, with more simulations, are slow."""
    simulate_and_infer(change_point, QUICK_SIMULATIONS, budget=30_000).check()


# The tests of uniformity themselves: planted faults -----------------------------------------------------------------


def planted(
    seed: int, *, narrow: float = 1.0, shift: float = 0.0, exponent: float = 1.0, factor: float = 1.0
) -> Calibration:
    """Simulations with exact posteriors: normal ones, and probabilities of three paths; and faults planted in them.

    The posterior sd is too small by the factor `narrow`, the mean off by `shift` standard deviations; the path
    probabilities are raised to an exponent, and the evidence of the third path is wrong by a factor.
    """
    rng = np.random.default_rng(seed)
    out = Calibration({"path": [], "first": [], "second": []}, [], [])
    for p in rng.dirichlet([1.0, 1.0, 1.0], SIMULATIONS):
        truth = rng.normal(size=2)  # in standard deviations about the posterior mean
        draws = shift + rng.normal(size=(DRAWS, 2)) / narrow
        wrong = p**exponent * [1.0, 1.0, factor]
        out.paths.append(int(rng.choice(3, p=p)))
        out.probabilities.append(dict(enumerate(wrong / wrong.sum())))
        out.ranks["path"].append(transform(out.probabilities[-1], out.paths[-1], rng))
        out.ranks["first"].append(rank(draws[:, 0], truth[0], rng))
        out.ranks["second"].append(rank(np.round(draws[:, 1]), np.round(truth[1]), rng))
    return out


def failing(**fault: float) -> int:
    """How many of 20 calibrations fail."""
    return sum(not min(planted(seed, **fault).p_values().values()) >= LEVEL for seed in range(20))


def test_the_tests_are_no_more_than_share_the_false_alarms():
    assert len(SIMULATORS) + 1 == TESTS
    assert TESTS * P_VALUES * LEVEL <= FALSE_ALARMS < 1e-3


def test_right_posteriors_pass():
    planted(0).check()
    assert failing() == 0


@pytest.mark.parametrize(
    ("fault", "least"),
    [
        ({"narrow": 1.5}, 18),
        ({"narrow": 1 / 1.5}, 12),
        ({"shift": 0.5}, 12),
        ({"shift": -0.5}, 12),
        ({"exponent": 3.0}, 18),  # 0.4, 0.3, 0.3 become 0.54, 0.23, 0.23
        ({"factor": 5.0}, 12),
        ({"factor": 0.2}, 12),
    ],
)
def test_planted_faults_are_seen(fault, least):
    """More often than not, and nine times of ten where the posterior is too sure."""
    assert failing(**fault) >= least


def test_a_failure_names_the_quantity_and_the_test():
    with pytest.raises(AssertionError, match=r"with 100 simulations\n +first, square: p = "):
        planted(0, narrow=2.0).check()


def test_a_path_without_probability_that_was_simulated_is_seen():
    calibration = planted(0)
    calibration.probabilities[7] = {k: p for k, p in calibration.probabilities[7].items() if k != calibration.paths[7]}
    with pytest.raises(AssertionError, match="path, sharpness: p = 0"):
        calibration.check()


def test_a_rank_that_is_no_number_is_seen():
    calibration = planted(0)
    calibration.ranks["first"][3] = np.nan
    with pytest.raises(AssertionError, match="first, mean: p = nan"):
        calibration.check()


@pytest.mark.parametrize("n", [QUICK_SIMULATIONS, SIMULATIONS])
def test_p_values_of_uniform_numbers_are_as_small_as_seldom_as_they_say(n):
    rng = np.random.default_rng(n)
    found = [list(uniformity(u).values()) for u in rng.random((500, n))]
    assert np.all(np.mean(np.array(found) < 0.1, axis=0) < 0.1 + 4 * np.sqrt(0.1 * 0.9 / 500))


@pytest.mark.parametrize("n", [QUICK_SIMULATIONS, SIMULATIONS])
def test_p_values_of_right_path_probabilities_are_as_small_as_seldom_as_they_say(n):
    """And more seldom: they are bounds."""
    rng = np.random.default_rng(n)
    found = []
    for _ in range(300):
        q = rng.dirichlet([1.0, 1.0, 1.0], n)
        paths = np.sum(rng.random((n, 1)) > q.cumsum(axis=1)[:, :2], axis=1)
        found.append(list(path_probabilities([dict(enumerate(each)) for each in q], paths).values()))
    assert np.all(np.mean(np.array(found) < 0.2, axis=0) < 0.2)
    assert np.all(np.mean(np.array(found) < 0.2, axis=0) > 0.01)


@pytest.mark.parametrize("digits", [0, 15], ids=["ties", "no ties"])
def test_the_rank_of_one_draw_more_is_uniform(digits):
    rng = np.random.default_rng(digits)
    values = np.round(rng.normal(size=(1_000, 51)), digits)
    assert stats.kstest([rank(row[1:], row[0], rng) for row in values], "uniform").pvalue > 1e-3
