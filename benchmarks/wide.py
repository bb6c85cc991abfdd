"""Programs with thousands of paths and more, against exact answers and against samplers written for one problem.

    python benchmarks/wide.py                          all of them, about twenty minutes on two idle cores
    python benchmarks/wide.py --only selection-12,restaurant-9 --seeds 3

For each program: the error of log Z and what was claimed, the largest error of a probability that matters (a predictor
is included, two points are in one cluster) and what was claimed for it, paths found and visited, seconds, and seconds
for each path over those of one execution of the same program by NumPyro (`handlers.seed` and `handlers.trace`).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from scipy.special import logsumexp
from wide_exact import (
    CONCENTRATION,
    NOISE,
    SPREAD,
    all_models,
    all_partitions,
    all_trees,
    gibbs_over_models,
    gibbs_over_partitions,
    kernel_evidences,
    mean_and_error,
)  # fmt: skip

import anabranch as ab

Pair = tuple[str, Callable[[Any], float], float, float]
"""A name, a function of a draw, its posterior mean, and the error of that: zero where it is exact."""


@dataclass(frozen=True)
class Case:
    """A program with its data, its log evidence (NaN if it is not known), posterior means, limits of the run, and the
    structure that made the data, with a function that gives that of a draw."""

    name: str
    program: Callable[..., None]
    data: tuple[Any, ...]
    log_evidence: float
    means: Sequence[Pair]
    limits: dict[str, Any]
    structure: tuple[Callable[[Any], str], str] | None = None


# Variable selection ---------------------------------------------------------------------------------------------------


def selection(X: np.ndarray, y: np.ndarray) -> None:
    """A linear regression; each of the candidate predictors is in or out."""
    mean = jnp.zeros(len(y))
    for j in range(X.shape[1]):
        if ab.sample(f"z{j}", dist.Bernoulli(0.5)):
            mean = mean + X[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(mean, 1.0), y)


def regression_data(p: int, correlation: float, n: int = 100) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = np.sqrt(1 - correlation) * rng.standard_normal((n, p)) + np.sqrt(correlation) * rng.standard_normal((n, 1))
    return X, X[:, :3] @ np.array([1.0, -0.7, 0.4]) + rng.standard_normal(n)


def selection_case(p: int, correlation: float = 0.0) -> Case:
    X, y = regression_data(p, correlation)
    total, included = all_models(X, y) if p <= 20 else (np.nan, gibbs_over_models(X, y, sweeps=60))
    means: list[Pair] = [(f"z{j}", partial(value_of, f"z{j}"), float(included[j]), 0.0) for j in range(p)]
    limits = {"tolerance": 0.002} if p <= 12 else {"seconds": 170.0}
    return Case(f"selection-{p}", selection, (X, y), total, means, limits)


def value_of(name: str, draw: Any) -> float:
    return float(draw[name])


# Partitions -----------------------------------------------------------------------------------------------------------


def restaurant(y: np.ndarray) -> None:
    """A Chinese restaurant process mixture of normals with known variance."""
    counts: list[int] = []
    tables: list[int] = []
    for i in range(len(y)):
        weights = np.array([*counts, CONCENTRATION]) / (i + CONCENTRATION)
        table = int(ab.sample(f"t{i}", dist.Categorical(weights)))
        if table == len(counts):
            counts.append(0)
        counts[table] += 1
        tables.append(table)
    means = jnp.stack([ab.sample(f"mu{k}", dist.Normal(0.0, SPREAD)) for k in range(len(counts))])
    ab.deterministic("clusters", len(counts))
    ab.observe("y", dist.Normal(means[np.array(tables)], NOISE), y)


def clustered(n: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    return np.array([-4.0, 0.5, 4.5])[rng.integers(3, size=n)] + rng.standard_normal(n)


def same_table(i: int, j: int, draw: Any) -> float:
    return float(draw[f"t{i}"] == draw[f"t{j}"])


def restaurant_case(n: int) -> Case:
    y = clustered(n)
    if n <= 9:
        total, together, clusters = all_partitions(y)
        errors = dict.fromkeys(together, 0.0)
        clusters_error = 0.0
    else:
        total, batches = np.nan, gibbs_over_partitions(y, sweeps=100_000 // n)
        means_of, errors_of = mean_and_error([matrix for matrix, _ in batches])
        clusters, clusters_error = (float(x) for x in mean_and_error([number for _, number in batches]))
        together = {(i, j): means_of[i, j] for i in range(n) for j in range(i + 1, n)}
        errors = {(i, j): errors_of[i, j] for i, j in together}
    pairs = sorted(together)[:: max(len(together) // 20, 1)]
    means: list[Pair] = [(f"{i} with {j}", partial(same_table, i, j), together[i, j], errors[i, j]) for i, j in pairs]
    means.append(("clusters", partial(value_of, "clusters"), clusters, clusters_error))
    return Case(f"restaurant-{n}", restaurant, (y,), total, means, {"seconds": 110.0 if n <= 9 else 170.0})


# Trees ----------------------------------------------------------------------------------------------------------------


def regression_tree(X: np.ndarray, y: np.ndarray) -> None:
    """A tree of depth three at most: a node splits a predictor at one of nine quantiles, a leaf has a mean."""
    parts = []

    def grow(name: str, members: np.ndarray, depth: int) -> None:
        if depth < 3 and ab.sample(f"split{name}", dist.Bernoulli(0.5 if depth else 0.9)):
            j = int(ab.sample(f"predictor{name}", dist.Categorical(np.full(X.shape[1], 1 / X.shape[1]))))
            cut = np.quantile(X[:, j], (1 + int(ab.sample(f"cut{name}", dist.Categorical(np.full(9, 1 / 9))))) / 10)
            grow(name + "l", members & (X[:, j] <= cut), depth + 1)
            grow(name + "r", members & (X[:, j] > cut), depth + 1)
        else:
            parts.append(ab.sample(f"mean{name}", dist.Normal(0.0, 2.0)) * members)

    grow("", np.ones(len(y), bool), 0)
    ab.observe("y", dist.Normal(sum(parts), 0.5), y)


def made_tree(seed: int, n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Data of a tree: x0 at its median, then x1 on the right alone."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 3))
    cuts = [np.quantile(X[:, j], 0.5) for j in range(2)]
    mean = np.where(X[:, 0] <= cuts[0], -2.0, np.where(X[:, 1] <= cuts[1], 0.0, 3.0))
    return X, mean + 0.5 * rng.standard_normal(n)


def tree_of(draw: Any, name: str = "") -> str:
    """The predictors at which a draw splits: `(0 - (1 - -))` splits the first, and on the right the second."""
    if not draw.get(f"split{name}", 0):
        return "-"
    return f"({int(draw[f'predictor{name}'])} {tree_of(draw, name + 'l')} {tree_of(draw, name + 'r')})"


def tree_case(seed: int) -> Case:
    """The right tree is the most probable of all: that which made the data, `(0 - (1 - -))`, but for seed 8."""
    X, y = made_tree(seed)
    logs = all_trees(X, y)
    best, total = max(logs, key=lambda tree: logs[tree]), float(logsumexp(list(logs.values())))
    pair = f"P{best}", partial(has_tree, best), float(np.exp(logs[best] - total)), 0.0
    return Case(f"tree-{seed}", regression_tree, (X, y), total, [pair], {"seconds": 170.0}, (tree_of, best))


def has_tree(tree: str, draw: Any) -> float:
    return float(tree_of(draw) == tree)


# Kernels --------------------------------------------------------------------------------------------------------------

KERNELS = ("smooth", "periodic", "linear", "sum", "product")


def kernel_grammar(x: np.ndarray, y: np.ndarray) -> None:
    """A Gaussian process whose kernel is a sum or a product of kernels, of depth three at most."""

    def grow(name: str, depth: int) -> jnp.ndarray:
        shares = np.array([0.2, 0.2, 0.2, 0.2, 0.2]) if depth < 3 else np.array([1, 1, 1, 0, 0]) / 3
        kind = KERNELS[int(ab.sample(f"kernel{name}", dist.Categorical(shares)))]
        if kind in ("sum", "product"):
            left, right = grow(name + "l", depth + 1), grow(name + "r", depth + 1)
            return left + right if kind == "sum" else left * right
        if kind == "linear":
            return jnp.outer(x, x)
        length = ab.sample(f"length{name}", dist.LogNormal(0.0, 0.5))
        gaps = x[:, None] - x
        if kind == "smooth":
            return jnp.exp(-0.5 * gaps**2 / length**2)
        return jnp.exp(-2 * jnp.sin(np.pi * gaps / length) ** 2)

    covariance = grow("", 1) + 0.05 * np.eye(len(x))
    ab.observe("y", dist.MultivariateNormal(np.zeros(len(x)), covariance), y)


def made_process(seed: int, n: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """Data of a periodic process on a line."""
    rng, x = np.random.default_rng(seed), np.linspace(-3.0, 3.0, n)
    gaps = x[:, None] - x
    covariance = np.exp(-2 * np.sin(np.pi * gaps) ** 2) + np.outer(x, x) + 0.05 * np.eye(n)
    return x, rng.multivariate_normal(np.zeros(n), covariance)


def kernel_of(draw: Any, name: str = "") -> str:
    """The kernel of a draw; the parts of a sum or a product in alphabetical order."""
    kind = KERNELS[int(draw[f"kernel{name}"])]
    if kind not in ("sum", "product"):
        return kind
    return f"{kind}({', '.join(sorted(kernel_of(draw, name + side) for side in 'lr'))})"


def kernel_case(seed: int) -> Case:
    """The right kernel is the most probable of those with an exact evidence: a slope may be zero by chance."""
    x, y = made_process(seed)
    logs = kernel_evidences(x, y)
    best = max(logs, key=lambda kernel: logs[kernel])
    return Case(f"kernel-{seed}", kernel_grammar, (x, y), np.nan, [], {"seconds": 170.0}, (kernel_of, best))


def check_gibbs(sweeps: int = 20_000) -> None:
    """The collapsed Gibbs sampler of partitions against all partitions of eight points."""
    y = clustered(8)
    _, together, clusters = all_partitions(y)
    batches = gibbs_over_partitions(y, sweeps)
    by_gibbs, errors = mean_and_error([matrix for matrix, _ in batches])
    worst = max(together, key=lambda pair: abs(together[pair] - by_gibbs[pair]))
    number, error = mean_and_error([number for _, number in batches])
    print(f"Gibbs on eight points: clusters {number - clusters:+.4f} ± {error:.4f}, "
          f"largest error of a pair {by_gibbs[worst] - together[worst]:+.4f} ± {errors[worst]:.4f}")  # fmt: skip


CASES: dict[str, Callable[[], Case]] = {
    **{f"selection-{p}": partial(selection_case, p) for p in (8, 10, 12)},
    **{f"selection-{p}": partial(selection_case, p, 0.5) for p in (20, 40)},
    **{f"restaurant-{n}": partial(restaurant_case, n) for n in (9, 50, 200)},
    **{f"tree-{seed}": partial(tree_case, seed) for seed in range(10)},
    **{f"kernel-{seed}": partial(kernel_case, seed) for seed in range(10)},
}


# Runs -----------------------------------------------------------------------------------------------------------------


def numpyro_seconds(case: Case, times: int = 5) -> float:
    """Seconds of one execution by NumPyro's handlers, the best of a few after the first."""
    import numpyro

    statements = {"sample": numpyro.sample, "deterministic": numpyro.deterministic}

    def plain(*data: Any) -> None:
        own = ab.sample, ab.observe, ab.deterministic
        ab.sample, ab.deterministic = statements["sample"], statements["deterministic"]
        ab.observe = lambda name, distribution, value: numpyro.sample(name, distribution, obs=value)
        try:
            case.program(*data)
        finally:
            ab.sample, ab.observe, ab.deterministic = own

    seconds = []
    for key in range(times + 1):
        started = time.perf_counter()
        handlers.trace(handlers.seed(plain, random.PRNGKey(key))).get_trace(*case.data)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])


def run(case: Case, seed: int, details: bool = False) -> str:
    started = time.perf_counter()
    posterior = ab.infer(case.program, *case.data, seed=seed, progress=False, **case.limits)
    seconds = time.perf_counter() - started
    errors, worst_z = [(np.nan, np.nan)] * (not case.means), 0.0
    for name, f, exact, exact_sd in case.means:
        mean, sd = posterior.expectation(f)
        errors.append((abs(mean - exact), sd))
        worst_z = max(worst_z, abs(mean - exact) / max(np.hypot(sd, exact_sd), 1e-9))
        if details:
            print(f"{case.name}, {name}: {mean:.4f} ± {sd:.4f}, in truth {exact:.4f} ± {exact_sd:.4f}")
    if case.structure is not None:
        shares = posterior.probability(case.structure[0])
        found, share = max(shares.items(), key=lambda item: item[1])
        print(f"{case.name}: {'right' if found == case.structure[1] else 'wrong'}, {found} with {share:.3f}; "
              f"the right one has {shares.get(case.structure[1], 0.0):.3f}")  # fmt: skip
    worst, claimed = max(errors)
    paths = posterior.paths
    visited = int((paths["visits"] > 0).sum())
    assert posterior.log_evidence is not None
    return (
        f"| {case.name} | {seed} | {posterior.log_evidence - case.log_evidence:+.4f} | {posterior.log_evidence_sd:.4f} "
        f"| {worst:.4f} | {claimed:.4f} | {worst_z:.1f} | {len(paths):,} | {visited:,} | {seconds:.0f} "
        f"| {seconds / visited / numpyro_seconds(case):.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="names with commas: selection-12,restaurant-9")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="another limit for all of them")
    parser.add_argument("--details", action="store_true", help="print each mean beside its exact value")
    parser.add_argument("--check", action="store_true", help="check the Gibbs sampler of partitions, and stop")
    arguments = parser.parse_args()
    if arguments.check:
        return check_gibbs()
    wanted = [name for name in arguments.only.split(",") if name] or list(CASES)
    print("| program | seed | error of log Z | claimed | largest error of a mean | claimed | largest z | paths "
          "| visited | seconds | seconds a path / one NumPyro execution |")  # fmt: skip
    print("|" + " --- |" * 11)
    for name in wanted:
        case = CASES[name]()
        if arguments.seconds:
            case = replace(case, limits={"seconds": arguments.seconds})
        for seed in range(arguments.seeds):
            print(run(case, seed, arguments.details), flush=True)


if __name__ == "__main__":
    main()
