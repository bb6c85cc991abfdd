"""Blocked Gibbs moves where not all discrete variables can be summed out, against sums over all values."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import anabranch as ab
from anabranch.conquer import SMC, Elimination, PathTarget, solve
from anabranch.conquer.elimination import Eliminated, eliminate
from anabranch.conquer.smc_mutation import Mutation, Shape, Tuning
from anabranch.conquer.smc_tempering import Tempering
from anabranch.conquer.target import TargetSettings
from anabranch.divide import finite_values
from anabranch.limits import LimitReached
from elimination_cases import (
    SPLIT,
    a_count_of_all,
    factorial,
    grid,
    guarded,
    hidden_markov,
    missing_data,
    scaled_and_masked,
    several_sequences,
)

pytestmark = pytest.mark.one_in(2)


def lattice(rows: int, columns: int) -> np.ndarray:
    number = np.arange(rows * columns).reshape(rows, columns)
    across = np.stack([number[:, :-1].ravel(), number[:, 1:].ravel()], axis=1)
    return np.concatenate([across, np.stack([number[:-1].ravel(), number[1:].ravel()], axis=1)])


def ising(rows: int, columns: int, coupling: float, y: np.ndarray):
    """Noisy observations of a lattice of spins."""
    pairs = lattice(rows, columns)
    s = 2.0 * ab.sample("z", dist.Bernoulli(0.5).expand([rows * columns]).to_event(1)) - 1
    ab.factor("energy", coupling * jnp.sum(s[pairs[:, 0]] * s[pairs[:, 1]]))
    ab.observe("y", dist.Normal(s, 2.0).to_event(1), y)


def machine(weights: np.ndarray, x_sd: float = 0.0):
    """A Boltzmann machine, all units connected, maybe with a real coordinate that shifts their field."""
    n = len(weights)
    i, j = np.triu_indices(n, 1)
    x = ab.sample("x", dist.Normal(0.0, x_sd)) if x_sd else 0.0
    s = 2.0 * ab.sample("z", dist.Bernoulli(0.4).expand([n]).to_event(1)) - 1
    ab.factor("pairs", jnp.sum(jnp.asarray(weights[i, j]) * s[i] * s[j]))
    ab.factor("field", jnp.sum((x + jnp.asarray(np.diag(weights))) * s))


def symmetric(n: int, scale: float, seed: int = 0) -> np.ndarray:
    weights = scale * np.random.default_rng(seed).normal(size=(n, n))
    return (weights + weights.T) / 2


def five_units():
    machine(symmetric(5, 0.7))


def log_sum_of_machine(weights: np.ndarray, x: float = 0.0) -> float:
    n = len(weights)
    z = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    s = 2.0 * z - 1
    i, j = np.triu_indices(n, 1)
    energy = (s[:, i] * s[:, j]) @ weights[i, j] + s @ (x + np.diag(weights))
    return float(logsumexp(energy + np.log(np.where(z == 1, 0.4, 0.6)).sum(axis=1)))


def kept_target(program, *args, settings: Elimination, host: int = 10**9, split=None) -> Eliminated:
    path = max(
        ab.find_paths(program, *args, executions=200, split=split or {}).paths,
        key=lambda path: (bool(path.recording.observations), path.prior_probability),
    )
    target = eliminate(
        PathTarget(path, settings=TargetSettings(compile_above=host)), settings, np.random.default_rng(0)
    )
    assert isinstance(target, Eliminated)
    return target


def brute(target: Eliminated, x: np.ndarray, beta: float) -> np.ndarray:
    """log Σ_z prior · likelihood^β by the sum over all values."""
    z = np.array(list(itertools.product(*target.values.values())), float)
    points = np.empty((len(x), len(z), target.path.dim))
    points[..., target.columns], points[..., list(target.values)] = x[:, None], z
    found = target.path.evaluate(points.reshape(-1, target.path.dim), compile=False)
    with np.errstate(invalid="ignore"):
        logs = np.where(found.inside, found.log_prior + (beta * found.log_likelihood if beta else 0.0), -np.inf)
    with np.errstate(divide="ignore"):
        return logsumexp(logs.reshape(len(x), len(z)), axis=1)


# Blocks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "args", "blocks"),
    [(ising, (8, 8, 0.3, np.zeros(64)), 2), (machine, (symmetric(20, 0.3),), 4)],
)
def test_blocks_of_bounded_width_cover_all_variables(program, args, blocks):
    target = kept_target(program, *args, settings=Elimination(max_factor=2**6))
    assert target.discrete.any()
    assert target.redrawn.all()
    assert 1 + len(target.others) == blocks
    sizes = dict.fromkeys(range(target.path.dim), 2)
    for block in (target.block, *target.others):
        for tables in block.tables:
            largest = max(2 ** (1 + len(each)) for each in tables.order.neighbours)
            assert largest <= 2**6
            assert tables.order.numbers(sizes) <= 2**6 * len(block.values)


def test_a_variable_with_too_many_values_is_in_no_block():
    def program():
        z = ab.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1))
        k = ab.sample("k", dist.Categorical(jnp.ones(40) / 40))
        ab.observe("y", dist.Normal(k + jnp.sum(z), 1.0), 7.0)

    target = kept_target(program, settings=Elimination(max_factor=2**4, max_enumerated=0))
    assert target.dim == 1
    assert not target.others
    assert target.notes == ("1 of 4 discrete variables were sampled, not summed out: the tables would be too large.",)


SMALL = Elimination(max_factor=4, max_enumerated=0)
KEPT = [hidden_markov, factorial, missing_data, grid, a_count_of_all, scaled_and_masked, guarded, several_sequences]


@pytest.mark.parametrize("program", KEPT)
def test_the_tempered_sum_is_that_over_all_values(program):
    target = kept_target(program, settings=SMALL, split=SPLIT.get(program))
    assert target.others
    points = target.prior(6, np.random.default_rng(0)).points
    for beta in (0.0, 0.2, 1.0):
        evaluation, found = target.tempered(points, beta)
        np.testing.assert_allclose(found, brute(target, points, beta), atol=1e-9, rtol=1e-9)
        np.testing.assert_allclose(evaluation.log_density, brute(target, points, 1.0), atol=1e-9, rtol=1e-9)


def test_what_is_compiled_is_the_same():
    target = kept_target(machine, symmetric(6, 0.5), 1.0, settings=Elimination(max_factor=2**3), host=0)
    points = target.prior(5, np.random.default_rng(0)).points
    for beta in (0.0, 0.7):
        np.testing.assert_allclose(target.tempered(points, beta)[1], brute(target, points, beta), atol=1e-9)
    assert target.evaluations == 10


def test_a_likelihood_of_zero_counts_at_the_start_alone():
    def program():
        z = ab.sample("z", dist.Bernoulli(0.5).expand([4]).to_event(1))
        ab.factor("f", jnp.where(jnp.sum(z) > 3, 0.0, -jnp.inf))
        ab.factor("g", 0.3 * z[0] * z[1])

    target = kept_target(program, settings=Elimination(max_factor=2**2, max_enumerated=0))
    points = np.array(list(itertools.product((0.0, 1.0), repeat=target.dim)))
    for beta in (0.0, 0.5, 1.0):
        np.testing.assert_allclose(target.tempered(points, beta)[1], brute(target, points, beta), atol=1e-12)


# Moves ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("program", [five_units, missing_data, scaled_and_masked, several_sequences])
def test_redrawn_blocks_are_reversible_for_the_tempered_sum(program, beta):
    target = kept_target(program, settings=SMALL, split=SPLIT.get(program))
    known = [finite_values(target.path)[column] or (0.3,) for column in target.columns]
    values = np.array(list(itertools.product(*known)), float)
    logs = brute(target, values, beta)
    exact = np.exp(logs - logsumexp(logs))
    n, rng = 10_000, np.random.default_rng(1)
    before = rng.choice(len(values), n, p=exact)
    moved, found = target.redraw(values[before], beta, rng)
    np.testing.assert_allclose(found, logs[before], atol=1e-9)
    assert target.evaluations == n * (1 + len(target.others))
    numbers = {tuple(value): i for i, value in enumerate(values)}
    after = np.array([numbers[tuple(point)] for point in moved])
    counts = np.bincount(after, minlength=len(values))
    assert (np.abs(counts - n * exact) <= 4.5 * np.sqrt(n * exact) + 2).all()
    flow = np.zeros((len(values), len(values)))
    np.add.at(flow, (before, after), 1)
    assert (np.abs(flow - flow.T) <= 4.5 * np.sqrt(flow + flow.T)).all()
    assert (before != after).mean() > 0.1


@pytest.mark.parametrize("beta", [0.4, 1.0])
def test_moves_come_to_the_tempered_density(beta):
    target = kept_target(machine, symmetric(6, 0.7), settings=Elimination(max_factor=2**2, max_enumerated=0))
    values = np.array(list(itertools.product((0.0, 1.0), repeat=target.dim)))
    tempering, n = Tempering(target), 1_000
    logs = tempering.at(values).log_density(beta)
    means = np.exp(logs - logsumexp(logs)) @ values
    start = tempering.at(np.repeat(values[:1], n, axis=0))
    shape = Shape.of(start.points, np.arange(n), np.arange(n) % 2, target.discrete)
    states, _, _ = Mutation(tempering, beta, shape).run(start, Tuning(gradient=False), 30, np.random.default_rng(0))
    moved = states.points[-n:]
    assert (np.abs(moved.mean(axis=0) - means) < 4.5 * np.sqrt(means * (1 - means) / n)).all()


def test_a_limit_ends_the_moves():
    target = kept_target(machine, symmetric(12, 0.5), settings=Elimination(max_factor=2**4, max_enumerated=0))
    points = target.prior(10, np.random.default_rng(0)).points
    target.allow(25)
    with pytest.raises(LimitReached):
        target.redraw(points, 1.0, np.random.default_rng(0))
    assert target.evaluations == 20
    target.allow(700)
    estimate = solve(SMC(chains=16), target, 700)
    assert np.isfinite(estimate.log_evidence)
    assert target.evaluations <= 720


# Evidence -------------------------------------------------------------------------------------------------------------

WIDE = Elimination(max_factor=2**4, max_enumerated=0)


@pytest.mark.parametrize("side", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_a_lattice_against_its_exact_sum(side):
    y = np.random.default_rng(0).normal(size=side**2)
    exact = ab.infer(ising, side, side, 0.44, y, seed=0)
    assert exact.log_evidence_sd == 0
    posterior = ab.infer(ising, side, side, 0.44, y, seed=1, engine=ab.DCC(elimination=WIDE), budget=7_000)
    assert abs(posterior.log_evidence - exact.log_evidence) < 4 * posterior.log_evidence_sd < 0.4
    assert posterior.run.evaluations <= 7_140
    mean, sd = posterior.expectation(lambda draw: draw["z"][14])
    assert abs(mean - exact.probability("z[14]")[1]) < 4 * sd < 0.6


@pytest.mark.slow
def test_a_machine_with_a_real_coordinate():
    weights = symmetric(9, 0.2) - 0.3 * np.eye(9)
    shifts = np.linspace(-9, 9, 601) * 0.1
    logs = [log_sum_of_machine(weights, x) - 0.5 * (x / 0.1) ** 2 for x in shifts]
    exact = logsumexp(logs) + np.log((shifts[1] - shifts[0]) / 0.1) - 0.5 * np.log(2 * np.pi)
    posterior = ab.infer(machine, weights, 0.1, seed=0, engine=ab.DCC(elimination=WIDE), budget=15_000)
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.8


def test_where_moves_are_stuck_the_error_says_so():
    """Couplings so strong that Gibbs moves hardly leave a mode: the error is large, or the answer right."""
    weights = symmetric(14, 3.0, seed=3)
    exact = log_sum_of_machine(weights)
    posterior = ab.infer(machine, weights, seed=0, engine=ab.DCC(elimination=WIDE), budget=6_000)
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd


# What is said of it ---------------------------------------------------------------------------------------------------


def test_the_posterior_says_how_many_variables_were_sampled(tmp_path):
    posterior = ab.infer(machine, symmetric(12, 0.2), seed=0, engine=ab.DCC(elimination=WIDE), budget=6_000)
    (note,) = posterior.notes
    assert "8 of 12 discrete variables were sampled, not summed out: the tables would be too large." in note
    assert note in " ".join(str(posterior).split())
    assert not any("summed out" in warning for warning in posterior.warnings)
    posterior.save(tmp_path / "run")
    assert ab.load(tmp_path / "run").notes == posterior.notes
    assert ab.infer(machine, symmetric(12, 0.2), seed=0).notes == []


def test_the_default_size_of_tables_is_a_share_of_the_memory(monkeypatch):
    assert Elimination() == Elimination()
    for pages, numbers in ((2**20, 2**23), (2**10, 2**22), (2**30, 2**27), (-1, 2**25)):
        monkeypatch.setattr("os.sysconf", lambda name, pages=pages: pages if name == "SC_PHYS_PAGES" else 2**12)
        assert Elimination().max_numbers == numbers

    def missing(name):
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr("os.sysconf", missing)
    assert Elimination().max_numbers == 2**25
