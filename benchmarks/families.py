"""Path probabilities of two families of models against their exact values: change points, and mixtures.

    python benchmarks/families.py --budget 4000000 --seeds 3

Change points: counts with a rate on each side of 0 to 4 change points, whose places are uniform. Between two data the
likelihood is constant, so that the evidence is a sum over the gaps in which the change points lie.
Mixtures: 1 to 6 normal components with unknown means, scales and weights. With conjugate priors the evidence is a sum
over all ways to assign the data to the components.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import gammaln, logsumexp

import anabranch as ab

MAX_CHANGES, SHAPE, RATE = 4, 2.0, 0.5
MAX_COMPONENTS, CONCENTRATION, PRECISION, SCALE_SHAPE, SCALE_RATE = 6, 1.0, 0.1, 2.0, 1.0


# Change points --------------------------------------------------------------------------------------------------------


def changes(times: np.ndarray, counts: np.ndarray) -> None:
    """K ~ Uniform{0, ..., 4}; K uniform change points; a gamma rate on each side of them."""
    k = ab.sample("K", dist.DiscreteUniform(0, MAX_CHANGES))
    places = ab.sample("places", dist.Uniform(jnp.zeros(k), 1.0)) if k else jnp.zeros(0)
    rates = ab.sample("rates", dist.Gamma(SHAPE * jnp.ones(int(k) + 1), RATE))
    ab.observe("counts", dist.Poisson(rates[(times[:, None] > jnp.sort(places)).sum(axis=1)]), counts)


def changes_data(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    times = np.linspace(0.01, 0.99, 60)
    rates = np.where(times < 0.3, 2.0, np.where(times < 0.7, 6.0, 3.0))
    return times, np.random.default_rng(seed).poisson(rates)


def changes_exact(times: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """log evidence of each K, its prior probability included."""
    gaps = np.log(np.diff(np.concatenate([[0.0], times, [1.0]])))
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    factorials = np.concatenate([[0.0], np.cumsum(gammaln(counts + 1))])

    def segment(i: int, j: int) -> float:
        """log of the marginal likelihood of the data i to j − 1, with one rate."""
        shape, rate = SHAPE + sums[j] - sums[i], RATE + j - i
        prior = SHAPE * np.log(RATE) - gammaln(SHAPE)
        return float(prior + gammaln(shape) - shape * np.log(rate) - factorials[j] + factorials[i])

    # By the number of change points so far and where the segment under way has begun.
    states: dict[tuple[int, int], float] = {(0, 0): 0.0}
    for j, gap in enumerate(gaps):
        following: dict[tuple[int, int], float] = {}
        for (used, begun), log in states.items():
            for more in range(MAX_CHANGES - used + 1):
                inside = segment(begun, j) + (more - 1) * segment(j, j) if more else 0.0
                key = used + more, j if more else begun
                term = log + more * gap - gammaln(more + 1) + inside
                following[key] = np.logaddexp(following.get(key, -np.inf), term)
        states = following
    n = len(counts)
    ends = [(used, log + segment(begun, n)) for (used, begun), log in states.items()]
    of_each = [logsumexp([log for used, log in ends if used == k]) + gammaln(k + 1) for k in range(MAX_CHANGES + 1)]
    return np.array(of_each) - np.log(MAX_CHANGES + 1)


# Mixtures -------------------------------------------------------------------------------------------------------------


def mixture(y: np.ndarray) -> None:
    """K ~ Uniform{1, ..., 6}; Dirichlet weights; gamma precisions; normal means given the precisions."""
    k = int(ab.sample("K", dist.DiscreteUniform(1, MAX_COMPONENTS)))
    weights = ab.sample("weights", dist.Dirichlet(CONCENTRATION * jnp.ones(k)))
    precision = ab.sample("precision", dist.Gamma(SCALE_SHAPE * jnp.ones(k), SCALE_RATE))
    mean = ab.sample("mean", dist.Normal(jnp.zeros(k), 1 / jnp.sqrt(PRECISION * precision)))
    parts = dist.Normal(mean, 1 / jnp.sqrt(precision))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(weights), parts), y)


def mixture_data(seed: int = 0) -> tuple[np.ndarray]:
    rng = np.random.default_rng(seed)
    return (np.concatenate([rng.normal(-2.5, 0.4, 3), rng.normal(0.5, 0.3, 3), rng.normal(3.0, 0.5, 2)]),)


def mixture_exact(y: np.ndarray) -> np.ndarray:
    """log evidence of each K, its prior probability included, by the numbers of data in each component."""

    @cache
    def block(members: tuple[int, ...]) -> float:
        """log of the marginal likelihood of some data, normal with an unknown mean and precision."""
        x, n = y[list(members)], len(members)
        if not n:
            return 0.0
        precision, shape = PRECISION + n, SCALE_SHAPE + n / 2
        spread = ((x - x.mean()) ** 2).sum() + PRECISION * n * x.mean() ** 2 / precision
        rate = SCALE_RATE + spread / 2
        of_prior = SCALE_SHAPE * np.log(SCALE_RATE) - gammaln(SCALE_SHAPE) + 0.5 * np.log(PRECISION / precision)
        return float(of_prior + gammaln(shape) - shape * np.log(rate) - n / 2 * np.log(2 * np.pi))

    out = []
    for k in range(1, MAX_COMPONENTS + 1):
        constant = gammaln(k * CONCENTRATION) - gammaln(k * CONCENTRATION + len(y)) - k * gammaln(CONCENTRATION)
        logs = []
        for blocks in _partitions(len(y), k):
            sizes = [len(each) for each in blocks] + [0] * (k - len(blocks))
            labels = gammaln(k + 1) - gammaln(k - len(blocks) + 1)
            logs.append(labels + sum(map(block, blocks)) + gammaln(np.array(sizes) + CONCENTRATION).sum())
        out.append(constant + logsumexp(logs) - np.log(MAX_COMPONENTS))
    return np.array(out)


@cache
def _partitions(n: int, max_blocks: int) -> list[tuple[tuple[int, ...], ...]]:
    """The ways to put n data into at most so many blocks."""
    if n == 0:
        return [()]
    out = []
    for smaller in _partitions(n - 1, max_blocks):
        for i in range(len(smaller)):
            out.append((*smaller[:i], (*smaller[i], n - 1), *smaller[i + 1 :]))
        if len(smaller) < max_blocks:
            out.append((*smaller, (n - 1,)))
    return out


# ----------------------------------------------------------------------------------------------------------------------

FAMILIES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], Callable[..., np.ndarray], Sequence[int]]] = {
    "changes": (changes, changes_data(), changes_exact, range(MAX_CHANGES + 1)),
    "mixture": (mixture, mixture_data(), mixture_exact, range(1, MAX_COMPONENTS + 1)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--budget", type=int, default=4_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=FAMILIES)
    parser.add_argument("--whole", action="store_true", help="spend the whole budget, whatever the errors")
    options = parser.parse_args()
    print("| family | seed | total variation | error of log Z | its standard error | evaluations | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    names = [options.only] if options.only else list(FAMILIES)
    for name, seed in product(names, range(options.seeds)):
        program, data, exact, values = FAMILIES[name]
        logs = exact(*data)
        truth = np.exp(logs - logsumexp(logs))
        started = time.perf_counter()
        tolerance = None if options.whole else 0.005
        posterior = ab.infer(program, *data, seed=seed, budget=options.budget, tolerance=tolerance, progress=False)
        seconds = time.perf_counter() - started
        found = posterior.probability("K")
        distance = 0.5 * sum(abs(found.get(k, 0.0) - p) for k, p in zip(values, truth, strict=True))
        error = posterior.log_evidence - logsumexp(logs)
        spent = f"{posterior.log_evidence_sd:.4f} | {posterior.run.evaluations:,} | {seconds:.0f}"
        print(f"| {name} | {seed} | {distance:.4f} | {error:+.4f} | {spent} |", flush=True)


if __name__ == "__main__":
    main()
