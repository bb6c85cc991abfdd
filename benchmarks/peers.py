"""Other samplers on the densities of `densities.py`: dynesty, nautilus and pocoMC, with `pip install -e '.[peers]'`.

What they are given:

- dynesty and nautilus sample a unit cube. Where NumPyro has the quantile function of every site of the only path, the
  program is run with quantiles as the values of its sites, and its likelihood is theirs. Elsewhere the cube is mapped
  to the unconstrained coordinates of the path by a Student-t distribution as wide as the prior, and the likelihood is
  the density over that of the Student-t.
- pocoMC has the prior and the likelihood of the path in its unconstrained coordinates.

A program with several paths is solved path by path, with equal shares of the evaluations, and the evidences are added.
None of them has discrete variables, which are left to them unsolved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from densities import Density
from jax.scipy.special import ndtri
from numpyro import handlers
from numpyro.primitives import Messenger
from scipy.special import logsumexp, stdtrit
from scipy.stats import t as student

import anabranch as ab

EDGE = 1e-15
"""Points of the cube are kept so far from its faces, where quantiles are infinite."""
DEGREES = 3.0
"""Degrees of freedom of the reference, whose tails are heavier than those of the posteriors."""
BLOCK = 256
"""Points of one call of the compiled likelihood, unless there is one point alone."""

SMALLEST = 0.25
"""The least share of pocoMC's default populations that it is run with."""

LogLikelihood = Callable[[np.ndarray], np.ndarray]


@dataclass
class Cube:
    """A likelihood over the unit cube, which counts the points at which it was computed."""

    dim: int
    function: LogLikelihood
    sees: str
    evaluations: int = 0

    def log_likelihood(self, u: np.ndarray) -> np.ndarray:
        """At each row of u; minus infinity where the program has no density."""
        self.evaluations += len(u)
        out = self.function(np.clip(u, EDGE, 1 - EDGE))
        return np.where(np.isnan(out), -np.inf, out)


# The program over the cube of its quantiles ---------------------------------------------------------------------------


class Quantiles(Messenger):
    """Gives every site its quantile at the next coordinates of a point of the cube."""

    def __init__(self, program: Callable[..., Any], u: jax.Array) -> None:
        super().__init__(program)
        self.u, self.used = u, 0

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and not msg["is_observed"]:
            size = cube_size(msg["fn"])
            msg["value"] = quantile(msg["fn"], self.u[self.used : self.used + size])
            self.used += size


def cube_size(law: dist.Distribution) -> int:
    """How many coordinates of the cube a distribution takes."""
    if isinstance(law, dist.Dirichlet):
        return law.event_shape[0] - 1
    return int(np.prod(law.shape()))


def quantile(law: dist.Distribution, u: jax.Array) -> jax.Array:
    """A value of the distribution from uniform numbers; raises NotImplementedError if it has no quantile function."""
    if isinstance(law, dist.MultivariateNormal):
        return law.loc + law.scale_tril @ ndtri(u)
    if isinstance(law, dist.Dirichlet):
        return broken_stick(law.concentration, u)
    if isinstance(law, dist.ExpandedDistribution | dist.Independent):
        return quantile(law.base_dist, u).reshape(law.shape())
    if isinstance(law, dist.TransformedDistribution):
        value = quantile(law.base_dist, u)
        for transform in law.transforms:
            value = transform(value)
        return value
    if law.support.is_discrete or law.event_shape:
        raise NotImplementedError(f"{type(law).__name__} has no quantile function")
    return law.icdf(u.reshape(law.batch_shape) if law.batch_shape else u if len(u) > 1 else u[0])


def broken_stick(concentration: jax.Array, u: jax.Array) -> jax.Array:
    """A Dirichlet variable, each part a beta share of what is left."""
    rest = jnp.cumsum(concentration[::-1])[::-1][1:]
    shares = dist.Beta(concentration[:-1], rest).icdf(u)
    left = jnp.concatenate([jnp.ones(1), jnp.cumprod(1 - shares)])
    return jnp.concatenate([shares, jnp.ones(1)]) * left


def cube_of_quantiles(density: Density) -> Cube:
    """The program over the cube; raises NotImplementedError where a site has no quantile function."""

    def at(u: jax.Array) -> jax.Array:
        sites = handlers.trace(Quantiles(density.program, u)).get_trace(*density.args)
        observed = [site for site in sites.values() if site["type"] == "sample" and site["is_observed"]]
        return sum((jnp.sum(site["fn"].log_prob(site["value"])) for site in observed), jnp.zeros(()))

    traced = Quantiles(density.program, jnp.full(density.dim + 1, 0.5))
    handlers.trace(traced).get_trace(*density.args)
    compiled = jax.jit(jax.vmap(at))

    def function(u: np.ndarray) -> np.ndarray:
        if len(u) == 1:
            return np.asarray(compiled(u))
        padded = np.concatenate([u, np.full((-len(u) % BLOCK, u.shape[1]), 0.5)])
        return np.concatenate([np.asarray(compiled(part)) for part in padded.reshape(-1, BLOCK, u.shape[1])])[: len(u)]

    return Cube(traced.used, function, "the cube of its quantiles")


def cube_of_reference(path: ab.Path) -> Cube:
    """The density of a path over a Student-t distribution in each coordinate, as wide as the prior."""
    draws = path.prior(10_000, seed=0).points
    low, centre, high = np.quantile(draws, [0.1, 0.5, 0.9], axis=0)
    scale = (high - low) / 2

    def function(u: np.ndarray) -> np.ndarray:
        points = centre + scale * stdtrit(DEGREES, u)
        return path.evaluate(points).log_density - student.logpdf(points, DEGREES, centre, scale).sum(axis=1)

    return Cube(path.dim, function, "unconstrained coordinates over a Student-t distribution as wide as the prior")


def cubes(density: Density, paths: list[ab.Path]) -> list[Cube]:
    if len(paths) == 1:
        try:
            return [cube_of_quantiles(density)]
        except (NotImplementedError, ImportError):
            pass
    return [cube_of_reference(path) for path in paths]


# The samplers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """Of one path: log Z, its claimed error, evaluations, and what the sampler saw."""

    log_evidence: float
    sd: float
    evaluations: int
    sees: str


def by_dynesty(cube: Cube, seed: int, budget: int | None) -> Answer:
    """Static nested sampling; with a budget, dynamic, in batches for the evidence until the budget is spent."""
    import dynesty

    def log_likelihood(u: np.ndarray) -> float:
        return max(float(cube.log_likelihood(u[None])[0]), -1e300)  # it takes no infinity

    kind = dynesty.NestedSampler if budget is None else dynesty.DynamicNestedSampler
    limits = {} if budget is None else {"maxcall": budget, "use_stop": False, "wt_kwargs": {"pfrac": 0.0}}
    sampler = kind(log_likelihood, lambda u: u, cube.dim, rstate=np.random.default_rng(seed))
    sampler.run_nested(print_progress=False, **limits)
    results = sampler.results
    return Answer(results.logz[-1], results.logzerr[-1], cube.evaluations, cube.sees)


def by_nautilus(cube: Cube, seed: int, budget: int | None) -> Answer:
    """Its own claim is an error of one over the root of its effective sample size."""
    import nautilus

    sampler = nautilus.Sampler(lambda u: u, cube.log_likelihood, n_dim=cube.dim, vectorized=True, seed=seed)
    limits = {} if budget is None else {"n_like_max": budget, "n_eff": np.inf}
    sampler.run(**limits)
    sd = 1 / np.sqrt(sampler.n_eff) if sampler.n_eff > 0 else np.inf
    return Answer(sampler.log_z, sd, cube.evaluations, cube.sees)


class PathPrior:
    """The prior within a path, in unconstrained coordinates, as pocoMC asks for it."""

    def __init__(self, path: ab.Path, seed: int) -> None:
        self.path, self.seed, self.dim = path, seed, path.dim
        self.bounds = np.tile([-np.inf, np.inf], (path.dim, 1))
        self.evaluations = 0

    def logpdf(self, x: np.ndarray) -> np.ndarray:
        evaluation = self.path.evaluate(x)
        return np.where(evaluation.inside, evaluation.log_prior, -np.inf) - self.path.log_prior_probability

    def rvs(self, size: int = 1) -> np.ndarray:
        self.seed += 1
        return self.path.prior(size, seed=self.seed).points

    def log_likelihood(self, x: np.ndarray) -> np.ndarray:
        self.evaluations += len(x)
        evaluation = self.path.evaluate(x)
        return np.where(evaluation.inside, evaluation.log_likelihood, -np.inf) + self.path.log_prior_probability


def by_pocomc(path: ab.Path, seed: int, budget: int | None) -> Answer:
    """It has no limit of evaluations: with a budget, its populations are those of a small first run, scaled."""
    if budget is None:
        return run_pocomc(path, seed, 1.0)
    answer = run_pocomc(path, seed, SMALLEST)
    scale = SMALLEST * budget / answer.evaluations
    return run_pocomc(path, seed, scale) if scale > SMALLEST else answer


def run_pocomc(path: ab.Path, seed: int, scale: float) -> Answer:
    """With its default populations times the scale."""
    import pocomc

    prior = PathPrior(path, seed)
    sampler = pocomc.Sampler(
        prior,
        prior.log_likelihood,
        vectorize=True,
        random_state=seed,
        n_effective=int(512 * scale),
        n_active=int(256 * scale),
    )
    sampler.run(n_total=int(4096 * scale), progress=False)
    log_evidence, sd = sampler.evidence()
    return Answer(log_evidence, sd, prior.evaluations, "unconstrained coordinates with the prior of the path")


# One program ----------------------------------------------------------------------------------------------------------


def answer(density: Density, sampler: str, seed: int, budget: int | None) -> dict[str, Any]:
    """log Z of a program by a sampler at its defaults, or with so many evaluations."""
    with jax.enable_x64(True):
        return _answer(density, sampler, seed, budget)


def _answer(density: Density, sampler: str, seed: int, budget: int | None) -> dict[str, Any]:
    paths = ab.find_paths(density.program, *density.args).paths
    if any(path.discrete.any() for path in paths):
        return {"failed": "it has no discrete variables"}
    if len(paths) != density.paths:
        raise ValueError(f"{len(paths)} of {density.paths} paths were found")
    share = None if budget is None else budget // len(paths)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("always", RuntimeWarning)
        answers = list(solve(density, paths, sampler, seed, share))
    log_evidences = np.array([each.log_evidence for each in answers])
    weights = np.exp(log_evidences - logsumexp(log_evidences))
    return {
        "log_evidence": float(logsumexp(log_evidences)),
        "sd": float(np.sqrt(np.sum((weights * [each.sd for each in answers]) ** 2))),
        "evaluations": sum(each.evaluations for each in answers),
        "warnings": sorted({str(each.message) for each in caught}),
        "peer_sees": answers[0].sees,
    }


def solve(density: Density, paths: list[ab.Path], sampler: str, seed: int, budget: int | None) -> list[Answer]:
    if sampler == "pocomc":
        return [by_pocomc(path, seed, budget) for path in paths]
    return [
        {"dynesty": by_dynesty, "nautilus": by_nautilus}[sampler](each, seed, budget) for each in cubes(density, paths)
    ]
