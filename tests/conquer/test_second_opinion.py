"""The second opinion: what a population says of a proposal, whom `Auto` believes, and where weights fail."""

from dataclasses import fields, replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.stats import chi2, norm

import anabranch as ab
from anabranch.conquer import Auto, Estimate, ModeMixture, PathTarget
from anabranch.conquer.auto import AutoState
from anabranch.conquer.mode_mixture import ModeMixtureState
from anabranch.conquer.second_opinion import (
    Opinion,
    answered,
    consult,
    is_below,
    is_enough,
    may_be_fitted,
    reconciled,
    scouted,
)
from anabranch.conquer.smc import SMC, SMCState, Sweep
from anabranch.conquer.student import StudentMixture
from helpers import disguised

LIGHT, HEAVY = np.array([12.0, 12.0]), np.array([-12.0, -9.0])
MASS = 0.7
"""Of the heavy one of two modes."""


def two_modes():
    """Modes with a width of 0.5 under a wide prior; the evidence is one."""
    x = ab.sample("x", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    heights = [dist.Normal(mean, 0.5).log_prob(x).sum() for mean in (HEAVY, LIGHT)]
    joint = jnp.logaddexp(jnp.log(MASS) + heights[0], jnp.log(1 - MASS) + heights[1])
    ab.factor("data", joint - dist.Normal(0.0, 10.0).log_prob(x).sum())


def single(mean, scale):
    return StudentMixture(np.array([mean]), scale * np.eye(len(mean))[None], np.ones(1), np.array([5.0]))


def the_target(program, *args):
    return PathTarget(ab.find_paths(program, *args, executions=20).paths[0])


def solved(target, state, evaluations, visits, seed=0):
    auto, rng = Auto(), np.random.default_rng(seed)
    for _ in range(visits):
        state = auto.advance(target, state, rng, evaluations)
    return auto.estimate(target, state), state


def close(estimate, exact):
    return abs(estimate.log_evidence - exact) < 4 * estimate.log_evidence_sd


# A mode that the proposal misses --------------------------------------------------------------------------------------

BLIND = ModeMixtureState(single(LIGHT, 0.5), single(LIGHT, 0.8), adapting=False, rounds=1)
"""A proposal on the light mode, with a defensive component that does not reach the other."""


@pytest.fixture(scope="module")
def asked():
    """The target, draws of the blind proposal, and a population that has found both modes."""
    target, rng = the_target(two_modes), np.random.default_rng(1)
    drawn = ModeMixture().drawn(target, BLIND, rng, 4_000)
    population = SMC().advance(target, SMC().start(target, rng), rng, 120_000)
    return target, drawn, population


def test_a_proposal_that_misses_a_mode_does_not_see_it(asked):
    target, drawn, _ = asked
    estimate = ModeMixture().estimate(target, drawn)
    assert estimate.log_evidence == pytest.approx(np.log(1 - MASS), abs=0.05)
    assert estimate.is_trusted
    assert estimate.log_evidence_sd < 0.02


def test_particles_object_to_a_proposal_that_misses_a_mode(asked):
    target, drawn, population = asked
    opinion = consult(target, ModeMixture(), drawn, population, np.random.default_rng(2))
    assert not opinion.is_content
    assert opinion.missed == pytest.approx(MASS, abs=0.1)
    at_heavy = np.linalg.norm(opinion.points - HEAVY, axis=1) < 5
    np.testing.assert_array_equal(opinion.objects, at_heavy)
    assert opinion.sweeps == len(population.sweeps)


def test_the_ratio_is_that_of_the_weights(asked):
    """At draws of the proposal the ratio that particles would have is the weight of the draw."""
    target, drawn, _ = asked
    ratio = ModeMixture().log_ratio(target, drawn, drawn.points[:100])
    np.testing.assert_allclose(ratio, drawn.log_weights[:100], rtol=1e-9)


def exchangeable():
    means = ab.sample("means", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    y = np.array([-3.1, -2.8, -3.3, 2.9, 3.2, 3.0])
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(2) / 2), dist.Normal(means, 0.5)), y)


def test_the_ratio_counts_the_copies_of_exchangeable_components_and_the_prior():
    target, rng, modes = the_target(exchangeable), np.random.default_rng(0), ModeMixture()
    state = modes.advance(target, modes.start(target, rng), rng, 10_000)
    assert state.symmetries
    assert state.has_prior
    met = np.flatnonzero(state.log_weights > -np.inf)[:200]
    ratio = modes.log_ratio(target, state, state.points[met])
    np.testing.assert_allclose(ratio, state.log_weights[met], rtol=1e-9, atol=1e-9)
    population = SMC().advance(target, SMC().start(target, rng), rng, 40_000)
    assert consult(target, modes, state, population, rng).is_content


def test_an_answer_adds_the_mode_and_silences_the_particles(asked):
    target, drawn, population = asked
    rng, modes = np.random.default_rng(2), ModeMixture()
    opinion = consult(target, modes, drawn, population, rng)
    wider = answered(target, modes, drawn, opinion, rng, 20_000)
    means = wider.proposal.means
    assert np.linalg.norm(means - HEAVY, axis=1).min() < 0.2
    assert np.linalg.norm(means - LIGHT, axis=1).min() < 0.2
    assert not wider.pooled  # draws of another proposal are no longer those of the estimate
    mended = modes.drawn(target, wider, rng, 4_000)
    again = consult(target, modes, mended, population, rng, rounds=1)
    assert (again.is_content, again.rounds) == (True, 1)
    estimate = modes.estimate(target, mended)
    assert close(estimate, 0.0)
    assert estimate.log_evidence_sd < 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_auto_finds_the_mode_that_its_proposal_missed(seed):
    target = the_target(two_modes)
    drawn = ModeMixture().drawn(target, BLIND, np.random.default_rng(seed), 2_000)
    estimate, _ = solved(target, AutoState("modes", drawn, attempts=2), 30_000, 5, seed)
    assert estimate.is_confirmed
    assert close(estimate, 0.0)
    assert estimate.log_evidence_sd < 0.05
    assert estimate.correction == pytest.approx(-np.log(1 - MASS), abs=0.1)
    heavy = np.exp(estimate.log_weights[np.linalg.norm(estimate.points - HEAVY, axis=1) < 5]).sum()
    assert heavy == pytest.approx(MASS, abs=0.05)


# Programs on which importance weights alone were wrong, and sure of themselves ----------------------------------------


def shell(dim, radius):
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([dim]).to_event(1))
    ab.observe("y", dist.Normal((x**2).sum(), 0.05), radius**2)


def test_a_thin_shell():
    exact = np.log(quad(lambda s: chi2(5).pdf(s) * norm(s, 0.05).pdf(4.0), 3.6, 4.4, epsabs=1e-12)[0])
    target = the_target(shell, 5, 2.0)
    estimate, state = solved(target, Auto().start(target, np.random.default_rng(0)), 40_000, 5)
    assert estimate.is_confirmed
    assert close(estimate, exact)
    assert estimate.log_evidence_sd < 0.1
    assert estimate.method in ("ModeMixture", "Bridge", "SMC")
    by_weights = ModeMixture().estimate(target, state.state)
    # The weights are believed only where they are trusted and no particle objects.
    assert (estimate.method == "ModeMixture") == (by_weights.is_trusted and state.opinion.is_content)


def signs():
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([8]).to_event(1))
    ab.observe("y", dist.Normal(x**2, 0.05), np.ones(8))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_eight_signs(seed):
    """There are 256 modes, of which 40 have a component of the first proposal; with these alone log Z is -1.5 low."""
    one = quad(lambda x: norm.pdf(x) * norm.pdf(1.0, x**2, 0.05), 0.5, 1.5, epsabs=1e-12)[0]
    exact = 8 * np.log(2 * one)
    posterior = ab.infer(signs, budget=600_000, seed=seed)
    assert close(posterior, exact)
    assert posterior.log_evidence_sd < 0.4
    assert abs(posterior.log_evidence - exact) < 0.5


def heavy_tails():
    ab.sample("x", dist.Cauchy(0.0, 1.0).expand([5]).to_event(1))
    ab.factor("nothing", 0.0)


def test_heavy_tails():
    posterior = ab.infer(heavy_tails, budget=200_000, seed=0)
    assert close(posterior, 0.0)
    assert posterior.log_evidence_sd < 0.02


# Whom to believe ------------------------------------------------------------------------------------------------------


def said(log_evidence, sd, ess=1_000.0, k=0.3, method="ModeMixture"):
    nothing = Estimate.nothing(1, 5, method)
    return replace(nothing, log_evidence=log_evidence, log_evidence_sd=sd, ess=ess, pareto_k=k)


def tempered(log_evidence, sd):
    return said(log_evidence, sd, method="SMC")


def opinion_of(objecting, log_evidence=-3.0, n=2_000):
    """Exact draws of a normal density with this evidence and of a wider normal proposal; a share objects."""
    rng = np.random.default_rng(0)
    points, proposed = rng.normal(size=n), rng.normal(scale=1.5, size=n)

    def log_ratio(x):
        return log_evidence + norm.logpdf(x) - norm.logpdf(x, scale=1.5)

    objects = np.arange(n) < objecting * n
    families = np.arange(n)
    return Opinion(
        3, points[:, None], log_ratio(points), families, objects, log_ratio(proposed), components=1, ess=float(n)
    )


CONTENT, OBJECTS = opinion_of(0.0), opinion_of(0.4)


def test_no_more_than_one_effective_particle_may_object():
    assert CONTENT.is_content
    assert (CONTENT.missed, OBJECTS.missed) == (0.0, 0.4)
    assert not OBJECTS.is_content
    assert not replace(OBJECTS, ess=2.5).is_content, "however few there are"
    few = opinion_of(0.01)
    assert replace(few, ess=2.5).is_content
    assert replace(few, ess=100.0).is_content
    assert not replace(few, ess=101.0).is_content


def test_weights_are_believed_where_all_are_content():
    by_weights = said(-3.0, 0.01)
    estimate = reconciled(by_weights, tempered(-3.1, 0.2), CONTENT)
    same = {each.name for each in fields(estimate) if getattr(estimate, each.name) is getattr(by_weights, each.name)}
    assert {each.name for each in fields(estimate)} - same == {"log_evidence_sd"}
    assert estimate.log_evidence_sd == pytest.approx(np.hypot(0.01, CONTENT.unseen))
    assert CONTENT.unseen < 0.001


def mass_unseen(looks, doubt):
    """The root mean square of the missed mass by quadrature: it is uniform with this probability, else none."""
    integrals = [quad(lambda m, k=k: m**k * (1 - m) ** looks, 0.0, 1.0, epsabs=1e-14)[0] for k in (0, 2)]
    return np.sqrt(doubt * integrals[1] / (1 - doubt + doubt * integrals[0]))


@pytest.mark.parametrize("looks", [0, 3, 20, 150])
def test_the_mass_that_nobody_has_seen(looks):
    """Without climbs, it is known from the particles alone; with them, it is seldom there, and climbs count as well."""
    without = replace(CONTENT, ess=float(looks), scouts=None)
    assert without.unseen == pytest.approx(mass_unseen(looks, 1.0))
    assert replace(without, scouts=0).unseen == pytest.approx(mass_unseen(looks, 0.2))
    assert replace(without, scouts=30).unseen == pytest.approx(mass_unseen(looks + 30, 0.2))


def test_what_nobody_has_seen_is_in_the_error():
    opinion = replace(CONTENT, ess=20.0)
    estimate = reconciled(said(-3.0, 0.01), tempered(-3.1, 0.2), opinion)
    assert estimate.method == "ModeMixture"
    assert estimate.log_evidence_sd == pytest.approx(np.hypot(0.01, opinion.unseen))
    assert opinion.unseen > 0.05


# A population that has lost the mass ----------------------------------------------------------------------------------


def spike():
    """Nearly all mass is in a spike that one prior draw in a million meets; beside it is a wide mode."""
    x = ab.sample("x", dist.Uniform(0.0, 1.0).expand([2]).to_event(1))
    wide = -0.5 * ((x - 0.3) ** 2).sum() / 0.1**2
    ab.factor("data", jnp.logaddexp(30.0 - 0.5 * ((x - 0.8) ** 2).sum() / 5e-4**2, wide))


def test_particles_far_below_the_weights_have_no_say():
    """They object to a proposal that does not cover where they are, which has a share of 1e-8 of the mass."""
    target, rng, modes = the_target(spike), np.random.default_rng(0), ModeMixture()
    top = np.log(0.8 / 0.2) * np.ones(2)
    found = ModeMixtureState(single(top, 5e-4 / 0.16), single(top, 1e-2), adapting=False, rounds=1)
    drawn = modes.drawn(target, found, rng, 4_000)
    small = SMC(chains=32, draws=4)
    population = small.advance(target, small.start(target, rng), rng, 10_000)
    exact = 30 + np.log(2 * np.pi * 5e-4**2)
    assert max(sweep.log_evidence for sweep in population.sweeps) < exact - 10
    opinion = consult(target, modes, drawn, population, rng, scouts=3)
    assert opinion.is_lost
    assert opinion.is_content
    by_weights = modes.estimate(target, drawn)
    estimate = reconciled(by_weights, SMC().estimate(target, population), opinion)
    assert (estimate.method, estimate.is_confirmed) == ("ModeMixture", True)
    assert estimate.log_evidence == by_weights.log_evidence == pytest.approx(exact, abs=0.05)
    assert estimate.log_evidence_sd == pytest.approx(np.hypot(by_weights.log_evidence_sd, mass_unseen(3, 0.2)))


def test_particles_do_not_lose_their_say_to_weights_that_cannot_be_believed(asked):
    target, drawn, population = asked
    few = replace(drawn, log_weights=np.where(np.arange(len(drawn.points)) < 5, 50.0, -np.inf))
    assert not consult(target, ModeMixture(), few, population, np.random.default_rng(0)).is_lost


def test_weights_of_very_many_components_are_believed_with_a_larger_error():
    """So many modes were found one by one that the first search has certainly missed some."""
    few = replace(CONTENT, scouts=100)
    many = replace(few, components=200)
    assert many.unseen > few.unseen
    estimate = reconciled(said(-3.0, 0.01), tempered(-3.1, 0.2), many)
    assert estimate.method == "ModeMixture"
    assert estimate.log_evidence_sd == pytest.approx(np.hypot(0.01, many.unseen))


def test_the_bridge_is_believed_where_particles_object():
    estimate = reconciled(said(-5.0, 0.01), tempered(-3.1, 0.2), OBJECTS)
    assert estimate.method == "Bridge"
    assert close(estimate, -3.0)
    assert estimate.log_evidence_sd < 0.05


def test_the_bridge_is_believed_where_the_weights_have_poor_diagnostics():
    for poor in (said(-3.5, 0.01, ess=20), said(-3.5, 0.01, ess=200, k=0.9)):
        assert reconciled(poor, tempered(-3.0, 0.2), CONTENT).method == "Bridge"


@pytest.mark.parametrize(("k", "factor"), [(0.3, 1.0), (0.5, 1.0), (0.6, 5_000**0.05), (0.85, 4.0)])
def test_many_weights_with_a_heavy_tail_are_believed_with_a_larger_error(k, factor):
    """They have no variance from k = 1/2 on."""
    estimate = reconciled(said(-3.0, 0.01, ess=5_000.0, k=k), tempered(-3.0, 0.2), CONTENT)
    assert estimate.method == "ModeMixture"
    assert estimate.log_evidence_sd == pytest.approx(np.hypot(0.01 * factor, CONTENT.unseen))
    without_mean = said(-3.0, 0.01, ess=5_000.0, k=1.05)
    assert reconciled(without_mean, tempered(-3.0, 0.2), CONTENT).method == "Bridge"


def test_tempering_is_believed_where_the_bridge_has_a_larger_error():
    by_tempering = tempered(-3.0, 1e-4)
    assert reconciled(said(-5.0, 0.01), by_tempering, OBJECTS) is by_tempering


def test_tempering_is_believed_where_it_finds_more_than_the_bridge():
    by_tempering = tempered(-1.0, 0.2)
    assert reconciled(said(-5.0, 0.01), by_tempering, OBJECTS) is by_tempering


def test_weights_below_tempering_are_not_believed():
    """Whatever their diagnostics: they miss mass."""
    by_weights = said(-5.0, 0.01)
    assert reconciled(by_weights, tempered(-3.0, 0.2), CONTENT).method == "Bridge"
    by_tempering = tempered(-1.0, 0.2)
    assert reconciled(by_weights, by_tempering, CONTENT) is by_tempering


def test_weights_below_the_bridge_are_not_believed():
    assert reconciled(said(-5.0, 0.01), tempered(-4.9, 0.2), CONTENT).method == "Bridge"


def test_tempering_below_trusted_weights_changes_nothing():
    """A population misses narrow modes that a climb has found."""
    estimate = reconciled(said(-3.0, 0.01), tempered(-8.0, 0.1), CONTENT)
    assert (estimate.method, estimate.log_evidence) == ("ModeMixture", -3.0)


def test_what_is_significantly_below():
    assert is_below(said(-3.0, 0.3), said(-1.4, 0.4))
    assert not is_below(said(-3.0, 0.3), said(-1.6, 0.4))
    assert not is_below(said(-1.0, 0.1), said(-3.0, 0.1))


# Before it is asked ---------------------------------------------------------------------------------------------------


def swept(log_evidence, *sizes):
    points = np.zeros((4, 1))
    return SMCState(tuple(Sweep(size, log_evidence, 0.1, points, 4.0, np.arange(4), 9, points) for size in sizes))


def test_a_population_has_two_sweeps_and_enough_chains():
    assert not is_enough(swept(0.0), 10)
    assert not is_enough(swept(0.0, 200), 100)
    assert not is_enough(swept(0.0, 40, 50), 100)
    assert is_enough(swept(0.0, 40, 60), 100)
    assert is_enough(replace(swept(0.0), lost=True), 100)


def normal():
    ab.observe("y", dist.Normal(disguised(ab.sample("x", dist.Normal(0.0, 1.0))), 1.0), 1.0)


def test_an_estimate_that_nobody_has_confirmed_has_a_larger_error():
    target, exact = the_target(normal), norm.logpdf(1.0, 0.0, np.sqrt(2.0))
    first, state = solved(target, Auto().start(target, np.random.default_rng(0)), 20_000, 1)
    assert (first.is_confirmed, first.log_evidence_sd) == (False, 0.05)
    assert np.isnan(first.correction)
    agrees = Auto().estimate(target, replace(state, population=swept(first.log_evidence + 0.1, 32)))
    assert (agrees.is_confirmed, agrees.log_evidence_sd) == (False, 0.05)
    # What the population has found already is within the error, even before it is large enough to be asked.
    objects = Auto().estimate(target, replace(state, population=swept(first.log_evidence + 2.0, 32)))
    assert (objects.is_confirmed, objects.log_evidence_sd) == (False, pytest.approx(2.0))
    later, _ = solved(target, state, 40_000, 1)
    assert later.is_confirmed
    assert np.isfinite(later.correction)
    assert close(later, exact)
    assert later.log_evidence_sd < 0.01


# Climbs from the prior ------------------------------------------------------------------------------------------------


def narrow_and_wide():
    """Modes of equal mass, one five times narrower; climbs from one prior draw in about two hundred lead to it."""
    x = ab.sample("x", dist.Normal(0.0, 3.0).expand([4]).to_event(1))
    heights = [dist.Normal(mean, sd).log_prob(x).sum() for mean, sd in ((2.0, 0.5), (-2.0, 0.1))]
    masses = [4 * norm.logpdf(mean, 0.0, np.hypot(3.0, sd)) for mean, sd in ((2.0, 0.5), (-2.0, 0.1))]
    ab.factor("data", jnp.logaddexp(heights[0] - masses[0], heights[1] - masses[1]) - np.log(2.0))


def test_scouts_find_a_mode_that_loses_the_race():
    target, rng = the_target(narrow_and_wide), np.random.default_rng(0)
    wide = ModeMixtureState(single(np.full(4, 2.0), 0.5), single(np.zeros(4), 3.0), adapting=False, rounds=1)
    drawn = ModeMixture().drawn(target, wide, rng, 4_000)
    assert ModeMixture().estimate(target, drawn).log_evidence == pytest.approx(np.log(0.5), abs=0.1)
    found, scouts = scouted(target, ModeMixture(), drawn, SMCState(), rng, 100_000)
    assert 1 <= scouts < 100  # those that came to the narrow mode, which is the highest by far
    again = ModeMixture().drawn(target, found, rng, 4_000)
    estimate = ModeMixture().estimate(target, again)
    assert close(estimate, 0.0)
    assert estimate.log_evidence_sd < 0.05


def test_the_highest_draws_of_a_population_are_scouts_as_well():
    """Climbs from one prior draw in ten thousand lead to the spike."""
    target, rng, modes = the_target(spike), np.random.default_rng(0), ModeMixture()
    wide = ModeMixtureState(single(np.full(2, -0.85), 0.5), single(np.zeros(2), 2.0), adapting=False, rounds=1)
    drawn = modes.drawn(target, wide, rng, 4_000)
    high = np.log(0.801 / 0.199) * np.ones((1, 2))
    population = SMCState((Sweep(4, -5.0, 0.1, high, 1.0, np.zeros(1, int), 10_000, high),))
    assert scouted(target, modes, drawn, SMCState(), rng, 2_000)[0] is drawn
    found, scouts = scouted(target, modes, drawn, population, rng, 2_000)
    assert scouts == 0
    again = modes.drawn(target, found, rng, 4_000)
    assert modes.estimate(target, again).log_evidence == pytest.approx(30 + np.log(2 * np.pi * 5e-4**2), abs=0.1)


def test_a_population_that_says_little_does_not_replace_weights_that_found_more():
    """Sweeps that differ by tens of nats, beside weights just short of being believed."""
    few = replace(CONTENT, ess=3.0, log_ratio=CONTENT.log_ratio - 60.0)
    scattered = tempered(-12.0, 25.0)
    estimate = reconciled(said(-3.0, 0.03, ess=800, k=0.72), scattered, few)
    assert (estimate.method, estimate.log_evidence) == ("ModeMixture", -3.0)
    assert not estimate.is_confirmed
    assert estimate.log_evidence_sd > few.unseen > 0.03
    assert reconciled(said(-3.0, 0.03, ess=50, k=0.72), scattered, few) is scattered, "few weights"
    higher = tempered(-2.0, 25.0)
    assert reconciled(said(-3.0, 0.03, ess=800, k=0.72), higher, few) is higher


def test_a_bridge_without_overlap_has_no_error_that_can_be_believed():
    far = replace(CONTENT, log_ratio=CONTENT.log_ratio + 60.0)
    estimate = reconciled(said(-5.0, 0.01, ess=20), tempered(-1.0, 0.5), far)
    assert (estimate.method, estimate.log_evidence_sd) == ("SMC", 0.5)


def test_a_bridge_takes_the_particles_to_which_no_proposal_was_fitted():
    even = may_be_fitted(CONTENT.families)
    spoilt = replace(CONTENT, log_ratio=np.where(even, np.nan, CONTENT.log_ratio))
    estimate = reconciled(said(-5.0, 0.01, ess=20), tempered(-3.1, 0.2), spoilt)
    assert estimate.method == "Bridge"
    assert close(estimate, -3.0)


def test_poor_weights_are_kept_where_particles_have_lost_what_they_found():
    poor = said(-3.0, 0.2, ess=50)
    estimate = reconciled(poor, tempered(-9.0, 0.5), replace(CONTENT, log_ratio=CONTENT.log_ratio + 60.0))
    assert (estimate.method, estimate.log_evidence, estimate.is_confirmed) == ("ModeMixture", -3.0, False)
