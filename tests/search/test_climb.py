"""A climb from path to path finds the heaviest path where chance finds none like it."""

from __future__ import annotations

from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import anabranch as ab
from anabranch.divide import number_of_choices, paths_with, values_of_choice
from anabranch.search import Discovery, Walking

RNG = np.random.default_rng(8)
P, N, PRIOR = 12, 40, 0.5
X = RNG.standard_normal((N, P)) + 0.6 * RNG.standard_normal((N, 1))
ON = np.array([1, 0, 1, 1, 0, 0, 1, 0, 1, 0, 1, 1], bool)
Y = X[:, ON] @ np.array([1.0, -1.2, 0.8, 1.5, -0.7, 1.1, -0.9]) + RNG.standard_normal(N)
WIDE = ab.DCC(
    executions=30, max_executions=30, discovery=Discovery(max_python_runs=30),
    walking=Walking(walkers=16, visits_in_vain=20, min_steps=30, max_steps=60),
)  # fmt: skip


def selection():
    mean = jnp.zeros(N)
    for j in range(P):
        if ab.sample(f"z{j}", dist.Bernoulli(PRIOR)):
            mean = mean + X[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(mean, 1.0), Y)


@cache
def all_models() -> tuple[float, np.ndarray]:
    """The log evidence, and which predictors the heaviest model has."""
    logs = []
    included = ((np.arange(2**P)[:, None] >> np.arange(P)) & 1).astype(bool)
    for row in included:
        precision = np.eye(row.sum()) + X[:, row].T @ X[:, row]
        fit = X[:, row].T @ Y
        explained, log_det = fit @ np.linalg.solve(precision, fit), np.linalg.slogdet(precision)[1]
        logs.append(P * np.log(PRIOR) - 0.5 * (N * np.log(2 * np.pi) + log_det + Y @ Y - explained))
    return float(logsumexp(logs)), included[int(np.argmax(logs))]


@pytest.fixture(scope="module")
def division() -> ab.Division:
    return ab.find_paths(selection, executions=2)


def test_a_choice_has_all_other_values_of_one_site(division):
    path = next(iter(division))
    fixed = path.recording.fixed
    assert number_of_choices(path, frozenset()) == P
    for number in range(P):
        [values] = values_of_choice(path, frozenset(), number)
        [changed] = [name for name in fixed if values[name] != fixed[name]]
        [there] = paths_with(division, [values], np.random.default_rng(0))
        assert there is not None
        assert {name: value.item() for name, value in there.recording.fixed.items()} == {
            name: (1 - value if name == changed else value).item() for name, value in fixed.items()
        }


def test_it_comes_to_the_heaviest_path():
    exact, best = all_models()
    posterior = ab.infer(selection, engine=WIDE, seed=0)
    heaviest = max(posterior.solutions, key=lambda solution: solution.log_evidence)
    assert [heaviest.path.constants[f"z{j}"] for j in range(P)] == best.tolist()
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.5
