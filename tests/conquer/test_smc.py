"""Tempering against closed forms: the error is compared with the one it states, over many seeds."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy import stats
from scipy.integrate import quad

import anabranch as ab
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.smc import SMC, SMCState
from anabranch.conquer.smc_mutation import Mutation, Shape, Tuning
from anabranch.conquer.smc_sweep import ess_by_family
from anabranch.conquer.smc_tempering import Particles, Tempering, fitted
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.target import PathTarget
from anabranch.divide import Executions, Path
from calibration import check_calibrated, z_scores


def normals(d, y):
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
    ab.observe("y", dist.Normal(x, 0.5), y)


def normals_case(d: int) -> tuple[Path, float]:
    y = np.linspace(-1.5, 1.5, d + 1)[1:]
    exact = stats.norm(0, np.sqrt(1.25)).logpdf(y).sum()
    return ab.find_paths(normals, d, y, executions=10).paths[0], float(exact)


def half_space(y):
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    if x[0] + x[1] > 1.0:
        ab.observe("y", dist.Normal(x[0], 0.5), y)
    else:
        ab.sample("other", dist.Normal(0.0, 1.0))


def half_space_case() -> tuple[Path, float]:
    def integrand(a):
        return stats.norm.pdf(a) * stats.norm.sf(1 - a) * stats.norm.pdf(1.0, a, 0.5)

    path = next(path for path in ab.find_paths(half_space, 1.0).paths if path.dim == 2)
    return path, float(np.log(quad(integrand, -8, 8)[0]))


def counted(y):
    z = ab.sample("z", dist.Poisson(4.0))
    x = ab.sample("x", dist.Normal(0.3 * z, 1.0))
    ab.observe("y", dist.Normal(jnp.arange(60.0)[z] + x, 0.7), y)


def counted_case() -> tuple[Path, float]:
    k = np.arange(60)
    terms = stats.poisson.pmf(k, 4) * stats.norm.pdf(7.0, 1.3 * k, np.sqrt(1.49))
    return ab.find_paths(counted, 7.0, executions=10).paths[0], float(np.log(terms.sum()))


def corner():
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    if jnp.all(x > 1.5):
        ab.observe("y", dist.Normal(x, 0.5), 2 * np.ones(4))
    else:
        ab.sample("other", dist.Normal(0.0, 1.0))


def corner_case() -> tuple[Path, float, list[Executions]]:
    found = ab.find_paths(corner, executions=10).route({"x": np.full((1, 4), 2.0)})
    one = quad(lambda a: stats.norm.pdf(a) * stats.norm.pdf(2.0, a, 0.5), 1.5, 8)[0]
    assert found[0].path is not None
    return found[0].path, float(4 * np.log(one)), found


def run(
    path: Path, seed: int, evaluations: int, found_by: Sequence[Executions] = (), **settings: Any
) -> tuple[Estimate, SMCState]:
    target, rng, method = PathTarget(path, found_by), np.random.default_rng(seed), SMC(**settings)
    state = method.advance(target, method.start(target, rng), rng, evaluations)
    return method.estimate(target, state), state


def improper():
    x = ab.sample("x", dist.ImproperUniform(dist.constraints.real, (), ()))
    ab.observe("y", dist.Normal(x, 0.3), 0.5)


def needle():
    x = ab.sample("x", dist.Normal(0.0, 10.0))
    ab.observe("y", dist.Normal(x, 1e-6), 3.0)


def only_case(program: Any, exact: float) -> tuple[Path, float]:
    return ab.find_paths(program, executions=10).paths[0], exact


class Runs(NamedTuple):
    """A path with its log evidence, how often it is estimated, and what the standard errors stay below on average."""

    case: tuple[Any, ...]
    seeds: int
    evaluations: int
    largest_sd: float
    settings: Mapping[str, Any] = MappingProxyType({})


def calibration_runs() -> dict[str, Runs]:
    wide = StudentMixture(np.zeros((1, 2)), np.eye(2)[None], np.ones(1), np.array([5.0]))
    return {
        "one normal": Runs(normals_case(1), 60, 8_000, 0.06),
        "two normals": Runs(normals_case(2), 60, 12_000, 0.1),
        "five normals": Runs(normals_case(5), 30, 30_000, 0.2),
        "a guard": Runs(half_space_case(), 60, 8_000, 0.04),
        "whole numbers": Runs(counted_case(), 60, 10_000, 0.08),
        "a rarely met guard": Runs(corner_case(), 20, 30_000, 0.08),
        "a given proposal": Runs(normals_case(2), 60, 12_000, 0.1, {"proposal": wide}),
        # Draws of an improper prior are none to start from.
        "an improper prior": Runs(only_case(improper, 0.0), 60, 6_000, 0.1),
        "a needle": Runs(only_case(needle, float(stats.norm(0, np.hypot(10, 1e-6)).logpdf(3.0))), 15, 60_000, 0.25),
    }


@pytest.mark.parametrize(("one_in", "min_scores"), [(7, 50), pytest.param(1, 400, marks=pytest.mark.slow)])
def test_the_errors_are_calibrated(one_in, min_scores):
    scores = {}
    for k, (name, each) in enumerate(calibration_runs().items()):
        path, exact, *found_by = each.case
        seeds = range(1_000 * k, 1_000 * k + max(each.seeds // one_in, 2))
        results = [run(path, seed, each.evaluations, *found_by, **each.settings) for seed in seeds]
        estimates = [estimate for estimate, _ in results]
        assert 0 < np.mean([estimate.log_evidence_sd for estimate in estimates]) < each.largest_sd
        if found_by:
            assert all(state.proposal is not None for _, state in results)
            assert any("fitted" in remark for remark in estimates[0].remarks)
        if name == "whole numbers":
            check_mean_of_whole_numbers(path, estimates)
        scores[name] = z_scores(estimates, exact)
    check_calibrated(scores, min_scores=min_scores)


def check_mean_of_whole_numbers(path: Path, estimates: Sequence[Estimate]) -> None:
    assert path.discrete.any()
    k = np.arange(60)
    terms = stats.poisson.pmf(k, 4) * stats.norm.pdf(7.0, 1.3 * k, np.sqrt(1.49))
    means = [np.exp(e.log_weights) @ e.points[:, path.discrete][:, 0] for e in estimates]
    error = np.std(means) / np.sqrt(len(means))
    assert error < 0.02
    assert abs(np.mean(means) - terms @ k / terms.sum()) < 4 * error


@pytest.mark.slow
def test_twenty_dimensions_by_hamiltonian_moves():
    path, exact = normals_case(20)
    results = [run(path, seed, 160_000) for seed in range(30)]
    assert all(state.tuning.gradient for _, state in results)
    assert all(len(state.sweeps) > 2 for _, state in results)  # the first alone, which learns the ladder, is low
    estimates = [estimate for estimate, _ in results]
    assert 0 < np.mean([estimate.log_evidence_sd for estimate in estimates]) < 0.2
    check_calibrated({"twenty normals": z_scores(estimates, exact)}, min_scores=30)


def test_hamiltonian_moves_leave_the_posterior_as_it_is():
    path, _ = normals_case(6)
    estimate, state = run(path, 0, 60_000)
    assert state.tuning.gradient
    y = np.linspace(-1.5, 1.5, 7)[1:]
    weights = np.exp(estimate.log_weights)
    mean = weights @ estimate.points
    variance = weights @ (estimate.points - mean) ** 2
    assert 300 < estimate.ess <= len(estimate.points)
    np.testing.assert_allclose(mean, 0.8 * y, atol=4 * np.sqrt(0.2 / estimate.ess))
    np.testing.assert_allclose(variance, 0.2, rtol=4 * np.sqrt(2 / estimate.ess))


# The kernels leave a tempered density unchanged -----------------------------------------------------------------------


def correlated():
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    if x[0] > x[1] - 0.5:
        ab.observe("y", dist.Normal(x[0] + 2 * x[1], 1.0), 1.0)
    else:
        ab.sample("other", dist.Normal(0.0, 1.0))


def separate():
    """Modes at about -1.4 and 1.4 with different masses."""
    x = ab.sample("x", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
    heights = [dist.Normal(mean, 0.8).log_prob(x).sum() for mean in (-1.8, 1.8)]
    ab.factor("data", jnp.logaddexp(jnp.log(0.3) + heights[0], jnp.log(0.7) + heights[1]))


def mirrored():
    """Mirror images with different masses, since the prior is off the centre."""
    x = ab.sample("x", dist.Normal(0.3, 1.0).expand([3]).to_event(1))
    ab.observe("y", dist.Normal(jnp.stack([x[0] * x[1], x[2] ** 2]), 0.5), np.array([0.8, 0.7]))


def many():
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    ab.observe("y", dist.Normal(x.sum() + x[0] ** 2, 1.0), 2.0)


def whole_numbers():
    k = ab.sample("k", dist.Poisson(3.0))
    n = ab.sample("n", dist.Binomial(6, 0.4))
    ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)) + k - n, 1.0), 2.0)


def exact_particles(tempering: Tempering, beta: float, n: int, rng: np.random.Generator) -> Particles:
    """Draws of prior times likelihood^β, by rejection of prior draws; no draw has a likelihood above all of these."""
    drawn = tempering.at(tempering.target.prior(20 * n, rng).points)
    kept = np.log(rng.uniform(size=len(drawn))) < beta * (drawn.log_ratio - drawn.log_ratio.max())
    assert kept.sum() >= n
    return drawn.take(np.flatnonzero(kept)[:n])


def statistics(particles: Particles) -> np.ndarray:
    """Of each particle: the coordinates, their products, log r, and whether the coordinates are small."""
    points = particles.points
    first, second = np.triu_indices(points.shape[1])
    columns = [points, points[:, first] * points[:, second], particles.log_ratio[:, None], np.abs(points) < 0.5]
    return np.concatenate(columns, axis=1)


def scores_after_moves(program: Any, beta: float, tuning: Tuning, n: int = 20_000, moves: int = 10) -> np.ndarray:
    """By how many standard errors each statistic of exact draws changes when they are moved."""
    path = min(ab.find_paths(program, executions=50).paths, key=lambda path: path.dim)
    tempering, rng = Tempering(PathTarget(path)), np.random.default_rng(1)
    start = exact_particles(tempering, beta, n + 2_000, rng)
    reference, start = start.points[n:], start.take(np.arange(n))
    shape = Shape.of(reference, np.arange(2_000), np.arange(n) % 2, path.discrete)
    states, _, complete = Mutation(tempering, beta, shape).run(start, tuning, moves, rng)
    assert complete
    end = states.take(np.arange(len(states) - n, len(states)))
    assert (end.log_start > -np.inf).all()
    assert (end.points != start.points).any(axis=1).mean() > 0.5
    changes = statistics(end) - statistics(start)
    return changes.mean(axis=0) / (changes.std(axis=0) / np.sqrt(n))


@pytest.mark.parametrize(
    ("program", "beta", "tuning"),
    [
        (correlated, 0.6, Tuning(False)),
        (separate, 1.0, Tuning(False)),
        (mirrored, 1.0, Tuning(False, mirrored=1.0)),
        (correlated, 0.6, Tuning(True)),
        (many, 1.0, Tuning(True)),
        (whole_numbers, 0.7, Tuning(False)),
    ],
)
@pytest.mark.one_in(4)
def test_moves_leave_exact_draws_exact(program, beta, tuning):
    assert np.abs(scores_after_moves(program, beta, tuning)).max() < 4


def test_gradient_of_a_proposal():
    rng = np.random.default_rng(0)
    mixture = StudentMixture(
        np.array([[0.0, 1.0], [2.0, -1.0]]),
        np.array([[[1.0, 0.0], [0.5, 0.7]], [[0.4, 0.0], [-0.2, 1.3]]]),
        np.array([0.3, 0.7]),
        np.array([4.0, np.inf]),
    )
    proposal = fitted(rng.normal(size=(9, 2)), np.zeros(2, bool), mixture)
    points, h = rng.normal(size=(5, 2)), 1e-6
    shifts = h * np.eye(2)
    expected = [(proposal.log_density(points + s) - proposal.log_density(points - s)) / (2 * h) for s in shifts]
    np.testing.assert_allclose(proposal.gradient(points), np.stack(expected, axis=1), rtol=1e-6, atol=1e-7)
    path, _ = normals_case(2)
    tempering = Tempering(PathTarget(path), proposal)
    _, gradient = tempering.differentiate(points, 0.3)
    expected = [
        (tempering.at(points + s).log_density(0.3) - tempering.at(points - s).log_density(0.3)) / (2 * h)
        for s in shifts
    ]
    np.testing.assert_allclose(gradient, np.stack(expected, axis=1), rtol=1e-5, atol=1e-6)


def test_proposal_of_whole_numbers_is_normalised():
    rng = np.random.default_rng(0)
    proposal = fitted(rng.poisson(5.0, size=(50, 1)).astype(float), np.ones(1, bool))
    k = np.arange(-3_000, 3_000.0)[:, None]
    assert np.exp(proposal.log_density(k)).sum() == pytest.approx(1, abs=1e-6)
    draws = proposal.draw(1_000, rng)
    assert (draws == np.rint(draws)).all()


def test_more_budget_makes_more_and_larger_sweeps():
    path, exact = normals_case(1)
    target, rng, method = PathTarget(path), np.random.default_rng(0), SMC(chains=32)
    first = method.advance(target, method.start(target, rng), rng, 3_000)
    kept = pickle.dumps(first)
    later = method.advance(target, pickle.loads(kept), rng, 30_000)
    assert pickle.dumps(first) == kept
    assert len(later.sweeps) > len(first.sweeps)
    assert later.sweeps[-1].size > 32
    estimate = method.estimate(target, later)
    assert estimate.log_evidence_sd < method.estimate(target, first).log_evidence_sd
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd


def test_many_draws_from_the_start_make_a_long_first_step():
    """It leaves so many effective draws for each chain, and the same evidence."""
    path, exact = normals_case(4)
    target, steps = PathTarget(path), {}
    for effective in (4.0, 1e9):
        method, rng = SMC(chains=32, draws=256, effective_starts=effective), np.random.default_rng(0)
        state = method.advance(target, method.start(target, rng), rng, 100_000)
        steps[effective] = state.ladder
        estimate = method.estimate(target, state)
        assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 0.5
    assert steps[4.0][0] > 2 * steps[1e9][0]
    assert len(steps[4.0]) < len(steps[1e9])


def test_the_highest_draws_from_the_start_are_kept():
    path, _ = normals_case(2)
    _, state = run(path, 0, 20_000)
    y = np.array([0.0, 1.5])
    for sweep in state.sweeps:
        distance = np.linalg.norm(sweep.highest - y, axis=1)
        assert (np.diff(distance) >= 0).all()  # the highest first
        # The nearest of so many draws of the prior, which has a density of 0.05 there.
        assert distance[0] < 5 * np.sqrt(1 / (np.pi * 0.05 * sweep.draws))


def test_chains_that_stay_in_their_modes_are_not_moved_in_vain():
    def apart():
        x = ab.sample("x", dist.Uniform(-1.0, 1.0))
        ab.factor("modes", jnp.logaddexp(-0.5 * ((x - 0.5) / 1e-3) ** 2, -3.0 - 0.5 * ((x + 0.5) / 1e-3) ** 2))

    target = PathTarget(ab.find_paths(apart, executions=5).paths[0])
    rng, places = np.random.default_rng(0), np.log(np.array([[3.0], [1 / 3]]))
    points = np.repeat(places, 100, axis=0) + 1e-3 * rng.standard_normal((200, 1))
    tempering, founders = Tempering(target), np.arange(200)
    shape = Shape.of(points, founders, founders % 2, target.discrete)
    states, _, complete = Mutation(tempering, 1.0, shape).run(tempering.at(points), Tuning(False), 1_000, rng)
    assert complete
    assert len(states) // 200 < 100


def test_evaluations_are_about_as_many_as_given():
    path, _ = normals_case(2)
    estimate, _ = run(path, 0, 40_000)
    assert 20_000 < estimate.evaluations < 60_000


def test_no_data_is_never_reported_without_error():
    def program():
        ab.sample("x", dist.Normal(0.0, 1.0))

    estimate, _ = run(ab.find_paths(program, executions=5).paths[0], 0, 2_000)
    assert estimate.log_evidence == pytest.approx(0)
    assert 0 < estimate.log_evidence_sd < 0.05


def test_no_point_known_of_a_rarely_met_guard():
    path, exact, _ = corner_case()
    target, rng, method = PathTarget(path), np.random.default_rng(0), SMC(chains=16)
    estimate = method.estimate(target, method.advance(target, method.start(target, rng), rng, 10_000))
    assert abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd < 1.0
    assert any("fitted" in remark for remark in estimate.remarks)


def test_likelihood_of_zero_everywhere():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Uniform(x, x + 1.0), 1e6)

    estimate, _ = run(ab.find_paths(program, executions=5).paths[0], 0, 2_000)
    assert estimate.log_evidence == -np.inf
    assert len(estimate.points) == 0


@pytest.mark.parametrize("settings", [{"chains": 1}, {"share": 0.0}, {"share": 1.0}, {"steps": 0}])
def test_bad_settings(settings):
    with pytest.raises(ValueError, match=f"{next(iter(settings))} must be"):
        SMC(**settings)


def test_proposal_of_another_dimension():
    path, _ = normals_case(2)
    wrong = StudentMixture(np.zeros((1, 3)), np.eye(3)[None], np.ones(1), np.array([5.0]))
    with pytest.raises(ValueError, match="proposal must have 2 dimensions"):
        run(path, 0, 100, proposal=wrong)


def test_a_mask_on_a_site_that_decides():
    """The mask takes the probability of the model out of the density: both paths have the same mass."""

    def program():
        with handlers.mask(mask=False):
            more = ab.sample("more", dist.Bernoulli(0.1))
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if more:
            ab.sample("unused", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x, 1.0), 1.0)

    posterior = ab.infer(program, engine=ab.DCC(strategy=SMC()), budget=40_000)
    mean, sd = posterior.expectation(lambda draw: float(draw["more"]))
    assert abs(mean - 0.5) < 4 * sd < 0.2


# Families -------------------------------------------------------------------------------------------------------------


def test_draws_of_one_family_are_worth_one():
    points = np.random.default_rng(0).normal(size=(512, 3))
    assert ess_by_family(points, np.zeros(512, int)) == pytest.approx(1.0)
    nearly = np.zeros(512, int)
    nearly[:2] = 1
    assert ess_by_family(points, nearly) < 1.1


@pytest.mark.parametrize("families", [2, 4, 16, 256])
def test_the_draws_of_a_family_count_as_one_if_they_are_the_same(families):
    centres = np.random.default_rng(1).normal(size=(families, 2))
    founders = np.repeat(np.arange(families), 8)
    assert 0.4 * families < ess_by_family(centres[founders], founders) < 1.1 * families


def test_independent_draws_of_many_families_are_worth_nearly_all_of_them():
    points = np.random.default_rng(2).normal(size=(2_000, 1))
    assert ess_by_family(points, np.arange(2_000) // 4) > 1_500
    assert ess_by_family(points, np.arange(2_000) // 500) < 10, "four families do not show it"
