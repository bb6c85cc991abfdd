"""Enumeration: the exact evidence and posterior of a path whose coordinates have finitely many values.

    Z_k = Σ_x γ_k(x),   π_k(x) = γ_k(x) / Z_k

(paper, section 4.2). A path without coordinates takes one evaluation. The values are numbered by the digits of a mixed
radix, so that a later visit continues the sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch import errors
from anabranch.conquer.elimination.target import Eliminated
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import MAX_BATCH, Target
from anabranch.conquer.weights import systematic
from anabranch.divide import finite_values
from anabranch.limits import LimitReached
from anabranch.settings import check, whole

__all__ = ["Enumerate", "EnumerateState"]

_MIN_DRAWS = 1_000
"""Draws of a path from which coordinates were summed out: each row stands for many values of those."""


@dataclass(frozen=True)
class Enumerate:
    """Evaluate every value of a path whose coordinates are all discrete with finite support.

    Args:
        max_values: values up to which a path is enumerated; more take more time.
        max_numbers: numbers in the points that are kept, and in those evaluated at once; the default takes 256 MiB.

    Example:
        >>> import anabranch as ab, jax.numpy as jnp, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def sprinkler():
        ...     rain = ab.sample("rain", dist.Bernoulli(0.2))
        ...     on = ab.sample("on", dist.Bernoulli(jnp.where(rain, 0.01, 0.4)))
        ...     ab.observe("wet", dist.Bernoulli(jnp.where(rain | on, 0.9, 0.0)), 1)
        >>> estimate = solve(Enumerate(), PathTarget(ab.find_paths(sprinkler).paths[0]), 100)
        >>> round(float(np.exp(estimate.log_evidence)), 6), estimate.log_evidence_sd
        (0.468, 0.0)
    """

    max_values: int = 1_000_000
    max_numbers: int = 2**25

    def __post_init__(self) -> None:
        check(self, max_values=whole(1), max_numbers=whole(1))

    def start(self, target: Target, rng: Generator) -> EnumerateState:
        count = math.prod(len(values) for values in _values(target))
        if count > self.max_values:
            raise errors.StrategyCannotRun(
                f"the path ({target.path.description}) has {count:,} values, more than max_values={self.max_values:,}",
                remedy="Use SMC, or a larger Enumerate(max_values=...)",
            )
        return EnumerateState(0, -np.inf, np.zeros((0, target.dim), _kind(_values(target))), np.zeros(0))

    def advance(self, target: Target, state: EnumerateState, rng: Generator, evaluations: int) -> EnumerateState:
        values = _values(target)
        end = min(state.done + max(evaluations, 1), math.prod(map(len, values)))
        if state.done == end:
            return state
        at_once = max(1, min(MAX_BATCH, self.max_numbers // (target.dim + 1)))
        max_kept = max(self.max_numbers // (target.dim + 1), _MIN_DRAWS)
        points, densities, log_total, done = [state.points], [state.log_densities], state.log_total, state.done
        for start in range(state.done, end, at_once):
            numbered = _numbered(values, start, min(start + at_once, end))
            try:
                found = target.evaluate(numbered).log_density
            except LimitReached:
                break
            done = start + len(numbered)
            log_total = float(np.logaddexp.reduce(found, initial=log_total))
            points.append(numbered[found > -np.inf].astype(_kind(values)))
            densities.append(found[found > -np.inf])
            if sum(map(len, points)) > max_kept:
                points, densities = _thinned(points, densities, max_kept // 2, log_total, rng)
        return EnumerateState(done, log_total, np.concatenate(points), np.concatenate(densities))

    def estimate(self, target: Target, state: EnumerateState) -> Estimate:
        count = math.prod(map(len, _values(target)))
        sd, remarks = 0.0, []
        if state.done < count:
            sd, remarks = np.inf, [f"Only {state.done:,} of the {count:,} values of the path have been summed."]
        if state.log_total == -np.inf:
            remarks = remarks or ["All values of the path have zero density."]
            return replace(Estimate.nothing(target.dim, target.evaluations, "Enumerate", remarks), log_evidence_sd=sd)
        points, log_weights = state.points.astype(float), state.log_densities
        if target.is_marginal and sd == 0:
            copies = -(-_MIN_DRAWS // len(points))
            points, log_weights = np.repeat(points, copies, axis=0), np.repeat(log_weights, copies)
        logs = (log_weights, state.log_total, sd)
        method = "Elimination" if isinstance(target, Eliminated) else "Conjugate" if target.is_marginal else "Enumerate"
        return Estimate.from_draws(points, *logs, target.evaluations, method, remarks=remarks)


@dataclass(frozen=True)
class EnumerateState:
    """The number of values evaluated, the log of their sum, and those kept with their log densities.

    Where there are too many to keep, some are drawn by their densities, and then have equal ones.
    """

    done: int
    log_total: float
    points: np.ndarray
    log_densities: np.ndarray


def _values(target: Target) -> tuple[range, ...]:
    """The values of every coordinate."""
    if target.dim == 0:
        return ()
    values = (None,) * target.path.dim if isinstance(target, Eliminated) else finite_values(target.path)
    found = [values[column] for column in target.columns]
    finite = tuple(values for values in found if values is not None)
    if len(finite) < len(found):
        raise errors.StrategyCannotRun(
            f"the path ({target.path.description}) has a coordinate without finitely many known values",
            remedy="Use SMC, which runs on every path",
        )
    return finite


def _kind(values: tuple[range, ...]) -> type:
    """The smallest type that holds the values."""
    largest = max((abs(end) for each in values for end in (each[0], each[-1])), default=0)
    return next((kind for kind in (np.int8, np.int16, np.int32) if largest <= np.iinfo(kind).max), np.float64)


def _thinned(
    points: list[np.ndarray], log_densities: list[np.ndarray], n: int, log_total: float, rng: Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """n points drawn by their densities, which then are equal."""
    weights = np.exp(np.concatenate(log_densities) - log_total)
    chosen = np.concatenate(points)[systematic(weights, n, rng)]
    return [chosen], [np.full(len(chosen), log_total - np.log(len(chosen)))]


def _numbered(values: tuple[range, ...], start: int, stop: int) -> np.ndarray:
    """The points with these numbers, the last coordinate changing fastest."""
    if not values:
        return np.zeros((stop - start, 0))
    digits = np.unravel_index(np.arange(start, stop), tuple(map(len, values)))
    return np.stack([each.start + digit for each, digit in zip(values, digits, strict=True)], axis=1).astype(float)
