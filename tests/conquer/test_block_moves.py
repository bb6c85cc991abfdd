"""Moves of whole exchangeable blocks: they leave a density unchanged."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer import PathTarget
from anabranch.conquer.block_moves import BlockProposal
from anabranch.conquer.ordered import Ordered
from anabranch.conquer.settled import movable
from anabranch.conquer.smc_mutation import Mutation, Shape, Tuning
from anabranch.conquer.smc_tempering import Tempering
from anabranch.conquer.symmetry import find_symmetries

N, MOVES = 20_000, 30
DATA = np.array([-2.0, 1.5, 2.5])


def components():
    """Three with means, scales and weights of their own."""
    scales = ab.sample("scales", dist.Gamma(2.0 * jnp.ones(3), 1.0))
    means = ab.sample("means", dist.Normal(jnp.zeros(3), 2.0))
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones(3)))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(probs=shares), dist.Normal(means, 0.5 + scales)), DATA)


def without_shares():
    means = ab.sample("means", dist.Normal(jnp.zeros(3), 2.0))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(probs=jnp.ones(3) / 3), dist.Normal(means, 1.0)), DATA)


def two_simplexes():
    means = ab.sample("means", dist.Normal(jnp.zeros(3), 2.0))
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones((2, 3))))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(probs=shares[0]), dist.Normal(means, 1.0)), DATA)
    ab.observe("z", dist.MixtureSameFamily(dist.Categorical(probs=shares[1]), dist.Normal(means, 1.0)), DATA[1:])


def transitions():
    """Rows and parts are permuted at once."""
    means = ab.sample("means", dist.Normal(jnp.zeros(3), 2.0))
    rows = ab.sample("rows", dist.Dirichlet(jnp.ones((3, 3))))
    first = jnp.exp(dist.Normal(means, 1.0).log_prob(0.5)) / 3
    second = jnp.exp(dist.Normal(means, 1.0).log_prob(-0.5))
    ab.factor("data", jnp.log(first @ rows @ second))


def statistics(target, points):
    """Of each point: its coordinates, their squares, log γ, and products with the first coordinate."""
    density = target.evaluate(points).log_density[:, None]
    return np.concatenate([points, points**2, density, points[:, :1] * points[:, 1:]], axis=1)


def scores(program, beta, is_ordered):
    """By how many standard errors each statistic of exact draws changes when their blocks are moved."""
    whole, rng = PathTarget(ab.find_paths(program).paths[0]), np.random.default_rng(1)
    symmetries = tuple(find_symmetries(whole, whole.prior(50, rng).points))
    target = Ordered(whole, symmetries) if is_ordered else whole
    tempering = Tempering(target)
    drawn = tempering.at(target.prior(20 * N, rng).points)
    drawn = drawn.take(
        np.flatnonzero(np.log(rng.uniform(size=len(drawn))) < beta * (drawn.log_ratio - drawn.log_ratio.max()))
    )
    assert len(drawn) > N + 2_000
    start, reference = drawn.take(np.arange(N)), drawn.points[N : N + 2_000]
    shape = Shape.of(reference, np.arange(2_000), np.arange(N) % 2, target.discrete)
    proposals = tuple(BlockProposal.of_halves(each, shape.points, rng) for each in symmetries)
    end, tuning = start, Tuning(False)
    for _ in range(MOVES):
        end, tuning = Mutation(tempering, beta, shape, proposals)._redraw_block(end, tuning, rng)
    assert (end.points != start.points).any(axis=1).mean() > 0.5
    changes = statistics(target, end.points) - statistics(target, start.points)
    return changes.mean(axis=0) / (changes.std(axis=0) / np.sqrt(N))


@pytest.mark.parametrize("is_ordered", [False, True])
@pytest.mark.parametrize(("program", "beta"), [(components, 0.7), (without_shares, 1.0), (two_simplexes, 0.7)])
@pytest.mark.one_in(4)
def test_moves_of_blocks_leave_exact_draws_exact(program, beta, is_ordered):
    assert np.abs(scores(program, beta, is_ordered)).max() < 4


@pytest.mark.parametrize(
    ("program", "movable_sets"), [(components, 1), (without_shares, 1), (two_simplexes, 1), (transitions, 0)]
)
def test_blocks_whose_rows_and_parts_are_permuted_at_once_are_left_alone(program, movable_sets):
    target = PathTarget(ab.find_paths(program).paths[0])
    symmetries = find_symmetries(target, target.prior(50, np.random.default_rng(0)).points)
    assert len(symmetries) == 1
    assert len(movable(symmetries)) == movable_sets


def test_a_move_changes_one_block():
    target = PathTarget(ab.find_paths(components).paths[0])
    points = target.prior(500, np.random.default_rng(0)).points
    (blocks,) = find_symmetries(target, points)
    moved = BlockProposal.of(blocks, points, np.random.default_rng(1)).redrawn(points, np.random.default_rng(2))
    assert moved.possible.mean() > 0.5
    rows = blocks.families[0].columns
    changed = (moved.points[:, rows] != points[:, rows]).any(axis=2).sum(axis=1)
    assert (changed[moved.possible] == 1).all()
    assert (moved.points[~moved.possible] == points[~moved.possible]).all()
