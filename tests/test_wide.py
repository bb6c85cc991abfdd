"""Programs with more paths than are visited: a walk over paths estimates the mass of the others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import gammaln, logsumexp

import anabranch as ab
from anabranch.allocate import Thresholds
from anabranch.combine.evidence import join
from anabranch.search import Discovery, Walking

WIDE = ab.DCC(
    executions=40,
    max_executions=40,
    thresholds=Thresholds(many_paths=20),
    discovery=Discovery(max_python_runs=40),
    walking=Walking(walkers=24, visits_in_vain=16, max_gain=2.0, min_steps=40, max_steps=160),
)
"""Few paths are many for it, so that small programs, whose answers are known, are walked over."""

RNG = np.random.default_rng(3)
X = RNG.standard_normal((12, 8)) + 0.7 * RNG.standard_normal((12, 1))
Y = X[:, 0] - 0.6 * X[:, 1] + RNG.standard_normal(12)
POINTS = np.array([-3.1, -2.4, -0.2, 0.3, 2.6, 3.3])


def selection():
    mean = jnp.zeros(len(Y))
    for j in range(X.shape[1]):
        if ab.sample(f"z{j}", dist.Bernoulli(0.4)):
            mean = mean + X[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(mean, 1.0), Y)


@cache
def all_models() -> tuple[float, np.ndarray]:
    p, n = X.shape[1], len(Y)
    included = (np.arange(2**p)[:, None] >> np.arange(p)) & 1
    logs = []
    for row in included.astype(bool):
        precision = np.eye(row.sum()) + X[:, row].T @ X[:, row]
        fit = X[:, row].T @ Y
        explained = fit @ np.linalg.solve(precision, fit) if row.any() else 0.0
        determinant = np.linalg.slogdet(precision)[1] if row.any() else 0.0
        prior = row.sum() * np.log(0.4) + (~row).sum() * np.log(0.6)
        logs.append(prior - 0.5 * (n * np.log(2 * np.pi) + determinant + Y @ Y - explained))
    total = logsumexp(logs)
    return float(total), np.exp(np.array(logs) - total) @ included


def restaurant():
    counts: list[int] = []
    tables = []
    for i in range(len(POINTS)):
        table = int(ab.sample(f"t{i}", dist.Categorical(np.array([*counts, 1.0]) / (i + 1))))
        counts[table : table + 1] = [counts[table] + 1] if table < len(counts) else [1]
        tables.append(table)
    means = jnp.stack([ab.sample(f"mu{k}", dist.Normal(0.0, 3.0)) for k in range(len(counts))])
    ab.deterministic("clusters", len(counts))
    ab.observe("y", dist.Normal(means[np.array(tables)], 1.0), POINTS)


def partitions(members: tuple[int, ...]):
    if not members:
        yield []
        return
    first, rest = members[0], members[1:]
    for size in range(2 ** len(rest)):
        block = (first, *(each for i, each in enumerate(rest) if size >> i & 1))
        for others in partitions(tuple(each for each in rest if each not in block)):
            yield [block, *others]


@cache
def all_partitions() -> tuple[float, float]:
    """The log evidence, and the mean number of clusters."""

    def log_marginal(y: np.ndarray) -> float:
        covariance = 9.0 + np.eye(len(y))
        return float(dist.MultivariateNormal(np.zeros(len(y)), covariance).log_prob(y))

    marginal = cache(lambda block: log_marginal(POINTS[list(block)]) + gammaln(len(block)))
    n = len(POINTS)
    found = list(partitions(tuple(range(n))))
    logs = np.array([sum(marginal(block) for block in each) - gammaln(n + 1) for each in found])
    weights = np.exp(logs - logsumexp(logs))
    return float(logsumexp(logs)), float(weights @ [len(each) for each in found])


@pytest.fixture(scope="module")
def selected() -> ab.Posterior:
    return ab.infer(selection, engine=WIDE, seed=0)


def test_a_walk_estimates_what_was_not_visited(selected):
    exact, included = all_models()
    share, _ = selected.run.known_share
    assert 0.5 < share < 0.999
    assert (selected.paths["visits"] > 0).sum() < 240  # of 256
    assert abs(selected.log_evidence - exact) < 4 * selected.log_evidence_sd < 0.3
    for j in range(X.shape[1]):
        mean, sd = selected.expectation(lambda draw, j=j: float(draw[f"z{j}"]))
        assert abs(mean - included[j]) < 4 * sd < 0.2
        assert selected.probability(f"z{j}").get(1, 0.0) == pytest.approx(mean, abs=1e-9)
    assert selected.evidence.weights.sum() == pytest.approx(1.0)


def test_paths_keep_their_own_evidence(selected):
    """A path that stands for others has the weight of all of them, and its own log evidence."""
    multiples = np.array([solution.log_multiple for solution in selected.solutions])
    assert {"core": (multiples == 0).any(), "outside": (multiples != 0).any()} == {"core": True, "outside": True}
    own = np.exp(selected.paths["log_evidence"].fillna(-np.inf) - selected.log_evidence)
    assert np.allclose(selected.paths["weight"].fillna(0.0), own * np.exp(multiples), atol=1e-12)


def test_what_a_walk_has_estimated_is_no_warning(selected):
    assert not [text for text in selected.warnings if "not found" in text or "never visited" in text]


def test_a_walk_says_what_was_not_found_where_exploration_was_cut_short(selected):
    """The bound for paths that the prior's executions did not reach has no part in the error then."""
    run, possible = selected.run, selected.log_evidence + 50.0
    cut = join(selected.solutions, run.prior_mass_found, possible, run.known_share)
    assert cut.log_evidence_sd == pytest.approx(selected.log_evidence_sd)
    assert join(selected.solutions, run.prior_mass_found, possible).log_evidence_sd > 40


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3, 4, 5])
def test_partitions(seed):
    exact, clusters = all_partitions()
    posterior = ab.infer(restaurant, engine=WIDE, seed=seed)
    assert posterior.run.known_share is not None
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.5
    mean, sd = posterior.expectation(lambda draw: float(draw["clusters"]))
    assert abs(mean - clusters) < 4 * sd < 0.5


def test_the_answer_does_not_depend_on_the_number_of_workers():
    short = replace(WIDE, walking=replace(WIDE.walking, max_steps=40))
    one, two = (ab.infer(selection, engine=short, seed=0, workers=workers) for workers in (1, 2))
    assert one.run.known_share is not None
    assert one.log_evidence == two.log_evidence
    assert np.array_equal(one.evidence.weights, two.evidence.weights)


def test_a_walk_is_saved(selected, tmp_path):
    selected.save(tmp_path / "run")
    loaded = ab.load(tmp_path / "run")
    assert tuple(loaded.run.known_share) == selected.run.known_share
    assert loaded.log_evidence_sd == pytest.approx(selected.log_evidence_sd)
    assert np.allclose(loaded.evidence.weights, selected.evidence.weights)


def test_a_walk_that_a_limit_ends_too_soon_has_no_say():
    posterior = ab.infer(selection, engine=replace(WIDE, walking=replace(WIDE.walking, min_steps=240)), budget=9_000)
    exact, _ = all_models()
    assert posterior.run.known_share is None
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd


def test_a_walk_that_cannot_come_to_all_paths_has_no_say():
    """The probability of the site `extra` is random: it appears with a probability that is not known."""

    def program():
        p = ab.sample("p", dist.Beta(2.0, 2.0))
        total = sum(
            ab.sample(f"x{j}", dist.Normal(0.0, 1.0)) for j in range(5) if ab.sample(f"z{j}", dist.Bernoulli(0.5))
        )
        if ab.sample("more", dist.Bernoulli(0.5)) and ab.sample("extra", dist.Bernoulli(p)):
            total = total + 1.0
        ab.observe("y", dist.Normal(total, 1.0), 3.0)

    engine = replace(WIDE, executions=25, max_executions=25)
    posterior = ab.infer(program, engine=engine, budget=30_000)
    count, one = np.arange(6), np.array([0.75, 0.25])  # extra is one a quarter of the time
    prior = np.array([1, 5, 10, 10, 5, 1]) / 32
    likelihood = np.array([[np.exp(dist.Normal(e, np.sqrt(1.0 + c)).log_prob(3.0)) for e in (0.0, 1.0)] for c in count])
    assert posterior.run.known_share is None
    assert abs(posterior.log_evidence - np.log(prior @ likelihood @ one)) < 4 * posterior.log_evidence_sd


@pytest.mark.slow
def test_programs_whose_paths_are_few_are_not_walked():
    posterior = ab.infer(selection, seed=0)
    exact, included = all_models()
    assert posterior.run.known_share is None
    assert len(posterior.paths) == 256
    assert abs(posterior.log_evidence - exact) < 1e-8
    assert [posterior.probability(f"z{j}")[1] for j in range(8)] == pytest.approx(included, abs=1e-8)
