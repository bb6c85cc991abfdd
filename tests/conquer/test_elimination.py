"""Elimination against the sum over all values, and against the forward algorithm."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import anabranch as ab
from anabranch.conquer import Elimination, PathTarget
from anabranch.conquer.elimination import Eliminated, eliminate
from anabranch.conquer.elimination.order import elimination_order
from anabranch.conquer.elimination.plan import Plan, make_plan
from anabranch.conquer.elimination.sums import draw, log_sum_by_jax, log_sum_by_numpy, marginals
from anabranch.divide import Path, finite_values
from elimination_cases import CASES, SPLIT, urn, words_of_topics

pytestmark = pytest.mark.one_in(5)

ALL = Elimination(max_enumerated=0)


def the_path(program, *args, **kwargs) -> Path:
    paths = ab.find_paths(program, *args, executions=200, **kwargs).paths
    return max(paths, key=lambda path: (bool(path.recording.observations), path.prior_probability))


def eliminated(path: Path, settings: Elimination = ALL) -> Eliminated:
    target = eliminate(PathTarget(path), settings, np.random.default_rng(0))
    assert isinstance(target, Eliminated)
    return target


# Programs -------------------------------------------------------------------------------------------------------------


def brute(target: Eliminated, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Log density and log prior by the sum over all values, and the log density of every value."""
    columns = list(target.values)
    z = np.array(list(itertools.product(*target.values.values())), float)
    points = np.empty((len(x), len(z), target.path.dim))
    points[..., target.columns], points[..., columns] = x[:, None], z
    evaluation = target.path.evaluate(points.reshape(-1, target.path.dim), compile=False)
    logs = evaluation.log_density.reshape(len(x), len(z))
    priors = np.where(evaluation.inside, evaluation.log_prior, -np.inf).reshape(len(x), len(z))
    with np.errstate(divide="ignore"):
        return logsumexp(logs, axis=1), logsumexp(priors, axis=1), logs


@cache
def solved(program) -> tuple[Eliminated, np.ndarray]:
    target = eliminated(the_path(program, split=SPLIT.get(program, {})))
    return target, np.random.default_rng(1).normal(size=(8 if target.dim else 1, target.dim)) * 1.5


@pytest.fixture(params=CASES, ids=lambda program: program.__name__)
def case(request: pytest.FixtureRequest) -> tuple[Eliminated, np.ndarray]:
    return solved(request.param)


COMPILED = [
    program if i % 3 == 0 else pytest.param(program, marks=pytest.mark.slow)
    for i, program in enumerate(program for program in CASES if program is not urn)
]
"""A third of the programs that have a gradient is compiled in the quick tests, all of them in the slow ones."""


def test_density_and_prior_are_the_sums(case):
    target, x = case
    assert not target.discrete.any()
    log_density, log_prior, _ = brute(target, x)
    evaluation = target.evaluate(x)
    np.testing.assert_allclose(evaluation.log_density, log_density, rtol=1e-10, atol=1e-10)
    inside = log_prior > -np.inf
    np.testing.assert_allclose(evaluation.log_prior[inside], log_prior[inside], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("program", COMPILED)
def test_what_is_compiled_is_the_same_and_its_gradient_that_of_the_sum(program):
    target, x = solved(program)
    log_density, _, _ = brute(target, x)
    x = x[log_density > -np.inf]
    step = 1e-5 * np.eye(target.dim)
    for beta in (1.0, 0.3):
        evaluation, gradient = target.differentiate(x, beta)
        np.testing.assert_allclose(evaluation.log_density, log_density[log_density > -np.inf], rtol=1e-10, atol=1e-9)
        for i, row in enumerate(x):
            sums = [brute(target, row + sign * step)[:2] for sign in (1, -1)]
            ups, downs = ((1 - beta) * prior + beta * density for density, prior in sums)
            np.testing.assert_allclose(gradient[i], (ups - downs) / 2e-5, rtol=1e-4, atol=1e-5)


def test_draws_have_the_conditional_distribution(case):
    target, x = case
    log_density, _, logs = brute(target, x)
    row = int(np.flatnonzero(log_density > -np.inf)[0])
    n, rng = 4_000, np.random.default_rng(0)
    drawn = target.executions(np.repeat(x[row : row + 1], n, axis=0), rng)
    assert (drawn[:, target.columns] == x[row]).all()
    values = np.array(list(itertools.product(*target.values.values())), float)
    exact = np.exp(logs[row] - log_density[row])
    numbers = {tuple(value): i for i, value in enumerate(values)}
    counts = np.bincount([numbers[tuple(each)] for each in drawn[:, list(target.values)]], minlength=len(values))
    assert not counts[exact == 0].any()
    common = exact * n > 20
    z = (counts - n * exact)[common] / np.sqrt(n * exact * (1 - exact) + 1e-300)[common]
    assert (np.abs(z) < 5).all()
    assert np.abs(z).max() > 0 or common.sum() <= 1
    found = target.conditionals(x[row : row + 1], list(target.values))
    for i, each in enumerate(found):
        shares = [exact[values[:, i] == value].sum() for value in list(target.values.values())[i]]
        np.testing.assert_allclose(each[0], shares, atol=1e-9)


def test_prior_draws_and_known_points_have_the_other_coordinates(case):
    target, _ = case
    draws = target.prior(20, np.random.default_rng(0))
    assert draws.points.shape[1] == target.dim
    assert target.known.shape == (0, target.dim)


def test_a_word_depends_on_its_own_topic():
    (tables,) = solved(words_of_topics)[0].tables
    assert tables.order.width() == 1


def test_a_condition_that_always_fails_leaves_no_density():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1))
        ab.factor("f", jnp.where(np.array([True, True, False]), x * z * z[::-1], -jnp.inf))

    target = eliminated(the_path(program))
    assert (target.evaluate(np.zeros((2, 1))).log_density == -np.inf).all()
    assert (target.differentiate(np.zeros((2, 1)))[0].log_density == -np.inf).all()


def test_points_without_a_density_are_counted():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.5).expand([2]).to_event(1))
        ab.observe("y", dist.Normal(jnp.sqrt(x) + z, 1.0), np.zeros(2))

    path = the_path(program)
    assert not eliminated(path).evaluate(np.array([[-1.0], [1.0]])).inside[0]
    assert (path.invalid, path.evaluated) == (1, 2)


def test_an_evaluation_is_one_point():
    target = eliminated(the_path(CASES[0]))
    target.evaluate(np.zeros((700, target.dim)))
    target.differentiate(np.zeros((5, target.dim)))
    assert target.evaluations == 705


def random_program(seed: int):
    """Discrete sites of random sizes, one by one and in vectors, with random parents, tables and observations."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, size=rng.integers(2, 6)).tolist()
    parents = [rng.choice(i, size=min(i, rng.integers(0, 3)), replace=False).tolist() for i in range(len(sizes))]
    tables = [rng.normal(size=(*(sizes[p] for p in parents[i]), size)) for i, size in enumerate(sizes)]
    vector, links = int(rng.integers(2, 4)), rng.integers(0, len(sizes), size=3).tolist()
    offsets, y = rng.normal(size=(vector, max(sizes))), rng.normal(size=vector)
    couplings = rng.normal(size=(2, 2)) * rng.integers(0, 2, size=(2, 2))

    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = []
        for i, table in enumerate(tables):
            logits = jnp.asarray(table)[tuple(z[p] for p in parents[i])] if parents[i] else jnp.asarray(table)
            z.append(ab.sample(f"z{i}", dist.Categorical(logits=x * logits)))
        v = ab.sample("v", dist.Bernoulli(0.3).expand([vector]).to_event(1))
        means = jnp.stack([jnp.asarray(offsets)[k, z[links[k % 3]]] for k in range(vector)])
        ab.observe("y", dist.Normal(means + x * v, 1.0), y)
        ab.factor("pairs", jnp.asarray(couplings)[v[0], v[-1]] - 0.5 * (z[0] == v[0]))

    return program


@pytest.mark.parametrize("seed", range(12))
def test_random_programs(seed):
    target = eliminated(the_path(random_program(seed)))
    x = np.random.default_rng(seed).normal(size=(4, 1))
    log_density, log_prior, _ = brute(target, x)
    evaluation = target.evaluate(x)
    np.testing.assert_allclose(evaluation.log_density, log_density, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(evaluation.log_prior, log_prior, rtol=1e-9, atol=1e-9)


# Factor graphs --------------------------------------------------------------------------------------------------------


def grouped(scopes: Sequence[tuple[int, ...]], sizes: dict[int, int]) -> list[list[tuple[int, ...]]]:
    groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for scope in scopes:
        groups.setdefault(tuple(sizes[v] for v in scope), []).append(scope)
    return list(groups.values())


def planned(scopes, sizes) -> tuple[Plan, list[list[tuple[int, ...]]]]:
    groups = grouped(scopes, sizes)
    return make_plan(groups, elimination_order(scopes, sizes, 10**9), sizes), groups


def _log(groups, tables, z: Sequence[int], point: int) -> float:
    """The sum of all factors at values of the variables."""
    pairs = [(table[point, i], scope) for g, table in zip(groups, tables, strict=True) for i, scope in enumerate(g)]
    return float(sum(table[tuple(z[v] for v in scope)] for table, scope in pairs))


@pytest.mark.parametrize("trials", [15, pytest.param(60, marks=pytest.mark.slow)])
def test_random_factor_graphs(trials):
    rng = np.random.default_rng(0)
    for trial in range(trials):
        n = int(rng.integers(1, 8))
        sizes = {v: int(rng.integers(1, 4)) for v in range(n)}
        scopes = {tuple(sorted(rng.choice(n, size=min(n, rng.integers(1, 4)), replace=False).tolist()))
                  for _ in range(rng.integers(1, 10))}  # fmt: skip
        plan, groups = planned(sorted(scopes), sizes)
        tables = [rng.normal(size=(2, len(g), *(sizes[v] for v in g[0]))) for g in groups]
        values = list(itertools.product(*(range(sizes[v]) for v in range(n))))
        logs = np.array([[_log(groups, tables, z, p) for z in values] for p in (0, 1)])
        exact = logsumexp(logs, axis=1)
        np.testing.assert_allclose(log_sum_by_numpy(plan, tables), exact, rtol=1e-10, atol=1e-10)
        if trial % 5 == 0:
            with jax.enable_x64(True):
                by_jax = float(log_sum_by_jax(plan, [jnp.asarray(t[1]) for t in tables]))
            assert by_jax == pytest.approx(exact[1], abs=1e-10)
        found = marginals(plan, tables, 2)
        for v in range(n):
            shares = [np.bincount([z[v] for z in values], np.exp(logs[p] - exact[p]), sizes[v]) for p in (0, 1)]
            np.testing.assert_allclose(found[v], shares, atol=1e-10)


def test_draws_of_a_factor_graph():
    rng = np.random.default_rng(0)
    scopes, sizes = [(0, 1), (1, 2), (0, 2), (2, 3)], {0: 2, 1: 3, 2: 2, 3: 3}
    plan, groups = planned(scopes, sizes)
    tables = [rng.normal(size=(1, len(g), *(sizes[v] for v in g[0]))) for g in groups]
    n = 20_000
    drawn, log_sum = draw(plan, [np.repeat(t, n, axis=0) for t in tables], n, rng)
    np.testing.assert_allclose(log_sum, log_sum_by_numpy(plan, tables)[0], atol=1e-12)
    exact = marginals(plan, tables, 1)
    for v, size in sizes.items():
        z = (np.bincount(drawn[v], minlength=size) - n * exact[v][0]) / np.sqrt(n * exact[v][0] * (1 - exact[v][0]))
        assert np.abs(z).max() < 4.5


@pytest.mark.parametrize("length", [50, 400])
def test_a_chain_is_one_loop_and_a_plate_one_batch(length):
    chain = [(i, i + 1) for i in range(length - 1)] + [(i,) for i in range(length)]
    sizes = dict.fromkeys(range(length), 3)
    plan, _ = planned(chain, sizes)
    assert plan.order.width() == 1
    assert plan.operations <= 4
    assert plan.order.numbers(sizes) == 9 * (length - 1) + 3
    plate, _ = planned([(i,) for i in range(length)], sizes)
    assert len(plate.batches) == 1


def test_two_coupled_chains_are_one_loop_of_two_steps():
    n = 60
    scopes = [(i, i + 2) for i in range(2 * n - 2)] + [(2 * i, 2 * i + 1) for i in range(n)]
    plan, _ = planned(scopes, dict.fromkeys(range(2 * n), 3))
    assert plan.order.width() == 2
    assert plan.operations < 12


def test_many_chains_side_by_side_are_one_loop():
    n, length = 7, 40
    scopes = [(length * c + i, length * c + i + 1) for c in range(n) for i in range(length - 1)]
    plan, _ = planned(scopes, dict.fromkeys(range(n * length), 2))
    assert plan.operations <= 4


def test_a_lattice_has_the_width_of_its_shorter_side():
    rows, columns = 4, 12
    scopes = [(r * columns + c, r * columns + c + 1) for r in range(rows) for c in range(columns - 1)]
    scopes += [(r * columns + c, (r + 1) * columns + c) for r in range(rows - 1) for c in range(columns)]
    order = elimination_order(scopes, dict.fromkeys(range(rows * columns), 2), 10**9)
    assert order.width() <= rows + 1
    assert not order.kept


def test_what_is_too_wide_is_kept():
    scopes = list(itertools.combinations(range(8), 2))
    order = elimination_order(scopes, dict.fromkeys(range(8), 3), 3**4)
    assert len(order.kept) == 4
    assert order.width() <= 3
    assert sorted((*order.kept, *order.variables)) == list(range(8))


# Hidden Markov models -------------------------------------------------------------------------------------------------


def forward(log_start, log_steps, log_likelihood):
    """The forward algorithm."""
    alpha = log_start + log_likelihood[0]
    for t in range(1, len(log_likelihood)):
        alpha = logsumexp(alpha[:, None] + log_steps, axis=0) + log_likelihood[t]
    return logsumexp(alpha)


def hidden(y, steps, means):
    steps, means = jnp.asarray(steps), jnp.asarray(means)  # in double precision, as everything in a program
    z = ab.sample("z0", dist.Categorical(jnp.ones(len(means)) / len(means)))
    ab.observe("y0", dist.Normal(means[z], 1.0), y[0])
    for t in range(1, len(y)):
        z = ab.sample(f"z{t}", dist.Categorical(steps[z]))
        ab.observe(f"y{t}", dist.Normal(means[z], 1.0), y[t])


@pytest.mark.parametrize(
    ("states", "length"),
    [(2, 60), (5, 30), (30, 12), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, 2_000), (30, 300)))],
)
def test_hidden_markov_models_against_the_forward_algorithm(states, length):
    rng = np.random.default_rng(states)
    steps, means = rng.dirichlet(np.ones(states), size=states), rng.normal(size=states) * 3
    y = rng.normal(size=length) * 2
    posterior = ab.infer(hidden, y, steps, means, seed=0)
    likelihood = -0.5 * (y[:, None] - means) ** 2 - 0.5 * np.log(2 * np.pi)
    exact = forward(np.full(states, -np.log(states)), np.log(steps), likelihood)
    assert posterior.log_evidence == pytest.approx(exact, abs=1e-8)
    assert posterior.log_evidence_sd == 0
    assert posterior.run.evaluations == 1
    assert posterior.paths["method"].tolist() == ["Elimination"]


def test_the_number_of_states_is_unknown():
    """Fifteen steps; with three and four states the paths were given up before discrete variables were eliminated."""

    def program(y):
        k = int(ab.sample("K", dist.DiscreteUniform(1, 4)))
        hidden(y, 0.8 * jnp.eye(k) + 0.2 / k, 1.5 * jnp.arange(k))

    y = np.random.default_rng(0).normal(size=15) + 1.0
    posterior = ab.infer(program, y, seed=0)
    exact = []
    for k in range(1, 5):
        likelihood = -0.5 * (y[:, None] - 1.5 * np.arange(k)) ** 2 - 0.5 * np.log(2 * np.pi)
        exact.append(forward(np.full(k, -np.log(k)), np.log(0.8 * np.eye(k) + 0.2 / k), likelihood) - np.log(4))
    assert posterior.log_evidence == pytest.approx(logsumexp(exact), abs=1e-8)
    for k in range(1, 5):
        assert posterior.probability("K")[k] == pytest.approx(np.exp(exact[k - 1] - logsumexp(exact)), abs=1e-8)


# Through the public face ----------------------------------------------------------------------------------------------


def test_a_long_ising_chain_is_exact():
    def ising(n):
        s = 2.0 * ab.sample("z", dist.Bernoulli(0.5).expand([n]).to_event(1)) - 1
        ab.factor("energy", 0.3 * jnp.sum(s[1:] * s[:-1]) + 0.1 * jnp.sum(s))

    n, coupling, field = 120, 0.3, 0.1
    posterior = ab.infer(ising, n, seed=0)
    signs = np.array([-1.0, 1.0])
    transfer = np.exp(coupling * np.outer(signs, signs) + field * (signs[:, None] + signs) / 2)
    ends = np.exp(field * signs / 2)
    exact = np.log(ends @ np.linalg.matrix_power(transfer, n - 1) @ ends) - n * np.log(2)
    assert posterior.log_evidence == pytest.approx(exact, abs=1e-8)
    assert posterior.log_evidence_sd == 0
    left, right = np.linalg.matrix_power(transfer, 3), np.linalg.matrix_power(transfer, n - 4)
    share = (ends @ left) * (right @ ends) / (ends @ left @ right @ ends)
    assert posterior.probability("z[3]")[1] == pytest.approx(share[1], abs=1e-9)
    mean, sd = posterior.expectation(lambda draw: draw["z"][3])
    assert abs(mean - share[1]) < 4 * sd < 0.1


def test_probabilities_are_means_of_conditional_probabilities():
    """Of a mixture with assignments: the error is that of the other draws alone."""

    def program(y):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.3).expand([len(y)]).to_event(1))
        ab.observe("y", dist.Normal(x + 3.0 * z, 1.0), y)

    y = np.array([0.2, 2.9, 0.1, 1.4])
    posterior = ab.infer(program, y, seed=0, tolerance=0.02)
    grid = np.linspace(-6, 6, 2_001)
    given = np.stack([np.log(p) - 0.5 * (y - grid[:, None] - 3 * k) ** 2 for k, p in ((0, 0.7), (1, 0.3))])
    log_x = logsumexp(given, axis=0).sum(axis=1) - 0.5 * grid**2
    of_one = np.exp(given[1] - logsumexp(given, axis=0))
    exact = np.exp(log_x - logsumexp(log_x)) @ of_one
    for i in range(4):
        assert posterior.probability(f"z[{i}]")[1] == pytest.approx(exact[i], abs=0.01)


def test_an_element_that_is_not_there():
    posterior = ab.infer(lambda: ab.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1)), seed=0)
    assert posterior.probability("z[1]")[1] == pytest.approx(0.5)
    with pytest.raises(ab.errors.UnknownName, match=r"'y\[1\]'"):
        posterior.probability("y[1]")
    with pytest.raises(IndexError, match="shape"):
        posterior.probability("z[1, 2]")


# What is not summed out -----------------------------------------------------------------------------------------------


def test_left_alone():
    def continuous():
        ab.sample("x", dist.Normal(0.0, 1.0))

    def prior_alone():
        ab.sample("k", dist.Poisson(2.0))

    def enumerable():
        ab.sample("z", dist.Bernoulli(0.5).expand([5]).to_event(1))

    for program in (continuous, prior_alone, enumerable):
        target = PathTarget(the_path(program))
        assert eliminate(target, Elimination(), np.random.default_rng(0)) is target


def test_sites_with_a_long_tail_stay_beside_finite_ones():
    def program():
        k = ab.sample("k", dist.NegativeBinomial2(1e4, 0.1))
        z = ab.sample("z", dist.Bernoulli(0.3))
        ab.observe("y", dist.Normal(jnp.log1p(k) + z, 1.0), 2.5)

    target = eliminate(PathTarget(the_path(program)), Elimination(), np.random.default_rng(0))
    assert isinstance(target, Eliminated)
    assert (target.dim, target.discrete.tolist()) == (1, [True])
    log_density, _, _ = brute(target, np.arange(12.0)[:, None])
    np.testing.assert_allclose(target.evaluate(np.arange(12.0)[:, None]).log_density, log_density, rtol=1e-10)


def test_where_all_interact_some_are_kept():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.5).expand([12]).to_event(1))
        ab.observe("y", dist.Normal(x + jnp.all(z == 1), 1.0), 1.0)

    path = the_path(program)
    target = eliminated(path, Elimination(max_factor=2**6))
    assert target.dim == 1 + 6
    assert target.discrete.sum() == 6
    x = np.random.default_rng(0).integers(0, 2, size=(5, 7)).astype(float)
    log_density, _, _ = brute(target, x)
    np.testing.assert_allclose(target.evaluate(x).log_density, log_density, rtol=1e-10)


def changes(n, rates):
    """Counts of 60 days with n changes of the rate, on days."""
    days = [ab.sample(f"day{i}", dist.DiscreteUniform(1, 59)) for i in range(n)]
    rate = jnp.stack([ab.sample(f"rate{i}", dist.Gamma(2.0, 1.0)) if rates else 1.0 + i for i in range(n + 1)])
    segment = jnp.searchsorted(jnp.sort(jnp.stack(days)), np.arange(60), side="right")
    ab.observe("y", dist.Poisson(rate[segment]), np.arange(60) // 20)


@pytest.mark.parametrize(("n", "rates", "dim"), [(1, True, 2), (2, True, 5), (2, False, 0)])
def test_few_variables_with_many_values_are_sampled_where_there_are_others(n, rates, dim):
    """One is summed out, and two are where nothing else is drawn: then the sum is made once."""
    target = eliminate(PathTarget(the_path(changes, n, rates)), ALL, np.random.default_rng(0))
    assert target.dim == dim
    assert ("a sum over them takes longer" in " ".join(target.notes)) == (dim == 5)


def test_no_table_is_built_that_is_too_large():
    """Ten draws from an urn with ten balls: each depends on all colours."""

    def program():
        colours = jnp.stack([ab.sample(f"c{i}", dist.Bernoulli(0.5)) for i in range(10)])
        for t in range(10):
            ball = ab.sample(f"b{t}", dist.Categorical(jnp.ones(10) / 10))
            ab.observe(f"o{t}", dist.Bernoulli(jnp.where(colours[ball] == 1, 0.8, 0.2)), t % 2)

    path = the_path(program)
    tracemalloc.start()
    try:
        target = eliminate(PathTarget(path), Elimination(max_numbers=2**18, max_factor=2**12), np.random.default_rng(0))
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()
    assert isinstance(target, Eliminated)
    assert sum(each.numbers for each in target.tables) <= 2**18
    assert finite_values(path)
