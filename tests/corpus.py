"""Programs of the field, as a user would write them, for the tests of everything that runs programs.

About half of them speak NumPyro with names of their own, the others use the statements of `anabranch.language`, named
or not. All depend only on their random values and arguments, run under plain NumPyro, and have tiny data.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro import handlers

from anabranch.language import deterministic, factor, observe, sample


@dataclass(frozen=True)
class Case:
    """A program with its arguments.

    `paths` is the number of its paths where that is finite and small, else None. Two executions follow the same path
    if they meet the same addresses and agree in the values of the discrete sites that control flow asks about. A
    value that is only computed with, or that Python's `and` and `or` skip, is not asked about.
    """

    name: str
    program: Callable[..., Any]
    args: tuple[Any, ...] = ()
    paths: int | None = None


CASES: list[Case] = []


def case(*args: Any, paths: int | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enters the program below it into the corpus under its own name."""

    def enter(program: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append(Case(program.__name__, program, args, paths))
        return program

    return enter


# Loops that end at random


@case(4.0)
def geometric(y):
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    n = 0
    while numpyro.sample(f"flip_{n}", dist.Bernoulli(p)):
        n += 1
    numpyro.sample("y", dist.Normal(n, 1.0), obs=y)
    return n


@case(1.1)
def pedestrian(measured):
    """A walk from an unknown place, stopped at the barrier at zero or when too long."""
    position = sample(dist.Uniform(0.0, 3.0))
    distance = 0.0
    while (position > 0) & (distance < 3):
        step = sample(dist.Uniform(-1.0, 1.0))
        distance = distance + jnp.abs(step)
        position = position + step
    observe(dist.Normal(distance, 0.1), measured)
    return distance


@case(0.7)
def marsaglia(y):
    """A Normal drawn by the polar method: points of the square until one lies in the disc."""
    trial, inside = 0, False
    while not inside:
        u = numpyro.sample(f"u_{trial}", dist.Uniform(-1.0, 1.0))
        v = numpyro.sample(f"v_{trial}", dist.Uniform(-1.0, 1.0))
        radius = u**2 + v**2
        inside = radius < 1
        trial += 1
    mu = u * jnp.sqrt(-2 * jnp.log(radius) / radius)
    numpyro.sample("y", dist.Normal(mu, 0.5), obs=y)


@case(np.array([-2.1, -1.9, 1.0, 1.2, 3.0]))
def stick_breaking(ys):
    """A Dirichlet process mixture, with as many sticks as it takes to leave less than a twentieth."""
    weights, means, rest = [], [], 1.0
    while rest > 0.05:
        fraction = sample(dist.Beta(1.0, 1.0))
        mean = sample(dist.Normal(0.0, 3.0))
        weights.append(fraction * rest)
        means.append(mean)
        rest = rest * (1 - fraction)
    weights, means = jnp.stack(weights), jnp.stack(means)
    components = dist.Normal(means, 0.5)
    observe(dist.MixtureSameFamily(dist.Categorical(weights / weights.sum()), components), ys)


@case(np.array([[0.1, 0.2], [0.8, -0.4], [-0.9, 0.3], [0.0, 1.1]]), np.array([0.2, -0.1, 0.6, 0.9]), paths=4)
def hidden_layers(xs, ys):
    """A small network with a truncated geometric number of layers."""
    layers = 0
    while layers < 3 and sample(f"another_{layers}", dist.Bernoulli(0.4)):
        layers += 1
    hidden = xs
    for layer in range(layers):
        weight = sample(f"weight_{layer}", dist.Normal(jnp.zeros((2, 2)), 1.0).to_event(2))
        bias = sample(f"bias_{layer}", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        hidden = jnp.tanh(hidden @ weight + bias)
    readout = sample("readout", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    observe("ys", dist.Normal(hidden @ readout, 0.3), ys)


# Branches


@case(8, 10, paths=2)
def biased_coin(heads, flips):
    fair = numpyro.sample("fair", dist.Bernoulli(0.5))
    bias = 0.5 if fair else numpyro.sample("bias", dist.Beta(1.0, 1.0))
    numpyro.sample("heads", dist.Binomial(flips, bias), obs=heads)


@case(np.array([-6.0, -4.2, -5.1]), paths=2)
def two_branches(ys):
    z0 = sample(dist.Normal(0.0, 2.0))
    if z0 < 0:
        z1 = sample(dist.Normal(-5.0, 2.0))
        mean = z1
    else:
        z2 = sample(dist.Normal(5.0, 2.0))
        z3 = sample(dist.Normal(z2, 2.0))
        mean = z3
    observe(dist.Normal(mean, 2.0), ys)


@case(0.35, paths=2)
def dynamic_support(measured):
    """The support of one variable is given by the value of another."""
    below = numpyro.sample("below", dist.Bernoulli(0.3))
    x = numpyro.sample("x", dist.Uniform(0.0, 1.0))
    y = numpyro.sample("y", dist.Uniform(0.0, x) if below else dist.Uniform(x, 2.0))
    numpyro.sample("measured", dist.Normal(y, 0.2), obs=measured)


@case(np.array([0.4, 1.9, -0.3]), np.array([0.5, 3.9, 2.1]), paths=3)
def experts(xs, ys):
    """Which of three experts speaks depends on where a real number lies."""
    gate = sample(dist.Normal(0.5, 1.0))
    if 0 < gate < 1:
        slope = sample(dist.Normal(1.0, 1.0))
        prediction = slope * xs
    elif gate >= 1:
        level = sample(dist.Normal(0.0, 2.0))
        prediction = level + 0 * xs
    else:
        curve = sample(dist.LogNormal(0.0, 0.5))
        prediction = curve * xs**2
    observe(dist.Normal(prediction, 0.5), ys)


@case(np.array([1.2, 0.8, 2.5, 1.9]), paths=4)
def shape_by_match(ys):
    family = sample(dist.Categorical(jnp.array([0.4, 0.3, 0.2, 0.1])))
    scale = sample(dist.Gamma(2.0, 1.0))
    match family:
        case 0:
            likelihood = dist.HalfNormal(scale)
        case 1:
            likelihood = dist.Exponential(1 / scale)
        case 2:
            shape = sample(dist.Gamma(2.0, 2.0))
            likelihood = dist.Gamma(shape, 1 / scale)
        case _:
            spread = sample(dist.HalfNormal(1.0))
            likelihood = dist.LogNormal(jnp.log(scale), 0.1 + spread)
    observe(likelihood, ys)


@case(2.2, paths=4)
def lookup(y):
    """A dictionary indexed by a random key, and membership in a set."""
    settings = {0: ("narrow", 0.5), 1: ("middle", 1.0), 2: ("wide", 2.0), 3: ("none", 1.0)}
    key = int(numpyro.sample("key", dist.Categorical(jnp.array([0.1, 0.4, 0.3, 0.2]))))
    name, scale = settings[key]
    mean = numpyro.sample(f"mean_{name}", dist.Normal(0.0, scale)) if key in {0, 1, 2} else 0.0
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


@case(True, paths=6)
def burglary(called):
    """The alarm network, with truth values: `and`, `or` and `not` ask only for what they need."""
    earthquake = sample(dist.Bernoulli(0.1))
    burglar = sample(dist.Bernoulli(0.2))
    awake = sample(dist.Bernoulli(0.7))
    if earthquake and burglar:
        alarm = 0.95
    elif earthquake or not burglar:
        alarm = sample(dist.Beta(1.0, 5.0))
    else:
        alarm = 0.8
    if not earthquake and awake:
        loudness = sample(dist.Uniform(0.0, 1.0))
        alarm = alarm * loudness
    observe(dist.Bernoulli(0.05 + 0.9 * alarm), called)


@case(np.array([2.1, 1.7, 2.6, 1.9]), paths=2)
def aggregated(ys):
    """One path observes the mean of the data only, the other each value."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    if numpyro.sample("aggregate", dist.Bernoulli(0.5)):
        numpyro.sample("mean", dist.Normal(mu, 1 / np.sqrt(len(ys))), obs=ys.mean())
    else:
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        for i, y in enumerate(ys):
            numpyro.sample(f"y_{i}", dist.Normal(mu, sigma), obs=y)


@case(paths=3)
def no_observations():
    """The prior of a random number of summands."""
    terms = sample("terms", dist.DiscreteUniform(0, 2))
    total = jnp.zeros(())
    for i in range(terms):
        total = total + sample(f"term_{i}", dist.Exponential(1.0))
    return deterministic("total", total)


@case(np.array([0.2, 4.8, 5.3]), paths=2)
def latent_and_asked(ys):
    """Two discrete variables: control flow asks about one, the other stays latent."""
    two = numpyro.sample("two", dist.Bernoulli(0.5))
    member = numpyro.sample("member", dist.Categorical(jnp.ones(3) / 3))
    means = numpyro.sample("means", dist.Normal(jnp.array([0.0, 5.0, 10.0]), 1.0).to_event(1))
    mean = means[member]
    if two:
        shift = numpyro.sample("shift", dist.Normal(0.0, 1.0))
        mean = mean + shift
    numpyro.sample("ys", dist.Normal(mean, 1.0), obs=ys)


# Choice between models


@case(np.array([0.8, 1.3, 2.2, 0.6]), paths=3)
def likelihood_family(ys):
    """Three families for the same data; their parameters have different dimensions and supports."""
    family = numpyro.sample("family", dist.Categorical(probs=jnp.array([0.5, 0.25, 0.25])))
    if family == 0:
        weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(2)))
        locations = numpyro.sample("locations", dist.Normal(jnp.array([0.0, 2.0]), 1.0).to_event(1))
        mixture = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(locations, 0.5))
        numpyro.sample("ys", mixture, obs=ys)
    elif family == 1:
        correlation = numpyro.sample("correlation", dist.Uniform(0.0, 0.9))
        covariance = (1 - correlation) * jnp.eye(len(ys)) + correlation
        numpyro.sample("ys", dist.MultivariateNormal(jnp.ones(len(ys)), covariance), obs=ys)
    else:
        location = numpyro.sample("location", dist.Normal(0.0, 1.0))
        numpyro.sample("ys", dist.LogNormal(location, 0.5), obs=ys)


X = np.array([[0.5, -1.2, 0.3], [1.4, 0.2, -0.7], [-0.9, 0.8, 1.1], [0.1, -0.4, -1.6], [-1.3, 1.0, 0.4]])
Y = np.array([1.1, 2.7, -1.9, 0.3, -2.4])


@case(X, Y, paths=8)
def variable_selection(xs, ys):
    prediction = jnp.zeros(len(ys))
    for j in range(xs.shape[1]):
        if numpyro.sample(f"included_{j}", dist.Bernoulli(0.5)):
            slope = numpyro.sample(f"slope_{j}", dist.Normal(0.0, 2.0))
            prediction = prediction + slope * xs[:, j]
    noise = numpyro.sample("noise", dist.HalfCauchy(1.0))
    numpyro.sample("ys", dist.Normal(prediction, noise), obs=ys)


@case(X, Y, paths=8)
def variable_selection_vector(xs, ys):
    """The same with all indicators in one site."""
    gamma = sample(dist.Bernoulli(0.5 * jnp.ones(xs.shape[1])).to_event(1))
    prediction = jnp.zeros(len(ys))
    for j in range(xs.shape[1]):
        if gamma[j]:
            slope = sample(dist.Normal(0.0, 2.0))
            prediction = prediction + slope * xs[:, j]
    noise = sample(dist.InverseGamma(2.0, 1.0))
    observe(dist.Normal(prediction, jnp.sqrt(noise)), ys)


@case(np.linspace(-1.0, 1.0, 6), np.array([1.1, 0.4, 0.1, 0.0, 0.5, 0.9]), paths=4)
def polynomial(xs, ys):
    degree = sample("degree", dist.DiscreteUniform(0, 3))
    coefficients = [sample(f"coefficient_{k}", dist.Normal(0.0, 1.0)) for k in range(degree + 1)]
    prediction = sum(c * xs**k for k, c in enumerate(coefficients))
    observe("ys", dist.Normal(prediction, 0.2), ys)


@case(np.array([5.0, 4.0, 6.0, 1.0, 0.0, 2.0]), paths=5)
def switch_point(counts):
    """A day at which the rate changes, asked about on every day."""
    switch = numpyro.sample("switch", dist.DiscreteUniform(1, 5))
    early = numpyro.sample("early", dist.Gamma(2.0, 0.5))
    late = numpyro.sample("late", dist.Gamma(2.0, 0.5))
    for day, count in enumerate(counts):
        numpyro.sample(f"count_{day}", dist.Poisson(early if day < switch else late), obs=count)


@case(np.array([0, 3, 0, 2]), paths=4)
def hurdle(counts):
    """Zero-inflated counts: each zero is structural or by chance."""
    inflation = sample(dist.Beta(1.0, 1.0))
    rate = sample(dist.Gamma(2.0, 1.0))
    for count in counts:
        if count == 0 and sample(dist.Bernoulli(inflation)):
            continue
        if count > 0:
            factor(jnp.log1p(-inflation))
        observe(dist.Poisson(rate), count)


@case(np.linspace(0.0, 1.0, 8), np.array([0.1, 1.0, 0.9, -0.2, -1.1, -0.8, 0.2, 0.9]), paths=3)
def sinusoids(times, signal):
    """A signal as a sum of an unknown number of sinusoids, with increasing frequencies."""
    count = numpyro.sample("count", dist.DiscreteUniform(1, 3))
    frequency, mean = 0.0, jnp.zeros(len(times))
    for k in range(count):
        frequency = frequency + numpyro.sample(f"gap_{k}", dist.Gamma(2.0, 2.0))
        cosine = numpyro.sample(f"cosine_{k}", dist.Normal(0.0, 1.0))
        sine = numpyro.sample(f"sine_{k}", dist.Normal(0.0, 1.0))
        phase = 2 * jnp.pi * frequency * times
        mean = mean + cosine * jnp.cos(phase) + sine * jnp.sin(phase)
    numpyro.sample("signal", dist.Normal(mean, 0.3), obs=signal)


@case(np.array([0.1, 0.3, 2.2, 2.0, 1.9, -0.8, -1.1, -1.0]))
def change_points(ys):
    """A step function with a Poisson number of jumps, their places kept in order by drawing the gaps."""
    jumps = sample("jumps", dist.Poisson(1.0))
    place, places = 0.0, []
    for k in range(int(jumps)):
        place = place + (len(ys) - place) * sample(f"gap_{k}", dist.Beta(1.0, 2.0))
        places.append(place)
    levels = jnp.stack([sample(f"level_{k}", dist.Normal(0.0, 2.0)) for k in range(len(places) + 1)])
    if places:
        segment = jnp.searchsorted(jnp.stack(places), jnp.arange(len(ys)) + 0.5)
        mean = levels[segment]
    else:
        mean = jnp.where(jnp.ones(len(ys), bool), levels[0], 0.0)
    observe("ys", dist.Normal(mean, 0.3), ys)


# Clusters and states


@case(np.array([-1.1, -0.8, 2.0, 2.4]), paths=15)
def chinese_restaurant(ys):
    """Each partition of four customers into tables is a path."""
    tables: list[list[float]] = []
    for i, y in enumerate(ys):
        weights = jnp.array([len(table) for table in tables] + [1.0])
        seat = int(numpyro.sample(f"seat_{i}", dist.Categorical(weights / (i + 1)))) if tables else 0
        if seat == len(tables):
            tables.append([])
        tables[seat].append(y)
    for k, table in enumerate(tables):
        mean = numpyro.sample(f"mean_{k}", dist.Normal(0.0, 2.0))
        numpyro.sample(f"table_{k}", dist.Normal(mean, 0.5), obs=np.array(table))


@case(np.array([1, 0, 1, 1]))
def urn(draws):
    """An unknown number of balls of unknown colours, drawn with replacement and seen through a noisy eye."""
    extra = sample(dist.Poisson(2.0))
    balls = int(extra) + 1
    colours = jnp.stack([sample(dist.Bernoulli(0.5)) for _ in range(balls)])
    for seen in draws:
        drawn = sample(dist.Categorical(jnp.ones(balls) / balls))
        observe(dist.Bernoulli(0.1 + 0.8 * colours[drawn]), seen)


@case(np.array([0.1, 0.2, 2.9, 3.2, 3.0, -0.1]), paths=3)
def hidden_markov(ys):
    """An unknown number of hidden states, which the forward algorithm sums out inside the program."""
    states = int(numpyro.sample("states", dist.DiscreteUniform(1, 3)))
    rows = [numpyro.sample(f"row_{k}", dist.Dirichlet(jnp.ones(states))) for k in range(states)]
    means = jnp.stack([numpyro.sample(f"mean_{k}", dist.Normal(0.0, 3.0)) for k in range(states)])
    transition = jnp.log(jnp.stack(rows))
    emission = dist.Normal(means, 0.5).log_prob(ys[:, None])
    forward = emission[0] - jnp.log(states)
    for t in range(1, len(ys)):
        forward = jax.nn.logsumexp(forward[:, None] + transition, axis=0) + emission[t]
    numpyro.factor("likelihood", jax.nn.logsumexp(forward))


@case(np.array([-3.1, -2.8, 0.2, 0.1, 2.9]), paths=3)
def gaussian_mixture(ys):
    components = sample(dist.DiscreteUniform(1, 3))
    k = int(components)
    means = sample(dist.Normal(jnp.zeros(k), 3.0).to_event(1))
    weights = sample(dist.Dirichlet(jnp.ones(k)))
    observe(dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, 0.5)), ys)


@case(np.array([-3.1, -2.8, 0.2, 0.1, 2.9]), paths=3)
def gaussian_mixture_plate(ys):
    k = 1 + int(numpyro.sample("extra", dist.Categorical(jnp.array([0.5, 0.3, 0.2]))))
    with numpyro.plate("components", k):
        means = numpyro.sample("means", dist.Normal(0.0, 3.0))
    scales = numpyro.sample("scales", dist.HalfNormal(1.0).expand([k]).to_event(1))
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(k)))
    with numpyro.plate("data", len(ys)):
        mixture = dist.MixtureSameFamily(dist.Categorical(weights), dist.Normal(means, 0.1 + scales))
        numpyro.sample("ys", mixture, obs=ys)


# Recursion


@case(np.array([0.0, 1.0, 2.0]), np.array([1.0, 2.1, 2.9]))
def expression(xs, ys):
    """An arithmetic expression from a grammar whose trees are finite with probability one."""

    def grow(name):
        rule = numpyro.sample(f"rule_{name}", dist.Categorical(jnp.array([0.35, 0.35, 0.15, 0.15])))
        if rule == 0:
            return xs
        if rule == 1:
            return numpyro.sample(f"constant_{name}", dist.Normal(0.0, 2.0))
        left, right = grow(name + "l"), grow(name + "r")
        return left + right if rule == 2 else left * right

    numpyro.sample("ys", dist.Normal(grow("r") * jnp.ones(len(xs)), 0.5), obs=ys)


def kernel(distances):
    """A covariance function drawn from the grammar of sums and products, as its matrix."""
    rule = sample(dist.Categorical(jnp.array([0.5, 0.3, 0.1, 0.1])))
    if rule == 0:
        lengthscale = sample(dist.LogNormal(0.0, 0.5))
        return jnp.exp(-0.5 * (distances / lengthscale) ** 2)
    if rule == 1:
        period = sample(dist.LogNormal(0.0, 0.5))
        return jnp.exp(-2 * jnp.sin(jnp.pi * distances / period) ** 2)
    left, right = kernel(distances), kernel(distances)
    return left + right if rule == 2 else left * right


@case(np.array([0.0, 0.4, 1.0, 1.5]), np.array([0.2, 0.9, 0.1, -0.7]))
def gaussian_process_kernel(xs, ys):
    """A Gaussian process whose kernel is built by a recursive helper with unnamed sites."""
    covariance = kernel(xs[:, None] - xs[None, :]) + 0.1 * jnp.eye(len(xs))
    observe(dist.MultivariateNormal(jnp.zeros(len(xs)), covariance), ys)


@case(np.array([1.0, 2.0]), np.array([2.2, 3.1]), paths=7)
def composed_functions(xs, ys):
    """Functions that make functions: a random composition of at most two random maps."""

    def shift():
        amount = sample(dist.Normal(0.0, 1.0))
        return lambda x: x + amount

    def stretch():
        amount = sample(dist.LogNormal(0.0, 0.5))
        return lambda x: amount * x

    def compose(depth):
        if depth == 0 or sample(dist.Bernoulli(0.4)):
            return lambda x: x
        after = shift() if sample(dist.Bernoulli(0.5)) else stretch()
        before = compose(depth - 1)
        return lambda x: after(before(x))

    observe(dist.Normal(compose(2)(xs), 0.3), ys)


@case(3)
def branching_process(survivors):
    """Each individual has a random number of children; the third generation is counted."""

    def descendants(generation):
        if generation == 3:
            return 1
        children = sample(dist.Poisson(0.8))
        return sum(descendants(generation + 1) for _ in range(int(children)))

    observe(dist.Poisson(0.1 + descendants(0)), survivors)


@case(2, paths=8)
def tournament(champion):
    """Four players of unknown skill in a knock-out; the champion is known up to a mistake of the reporter."""
    skills = [numpyro.sample(f"skill_{i}", dist.Normal(0.0, 1.0)) for i in range(4)]

    def winner(players):
        if len(players) == 1:
            return players[0]
        half = len(players) // 2
        a, b = winner(players[:half]), winner(players[half:])
        first = numpyro.sample(f"match_{a}_{b}", dist.Bernoulli(logits=skills[a] - skills[b]))
        return a if first else b

    reported = 0.85 * jax.nn.one_hot(winner([0, 1, 2, 3]), 4) + 0.0375
    numpyro.sample("champion", dist.Categorical(reported), obs=champion)


# Other features of the language


@case(2.7, paths=4)
def rounded_down(y):
    """The whole part of a bounded real says how often a loop runs."""
    size = sample("size", dist.Uniform(0.0, 4.0))
    total = 0.0
    for i in range(int(jnp.floor(size))):
        total = total + sample(f"part_{i}", dist.Normal(1.0, 0.5))
    observe("y", dist.Normal(total, 0.5), y)


@case(np.array([1.4, 0.9]), paths=3)
def scoped(ys):
    """Handlers of NumPyro inside the program: names in a scope, and a submodel conditioned on a value."""

    def offset():
        if numpyro.sample("present", dist.Bernoulli(0.5)):
            return numpyro.sample("size", dist.Normal(0.0, 1.0))
        return 0.0

    if numpyro.sample("nested", dist.Bernoulli(0.5)):
        with handlers.scope(prefix="outer"):
            mean = offset()
    else:
        mean = handlers.condition(handlers.scope(offset, prefix="fixed"), data={"fixed/present": 1})()
    numpyro.sample("ys", dist.Normal(mean, 1.0), obs=ys)


@case(1.3, paths=3)
def comprehension(y):
    """Unnamed sites in a list comprehension, a lambda and a generator."""
    count = sample(dist.Categorical(jnp.array([0.2, 0.5, 0.3])))
    noise = lambda scale: sample(dist.Normal(0.0, scale))  # noqa: E731
    xs = [sample(dist.Normal(1.0, 1.0)) for _ in range(count)]
    total = sum(x + noise(0.1) for x in xs)
    observe(dist.Normal(total + noise(0.2), 0.5), y)


class Sensor:
    """A program that is a callable object."""

    def __init__(self, precision: float) -> None:
        self.precision = precision

    def __call__(self, readings: np.ndarray) -> None:
        temperature = sample(dist.Normal(20.0, 5.0))
        for reading in readings:
            broken = sample(dist.Bernoulli(0.1))
            if broken:
                observe(dist.Uniform(-50.0, 100.0), reading)
            else:
                observe(dist.Normal(temperature, self.precision), reading)


def regime(levels, ys):
    """A program that is used with its first argument fixed."""
    state = sample("state_0", dist.Categorical(jnp.ones(len(levels)) / len(levels)))
    for t, y in enumerate(ys):
        observe(f"y_{t}", dist.Normal(levels[int(state)], 1.0), y)
        if t + 1 < len(ys) and sample(f"moves_{t}", dist.Bernoulli(0.3)):
            state = (state + 1) % len(levels)


CASES += [
    Case("callable_object", Sensor(0.5), (np.array([21.0, 20.4, 85.0]),), paths=8),
    Case("partial_application", functools.partial(regime, (0.0, 3.0)), (np.array([0.1, 2.8, 3.3]),), paths=8),
]
