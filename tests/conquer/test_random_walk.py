"""The paper's local strategy, against evidences in closed form."""

import pickle
from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.special import gammaln

import anabranch as ab
from anabranch.conquer.kernel import StudentKernel
from anabranch.conquer.random_walk import RandomWalk
from anabranch.conquer.target import PathTarget
from anabranch.divide import Evaluation, PriorDraws
from anabranch.programs import branching
from calibration import check_calibrated, z_scores
from helpers import interpreted

DEFAULT = RandomWalk()


class Density:
    """A target in NumPy: a log density over rows, and prior draws."""

    def __init__(self, log_density, draw, discrete):
        self._log_density, self._draw = log_density, draw
        self.discrete = np.array(discrete)
        self.dim, self.evaluations = len(discrete), 0
        self.is_marginal = True
        self.known, self.has_gradient = np.zeros((0, self.dim)), False

    def evaluate(self, points):
        self.evaluations += len(points)
        zero = np.zeros(len(points))
        return Evaluation(self._log_density(points), zero, zero, np.ones(len(points), bool))

    def prior(self, n, rng):
        points = self._draw(n, rng)
        return PriorDraws(points, np.zeros(len(points)), 0.0, 0.0, n)


def log_normal(x, mean, sd):
    """As `scipy.stats.norm.logpdf`, which takes longer than everything else here."""
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))


def solve(target, seed, evaluations, strategy=DEFAULT):
    rng = np.random.default_rng(seed)
    return strategy.estimate(target, strategy.advance(target, strategy.start(target, rng), rng, evaluations))


def only_path(program, *args):
    [path] = ab.find_paths(program, *args, executions=50).paths
    return path


def agrees(estimate, exact, largest_sd):
    assert estimate.log_evidence_sd < largest_sd
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd


# Evidence -----------------------------------------------------------------------------------------------------------


def normal_normal(d):
    y = np.linspace(-1.0, 2.0, d)

    def log_density(x):
        return (log_normal(x, 0, 2) + log_normal(y, x, 1)).sum(axis=1)

    exact = stats.norm.logpdf(y, 0, np.sqrt(5)).sum()
    return (lambda: Density(log_density, lambda n, rng: 2 * rng.standard_normal((n, d)), [False] * d)), exact


def poisson_log_pmf(k, rate):
    with np.errstate(invalid="ignore"):
        return np.where(k >= 0, k * np.log(rate) - rate - gammaln(np.maximum(k, 0) + 1), -np.inf)


def count_and_noise():
    """z ~ Poisson(4), x ~ Normal(0, 1), and z + x is observed as 5 with noise 1: both kinds of coordinates at once."""

    def log_density(points):
        x, z = points.T
        return poisson_log_pmf(z, 4.0) + log_normal(x, 0, 1) + log_normal(5.0, z + x, 1.0)

    def draw(n, rng):
        return np.column_stack([rng.standard_normal(n), rng.poisson(4.0, n)])

    z = np.arange(80)
    exact = np.log(np.sum(stats.poisson.pmf(z, 4.0) * stats.norm.pdf(5.0, z, np.sqrt(2.0))))
    return (lambda: Density(log_density, draw, [False, True])), exact


def two_modes():
    """Two narrow modes, sixty standard deviations of each apart: chains stand on one or the other."""

    def log_density(x):
        return np.logaddexp(log_normal(x, -3, 0.1), log_normal(x, 3, 0.1) + np.log(2)).sum(axis=1)

    return (lambda: Density(log_density, lambda n, rng: 3 * rng.standard_normal((n, 1)), [False])), np.log(3)


@pytest.mark.parametrize("seeds", [8, pytest.param(70, marks=pytest.mark.slow)])
def test_the_errors_are_calibrated(seeds):
    scores = {}
    for k, ((make_target, exact), evaluations, largest_error) in enumerate([
        (normal_normal(1), 5_000, 0.002),
        (normal_normal(2), 6_000, 0.004),
        (normal_normal(3), 7_000, 0.007),
        (normal_normal(4), 8_000, 0.01),
        (count_and_noise(), 6_000, 0.006),
        (two_modes(), 6_000, 0.01),
    ]):  # fmt: skip
        estimates = [solve(make_target(), 1_000 * k + seed, evaluations) for seed in range(seeds)]
        errors = np.array([estimate.log_evidence - exact for estimate in estimates])
        assert errors.std() < np.sqrt(20) * largest_error
        scores[f"case {k}"] = z_scores(estimates, exact)
    check_calibrated(scores, min_scores=6 * seeds)


def test_normal_means_of_a_program():
    y = np.array([0.3, -1.2, 2.0])

    def program():
        first = ab.sample("first", dist.Normal(0.0, 2.0))
        others = ab.sample("others", dist.Normal(jnp.zeros(2), 2.0).to_event(1))
        ab.observe("y", dist.Normal(jnp.append(others, first), 1.0), y)

    estimate = solve(PathTarget(only_path(program)), 0, 20_000)
    agrees(estimate, stats.norm.logpdf(y, 0, np.sqrt(5)).sum(), 0.015)
    weights = np.exp(estimate.log_weights)
    assert weights.sum() == pytest.approx(1)
    # Each coordinate is normal with mean 0.8 y and variance 0.8 given y; the columns come in the order of the program.
    error = 4 * np.sqrt(0.8 / estimate.ess)
    np.testing.assert_allclose(weights @ estimate.points, 0.8 * y[[2, 0, 1]], atol=error)
    assert estimate.ess > 1000
    assert estimate.r_hat < 1.2
    assert estimate.pareto_k < 0.5
    assert estimate.method == "RandomWalk"


def test_a_poisson_variable_of_a_program():
    def program():
        z = ab.sample("z", dist.Poisson(4.0))
        ab.observe("y", dist.Normal(z * 1.0, 1.5), 7.0)

    z = np.arange(100)
    exact = np.log(np.sum(stats.poisson.pmf(z, 4.0) * stats.norm.pdf(7.0, z, 1.5)))
    estimate = solve(PathTarget(only_path(program)), 0, 20_000)
    agrees(estimate, exact, 0.01)
    assert (estimate.points == estimate.points.round()).all()


def test_a_vector_of_coins():
    def program():
        coins = ab.sample("coins", dist.Bernoulli(0.3).expand([5]).to_event(1))
        ab.observe("y", dist.Normal(coins.sum() * 1.0, 1.0), 4.0)

    k = np.arange(6)
    exact = np.log(np.sum(stats.binom.pmf(k, 5, 0.3) * stats.norm.pdf(4.0, k, 1.0)))
    agrees(solve(PathTarget(only_path(program)), 0, 30_000), exact, 0.1)


def test_paths_with_a_guard():
    below, above = sorted(ab.find_paths(branching).paths, key=lambda path: path.dim)
    for path, exact in (
        (below, np.log(0.5) + stats.norm.logpdf(2.0, -5.0, np.sqrt(8.0))),
        (above, np.log(0.5) + stats.norm.logpdf(2.0, 5.0, np.sqrt(12.0))),
    ):
        estimate = solve(PathTarget(path), 1, 20_000)
        agrees(estimate, exact, 0.04)
        assert path.evaluate(estimate.points).guard.all()


def test_a_path_in_the_interpreter():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(float(x), 1.0), 1.0)

    division = interpreted(program)
    division.explore(20, seed=0)
    estimate = solve(PathTarget(division.paths[0]), 0, 800, RandomWalk(chains=4, initial_steps=15, prior_draws=20))
    agrees(estimate, stats.norm.logpdf(1.0, 0, np.sqrt(2)), 0.05)


def test_a_needle():
    """A likelihood a hundred thousand times narrower than the prior."""

    def log_density(x):
        return (log_normal(x, 0, 10) + log_normal(np.array([3.0, -8.0]), x, 1e-4)).sum(axis=1)

    target = Density(log_density, lambda n, rng: 10 * rng.standard_normal((n, 2)), [False, False])
    agrees(solve(target, 0, 20_000), stats.norm.logpdf([3.0, -8.0], 0, 10).sum(), 0.02)


# The kernel ---------------------------------------------------------------------------------------------------------


def test_the_chains_leave_the_posterior_as_it_is():
    """Draws from the posterior, moved by the kernel many times, are draws from the posterior."""
    target = count_and_noise()[0]()
    n, rng = 6000, np.random.default_rng(0)
    z = np.arange(60)
    mass = stats.poisson.pmf(z, 4.0) * stats.norm.pdf(5.0, z, np.sqrt(2.0))
    mass /= mass.sum()
    counts = rng.choice(z, n, p=mass)
    start = np.column_stack([0.5 * (5.0 - counts) + np.sqrt(0.5) * rng.standard_normal(n), counts])
    strategy = RandomWalk(chains=n, prior_share=0.5)
    state = strategy.start(target, rng)
    state = replace(state, points=start, log_density=target.evaluate(start).log_density)
    after, _ = strategy.walk(target, state, rng, steps=1, moves_per_step=30)
    moved = (after.points != start).mean(axis=0)
    assert (moved > 0.7).all()
    x, counts = after.points.T
    assert stats.kstest(x - 0.5 * (5.0 - counts), stats.norm(0, np.sqrt(0.5)).cdf).pvalue > 1e-3
    observed = np.array([np.sum(counts == k) for k in range(1, 10)])
    observed = np.append(observed, n - observed.sum())
    expected = np.append(mass[1:10], 1 - mass[1:10].sum()) * n
    assert stats.chisquare(observed, expected).pvalue > 1e-3


def test_the_kernel_is_a_distribution():
    kernel = StudentKernel(np.array([1.5]), np.array([True]))
    k = np.arange(-4000.0, 4001.0)[:, None]
    mass = np.exp(kernel.log_densities(k, np.array([2.3]))[:, 0])
    assert mass.sum() == pytest.approx(1, abs=1e-12)
    draws = kernel.draw(np.full((100_000, 1), 2.3), np.random.default_rng(0))[:, 0]
    shares = [np.mean(draws == value) for value in (0, 2, 3, 6)]
    np.testing.assert_allclose(shares, [mass[k[:, 0] == value][0] for value in (0, 2, 3, 6)], atol=0.006)
    np.testing.assert_allclose(
        StudentKernel(np.array([1.5]), np.array([False])).log_densities(k[3990:4010], np.array([2.3])),
        stats.t.logpdf(k[3990:4010], 5, 2.3, 1.5),
    )


def test_the_mass_of_far_whole_numbers_keeps_its_digits():
    kernel = StudentKernel(np.array([1.0]), np.array([True]))
    far = np.array([[1e3], [1e5]])
    np.testing.assert_allclose(kernel.log_densities(far, np.zeros(1)), stats.t.logpdf(far, 5), rtol=1e-5)


# The protocol -------------------------------------------------------------------------------------------------------


def same(first, second):
    return all(np.array_equal(getattr(first, f.name), getattr(second, f.name)) for f in fields(first))


def test_the_state_is_plain_data_and_never_changed():
    make_target, exact = normal_normal(2)
    strategy, target = RandomWalk(), make_target()
    state = strategy.start(target, np.random.default_rng(0))
    copies = [pickle.loads(pickle.dumps(state))]
    states = [state]
    for evaluations in (300, 4000, 4000):
        states.append(strategy.advance(target, states[-1], np.random.default_rng(evaluations), evaluations))
        copies.append(pickle.loads(pickle.dumps(states[-1])))
        again = strategy.advance(make_target(), copies[-2], np.random.default_rng(evaluations), evaluations)
        assert same(states[-1], again)
    assert all(same(before, copy) for before, copy in zip(states, copies, strict=True))
    assert states[-1].evaluations == target.evaluations
    agrees(strategy.estimate(target, states[-1]), exact, 0.03)


@pytest.mark.parametrize("share", [50, 200, 1000])
def test_small_shares_lead_to_the_same_place(share):
    """The initial phase goes on over as many calls as it takes; until it is over, the estimate says so."""
    make_target, exact = normal_normal(3)
    strategy, target, rng = RandomWalk(), make_target(), np.random.default_rng(0)
    state = strategy.advance(target, strategy.start(target, rng), rng, share)
    assert "initial phase" in strategy.estimate(target, state).remarks[0]
    while target.evaluations < 26_000:
        state = strategy.advance(target, state, rng, share)
    estimate = strategy.estimate(target, state)
    assert estimate.remarks == ()
    agrees(estimate, exact, 0.04)


@pytest.mark.parametrize("evaluations", [2000, 10_000])
def test_it_spends_about_what_it_is_given(evaluations):
    strategy, target, rng = RandomWalk(), normal_normal(4)[0](), np.random.default_rng(0)
    state = strategy.start(target, rng)
    before = target.evaluations
    strategy.advance(target, state, rng, evaluations)
    assert target.evaluations - before == pytest.approx(evaluations, rel=0.1)


def test_a_path_without_variables_is_exact():
    def program():
        if ab.sample("heads", dist.Bernoulli(0.3)):
            ab.observe("y", dist.Normal(0.0, 1.0), 0.5)

    for path in ab.find_paths(program):
        estimate = solve(PathTarget(path), 0, 10_000)
        exact = np.log(0.3) + stats.norm.logpdf(0.5) if path.description == "heads = 1" else np.log(0.7)
        assert estimate.log_evidence == pytest.approx(exact)
        assert estimate.log_evidence_sd == 0


def test_no_density_anywhere():
    target = Density(lambda x: np.full(len(x), -np.inf), lambda n, rng: rng.standard_normal((n, 2)), [False, True])
    estimate = solve(target, 0, 2000)
    assert estimate.log_evidence == -np.inf
    assert estimate.log_evidence_sd == np.inf
    assert "zero at every point" in estimate.remarks[0]


def test_density_in_a_corner():
    """Most prior draws have no density: the chains get to where there is some, and the estimate counts the rest."""

    def log_density(x):
        return np.where((x > 1.5).all(axis=1), log_normal(x, 0, 1).sum(axis=1), -np.inf)

    target = Density(log_density, lambda n, rng: rng.standard_normal((n, 2)), [False, False])
    agrees(solve(target, 0, 20_000), 2 * stats.norm.logsf(1.5), 0.05)


def test_nothing_to_start_from():
    target = Density(lambda x: np.zeros(len(x)), lambda n, rng: np.zeros((0, 2)), [False, False])
    estimate = solve(target, 0, 2000)
    assert estimate.log_evidence == -np.inf
    assert "no point to start from" in estimate.remarks[0]


def test_a_known_point_is_enough_to_start_from():
    make_target, exact = normal_normal(2)
    target = make_target()
    target._draw = lambda n, rng: np.zeros((0, 2))
    target.known = np.array([[0.5, 0.5]])
    agrees(solve(target, 0, 10_000), exact, 0.05)


def test_an_infinite_prior_draw_is_left_out():
    make_target, exact = normal_normal(1)
    target = make_target()
    target._draw = lambda n, rng: np.append(rng.standard_normal((n - 1, 1)), [[np.inf]], axis=0)
    agrees(solve(target, 0, 10_000), exact, 0.05)


@pytest.mark.parametrize(
    "settings",
    [{"chains": 1}, {"importance_samples": 1}, {"initial_steps": 0}, {"prior_draws": 0}, {"prior_share": 1.5}],
)
def test_settings_are_checked(settings):
    [name] = settings
    with pytest.raises(ValueError, match=name):
        RandomWalk(**settings)
