"""Moves between paths: that they are reversible, and lead where they say."""

from __future__ import annotations

from collections import Counter

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.divide import can_walk, fit_decision_tables, label_names, move_between_paths, move_to_any_path


def subset():
    for j in range(4):
        if ab.sample(f"z{j}", dist.Bernoulli(0.3)):
            ab.sample(f"b{j}", dist.Normal(0.0, 1.0))


def grammar(depth=0):
    """Sites appear and disappear with the value of others."""
    kind = ab.sample(dist.Categorical(np.array([0.5, 0.3, 0.2])))
    if kind == 0 or depth == 2:
        return ab.sample(dist.Normal(0.0, 1.0))
    if kind == 1:
        return grammar(depth + 1)
    return grammar(depth + 1) + grammar(depth + 1)


def restaurant(n=5):
    counts: list[int] = []
    for i in range(n):
        table = int(ab.sample(f"t{i}", dist.Categorical(np.array([*counts, 1.0]) / (i + 1))))
        counts[table : table + 1] = [counts[table] + 1] if table < len(counts) else [1]
    for k in range(len(counts)):
        ab.sample(f"mu{k}", dist.Normal(0.0, 1.0))


def seated_first(n=4):
    """The first guest needs no site."""
    counts = [1]
    for i in range(n):
        table = int(ab.sample(f"t{i}", dist.Categorical(np.array([*counts, 1.0]) / (i + 2))))
        counts[table : table + 1] = [counts[table] + 1] if table < len(counts) else [1]
    ab.sample("x", dist.Normal(0.0, 1.0))


def counted():
    """Infinitely many values, one of them a bound."""
    k = int(ab.sample("k", dist.Poisson(2.0)))
    for i in range(k):
        ab.sample(f"x{i}", dist.Normal(0.0, 1.0))


def vectors():
    """Sites with several entries, and one that has another shape in another path."""
    z = ab.sample("z", dist.Bernoulli(jnp.array([0.2, 0.6])).to_event(1))
    size = 1 + int(z[0])
    c = ab.sample("c", dist.Categorical(jnp.array([0.5, 0.3, 0.2])).expand([size]).to_event(1))
    for i in range(int(c.sum())):
        ab.sample(f"x{i}", dist.Normal(0.0, 1.0))
    if z[1]:
        ab.sample("y", dist.Normal(0.0, 1.0))


PROGRAMS = {"subset": subset, "grammar": grammar, "restaurant": restaurant, "seated_first": seated_first,
            "counted": counted, "vectors": vectors}  # fmt: skip


def walked(program, steps, walkers=40, anywhere=False, groups=1):
    """The share of the steps of a Metropolis walk at each path; its target is the prior probability."""
    division = ab.find_paths(program, executions=4_000)
    rng = np.random.default_rng(1)
    labels = label_names(division.paths)
    # Far from the target, so that a wrong ratio is not hidden, and with values that some of the paths cannot have.
    numbers = range(len(division.paths))
    tables = fit_decision_tables(division.paths, [1.0 + (i % 3) for i in numbers], [i % groups for i in numbers])
    assert len(tables.groups) == (1 if groups == 1 else 1 + groups)

    def moves(at):
        if anywhere:
            return move_to_any_path(division, at, tables, rng)
        return move_between_paths(division, at, labels, rng)

    # From the target: the tables hardly ever draw some of the heavy paths, so that it takes long to come to it.
    mass = np.array([path.prior_probability for path in division.paths])
    at = [division.paths[i] for i in rng.choice(len(mass), walkers, p=mass / mass.sum())]
    met: Counter[str] = Counter()
    for step in range(steps):
        for i, move in enumerate(moves(at)):
            if move.path is not None and move.log_ratio > -np.inf:
                gain = move.path.log_prior_probability - at[i].log_prior_probability + move.log_ratio
                if np.log(rng.random()) < gain:
                    at[i] = move.path
        if step >= steps // 5:
            met.update(path.description for path in at)
    return division, met, labels


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("anywhere", "groups"), [(False, 1), (True, 1), (True, 3)])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_walk_visits_paths_in_proportion_to_their_mass(name, anywhere, groups):
    """Without data the evidence of a path is its prior probability. A wrong ratio shows as another distribution."""
    division, met, _ = walked(PROGRAMS[name], steps=150, anywhere=anywhere, groups=groups)
    probability = {path.description: path.prior_probability for path in division.paths}
    total = sum(met.values())
    heavy = [text for text, p in probability.items() if p > 0.01]
    assert len(heavy) > 5 or name == "counted"
    for text in heavy:
        p = probability[text]
        # Successive steps are correlated: a move is made in one of a few of them.
        assert abs(met[text] / total - p) < 4 * np.sqrt(p * (1 - p) / (total / 40)), text


def test_labels_are_found_and_no_others():
    assert label_names(ab.find_paths(restaurant).paths) == {f"t{i}" for i in range(5)}
    assert label_names(ab.find_paths(seated_first).paths) == {f"t{i}" for i in range(4)}
    assert label_names(ab.find_paths(subset).paths) == frozenset()
    assert label_names(ab.find_paths(grammar).paths) == frozenset()


def test_a_move_is_reversible():
    """The ratio of a move and that of the move back add up to zero: here every move has one way back."""
    division = ab.find_paths(grammar, executions=4_000)
    rng, ratios = np.random.default_rng(0), {}
    for _ in range(40):
        paths = division.paths[:20]
        for path, move in zip(paths, move_between_paths(division, paths, frozenset(), rng), strict=True):
            if move.path is not None and move.log_ratio > -np.inf:
                ratios.setdefault((path.signature, move.path.signature), set()).add(round(move.log_ratio, 9))
    pairs = [key for key in ratios if key[::-1] in ratios]
    assert len(pairs) > 20
    for one, other in pairs:
        assert {round(-ratio, 9) for ratio in ratios[one, other]} & ratios[other, one]


def test_paths_with_guards_are_not_walked():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if ab.sample("z", dist.Bernoulli(0.5)) and x > 0:
            ab.sample("y", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program)
    assert {can_walk(path) for path in division.paths} == {True, False}
    walkers = [path for path in division.paths if can_walk(path)] * 20
    moves = move_between_paths(division, walkers, frozenset(), np.random.default_rng(0))
    assert all(move.path is None or can_walk(move.path) or move.log_ratio == -np.inf for move in moves)


def test_probabilities_that_depend_on_reals_are_not_guessed():
    """A site that appears with a probability that is itself random cannot be drawn with a known one."""

    def program():
        p = ab.sample("p", dist.Beta(2.0, 2.0))
        if ab.sample("more", dist.Bernoulli(0.5)) and ab.sample("z", dist.Bernoulli(p)):
            ab.sample("y", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program)
    with_z = [path for path in division.paths if "z" in path.addresses]
    without = [path for path in division.paths if "z" not in path.addresses]
    rng = np.random.default_rng(0)
    for start, end in ((with_z, without), (without, with_z)):
        moves = move_between_paths(division, start * 30, frozenset(), rng)
        across = [move for move in moves if move.path in end]
        assert across
        assert all(move.log_ratio == -np.inf for move in across)


def test_known_paths_are_found_without_executions():
    division = ab.find_paths(subset)
    runs = division.python_runs
    for path in division.paths:
        assert division.path_with(path.recording.fixed) is path
    assert division.path_with({"z0": jnp.asarray(1)}) is None  # the others decide, too
    assert division.python_runs == runs


def test_the_probabilities_of_draws_from_the_tables_of_groups_add_up_to_one():
    division = ab.find_paths(subset, executions=4_000)
    paths = division.paths
    tables = fit_decision_tables(paths, [1.0] * len(paths), [i % 4 for i in range(len(paths))])
    assert abs(tables.shares.sum() - 1) < 1e-12
    assert abs(sum(np.exp(tables.log_probability(path)) for path in paths) - 1) < 1e-9
    drawn = Counter(
        move.path.description
        for move in move_to_any_path(division, [paths[0]] * 4_000, tables, np.random.default_rng(3))
    )
    for path in paths:
        q = np.exp(tables.log_probability(path))
        assert abs(drawn[path.description] / 4_000 - q) < 4.5 * np.sqrt(q / 4_000) + 1e-9
