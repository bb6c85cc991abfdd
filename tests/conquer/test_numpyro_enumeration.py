"""Elimination against NumPyro's own enumeration, which needs annotations.

The models are small ones of the kinds that NumPyro's examples have: annotators of items (with one confusion matrix, or
one each), hidden Markov models of several sequences with lengths of their own, and a mixture. Each is written twice,
with what NumPyro must be told, and plainly.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.ops.indexing import Vindex

import anabranch as ab
from anabranch.conquer import Elimination, PathTarget
from anabranch.conquer.elimination import Eliminated, eliminate

pytest.importorskip("funsor", reason="NumPyro's enumeration needs it: pip install -e '.[dev]'")

RATINGS = np.array([[0, 0, 1], [2, 2, 2], [1, 0, 1], [0, 0, 0], [2, 1, 2]])
RATERS = np.array([0, 1, 1])
POINTS = np.array([-2.1, -1.7, 0.2, 0.4, 3.0, 2.6, -1.9])
LENGTHS = np.array([4, 2])
NOTES = np.random.default_rng(3).integers(0, 2, size=(2, 4, 3))
"""Sequences, steps and tones."""


def numpyro_log_density(model, args, params) -> float:
    """log Σ γ by NumPyro, at values of the sites."""
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor.infer_util import log_density

    with jax.enable_x64(True):
        enumerated = enum(config_enumerate(model), -3)
        return float(log_density(enumerated, args, {}, {k: jnp.asarray(v) for k, v in params.items()})[0])


# Annotators -----------------------------------------------------------------------------------------------------------


def one_matrix_annotated(ratings):
    with numpyro.plate("class", 3):
        confusion = numpyro.sample("confusion", dist.Dirichlet(jnp.ones(3)))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("item", len(ratings), dim=-2):
        truth = numpyro.sample("truth", dist.Categorical(shares), infer={"enumerate": "parallel"})
        with numpyro.plate("position", ratings.shape[1]):
            numpyro.sample("rating", dist.Categorical(confusion[truth]), obs=ratings)


def one_matrix(ratings):
    confusion = ab.sample("confusion", dist.Dirichlet(jnp.ones(3)).expand([3]).to_event(1))
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones(3)))
    for i, row in enumerate(ratings):
        truth = ab.sample(f"truth{i}", dist.Categorical(shares))
        ab.observe(f"rating{i}", dist.Categorical(confusion[truth]).expand([len(row)]), row)


def a_matrix_each_annotated(ratings, raters):
    with numpyro.plate("rater", 2, dim=-2), numpyro.plate("class", 3):
        confusion = numpyro.sample("confusion", dist.Dirichlet(jnp.ones(3)))
    shares = numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("item", len(ratings), dim=-2):
        truth = numpyro.sample("truth", dist.Categorical(shares), infer={"enumerate": "parallel"})
        with numpyro.plate("position", len(raters)):
            given = Vindex(confusion)[jnp.asarray(raters), truth, :]
            numpyro.sample("rating", dist.Categorical(given), obs=ratings)


def a_matrix_each(ratings, raters):
    confusion = ab.sample("confusion", dist.Dirichlet(jnp.ones(3)).expand([2, 3]).to_event(2))
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones(3)))
    truth = ab.sample("truth", dist.Categorical(shares).expand([len(ratings)]).to_event(1))
    for j, rater in enumerate(raters):
        ab.observe(f"rating{j}", dist.Categorical(confusion[rater][truth]), ratings[:, j])


# Hidden Markov models -------------------------------------------------------------------------------------------------


def notes_annotated(notes, lengths):
    """Tones given the state, of sequences with lengths of their own."""
    rows = numpyro.sample("rows", dist.Dirichlet(0.9 * jnp.eye(3) + 0.1).to_event(1))
    tones = numpyro.sample("tones", dist.Beta(0.5, 2.0).expand([3, 3]).to_event(2))

    def step(carry, now):
        before, t = carry
        with numpyro.plate("sequences", len(lengths), dim=-2), handlers.mask(mask=(t < lengths)[:, None]):
            state = numpyro.sample("state", dist.Categorical(rows[before]), infer={"enumerate": "parallel"})
            with numpyro.plate("tone", notes.shape[2], dim=-1):
                numpyro.sample("note", dist.Bernoulli(tones[state.squeeze(-1)]), obs=now)
        return (state, t + 1), None

    scan(step, (jnp.zeros((len(lengths), 1), int), 0), jnp.asarray(np.swapaxes(notes, 0, 1)))


def notes_of_sequences(notes, lengths):
    rows = ab.sample("rows", dist.Dirichlet(0.9 * jnp.eye(3) + 0.1).to_event(1))
    tones = ab.sample("tones", dist.Beta(0.5, 2.0).expand([3, 3]).to_event(2))
    for i, length in enumerate(lengths):
        state = 0
        for t in range(length):
            state = ab.sample(f"state{i}_{t}", dist.Categorical(rows[state]))
            ab.observe(f"note{i}_{t}", dist.Bernoulli(tones[state]), notes[i, t])


def autoregressive_annotated(notes):
    """A tone depends on the state and on the same tone before."""
    rows = numpyro.sample("rows", dist.Dirichlet(0.9 * jnp.eye(3) + 0.1).to_event(1))
    tones = numpyro.sample("tones", dist.Beta(0.5, 2.0).expand([3, 2, 3]).to_event(3))

    def step(carry, now):
        state, before = carry
        with numpyro.plate("sequences", len(notes), dim=-2):
            state = numpyro.sample("state", dist.Categorical(rows[state]), infer={"enumerate": "parallel"})
            with numpyro.plate("tone", notes.shape[2], dim=-1):
                given = Vindex(tones)[state, before, jnp.arange(notes.shape[2])]
                numpyro.sample("note", dist.Bernoulli(given), obs=now)
        return (state, now), None

    first = jnp.zeros((len(notes), 1), int), jnp.zeros((len(notes), notes.shape[2]), int)
    scan(step, first, jnp.asarray(np.swapaxes(notes, 0, 1)))


def autoregressive(notes):
    rows = ab.sample("rows", dist.Dirichlet(0.9 * jnp.eye(3) + 0.1).to_event(1))
    tones = ab.sample("tones", dist.Beta(0.5, 2.0).expand([3, 2, 3]).to_event(3))
    for i, sequence in enumerate(notes):
        state, before = 0, np.zeros(3, int)
        for t, now in enumerate(sequence):
            state = ab.sample(f"state{i}_{t}", dist.Categorical(rows[state]))
            ab.observe(f"note{i}_{t}", dist.Bernoulli(tones[state, before, np.arange(3)]), now)
            before = now


def two_chains_annotated(notes):
    """Two states at a time, each with a chain of its own, in a loop of Python."""
    from numpyro.contrib.funsor import markov

    rows = numpyro.sample("rows", dist.Dirichlet(0.9 * jnp.eye(2) + 0.1).to_event(1))
    others = numpyro.sample("others", dist.Dirichlet(jnp.ones(2)).expand([2]).to_event(1))
    tones = numpyro.sample("tones", dist.Beta(0.5, 2.0).expand([2, 2, 3]).to_event(3))
    w = x = 0
    for t in markov(range(notes.shape[1])):
        with numpyro.plate("sequences", len(notes), dim=-2):
            w = numpyro.sample(f"w{t}", dist.Categorical(rows[w]), infer={"enumerate": "parallel"})
            x = numpyro.sample(f"x{t}", dist.Categorical(others[x]), infer={"enumerate": "parallel"})
            with numpyro.plate("tone", notes.shape[2], dim=-1):
                given = Vindex(tones)[w, x, jnp.arange(notes.shape[2])]
                numpyro.sample(f"note{t}", dist.Bernoulli(given), obs=notes[:, t])


def two_chains(notes):
    rows = ab.sample("rows", dist.Dirichlet(0.9 * jnp.eye(2) + 0.1).to_event(1))
    others = ab.sample("others", dist.Dirichlet(jnp.ones(2)).expand([2]).to_event(1))
    tones = ab.sample("tones", dist.Beta(0.5, 2.0).expand([2, 2, 3]).to_event(3))
    for i, sequence in enumerate(notes):
        w = x = 0
        for t, now in enumerate(sequence):
            w = ab.sample(f"w{i}_{t}", dist.Categorical(rows[w]))
            x = ab.sample(f"x{i}_{t}", dist.Categorical(others[x]))
            ab.observe(f"note{i}_{t}", dist.Bernoulli(tones[w, x]), now)


# A mixture ------------------------------------------------------------------------------------------------------------


def mixture_annotated(y):
    shares = numpyro.sample("shares", dist.Dirichlet(0.5 * jnp.ones(2)))
    scale = numpyro.sample("scale", dist.LogNormal(0.0, 2.0))
    with numpyro.plate("components", 2):
        means = numpyro.sample("means", dist.Normal(0.0, 10.0))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", dist.Categorical(shares), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(means[z], scale), obs=y)


def mixture(y):
    shares = ab.sample("shares", dist.Dirichlet(0.5 * jnp.ones(2)))
    scale = ab.sample("scale", dist.LogNormal(0.0, 2.0))
    means = ab.sample("means", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    for i, value in enumerate(y):
        ab.observe(f"y{i}", dist.Normal(means[ab.sample(f"z{i}", dist.Categorical(shares))], scale), value)


AFTER_THE_END = 2 * np.log(3)
"""A mask takes the states after the end of a sequence out of the density, and each is still summed over its values."""

CASES = [
    pytest.param(one_matrix_annotated, one_matrix, (RATINGS,), 0.0, marks=pytest.mark.slow),
    (a_matrix_each_annotated, a_matrix_each, (RATINGS, RATERS), 0.0),
    (notes_annotated, notes_of_sequences, (NOTES, LENGTHS), AFTER_THE_END),
    (autoregressive_annotated, autoregressive, (NOTES,), 0.0),
    pytest.param(two_chains_annotated, two_chains, (NOTES[:, :3],), 0.0, marks=pytest.mark.slow),
    (mixture_annotated, mixture, (POINTS,), 0.0),
]


@pytest.mark.one_in(2)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(("annotated", "plain", "args", "more"), CASES)
def test_the_density_is_that_of_numpyros_enumeration(annotated, plain, args, more):
    (path,) = ab.find_paths(plain, *args, executions=20).paths
    target = eliminate(PathTarget(path), Elimination(), np.random.default_rng(0))
    assert isinstance(target, Eliminated)
    assert not target.discrete.any()
    points = np.random.default_rng(0).normal(size=(2, target.dim))
    evaluation = target.evaluate(points)
    found = evaluation.log_density - evaluation.log_jacobian  # theirs is over the values, not the coordinates
    whole = np.zeros((len(points), path.dim))
    whole[:, target.columns] = points
    named = path.values(whole)
    names = [site.name for site in path.sites if not site.discrete]
    exact = [numpyro_log_density(annotated, args, {name: named[name][i] for name in names}) for i in range(len(points))]
    np.testing.assert_allclose(found + more, exact, rtol=1e-8)
