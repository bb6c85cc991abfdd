"""The tree of decisions: how probable its ends are, and how it is drawn."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

import anabranch as ab
from anabranch import programs
from anabranch.divide.decision_node import DecisionNode
from anabranch.divide.families import Leaf
from anabranch.divide.show import draw_tree
from helpers import interpreted


def node_with(counts, question=(None, 7)):
    """A node that so many executions left by each answer."""
    node = DecisionNode(question=question, visits=sum(counts.values()))
    for answer, count in counts.items():
        value = np.asarray(answer)
        node.child(value.tobytes(), value).visits = count
    return node


def key(answer):
    return np.asarray(answer).tobytes()


# Probabilities at a node


def test_yes_and_no_both_met():
    node = node_with({True: 30, False: 10})
    assert np.exp(node.log_probability_of(key(True))) == pytest.approx(0.75)
    assert np.exp(node.log_probability_of(key(False))) == pytest.approx(0.25)


def test_ends_met_once_leave_a_share_for_those_never_met():
    root = ended(node_with({0: 50, 1: 48, 2: 1, 3: 1}))
    assert root.unmet() == pytest.approx(2 / 101)
    probabilities = [np.exp(end.log_probability()) for end in root.childless()]
    assert probabilities == pytest.approx([p * (1 - 2 / 101) for p in (0.5, 0.48, 0.01, 0.01)])


def test_ends_all_met_often_leave_nothing():
    root = ended(node_with({0: 50, 1: 25, 2: 25}))
    assert root.unmet() == 0.0
    assert sum(np.exp(end.log_probability()) for end in root.childless()) == pytest.approx(1.0)


def test_ends_whose_probability_is_known_are_not_counted_as_met_once():
    root = ended(node_with({0: 99, 1: 1}, question=(0, None)))
    root.children[key(0)].share, root.children[key(1)].share = (np.log(0.7), 1), (np.log(0.3), 1)
    assert root.unmet() == 0.0
    assert [np.exp(end.log_probability()) for end in root.childless()] == pytest.approx([0.7, 0.3])


def test_many_guards_that_never_fail_cost_nothing():
    def program():
        for i in range(100):
            if ab.sample(f"x{i}", dist.Normal(0.0, 1.0)) > 40:
                break

    division = ab.find_paths(program, executions=20)
    assert division.prior_mass_found == 1.0


def ended(root):
    for node in root.children.values():
        node.truncated = True
    return root


def test_a_known_share_goes_before_a_count():
    node = node_with({0: 60, 1: 40}, question=(0, None))
    node.children[key(0)].share = (np.log(2.5), 5)
    assert np.exp(node.log_probability_of(key(0))) == pytest.approx(0.5)


def test_nothing_is_known_without_visits():
    assert node_with({True: 0}).log_probability_of(key(True)) == -np.inf


def test_probability_along_the_way():
    root = node_with({True: 30, False: 10})
    there = root.children[key(True)]
    there.question = (None, 9)
    end = there.child(key(False), np.asarray(False))
    end.visits = 15
    other = there.child(key(True), np.asarray(True))
    other.visits = 15
    assert end.way() == [there, end]
    assert np.exp(end.log_probability()) == pytest.approx(0.75 * 0.5)
    assert root.log_probability() == 0.0
    assert set(root.childless()) == {end, other, root.children[key(False)]}


def test_nodes_are_told_apart_by_their_keys():
    root = node_with({True: 1, False: 1})
    keys = {child.key for child in root.children.values()}
    again = {child.key for child in node_with({True: 5, False: 2}).children.values()}
    assert len(keys) == 2
    assert keys == again


# Probabilities of paths


def probabilities(division):
    return {path.description: path.prior_probability for path in division}


def test_a_discrete_site_with_known_parameters_is_exact():
    def program():
        k = ab.sample("k", dist.Categorical(jnp.array([0.1, 0.2, 0.7])))
        for i in range(k):
            ab.sample(f"x{i}", dist.Normal(0.0, 1.0))

    found = probabilities(ab.find_paths(program, executions=200))
    assert found == {"k = 0": pytest.approx(0.1), "k = 1": pytest.approx(0.2), "k = 2": pytest.approx(0.7)}


def test_a_discrete_site_with_random_parameters_is_an_average():
    def program():
        p = ab.sample("p", dist.Beta(2.0, 1.0))
        if ab.sample("heads", dist.Bernoulli(p)):
            ab.sample("x", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=4000)
    assert division.prior_mass_found == pytest.approx(1.0, abs=1e-12)
    assert probabilities(division)["heads = 1"] == pytest.approx(2 / 3, abs=0.02)


def test_the_whole_of_a_site_whose_answers_come_one_after_another():
    """Exploring in small steps meets the answers of a random parameter late; together they are still one at most."""

    def program():
        rate = ab.sample("rate", dist.Gamma(2.0, 1.0))
        for i in range(ab.sample("n", dist.Poisson(rate))):
            ab.sample(f"x{i}", dist.Normal(0.0, 1.0))

    for first in range(20):
        division = ab.find_paths(program, executions=2, seed=100 + first)
        for seed in range(20):
            division.explore(2, seed)
            assert division.prior_mass_found < 1 + 1e-9


def test_a_site_that_an_earlier_guard_tells_of():
    """Where `x` was asked about first, `k` is no longer what its prior says."""

    def program():
        k = ab.sample("k", dist.Bernoulli(0.5))
        x = ab.sample("x", dist.Normal(4.0 * k, 1.0))
        if x > 2:
            ab.sample("high", dist.Normal(0.0, 1.0))
        if k:
            ab.sample("one", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=5000)
    right, wrong = 0.5 * stats.norm.cdf(2), 0.5 * stats.norm.cdf(-2)
    expected = {("k", "x"): right, ("k", "x", "high"): wrong, ("k", "x", "one"): wrong}
    expected["k", "x", "high", "one"] = right
    assert len(division) == 4
    for path in division:
        assert path.prior_probability == pytest.approx(expected[path.addresses], abs=0.02)
        draws = path.prior(2000)
        assert np.exp(draws.log_probability) == pytest.approx(
            expected[path.addresses], rel=5 * draws.log_probability_sd
        )


def test_a_site_that_an_earlier_site_tells_of():
    def program():
        k = ab.sample("k", dist.Bernoulli(0.5))
        j = ab.sample("j", dist.Bernoulli(jnp.where(k, 0.9, 0.1)))
        if j:
            ab.sample("x", dist.Normal(0.0, 1.0))
        if k:
            ab.sample("y", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=5000)
    for path in division:
        expected = 0.45 if len(path.addresses) in (2, 4) else 0.05
        assert path.prior_probability == pytest.approx(expected, abs=0.02)


def test_guards_are_counted():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if x > 1:
            ab.sample("y", dist.Normal(0.0, 1.0))

    found = probabilities(ab.find_paths(program, executions=10_000))
    assert found[f"x > 1 (test_tree.py:{program.__code__.co_firstlineno + 2})"] == pytest.approx(
        stats.norm.sf(1), abs=5 * np.sqrt(0.16 * 0.84 / 10_000)
    )


def test_the_remainder_is_what_is_beyond_the_bound():
    def geometric():
        n = 0
        while ab.sample(f"again{n}", dist.Bernoulli(0.5)):
            n += 1

    division = ab.find_paths(geometric, executions=500, max_sites=4)
    assert len(division) == 4
    assert division.prior_mass_found == pytest.approx(1 - 0.5**4)
    assert division.prior_mass_truncated == pytest.approx(0.5**4)
    groups = division.explore(100, seed=1)
    assert [group.members.size for group in groups if group.path is None] != []
    assert sum(len(group.members) for group in groups) == 100


def walk():
    position, i = ab.sample("start", dist.Uniform(0.0, 1.0)), 0
    while position > 0:
        position = position + ab.sample(f"step_{i}", dist.Uniform(-1.0, 0.5))
        i += 1


def test_prior_draws_within_the_bound_on_sites():
    """An attempt that runs beyond the bound is outside the path, for the interpreter too."""
    division = ab.find_paths(walk, executions=300, max_sites=4)
    slowly = interpreted(walk, max_sites=4)
    for group in division.explore(20, seed=1):
        if group.path is None:
            continue
        [execution] = {each.path for each in slowly.route(group.values())}
        expected, found = group.path.prior(300), execution.prior(60)
        error = np.hypot(expected.log_probability_sd, found.log_probability_sd)
        assert found.log_probability == pytest.approx(expected.log_probability, abs=5 * error)


def test_the_interpreter_explores():
    division = interpreted(walk, max_sites=50)
    groups = division.explore(60, seed=3)
    starts = np.concatenate([group.values()["start"] for group in groups])
    assert len(np.unique(starts)) == 60
    assert np.sort(np.concatenate([group.members for group in groups])).tolist() == list(range(60))
    assert len(division) > 3
    assert 0.5 < division.prior_mass_found < 1 + 1e-9
    assert division.python_runs == 60


def test_prior_draws_of_a_path_with_several_sequences():
    """Cut to the number asked for, the draws still take each sequence as often as they should."""

    def program():
        x = ab.sample("x", dist.Uniform(0.0, 1.0))
        y = 0.0
        if x < 0.25:
            y = 1.0
        elif x < 0.5:
            y = 2.0
        else:
            ab.sample("z", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(y, 1.0), 0.0)

    path = next(path for path in ab.find_paths(program) if len(path.recordings) == 2)
    x = path.values(path.prior(4000, seed=1).points)["x"]
    assert len(x) == 4000
    assert (x < 0.25).mean() == pytest.approx(0.5, abs=5 * np.sqrt(0.25 / 4000))


def test_an_observation_outside_its_support_on_some_paths_only():
    """Where a decision makes the observation impossible the path has no density, and the others are as they were."""

    def program():
        n = ab.sample("n", dist.DiscreteUniform(0, 3))
        for i in range(n):
            ab.sample(f"x{i}", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Binomial(n, 0.5), 2)

    division = ab.find_paths(program)
    assert len(division) == 4
    for path in division:
        evaluation = path.evaluate(np.zeros((1, path.dim)), compile=False)
        with np.errstate(divide="ignore"):
            expected = np.log([0.0, 0.0, 0.25, 0.375][path.dim])
        assert evaluation.log_likelihood[0] == pytest.approx(expected)
        assert evaluation.guard[0]
        assert not evaluation.invalid[0]


@pytest.mark.parametrize("observed", [0.5, np.array([0.5, 1.0]), jnp.array(0.5)], ids=["number", "array", "jax"])
def test_an_observation_whose_support_is_random(observed):
    """Outside the support there is no density; asking about that is no decision."""

    def program():
        x = ab.sample("x", dist.Uniform(0.0, 3.0))
        ab.observe("y", dist.Uniform(0.0, x), observed)

    division = ab.find_paths(program)
    [path] = division.paths
    assert not path.interpreted
    assert path.decisions == ((),)
    x = np.array([0.2, 0.7, 1.5, 2.5])
    with np.errstate(divide="ignore"):
        expected = np.where(x > np.max(observed), -np.size(observed) * np.log(x), -np.inf)
    points = path.points({"x": x})
    for compile in (False, True):
        np.testing.assert_allclose(path.evaluate(points, compile=compile).log_likelihood, expected, rtol=1e-12)
    slowly = interpreted(program)
    groups = slowly.route({"x": x})
    assert {group.path for group in groups} == {slowly.paths[0]}
    np.testing.assert_allclose(slowly.paths[0].evaluate(points).log_likelihood, expected, rtol=1e-12)


def test_an_observation_leaves_a_latent_count_open():
    def program():
        n = ab.sample("n", dist.DiscreteUniform(0, 5))
        ab.observe("y", dist.Binomial(n, 0.5), 3)

    [path] = ab.find_paths(program).paths
    assert path.dim == 1
    likelihood = path.evaluate([[2.0], [3.0], [4.0]], compile=False).log_likelihood
    np.testing.assert_allclose(np.exp(likelihood), [0.0, 0.125, 0.25])


def test_prior_draws_of_which_some_cannot_have_the_fixed_value():
    def program():
        k = ab.sample("k", dist.DiscreteUniform(1, 3))
        j = ab.sample("j", dist.DiscreteUniform(0, k))
        for i in range(j):
            ab.sample(f"x{i}", dist.Normal(0.0, 1.0))

    path = next(path for path in ab.find_paths(program, executions=2000) if "x1" in path.addresses)
    draws = path.prior(500)
    assert len(draws.points) == len(draws.log_weights)
    assert np.isfinite(draws.log_weights).all()
    j, k = path.sites[1].value, path.values(draws.points)["k"]
    assert (k >= j).all()
    np.testing.assert_allclose(draws.log_weights, -np.log(k + 1))


# Drawing


def test_drawing_of_a_tree():
    endings = [
        ending("k = 0", dim=1, probability=0.25),
        ending("k = 1", "x > 0", dim=2, probability=0.3),
        ending("k = 1", "x <= 0", dim=3, probability=0.45),
    ]
    assert draw_tree("model", endings, limit=10).splitlines() == [
        "model",
        "├─ k = 1  [0.75]",
        "│  ├─ x <= 0  [0.45]  3 dimensions",
        "│  └─ x > 0  [0.3]  2 dimensions",
        "└─ k = 0  [0.25]  1 dimension",
    ]


def test_drawing_joins_decisions_without_an_alternative():
    endings = [ending("a", "b", "a", "c", dim=1, probability=0.5), ending("d", dim=2, probability=0.5)]
    assert draw_tree("model", endings, limit=10).splitlines() == [
        "model",
        "├─ a ×2, b, c  [0.5]  1 dimension",
        "└─ d  [0.5]  2 dimensions",
    ]


def test_drawing_of_a_few_of_many():
    endings = [ending("m", f"k = {k}", dim=1, probability=0.1) for k in range(8)]
    endings += [ending("n", dim=0, probability=0.2)]
    lines = draw_tree("model", endings, limit=2).splitlines()
    assert lines == [
        "model",
        "├─ m  [0.8]",
        "│  ├─ k = 0  [0.1]  1 dimension",
        "│  └─ ... 7 more  [0.7]",
        "└─ n  [0.2]  0 dimensions",
    ]


def test_drawing_keeps_answers_apart_that_read_the_same():
    endings = [Leaf(((key, "[0, ..., 1]"),), 1, 0.5) for key in (1, 2)]
    assert len(draw_tree("model", endings, limit=5).splitlines()) == 3


def test_drawing_needs_something_to_draw():
    with pytest.raises(ValueError, match="limit must be a whole number, at least 1"):
        draw_tree("model", [ending("a", dim=0, probability=1.0)], limit=0)


def ending(*decisions, dim, probability):
    return Leaf(tuple((text, text) for text in decisions), dim, probability)


def test_drawing_of_one_path():
    assert draw_tree("model", [Leaf((), 1, 1.0)], limit=5) == "model: 1 dimension"


def test_drawing_of_a_division():
    def coin():
        if ab.sample("fair", dist.Bernoulli(0.6)):
            bias = 0.5
        else:
            bias = ab.sample("bias", dist.Beta(1.0, 1.0))
        ab.observe("heads", dist.Bernoulli(bias), 1)

    assert ab.find_paths(coin).tree().splitlines() == [
        "coin: 2 paths, 100 % of the prior mass found",
        "├─ fair = 1  [0.6]  0 dimensions",
        "└─ fair = 0  [0.4]  1 dimension",
    ]


def test_drawing_of_a_division_without_decisions():
    def one():
        ab.sample("x", dist.Normal(0.0, 1.0))

    assert ab.find_paths(one, executions=5).tree() == "one: 1 path, 100 % of the prior mass found: 1 dimension"


def test_drawing_shows_the_remainder():
    def geometric():
        n = 0
        while ab.sample(f"again{n}", dist.Bernoulli(0.5)):
            n += 1

    lines = ab.find_paths(geometric, executions=100, max_sites=2).tree().splitlines()
    assert lines[0] == "geometric: 2 paths, 75 % of the prior mass found, 25 % truncated at 2 sites"
    assert any("more than 2 sites  [0.25]  not followed" in line for line in lines)


def test_probabilities_too_small_for_a_float_keep_their_logarithm():
    def coins():
        for i in range(1500):
            if ab.sample(f"coin{i}", dist.Bernoulli(0.5)):
                ab.deterministic(f"heads{i}", i)

    [path, *_] = ab.find_paths(coins, executions=2).paths
    assert path.log_prior_probability == pytest.approx(1500 * np.log(0.5), rel=1e-12)
    assert path.prior_probability == 0.0
    draws = path.prior(3)
    assert draws.log_probability == pytest.approx(1500 * np.log(0.5), rel=1e-12)
    assert draws.log_probability_sd == pytest.approx(0.0, abs=1e-9)


def test_the_mass_of_a_value_depends_on_all_that_the_distribution_holds():
    """Probabilities that were computed once are kept: not for another number of trials, shape or family."""
    third = np.array([0.5, 0.25, 0.25])
    families = [
        dist.Multinomial(2, third), dist.Multinomial(3, third), dist.Categorical(third), dist.Binomial(2, 0.5),
        dist.Binomial(3, 0.5), dist.Bernoulli(0.5), dist.Geometric(0.5), dist.Poisson(0.5),
        dist.Poisson(0.5).expand([1]),
        dist.Bernoulli(logits=0.5), dist.DiscreteUniform(0, 2), dist.Bernoulli(0.5).expand([2]).to_event(1),
    ]  # fmt: skip
    for family in families:

        def program(family=family):
            ab.sample("k", family)

        division = ab.find_paths(program, executions=300, split=["k"])
        for path in division:
            [site] = path.sites
            expected = float(np.sum(family.log_prob(jnp.asarray(site.value))))
            assert path.log_prior_probability == pytest.approx(expected, rel=1e-5), family


def test_a_probability_below_the_smallest_double_keeps_its_logarithm():
    def count():
        for i in range(ab.sample("n", dist.Poisson(9.0))):
            ab.sample(f"x{i}", dist.Normal(0.0, 1.0))

    division = ab.find_paths(count, executions=10)
    [group] = division.route({"n": np.array([400])})
    assert group.path.prior_probability == 0.0
    assert group.path.log_prior_probability == pytest.approx(stats.poisson.logpmf(400, 9.0))


def test_prior_probabilities_of_executions_that_go_step_by_step():
    posterior = ab.infer(programs.branching, 2.0, engine=ab.engines.SMC(particles=20), budget=2_000)
    assert len(posterior.paths) == 2
    assert (abs(posterior.paths["prior_probability"] - 0.5) < 4 * 0.05).all()


def test_the_parameters_of_copies_of_one_particle_are_not_taken_for_constants():
    def program():
        p = ab.sample("p", dist.Beta(0.5, 0.5))
        ab.observe("y", dist.Bernoulli(p), 1)
        if ab.sample("more", dist.Bernoulli(p)):
            ab.sample("x", dist.Normal(0.0, 1.0))

    posterior = ab.infer(program, engine=ab.engines.SMC(particles=2, threshold=1.0), budget=200)
    assert posterior.paths["prior_probability"].sum() == pytest.approx(1)
    assert (abs(posterior.paths["prior_probability"] - 0.5) < 4 * 0.05).all()
