"""The exact answers of function induction (section 7.3): the evidence of its 26 paths, and their predictions.

A path is a shape of the function f, such as a x + b sin(c x²). At most two of its coefficients need a grid:

- Where f is a sum, f = Σ_j b_j φ_j(x; θ), the outer coefficients b_j ~ Normal(0, 1) are linear. With noise of standard
  deviation s and Φ the matrix of φ_j at the data,

      p(y | θ) = Normal(y; 0, s² I + Φ Φᵀ),    b | y, θ ~ Normal(A⁻¹ Φᵀ y / s², A⁻¹),    A = I + Φᵀ Φ / s².

- Where f = sin(c (a g + b h)), only u = c a and v = c b matter. Their density is e^(−r) / (2 π r), r² = u² + v²: the
  radius is Exponential(1) and the angle uniform.

So each path is a mixture over the nodes of a quadrature, and at each node the posterior of f is Gaussian. Evidence,
prediction and quantiles are sums over the nodes of all paths.

`python -m truth.induction`, in the folder tests, computes the stored answers again, in a minute or two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logsumexp, ndtr
from scipy.stats import expon, norm

from anabranch import programs
from truth import rounding, write

__all__ = ["Prediction", "Resolution", "Solved", "log_predictive_densities", "main", "paths", "posterior", "solve"]

NOISE = 0.5
NEGLIGIBLE = 1e-13
"""Nodes lighter than this, relative to the heaviest of their path, are dropped; so are they in predictions."""
BATCH = 20_000
"""Nodes evaluated at once."""

Rule = tuple[np.ndarray, np.ndarray]
"""The nodes of a quadrature, (nodes, coefficients), and the log prior mass of each."""
Terms = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From coefficients (nodes, coefficients) and x (points,), the terms of f: (nodes, points, terms)."""


@dataclass(frozen=True)
class Resolution:
    """The nodes of a quadrature: for one coefficient, for each of two, and for the radius and the angle."""

    one: int
    two: int
    radius: int
    angle: int


COARSE = Resolution(one=1501, two=901, radius=1000, angle=1500)
FINE = Resolution(one=4001, two=1301, radius=1500, angle=2250)


@dataclass(frozen=True)
class Path:
    """A shape of f, the prior probability of its rules, the prior of its nonlinear coefficients, and its terms.

    If `linear`, f is the sum of its terms times coefficients that are Normal(0, 1), integrated out. If not, f is its
    only term.
    """

    shape: str
    prior: float
    rule: Callable[[Resolution], Rule]
    terms: Terms
    linear: bool


# The paths ----------------------------------------------------------------------------------------------------------

LEAVES: dict[str, Callable[[np.ndarray], np.ndarray]] = {"x": lambda x: x, "x2": lambda x: x * x}


def paths() -> list[Path]:
    """All 26, with the prior probability of the rules that lead to each."""
    return [*_leaves(), *_sums(), *_sines()]


def _leaves() -> list[Path]:
    return [Path(name, 0.3, lambda _: nothing(), _leaf(name), linear=False) for name in LEAVES]


def _sums() -> list[Path]:
    """a g(x) + b h(x), where g and h are leaves or sines of leaves."""
    children = [(name, 0.35, 0, _leaf(name)) for name in LEAVES]
    children += [(f"s{name}", 0.3 * 0.5, 1, _sine(_leaf(name))) for name in LEAVES]
    # By the number of coefficients.
    rules = [lambda _: nothing(), lambda r: gaussian(r.one, 1), lambda r: gaussian(r.two, 2)]
    return [
        Path(f"{g}+{h}", 0.2 * p * q, rules[n + m], _side_by_side(left, right, n), linear=True)
        for (g, p, n, left), (h, q, m, right) in itertools.product(children, repeat=2)
    ]


def _sines() -> list[Path]:
    """sin(a g(x)), where g is a leaf, the sine of a leaf, or a sum of two leaves."""
    out = []
    for name in LEAVES:
        once = _sine(_leaf(name))
        out.append(Path(f"sin({name})", 0.2 * 0.3, lambda r: gaussian(r.one, 1), once, linear=False))
        rules = 0.2 * 0.2 * 0.5
        out.append(Path(f"sin(sin({name}))", rules, lambda r: gaussian(r.two, 2), _sine(once), linear=False))
    for g, h in itertools.product(LEAVES, repeat=2):
        out.append(Path(f"sin({g}+{h})", 0.2 * 0.2 * 0.5**2, polar, _sine_of_sum(g, h), linear=False))
    return out


def _leaf(name: str) -> Terms:
    return lambda theta, x: np.broadcast_to(LEAVES[name](x)[:, None], (len(theta), len(x), 1))


def _sine(inner: Terms) -> Terms:
    """sin(a g): a is the first coefficient, and those of g follow."""
    return lambda theta, x: np.sin(theta[:, :1, None] * inner(theta[:, 1:], x))


def _sine_of_sum(g: str, h: str) -> Terms:
    """sin(u g + v h), u and v the two coefficients."""
    return lambda theta, x: np.sin(theta[:, :1] * LEAVES[g](x) + theta[:, 1:] * LEAVES[h](x))[..., None]


def _side_by_side(left: Terms, right: Terms, n: int) -> Terms:
    """The terms of both: the first n coefficients are those of the left, the others those of the right."""
    return lambda theta, x: np.concatenate([left(theta[:, :n], x), right(theta[:, n:], x)], -1)


# Quadrature over the nonlinear coefficients -------------------------------------------------------------------------


def nothing() -> Rule:
    """The rule of no coefficient: one node of mass one."""
    return np.empty((1, 0)), np.zeros(1)


def gaussian(points: int, coefficients: int, limit: float = 10.0) -> Rule:
    """Coefficients that are Normal(0, 1), by the trapezoid rule, which has all digits once the steps are short."""
    line = np.linspace(-limit, limit, points)
    log_mass = norm.logpdf(line) + np.log(line[1] - line[0])
    return _product([line] * coefficients, [log_mass] * coefficients)


def polar(resolution: Resolution, limit: float = 50.0) -> Rule:
    """u and v of sin(u g + v h): the radius Exponential(1), the angle uniform, both by the midpoint rule."""
    radius = (np.arange(resolution.radius) + 0.5) * limit / resolution.radius
    angle = np.arange(resolution.angle) * 2 * np.pi / resolution.angle
    log_mass = expon.logpdf(radius) + np.log(limit / resolution.radius)
    nodes, log_masses = _product([radius, angle], [log_mass, np.full(len(angle), -np.log(len(angle)))])
    return nodes[:, :1] * np.stack([np.cos(nodes[:, 1]), np.sin(nodes[:, 1])], -1), log_masses


def _product(lines: list[np.ndarray], log_masses: list[np.ndarray]) -> Rule:
    nodes = np.stack([axis.ravel() for axis in np.meshgrid(*lines, indexing="ij")], -1)
    return nodes, np.sum([axis.ravel() for axis in np.meshgrid(*log_masses, indexing="ij")], 0)


# A path given the data ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Belief:
    """At each node, the log evidence and the Gaussian posterior of the linear coefficients."""

    log_evidence: np.ndarray  # (nodes,)
    mean: np.ndarray  # (nodes, terms)
    covariance: np.ndarray  # (nodes, terms, terms)


@dataclass(frozen=True)
class Solved:
    """A path given data: log Z_k, the nodes with posterior mass, and the log share of each."""

    path: Path
    log_evidence: float
    nodes: np.ndarray
    log_share: np.ndarray
    belief: Belief


def solve(path: Path, x: np.ndarray, y: np.ndarray, resolution: Resolution) -> Solved:
    """log Z_k = log Σ_i (prior mass of node i) p(y | node i), and the nodes that are not negligible."""
    nodes, log_mass = path.rule(resolution)
    batches = range(0, len(nodes), BATCH)
    log_evidence = np.concatenate([belief(path, nodes[i : i + BATCH], x, y).log_evidence for i in batches])
    log_joint = np.log(path.prior) + log_mass + log_evidence
    total = logsumexp(log_joint)
    kept = log_joint > log_joint.max() + np.log(NEGLIGIBLE)
    return Solved(path, float(total), nodes[kept], log_joint[kept] - total, belief(path, nodes[kept], x, y))


def belief(path: Path, nodes: np.ndarray, x: np.ndarray, y: np.ndarray) -> Belief:
    """The posterior of f at each node."""
    terms = path.terms(nodes, x)
    return _linear_belief(terms, y) if path.linear else _certain_belief(terms[..., 0], y)


def _linear_belief(terms: np.ndarray, y: np.ndarray) -> Belief:
    """The linear model of the module's docstring; the evidence by Woodbury's identity."""
    precision = np.eye(terms.shape[-1]) + np.swapaxes(terms, -1, -2) @ terms / NOISE**2
    covariance = np.linalg.inv(precision)
    projected = y @ terms / NOISE**2
    mean = np.einsum("ijk,ik->ij", covariance, projected)
    quadratic = y @ y / NOISE**2 - np.sum(projected * mean, -1)
    log_determinant = len(y) * np.log(2 * np.pi * NOISE**2) + np.linalg.slogdet(precision)[1]
    return Belief(-0.5 * (quadratic + log_determinant), mean, covariance)


def _certain_belief(function: np.ndarray, y: np.ndarray) -> Belief:
    """Without linear coefficients f is its only term."""
    nodes = len(function)
    return Belief(norm.logpdf(y, function, NOISE).sum(-1), np.ones((nodes, 1)), np.zeros((nodes, 1, 1)))


# The posterior of all paths -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """The posterior of f at each x, a mixture of Gaussians with weights exp(log_weight)."""

    log_weight: np.ndarray  # (nodes,)
    mean: np.ndarray  # (nodes, points)
    variance: np.ndarray  # (nodes, points)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """E f(x) and the standard deviation of f(x)."""
        weight = np.exp(self.log_weight)
        mean = weight @ self.mean
        return mean, np.sqrt(weight @ (self.variance + (self.mean - mean) ** 2))

    def quantile(self, probability: float) -> np.ndarray:
        """The value below which f(x) is with this probability, by bisection."""
        weight = np.exp(self.log_weight)
        sd = np.sqrt(self.variance) + np.finfo(float).tiny  # at x = 0 every f is zero
        mean, spread = self.moments()
        low, high = mean - 10 * spread, mean + 10 * spread
        for _ in range(45):
            middle = 0.5 * (low + high)
            below = weight @ ndtr((middle - self.mean) / sd) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return 0.5 * (low + high)


def posterior(solved: list[Solved], x: np.ndarray, min_weight: float = NEGLIGIBLE) -> Prediction:
    """f at x: the nodes of all paths, each with the posterior probability of its path times its share of the path.

    Nodes with a probability below `min_weight` are left out, and the others normalised.
    """
    total = logsumexp([s.log_evidence for s in solved])
    parts = [_predict(s, s.log_evidence - total, x, min_weight) for s in solved]
    log_weight, mean, variance = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Prediction(log_weight - logsumexp(log_weight), mean, variance)


def _predict(solved: Solved, log_weight: float, x: np.ndarray, min_weight: float) -> tuple[np.ndarray, ...]:
    log_weights = log_weight + solved.log_share
    kept = log_weights > np.log(min_weight)
    terms = solved.path.terms(solved.nodes[kept], x)
    mean = np.einsum("inj,ij->in", terms, solved.belief.mean[kept])
    variance = np.einsum("inj,ijk,ink->in", terms, solved.belief.covariance[kept], terms)
    return log_weights[kept], mean, variance


def log_predictive_densities(prediction: Prediction, y: np.ndarray) -> np.ndarray:
    """log p(y_n | D) = log ∫ Normal(y_n; f(x_n), s²) p(f | D) df for each point: their sum is the LPPD."""
    sd = np.sqrt(prediction.variance + NOISE**2)
    return logsumexp(prediction.log_weight[:, None] + norm.logpdf(y, prediction.mean, sd), axis=0)


# Stored answers -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Compute the stored answers, and print them."""
    x, y = programs.function_induction_data()
    x_test, y_test = programs.function_induction_test_data()
    coarse, fine = ([solve(path, x, y, resolution) for path in paths()] for resolution in (COARSE, FINE))
    answers = {
        "how": "Outer coefficients of sums in closed form, sin(c (a g + b h)) in polar coordinates, the other "
        "coefficients by the trapezoid rule. Errors are the change from a coarser quadrature, plus what rounding may "
        "add: of log Z_k the largest of all paths.",
        **{"x": x, "y": y, "x_test": x_test, "y_test": y_test},
        **_evidence(coarse, fine),
        **_held_out(coarse, fine, x_test, y_test),
        "predictive": _curves(fine, np.linspace(-2, 2, 201)),
    }
    write("induction", answers)
    for shape, log_evidence in sorted(answers["log_evidence"].items(), key=lambda item: -item[1]):
        print(f"{shape:14} log Z_k {log_evidence:13.8f}  weight {answers['weights'][shape]:.3g}")
    print(f"all            log Z   {answers['log_evidence_total']:13.8f} ± {answers['log_evidence_error']:.0e}")
    print(f"held out       LPPD    {answers['lppd']:13.8f} ± {answers['lppd_error']:.0e}")


def _evidence(coarse: list[Solved], fine: list[Solved]) -> dict[str, Any]:
    total = float(logsumexp([s.log_evidence for s in fine]))
    change = max(abs(s.log_evidence - c.log_evidence) for s, c in zip(fine, coarse, strict=True))
    return {
        "log_evidence": {s.path.shape: s.log_evidence for s in fine},
        "log_evidence_total": total,
        "log_evidence_error": change + max(rounding(s.log_evidence) for s in fine),
        "weights": {s.path.shape: float(np.exp(s.log_evidence - total)) for s in fine},
    }


def _held_out(coarse: list[Solved], fine: list[Solved], x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    before, lppd = (float(log_predictive_densities(posterior(solved, x), y).sum()) for solved in (coarse, fine))
    return {"lppd": lppd, "lppd_error": abs(lppd - before) + rounding(lppd)}


def _curves(solved: list[Solved], x: np.ndarray) -> dict[str, np.ndarray]:
    mean, _ = posterior(solved, x).moments()
    # A quantile evaluates every node many times, and the lightest do not change a figure.
    heavier = posterior(solved, x, min_weight=1e-9)
    return {"x": x, "mean": mean, "lower": heavier.quantile(0.05), "upper": heavier.quantile(0.95)}


if __name__ == "__main__":
    main()
