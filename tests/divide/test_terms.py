"""The terms of a density: their sum, what they read, and their two evaluators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.combine.observed import log_likelihoods
from anabranch.divide import Path
from anabranch.divide.density import Density, lanes_of_values
from anabranch.divide.recording import Recording
from anabranch.divide.terms import Evaluator, Term, Terms
from corpus import CASES, Case
from helpers import interpreted, numpyro_log_density, row

pytestmark = pytest.mark.one_in(6)


def computed(recording: Recording, terms: list[Term], values: dict[str, np.ndarray]) -> np.ndarray:
    """Terms (n, terms) by NumPy, at values of the sites."""
    env = {site.outputs[0]: np.asarray(values[site.name]) for site in recording.sites}
    evaluator = Evaluator(recording.trace.graph, terms, env)
    n = len(next(iter(values.values())))
    return evaluator.by_numpy(env, n).stacked(terms)


def of_density(recording: Recording) -> list[Term]:
    terms = recording.once(Terms)
    return [*terms.prior, *terms.likelihood]


def only_path(program: Callable[..., Any], *args: Any) -> Path:
    [path] = ab.find_paths(program, *args, executions=20)
    return path


def reads(path: Path) -> dict[tuple[str, str], set[str]]:
    """The names of the sites that each term of a path reads."""
    recording = path.recording
    terms = [*of_density(recording), *recording.once(Terms).guards, *recording.once(Density).jacobian]
    names = recording.addresses
    return {(term.kind, term.name): {names[number] for number in term.reads} for term in terms}


# The corpus -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_terms_add_up_and_read_what_they_say(case: Case) -> None:
    """Their sum is NumPyro's log density; a change of a site changes only terms that read it."""
    rng = np.random.default_rng(0)
    division = ab.find_paths(case.program, *case.args, executions=20)
    for executions in division.explore(10, seed=1)[:2]:
        assert executions.path is not None
        recording, values = executions.recording, executions.values()
        terms = of_density(recording)
        before = computed(recording, terms, values)
        for i in range(min(2, len(before))):
            expected = numpyro_log_density(case.program, case.args, row(values, i))
            np.testing.assert_allclose(before[i].sum(), expected, rtol=1e-9, atol=1e-9)
        for site in recording.free:
            changed = {**values, site.name: _changed(values[site.name], rng)}
            after = computed(recording, terms, changed)
            silent = [column for column, term in enumerate(terms) if site.index not in term.reads]
            np.testing.assert_array_equal(after[:, silent], before[:, silent], err_msg=site.name)


def _changed(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Other values, which need not be possible."""
    if np.issubdtype(value.dtype, np.integer):
        return value + 1
    return value * rng.uniform(0.9, 0.99, value.shape)


@pytest.mark.parametrize("case", CASES[::4], ids=lambda case: case.name)
def test_numpy_and_jax_agree_on_any_of_the_terms(case: Case) -> None:
    division = ab.find_paths(case.program, *case.args, executions=20)
    executions = max(division.explore(10, seed=2), key=lambda group: len(group.members))
    recording, values = executions.recording, executions.values()
    rows = [np.asarray(values[site.name], np.float64).reshape(len(executions.members), -1) for site in recording.free]
    points = np.concatenate([*rows, np.zeros((len(executions.members), 0))], axis=1)
    choices = of_density(recording), of_density(recording)[::2]
    sites = [site.outputs[0] for site in recording.sites]
    evaluators = [Evaluator(recording.trace.graph, terms, sites) for terms in choices]

    def at(point: Any) -> Any:
        lanes = lanes_of_values(recording, point)
        found = [evaluator.by_jax(lanes) for evaluator in evaluators]
        return [(by_jax.stacked(terms), by_jax.total(terms)) for by_jax, terms in zip(found, choices, strict=True)]

    with jax.enable_x64(True):
        # Without optimisation compiling is faster, and it is compared with what is computed as it is written.
        both = jax.jit(jax.vmap(at), compiler_options={"xla_backend_optimization_level": 0})(jnp.asarray(points))
    for terms, (stacked, total) in zip(choices, both, strict=True):
        by_numpy = computed(recording, terms, values)
        np.testing.assert_allclose(stacked, by_numpy, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(total, by_numpy.sum(axis=1), rtol=1e-9, atol=1e-9)


# By hand --------------------------------------------------------------------------------------------------------------


def test_a_chain_reads_its_neighbours() -> None:
    def walk() -> None:
        x = ab.sample("x0", dist.Normal(0.0, 1.0))
        for t in range(1, 4):
            ab.observe(f"y{t}", dist.Normal(x, 1.0), 0.5)
            x = ab.sample(f"x{t}", dist.Normal(x, 1.0))

    found = reads(only_path(walk))
    assert found[("prior", "x0")] == {"x0"}
    assert found[("prior", "x2")] == {"x1", "x2"}
    assert found[("observation", "y3")] == {"x2"}


def test_every_kind() -> None:
    def program() -> None:
        low = ab.sample("low", dist.Normal(0.0, 1.0))
        x = ab.sample("x", dist.Uniform(low, low + 2.0))
        k = ab.sample("k", dist.Poisson(jnp.exp(low)))
        z = ab.sample("z", dist.Bernoulli(0.5))
        if z:
            ab.factor("weight", -x)
        if x > 0.5:
            ab.observe("y", dist.Normal(x + k, 1.0), 1.0)

    division = ab.find_paths(program, executions=200)
    path = next(path for path in division if len(path.recording.observations) == 2)
    assert reads(path) == {
        ("prior", "low"): {"low"},
        ("prior", "x"): {"low", "x"},
        ("prior", "k"): {"low", "k"},
        ("prior", "z"): set(),
        ("factor", "weight"): {"x"},
        ("observation", "y"): {"x", "k"},
        ("guard", "x > 0.5"): {"x"},
        ("jacobian", "low"): set(),
        ("jacobian", "x"): {"x", "low"},
    }


def test_elements_of_an_observation_are_those_of_the_plate() -> None:
    data = np.array([1.0, 2.0, 4.0])

    def program() -> None:
        mu = ab.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("n", 3):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=data)
        numpyro.factor("extra", -mu)

    path = only_path(program)
    points = path.prior(5).points
    [parts] = log_likelihoods(path, points)
    assert parts.values["y"].shape == (5, 3)
    evaluation = path.evaluate(points, compile=False)
    both = parts.values["y"].sum(axis=1) + parts.values["extra"]
    np.testing.assert_allclose(both, evaluation.log_likelihood, rtol=1e-12)


def test_terms_of_a_concrete_run_are_numbers_that_may_read_all_before() -> None:
    def program() -> None:
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(float(x), 1.0), 0.5)
        ab.sample("z", dist.Normal(0.0, 1.0))

    [group] = interpreted(program).explore(1, seed=0)
    terms = group.recording.once(Terms)
    x, z = (float(value[0]) for value in group.values().values())
    values = [float(term.value) for term in of_density(group.recording)]
    normal = dist.Normal(0.0, 1.0)
    assert values == pytest.approx([float(normal.log_prob(each)) for each in (x, z, 0.5 - x)], rel=1e-6)
    assert [term.reads for term in [*terms.prior, *terms.likelihood]] == [{0}, {0, 1}, {0}]
