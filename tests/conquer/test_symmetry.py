"""Exchangeable components: which are found, which are not, and what folding them gives."""

from collections import Counter
from itertools import permutations

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from scipy.stats import chisquare

import anabranch as ab
from anabranch.conquer import PathTarget
from anabranch.conquer.symmetry import are_symmetries, find_symmetries, fold, log_copies, ordered, unfold
from exact import named

Y = np.array([-3.0, -2.5, 0.2, 2.8, 3.1])


def mixture(means, shares=None, sd=1.0):
    size = means.shape[0]
    shares = jnp.ones(size) / size if shares is None else shares
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(shares), dist.Normal(means, sd)), Y)


def vector():
    mixture(ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1)))


def numbered():
    mixture(jnp.stack([ab.sample(f"mean{k}", dist.Normal(0.0, 2.5)) for k in range(3)]))


def numbered_in_pairs():
    means = jnp.stack([ab.sample(f"mean{k}", dist.Normal(0.0, 2.5)) for k in range(3)])
    scales = jnp.stack([ab.sample(f"scale{k}", dist.Gamma(2.0, 2.0)) for k in range(3)])
    mixture(means, sd=scales)


def with_shares():
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones(3)))
    mixture(ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1)), shares)


def forward(means, transitions):
    """A hidden Markov model, by the forward algorithm."""
    log_weights = jnp.log(jnp.ones(3) / 3)
    for y in Y:
        log_weights = logsumexp(log_weights[:, None] + jnp.log(transitions), axis=0) + dist.Normal(means, 1.0).log_prob(
            y
        )
    ab.factor("chain", logsumexp(log_weights))


def chain():
    means = ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1))
    forward(means, ab.sample("transitions", dist.Dirichlet(jnp.ones(3)).expand([3]).to_event(1)))


def chain_by_row():
    rows = [ab.sample(f"row{k}", dist.Dirichlet(jnp.full(3, 2.0))) for k in range(3)]
    forward(ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1)), jnp.stack(rows))


def topics():
    """Distributions over four words are rows, and their parts are no components."""
    words = ab.sample("words", dist.Dirichlet(jnp.ones(4)).expand([3]).to_event(1))
    ab.observe("w", dist.Categorical(words.mean(axis=0)), np.array([0, 1, 1, 3]))


def sticky():
    """The diagonal is favoured, which relabelling keeps."""
    means = ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1))
    forward(means, ab.sample("transitions", dist.Dirichlet(jnp.ones((3, 3)) + 4.0 * jnp.eye(3)).to_event(1)))


def one_way():
    """The rows differ in their priors: no relabelling is a symmetry."""
    means = ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1))
    weights = jnp.array([[1.0, 2.0, 3.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    forward(means, ab.sample("transitions", dist.Dirichlet(weights).to_event(1)))


def cumulative():
    steps = ab.sample("steps", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    ab.observe("y", dist.Normal(jnp.cumsum(steps), 1.0), Y[:3])


def other_priors():
    mixture(ab.sample("means", dist.Normal(jnp.array([-1.0, 0.0, 1.0]), 2.5).to_event(1)))


def other_scales():
    mixture(jnp.stack([ab.sample(f"mean{k}", dist.Normal(0.0, 1.0 + k)) for k in range(3)]))


def own_shares():
    mixture(ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1)), jnp.array([0.2, 0.3, 0.5]))


def guarded():
    means = ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1))
    if jnp.cumsum(means)[0] > 0:
        ab.sample("more", dist.Normal(0.0, 1.0))
    mixture(means)


def unequal_shares():
    shares = ab.sample("shares", dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    mixture(ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1)), shares)


def looked_at(program, *args):
    path = max(ab.find_paths(program, *args, executions=50).paths, key=lambda each: each.dim)
    target = PathTarget(path)
    points = target.prior(200, np.random.default_rng(0)).points
    return target, points, find_symmetries(target, points)


@pytest.mark.parametrize(
    ("program", "names"),
    [
        (vector, {"means"}),
        (numbered, {"mean#"}),
        (numbered_in_pairs, {"mean#", "scale#"}),
        (with_shares, {"shares", "means"}),
        (chain, {"means", "transitions"}),
        (chain_by_row, {"means", "row#"}),
        (sticky, {"means", "transitions"}),
        (topics, {"words"}),
    ],
)
def test_exchangeable_components_are_found(program, names):
    target, points, symmetries = looked_at(program)
    [found] = symmetries
    assert ({family.name for family in found.families}, found.size) == (names, 3)
    assert log_copies(symmetries) == pytest.approx(np.log(6.0))
    assert are_symmetries(target, symmetries, points[:50], np.random.default_rng(1))


@pytest.mark.parametrize(
    "program", [cumulative, other_priors, other_scales, own_shares, guarded, unequal_shares, one_way]
)
def test_what_is_not_exchangeable_is_not_found(program):
    assert looked_at(program)[2] == []


def test_shares_alone_are_no_symmetry_of_a_mixture():
    def fixed_means():
        mixture(jnp.array([-1.0, 0.0, 1.0]), ab.sample("shares", dist.Dirichlet(jnp.ones(3))))

    assert looked_at(fixed_means)[2] == []


def test_two_symmetries_multiply():
    def two():
        a = ab.sample("a", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        b = ab.sample("b", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
        ab.observe("y", dist.Normal(jnp.sum(a**2) + jnp.sum(b), 1.0), 1.0)

    assert log_copies(looked_at(two)[2]) == pytest.approx(np.log(2.0 * 6.0))


def test_sites_of_their_own_are_not_permuted_with_those_that_they_belong_to():
    """Swapping the means alone changes the density: they go with their scales or not at all."""
    target, points, [found] = looked_at(numbered_in_pairs)
    swapped = fold(points, [found])
    one, other = target.evaluate(points), target.evaluate(swapped)
    np.testing.assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-9)
    moved = [found.families[i].columns for i in range(2)]
    ranks = [np.argsort(np.argsort(points[:, columns[:, 0]], axis=1), axis=1) for columns in moved]
    assert (ranks[0] != ranks[1]).any()


@pytest.mark.parametrize("program", [vector, numbered, numbered_in_pairs, with_shares, chain, chain_by_row, topics])
def test_folding_orders_and_keeps_the_density(program):
    target, points, symmetries = looked_at(program)
    folded = fold(points, symmetries)
    assert ordered(folded, symmetries).all()
    assert ordered(points, symmetries).mean() == pytest.approx(1 / 6, abs=0.1)
    for moved in (folded, unfold(points, symmetries, np.random.default_rng(2))):
        one, other = target.evaluate(points), target.evaluate(moved)
        np.testing.assert_allclose(one.log_likelihood, other.log_likelihood, rtol=1e-7)
        np.testing.assert_allclose(
            one.log_prior - one.log_jacobian, other.log_prior - other.log_jacobian, rtol=1e-7, atol=1e-7
        )


def test_the_parts_of_a_simplex_move_with_their_means():
    target, points, symmetries = looked_at(with_shares)
    before, after = (target.path.values(x) for x in (points, fold(points, symmetries)))
    order = np.argsort(before["means"], axis=1)
    np.testing.assert_allclose(after["means"], np.take_along_axis(before["means"], order, axis=1))
    np.testing.assert_allclose(after["shares"], np.take_along_axis(before["shares"], order, axis=1), atol=1e-9)


def test_rows_and_columns_of_transitions_move_with_their_means():
    target, points, symmetries = looked_at(chain)
    before, after = (target.path.values(x) for x in (points, fold(points, symmetries)))
    order = np.argsort(before["means"], axis=1)
    for n in range(len(points)):
        expected = before["transitions"][n][np.ix_(order[n], order[n])]
        np.testing.assert_allclose(after["transitions"][n], expected, atol=1e-9)


def test_unfolding_gives_every_labelling_the_same_probability():
    _, points, symmetries = looked_at(vector)
    one = np.tile(np.sort(points[0]), (6000, 1))
    labels = Counter(map(tuple, np.argsort(unfold(one, symmetries, np.random.default_rng(3)), axis=1).tolist()))
    assert set(labels) == set(permutations(range(3)))
    assert chisquare(list(labels.values())).pvalue > 1e-3


def test_the_key_is_what_tells_components_apart():
    """By scales that are all the same, the order would cut through the mode; the means are far from each other."""
    _, _, [found] = looked_at(numbered_in_pairs)
    place = np.zeros((1, 6))
    by_name = {family.name: family.columns for family in found.families}
    place[0, by_name["mean#"][:, 0]] = [-3.0, 0.0, 3.0]
    best = found.with_best_key(place, np.ones((1, 6)))
    assert found.families[best.key[0]].name == "mean#"
    place = np.zeros((1, 6))
    place[0, by_name["scale#"][:, 0]] = [-3.0, 0.0, 3.0]
    assert found.families[found.with_best_key(place, np.ones((1, 6))).key[0]].name == "scale#"


def test_one_ordering_times_the_copies_is_the_whole_evidence():
    """Importance sampling from the prior, whole and folded, against the exact evidence of three components."""
    case = named("three_components")
    target, _, symmetries = looked_at(case.program, *case.args)
    points = target.prior(100_000, np.random.default_rng(4)).points
    weights = np.exp(target.evaluate(points).log_likelihood - case.log_evidence)
    in_order = np.where(ordered(points, symmetries), weights * np.exp(log_copies(symmetries)), 0.0)
    for each in (weights, in_order):
        assert abs(each.mean() - 1) < 4 * each.std() / np.sqrt(len(each)) < 0.2


def test_no_points_no_symmetries():
    target, points, _ = looked_at(vector)
    assert find_symmetries(target, points[:0]) == []


def test_a_simplex_of_one_part_has_no_coordinates():
    """As in a mixture with K = 1: its share is one."""

    def single():
        share = ab.sample("share", dist.Dirichlet(jnp.ones(1)))
        means = ab.sample("means", dist.Normal(0.0, 2.5).expand([1]).to_event(1))
        mixture(means, share, ab.sample("sd", dist.HalfNormal(2.0)))

    def alone():
        ab.observe("y", dist.Normal(ab.sample("mean", dist.Normal(0.0, 2.5)), ab.sample("sd", dist.HalfNormal(2.0))), Y)

    ours, theirs = (ab.infer(program, budget=20_000) for program in (single, alone))
    error = np.hypot(ours.log_evidence_sd, theirs.log_evidence_sd)
    assert abs(ours.log_evidence - theirs.log_evidence) < 4 * error < 0.4
