"""More paths, found by proposals from executions of known ones."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.divide.discover import _any_other, known_points, neighbours, propose
from anabranch.divide.graph import Node
from anabranch.divide.site_transforms import can_have
from corpus import CASES
from helpers import indicator, interpreted, row

pytestmark = pytest.mark.one_in(2)

CORPUS = {case.name: case for case in CASES}


def points_of(path, n=20):
    return path.prior(n, seed=1).points


def explore(division, rng, rounds, *, how=propose, n=20):
    """From every path known at the start of each round."""
    for _ in range(rounds):
        for path in list(division.by_signature.values()):
            how(division, path, points_of(path, n), rng)


def geometric():
    n = 0
    while ab.sample(f"again{n}", dist.Bernoulli(0.5)):
        n += 1
    ab.sample("x", dist.Normal(float(n), 1.0))


def restaurant(n=5):
    """A Chinese restaurant process: the table of each guest, each table with a mean."""
    counts = []
    for i in range(n):
        probs = np.array([*counts, 1.0]) / (i + 1.0)
        table = int(ab.sample(f"table{i}", dist.Categorical(probs)))
        counts[table : table + 1] = [counts[table] + 1 if table < len(counts) else 1.0]
    for k in range(len(counts)):
        ab.sample(f"mean{k}", dist.Normal(0.0, 1.0))


def walk():
    position, t = ab.sample("start", dist.Uniform(0.0, 3.0)), 0
    while position > 0 and t < 8:
        position = position + ab.sample(f"step{t}", dist.Uniform(-1.0, 1.0))
        t += 1
    ab.observe("y", dist.Normal(position, 1.0), 0.0)


def shrinking():
    """Supports and shapes that follow a number."""
    n = int(ab.sample("n", dist.DiscreteUniform(1, 30)))
    ab.sample("near", dist.Uniform(20.0 / n, 40.0 / n))
    ab.sample("weights", dist.Dirichlet(jnp.ones(n + 1)))
    ab.sample("kept", dist.Normal(0.0, 1.0))


def fixed_values(division, name):
    return {int(site.value) for path in division for site in path.sites if site.name == name and site.value is not None}


# What is reached ------------------------------------------------------------------------------------------------------


def test_flipping_the_last_fixed_site_goes_deeper_into_a_loop():
    division = ab.find_paths(geometric, executions=1)
    deepest = max(len(path.sites) for path in division)
    rng = np.random.default_rng(0)
    for _ in range(10):
        path = max(division, key=lambda path: len(path.sites))
        found = neighbours(division, path, points_of(path, 1), rng)
        assert any(len(arrival.path.sites) > len(path.sites) for arrival in found.arrivals)
    assert max(len(path.sites) for path in division) >= deepest + 10


def test_neighbouring_partitions_of_a_restaurant_are_reached():
    """All 52 partitions of five guests, from one."""
    division = ab.find_paths(restaurant, executions=1)
    explore(division, np.random.default_rng(1), rounds=5, how=neighbours, n=1)
    assert len(division) == 52
    assert division.prior_mass_found == pytest.approx(1.0)


def tables(path):
    return tuple(int(site.value) for site in path.sites if site.name.startswith("table"))


@pytest.mark.parametrize(("seated", "opened"), [((0, 0, 1, 2, 2, 2), (0, 1, 2, 3, 3, 3)), ((0, 0, 1, 1), (0, 1, 2, 2))])
def test_labels_move_up_and_down_as_one_is_opened_or_closed(seated, opened):
    """One guest leaves for a table alone, and those at later tables stay together; and back."""
    division = ab.find_paths(restaurant, len(seated), executions=1)
    for here, there in ((seated, opened), (opened, seated)):
        [group] = division.route({f"table{i}": np.array([table]) for i, table in enumerate(here)})
        around = neighbours(division, group.path, points_of(group.path, 1), np.random.default_rng(0))
        assert there in {tables(arrival.path) for arrival in around.arrivals}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_misspecified_mixture_comes_down_to_few_parts(seed):
    """From paths near K = 91, without inference: down a few generations, in about one Python run for each new path."""
    division = ab.find_paths(programs.misspecified_mixture, programs.mixture_data(), executions=50, seed=seed)
    rng = np.random.default_rng(seed)
    runs, paths = division.python_runs, len(division)
    for _ in range(4):
        smallest = min(division, key=lambda path: path.dim)
        for how in (propose, neighbours):
            how(division, smallest, points_of(smallest), rng)
    assert min(path.dim for path in division) <= 6
    assert division.python_runs - runs == len(division) - paths < 100


def test_local_moves_of_reals_reach_the_paths_beside_a_guard():
    division = ab.find_paths(walk, executions=1)
    lengths = {len(path.sites) for path in division}
    explore(division, np.random.default_rng(0), rounds=3)
    assert lengths < {len(path.sites) for path in division} >= {2, 3, 4, 5, 6}


def test_a_rare_branch_is_reached_by_steps_in_unconstrained_coordinates():
    """Its prior probability is 4e-10: from points near it, local moves get there."""

    def tail():
        rate = ab.sample("rate", dist.Gamma(2.0, 1.0))
        if rate > 25:
            ab.sample("rare", dist.Normal(0.0, 1.0))

    division = ab.find_paths(tail, executions=100)
    [path] = division.paths
    points = path.points({"rate": np.full(50, 20.0)})
    propose(division, path, points, np.random.default_rng(0))
    [rare] = [other for other in division if other is not path]
    assert rare.addresses == ("rate", "rare")


@pytest.mark.parametrize("name", ["pedestrian", "geometric", "stick_breaking", "dynamic_support"])
def test_programs_of_the_corpus_give_more_paths_in_both_ways_of_running_them(name):
    case = CORPUS[name]
    for division in (ab.find_paths(case.program, *case.args, executions=2), interpreted(case.program, *case.args)):
        division.explore(2, seed=0)
        before = len(division)
        explore(division, np.random.default_rng(2), rounds=2, n=5)
        assert before < len(division) or len(division) == case.paths


# What is proposed -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [shrinking, restaurant, geometric, walk])
def test_every_proposal_is_an_execution_of_the_path_it_arrived_at(program):
    division = ab.find_paths(program, executions=20)
    rng = np.random.default_rng(3)
    for path in division.paths[:3]:
        for how in (propose, neighbours):
            for executions in how(division, path, points_of(path), rng).arrivals:
                values = executions.values()
                assert all(indicator(executions.path, row(values, i)) for i in range(len(executions.members)))
                points = known_points(executions)
                assert len(points) == len(executions.members)
                assert np.isfinite(executions.path.evaluate(points, compile=False).log_prior).all()


def test_what_fits_is_kept_and_what_does_not_is_drawn_again():
    division = ab.find_paths(shrinking, executions=5)
    path = division.paths[0]
    old = path.values(points := points_of(path, 30))
    n = path.sites[0].value
    others = kept = 0
    for executions in neighbours(division, path, points, np.random.default_rng(0), max_changes=30).arrivals:
        values = executions.values()
        m = values["n"][0]
        assert m != n
        fits = (20.0 / m <= old["near"]) & (old["near"] <= 40.0 / m)
        for near, x in zip(values["near"], values["kept"], strict=True):
            assert 20.0 / m <= near <= 40.0 / m
            assert x in old["kept"]
            came_from = old["kept"] == x
            assert (near == old["near"][came_from]).all() == fits[came_from].all()
            kept, others = kept + fits[came_from].all(), others + (~fits[came_from]).all()
    assert kept
    assert others


def test_one_site_is_changed_and_the_others_are_kept():
    division = ab.find_paths(walk, executions=200)
    path = max(division.paths[:3], key=lambda path: path.dim)
    points = points_of(path, 200)
    old = path.values(points)
    changes = []
    for executions in propose(division, path, points, np.random.default_rng(0)).arrivals:
        for i, member in enumerate(executions.members):
            new = row(executions.values(), i)
            changes.append(sum(new[name] != old[name][member] for name in new if name in old))
    assert set(changes) == {1}


def test_only_sites_that_decisions_depend_on_are_changed():
    def program():
        n = ab.sample("n", dist.Poisson(3.0))
        xs = [ab.sample(f"x{k}", dist.Normal(0.0, 1.0)) for k in range(n)]
        ab.sample("z", dist.Poisson(2.0))
        if n > 0 and xs[0] > 0:
            ab.sample("more", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=200)
    path = next(path for path in division if path.addresses == ("n", "x0", "x1", "z", "more"))
    points = points_of(path, 100)
    old = path.values(points)
    met = set()
    for executions in propose(division, path, points, np.random.default_rng(0)).arrivals:
        values = executions.values()
        for name in values.keys() & {"x1", "z", "more"}:
            assert (values[name] == old[name][executions.members]).all()
            met.add(name)
    assert met == {"x1", "z", "more"}


def test_a_program_of_one_path_needs_no_proposals():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x, 1.0), 0.0)

    division = ab.find_paths(program)
    [path] = division.paths
    for how in (propose, neighbours):
        found = how(division, path, points_of(path), np.random.default_rng(0))
        assert (found.arrivals, found.counts) == ([], {})
        assert len(division) == 1


def test_neighbours_take_every_value_of_a_small_support_and_the_near_ones_of_a_large():
    def program():
        ab.sample("die", dist.DiscreteUniform(1, 6))
        ab.sample("count", dist.Poisson(8.0))
        ab.sample("many", dist.DiscreteUniform(0, 1000))
        ab.sample("pair", dist.Bernoulli(0.5 * jnp.ones(2)))

    division = ab.find_paths(program, executions=1, split=["die", "count", "many", "pair"])
    [path] = division.paths
    _, count, _, pair = (site.value for site in path.sites)
    found = neighbours(division, path, np.zeros((0, 0)), np.random.default_rng(0))
    assert fixed_values(division, "die") == set(range(1, 7))
    near = {count, count - 1, count + 1, count - 2, count + 2, count // 2, 2 * count}
    assert fixed_values(division, "count") == {int(value) for value in near if value >= 0}
    values = fixed_values(division, "many")
    assert len(values) == 21
    assert max(values) - min(values) == 20
    assert {tuple(p.sites[3].value - pair) for p in division} == {
        (0, 0), (1 - 2 * pair[0], 0), (0, 1 - 2 * pair[1]),
    }  # fmt: skip
    assert found.counts == dict.fromkeys(division.by_signature.keys() - {path.signature}, 1)
    known = set(division.by_signature)
    few = neighbours(division, path, np.zeros((0, 0)), np.random.default_rng(0), max_changes=7)
    assert sum(few.counts.values()) == 7
    assert set(division.by_signature) == known


def test_counts_and_new_paths_are_those_of_the_arrivals():
    division = ab.find_paths(geometric, executions=20)
    known = set(division.by_signature)
    path = division.paths[0]
    found = propose(division, path, points_of(path, 100), np.random.default_rng(0))
    counted = dict.fromkeys(found.counts, 0)
    for executions in found.arrivals:
        counted[executions.path.signature] += len(executions.members)
    assert counted == found.counts
    assert sum(counted.values()) == 100
    assert division.by_signature.keys() - known == found.counts.keys() - known


def test_a_restart_of_the_division_leaves_old_paths_their_signatures():
    """Branches that give too many decision sequences are run as selects: all path objects are replaced."""

    def change_point(y):
        tau = ab.sample("tau", dist.Uniform(0.0, 20.0))
        level = ab.sample("level", dist.Poisson(1.0))
        for k in range(level):
            ab.sample(f"x{k}", dist.Normal(0.0, 1.0))
        for t in range(20):
            mean = 0.0
            if t < tau:
                mean = 1.0
            ab.observe(f"y{t}", dist.Normal(mean, 1.0), y)

    division = ab.find_paths(change_point, 0.5, executions=4)
    assert not division.program.selecting
    before = dict(division.by_signature)
    path = division.paths[0]
    found = propose(division, path, points_of(path, 100), np.random.default_rng(0))
    assert division.program.selecting
    assert all(division.by_signature[signature] is not old for signature, old in before.items())
    assert found.counts.keys() - before.keys() == division.by_signature.keys() - before.keys()
    again = propose(division, path, points_of(path, 100), np.random.default_rng(1))
    assert sum(again.counts.values()) == 100


def test_the_same_seed_proposes_the_same():
    def counts():
        division = ab.find_paths(shrinking, executions=10)
        path = division.paths[0]
        return propose(division, path, points_of(path), np.random.default_rng(5)).counts

    assert counts() == counts()


def test_no_python_runs_where_all_is_known():
    division = ab.find_paths(programs.misspecified_mixture, programs.mixture_data(), executions=50)
    path, paths = division.paths[0], len(division)
    first = propose(division, path, points_of(path, 100), np.random.default_rng(0))
    runs, found = division.python_runs, len(division)
    assert found > paths
    again = propose(division, path, points_of(path, 100), np.random.default_rng(0))
    assert division.python_runs == runs
    assert again.counts == first.counts
    assert len(division) == found


def test_executions_beyond_the_bound_on_sites_are_no_arrivals_of_a_path():
    division = ab.find_paths(geometric, executions=1, max_sites=4)
    explore(division, np.random.default_rng(0), rounds=6, how=neighbours)
    path = max(division, key=lambda path: len(path.sites))
    found = neighbours(division, path, points_of(path, 1), np.random.default_rng(1))
    beyond = [executions for executions in found.arrivals if executions.path is None]
    assert beyond
    assert known_points(beyond[0]).shape == (0, 0)
    assert sum(found.counts.values()) == sum(len(e.members) for e in found.arrivals if e.path is not None)


def test_rows_without_finite_coordinates_are_left_out_of_known_points():
    division = ab.find_paths(shrinking, executions=1)
    path = division.paths[0]
    values = {name: value.copy() for name, value in path.values(points_of(path, 4)).items()}
    values["near"][1] = -1.0  # outside the support
    values["near"][2] = 20.0 / int(path.sites[0].value)  # at its end
    [executions] = division.route(values)
    assert len(known_points(executions)) == 2


def test_settings_are_checked():
    division = ab.find_paths(geometric, executions=2)
    path = division.paths[0]
    with pytest.raises(ValueError, match="max_changes must be a whole number, at least 1"):
        neighbours(division, path, points_of(path), np.random.default_rng(0), max_changes=0)


# The parts ------------------------------------------------------------------------------------------------------------


def test_what_a_site_can_have():
    def program():
        n = ab.sample("n", dist.Poisson(3.0))
        ab.sample("x", dist.Uniform(0.0, 1.0 + n))
        ab.sample("z", dist.Categorical(np.array([0.5, 0.0, 0.5])))
        ab.sample("masked", dist.Binomial(4, 0.5).mask(False))
        ab.sample("simplex", dist.Dirichlet(np.ones(2)))

    recording = ab.find_paths(program, executions=1).paths[0].recording
    n, x, z, masked, simplex = recording.sites
    assert can_have(n, [np.array([3.0])], np.array([-1, 0, 7])).tolist() == [False, True, True]
    low, high = np.array([0.0]), np.array([1.0, 1.0, 5.0, 5.0])
    ends = [high if isinstance(parameter, Node) else low for parameter in x.inputs]
    assert can_have(x, ends, np.array([0.5, 2.0, 2.0, np.nan])).tolist() == [True, False, True, False]
    constants = {site.name: [np.asarray(p)[None] for p in site.inputs] for site in (z, masked, simplex)}
    assert can_have(z, constants["z"], np.array([-1, 0, 1, 2, 3])).tolist() == [False, True, False, True, False]
    assert can_have(masked, constants["masked"], np.array([-1, 1])).tolist() == [False, True]
    assert can_have(simplex, constants["simplex"], np.array([[0.5, 0.5], [0.9, 0.9]])).tolist() == [True, False]


def test_any_other_value_is_each_of_the_others_equally_often():
    n = 60_000
    new = _any_other(np.full(n, 3.0), np.full(n, 2.0), np.full(n, 5.0), np.random.default_rng(0))
    values, counts = np.unique(new, return_counts=True)
    assert values.tolist() == [2.0, 4.0, 5.0]
    np.testing.assert_allclose(counts, n / 3, atol=4 * np.sqrt(n * 2 / 9))
