"""Enumeration: the exact evidence and posterior of a path whose coordinates have finitely many values.

    Z_k = Σ_x γ_k(x),   π_k(x) = γ_k(x) / Z_k

(paper, section 4.2: any estimator of Z_k may serve as the local one; this is the one without an error). A path without
coordinates is the smallest case: one evaluation. The values are numbered as the digits of a number with mixed bases,
so a sum that takes several calls goes on where it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from anabranch import errors
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target
from anabranch.conquer.weights import systematic
from anabranch.divide import finite_values
from anabranch.limits import LimitReached
from anabranch.settings import check, whole

__all__ = ["Enumerate", "EnumerateState"]

_AT_ONCE = 20_000
_COPIES = 1_000
_MOST_NUMBERS = 2**25
"""Numbers in the points that are kept, and in those evaluated at once, at most: 256 MiB."""


@dataclass(frozen=True)
class Enumerate:
    """Evaluate every value of a path whose coordinates are all discrete with finite support.

    Args:
        most: the number of values up to which a path is enumerated.

    Example:
        >>> import anabranch as ab, jax.numpy as jnp, numpyro.distributions as dist
        >>> from anabranch.conquer.target import PathTarget
        >>> def sprinkler():
        ...     rain = ab.sample("rain", dist.Bernoulli(0.2))
        ...     on = ab.sample("on", dist.Bernoulli(jnp.where(rain, 0.01, 0.4)))
        ...     ab.observe("wet", dist.Bernoulli(jnp.where(rain | on, 0.9, 0.0)), 1)
        >>> target = PathTarget(ab.find_paths(sprinkler).paths[0])
        >>> method, rng = Enumerate(), np.random.default_rng(0)
        >>> state = method.advance(target, method.start(target, rng), rng, evaluations=100)
        >>> estimate = method.estimate(target, state)
        >>> round(float(np.exp(estimate.log_evidence)), 6), estimate.log_evidence_sd
        (0.468, 0.0)
    """

    most: int = 1_000_000

    def __post_init__(self) -> None:
        check(self, most=whole(1))

    def start(self, target: Target, rng: np.random.Generator) -> EnumerateState:
        count = math.prod(len(values) for values in _values(target))
        if count > self.most:
            raise errors.StrategyCannotRun(
                f"the path ({target.path.description}) has {count:,} values, more than the {self.most:,} of Enumerate",
                remedy="Use SMC, or a larger Enumerate(most=...)",
            )
        return EnumerateState(0, -np.inf, np.zeros((0, target.dim), _kind(_values(target))), np.zeros(0))

    def advance(
        self, target: Target, state: EnumerateState, rng: np.random.Generator, evaluations: int
    ) -> EnumerateState:
        values = _values(target)
        end = min(state.done + max(evaluations, 1), math.prod(map(len, values)))
        if state.done == end:
            return state
        at_once = max(1, min(_AT_ONCE, _MOST_NUMBERS // (target.dim + 1)))
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
            if sum(map(len, points)) > _most_kept(target):
                points, densities = _thinned(points, densities, _most_kept(target), log_total, rng)
        return EnumerateState(done, log_total, np.concatenate(points), np.concatenate(densities))

    def estimate(self, target: Target, state: EnumerateState) -> Estimate:
        count = math.prod(map(len, _values(target)))
        if state.done < count:
            return self._partial(target, state, count)
        if state.log_total == -np.inf:
            nothing = Estimate.nothing(target.dim, target.evaluations, "Enumerate", ["No value has any mass."])
            return replace(nothing, log_evidence_sd=0.0)
        points, log_weights = state.points.astype(float), state.log_densities
        if target.dim < target.path.dim:
            # A row stands for all the values that were summed out behind it: one draw of them would say little.
            copies = -(-_COPIES // len(points))
            points, log_weights = np.repeat(points, copies, axis=0), np.repeat(log_weights, copies)
        return Estimate.from_draws(points, log_weights, state.log_total, 0.0, target.evaluations, "Enumerate")

    def _partial(self, target: Target, state: EnumerateState, count: int) -> Estimate:
        remark = f"Only {state.done:,} of the {count:,} values of the path have been summed."
        if state.log_total == -np.inf:
            return Estimate.nothing(target.dim, target.evaluations, "Enumerate", [remark])
        return Estimate.from_draws(
            state.points.astype(float), state.log_densities, state.log_total, np.inf, target.evaluations, "Enumerate",
            remarks=[remark],
        )  # fmt: skip


@dataclass(frozen=True)
class EnumerateState:
    """How many values have been evaluated, the log of their sum, and those kept with their log densities.

    Where there are more of them than may be kept, it is some, drawn by their densities, which then all have the same.
    """

    done: int
    log_total: float
    points: np.ndarray
    log_densities: np.ndarray


def _values(target: Target) -> tuple[range, ...]:
    """The values of every coordinate."""
    if target.dim == 0:
        return ()
    found = finite_values(target.path) if target.dim == target.path.dim else (None,)
    finite = tuple(values for values in found if values is not None)
    if len(finite) < len(found):
        raise errors.StrategyCannotRun(
            f"the path ({target.path.description}) has a coordinate without finitely many known values",
            remedy="Use SMC, which runs on every path",
        )
    return finite


def _kind(values: tuple[range, ...]) -> type:
    """The smallest kind of number that holds the values."""
    largest = max((abs(end) for each in values for end in (each[0], each[-1])), default=0)
    return next((kind for kind in (np.int8, np.int16, np.int32) if largest <= np.iinfo(kind).max), np.float64)


def _most_kept(target: Target) -> int:
    return max(_MOST_NUMBERS // (target.dim + 1), _COPIES)


def _thinned(
    points: list[np.ndarray], log_densities: list[np.ndarray], n: int, log_total: float, rng: np.random.Generator
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Half as many points as may be kept, drawn by their densities, which then all have the same."""
    weights = np.exp(np.concatenate(log_densities) - log_total)
    chosen = np.concatenate(points)[systematic(weights, n // 2, rng)]
    return [chosen], [np.full(len(chosen), log_total - np.log(len(chosen)))]


def _numbered(values: tuple[range, ...], start: int, stop: int) -> np.ndarray:
    """The points with these numbers, the last coordinate changing fastest."""
    if not values:
        return np.zeros((stop - start, 0))
    digits = np.unravel_index(np.arange(start, stop), tuple(map(len, values)))
    return np.stack([each.start + digit for each, digit in zip(values, digits, strict=True)], axis=1).astype(float)
