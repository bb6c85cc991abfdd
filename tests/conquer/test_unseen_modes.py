"""The mass on modes that no climb has met, by how many climbs have ended at each of those that were met."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import anabranch as ab
from anabranch.conquer import Auto, ModeMixture, PathTarget, solve
from anabranch.conquer.ascent import Modes
from anabranch.conquer.mode_search import ModeSearch, on_hills
from anabranch.conquer.unseen_modes import Ends, Explained, ends_at, unseen_share


def explained(component, missed, alone, largest=0.0):
    high, low = largest + 9.0, largest - 9.0
    return Explained(np.where(missed, high, low), np.where(missed | alone, high, low), np.array(component), largest)


def ends_of(points, tops=None):
    points = np.array(points, float)[:, None]
    tops = np.zeros(len(points)) if tops is None else np.array(tops)
    return Ends(points, tops, np.zeros(len(points)), tops)


@pytest.mark.parametrize(
    ("component", "missed", "alone", "expected"),
    [
        ([0, 0, 0, 1, 1, 1], 0, 1, 0.0),  # two modes, each of which three climbs have met
        ([0, 0, 1, 1, 2, 2], 0, 1, 0.0),
        ([0, 1, 2, 3], 0, 1, 6 / 4),  # four modes with one climb each: 4·3/2 others, with a quarter of the mass each
        ([0, 0, 1, 2], 0, 1, 0.5 / 3),  # 2·1/(2·2) others
        ([0, 0, 0, 1], 0, 1, 0.0),  # a single mode that one climb has met says nothing of others
        ([0, 1, 2, 3], 0, 0, 0.0),  # each of the components does for another one: a ridge
    ],
)
def test_modes_met_once_and_twice_say_how_many_were_not(component, missed, alone, expected):
    at = np.array(component)
    says = explained(at, np.full(len(at), bool(missed)), np.full(len(at), bool(alone)))
    shares = np.full(at.max() + 1, 1 / (at.max() + 1))
    assert unseen_share(ends_of(at), says, shares, np.ones(1)) == pytest.approx(expected)


def test_modes_that_were_met_and_have_no_component_count_by_their_heights():
    missed = np.array([False, False, True, True, True])
    says = explained([0, 0, 0, 0, 0], missed, ~missed)
    ends = ends_of([0, 0, 1, 1, 5], tops=[0.0, -0.1, 0.0, -3.0, np.log(0.5)])
    # One mode has all of the mass so far; another one is as high, and was met twice; a third has half of its height.
    assert unseen_share(ends, says, np.ones(1), np.ones(1)) == pytest.approx(1.5)


def test_an_end_below_the_top_counts_with_the_height_of_its_mode():
    def normal():
        x = ab.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        ab.observe("y", dist.Normal(x, 0.1), jnp.array([0.5, 0.5]))

    target = PathTarget(ab.find_paths(normal).paths[0])
    top, precision = np.full((1, 2), 0.5 / 1.01), 101.0 * np.eye(2)[None]
    heights = target.evaluate(np.concatenate([top, top + 0.2])).log_density
    ends = ends_at(target, top + 0.2, Modes(top, heights[:1], precision))
    assert ends.log_density[0] == pytest.approx(heights[1])
    assert heights[1] < heights[0] - 4
    assert ends.tops[0] == pytest.approx(heights[0])


def test_points_are_on_the_hill_whose_curvature_explains_their_height():
    modes = Modes(np.array([[0.0, 0.0]]), np.zeros(1), np.eye(2)[None])
    points = np.array([[1.0, 1.0], [3.0, 0.0], [3.0, 0.0], [9.0, 0.0]])
    heights = np.array([-1.0, -4.5, -0.1, -40.5])  # the third is as high as the top: another hill; the last is far away
    assert on_hills(points, heights, modes).tolist() == [True, True, False, False]


def of_hills(d, masses):
    """Normal hills about ±1 in every coordinate; the evidence is the sum of the masses."""

    def program():
        x = ab.sample("x", dist.Normal(0.0, 3.0).expand([d]).to_event(1))
        hills = [dist.Normal(centre, 0.5).log_prob(x).sum() for centre in (1.0, -1.0)]
        height = jnp.logaddexp(hills[0] + jnp.log(masses[0]), hills[1] + jnp.log(masses[1]))
        ab.factor("data", height - dist.Normal(0.0, 3.0).log_prob(x).sum())

    return ab.find_paths(program).paths[0]


def test_newtons_method_goes_to_the_lower_hill_as_well():
    """Most ends lie on the higher of two hills, not at its top yet: all of the first would go there."""
    target, rng = PathTarget(of_hills(20, (0.7, 0.3))), np.random.default_rng(0)
    starts = target.prior(200, rng).points
    before = target.evaluations
    found = ModeSearch(200, 40, 15.0, 40).run(target, starts, np.full(20, 3.0), 10_000)
    signs = np.sign(found.modes.points.mean(axis=1))
    assert set(signs) == {-1.0, 1.0}
    assert len(found.modes) <= 12
    assert target.evaluations - before < 9_000


@pytest.mark.parametrize("seed", range(3))
def test_hills_in_many_dimensions_are_all_found_with_few_evaluations(seed):
    estimate = solve(Auto(), PathTarget(of_hills(20, (0.7, 0.3))), 20_000, seed=seed)
    assert abs(estimate.log_evidence) < 4 * estimate.log_evidence_sd < 0.6


def combs(d):
    """Seven or so modes in each of d coordinates, of very different masses, and the log evidence."""

    def program():
        x = ab.sample("x", dist.Normal(0.3, 1.0).expand([d]).to_event(1))
        ab.factor("comb", 6 * jnp.sum(jnp.cos(5 * x)))

    grid = np.linspace(-9.0, 9.0, 100_001)
    terms = -0.5 * (grid - 0.3) ** 2 - 0.5 * np.log(2 * np.pi) + 6 * np.cos(5 * grid)
    return program, d * float(logsumexp(terms) + np.log(grid[1] - grid[0]))


def signs(d):
    """2^d modes with the same mass, and the log evidence."""

    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
        ab.observe("y", dist.Normal(x**2, 0.05), jnp.ones(d))

    grid = np.linspace(0.0, 3.0, 100_001)
    terms = -0.5 * grid**2 - 0.5 * ((grid**2 - 1) / 0.05) ** 2 - np.log(2 * np.pi * 0.05)
    return program, d * float(np.log(2) + logsumexp(terms) + np.log(grid[1]))


@pytest.mark.parametrize("budget", [5_000, 20_000])
@pytest.mark.parametrize(("make", "d"), [(signs, 7), (signs, 10), (combs, 6)])
def test_the_error_has_the_mass_of_modes_that_were_not_seen(make, d, budget):
    program, exact = make(d)
    posterior = ab.infer(program, seed=0, budget=budget)
    error = posterior.log_evidence - exact
    assert abs(error) < 4 * posterior.log_evidence_sd
    assert posterior.log_evidence_sd > 0.3
    assert posterior.warnings


def test_a_single_mode_has_no_unseen_mass():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        ab.observe("y", dist.StudentT(3.0, x, 0.2), jnp.array([0.5, -1.0, 2.0]))

    strategy, target = ModeMixture(), PathTarget(ab.find_paths(program).paths[0])
    state = strategy.advance(target, strategy.start(target, None), np.random.default_rng(0), 5_000)
    assert len(state.ends.points) > 20
    assert strategy.log_unseen(state) == 0.0
