"""The nine jobs that a user is likeliest to bring, written as a NumPyro user would: time, and distance from the truth.

    python benchmarks/jobs.py                          all of them, some minutes
    python benchmarks/jobs.py --only mixture pooling   some of them
    python benchmarks/jobs.py --budget 50000           fewer evaluations

Each job has a program, its data (made, with a fixed seed) and a reference that owes nothing to the library: a closed
form, an enumeration, a quadrature, or importance sampling from a fitted Student-t distribution, whose error is below
0.002 (`examples/gallery/importance.py`). Seconds are those of the processor, after imports, in one process, so that
later jobs profit from what earlier ones compiled.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import expit, gammaln, logsumexp
from scipy.stats import beta, expon, halfnorm, lognorm, multivariate_normal, norm, poisson, t

import anabranch as ab

sys.path.append(str(Path(__file__).parent.parent / "examples" / "gallery"))

from importance import importance_sampling

GRID_ERROR = 1e-4
"""The error of references that are sums over a grid: where our answer is exact, it is all that is left."""
Answer = tuple[str, float, float, float]
"""What is compared, our estimate, its standard error, and the reference."""


@dataclass(frozen=True)
class Job:
    """A job: `run` is given what infers, and yields answers beside their references."""

    title: str
    run: Callable[[Callable[..., ab.PosteriorWithEvidence]], Iterator[Answer]]


@dataclass
class Stopwatch:
    """Infers with a budget, None for the default, and counts the seconds of the processor that it takes."""

    budget: int | None
    seconds: float = 0.0

    def __call__(self, program: Callable, *data: object) -> ab.PosteriorWithEvidence:
        """The posterior of a program."""
        start = time.process_time()
        posterior = ab.infer(program, *data, seed=0, budget=self.budget)
        self.seconds += time.process_time() - start
        return posterior


def _evidence(posterior: ab.PosteriorWithEvidence, reference: float) -> Answer:
    return "log evidence", posterior.log_evidence, posterior.log_evidence_sd, reference


def _probabilities(posterior: ab.Posterior, name: str, log_evidences: dict[int, float]) -> Iterator[Answer]:
    found, total = posterior.probability(name), logsumexp(list(log_evidences.values()))
    for value, log_evidence in log_evidences.items():
        probability = np.exp(log_evidence - total)
        if probability > 0.01:
            yield f"P({name} = {value})", found.get(value, 0.0), found.errors.get(value, np.inf), probability


# 1. Change points -----------------------------------------------------------------------------------------------------


def change_points(y):
    changes = ab.sample("changes", dist.DiscreteUniform(0, 2))
    when = jnp.sort(jnp.array([ab.sample(f"when{k}", dist.Uniform(0, len(y))) for k in range(changes)]))
    level = jnp.array([ab.sample(f"level{k}", dist.Normal(0, 3)) for k in range(changes + 1)])
    ab.observe("y", dist.Normal(level[jnp.searchsorted(when, jnp.arange(len(y)) + 0.5)], 1.0), y)


def job_change_points(infer):
    y = np.repeat([0.0, 2.0, -1.0], [15, 10, 15]) + np.random.default_rng(1).normal(size=40)
    posterior = infer(change_points, y)

    def segment(a, b):
        n, part = b - a, y[a:b]
        return multivariate_normal(np.zeros(n), np.eye(n) + 9.0).logpdf(part) if n else 0.0

    # A change in (j - 1/2, j + 1/2) is before datum j; the first and the last interval have half the length.
    n = len(y)
    log_interval = np.log(np.r_[0.5, np.ones(n - 1), 0.5] / n)
    one = [segment(0, j) + segment(j, n) + log_interval[j] for j in range(n + 1)]
    two = [
        segment(0, i) + segment(i, j) + segment(j, n) + log_interval[i] + log_interval[j] + (i < j) * np.log(2)
        for i in range(n + 1)
        for j in range(i, n + 1)
    ]
    exact = {k: each - np.log(3) for k, each in enumerate([segment(0, n), logsumexp(one), logsumexp(two)])}
    yield _evidence(posterior, logsumexp(list(exact.values())))
    yield from _probabilities(posterior, "changes", exact)


# 2. Variable selection ------------------------------------------------------------------------------------------------


def selection(X, y):
    mean = ab.sample("intercept", dist.Normal(0, 2))
    for j in range(X.shape[1]):
        if ab.sample(f"in{j}", dist.Bernoulli(0.5)):
            mean = mean + X[:, j] * ab.sample(f"b{j}", dist.Normal(0, 1))
    noise = ab.sample("noise", dist.HalfNormal(2))
    ab.observe("y", dist.Normal(mean, noise), y)


def job_selection(infer):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(50, 8))
    y = 0.5 + X[:, 0] - 0.7 * X[:, 3] + 0.3 * X[:, 5] + rng.normal(size=50)
    posterior = infer(selection, X, y)

    noises = np.linspace(0.5, 2.5, 201)
    log_prior = halfnorm(scale=2).logpdf(noises) + np.log(noises[1] - noises[0])
    exact = {}
    for inside in np.ndindex(*(2,) * 8):
        columns = np.c_[2.0 * np.ones(50), X[:, np.array(inside, bool)]]
        values, vectors = np.linalg.eigh(columns @ columns.T)
        total = values + noises[:, None] ** 2
        given = -0.5 * (np.log(2 * np.pi * total) + (vectors.T @ y) ** 2 / total).sum(axis=1)
        exact[inside] = logsumexp(given + log_prior) - 8 * np.log(2)
    total = logsumexp(list(exact.values()))
    yield _evidence(posterior, total)
    for j in range(8):
        probability = posterior.probability(f"in{j}")
        truth = np.exp(logsumexp([value for inside, value in exact.items() if inside[j]]) - total)
        yield f"P(in{j})", probability[1], probability.errors[1], truth


# 3. Mixture -----------------------------------------------------------------------------------------------------------


def mixture(y):
    K = ab.sample("K", dist.DiscreteUniform(1, 3))
    share = ab.sample("share", dist.Dirichlet(jnp.ones(K)))
    mean = ab.sample("mean", dist.Normal(0, 4).expand([K]).to_event(1))
    sd = ab.sample("sd", dist.HalfNormal(2).expand([K]).to_event(1))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(share), dist.Normal(mean, sd)), y)


def job_mixture(infer):
    """Exact: the points of a component are any subset, its mean is integrated, its scale is on a grid."""
    y = np.array([-3.1, -2.7, -2.2, -2.6, 0.4, 0.9, 1.3, 0.7, 4.0, 4.2, 4.1])
    posterior = infer(mixture, y)

    n, sds = len(y), np.exp(np.linspace(-7, 2.5, 2000))
    members = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
    count, total, squares = members.sum(axis=1), members @ y, members @ y**2
    log_prior = halfnorm(scale=2).logpdf(sds) + np.log(np.gradient(sds))
    log_part = np.array(
        [
            logsumexp(
                log_prior
                - c * np.log(sds * np.sqrt(2 * np.pi))
                + 0.5 * (np.log(1 / (1 + c * 16 / sds**2)) + (s / sds**2) ** 2 / (1 / 16 + c / sds**2) - q / sds**2)
            )
            for c, s, q in zip(count, total, squares, strict=True)
        ]
    )
    exact = {}
    for K in (1, 2, 3):
        labels = np.stack(np.unravel_index(np.arange(K**n), (K,) * n), axis=1)
        log_joint = gammaln(K) - gammaln(K + n)  # of the labels, with the shares integrated
        for k in range(K):
            subset = (labels == k) @ (1 << np.arange(n))
            log_joint = log_joint + gammaln(1 + count[subset]) + log_part[subset]
        exact[K] = logsumexp(log_joint) - np.log(3)
    yield _evidence(posterior, logsumexp(list(exact.values())))
    yield from _probabilities(posterior, "K", exact)


# 4. Polynomial with t noise -------------------------------------------------------------------------------------------


def polynomial(x, y=None):
    degree = ab.sample("degree", dist.DiscreteUniform(1, 3))
    coefficients = [ab.sample(f"b{k}", dist.Normal(0, 2)) for k in range(degree + 1)]
    noise = ab.sample("noise", dist.HalfNormal(1))
    ab.observe("y", dist.StudentT(3.0, sum(b * x**k for k, b in enumerate(coefficients)), noise), y)


def job_polynomial(infer):
    rng = np.random.default_rng(4)
    x = np.linspace(-1, 1, 25)
    y = 1.0 - x + 1.5 * x**2 + 0.3 * rng.standard_t(3, size=25)
    posterior = infer(polynomial, x, y)

    exact = {}
    for degree in (1, 2, 3):
        powers = x[:, None] ** np.arange(degree + 1)

        def log_density(points, powers=powers):
            b, log_noise = points[:, :-1], points[:, -1:]
            prior = norm(0, 2).logpdf(b).sum(axis=1) + (halfnorm().logpdf(np.exp(log_noise)) + log_noise)[:, 0]
            return prior + t(3, b @ powers.T, np.exp(log_noise)).logpdf(y).sum(axis=1)

        start = np.r_[np.polyfit(x, y, degree)[::-1], -1.0]
        exact[degree] = importance_sampling(log_density, start, draws=200_000, error=0.002) - np.log(3)
    yield _evidence(posterior, logsumexp(list(exact.values())))
    yield from _probabilities(posterior, "degree", exact)
    new = posterior.predictive(np.linspace(-1.2, 1.2, 49))["y"]
    assert new.shape == (1000, 49), "the prediction on a grid"
    assert np.isfinite(new).all(), "the prediction on a grid"


# 5. Kernel search -----------------------------------------------------------------------------------------------------


def kernels(x, y):
    kind = ab.sample("kind", dist.DiscreteUniform(0, 2))  # smooth, periodic, linear
    size = ab.sample("size", dist.LogNormal(0, 1))
    gap = x[:, None] - x[None, :]
    if kind == 0:
        K = jnp.exp(-0.5 * (gap / ab.sample("length", dist.LogNormal(0, 1))) ** 2)
    elif kind == 1:
        K = jnp.exp(-2 * jnp.sin(jnp.pi * gap / ab.sample("period", dist.LogNormal(0.5, 0.5))) ** 2)
    else:
        K = 1.0 + x[:, None] * x[None, :]
    noise = ab.sample("noise", dist.HalfNormal(0.5))
    ab.observe("y", dist.MultivariateNormal(0.0, size**2 * K + noise**2 * jnp.eye(len(x))), y)


def job_kernels(infer):
    rng = np.random.default_rng(5)
    x = np.linspace(0, 4, 20)
    y = np.sin(2 * np.pi * x / 2.0) + 0.3 * rng.normal(size=20)
    posterior = infer(kernels, x, y)

    # By quadrature over size, noise and the length or period, in logarithms.
    gap = x[:, None] - x[None, :]
    sizes, noises = np.linspace(-3.5, 3.5, 57), np.linspace(-4.0, 0.8, 49)
    size, noise = np.meshgrid(np.exp(sizes), np.exp(noises), indexing="ij")
    log_prior = lognorm(1).logpdf(size) + np.log(size) + halfnorm(scale=0.5).logpdf(noise) + np.log(noise)
    log_prior += np.log((sizes[1] - sizes[0]) * (noises[1] - noises[0]))

    def given(K):
        values, vectors = np.linalg.eigh(K)
        total = size[..., None] ** 2 * np.maximum(values, 0.0) + noise[..., None] ** 2
        return logsumexp(log_prior - 0.5 * (np.log(2 * np.pi * total) + (vectors.T @ y) ** 2 / total).sum(axis=-1))

    lengths, periods = np.linspace(-4, 4, 321), np.linspace(-2.0, 3.0, 2001)
    smooth = [given(np.exp(-0.5 * (gap / np.exp(u)) ** 2)) + norm(0, 1).logpdf(u) for u in lengths]
    periodic = [given(np.exp(-2 * np.sin(np.pi * gap / np.exp(u)) ** 2)) + norm(0.5, 0.5).logpdf(u) for u in periods]
    exact = {
        0: logsumexp(smooth) + np.log(lengths[1] - lengths[0]) - np.log(3),
        1: logsumexp(periodic) + np.log(periods[1] - periods[0]) - np.log(3),
        2: given(1.0 + x[:, None] * x[None, :]) - np.log(3),
    }
    yield _evidence(posterior, logsumexp(list(exact.values())))
    yield from _probabilities(posterior, "kind", exact)


# 6. Hidden Markov model -----------------------------------------------------------------------------------------------


def hidden_markov(y):
    K = ab.sample("K", dist.DiscreteUniform(1, 2))
    rate = jnp.array([ab.sample(f"rate{k}", dist.Exponential(0.1)) for k in range(K)])
    if K == 1:
        ab.observe("y", dist.Poisson(rate[0]), y)
        return
    stay = jnp.array([ab.sample(f"stay{k}", dist.Beta(4, 1)) for k in range(K)])
    state = ab.sample("state0", dist.Categorical(jnp.array([0.5, 0.5])))
    for i in range(len(y)):
        if i > 0:
            state = ab.sample(f"state{i}", dist.Bernoulli(jnp.where(state == 1, stay[1], 1 - stay[0])))
        ab.observe(f"y{i}", dist.Poisson(rate[state]), y[i])


def job_hidden_markov(infer):
    rng = np.random.default_rng(6)
    y = rng.poisson(np.repeat([4.0, 9.0, 4.0], [15, 15, 10]))
    posterior = infer(hidden_markov, y)

    # One state: closed form. Two: the forward algorithm on a grid of four dimensions.
    one = np.log(0.1) + gammaln(y.sum() + 1) - (y.sum() + 1) * np.log(len(y) + 0.1) - gammaln(y + 1).sum()
    rates, (nodes, weights) = np.linspace(1.0, 16.0, 61), np.polynomial.legendre.leggauss(20)
    stays, log_weights = (nodes + 1) / 2, np.log(weights / 2) + beta(4, 1).logpdf((nodes + 1) / 2)
    a, b, p, q = np.meshgrid(rates, rates, stays, stays, indexing="ij", sparse=True)
    log_prior = expon(scale=10).logpdf(a) + expon(scale=10).logpdf(b) + log_weights[:, None] + log_weights
    forward, log_scale = [0.5 + 0 * (a + b + p + q)] * 2, 0.0
    for i, count in enumerate(y):
        if i > 0:
            forward = [forward[0] * p + forward[1] * (1 - q), forward[0] * (1 - p) + forward[1] * q]
        forward = [forward[0] * poisson(a).pmf(count), forward[1] * poisson(b).pmf(count)]
        scale = max(forward[0].max(), forward[1].max())
        forward, log_scale = [each / scale for each in forward], log_scale + np.log(scale)
    joint = np.log(np.maximum(forward[0] + forward[1], 1e-300)) + log_prior
    two = logsumexp(joint) + log_scale + 2 * np.log(rates[1] - rates[0])
    exact = {1: one - np.log(2), 2: two - np.log(2)}
    yield _evidence(posterior, logsumexp(list(exact.values())))
    yield from _probabilities(posterior, "K", exact)


# 7. Three NumPyro models compared -------------------------------------------------------------------------------------


def straight(x, y):
    a = numpyro.sample("a", dist.Normal(0, 5))
    b = numpyro.sample("b", dist.Normal(0, 5))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(a + b * x, sigma), obs=y)


def saturating(x, y):
    top = numpyro.sample("top", dist.Normal(0, 5))
    half = numpyro.sample("half", dist.LogNormal(0, 1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(top * x / (half + x), sigma), obs=y)


def logistic(x, y):
    top = numpyro.sample("top", dist.Normal(0, 5))
    rate = numpyro.sample("rate", dist.LogNormal(0, 1))
    middle = numpyro.sample("middle", dist.Normal(2, 2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(top * jax.nn.sigmoid(rate * (x - middle)), sigma), obs=y)


def job_compare(infer):
    rng = np.random.default_rng(7)
    x = np.linspace(0.2, 5.0, 20)
    y = 3.0 * x / (0.8 + x) + 0.3 * rng.normal(size=20)
    models = [straight, saturating, logistic]
    posteriors = {model.__name__: infer(model, x, y) for model in models}
    table = ab.compare(posteriors).table

    covariance = 25.0 * (1.0 + np.outer(x, x))
    sigmas = np.linspace(0.1, 4.0, 1_001)
    given = [multivariate_normal(np.zeros(20), covariance + s**2 * np.eye(20)).logpdf(y) for s in sigmas]
    straight_line = logsumexp(np.array(given) + halfnorm(scale=2).logpdf(sigmas)) + np.log(sigmas[1] - sigmas[0])

    def likelihood(mean, log_sigma):
        sigma = np.exp(log_sigma)
        return norm(mean, sigma).logpdf(y).sum(axis=1) + (halfnorm(scale=2).logpdf(sigma) + log_sigma)[:, 0]

    def log_saturating(z):
        prior = norm(0, 5).logpdf(z[:, 0]) + norm(0, 1).logpdf(z[:, 1])
        return likelihood(z[:, :1] * x / (np.exp(z[:, 1:2]) + x), z[:, 2:]) + prior

    def log_logistic(z):
        prior = norm(0, 5).logpdf(z[:, 0]) + norm(0, 1).logpdf(z[:, 1]) + norm(2, 2).logpdf(z[:, 2])
        return likelihood(z[:, :1] * expit(np.exp(z[:, 1:2]) * (x - z[:, 2:3])), z[:, 3:]) + prior

    starts = {"saturating": [3.0, -0.2, -1.0], "logistic": [2.6, 0.3, 0.5, -1.0]}
    densities = {"saturating": log_saturating, "logistic": log_logistic}
    exact = {"straight": straight_line}
    for name, start in starts.items():
        exact[name] = importance_sampling(densities[name], np.array(start), draws=400_000, error=0.002)
    total = logsumexp(list(exact.values()))
    for name, posterior in posteriors.items():
        yield f"log evidence, {name}", posterior.log_evidence, posterior.log_evidence_sd, exact[name]
    for name in exact:
        row = table.loc[name]
        yield f"P({name})", row["probability"], row["probability_sd"], np.exp(exact[name] - total)


# 8. Hierarchical or pooled --------------------------------------------------------------------------------------------


def schools(effect, se):
    mu = ab.sample("mu", dist.Normal(0, 10))
    if ab.sample("hierarchical", dist.Bernoulli(0.5)):
        tau = ab.sample("tau", dist.HalfNormal(10))
        with numpyro.plate("schools", len(effect)):
            theta = ab.sample("theta", dist.Normal(mu, tau))
    else:
        theta = mu
    ab.observe("effect", dist.Normal(theta, se), effect)


def job_pooling(infer):
    effect = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
    se = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    posterior = infer(schools, effect, se)

    def given(tau):
        return multivariate_normal(np.zeros(8), 100.0 + np.diag(se**2 + tau**2)).logpdf(effect)

    taus = np.linspace(0.0, 60.0, 3001)
    log_terms = np.array([given(tau) for tau in taus]) + halfnorm(scale=10).logpdf(taus)
    hierarchical = np.log(np.trapezoid(np.exp(log_terms), taus))
    exact = {0: given(0.0) - np.log(2), 1: hierarchical - np.log(2)}
    yield _evidence(posterior, logsumexp(list(exact.values())))
    yield from _probabilities(posterior, "hierarchical", exact)
    mean, error = posterior.expectation("tau")
    weights = np.exp(log_terms - log_terms.max())
    yield "E(tau)", mean, error, float((weights * taus).sum() / weights.sum())


# 9. A simulator of Python floats --------------------------------------------------------------------------------------


def falling(speed, drag, times):
    """The way that a stone has fallen at each time, with drag, by small steps in plain Python."""
    way, velocity, step, ways = 0.0, speed, 0.05, []
    for before, after in zip([0.0, *times[:-1]], times, strict=True):
        for _ in range(round((after - before) / step)):
            velocity = (velocity + step * 9.81) / (1.0 + step * drag * abs(velocity))
            way += step * velocity
        ways.append(way)
    return ways


def simulator(times, y):
    speed = float(ab.sample("speed", dist.Normal(0, 1)))
    drag = float(ab.sample("drag", dist.Exponential(10))) if ab.sample("has_drag", dist.Bernoulli(0.5)) else 0.0
    ab.observe("y", dist.Normal(np.array(falling(speed, drag, times)), 0.3), y)


def job_simulator(infer):
    times = [0.5, 1.0, 1.5, 2.0]
    rng = np.random.default_rng(9)
    y = np.array(falling(0.3, 0.02, times)) + 0.3 * rng.normal(size=4)
    posterior = infer(simulator, times, y)

    speeds, drags = np.linspace(-2.0, 2.5, 121), np.linspace(0.0, 0.3, 241)

    def log_likelihood(speed, drag):
        return norm(falling(speed, drag, times), 0.3).logpdf(y).sum()

    log_speed = norm().logpdf(speeds) + np.log(speeds[1] - speeds[0])
    without = logsumexp([log_likelihood(v, 0.0) for v in speeds] + log_speed)
    grid = np.array([[log_likelihood(v, d) for d in drags] for v in speeds]) + expon(scale=0.1).logpdf(drags)
    grid[:, 0] -= np.log(2)  # the ends of the trapezium rule
    with_drag = logsumexp(grid + log_speed[:, None]) + np.log(drags[1] - drags[0])
    exact = {0: without - np.log(2), 1: with_drag - np.log(2)}
    yield _evidence(posterior, logsumexp(list(exact.values())))
    yield from _probabilities(posterior, "has_drag", exact)


JOBS = {
    "change points": Job("change points, none to two, at unknown times", job_change_points),
    "selection": Job("variable selection, 2⁸ subsets", job_selection),
    "mixture": Job("mixture of one to three, weights and scales unknown", job_mixture),
    "polynomial": Job("polynomial with t noise, prediction on a grid", job_polynomial),
    "kernels": Job("kernel search, three kernels", job_kernels),
    "hidden Markov": Job("hidden Markov model, one or two states", job_hidden_markov),
    "compare": Job("three NumPyro models, compared", job_compare),
    "pooling": Job("hierarchical model against pooling", job_pooling),
    "simulator": Job("a simulator of Python floats", job_simulator),
}


def main() -> None:
    """Run the jobs, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--budget", type=int, help="evaluations of each (default: that of infer)")
    settings = parser.parse_args()
    print("| job | seconds | what | answer | reference | difference, in errors |\n|" + " --- |" * 6)
    for name in settings.only:
        stopwatch = Stopwatch(settings.budget)
        for i, (what, estimate, error, truth) in enumerate(list(JOBS[name].run(stopwatch))):
            z = round((estimate - truth) / np.hypot(error, GRID_ERROR), 1) + 0.0  # and no minus before zero
            lead = f"{JOBS[name].title} | {stopwatch.seconds:.0f}" if i == 0 else " | "
            print(
                f"| {lead} | {what} | {estimate:.4f} ± {error:.1g} | {truth:.4f} | {z:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
