"""Chains at the posterior that move whole exchangeable blocks, and the bridge from them to mixtures fitted to them."""

from dataclasses import replace
from itertools import product

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import gammaln, logsumexp

import anabranch as ab
from anabranch.conquer import SMC, Auto, ModeMixture, PathTarget, solve
from anabranch.conquer.settled import Settled
from anabranch.conquer.settled_bridge import SettledBridge
from anabranch.conquer.smc_mutation import Tuning
from anabranch.conquer.symmetry import find_symmetries

DATA = np.array([-2.0, -1.5, 1.5, 2.5])
PRECISION, SHAPE, RATE = 0.1, 2.0, 1.0


def components(k):
    """k normal components with conjugate priors, whose evidence is a sum over the ways to assign the data."""
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones(k)))
    precision = ab.sample("precision", dist.Gamma(SHAPE * jnp.ones(k), RATE))
    mean = ab.sample("mean", dist.Normal(jnp.zeros(k), 1 / jnp.sqrt(PRECISION * precision)))
    parts = dist.Normal(mean, 1 / jnp.sqrt(precision))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(probs=shares), parts), DATA)


def of_block(x):
    """log of the marginal likelihood of the data of one component."""
    n, mean = len(x), x.mean() if len(x) else 0.0
    precision, shape = PRECISION + n, SHAPE + n / 2
    rate = RATE + (((x - mean) ** 2).sum() + PRECISION * n * mean**2 / precision) / 2
    of_prior = SHAPE * np.log(RATE) - gammaln(SHAPE) + 0.5 * np.log(PRECISION / precision)
    return of_prior + gammaln(shape) - shape * np.log(rate) - n / 2 * np.log(2 * np.pi)


def exact(k):
    logs = []
    for labels in product(range(k), repeat=len(DATA)):
        blocks = [DATA[np.array(labels) == i] for i in range(k)]
        logs.append(sum(of_block(x) + gammaln(len(x) + 1.0) for x in blocks))
    return logsumexp(logs) + gammaln(k) - gammaln(k + len(DATA))


def target_of(k):
    target = PathTarget(ab.find_paths(components, k).paths[0])
    return target, tuple(find_symmetries(target, target.prior(50, np.random.default_rng(0)).points))


def population_of(target, blocks, sweeps, rng):
    smc = SMC(chains=32, blocks=blocks)
    population = smc.start(target, rng)
    while len(population.sweeps) < sweeps:
        population = smc.advance(target, population, rng, 10_000)
    return population


@pytest.fixture(scope="module")
def three():
    """The target with three components, its blocks, and a population of two sweeps."""
    target, blocks = target_of(3)
    return target, blocks, population_of(target, blocks, 2, np.random.default_rng(0))


def test_the_bridge_gives_the_evidence_within_its_error(three):
    target, blocks, population = three
    scores = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        chains = Settled.begun(population, rng).prolonged(target, blocks, rng, 30_000)
        bridge = SettledBridge.fitted(target, chains, blocks, rng).drawn(target, rng, 20_000).bridged(chains)
        assert bridge.unseen == 1 / (chains.families + 1) <= bridge.sd
        of_chains = np.sqrt(bridge.sd**2 - bridge.unseen**2)  # the families have seen all of this mass
        assert of_chains < 0.1
        scores.append((bridge.log_evidence - exact(3)) / of_chains)
    assert (np.square(scores)).sum() < 26  # the 99.9 % quantile of chi squared
    assert abs(np.mean(scores)) < 3.3 / np.sqrt(8)


def test_chains_have_the_moments_of_the_posterior(three):
    """Importance weights of prior draws give the truth."""
    target, blocks, population = three
    rng = np.random.default_rng(1)
    chains = Settled.begun(population, rng)
    for _ in range(3):
        chains = chains.prolonged(target, blocks, rng, 30_000)
    drawn = target.prior(200_000, rng).points
    weights = np.exp(target.evaluate(drawn).log_likelihood)
    keys = blocks[0].keys
    here, there = np.sort(chains.counted[:, :, keys], axis=2).reshape(-1, 3), np.sort(drawn[:, keys], axis=1)
    assert np.abs(here.mean(axis=0) - weights @ there / weights.sum()).max() < 0.15 * here.std(axis=0).min()
    assert len(chains.states) <= 160
    assert chains.states.shape[1] == 100
    density = target.evaluate(chains.states[-1]).log_density
    assert np.allclose(density, chains.log_density[-1])


def test_each_half_of_the_chains_has_other_families(three):
    _, _, population = three
    chains = Settled.begun(population, np.random.default_rng(0))
    one, other = (set(chains.founders[chains.half == half]) for half in (0, 1))
    assert len(one & other) <= 1
    assert (np.bincount(chains.half) == 50).all()


def test_chains_begin_anew_once_the_population_has_twice_as_many_families(three):
    target, blocks, population = three
    chains = Settled.begun(population, np.random.default_rng(0))
    assert chains.families == pytest.approx(len(np.unique(chains.founders)), rel=0.5)
    assert not chains.is_outgrown(population)
    assert chains.is_outgrown(population_of(target, blocks, 8, np.random.default_rng(1)))


def test_no_chains_where_all_particles_are_of_one_family(three):
    _, _, population = three
    one = replace(population.sweeps[0], founders=np.zeros_like(population.sweeps[0].founders))
    assert Settled.begun(replace(population, sweeps=(one,)), np.random.default_rng(0)) is None


def two_modes():
    x = ab.sample("x", dist.Normal(0.0, 5.0))
    ab.factor("modes", jnp.logaddexp(dist.Normal(-4.0, 0.3).log_prob(x), dist.Normal(4.0, 0.3).log_prob(x)))


def stuck(rng, in_first, moves):
    """Chains of ten families that have stayed in the mode in which they began, or have moved."""
    target = PathTarget(ab.find_paths(two_modes).paths[0])
    founders = np.arange(100) // 10
    is_first = rng.uniform(size=(60, 100)) < in_first if moves else np.tile(founders % 10 < 10 * in_first, (60, 1))
    states = (np.where(is_first, -4.0, 4.0) + 0.3 * rng.standard_normal((60, 100)))[:, :, None]
    log_density = target.evaluate(states.reshape(-1, 1)).log_density.reshape(60, 100)
    return target, Settled(states, log_density, states[-1], founders, Tuning(True), spent=60_000)


@pytest.mark.parametrize("in_first", [0.5, 0.7, 0.9])
def test_chains_that_stay_where_they_began_make_no_error_that_is_not_claimed(in_first):
    """The modes have the same mass; chains that do not move have it as often as they began there."""
    truth = logsumexp([dist.Normal(0.0, np.sqrt(25.09)).log_prob(x) for x in (-4.0, 4.0)])
    for seed in range(4):
        rng = np.random.default_rng(seed)
        target, chains = stuck(rng, in_first, moves=False)
        bridge = SettledBridge.fitted(target, chains, (), rng).drawn(target, rng, 8_000).bridged(chains)
        assert abs(bridge.log_evidence - truth) < 4 * bridge.sd
        assert bridge.sd < (0.3 if in_first > 0.5 else 2.0)  # with 0.5, each half of the chains has one mode


def test_families_that_are_alike_raise_the_error():
    """Half of the chains in one mode, and a mixture fitted to them, have different weights in the two modes."""
    alike = {}
    for moves in (False, True):
        rng = np.random.default_rng(0)
        target, chains = stuck(rng, 0.7, moves)
        bridge = SettledBridge.fitted(target, chains, (), rng).drawn(target, rng, 8_000)
        halves = [bridge._half(chains, half) for half in (0, 1)]
        alike[moves] = max(half.bridged(half.possible[0])[2] for half in halves)
    assert alike[True] < 3 < alike[False]


def test_draws_that_are_not_in_order_take_no_evaluation():
    target, blocks = target_of(4)
    rng = np.random.default_rng(0)
    chains = Settled.begun(population_of(target, blocks, 2, rng), rng).prolonged(target, blocks, rng, 10_000)
    bridge, before = SettledBridge.fitted(target, chains, blocks, rng), target.evaluations
    bridge = bridge.drawn(target, rng, 4_000)
    assert target.evaluations - before == 4_000
    assert bridge.draws > 5_000


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", range(4))
def test_more_components_than_clusters(seed):
    """No ordering separates six components of four data, but they are exchangeable, and the bridge has the evidence."""
    target, _ = target_of(6)
    rng = np.random.default_rng(seed)
    first = ModeMixture().advance(target, ModeMixture().start(target, rng), rng, 20_000)
    assert first.symmetries or first.overlapping
    estimate = solve(Auto(), PathTarget(ab.find_paths(components, 6).paths[0]), 150_000, seed=seed)
    assert estimate.log_evidence_sd < 0.25
    assert abs(estimate.log_evidence - exact(6)) < 4 * estimate.log_evidence_sd
