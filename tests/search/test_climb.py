"""A climb from path to path finds the heaviest path where chance finds none like it."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import anabranch as ab
from anabranch.divide import number_of_choices, paths_with, values_of_choice
from anabranch.search import Discovery, Walking
from anabranch.search.climbs import Climbs, starts_of

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


class Known:
    """A path with an estimate, as far as it matters for climbs."""

    def __init__(self, decisions: int, log_evidence: float) -> None:
        self.path = SimpleNamespace(recording=SimpleNamespace(fixed=dict.fromkeys(range(decisions))))
        self.log_evidence = log_evidence


def test_climbs_start_at_the_simplest_paths_and_at_the_heaviest():
    simple, heavy = Known(3, -20.0), Known(9, -5.0)
    paths = [Known(3, -30.0), simple, Known(6, -10.0), heavy, Known(9, -50.0)]
    starts = starts_of(paths, 6, np.random.default_rng(0))
    assert starts[:2] == [simple, heavy]
    assert starts[3] is starts[5] is simple
    assert len({id(start) for start in starts}) == 4
    assert starts_of([heavy], 4, np.random.default_rng(0)) == [heavy]


SPENT = [(0, 0, 3, False), (50, 0, 3, True), (0, 500, 3, True), (50, 500, 0, False)]


@pytest.mark.parametrize(("elapsed", "evaluations", "tops", "is_over"), SPENT)
def test_climbs_end_after_their_share_but_for_the_first(elapsed, evaluations, tops, is_over):
    limits = SimpleNamespace(within=lambda share: SimpleNamespace(time_is_over=elapsed > 100 * share), budget=1_000)
    state = SimpleNamespace(limits=limits, table=SimpleNamespace(evaluations=evaluations))
    hill = Known(1, -1.0)
    assert Climbs([hill], frozenset(), tops=[hill] * tops).is_over(state) == is_over


def two_hills():
    """Every site but the first has to change on the way from one hill to the other, which is higher and narrower."""
    root = int(ab.sample("root", dist.Bernoulli(0.5)))
    z = [int(ab.sample(f"z{j}", dist.Bernoulli(0.5))) for j in range(10)]
    ab.factor("fit", 8.0 - 3.0 * sum(z) if root else -1.5 * (10 - sum(z)))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_higher_hill_is_found(seed):
    posterior = ab.infer(two_hills, engine=WIDE, seed=seed)
    exact = np.logaddexp(8.0 + 10 * np.log1p(np.exp(-3.0)), 10 * np.log1p(np.exp(-1.5))) - 11 * np.log(2)
    heaviest = max(posterior.solutions, key=lambda solution: solution.log_evidence)
    assert heaviest.path.constants == {"root": 1, **{f"z{j}": 0 for j in range(10)}}
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 1.0


def insertions():
    """Two hills of equal mass, from the top of one of which eleven sites have to change to come to the other."""
    root = int(ab.sample("root", dist.Categorical(jnp.ones(4) / 4)))
    z = [int(ab.sample(f"z{j}", dist.Bernoulli(0.5))) for j in range(10)]
    here = {0: sum(z), 1: 10 - sum(z)}.get(root)
    ab.factor("fit", -30.0 if here is None else -3.0 * here)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_detours_find_what_lies_behind_a_decision(seed):
    """All climbs that go through the sites in their own order end on the hill of the first root."""
    posterior = ab.infer(insertions, engine=WIDE, seed=seed)
    exact = np.log(2 / 4) + 10 * np.log(0.5) + 10 * np.log1p(np.exp(-3.0))
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 1.5
    assert abs(posterior.probability("root").get(1, 0.0) - 0.5) < 0.25
