"""The scan of the prior for narrow modes."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
from anabranch.conquer import Auto, PathTarget
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.prior_scan import scanned, summits
from anabranch.conquer.student import StudentMixture

pytestmark = pytest.mark.one_in(3)


def narrow_and_wide(dim):
    """Modes of equal mass, one five times narrower; climbs from one draw in 3,000 lead to it in six dimensions."""
    x = ab.sample("x", dist.Normal(0.0, 3.0).expand([dim]).to_event(1))
    heights = [dist.Normal(mean, sd).log_prob(x).sum() for mean, sd in ((2.0, 0.5), (-2.0, 0.1))]
    masses = [dim * norm.logpdf(mean, 0.0, np.hypot(3.0, sd)) for mean, sd in ((2.0, 0.5), (-2.0, 0.1))]
    ab.factor("data", jnp.logaddexp(heights[0] - masses[0], heights[1] - masses[1]) - np.log(2.0))


def target_of(program, *args):
    return PathTarget(ab.find_paths(program, *args).paths[0])


def round_component(dim, mean, sd):
    return StudentMixture(np.full((1, dim), mean), sd * np.eye(dim)[None], np.ones(1), np.array([5.0]))


def wide_mode_alone(dim):
    return ModeMixtureState(round_component(dim, 2.0, 0.5), round_component(dim, 0.0, 3.0), adapting=False, rounds=1)


def test_summits_are_higher_than_all_points_near_them():
    """Against all distances: the ten nearest of each point, by brute force."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(800, 4)) * [1.0, 10.0, 0.1, 3.0]
    heights = np.sin(2 * points[:, 0]) + np.cos(points[:, 1]) - points[:, 3] ** 2
    scaled = points / points.std(axis=0)
    distances = ((scaled[:, None] - scaled) ** 2).sum(axis=-1)
    nearest = np.argsort(distances, axis=1)[:, :11]
    brute = np.flatnonzero(heights[nearest].max(axis=1) <= heights)
    found = summits(points, heights)
    assert set(found) == set(brute)
    assert 5 < len(brute) < 200
    assert (np.diff(heights[found]) <= 0).all()


@pytest.mark.parametrize("heights", [np.full(50, -np.inf), np.r_[0.0, np.full(49, -np.inf)], np.full(50, np.nan)])
def test_points_without_a_height_are_no_summits(heights):
    points = np.random.default_rng(0).normal(size=(50, 2))
    assert summits(points, heights).tolist() == [0] * int(np.isfinite(heights).sum())


def test_a_constant_coordinate_does_not_matter():
    points = np.c_[np.linspace(0.0, 1.0, 100), np.zeros(100)]
    assert summits(points, -((points[:, 0] - 0.5) ** 2)).size in (1, 2)


@pytest.mark.parametrize("seed", range(3))
def test_a_scan_finds_a_mode_that_climbs_from_few_draws_miss(seed):
    dim, modes = 6, ModeMixture()
    target, rng = target_of(narrow_and_wide, dim), np.random.default_rng(seed)
    state = modes.drawn(target, wide_mode_alone(dim), rng, 4_000)
    assert modes.estimate(target, state).log_evidence == pytest.approx(np.log(0.5), abs=0.1)
    before = target.evaluations
    found, draws = scanned(target, modes, state, rng, 50_000)
    assert draws == 37_500
    assert target.evaluations - before < 1.1 * 50_000
    estimate = modes.estimate(target, modes.drawn(target, found, rng, 8_000))
    assert abs(estimate.log_evidence) < 4 * estimate.log_evidence_sd < 0.2


def test_a_scan_that_finds_nothing_leaves_the_state():
    def normal():
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)

    target, rng, modes = target_of(normal), np.random.default_rng(0), ModeMixture()
    state = modes.advance(target, modes.start(target, rng), rng, 4_000)
    assert len(scanned(target, modes, state, rng, 4_000)[0].parts[0]) == len(state.parts[0]) == 1


def test_there_is_no_scan_in_many_dimensions():
    target, rng, modes = target_of(narrow_and_wide, 11), np.random.default_rng(0), ModeMixture()
    before = target.evaluations
    assert scanned(target, modes, wide_mode_alone(11), rng, 50_000)[1] == 0
    assert target.evaluations - before < 2_000  # whether the density has jumps


@pytest.mark.parametrize("seed", range(3))
def test_auto_finds_a_narrow_mode(seed):
    target, rng, auto = target_of(narrow_and_wide, 6), np.random.default_rng(seed), Auto()
    state = auto.start(target, rng)
    for evaluations in (10_000, 80_000, 80_000, 20_000):
        state = auto.advance(target, state, rng, evaluations)
    estimate = auto.estimate(target, state)
    assert estimate.is_confirmed
    assert abs(estimate.log_evidence) < 4 * estimate.log_evidence_sd < 0.2


@pytest.mark.parametrize("n", [0, 1, 2, 5, 40])
def test_where_few_draws_have_mass_all_of_them_may_be_summits(n):
    points = np.random.default_rng(0).normal(size=(100, 2))
    points[:n, 1] = 4.0  # no scale to compare them by
    heights = np.where(np.arange(100) < n, -(points[:, 0] ** 2), -np.inf)
    found = summits(points, heights)
    assert (found < n).all()
    assert len(found) >= min(n, 1)
    assert list(heights[found]) == sorted(heights[found], reverse=True)


def thin_spike():
    """Nine tenths of the mass in a ball of radius 0.05, on a constant likelihood."""
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    height = dist.Normal(1.2, 0.02).log_prob(x).sum() - 3 * norm.logpdf(1.2, 0.0, np.hypot(1.0, 0.02))
    ab.factor("data", jnp.logaddexp(height + np.log(0.9), np.log(0.1)))


@pytest.mark.parametrize("seed", range(3))
def test_a_scan_finds_a_spike_by_the_last_digits_of_the_likelihood(seed):
    modes, target, rng = ModeMixture(), target_of(thin_spike), np.random.default_rng(seed)
    start = ModeMixtureState(round_component(3, 0.0, 1.0), round_component(3, 0.0, 1.0), adapting=False, rounds=1)
    state = modes.drawn(target, start, rng, 4_000)
    found, _ = scanned(target, modes, state, rng, 25_000)
    estimate = modes.estimate(target, modes.drawn(target, found, rng, 8_000))
    assert abs(estimate.log_evidence) < 4 * estimate.log_evidence_sd < 0.2
