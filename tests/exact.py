"""Programs whose evidence and posterior probabilities are known exactly: what inference is tested against.

Each program is followed by its reference, in plain NumPy and SciPy. A reference cuts the joint distribution of a
program into parts in which the discrete quantities are constant: by enumeration, conjugate pairs, cells of a partition,
or, in one dimension, quadrature. The tests check every reference against the density of the program itself.

    >>> case = named("coin")
    >>> round(case.log_evidence, 6), round(case.probabilities["fair"][1], 6)
    (-2.841238, 0.736354)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import itemgetter
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.integrate import quad
from scipy.special import betaln, gammaln, log_ndtr, logsumexp

import anabranch as ab
from anabranch.programs import branching

Draw = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """A part of the joint distribution of a program and its data.

    Attributes:
        log_evidence: the log of its mass.
        values: what the discrete sites and deterministics are in it.
        means: posterior means within it.
    """

    log_evidence: float
    values: Mapping[str, Hashable]
    means: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Exact:
    """A program with its arguments and its exact answers.

    Attributes:
        parts: the reference, a function of the same arguments.
        executions: after so many executions from the prior, the paths not met hold about a thousandth of the posterior.
    """

    name: str
    program: Callable[..., Any]
    args: tuple[Any, ...]
    parts: Callable[..., Iterable[Part]]
    executions: int = 1000

    @cached_property
    def _parts(self) -> list[Part]:
        return list(self.parts(*self.args))

    @cached_property
    def _weights(self) -> np.ndarray:
        return np.exp([part.log_evidence - self.log_evidence for part in self._parts])

    @cached_property
    def log_evidence(self) -> float:
        """The log of the evidence."""
        return float(logsumexp([part.log_evidence for part in self._parts]))

    @cached_property
    def probabilities(self) -> dict[str, dict[Hashable, float]]:
        """The posterior probability of each value of a discrete site or deterministic, by name."""
        out: dict[str, dict[Hashable, float]] = {}
        for weight, part in zip(self._weights, self._parts, strict=True):
            for name, value in part.values.items():
                of_values = out.setdefault(name, {})
                of_values[value] = of_values.get(value, 0.0) + float(weight)
        return out

    @cached_property
    def expectations(self) -> dict[str, tuple[Callable[[Draw], Any], float]]:
        """Functions of a draw, or of a batch of draws, with their posterior expectations."""
        means = {
            name: sum(weight * part.means[name] for weight, part in zip(self._weights, self._parts, strict=True))
            for name in self._parts[0].means
        }
        return {name: (itemgetter(name), float(mean)) for name, mean in means.items()}


EXACT: list[Exact] = []

Reference = Callable[..., Iterable[Part]]


def solves(
    program: Callable[..., Any], *args: Any, name: str | None = None, executions: int = 1000
) -> Callable[[Reference], Reference]:
    """Enters the reference below it for a program with these arguments."""

    def enter(parts: Reference) -> Reference:
        EXACT.append(Exact(name or program.__name__, program, args, parts, executions))
        return parts

    return enter


def named(name: str) -> Exact:
    """The program of this name."""
    return next(case for case in EXACT if case.name == name)


# What the references share --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Linear:
    """The answer to y ~ Normal(design · b, noise), b ~ Normal(centre, scale)."""

    log_evidence: float
    mean: np.ndarray
    covariance: np.ndarray


def linear(y: Any, design: Any, centre: float, scale: float, noise: float) -> Linear:
    """A linear model with independent normal coefficients and known noise; there may be no coefficients or no data."""
    y, design = np.asarray(y, float), np.asarray(design, float)
    gain = scale**2 * design.T
    spread = noise**2 * np.eye(len(y)) + design @ gain
    residual = y - design.sum(axis=1) * centre
    solved = np.linalg.solve(spread, residual)
    log_evidence = -0.5 * (residual @ solved + np.linalg.slogdet(spread)[1] + len(y) * np.log(2 * np.pi))
    covariance = scale**2 * np.eye(design.shape[1]) - gain @ np.linalg.solve(spread, gain.T)
    return Linear(float(log_evidence), centre + gain @ solved, covariance)


def same_mean(y: Any, centre: float, scale: float, noise: float) -> Linear:
    """y ~ Normal(mean, noise), mean ~ Normal(centre, scale)."""
    return linear(y, np.ones((len(y), 1)), centre, scale, noise)


def log_normal(y: Any, mean: Any, sd: float) -> Any:
    """The log density of Normal(mean, sd)."""
    return -0.5 * ((y - np.asarray(mean)) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def log_gamma_integral(shape: float, rate: float) -> float:
    """log ∫ x^(shape-1) exp(-rate x) dx."""
    return float(gammaln(shape) - shape * np.log(rate))


def log_poisson_gamma(y: np.ndarray, shape: float, rate: float) -> float:
    """The log evidence of y ~ Poisson(x), x ~ Gamma(shape, rate)."""
    after = log_gamma_integral(shape + y.sum(), rate + len(y))
    return float(after - log_gamma_integral(shape, rate) - gammaln(y + 1).sum())


def legendre(low: float, high: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the rule of Gauss and Legendre on an interval."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return low + (high - low) * (nodes + 1) / 2, weights * (high - low) / 2


# Regression -----------------------------------------------------------------------------------------------------------


def polynomial(x: np.ndarray, y: np.ndarray) -> None:
    """A polynomial of unknown degree; its coefficients are one site."""
    degree = int(ab.sample("degree", dist.DiscreteUniform(0, 5)))
    coefficients = ab.sample("coefficients", dist.Normal(0.0, 2.0).expand([degree + 1]).to_event(1))
    ab.observe("y", dist.Normal(np.vander(x, degree + 1, increasing=True) @ coefficients, 0.5), y)
    ab.deterministic("at_one", jnp.sum(coefficients))


X = np.linspace(-1.0, 1.0, 12)


@solves(polynomial, X, 0.5 - X + 2.2 * X**3 + 0.5 * np.random.default_rng(5).standard_normal(12))
def polynomial_parts(x: np.ndarray, y: np.ndarray) -> Iterator[Part]:
    for degree in range(6):
        fit = linear(y, np.vander(x, degree + 1, increasing=True), 0.0, 2.0, 0.5)
        yield Part(fit.log_evidence - np.log(6), {"degree": degree}, {"at_one": fit.mean.sum()})


def wide_regression(x: np.ndarray, y: np.ndarray) -> None:
    """Sixty correlated regressors together, or only a level."""
    if ab.sample("wide", dist.Bernoulli(0.5)):
        slopes = ab.sample("slopes", dist.Normal(0.0, 0.15).expand([x.shape[1]]).to_event(1))
        mean = x @ slopes
    else:
        mean = ab.sample("level", dist.Normal(0.0, 1.0)) * jnp.ones(len(y))
    ab.observe("y", dist.Normal(mean, 1.0), y)
    ab.deterministic("first", mean[0])


def correlated_design(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A hundred data of sixty regressors, neighbours correlated by 0.9; small slopes, noise 1."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((100, 60))
    for j in range(1, 60):
        x[:, j] = 0.9 * x[:, j - 1] + np.sqrt(1 - 0.9**2) * x[:, j]
    return x, x @ (0.055 * rng.standard_normal(60)) + rng.standard_normal(100)


@solves(wide_regression, *correlated_design(4))
def wide_regression_parts(x: np.ndarray, y: np.ndarray) -> Iterator[Part]:
    wide, level = linear(y, x, 0.0, 0.15, 1.0), same_mean(y, 0.0, 1.0, 1.0)
    yield Part(wide.log_evidence - np.log(2), {"wide": 1}, {"first": x[0] @ wide.mean})
    yield Part(level.log_evidence - np.log(2), {"wide": 0}, {"first": level.mean[0]})


def variable_selection(x: np.ndarray, y: np.ndarray) -> None:
    """Each of four regressors is in the model or not."""
    mean, size = jnp.zeros(len(y)), 0
    for j in range(x.shape[1]):
        if ab.sample(f"in{j}", dist.Bernoulli(0.3)):
            slope = ab.sample(f"slope{j}", dist.Normal(0.0, 1.0))
            mean, size = mean + slope * x[:, j], size + 1
    ab.observe("y", dist.Normal(mean, 1.0), y)
    ab.deterministic("size", size)
    ab.deterministic("first", mean[0])


def selection_data(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Fifteen data; the first two regressors are nearly the same."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((15, 4))
    x[:, 1] = 0.9 * x[:, 0] + 0.4 * x[:, 1]
    return x, x[:, 0] + 0.6 * x[:, 3] + rng.standard_normal(15)


@solves(variable_selection, *selection_data(1), executions=5000)
def variable_selection_parts(x: np.ndarray, y: np.ndarray) -> Iterator[Part]:
    for inside in itertools.product((0, 1), repeat=x.shape[1]):
        columns, size = x[:, np.array(inside, bool)], sum(inside)
        fit = linear(y, columns, 0.0, 1.0, 1.0)
        prior = size * np.log(0.3) + (len(inside) - size) * np.log(0.7)
        values = {f"in{j}": value for j, value in enumerate(inside)} | {"size": size}
        yield Part(fit.log_evidence + prior, values, {"first": columns[0] @ fit.mean})


def heavy_tails(y: np.ndarray) -> None:
    """A location with normal noise or noise of Student's t."""
    location = ab.sample("location", dist.Normal(0.0, 5.0))
    if ab.sample("heavy", dist.Bernoulli(0.5)):
        ab.observe("y", dist.StudentT(3.0, location, 1.0), y)
    else:
        ab.observe("y", dist.Normal(location, 1.5), y)


@solves(heavy_tails, np.array([0.3, 1.2, 0.8, 0.1, 1.0, 0.6, 1.5, 5.0]))
def heavy_tails_parts(y: np.ndarray) -> Iterator[Part]:
    light = same_mean(y, 0.0, 5.0, 1.5)
    yield Part(light.log_evidence - np.log(2), {"heavy": 0}, {"location": light.mean[0]})

    def density(location: float) -> float:
        constant = gammaln(2.0) - gammaln(1.5) - 0.5 * np.log(3 * np.pi)
        log_likelihood = np.sum(constant - 2 * np.log1p((y - location) ** 2 / 3))
        return float(np.exp(log_normal(location, 0.0, 5.0) + log_likelihood))

    def moment(power: int) -> float:
        # In pieces of the width of the likelihood, so that the rule sees its peaks.
        pieces = itertools.pairwise(np.arange(-40.0, 41.0))
        return sum(quad(lambda at: at**power * density(at), *piece, epsabs=0, epsrel=1e-12)[0] for piece in pieces)

    mass = moment(0)
    yield Part(np.log(mass) - np.log(2), {"heavy": 1}, {"location": moment(1) / mass})


def needle(y: np.ndarray) -> None:
    """A published value, or one that the data give to four more digits than the prior does."""
    if ab.sample("measured", dist.Bernoulli(0.5)):
        x = ab.sample("x", dist.Normal(0.0, 10.0))
        ab.observe("y", dist.Normal(x, 1e-4), y)
    else:
        x = 3.142
        ab.observe("y", dist.Normal(x, 5e-3), y)
    ab.deterministic("constant", x)


@solves(needle, np.array([3.14151, 3.14163, 3.14157]))
def needle_parts(y: np.ndarray) -> Iterator[Part]:
    fit = same_mean(y, 0.0, 10.0, 1e-4)
    published = float(np.sum(log_normal(y, 3.142, 5e-3)))
    yield Part(fit.log_evidence - np.log(2), {"measured": 1}, {"constant": fit.mean[0]})
    yield Part(published - np.log(2), {"measured": 0}, {"constant": 3.142})


def leaves_jax(y: np.ndarray) -> None:
    """The mean goes through Python's floats, so that the paths are interpreted."""
    x = float(ab.sample("x", dist.Normal(0.0, 2.0)))
    mean = math.fsum([x, x, 1.0]) if ab.sample("affine", dist.Bernoulli(0.4)) else x
    ab.observe("y", dist.Normal(mean, 1.0), y)
    ab.deterministic("mean", mean)


@solves(leaves_jax, np.array([1.8, 2.9, 2.1]), executions=200)
def leaves_jax_parts(y: np.ndarray) -> Iterator[Part]:
    for affine, prior, centre, scale in ((0, 0.6, 0.0, 2.0), (1, 0.4, 1.0, 4.0)):
        fit = same_mean(y, centre, scale, 1.0)
        yield Part(fit.log_evidence + np.log(prior), {"affine": affine}, {"mean": fit.mean[0]})


def banana(y: float) -> None:
    """The data know the square of the first variable: a bent density with two modes, or a straight one."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    bent = ab.sample("bent", dist.Bernoulli(0.5))
    height = ab.sample("height", dist.Normal(x**2 if bent else 3.0 * x, 0.3))
    ab.observe("y", dist.Normal(height, 0.4), y)
    ab.deterministic("positive", x > 0)


@solves(banana, 3.0)
def banana_parts(y: float) -> Iterator[Part]:
    # Given x, the height has variance 0.3^2 and y has 0.5^2: its posterior mean lies 0.36 of the way to y.
    nodes, weights = legendre(0.0, 9.0, 160)
    for bent, positive in itertools.product((0, 1), (True, False)):
        x = nodes if positive else -nodes
        height = x**2 if bent else 3 * x
        log_terms = np.log(weights) + log_normal(x, 0.0, 1.0) + log_normal(y, height, 0.5)
        log_mass = logsumexp(log_terms)
        mean = np.exp(log_terms - log_mass) @ (height + 0.36 * (y - height))
        yield Part(log_mass - np.log(2), {"bent": bent, "positive": positive}, {"height": mean})


# Counts, coins and times ----------------------------------------------------------------------------------------------


def coin(heads: int, flips: int) -> None:
    """A coin that is fair, or has any bias."""
    p = 0.5 if ab.sample("fair", dist.Bernoulli(0.8)) else ab.sample("bias", dist.Beta(1.0, 1.0))
    ab.observe("heads", dist.Binomial(flips, p), heads)
    ab.deterministic("p", p)


@solves(coin, 9, 12)
def coin_parts(heads: int, flips: int) -> Iterator[Part]:
    tails = flips - heads
    ways = -np.log(flips + 1) - betaln(heads + 1, tails + 1)
    yield Part(np.log(0.8) + ways + flips * np.log(0.5), {"fair": 1}, {"p": 0.5})
    yield Part(np.log(0.2) + ways + betaln(heads + 1, tails + 1), {"fair": 0}, {"p": (heads + 1) / (flips + 2)})


def counts(y: np.ndarray) -> None:
    """Counts with one rate, or with a rate each: a negative binomial."""
    if ab.sample("shared", dist.Bernoulli(0.5)):
        rate = ab.sample("rate", dist.Gamma(2.0, 0.5)) * jnp.ones(len(y))
    else:
        rate = ab.sample("rates", dist.Gamma(2.0, 0.5).expand([len(y)]).to_event(1))
    ab.observe("y", dist.Poisson(rate), y)
    ab.deterministic("mean_rate", jnp.mean(rate))


@solves(counts, np.array([2, 5, 1, 8, 3, 4]))
def counts_parts(y: np.ndarray) -> Iterator[Part]:
    shared = log_poisson_gamma(y, 2.0, 0.5)
    each = sum(log_poisson_gamma(y[i : i + 1], 2.0, 0.5) for i in range(len(y)))
    yield Part(shared - np.log(2), {"shared": 1}, {"mean_rate": (2 + y.sum()) / (0.5 + len(y))})
    yield Part(each - np.log(2), {"shared": 0}, {"mean_rate": float(np.mean((2 + y) / 1.5))})


def categories(labels: np.ndarray) -> None:
    """Draws from an unknown number of categories, of which some may not have been seen."""
    size = ab.deterministic("K", int(ab.sample("extra", dist.Categorical(np.array([0.4, 0.3, 0.2, 0.1])))) + 3)
    p = ab.sample("p", dist.Dirichlet(np.ones(size)))
    ab.observe("labels", dist.Categorical(p), labels)
    ab.deterministic("repeat", jnp.sum(p**2))


@solves(categories, np.array([0, 1, 0, 2, 0, 1, 2, 0]))
def categories_parts(labels: np.ndarray) -> Iterator[Part]:
    for size, prior in zip(range(3, 7), (0.4, 0.3, 0.2, 0.1), strict=True):
        after = 1 + np.bincount(labels, minlength=size)
        total = after.sum()
        log_evidence = gammaln(after).sum() - gammaln(total) + gammaln(size)
        repeat = np.sum(after * (after + 1)) / (total * (total + 1))
        yield Part(np.log(prior) + log_evidence, {"K": size}, {"repeat": repeat})


def survival(times: np.ndarray, died: np.ndarray, group: np.ndarray) -> None:
    """Exponential survival, censored where nobody died, with one rate or one for each of two groups."""
    if ab.sample("differ", dist.Bernoulli(0.5)):
        rates = ab.sample("rates", dist.Gamma(2.0, 4.0).expand([2]).to_event(1))
    else:
        rates = ab.sample("rate", dist.Gamma(2.0, 4.0)) * jnp.ones(2)
    rate = rates[group]
    ab.observe("deaths", dist.Exponential(rate[died]), times[died])
    ab.factor("censored", -jnp.sum(rate[~died] * times[~died]))
    ab.deterministic("second", rates[1])


@solves(
    survival,
    np.array([0.4, 2.0, 1.1, 3.0, 0.7, 3.0, 2.2, 3.0, 3.0, 1.9]),
    np.array([True, True, True, False, True, False, True, False, False, True]),
    np.array([0, 0, 0, 0, 0, 1, 1, 1, 1, 1]),
)
def survival_parts(times: np.ndarray, died: np.ndarray, group: np.ndarray) -> Iterator[Part]:
    def log_evidence(of: np.ndarray) -> float:
        return log_gamma_integral(2 + died[of].sum(), 4 + times[of].sum()) - log_gamma_integral(2, 4)

    def mean(of: np.ndarray) -> float:
        return float((2 + died[of].sum()) / (4 + times[of].sum()))

    first, second, everyone = group == 0, group == 1, group >= 0
    yield Part(log_evidence(first) + log_evidence(second) - np.log(2), {"differ": 1}, {"second": mean(second)})
    yield Part(log_evidence(everyone) - np.log(2), {"differ": 0}, {"second": mean(everyone)})


def change_point(y: np.ndarray) -> None:
    """A rate that changes at an unknown time, or does not; the time stays a variable of the path."""
    early = ab.sample("early", dist.Gamma(2.0, 0.5))
    late, tau = early, 0
    if ab.sample("changed", dist.Bernoulli(0.5)):
        tau = ab.sample("tau", dist.DiscreteUniform(1, len(y) - 1))
        late = ab.sample("late", dist.Gamma(2.0, 0.5))
    ab.observe("y", dist.Poisson(jnp.where(np.arange(len(y)) < tau, early, late)), y)
    ab.deterministic("time", tau)
    ab.deterministic("last", late)


def change_point_split(y: np.ndarray) -> None:
    """The same with a path for each time."""
    early = ab.sample("early", dist.Gamma(2.0, 0.5))
    late, tau = early, 0
    if ab.sample("changed", dist.Bernoulli(0.5)):
        tau = int(ab.sample("tau", dist.DiscreteUniform(1, len(y) - 1)))
        late = ab.sample("late", dist.Gamma(2.0, 0.5))
        ab.observe("before", dist.Poisson(early), y[:tau])
    ab.observe("after", dist.Poisson(late), y[tau:])
    ab.deterministic("time", tau)
    ab.deterministic("last", late)


COUNTS = np.array([4, 6, 3, 5, 2, 3, 1, 2, 1, 2])


@solves(change_point, COUNTS)
@solves(change_point_split, COUNTS)
def change_point_parts(y: np.ndarray) -> Iterator[Part]:
    never = log_poisson_gamma(y, 2.0, 0.5) - np.log(2)
    yield Part(never, {"changed": 0, "time": 0}, {"last": (2 + y.sum()) / (0.5 + len(y))})
    for tau in range(1, len(y)):
        before, after = y[:tau], y[tau:]
        log_evidence = log_poisson_gamma(before, 2.0, 0.5) + log_poisson_gamma(after, 2.0, 0.5)
        prior = -np.log(2 * (len(y) - 1))
        yield Part(log_evidence + prior, {"changed": 1, "time": tau}, {"last": (2 + after.sum()) / (0.5 + len(after))})


# Loops that end at random ---------------------------------------------------------------------------------------------


def geometric_count(y: np.ndarray) -> None:
    """Infinitely many paths, none with a real variable."""
    n = 0
    while ab.sample(f"again{n}", dist.Bernoulli(0.6)):
        n += 1
    ab.observe("y", dist.Normal(n, 2.0), y)
    ab.deterministic("n", n)


@solves(geometric_count, np.array([7.1, 5.2, 8.0]))
def geometric_count_parts(y: np.ndarray) -> Iterator[Part]:
    for n in range(100):  # what is left out is below exp(-3000)
        prior = n * np.log(0.6) + np.log(0.4)
        yield Part(prior + float(np.sum(log_normal(y, n, 2.0))), {"n": n}, {"n": float(n)})


def compound_sum(y: float) -> None:
    """Infinitely many paths, with as many variables as there are steps."""
    n, total = 0, 0.0
    while ab.sample(f"again{n}", dist.Bernoulli(0.7)):
        total = total + ab.sample(f"step{n}", dist.Normal(1.0, 0.5))
        n += 1
    ab.observe("y", dist.Normal(total, 0.3), y)
    ab.deterministic("n", n)
    ab.deterministic("total", total)


@solves(compound_sum, 3.2)
def compound_sum_parts(y: float) -> Iterator[Part]:
    for n in range(200):  # what is left out is below 0.7^200
        variance = 0.25 * n + 0.09
        log_evidence = n * np.log(0.7) + np.log(0.3) + float(log_normal(y, n, np.sqrt(variance)))
        yield Part(log_evidence, {"n": n}, {"total": n + 0.25 * n / variance * (y - n)})


def barrier(y: float) -> None:
    """A walk that stops above one or after five steps, seen where it stopped."""
    position, steps = 0.0, 0
    while steps < 5 and position < 1.0:
        position = position + ab.sample(f"step{steps}", dist.Normal(0.2, 1.0))
        steps += 1
    ab.observe("y", dist.Normal(position, 0.5), y)
    ab.deterministic("steps", steps)
    ab.deterministic("crossed", position >= 1.0)
    ab.deterministic("position", position)


@solves(barrier, 1.1)
def barrier_parts(y: float) -> Iterator[Part]:
    below, above = legendre(-14.0, 1.0, 120), legendre(1.0, 14.0, 100)

    def part(steps: int, density: np.ndarray, place: tuple[np.ndarray, np.ndarray], crossed: bool) -> Part:
        position, weights = place
        terms = weights * density * np.exp(log_normal(y, position, 0.5))
        values = {"steps": steps, "crossed": crossed}
        return Part(float(np.log(terms.sum())), values, {"position": terms @ position / terms.sum()})

    def moved(to: np.ndarray) -> np.ndarray:
        """The density of the next position of a walk that is still below."""
        return np.exp(log_normal(to[:, None], below[0] + 0.2, 1.0)) @ (below[1] * density)

    density, over = (np.exp(log_normal(place, 0.2, 1.0)) for place in (below[0], above[0]))
    for steps in range(1, 6):
        yield part(steps, over, above, True)
        if steps < 5:
            density, over = moved(below[0]), moved(above[0])
    yield part(5, density, below, False)


# Guards and jumps -----------------------------------------------------------------------------------------------------


def figure_two(y: float) -> None:
    """The program of figure 2 of the paper."""
    z0 = branching(y)
    ab.deterministic("left", z0 < 0)
    ab.deterministic("first", z0)


@solves(figure_two, 2.0)
def figure_two_parts(y: float) -> Iterator[Part]:
    mean = 2 * np.sqrt(2 / np.pi)  # of the half of Normal(0, 2)
    yield Part(np.log(0.5) + log_normal(y, -5.0, np.sqrt(8.0)), {"left": True}, {"first": -mean})
    yield Part(np.log(0.5) + log_normal(y, 5.0, np.sqrt(12.0)), {"left": False}, {"first": mean})


def rare_guard(y: np.ndarray) -> None:
    """Readings follow their sources if all of those exceed one, which they rarely do a priori."""
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    if jnp.all(x > 1.0):
        ab.observe("y", dist.Normal(x, 0.5), y)
        ab.deterministic("rare", 1)
    else:
        level = ab.sample("level", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(level, 0.3), y)
        ab.deterministic("rare", 0)
    ab.deterministic("mean", jnp.mean(x))


@solves(rare_guard, np.array([1.0, 1.6, 2.5]), executions=3000)
@solves(rare_guard, np.array([1.0, 2.6, 1.2, 3.0, 2.0]), name="hidden_guard", executions=100_000)
def rare_guard_parts(y: np.ndarray) -> Iterator[Part]:
    log_guard = len(y) * log_ndtr(-1.0)
    hazard = np.exp(log_normal(1.0, 0.0, 1.0) - log_ndtr(-1.0))  # the mean of x above one, a priori
    # x given its reading is Normal(0.8 y, sqrt(0.2)), cut off below one.
    sd = np.sqrt(0.2)
    distance = (0.8 * y - 1.0) / sd
    log_evidence = np.sum(log_normal(y, 0.0, np.sqrt(1.25)) + log_ndtr(distance))
    mean = np.mean(0.8 * y + sd * np.exp(log_normal(distance, 0.0, 1.0) - log_ndtr(distance)))
    yield Part(float(log_evidence), {"rare": 1}, {"mean": float(mean)})
    log_rest = np.log1p(-np.exp(log_guard))
    common = same_mean(y, 0.0, 1.0, 0.3).log_evidence + log_rest
    yield Part(common, {"rare": 0}, {"mean": float(-hazard * np.exp(log_guard - log_rest))})


def jumpy(y: np.ndarray) -> None:
    """A mean that is rounded down, or not: the gradient does not see the jumps."""
    x = ab.sample("x", dist.Normal(0.0, 3.0))
    whole = jnp.floor(x)
    if ab.sample("rounded", dist.Bernoulli(0.5)):
        ab.observe("y", dist.Normal(whole, 0.8), y)
    else:
        ab.observe("y", dist.Normal(x, 0.8), y)
    ab.deterministic("whole", whole.astype(int))


@solves(jumpy, np.array([1.4, 3.1]))
def jumpy_parts(y: np.ndarray) -> Iterator[Part]:
    smooth = same_mean(y, 0.0, 3.0, 0.8)
    mean, sd = smooth.mean[0], np.sqrt(smooth.covariance[0, 0])
    for whole in range(-25, 26):
        likelihood = float(np.sum(log_normal(y, whole, 0.8)))
        yield Part(log_between(whole / 3, (whole + 1) / 3) + likelihood - np.log(2), {"rounded": 1, "whole": whole})
        share = log_between((whole - mean) / sd, (whole + 1 - mean) / sd)
        yield Part(smooth.log_evidence + share - np.log(2), {"rounded": 0, "whole": whole})


def log_between(low: float, high: float) -> float:
    """The log probability that a standard normal lies between two numbers."""
    if low > 0:
        low, high = -high, -low
    return float(log_ndtr(high) + np.log1p(-np.exp(log_ndtr(low) - log_ndtr(high))))


def step_function(x: np.ndarray, y: np.ndarray) -> None:
    """A function with up to two jumps at unknown places; the likelihood is constant between the data."""
    jumps = int(ab.sample("jumps", dist.Categorical(np.array([0.4, 0.35, 0.25]))))
    places = [ab.sample(f"place{i}", dist.Uniform(0.0, 1.0)) for i in range(jumps)]
    levels = ab.sample("levels", dist.Normal(0.0, 2.0).expand([jumps + 1]).to_event(1))
    segment = np.zeros(len(x), int) + sum(jnp.where(x > place, 1, 0) for place in places)
    mean = levels[segment]
    ab.observe("y", dist.Normal(mean, 0.7), y)
    ab.deterministic("middle", mean[len(x) // 2])


@solves(
    step_function,
    np.array([0.08, 0.15, 0.26, 0.34, 0.47, 0.55, 0.63, 0.78, 0.86, 0.97]),
    np.array([0.3, -0.4, 0.8, 1.5, 2.4, 1.2, 1.9, 0.6, 0.9, -0.2]),
)
def step_function_parts(x: np.ndarray, y: np.ndarray) -> Iterator[Part]:
    widths = np.diff([0.0, *x, 1.0])
    for jumps, prior in enumerate((0.4, 0.35, 0.25)):
        # A jump in the cell c is passed by the data from number c on.
        for cells in itertools.product(range(len(widths)), repeat=jumps):
            segment = sum((np.arange(len(x)) >= cell for cell in cells), start=np.zeros(len(x), int))
            fit = linear(y, np.eye(jumps + 1)[segment], 0.0, 2.0, 0.7)
            log_prior = np.log(prior) + sum(np.log(widths[cell]) for cell in cells)
            yield Part(fit.log_evidence + log_prior, {"jumps": jumps}, {"middle": fit.mean[segment[len(x) // 2]]})


# Discrete variables ---------------------------------------------------------------------------------------------------


def alarm(called: int) -> None:
    """Nested branches: which variables there are depends on the ones before."""
    rings = 0
    if ab.sample("burglary", dist.Bernoulli(0.1)):
        rings = int(ab.sample("triggered", dist.Bernoulli(0.9)))
    elif ab.sample("earthquake", dist.Bernoulli(0.2)):
        rings = int(ab.sample("shaken", dist.Bernoulli(0.4)))
    ab.observe("called", dist.Bernoulli(0.8 if rings else 0.05), called)
    ab.deterministic("rings", rings)


@solves(alarm, 1)
def alarm_parts(called: int) -> Iterator[Part]:
    prior = {(1, 1): 0.1 * 0.9, (1, 0): 0.1 * 0.1, (0, 1): 0.9 * 0.2 * 0.4, (0, 0): 0.9 * (1 - 0.2 * 0.4)}
    for (burglary, rings), probability in prior.items():
        calls = 0.8 if rings else 0.05
        likelihood = calls if called else 1 - calls
        yield Part(np.log(probability * likelihood), {"burglary": burglary, "rings": rings})


def sprinkler(wet: int) -> None:
    """A Bayesian network in one path: nothing asks for the discrete variables."""
    cloudy = ab.sample("cloudy", dist.Bernoulli(0.5))
    sprinkled = ab.sample("sprinkled", dist.Bernoulli(jnp.where(cloudy == 1, 0.1, 0.5)))
    rain = ab.sample("rain", dist.Bernoulli(jnp.where(cloudy == 1, 0.8, 0.2)))
    ab.observe("wet", dist.Bernoulli(jnp.array([0.08, 0.89, 0.98])[sprinkled + rain]), wet)


@solves(sprinkler, 1)
def sprinkler_parts(wet: int) -> Iterator[Part]:
    for cloudy, sprinkled, rain in itertools.product((0, 1), repeat=3):
        on, falls = (0.1, 0.8) if cloudy else (0.5, 0.2)
        wets = (0.08, 0.89, 0.98)[sprinkled + rain]
        terms = (0.5, on if sprinkled else 1 - on, falls if rain else 1 - falls, wets if wet else 1 - wets)
        yield Part(float(np.sum(np.log(terms))), {"cloudy": cloudy, "sprinkled": sprinkled, "rain": rain})


INITIAL, TRANSITION, LEVELS = [0.6, 0.4], [[0.8, 0.2], [0.3, 0.7]], [-1.0, 1.0]


def hmm_variables(y: np.ndarray) -> None:
    """A hidden Markov model whose states stay variables of the one path."""
    transition, levels = jnp.array(TRANSITION), jnp.array(LEVELS)
    probabilities, ones = jnp.array(INITIAL), 0
    for t, value in enumerate(y):
        state = ab.sample(f"state{t}", dist.Categorical(probabilities))
        ab.observe(f"y{t}", dist.Normal(levels[state], 1.2), value)
        probabilities, ones = transition[state], ones + state
    ab.deterministic("ones", ones)


def hmm_paths(y: np.ndarray) -> None:
    """The same with lists, which ask for the state: a path for each sequence."""
    probabilities, ones = INITIAL, 0
    for t, value in enumerate(y):
        state = int(ab.sample(f"state{t}", dist.Categorical(np.array(probabilities))))
        ab.observe(f"y{t}", dist.Normal(LEVELS[state], 1.2), value)
        probabilities, ones = TRANSITION[state], ones + state
    ab.deterministic("ones", ones)


STATES = np.array([-0.9, 0.3, 1.4, 0.2, -0.4])


@solves(hmm_variables, STATES)
@solves(hmm_paths, STATES, executions=5000)
def hmm_parts(y: np.ndarray) -> Iterator[Part]:
    for states in itertools.product((0, 1), repeat=len(y)):
        prior = np.log(INITIAL[states[0]]) + sum(np.log(TRANSITION[a][b]) for a, b in itertools.pairwise(states))
        likelihood = float(np.sum(log_normal(y, np.array(LEVELS)[list(states)], 1.2)))
        values = {f"state{t}": state for t, state in enumerate(states)} | {"ones": sum(states)}
        yield Part(prior + likelihood, values)


# Mixtures and partitions ----------------------------------------------------------------------------------------------


def three_components(y: np.ndarray) -> None:
    """Three exchangeable components: every mode of the posterior is there six times."""
    means = ab.sample("means", dist.Normal(0.0, 2.5).expand([3]).to_event(1))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(np.ones(3) / 3), dist.Normal(means, 1.0)), y)
    ab.deterministic("largest", jnp.argmax(means))
    ab.deterministic("total", jnp.sum(means))
    ab.deterministic("squares", jnp.sum(means**2))


def unknown_components(y: np.ndarray) -> None:
    """The same with one, two or three components, their means one site each."""
    K = ab.deterministic("K", int(ab.sample("extra", dist.Categorical(np.array([0.3, 0.3, 0.4])))) + 1)
    means = jnp.stack([ab.sample(f"mean{k}", dist.Normal(0.0, 2.5)) for k in range(K)])
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(np.ones(K) / K), dist.Normal(means, 1.0)), y)
    ab.deterministic("total", jnp.sum(means))
    ab.deterministic("squares", jnp.sum(means**2))


def assignments(y: np.ndarray, components: int) -> Part:
    """The mixture by the sum over all ways to assign the data to its components."""
    subsets = [np.array(bits, bool) for bits in itertools.product((0, 1), repeat=len(y))]
    fits = [same_mean(y[subset], 0.0, 2.5, 1.0) for subset in subsets]
    log_evidence = np.array([fit.log_evidence for fit in fits])
    mean = np.array([fit.mean[0] for fit in fits])
    square = mean**2 + np.array([fit.covariance[0, 0] for fit in fits])
    labels = np.array(list(itertools.product(range(components), repeat=len(y))))
    powers = 2 ** np.arange(len(y))[::-1]  # the number of a subset, in the order of the list above
    blocks = np.stack([(labels == k) @ powers for k in range(components)])
    log_joint = log_evidence[blocks].sum(axis=0) - len(y) * np.log(components)
    total = logsumexp(log_joint)
    weights = np.exp(log_joint - total)
    means = {"total": weights @ mean[blocks].sum(axis=0), "squares": weights @ square[blocks].sum(axis=0)}
    return Part(float(total), {"K": components}, means)


CLUMPS = np.array([-3.1, -2.4, -3.6, -0.2, 0.5, 0.1, 2.2, 3.4, 2.9])


@solves(three_components, CLUMPS)
def three_components_parts(y: np.ndarray) -> Iterator[Part]:
    whole = assignments(y, 3)
    # Total and squares do not depend on labels, so that they mean the same whichever component is the largest.
    for k in range(3):
        yield Part(whole.log_evidence - np.log(3), {"largest": k}, whole.means)


@solves(unknown_components, CLUMPS)
def unknown_components_parts(y: np.ndarray) -> Iterator[Part]:
    for components, prior in ((1, 0.3), (2, 0.3), (3, 0.4)):
        part = assignments(y, components)
        yield Part(part.log_evidence + np.log(prior), part.values, part.means)


def chinese_restaurant(y: np.ndarray) -> None:
    """Each point joins a table in proportion to its guests, or opens one; tables have means."""
    means: list[Any] = []
    guests: list[int] = []
    partition = 0
    for i, value in enumerate(y):
        table = int(ab.sample(f"table{i}", dist.Categorical(np.array([*guests, 1.0]) / (i + 1))))
        if table == len(means):
            means.append(ab.sample(f"mean{table}", dist.Normal(0.0, 3.0)))
            guests.append(0)
        guests[table] += 1
        partition = 10 * partition + table
        ab.observe(f"y{i}", dist.Normal(means[table], 1.0), value)
    ab.deterministic("K", len(means))
    ab.deterministic("partition", partition)
    ab.deterministic("last", means[table])


SPREAD = np.array([-2.2, 1.9, 0.3, -0.8, 2.8, -0.1, 1.0, -1.6])


@solves(chinese_restaurant, SPREAD, executions=200_000)
@solves(chinese_restaurant, SPREAD[:6], name="chinese_restaurant_of_six", executions=5000)
@solves(chinese_restaurant, 1.5 * CLUMPS[1:], name="chinese_restaurant_in_clumps", executions=200_000)
def chinese_restaurant_parts(y: np.ndarray) -> Iterator[Part]:
    subsets = itertools.product((False, True), repeat=len(y))
    fits = {subset: same_mean(y[np.array(subset)], 0.0, 3.0, 1.0) for subset in subsets}
    for tables in partitions(len(y)):
        K = max(tables) + 1
        blocks = [tuple(table == k for table in tables) for k in range(K)]
        log_prior = sum(gammaln(sum(block)) for block in blocks) - gammaln(len(y) + 1)
        log_evidence = sum(fits[block].log_evidence for block in blocks)
        values = {"K": K, "partition": int("".join(map(str, tables)))}
        yield Part(log_prior + log_evidence, values, {"last": fits[blocks[tables[-1]]].mean[0]})


def partitions(n: int) -> Iterator[tuple[int, ...]]:
    """All partitions of n points, each as the number of every point's block in the order of appearance."""
    if n == 0:
        yield ()
        return
    for rest in partitions(n - 1):
        for table in range(max(rest, default=-1) + 2):
            yield (*rest, table)
