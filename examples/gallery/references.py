"""What the gallery's answers should be, computed by other means: (what, our answer, its error, the reference).

Closed forms, enumerations and quadratures; else importance sampling from a Student-t distribution at the mode, which
shares nothing with the library, and whose own error is below 0.01 (`importance.py`).
"""

from collections.abc import Iterator
from itertools import product

import change_points as nile
import clusters as geyser
import dose_response as beetles
import epidemic as school
import hidden_markov as quakes
import kernels as carbon
import numpy as np
import polynomial as galileo
import regression_tree as trees
import robust_line as cygnus
import symbolic_regression as planets
import variable_selection as cement
from importance import importance_sampling
from scipy.special import expit, gammaln, logsumexp, ndtr
from scipy.stats import binom, gamma, halfnorm, nbinom, norm

Answer = tuple[str, float, float, float]


def of_path(posterior, description: str, reference: float) -> Answer:
    """The log evidence of one path."""
    ours = posterior.solution(description).estimate
    return f"log evidence of {description}", ours.log_evidence, ours.log_evidence_sd, reference


def of_values(posterior, name: str, log_evidences: dict) -> Iterator[Answer]:
    """The log evidence of all paths, and the probability of each value of a site."""
    total, found = logsumexp(list(log_evidences.values())), posterior.probability(name)
    yield "log evidence", posterior.log_evidence, posterior.log_evidence_sd, total
    for value, log_evidence in log_evidences.items():
        probability = np.exp(log_evidence - total)
        yield f"P({name} = {value})", found.get(value, 0.0), found.errors.get(value, 0.0), probability


def change_points(posterior):
    """Enumeration: a change is between two years, levels are integrated, and the noise is on a grid."""
    y, n = nile.DATA.flow.to_numpy(float) - 900, len(nile.DATA)
    first, last = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    count = np.maximum(last - first, 0)
    total, squares = (np.cumsum(np.r_[0, y**k])[last] - np.cumsum(np.r_[0, y**k])[first] for k in (1, 2))
    noises = np.linspace(60, 300, 241)
    evidence = np.zeros((len(noises), 4))
    for i, s in enumerate(noises):
        spread = 1 / (1 / 200**2 + count / s**2)
        log = 0.5 * (np.log(spread / 200**2) + spread * (total / s**2) ** 2 - squares / s**2)
        log += count * (6.4 - np.log(s * np.sqrt(2 * np.pi)))  # 6.4 for each year, so that nothing underflows
        segment = np.exp(np.where(last >= first, log, -np.inf))
        start, end, between = segment[0, 1:n], segment[1:n, n], np.triu(segment[1:n, 1:n], 1)
        same, once, twice = start @ end, start @ between @ end, start @ between @ between @ end
        evidence[i] = segment[0, n], same / 99, (2 * once + same) / 99**2, (6 * twice + 6 * once + same) / 99**3
    joint = nile.PRIOR * np.trapezoid(evidence.T * gamma(4, scale=1 / 0.03).pdf(noises), noises)
    yield from of_values(posterior, "changes", {k: np.log(joint[k]) - 6.4 * n for k in range(4)})


def clusters(posterior):
    """Two components: importance sampling over one of the two orders of their means."""
    y = geyser.DATA.waiting.to_numpy(float)

    def log_density(points):
        share, mean, log_sd = expit(points[:, 0]), points[:, 1:3], points[:, 3:]
        prior = (
            np.log(share * (1 - share)) + norm(70, 20).logpdf(mean).sum(axis=1) + norm(1.8, 0.5).logpdf(log_sd)[:, 0]
        )
        parts = norm(mean[:, None], np.exp(log_sd)[:, None]).pdf(y[:, None])
        likelihood = np.log(share[:, None] * parts[..., 0] + (1 - share[:, None]) * parts[..., 1]).sum(axis=1)
        return np.where(mean[:, 0] < mean[:, 1], prior + likelihood, -np.inf)

    exact = importance_sampling(log_density, np.array([-0.6, 54.0, 80.0, 1.8]), draws=20_000)
    yield of_path(posterior, "K = 2", exact + np.log(2) - np.log(3))


def dose_response(posterior):
    """Quadrature over level and slope."""
    level, slope = np.meshgrid(np.linspace(-4, 4, 401), np.linspace(0, 80, 401), indexing="ij")
    prior = norm(0, 2).logpdf(level) + norm(0, 50).logpdf(slope) + np.log((8 / 400) * (80 / 400))
    exact = {}
    for k, curve in enumerate((expit, ndtr, lambda z: -np.expm1(-np.exp(z)))):
        log_density = prior.copy()
        for x, n, killed in beetles.DATA.itertuples(index=False):
            p = np.clip(curve(level + slope * (x - 1.8)), 1e-300, 1 - 1e-16)
            log_density += binom.logpmf(killed, n, p)
        exact[k] = logsumexp(log_density) - np.log(3)
    yield from of_values(posterior, "curve", exact)


def epidemic(posterior):
    """Without a latent stage: quadrature over contacts, recovery and spread, in logarithms."""
    axes = np.linspace(-0.4, 1.4, 37), np.linspace(-1.8, 0.4, 37), np.linspace(-2.0, 5.0, 71)
    spread, in_bed = np.exp(axes[2])[:, None], school.DATA.in_bed.to_numpy()
    log_density = np.empty([len(axis) for axis in axes])
    for i, contacts in enumerate(np.exp(axes[0])):
        for j, recovery in enumerate(np.exp(axes[1])):
            mean = school.epidemic(contacts, recovery, None, len(in_bed))
            log_density[i, j] = nbinom(spread, spread / (spread + mean)).logpmf(in_bed).sum(axis=1)
    priors = norm(0.7, 0.5), norm(-0.7, 0.5), norm(2.0, 1.0)
    a, b, c = (prior.logpdf(axis) + np.log(axis[1] - axis[0]) for prior, axis in zip(priors, axes, strict=True))
    log_density += a[:, None, None] + b[:, None] + c
    yield of_path(posterior, "latent = 0", logsumexp(log_density) - np.log(2))


def hidden_markov(posterior):
    """One state: a gamma prior and Poisson counts. Two: the forward algorithm, over one of their orders."""
    y = quakes.DATA["count"].to_numpy()
    n, total = len(y), y.sum()
    log_factorials = gammaln(y + 1).sum()
    one = 4 * np.log(0.2) - gammaln(4) + gammaln(4 + total) - (4 + total) * np.log(0.2 + n) - log_factorials
    yield of_path(posterior, "K = 1", one - np.log(3))

    def log_density(points):
        rate, stay = np.exp(points[:, :2]), expit(points[:, 2:])
        prior = gamma(4, scale=5).logpdf(rate).sum(axis=1) + points[:, :2].sum(axis=1)
        prior += np.log(stay * (1 - stay)).sum(axis=1)
        forward, scale = np.full((len(points), 2), 0.5), np.zeros(len(points))
        move = np.stack([np.stack([stay[:, 0], 1 - stay[:, 0]], 1), np.stack([1 - stay[:, 1], stay[:, 1]], 1)], 1)
        for t, count in enumerate(y):
            forward = np.einsum("ni,nij->nj", forward, move) if t else forward
            forward = forward * np.exp(count * np.log(rate) - rate - gammaln(count + 1))
            norms = forward.sum(axis=1, keepdims=True)
            forward, scale = forward / norms, scale + np.log(norms[:, 0])
        return np.where(rate[:, 0] < rate[:, 1], prior + scale, -np.inf)

    two = importance_sampling(log_density, np.array([2.7, 3.2, 2.0, 2.0]), draws=20_000)
    yield of_path(posterior, "K = 2", two + np.log(2) - np.log(3))


def kernels(posterior):
    """A line and a yearly cycle: importance sampling in logarithms."""
    x, y = carbon.DATA.year.to_numpy() - 1961.0, carbon.DATA.ppm.to_numpy() - 317.0
    line, cycle = 1.0 + np.outer(x, x), np.sin(np.pi * (x[:, None] - x[None, :])) ** 2

    def log_density(points):
        size, cycle_size, length, noise = np.exp(points).T[:, :, None, None]
        covariance = size**2 * line + cycle_size**2 * np.exp(-2.0 * cycle / length**2) + noise**2 * np.eye(len(x))
        factor = np.linalg.cholesky(covariance)
        white = np.linalg.solve(factor, np.broadcast_to(y[:, None], (len(points), len(y), 1)))[..., 0]
        log_likelihood = -0.5 * (white**2 + np.log(2 * np.pi)).sum(axis=1)
        log_likelihood -= np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        prior = norm(0, 1).logpdf(points[:, :3]).sum(axis=1) + halfnorm().logpdf(np.exp(points[:, 3])) + points[:, 3]
        return log_likelihood + prior

    exact = importance_sampling(log_density, np.array([0.0, 0.5, 0.0, -1.0]), draws=20_000)
    yield of_path(posterior, "line = 1, smooth = 0, yearly = 1", exact - np.log(8))


def polynomial(posterior):
    """Closed form given the noise, which is on a grid."""
    x, y = (galileo.DATA.height.to_numpy() - 500.0) / 500.0, galileo.DATA.distance.to_numpy()
    exact = {}
    for degree in range(5):
        powers = x[:, None] ** np.arange(degree + 1)
        exact[degree] = line_given_noise(y - 400.0, 200.0 * powers, halfnorm(scale=20.0)) - np.log(5)
    yield from of_values(posterior, "degree", exact)


def line_given_noise(y, columns, prior):
    """The log evidence of a linear model with standard normal coefficients, and noise with a prior."""
    noises = np.exp(np.linspace(-5.0, 5.0, 1001))
    values, vectors = np.linalg.eigh(columns @ columns.T)
    total = np.maximum(values, 0.0) + noises[:, None] ** 2
    given = -0.5 * (np.log(2 * np.pi * total) + (vectors.T @ y) ** 2 / total).sum(axis=1)
    return logsumexp(given + prior.logpdf(noises) + np.log(np.gradient(noises)))


def regression_tree(posterior):
    """Enumeration of all trees: given the noise, leaves are independent and their means integrated."""
    y = np.log(trees.DATA.ozone.to_numpy()) - 3.4
    questions = [
        (column, trees.DATA[column].to_numpy() > cut, 1 / (3 * len(cuts)))
        for column, cuts in trees.CUTS.items()
        for cut in cuts
    ]
    noises = np.linspace(0.3, 1.2, 181)

    def leaf(rows):
        count, total, squares = rows.sum(), y[rows].sum(), (y[rows] ** 2).sum()
        spread = 1 / (1 + count / noises**2)
        fit = 0.5 * (np.log(spread) + spread * (total / noises**2) ** 2 - squares / noises**2)
        return fit - count * np.log(noises * np.sqrt(2 * np.pi))

    def subtree(rows, depth):
        if depth == 0:
            return leaf(rows)
        halves = [
            np.log(share) + subtree(rows & yes, depth - 1) + subtree(rows & ~yes, depth - 1)
            for _, yes, share in questions
        ]
        return logsumexp([leaf(rows), *halves], axis=0) + np.log(0.5)

    log_prior = halfnorm().logpdf(noises) + np.log(noises[1] - noises[0])
    everything = np.ones(len(y), bool)
    total = logsumexp(subtree(everything, 2) + log_prior)
    yield "log evidence", posterior.log_evidence, posterior.log_evidence_sd, total
    found = posterior.probability("root_asks")
    for k, column in enumerate(trees.CUTS):
        parts = [
            np.log(share / 2) + subtree(yes, 1) + subtree(~yes, 1) for name, yes, share in questions if name == column
        ]
        exact = np.exp(logsumexp(logsumexp(parts, axis=0) + log_prior) - total)
        yield f"P(first question: {column})", found.get(k, 0.0), found.errors.get(k, 0.0), exact


def robust_line(posterior):
    """Without giants: closed form given the noise, which is on a grid."""
    columns = (cygnus.DATA.log_temperature.to_numpy()[:, None] - 4.4) ** np.arange(2) * np.array([2.0, 5.0])
    exact = line_given_noise(cygnus.DATA.log_light.to_numpy() - 5.0, columns, halfnorm())
    yield of_path(posterior, "giants = 0", exact - np.log(2))


def symbolic_regression(posterior):
    """The path of x·sqrt(x) has one variable, the noise: quadrature."""
    years, distance, rules = planets.DATA.days / 365.25, planets.DATA.distance, planets.RULES
    noises = np.exp(np.linspace(-9.0, 0.0, 4001))
    residuals = (np.log(years) - 1.5 * np.log(distance)).to_numpy()
    log_likelihood = norm(0.0, noises[:, None]).logpdf(residuals).sum(axis=1) - np.log(years).sum()
    exact = np.log(np.trapezoid(np.exp(log_likelihood) * halfnorm(scale=0.1).pdf(noises), noises))
    exact += np.log(rules[4] * rules[0] * rules[2] * rules[0] / rules[:2].sum())
    yield of_path(posterior, "E = 4, El = 0, Er = 2, Erl = 0", exact)


def variable_selection(posterior):
    """Enumeration of the subsets: closed form given the noise, which is on a grid."""
    X, y = cement.standardised()
    exact = {
        inside: line_given_noise(y, X.to_numpy()[:, np.array(inside, bool)], halfnorm()) - X.shape[1] * np.log(2)
        for inside in product((0, 1), repeat=X.shape[1])
    }
    total = logsumexp(list(exact.values()))
    yield "log evidence", posterior.log_evidence, posterior.log_evidence_sd, total
    for j, column in enumerate(X.columns):
        truth = np.exp(logsumexp([value for inside, value in exact.items() if inside[j]]) - total)
        found = posterior.probability(column)
        yield f"P({column})", found.get(1, 0.0), found.errors.get(1, 0.0), truth
