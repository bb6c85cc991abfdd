"""Densities with an exact log Z, written as ordinary programs: what `benchmarks/paths.py` measures inference with.

    for density in DENSITIES:
        posterior = ab.infer(density.program, *density.args)
        error = posterior.log_evidence - density.log_evidence

Most have one path. The references know nothing of the library: closed forms, sums over discrete values, and quadrature
in one or two dimensions, each beside its program. They are computed when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions.transforms import OrderedTransform
from scipy import integrate, stats
from scipy.special import betaln, gammaincc, gammaln, logsumexp, multigammaln

import anabranch as ab

Program = Callable[..., Any]


@dataclass(frozen=True)
class Density:
    """A program, its data and its exact evidence.

    The reference takes the same arguments as the program. `dim` is the number of coordinates of the largest path.
    """

    name: str
    kind: str
    program: Program
    args: tuple[Any, ...]
    reference: Callable[..., float]
    dim: int
    paths: int = 1

    @cached_property
    def log_evidence(self) -> float:
        """The exact log Z."""
        return float(self.reference(*self.args))


# Quadrature -----------------------------------------------------------------------------------------------------------

NODES, WEIGHTS = np.polynomial.legendre.leggauss(20)


def rule(*breaks: float, panels: int = 200) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and log weights of Gauss-Legendre in so many panels between each two breaks."""
    edges = np.concatenate([np.linspace(a, b, panels + 1)[:-1] for a, b in pairwise(breaks)])
    edges = np.append(edges, breaks[-1])
    half = np.diff(edges)[:, None] / 2
    return (edges[:-1, None] + half * (1 + NODES)).ravel(), np.log(half * WEIGHTS).ravel()


def log_integral(log_f: Callable[[np.ndarray], np.ndarray], *breaks: float, panels: int = 200) -> float:
    """log ∫ exp log_f(x) dx from the first break to the last."""
    x, log_w = rule(*breaks, panels=panels)
    return float(logsumexp(log_f(x) + log_w))


def log_normal(x: Any, mean: Any = 0.0, sd: Any = 1.0) -> Any:
    return -0.5 * ((x - mean) / sd) ** 2 - np.log(sd) - 0.5 * np.log(2 * np.pi)


def log_mvn(y: np.ndarray, cov: np.ndarray) -> float:
    return float(stats.multivariate_normal(np.zeros(len(y)), cov).logpdf(y))


def numbers(seed: int, *shape: int) -> np.ndarray:
    """Normal numbers that make up data and designs."""
    return np.random.default_rng(seed).normal(size=shape)


# Signs: 2^d modes -----------------------------------------------------------------------------------------------------


def squares(y: np.ndarray, sd: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([len(y)]))
    ab.observe("y", dist.Normal(x**2, sd), y)


def magnitudes(y: np.ndarray, sd: float) -> None:
    x = [ab.sample(f"x{i}", dist.Normal(0.0, 1.0)) for i in range(len(y))]
    ab.observe("y", dist.Normal(jnp.abs(jnp.stack(x)), sd), y)


def squares_and_sum(y: np.ndarray, sd: float, total: float, total_sd: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([len(y)]))
    ab.observe("y", dist.Normal(x**2, sd), y)
    ab.observe("total", dist.Normal(jnp.sum(x), total_sd), total)


def squares_reference(y: np.ndarray, sd: float) -> float:
    return sum(
        np.log(2) + log_integral(lambda x, v=v: log_normal(x) + log_normal(v, x**2, sd), 0.0, 6.0, panels=2000)
        for v in y
    )


def magnitudes_reference(y: np.ndarray, sd: float) -> float:
    return sum(
        np.log(2) + log_integral(lambda x, v=v: log_normal(x) + log_normal(v, x, sd), 0.0, 6.0, panels=2000) for v in y
    )


def squares_and_sum_reference(y: np.ndarray, sd: float, total: float, total_sd: float) -> float:
    """The density of the sum by its characteristic function, a product over coordinates."""
    x, log_w = rule(0.0, 6.0, panels=400)
    t, log_v = rule(0.0, 8.0 / total_sd, panels=20)
    cosines = 2 * np.cos(np.outer(t, x))
    parts = [cosines @ np.exp(log_normal(x) + log_normal(v, x**2, sd) + log_w) for v in y]
    integrand = np.prod(parts, axis=0) * np.cos(t * total) * np.exp(-0.5 * (t * total_sd) ** 2) / np.pi
    return float(np.log(integrand @ np.exp(log_v)))


def signs() -> list[Density]:
    out = []
    for d in (4, 8, 12):
        data = np.linspace(0.5, 1.5, d), 0.05
        out.append(Density(f"signs-{d}", "signs", squares, data, squares_reference, d))
    data = np.linspace(0.4, 1.8, 8), 0.02
    out.append(Density("signs-8-sites", "signs", magnitudes, data, magnitudes_reference, 8))
    for d, total in ((6, 1.5), (10, -2.0)):
        data = np.linspace(0.5, 1.5, d), 0.05, total, 0.7
        out.append(Density(f"signs-{d}-coupled", "signs", squares_and_sum, data, squares_and_sum_reference, d))
    return out


# Shells, rings, bananas, the egg-box ----------------------------------------------------------------------------------


def shell(d: int, squared_length: float, sd: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([d]))
    ab.observe("squared_length", dist.Normal(jnp.sum(x**2), sd), squared_length)


def shell_reference(d: int, squared_length: float, sd: float) -> float:
    low, high = max(squared_length - 12 * sd, 0.0), squared_length + 12 * sd
    return log_integral(lambda u: stats.chi2.logpdf(u, d) + log_normal(squared_length, u, sd), low, high)


def ring(radius: float, sd: float) -> None:
    x, y = ab.sample("x", dist.Normal(0.0, 3.0)), ab.sample("y", dist.Normal(0.0, 3.0))
    ab.observe("radius", dist.Normal(jnp.sqrt(x**2 + y**2), sd), radius)


def ring_reference(radius: float, sd: float) -> float:
    rayleigh = stats.rayleigh(scale=3.0)
    return log_integral(
        lambda r: rayleigh.logpdf(r) + log_normal(radius, r, sd), max(radius - 12 * sd, 0.0), radius + 12 * sd
    )


def banana(pairs: int, sd: float) -> None:
    for i in range(pairs):
        x, y = ab.sample(f"x{i}", dist.Normal(0.0, 1.0)), ab.sample(f"y{i}", dist.Normal(0.0, 3.0))
        ab.observe(f"bend{i}", dist.Normal(y - x**2, sd), 0.0)


def banana_reference(pairs: int, sd: float) -> float:
    return pairs * log_integral(lambda x: log_normal(x) + log_normal(0.0, -(x**2), np.hypot(3.0, sd)), -12.0, 12.0)


def rosenbrock(d: int, sd: float) -> None:
    """A chain of bananas: each coordinate is near the square of the one before."""
    x = ab.sample("x", dist.Normal(0.5, 1.0).expand([d]))
    ab.observe("bends", dist.Normal(x[1:] - x[:-1] ** 2, sd), np.zeros(d - 1))


def rosenbrock_reference(d: int, sd: float, step: float = 0.02) -> float:
    """One coordinate after the other is integrated, on a grid (trapezoid: the integrand vanishes at both ends)."""
    x = np.arange(-7.5, 8.5, step)
    kernel = step * np.exp(log_normal(x[:, None], x**2, sd) + log_normal(x[:, None], 0.5))
    forward, scale = step * np.exp(log_normal(x, 0.5)), 0.0
    for _ in range(d - 1):
        forward = kernel @ forward
        scale += np.log(forward.max())
        forward /= forward.max()
    return float(np.log(forward.sum()) + scale)


def egg_box() -> None:
    x, y = ab.sample("x", dist.Uniform(0.0, 10 * np.pi)), ab.sample("y", dist.Uniform(0.0, 10 * np.pi))
    ab.factor("box", (2 + jnp.cos(x / 2) * jnp.cos(y / 2)) ** 5)


def egg_box_reference() -> float:
    x, log_w = rule(0.0, 10 * np.pi, panels=40)
    heights = (2 + np.cos(x[:, None] / 2) * np.cos(x / 2)) ** 5
    return float(logsumexp(heights + log_w[:, None] + log_w)) - 2 * np.log(10 * np.pi)


def curved() -> list[Density]:
    out = []
    for d, sd in ((5, 0.1), (9, 0.05), (15, 0.02)):
        data = d, float(d), sd
        out.append(Density(f"shell-{d}", "shell", shell, data, shell_reference, d))
    out.append(Density("ring-2", "ring", ring, (4.0, 0.05), ring_reference, 2))
    out.append(Density("ring-2-thin", "ring", ring, (4.0, 0.005), ring_reference, 2))
    out.append(Density("banana-2", "banana", banana, (1, 0.05), banana_reference, 2))
    out.append(Density("banana-6", "banana", banana, (3, 0.05), banana_reference, 6))
    out.append(Density("banana-10-chain", "banana", rosenbrock, (10, 0.1), rosenbrock_reference, 10))
    out.append(Density("egg-box", "egg-box", egg_box, (), egg_box_reference, 2))
    return out


# Modes of different widths --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bump:
    """A normal density in every coordinate with the same centre and width, times a weight."""

    log_weight: float
    centre: float
    sd: float

    def log_mass(self, d: int, prior_sd: float) -> float:
        """log ∫ bump · prior, of d coordinates with prior N(0, prior_sd)."""
        return self.log_weight + d * log_normal(self.centre, 0.0, np.hypot(self.sd, prior_sd))

    def of_mass(self, mass: float, d: int, prior_sd: float) -> Bump:
        """The same bump, with a weight such that its mass is the one given."""
        return Bump(self.log_weight + np.log(mass) - self.log_mass(d, prior_sd), self.centre, self.sd)


def bumps(d: int, prior_sd: float, parts: Sequence[Bump], floor: float) -> None:
    """The likelihood is a sum of bumps over a floor."""
    x = ab.sample("x", dist.Normal(0.0, prior_sd).expand([d]))
    terms = [each.log_weight + jnp.sum(dist.Normal(each.centre, each.sd).log_prob(x)) for each in parts]
    if floor > 0:
        terms.append(jnp.log(floor))
    log_likelihood = terms[0]
    for term in terms[1:]:
        log_likelihood = jnp.logaddexp(log_likelihood, term)
    ab.factor("bumps", log_likelihood)


def bumps_reference(d: int, prior_sd: float, parts: Sequence[Bump], floor: float) -> float:
    masses = [each.log_mass(d, prior_sd) for each in parts]
    return float(logsumexp([*masses, np.log(floor)] if floor > 0 else masses))


def of_bumps(name: str, kind: str, d: int, prior_sd: float, parts: Sequence[Bump], floor: float = 0.0) -> Density:
    data = d, prior_sd, tuple(parts), floor
    return Density(name, kind, bumps, data, bumps_reference, d)


def uneven() -> list[Density]:
    out = []
    # The gradient leads to the narrow one of two modes from a share of the prior mass of about 1e-2, 5e-3, 5e-4, 3e-4
    # and 1e-9.
    for name, d, sd in (("widths-2", 2, 0.05), ("widths-4", 4, 0.1), ("hidden-2", 2, 0.01), ("hidden-6", 6, 0.1),
                        ("hidden-6-thin", 6, 0.01)):  # fmt: skip
        parts = [Bump(0.0, 2.0, 0.5).of_mass(0.5, d, 3.0), Bump(0.0, -2.0, sd).of_mass(0.5, d, 3.0)]
        out.append(of_bumps(name, name.split("-")[0], d, 3.0, parts))
    for name, d, centre, sd in (("spike-1", 1, 2.5, 0.01), ("spike-2", 2, 1.5, 0.03), ("spike-3", 3, 1.2, 0.1),
                                ("spike-2-thin", 2, 1.5, 0.01), ("spike-3-thin", 3, 1.2, 0.02)):  # fmt: skip
        out.append(of_bumps(name, "spike", d, 1.0, [Bump(0.0, centre, sd).of_mass(0.9, d, 1.0)], floor=0.1))
    for d in (20, 40):
        parts = [Bump(0.0, 1.0, 0.5).of_mass(0.7, d, 3.0), Bump(0.0, -1.0, 0.5).of_mass(0.3, d, 3.0)]
        out.append(of_bumps(f"far-{d}", "far", d, 3.0, parts))
    return out


# A symmetry of the likelihood alone -----------------------------------------------------------------------------------


def mixture(means: Sequence[float], sds: Sequence[float], weights: Sequence[float], y: np.ndarray) -> None:
    mu = [ab.sample(f"mu{k}", dist.Normal(m, s)) for k, (m, s) in enumerate(zip(means, sds, strict=True))]
    parts = dist.Normal(jnp.stack(mu), 0.7)
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.array(weights)), parts), y)


def mixture_reference(
    means: Sequence[float], sds: Sequence[float], weights: Sequence[float], y: np.ndarray, step: float = 0.2
) -> float:
    """Trapezoids on a grid over all means: the integrand is smooth and vanishes at every side."""
    axes = [np.arange(m - 7 * s, m + 7 * s, step) for m, s in zip(means, sds, strict=True)]
    shape = [tuple(-1 if j == k else 1 for j in range(len(axes))) for k in range(len(axes))]
    log_f = sum(log_normal(a, m, s).reshape(r) for a, m, s, r in zip(axes, means, sds, shape, strict=True))
    for value in y:
        parts = [w * np.exp(log_normal(value, a, 0.7)).reshape(r) for a, w, r in zip(axes, weights, shape, strict=True)]
        log_f = log_f + np.log(sum(parts) + 1e-300)
    return float(logsumexp(log_f)) + len(axes) * np.log(step)


def symmetric() -> list[Density]:
    y = np.concatenate([-1.5 + 0.7 * numbers(1, 8), 1.5 + 0.7 * numbers(2, 8)])
    y3 = np.concatenate([y, 5.0 + 0.7 * numbers(3, 6)])
    cases = {
        "symmetric-2": ([-1.0, 1.5], [1.0, 2.0], [0.5, 0.5], y),
        "symmetric-2-nearly": ([-1.0, 1.5], [1.0, 2.0], [0.48, 0.52], y),
        "symmetric-3": ([-1.0, 1.0, 2.0], [1.5, 2.0, 1.8], [1 / 3, 1 / 3, 1 / 3], y3),
    }
    return [Density(name, "symmetric", mixture, data, mixture_reference, len(data[0])) for name, data in cases.items()]


# Nested uniforms ------------------------------------------------------------------------------------------------------


def nested(n: int, last: float, sd: float) -> None:
    x = 1.0
    for i in range(n):
        x = ab.sample(f"x{i}", dist.Uniform(0.0, x))
    ab.observe("last", dist.Normal(x, sd), last)


def nested_reference(n: int, last: float, sd: float) -> float:
    """-log of the last is Gamma(n, 1)."""
    top = -np.log(last)

    def log_f(g: np.ndarray) -> np.ndarray:
        return stats.gamma.logpdf(g, n) + log_normal(last, np.exp(-g), sd)

    return log_integral(log_f, 0.0, top - 3, top + 3, top + 60)


def shrinking() -> list[Density]:
    out = []
    for n in (5, 10, 20):
        last = float(np.exp(-1.8 * n))
        data = n, last, 0.1 * last
        out.append(Density(f"nested-{n}", "nested", nested, data, nested_reference, n))
    return out


# Heavy tails and funnels ----------------------------------------------------------------------------------------------


def cauchy(d: int, scale: float) -> None:
    x = ab.sample("x", dist.Cauchy(0.0, 1.0).expand([d]))
    ab.factor("weak", -jnp.sum(jnp.log1p((x / scale) ** 2)))


def cauchy_reference(d: int, scale: float) -> float:
    return float(d * np.log(scale / (scale + 1)))


def cauchy_sum(d: int, total: float) -> None:
    x = [ab.sample(f"x{i}", dist.Cauchy(0.0, 1.0)) for i in range(d)]
    ab.observe("total", dist.Cauchy(sum(x), 1.0), total)


def cauchy_sum_reference(d: int, total: float) -> float:
    return float(stats.cauchy.logpdf(total, scale=d + 1))


def student(df: np.ndarray, sd: float, y: np.ndarray) -> None:
    x = ab.sample("x", dist.StudentT(df, 0.0, 1.0))
    ab.observe("y", dist.Normal(x, sd), y)


def student_reference(df: np.ndarray, sd: float, y: np.ndarray) -> float:
    return sum(
        log_integral(lambda x, n=n, v=v: stats.t.logpdf(x, n) + log_normal(v, x, sd), v - 15 * sd, 0.0, v + 15 * sd)
        for n, v in zip(df, y, strict=True)
    )


def funnel(leaves: int) -> None:
    v = ab.sample("v", dist.Normal(0.0, 3.0))
    ab.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([leaves]))
    ab.factor("constant", -1.5)


def funnel_reference(leaves: int) -> float:
    return -1.5


def funnel_data(y: np.ndarray) -> None:
    v = ab.sample("v", dist.Normal(0.0, 3.0))
    x = ab.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([len(y)]))
    ab.observe("y", dist.Normal(x, 1.0), y)


def funnel_data_reference(y: np.ndarray) -> float:
    return log_integral(
        lambda v: log_normal(v, 0.0, 3.0) + log_normal(y[:, None], 0.0, np.sqrt(np.exp(v) + 1)).sum(axis=0), -36.0, 36.0
    )


def heavy() -> list[Density]:
    out = [
        Density("cauchy-5", "heavy", cauchy, (5, 100.0), cauchy_reference, 5),
        Density("cauchy-5-sum", "heavy", cauchy_sum, (5, 30.0), cauchy_sum_reference, 5),
    ]
    for d in (5, 10):
        data = np.resize([1.0, 2.0, 5.0], d), 3.0, 4 * numbers(4, d)
        out.append(Density(f"student-{d}", "heavy", student, data, student_reference, d))
    out.append(Density("funnel-10", "funnel", funnel, (9,), funnel_reference, 10))
    for name, y in (("funnel-10-data", 0.8 * numbers(5, 9)), ("funnel-10-flat-data", 0.3 * numbers(6, 9))):
        out.append(Density(name, "funnel", funnel_data, (y,), funnel_data_reference, 10))
    return out


# Gaussian processes ---------------------------------------------------------------------------------------------------

JITTER = 1e-6


def gaussian_process(x: np.ndarray, y: np.ndarray, length: float | None) -> None:
    """The latent function is centred: its prior has the scale and, unless it is known, the length scale."""
    scale = ab.sample("scale", dist.LogNormal(0.0, 0.7))
    length = ab.sample("length", dist.LogNormal(-1.0, 0.7)) if length is None else length
    kernel = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + JITTER * jnp.eye(len(x))
    f = ab.sample("f", dist.MultivariateNormal(jnp.zeros(len(x)), scale**2 * kernel))
    ab.observe("y", dist.Normal(f, 0.3), y)


def gaussian_process_reference(x: np.ndarray, y: np.ndarray, length: float | None) -> float:
    """The function integrated exactly; Gauss-Legendre over log scale and log length."""
    z, log_w = rule(-8.0, 8.0, panels=16)
    log_prior = log_normal(z) + log_w
    scales = np.exp(0.7 * z)
    if length is not None:
        return float(logsumexp(log_prior + _of_scales(x, y, length, scales)))
    lengths = np.exp(-1.0 + 0.7 * z)
    given = [logsumexp(log_prior + _of_scales(x, y, each, scales)) for each in lengths]
    return float(logsumexp(log_prior + np.array(given)))


def _of_scales(x: np.ndarray, y: np.ndarray, length: float, scales: np.ndarray) -> np.ndarray:
    """log p(y | scale, length) for many scales by one decomposition."""
    kernel = np.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + JITTER * np.eye(len(x))
    values, vectors = np.linalg.eigh(kernel)
    return log_normal((vectors.T @ y), 0.0, np.sqrt(scales[:, None] ** 2 * values + 0.3**2)).sum(axis=1)


def processes() -> list[Density]:
    out = []
    for n, length in ((15, 0.3), (20, None), (30, None)):
        x = np.linspace(0.0, 1.0, n)
        data = x, np.sin(6 * x) + 0.3 * numbers(n, n), length
        name = f"process-{n}" + ("-scale" if length is not None else "")
        dim = n + 1 + (length is None)
        out.append(Density(name, "process", gaussian_process, data, gaussian_process_reference, dim))
    return out


# Hierarchical normals -------------------------------------------------------------------------------------------------

SCHOOLS = (
    np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
    np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18]),
)
SPREADS = {
    "cauchy": (dist.HalfCauchy(5.0), stats.halfcauchy(scale=5.0)),
    "normal": (dist.HalfNormal(1.0), stats.halfnorm()),
}
GROUPS = 1.0 + 0.5 * numbers(7, 30), np.full(30, 0.4)


def centred(y: np.ndarray, sd: np.ndarray, spread: str) -> None:
    mu, tau = ab.sample("mu", dist.Normal(0.0, 5.0)), ab.sample("tau", SPREADS[spread][0])
    theta = ab.sample("theta", dist.Normal(mu, tau).expand([len(y)]))
    ab.observe("y", dist.Normal(theta, sd), y)


def noncentred(y: np.ndarray, sd: np.ndarray, spread: str) -> None:
    mu, tau = ab.sample("mu", dist.Normal(0.0, 5.0)), ab.sample("tau", SPREADS[spread][0])
    z = ab.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]))
    ab.observe("y", dist.Normal(mu + tau * z, sd), y)


def hierarchy_reference(y: np.ndarray, sd: np.ndarray, spread: str) -> float:
    """Groups and their mean integrated exactly; over log tau by quadrature."""
    prior = SPREADS[spread][1]

    def log_f(log_tau: np.ndarray) -> np.ndarray:
        precision = 1 / (np.exp(2 * log_tau[:, None]) + sd**2)
        total, mean = precision.sum(axis=1), (precision * y).sum(axis=1)
        square = (precision * y**2).sum(axis=1) - mean**2 * 25 / (1 + 25 * total)
        log_det = -np.log(precision).sum(axis=1) + np.log1p(25 * total)
        return -0.5 * (square + log_det + len(y) * np.log(2 * np.pi)) + prior.logpdf(np.exp(log_tau)) + log_tau

    return log_integral(log_f, -40.0, 15.0)


def hierarchies() -> list[Density]:
    out = []
    for program in (centred, noncentred):
        for data in ((*SCHOOLS, "cauchy"), (*GROUPS, "normal")):
            n = len(data[0])
            out.append(Density(f"{program.__name__}-{n}", "hierarchy", program, data, hierarchy_reference, n + 2))
    return out


# Linear regressions ---------------------------------------------------------------------------------------------------


def regression(X: np.ndarray, sd: np.ndarray, y: np.ndarray) -> None:
    w = ab.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]))
    ab.observe("y", dist.Normal(X @ w, sd), y)


def regression_reference(X: np.ndarray, sd: np.ndarray, y: np.ndarray) -> float:
    return log_mvn(y, X @ X.T + np.diag(sd**2))


def designed(d: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A design whose columns share a common part."""
    X = 0.5 * numbers(d, n, d) + numbers(d + 1, n, 1)
    sd = np.full(n, 0.5)
    return X, sd, X @ numbers(d + 2, d) + sd * numbers(d + 3, n)


def ill_conditioned(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A posterior precision with eigenvalues from 2 to about 20,000, in a rotated basis."""
    Q = np.linalg.qr(numbers(d + 4, d, d))[0]
    sd = np.geomspace(0.007, 1.0, d)
    return Q, sd, Q @ numbers(d + 5, d) + sd * numbers(d + 6, d)


def regressions() -> list[Density]:
    cases = {
        "regression-5": designed(5, 20),
        "regression-20": designed(20, 40),
        "regression-60": designed(60, 90),
        "ill-conditioned-10": ill_conditioned(10),
        "ill-conditioned-30": ill_conditioned(30),
    }
    return [
        Density(name, "regression", regression, data, regression_reference, data[0].shape[1])
        for name, data in cases.items()
    ]


# Order, simplexes and matrices ----------------------------------------------------------------------------------------


def ordered(y: np.ndarray, sd: float) -> None:
    base = dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1)
    x = ab.sample("x", dist.TransformedDistribution(base, OrderedTransform()))
    ab.observe("y", dist.Normal(x, sd), y)


def ordered_reference(y: np.ndarray, sd: float, step: float = 0.002) -> float:
    """A chain with log-normal steps, one convolution on a grid for each."""
    x = np.arange(-10.0, 14.0, step)
    gaps = np.arange(len(x)) * step
    kernel = np.exp(stats.lognorm.logpdf(np.maximum(gaps, 1e-300), 1.0)) * step
    forward = np.exp(log_normal(x) + log_normal(y[0], x, sd)) * step
    n = 2 * len(x)
    for value in y[1:]:
        moved = np.fft.irfft(np.fft.rfft(forward, n) * np.fft.rfft(kernel, n), n)[: len(x)]
        forward = moved * np.exp(log_normal(value, x, sd))
    return float(np.log(forward.sum()))


def sorted_by_factor(y: np.ndarray, sd: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 2.0).expand([len(y)]))
    ab.factor("sorted", jnp.where(jnp.all(x[1:] > x[:-1]), 0.0, -jnp.inf))
    ab.observe("y", dist.Normal(x, sd), y)


def sorted_reference(y: np.ndarray, sd: float, step: float = 0.001) -> float:
    """Z = ∫ f_n(x) ∫^x f_{n-1} ... , one running integral after the other."""
    x = np.arange(-14.0, 14.0, step)
    inner = np.ones_like(x)
    for value in y:
        inner = integrate.cumulative_simpson(
            inner * np.exp(log_normal(x, 0.0, 2.0) + log_normal(value, x, sd)), x=x, initial=0.0
        )
    return float(np.log(inner[-1]))


def dirichlet(concentration: np.ndarray, counts: np.ndarray) -> None:
    p = ab.sample("p", dist.Dirichlet(concentration))
    ab.observe("counts", dist.Multinomial(int(counts.sum()), probs=p), counts)


def dirichlet_reference(concentration: np.ndarray, counts: np.ndarray) -> float:
    a, n = concentration, counts
    return float(
        gammaln(n.sum() + 1) - gammaln(n + 1).sum()
        + gammaln(a.sum()) - gammaln(a.sum() + n.sum()) + (gammaln(a + n) - gammaln(a)).sum()
    )  # fmt: skip


def lkj(d: int, power: float) -> None:
    """A factor |Σ|^power of a correlation matrix."""
    L = ab.sample("L", dist.LKJCholesky(d, 1.0))
    ab.factor("determinant", 2 * power * jnp.sum(jnp.log(jnp.diagonal(L))))


def lkj_reference(d: int, power: float) -> float:
    """The ratio of normalising constants: LKJ(1 + power) over LKJ(1), by the partial correlations of the vine."""

    def log_constant(eta: float) -> float:
        return sum(
            (2 * eta - 2 + d - k) * (d - k) * np.log(2) + (d - k) * betaln(b, b)
            for k in range(1, d)
            for b in [eta + (d - k - 1) / 2]
        )

    return log_constant(1.0 + power) - log_constant(1.0)


def wishart(df: float, y: np.ndarray) -> None:
    P = ab.sample("P", dist.Wishart(df, jnp.eye(y.shape[1])))
    ab.observe("y", dist.MultivariateNormal(jnp.zeros(y.shape[1]), precision_matrix=P), y)


def wishart_reference(df: float, y: np.ndarray) -> float:
    n, d = y.shape
    _, log_det = np.linalg.slogdet(np.eye(d) + y.T @ y)
    constants = multigammaln((df + n) / 2, d) - multigammaln(df / 2, d)
    return float(constants - (df + n) / 2 * log_det - n * d / 2 * np.log(np.pi))


def constrained() -> list[Density]:
    y = np.array([-1.2, -0.4, 0.3, 0.5, 2.2])
    near = np.array([0.3, 0.1, 0.5, 0.4])
    counts3, counts8, sparse = np.array([12, 3, 5]), np.array([40, 1, 0, 7, 3, 0, 22, 9]), np.array([9, 0, 0, 3, 0])
    out = [
        Density("ordered-5", "ordered", ordered, (y, 0.3), ordered_reference, 5),
        Density("ordered-4-factor", "ordered", sorted_by_factor, (near, 0.4), sorted_reference, 4),
    ]
    for name, a, n in (("simplex-3", np.ones(3), counts3), ("simplex-8", np.full(8, 0.7), counts8),
                       ("simplex-5-sparse", np.full(5, 0.1), sparse)):  # fmt: skip
        out.append(Density(name, "simplex", dirichlet, (a, n), dirichlet_reference, len(a) - 1))
    out.append(Density("lkj-4", "matrix", lkj, (4, 2.5), lkj_reference, 6))
    rows = numbers(8, 12, 3) @ np.array([[1.0, 0.8, 0.0], [0.0, 0.5, 0.3], [0.0, 0.0, 2.0]])
    out.append(Density("wishart-3", "matrix", wishart, (5.0, rows), wishart_reference, 6))
    return out


# Wide scales ----------------------------------------------------------------------------------------------------------


def conjugates(counts: np.ndarray, waits: np.ndarray, successes: int, trials: int) -> None:
    rate = ab.sample("rate", dist.Gamma(0.1, 0.001))
    ab.observe("counts", dist.Poisson(rate), counts)
    decay = ab.sample("decay", dist.Gamma(0.05, 0.05))
    ab.observe("waits", dist.Exponential(decay), waits)
    p = ab.sample("p", dist.Beta(0.05, 0.05))
    ab.observe("successes", dist.Binomial(trials, p), successes)


def conjugates_reference(counts: np.ndarray, waits: np.ndarray, successes: int, trials: int) -> float:
    poisson = _gamma_update(0.1, 0.001, counts.sum(), len(counts)) - gammaln(counts + 1).sum()
    exponential = _gamma_update(0.05, 0.05, len(waits), waits.sum())
    return float(poisson + exponential + stats.betabinom.logpmf(successes, trials, 0.05, 0.05))


def _gamma_update(a: float, b: float, events: float, exposure: float) -> float:
    """log ∫ Gamma(r; a, b) r^events e^{-r exposure} dr."""
    return float(a * np.log(b) - gammaln(a) + gammaln(a + events) - (a + events) * np.log(b + exposure))


def wide_rates(counts: np.ndarray) -> None:
    rates = [ab.sample(f"rate{i}", dist.LogNormal(0.0, 10.0)) for i in range(len(counts))]
    ab.observe("counts", dist.Poisson(jnp.stack(rates)), counts)


def wide_rates_reference(counts: np.ndarray) -> float:
    return sum(
        log_integral(
            lambda z, c=c: log_normal(z, 0.0, 10.0) + stats.poisson.logpmf(c, np.exp(z)), -120.0, 40.0, panels=4000
        )
        for c in counts
    )


def tiny_shapes(counts: np.ndarray) -> None:
    rates = ab.sample("rates", dist.Gamma(0.05, 0.05).expand([len(counts)]))
    ab.observe("counts", dist.Poisson(rates), counts)


def tiny_shapes_reference(counts: np.ndarray) -> float:
    return sum(_gamma_update(0.05, 0.05, c, 1.0) - gammaln(c + 1) for c in counts)


def wide() -> list[Density]:
    data = np.array([3, 0, 5, 2]), np.array([0.001, 2.0, 900.0]), 0, 12
    few, many = np.array([0, 3, 5000]), np.array([0, 0, 1, 2, 40, 700, 12_000, 0])
    shapes = np.array([0, 0, 3, 0, 25])
    return [
        Density("conjugate-3", "wide", conjugates, data, conjugates_reference, 3),
        Density("rates-3", "wide", wide_rates, (few,), wide_rates_reference, 3),
        Density("rates-8", "wide", wide_rates, (many,), wide_rates_reference, 8),
        Density("tiny-shapes-5", "wide", tiny_shapes, (shapes,), tiny_shapes_reference, 5),
    ]


# Discrete and real variables ------------------------------------------------------------------------------------------


def noisy_count(y: float, sd: float) -> None:
    rate = ab.sample("rate", dist.Gamma(2.0, 0.2))
    n = ab.sample("n", dist.Poisson(rate))
    ab.observe("y", dist.Normal(n, sd), y)


def noisy_count_reference(y: float, sd: float) -> float:
    n = np.arange(500)
    return float(logsumexp(stats.nbinom.logpmf(n, 2.0, 0.2 / 1.2) + log_normal(y, n, sd)))


def unknown_trials(successes: np.ndarray) -> None:
    n, p = ab.sample("n", dist.Poisson(20.0)), ab.sample("p", dist.Beta(2.0, 2.0))
    ab.observe("successes", dist.Binomial(n, p), successes)


def unknown_trials_reference(successes: np.ndarray) -> float:
    n = np.arange(successes.max(), 300)[:, None]
    ways = (gammaln(n + 1) - gammaln(successes + 1) - gammaln(n - successes + 1)).sum(axis=1)
    total, m = successes.sum(), len(successes)
    beta = betaln(2 + total, 2 + m * n[:, 0] - total) - betaln(2, 2)
    return float(logsumexp(stats.poisson.logpmf(n[:, 0], 20.0) + ways + beta))


def assignments(y: np.ndarray) -> None:
    mu = jnp.stack([ab.sample(f"mu{k}", dist.Normal(0.0, 3.0)) for k in range(2)])
    for i, value in enumerate(y):
        z = ab.sample(f"z{i}", dist.Bernoulli(0.4))
        ab.observe(f"y{i}", dist.Normal(mu[z], 0.5), value)


def assignments_reference(y: np.ndarray) -> float:
    terms = []
    for z in product((0, 1), repeat=len(y)):
        part = np.array(z)
        same = 9.0 * (part[:, None] == part)
        terms.append(log_mvn(y, same + 0.25 * np.eye(len(y))) + stats.bernoulli.logpmf(part, 0.4).sum())
    return float(logsumexp(terms))


def discrete() -> list[Density]:
    y, k = np.array([-2.1, -1.7, 1.6, 2.3, 0.2, 2.0]), np.array([7, 9, 12])
    return [
        Density("count-2", "discrete", noisy_count, (11.3, 0.4), noisy_count_reference, 2),
        Density("trials-2", "discrete", unknown_trials, (k,), unknown_trials_reference, 2),
        Density("assignments-8", "discrete", assignments, (y,), assignments_reference, 8),
    ]


# Change points --------------------------------------------------------------------------------------------------------


def change_points(k: int, times: np.ndarray, counts: np.ndarray) -> None:
    """k change points in order, each uniform on what is left, and a rate in each piece."""
    last, piece = 0.0, 0
    for i in range(k):
        last = ab.sample(f"t{i}", dist.Uniform(last, 1.0))
        piece = piece + (times >= last)
    rates = jnp.stack([ab.sample(f"rate{i}", dist.Gamma(2.0, 0.5)) for i in range(k + 1)])
    ab.observe("counts", dist.Poisson(rates[piece] if k else rates[0]), counts)


def change_points_reference(k: int, times: np.ndarray, counts: np.ndarray) -> float:
    """A sum over the cells between observations in which the change points are; rates are integrated exactly.

    With u = -log(1 - t), the change points are the first k of a Poisson process with rate 1.
    """
    edges = np.concatenate([[0.0], -np.log1p(-times), [np.inf]])
    terms = []
    for cells in product(range(len(times) + 1), repeat=k):
        if list(cells) == sorted(cells):
            bounds = [0, *cells, len(times)]
            pieces = [_rate_evidence(counts[a:b]) for a, b in pairwise(bounds)]
            terms.append(_log_cells(cells, edges) + sum(pieces))
    return float(logsumexp(terms))


def _rate_evidence(counts: np.ndarray) -> float:
    return _gamma_update(2.0, 0.5, counts.sum(), len(counts)) - gammaln(counts + 1).sum()


def _log_cells(cells: tuple[int, ...], edges: np.ndarray) -> float:
    """The log probability that the first points of a Poisson process are in these cells, which are in order."""
    if not cells:
        return 0.0
    out, last = 0.0, cells[-1]
    for cell in set(cells) - {last}:
        m = cells.count(cell)
        out += m * np.log(edges[cell + 1] - edges[cell]) - gammaln(m + 1)
    m = cells.count(last)
    a, b = edges[last], edges[last + 1]
    # ∫_a^b (u - a)^(m-1) / (m-1)! e^-u du
    return float(out - a + np.log1p(-gammaincc(m, b - a)))


def changes() -> list[Density]:
    out = []
    for k, n in ((1, 30), (2, 30), (3, 20)):
        times = (np.arange(n) + 0.5) / n
        level = np.array([2.0, 9.0, 4.0, 12.0])[(times * (k + 1)).astype(int)]
        data = k, times, np.random.default_rng(k).poisson(level)
        name = f"changes-{k}"
        out.append(Density(name, "changes", change_points, data, change_points_reference, 2 * k + 1))
    return out


# Boxes ----------------------------------------------------------------------------------------------------------------


def box(low: np.ndarray, high: np.ndarray, outside: float) -> None:
    x = ab.sample("x", dist.Uniform(0.0, 1.0).expand([len(low)]))
    ab.factor("box", jnp.where(jnp.all((x > low) & (x < high)), 0.0, outside))


def box_reference(low: np.ndarray, high: np.ndarray, outside: float) -> float:
    inside = np.prod(high - low)
    return float(np.logaddexp(np.log(inside), outside + np.log1p(-inside)))


def boxes() -> list[Density]:
    small = np.array([0.62, 0.21]), np.array([0.72, 0.26])
    smaller = np.array([0.31, 0.8, 0.5, 0.1]), np.array([0.41, 0.9, 0.7, 0.2])
    out = []
    for name, corners in (("box-200", small), ("box-5000", smaller)):
        soft, hard = (*corners, float(np.log(1e-30))), (*corners, -np.inf)
        out.append(Density(name, "box", box, soft, box_reference, len(corners[0])))
        out.append(Density(f"{name}-hard", "box", box, hard, box_reference, len(corners[0])))
    return out


# Modes in twenty dimensions -------------------------------------------------------------------------------------------


def signs_and_regression(y: np.ndarray, sd: float, X: np.ndarray, noise: np.ndarray, z: np.ndarray) -> None:
    squares(y, sd)
    w = ab.sample("w", dist.Normal(0.0, 1.0).expand([X.shape[1]]))
    ab.observe("z", dist.Normal(X @ w, noise), z)


def signs_and_regression_reference(y: np.ndarray, sd: float, *rest: np.ndarray) -> float:
    return squares_reference(y, sd) + regression_reference(*rest)


def high() -> list[Density]:
    data = np.array([0.7, 1.0, 1.4]), 0.05, *designed(17, 30)
    return [Density("modes-20", "far", signs_and_regression, data, signs_and_regression_reference, 20)]


# Several paths --------------------------------------------------------------------------------------------------------


def any_change_points(times: np.ndarray, counts: np.ndarray) -> None:
    change_points(int(ab.sample("k", dist.DiscreteUniform(0, 2))), times, counts)


def any_change_points_reference(times: np.ndarray, counts: np.ndarray) -> float:
    return float(logsumexp([change_points_reference(k, times, counts) for k in range(3)]) - np.log(3))


def any_shell(sizes: Sequence[int], squared_length: float, sd: float) -> None:
    shell(sizes[int(ab.sample("size", dist.DiscreteUniform(0, len(sizes) - 1)))], squared_length, sd)


def any_shell_reference(sizes: Sequence[int], squared_length: float, sd: float) -> float:
    return float(logsumexp([shell_reference(d, squared_length, sd) for d in sizes]) - np.log(len(sizes)))


def guarded(y: float) -> None:
    """A branch on a real variable that the observation depends on, too."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    if x > 1.0:
        z = ab.sample("z", dist.Normal(3.0, 1.0))
        ab.observe("y", dist.Normal(x + z, 0.2), y)
    else:
        ab.observe("y", dist.Normal(x, 0.2), y)


def guarded_reference(y: float) -> float:
    above = log_integral(lambda x: log_normal(x) + log_normal(y, x + 3.0, np.hypot(1.0, 0.2)), 1.0, 12.0)
    below = log_integral(lambda x: log_normal(x) + log_normal(y, x, 0.2), -12.0, 1.0)
    return float(np.logaddexp(above, below))


def several() -> list[Density]:
    times = (np.arange(24) + 0.5) / 24
    counts = np.random.default_rng(9).poisson(np.where(times < 0.6, 3.0, 8.0))
    sizes = (3, 7)
    return [
        Density("paths-changes", "paths", any_change_points, (times, counts),
                any_change_points_reference, 5, paths=3),
        Density("paths-shell", "paths", any_shell, (sizes, 5.0, 0.05), any_shell_reference,
                7, paths=2),
        Density("paths-guard", "paths", guarded, (1.3,), guarded_reference, 2, paths=2),
    ]  # fmt: skip


FAMILIES = (signs, curved, uneven, symmetric, shrinking, heavy, processes, hierarchies, regressions, constrained, wide,
            discrete, changes, boxes, high, several)  # fmt: skip
DENSITIES: list[Density] = [density for family in FAMILIES for density in family()]
BY_NAME: dict[str, Density] = {density.name: density for density in DENSITIES}

_FOUND = [density for density in DENSITIES if density.kind != "hidden"]
FORTY: list[Density] = [_FOUND[round(i * (len(_FOUND) - 1) / 39)] for i in range(40)]
"""Forty of them, evenly spaced over the list, for runs with many seeds; without modes that hardly any draw meets."""
