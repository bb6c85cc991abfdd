"""Programs with discrete variables, small enough that all values can be summed one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

import anabranch as ab

Y = np.array([-2.0, -1.5, 0.3, 2.2])
STAY = np.array([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.25, 0.25, 0.5]])


def x_site(name: str = "x") -> Any:
    return ab.sample(name, dist.Normal(0.0, 1.0))


def mixture(y=Y):
    """The assignments are one site."""
    mu = ab.sample("mu", dist.Normal(0.0, 3.0).expand([3]).to_event(1))
    w = ab.sample("w", dist.Dirichlet(np.ones(3)))
    z = ab.sample("z", dist.Categorical(w).expand([len(y)]).to_event(1))
    ab.observe("y", dist.Normal(mu[z], 1.0), y)


def mixture_in_a_loop(y=Y):
    mu = jnp.stack([x_site("a"), x_site("b") + 2.0])
    for i, value in enumerate(y):
        ab.observe(f"y{i}", dist.Normal(mu[ab.sample(f"z{i}", dist.Bernoulli(0.3))], 1.0), value)


def mixture_in_a_plate(y=Y):
    mu = jnp.stack([x_site("a"), x_site("b") + 2.0])
    with numpyro.plate("points", len(y)):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])))
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def annotated_for_numpyro(y=Y):
    """What NumPyro needs to be told is understood, and makes no difference."""
    mu = jnp.stack([x_site("a"), x_site("b") + 2.0])
    with numpyro.plate("points", len(y), dim=-1):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.4, 0.6])), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mu[z], 1.0), obs=y)


def nested_plates():
    """Groups with a kind each, members with a state each that depends on it."""
    x = x_site()
    y = np.array([[0.2, 1.0], [-1.0, 2.0], [0.0, 0.5]])
    with numpyro.plate("groups", 3, dim=-2):
        kind = numpyro.sample("kind", dist.Bernoulli(0.4))
        with numpyro.plate("members", 2, dim=-1):
            state = numpyro.sample("state", dist.Bernoulli(jnp.where(kind == 1, 0.9, 0.2)))
            numpyro.sample("y", dist.Normal(x * state, 1.0), obs=y)


def chain():
    x, z = x_site(), ab.sample("z0", dist.Bernoulli(0.5))
    for i in range(1, 6):
        z = ab.sample(f"z{i}", dist.Bernoulli(jnp.where(z, 0.9, 0.2)))
        ab.observe(f"y{i}", dist.Normal(x * z, 1.0), 1.0)


def hidden_markov(y=Y):
    mu = ab.sample("mu", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    rows = ab.sample("rows", dist.Dirichlet(jnp.ones(3)).expand([3]).to_event(1))
    z = 0
    for t, value in enumerate(y):
        z = ab.sample(f"z{t}", dist.Categorical(rows[z]))
        ab.observe(f"y{t}", dist.Normal(mu[z], 1.0), value)


def second_order():
    """A state depends on the two before."""
    x, before, z = x_site(), 0, 0
    for t in range(6):
        p = jax.nn.sigmoid(0.7 * before - 0.4 * z + 0.1)
        before, z = z, ab.sample(f"z{t}", dist.Bernoulli(p))
        ab.observe(f"y{t}", dist.Normal(x + z, 1.0), 0.3 * t)


def factorial():
    """Two chains, one observation of both."""
    x, a, b = x_site(), 0, 0
    for t in range(4):
        a = ab.sample(f"a{t}", dist.Categorical(jnp.asarray(STAY)[a]))
        b = ab.sample(f"b{t}", dist.Bernoulli(jnp.where(b, 0.8, 0.3)))
        ab.observe(f"y{t}", dist.Normal(x + a - 2.0 * b, 1.0), 0.5 * t)


def missing_data():
    """Some observations of a chain are masked."""
    x, z = x_site(), 0
    seen = np.array([True, False, True, False, True])
    for t in range(5):
        z = ab.sample(f"z{t}", dist.Categorical(jnp.asarray(STAY)[z]))
        ab.observe(f"y{t}", dist.Normal(x + z, 1.0).mask(seen[t]), np.nan_to_num(0.4 * t))


def covariates():
    """The transitions depend on a covariate and a coefficient."""
    slope, z = x_site("slope"), 0
    for t, u in enumerate((0.5, -1.0, 2.0, 0.1)):
        z = ab.sample(f"z{t}", dist.Bernoulli(logits=slope * u + 0.8 * (2 * z - 1)))
        ab.observe(f"y{t}", dist.Normal(1.0 * z, 1.0), 0.4 * t)


def tree():
    """A root, children and grandchildren."""
    x, root = x_site(), ab.sample("root", dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
    for i in range(2):
        child = ab.sample(f"child{i}", dist.Categorical(jnp.asarray(STAY)[root]))
        for j in range(2):
            leaf = ab.sample(f"leaf{i}{j}", dist.Categorical(jnp.asarray(STAY)[child]))
            ab.observe(f"y{i}{j}", dist.Normal(x + leaf, 1.0), 0.5 * i + j)


def ring():
    """A loop: no order has a width of one."""
    x = x_site()
    z = [ab.sample(f"z{i}", dist.Bernoulli(0.4)) for i in range(6)]
    for i in range(6):
        ab.factor(f"edge{i}", x * (z[i] == z[(i + 1) % 6]))


def grid():
    """A three by three lattice, one site."""
    x = x_site()
    s = 2.0 * ab.sample("z", dist.Bernoulli(0.5).expand([3, 3]).to_event(2)) - 1
    ab.factor("rows", x * jnp.sum(s[1:] * s[:-1]))
    ab.factor("columns", 0.3 * jnp.sum(s[:, 1:] * s[:, :-1]))


def quadratic_form():
    """Couplings as a matrix, most of them zero."""
    x = x_site()
    couplings = np.diag([0.5, -0.3, 0.8, 0.2], 1)
    s = 2.0 * ab.sample("z", dist.Bernoulli(0.5).expand([5]).to_event(1)) - 1
    ab.factor("energy", x * (s @ jnp.asarray(couplings) @ s) + 0.1 * jnp.sum(s))


def pairs():
    """Two values for each observation that interact with each other, and with no others."""
    x = x_site()
    for i in range(3):
        a, b = ab.sample(f"a{i}", dist.Bernoulli(0.3)), ab.sample(f"b{i}", dist.DiscreteUniform(1, 3))
        ab.observe(f"y{i}", dist.Normal(x + a * b, 1.0), 0.7 * i)


def different_sizes():
    x = x_site()
    a, b = ab.sample("a", dist.DiscreteUniform(-2, 2)), ab.sample("b", dist.Binomial(3, 0.4))
    c = ab.sample("c", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
    ab.observe("ab", dist.Normal(x * a + b, 1.0), 1.0)
    ab.observe("bc", dist.Normal(x - b * c, 1.0), -0.5)


def depends_on_another():
    """The number of trials is random."""
    n = ab.sample("n", dist.DiscreteUniform(1, 4))
    p = ab.sample("p", dist.Beta(2.0, 2.0))
    for i, heads in enumerate((1, 0, 1)):
        ab.observe(f"y{i}", dist.Binomial(n, p), heads)


def a_count_of_all():
    """The sum of all is observed: they are one factor."""
    x = x_site()
    z = ab.sample("z", dist.Bernoulli(0.3).expand([7]).to_event(1))
    ab.observe("y", dist.Normal(x + z.sum(), 0.5), 3.0)


def impossible_values():
    """A category of probability zero, and one that the data exclude."""
    x = x_site()
    z = ab.sample("z", dist.Categorical(np.array([0.5, 0.5, 0.0])).expand([3]).to_event(1))
    low = jnp.array([-3.0, x, 0.0])
    ab.observe("y", dist.Uniform(low[z], 4.0), np.array([0.1, 0.5, -0.4]))


def moving_zeros():
    """Which assignments have a density depends on the two centres: there are none that have one everywhere."""
    centres = ab.sample("centres", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    z = ab.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1))
    ab.observe("y", dist.Uniform(centres[z] - 1, centres[z] + 1), np.array([-0.9, 0.0, 0.9]))


def moving_support():
    """The transform of x depends on z."""
    z = ab.sample("z", dist.Bernoulli(0.4).expand([2]).to_event(1))
    x = ab.sample("x", dist.Uniform(0.0, 1.0 + z.sum()))
    ab.observe("y", dist.Normal(x, 0.5), 1.0)


def real_given_discrete():
    """A real variable whose prior depends on a discrete one."""
    for i in range(3):
        z = ab.sample(f"z{i}", dist.Categorical(jnp.array([0.3, 0.7])))
        v = ab.sample(f"v{i}", dist.Normal(jnp.array([-2.0, 2.0])[z], 1.0))
        ab.observe(f"y{i}", dist.Normal(v, 1.0), 0.8 * i)


def switching_regression():
    """Each point follows one of two lines."""
    slopes = jnp.stack([x_site("low"), x_site("high") + 2.0])
    u, y = np.array([0.5, 1.0, 1.5, 2.0]), np.array([0.4, 2.1, 1.2, 3.8])
    z = ab.sample("z", dist.Bernoulli(0.5).expand([4]).to_event(1))
    ab.observe("y", dist.Normal(slopes[z] * u, 0.5), y)


def scaled_and_masked():
    x = x_site()
    z = ab.sample("z", dist.Bernoulli(0.3).expand([4]).to_event(1).mask(np.array(True)))
    ab.observe("y", dist.Normal(x + z, 1.0), np.array([0.1, 1.2, 0.9, -0.2]))
    ab.factor("penalty", -0.5 * jnp.sum(jnp.where(z[1:] != z[:-1], 1.0, 0.0)) / 2)


def prior_without_a_site():
    """A mask takes the probabilities of one site out of the density, a scale changes those of another."""
    x = x_site()
    a = ab.sample("a", dist.Categorical(jnp.array([0.2, 0.3, 0.5])).mask(False))
    with handlers.scale(scale=0.5):
        b = numpyro.sample("b", dist.Categorical(jnp.array([0.2, 0.3, 0.5])))
    ab.observe("y", dist.Normal(x + a * b, 1.0), 1.0)


def bounds_that_cross():
    """Two variables choose the bounds of a uniform distribution, whose formula is NaN where they cross."""
    x, a, b = x_site(), ab.sample("a", dist.Bernoulli(0.5)), ab.sample("b", dist.Bernoulli(0.5))
    low, high = jnp.array([0.0, 3.0])[a] + 0.1 * x, jnp.array([2.0, 4.0])[b]
    ab.observe("y", dist.Uniform(low, high, validate_args=False), 1.0)


def whole_numbers_divided():
    """A division that drops the remainder is no sum."""
    x, z = x_site(), ab.sample("z", dist.DiscreteUniform(0, 3).expand([3]).to_event(1))
    ab.factor("half", x * jax.lax.div(z.sum(), 2))


def words_of_topics():
    """A vector of categories, each with probabilities of its own topic."""
    x, words = x_site(), jnp.array([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    topic = ab.sample("topic", dist.Bernoulli(0.4).expand([3]).to_event(1))
    word = ab.sample("word", dist.Categorical(words[topic]).to_event(1))
    ab.observe("y", dist.Normal(x + word, 1.0), np.array([0.1, 1.0, 2.0]))


def inside_a_scan():
    """A loop of JAX over the values of a chain that is one site."""
    x = x_site()
    z = ab.sample("z", dist.Bernoulli(0.5).expand([5]).to_event(1))

    def step(before, now):
        return now, jnp.where(now == before, jnp.log(0.8), jnp.log(0.2)) + x * now

    _, logs = jax.lax.scan(step, z[0], z[1:])
    ab.factor("chain", jnp.sum(logs))


def guarded():
    """A guard that some of the values fail."""
    x = x_site()
    z = ab.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1))
    if x + z.sum() > 1.5:
        ab.observe("y", dist.Normal(x * z[0], 1.0), 1.0)
    else:
        ab.sample("other", dist.Normal(0.0, 1.0))


def several_sequences():
    """A path with several decision sequences, which depend on the values summed out."""
    x = x_site()
    z = ab.sample("z", dist.Bernoulli(0.5).expand([3]).to_event(1))
    mean = x if z.sum() > x else 2.0 * x + z[0]
    ab.observe("y", dist.Normal(mean, 1.0), 1.0)


def unknown_coupling():
    """A real number times a sum over pairs of spins."""
    spins = 2 * ab.sample("s", dist.Bernoulli(0.5).expand([6]).to_event(1)) - 1
    ab.factor("energy", x_site() * jnp.sum(spins[1:] * spins[:-1]))
    ab.observe("y", dist.Normal(spins[:4], 1.0), Y)


def unknown_weights():
    """The scalar product of discrete variables with unknown weights, and of both with a number."""
    z = ab.sample("z", dist.Bernoulli(0.4).expand([4]).to_event(1))
    w = ab.sample("w", dist.Normal(0.0, 1.0).expand([4]).to_event(1))
    ab.factor("linear", jnp.dot(w, z) + x_site() * (jnp.dot(w, z) + 1.0))
    ab.observe("y", dist.Normal(z, 1.0), Y)


def vectors_selected(y=Y):
    """A row of a matrix, and a scale, for each point."""
    mu = ab.sample("mu", dist.Normal(0.0, 2.0).expand([3, 2]).to_event(2))
    scale = ab.sample("scale", dist.LogNormal(0.0, 0.5).expand([3]).to_event(1))
    z = ab.sample("z", dist.Categorical(jnp.array([0.2, 0.3, 0.5])).expand([len(y)]).to_event(1))
    ab.observe("y", dist.Normal(mu[z], scale[z][:, None]).to_event(2), np.stack([y, -y], axis=1))


def shares_by_covariates(y=Y):
    """Every point has shares of its own, and an offset among those of its row."""
    slope = ab.sample("slope", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    z = ab.sample("z", dist.Categorical(logits=y[:, None] * slope).to_event(1))
    offsets = jnp.outer(y, slope) + jnp.arange(3.0)
    own = jnp.take_along_axis(offsets, z[:, None], axis=1)[:, 0]
    ab.observe("y", dist.Normal(own + slope.at[2 * z].get(mode="fill", fill_value=0.5), 1.0), y)


def urn():
    """Colours of balls, and which ball was drawn: every draw depends on all colours and its own ball."""
    colours = jnp.stack([ab.sample(f"colour{i}", dist.Bernoulli(0.5)) for i in range(3)])
    for t, seen in enumerate((1, 0, 1)):
        ball = ab.sample(f"ball{t}", dist.Categorical(jnp.ones(3) / 3))
        ab.observe(f"seen{t}", dist.Bernoulli(jnp.where(colours[ball] == 1, 0.8, 0.2)), seen)


SPLIT: dict[Callable[..., Any], dict[str, bool]] = {guarded: {"z": False}, several_sequences: {"z": False}}
"""The sites that are not to be fixed by a decision."""

CASES = [
    mixture, mixture_in_a_loop, mixture_in_a_plate, annotated_for_numpyro, nested_plates, chain, hidden_markov,
    second_order, factorial, missing_data, covariates, tree, ring, grid, quadratic_form, pairs, different_sizes,
    depends_on_another, a_count_of_all, impossible_values, moving_zeros, moving_support, real_given_discrete,
    switching_regression, scaled_and_masked, prior_without_a_site, bounds_that_cross, whole_numbers_divided,
    words_of_topics, inside_a_scan, guarded, several_sequences, unknown_coupling, unknown_weights,
    vectors_selected, shares_by_covariates, urn,
]  # fmt: skip
