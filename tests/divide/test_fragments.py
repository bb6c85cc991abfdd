"""What is recorded from a fragment is what jax would have recorded."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.divide.density import Density
from anabranch.divide.graph import Node
from anabranch.divide.internals import PathTrace, fragments
from anabranch.programs.induction import function_induction, function_induction_data
from anabranch.programs.mixture import mixture

X = np.random.default_rng(0).normal(size=(15, 4))
Y = X @ np.array([1.0, -2.0, 0.0, 0.5])


def selection(x, y):
    mean = 0.0
    for j in range(x.shape[1]):
        if ab.sample(f"in{j}", dist.Bernoulli(0.3)):
            mean = mean + x[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 2.0))
    ab.observe("y", dist.Normal(mean, 1.0), y)


def operators(y):
    """Indices, slices and operators of vectors, with constants of all kinds."""
    w, s = ab.sample("w", dist.Normal(0.0, 1.0).expand([4])), ab.sample("s", dist.HalfNormal(1.0))
    k = ab.sample("k", dist.Categorical(jnp.ones(4) / 4))
    m = X @ w + w[1] - w[-1:] * 2 + (X[:, 0] / s) ** 2 + (-w)[0:4:2].sum() + abs(w[k]) + np.float64(0.3) * w[None, 2]
    if k == 2:
        m = 1.5 - m * w[k] + jnp.asarray(X)[:, 1] * s + (w @ w) ** 0.5 + X[k, 1] * (w[3] > 0.1)
    ab.observe("y", dist.StudentT(4.0, m, s), y)
    ab.observe("n", dist.Poisson(jnp.exp(0.1 * s)), jnp.array([1, 2]))


PROGRAMS = {
    "selection": (selection, X, Y),
    "operators": (operators, Y),
    "mixture": (mixture, Y[:6], 1.0),
    "induction": (function_induction, *function_induction_data()),
}


def constant(x):
    array = np.asarray(x)  # a number of NumPy and an array without axes are the same to jax, a number of Python is not
    return (
        isinstance(x, bool | int | float) and not isinstance(x, np.generic),
        array.dtype.str,
        array.shape,
        array.tobytes(),
    )


def recorded(program, *data):
    """The graphs, densities included, of the paths of a program."""
    out = []
    for path in sorted(ab.find_paths(program, *data, seed=3).paths, key=lambda path: path.description)[:12]:
        recording = path.recording
        density, graph = recording.once(Density), recording.trace.graph
        equations = [
            None
            if e is None
            else (
                e.primitive.name,
                [int(x) if isinstance(x, Node) else constant(x) for x in e.inputs],
                sorted((name, str(value)) for name, value in e.params.items()),
            )
            for e in graph.producers
        ]
        terms = [*density.prior, *density.jacobian, *density.likelihood, *density.guards]
        values = [int(t.value) if isinstance(t.value, Node) else constant(t.value) for t in terms]
        sites = [site.value.sites for site in recording.sites]
        out.append((path.description, equations, list(map(str, graph.types)), values, sites, sorted(recording.asked)))
    return out


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_recording_from_fragments_is_the_recording_of_jax(name, monkeypatch):
    first, second = recorded(*PROGRAMS[name]), recorded(*PROGRAMS[name])
    monkeypatch.setattr(PathTrace, "repeated", lambda self, what, compute, arguments: compute())
    monkeypatch.setattr(PathTrace, "operation", lambda self, what, function, operands: None)
    assert recorded(*PROGRAMS[name]) == first == second


def log_density_at(program, value, *data):
    [path] = ab.find_paths(program, *data).paths
    evaluation = path.evaluate(np.array([[value]]), compile=False)
    return evaluation.log_prior[0] + evaluation.log_likelihood[0]


@pytest.mark.parametrize("scale", [1.0, 2, 2.0, np.float64(3.0), jnp.asarray(2.5)])
def test_other_constants_are_another_fragment(scale):
    def program(y):
        x = ab.sample("x", dist.Normal(0.0, scale))
        ab.observe("y", dist.Normal(x, 1.0), y)

    for y in (0.5, -0.5, 0.5):
        exact = -0.5 * (0.7 / float(scale)) ** 2 - np.log(float(scale)) - 0.5 * (y - 0.7) ** 2 - np.log(2 * np.pi)
        np.testing.assert_allclose(log_density_at(program, 0.7, y), exact, rtol=1e-6)


def test_the_sign_of_a_zero_is_another_constant():
    def program(zero):
        x = ab.sample("x", dist.Normal(0.0, 1.0).expand([2]))
        ab.factor("f", jnp.sum(jnp.arctan2(x[:1] * 0.0 + zero, -1.0)))

    results = []
    for zero in (0.0, -0.0, 0.0):
        [path] = ab.find_paths(program, zero).paths
        results.append(path.evaluate(np.array([[1.0, 1.0]]), compile=False).log_likelihood[0])
    np.testing.assert_allclose(results, [np.pi, np.pi, np.pi])  # 0.0 + -0.0 is 0.0
    kept = {fragments.key_of([zero]) for zero in (0.0, -0.0, 0)}
    assert len(kept) == 3


def test_a_program_that_changes_its_array_does_not_change_what_was_recorded():
    def program():
        w = ab.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        column = np.ones(3)
        total = column * w
        column[:] = 100.0
        ab.factor("f", jnp.sum(total))

    for _ in range(2):
        [path] = ab.find_paths(program).paths
        assert path.evaluate(np.ones((1, 3)), compile=False).log_likelihood[0] == 3.0


def test_the_precision_of_products_is_the_users():
    def program():
        w = ab.sample("w", dist.Normal(0.0, 1.0).expand([3]))
        ab.factor("f", w @ w)

    def precisions():
        [path] = ab.find_paths(program).paths
        return [str(e.params) for e in path.recording.trace.graph.producers if e and "dot_general" in str(e.params)]

    usual = precisions()
    with jax.default_matmul_precision("highest"):
        assert precisions() != usual
    assert precisions() == usual


def test_fragments_are_bounded(monkeypatch):
    monkeypatch.setattr(fragments, "_fragments", {})
    monkeypatch.setattr(fragments, "_MAX_FRAGMENTS", 3)
    assert recorded(*PROGRAMS["selection"]) == recorded(*PROGRAMS["selection"])
    assert len(fragments._fragments) <= 3
