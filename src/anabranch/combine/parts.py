"""What a question about the posterior is computed from: a function of a draw, at some draws of each path."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.constant_draw import Varies, at_path
from anabranch.combine.draws import Draw, drawn_at
from anabranch.combine.names import listed_names
from anabranch.combine.solution import Solution
from anabranch.conquer.estimate import heavy_tailed
from anabranch.conquer.weights import systematic
from anabranch.label import is_label

__all__ = [
    "MIN_DRAWS",
    "Function",
    "Part",
    "all_draws",
    "called",
    "effective_draws",
    "mean_where_largest",
    "numbers",
    "parts_of",
    "sampled",
]

Function = Callable[[Draw], Any]

MIN_DRAWS = 10
"""Draws at which f is called on a path, at least; and effective draws that show how f varies."""


@dataclass(frozen=True)
class Part:
    """The term of one path: w_k, the draws at which f was called, their weights v_ki, c_k, h_ki, and f_ki or zero."""

    place: int
    solution: Solution
    weight: float
    index: np.ndarray
    weights: np.ndarray
    inflation: float
    present: np.ndarray
    values: np.ndarray


def parts_of(solutions: Sequence[Solution], weights: np.ndarray, f: Function, max_draws: int) -> list[Part]:
    """f at draws of each path that has a weight.

    f is called at most `max_draws` times for a path, and fewer for light paths, whose error counts less. A draw is left
    out where f is None, or where the draw lacks a name that f reads.
    """
    lacked: dict[str, None] = {}
    at_draws = [
        (k, sample, called(f, solutions[k], solutions[k].points[sample[0]], lacked, numbers))
        for k, sample in sampled(solutions, weights, max_draws)
    ]
    present = [value for *_, values in at_draws for value in values if value is not None]
    if not present:
        lacks = f"no draw has the names that the function reads: it lacks {' or '.join(map(repr, lacked))}"
        raise errors.UnknownName(
            lacks if lacked else "the function is None at every draw", remedy=f"There are: {listed_names(solutions)}"
        )
    shape, *others = {value.shape: None for value in present}
    if others:
        raise errors.BadSetting(
            f"what is asked for must have one shape at all draws; it has {shape} at some and {others[0]} at others",
            remedy='Ask for one number, as in "b[0]" or lambda draw: draw["b"][0], which leaves out draws without it; '
            "posterior.summary() has all of them",
        )
    parts = []
    for k, sample, values in at_draws:
        filled = np.stack([np.zeros(shape) if value is None else value for value in values])
        has = np.array([value is not None for value in values])
        parts.append(Part(k, solutions[k], weights[k], *sample, has, filled))
    return parts


def sampled(
    solutions: Sequence[Solution], weights: np.ndarray, max_draws: int
) -> Iterator[tuple[int, tuple[np.ndarray, np.ndarray, float]]]:
    """For each path with a weight its number, and indices of draws with their weights and c_k.

    Resampling has a fixed seed: a posterior gives one answer to one question.
    """
    heaviest, rng = max(weights, default=0.0), np.random.default_rng(0)
    for k, (solution, weight) in enumerate(zip(solutions, weights, strict=True)):
        if weight > 0 and len(solution.points):
            yield k, _sample(solution, max(math.ceil(max_draws * math.sqrt(weight / heaviest)), MIN_DRAWS), rng)


def all_draws(solution: Solution) -> tuple[np.ndarray, np.ndarray, float]:
    """Indices and weights of all draws of a path, and c_k."""
    weights = solution.weights
    return np.arange(len(weights)), weights, 1 / (weights**2).sum() / effective_draws(solution)


def _sample(solution: Solution, limit: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Indices and weights of the draws of a path, resampled if they are more than the limit, and c_k."""
    weights, ess = solution.weights, effective_draws(solution)
    if len(weights) <= limit:
        return all_draws(solution)
    chosen = systematic(weights, limit, rng)
    # The variance of resampling adds to that of the draws.
    return chosen, np.full(limit, 1 / limit), 1 + limit / ess


def effective_draws(solution: Solution) -> float:
    """The effective number of draws of a path, fewer where their weights have a heavy tail; infinite if it is exact."""
    estimate = solution.estimate
    assert estimate is not None
    own = 1 / (solution.weights**2).sum()
    ess = np.inf if solution.is_exact else estimate.ess if estimate.ess > 0 else own
    return float(ess / heavy_tailed(1.0, estimate.pareto_k, ess) ** 2)


def mean_where_largest(squares: np.ndarray, parts: Sequence[Part]) -> Any:
    """The mean over paths, in that tenth of them, in the order of their first visits, in which it is the largest.

    A climb visits thousands of paths that are alike; the paths that chance has found before it differ more.
    """
    order = np.argsort([part.solution.first_visit for part in parts], kind="stable")
    groups = np.array_split(np.asarray(squares)[order], min(max(len(parts) // 10, 1), 10))
    return np.max([group.mean(axis=0) for group in groups], axis=0)


def numbers(value: Any) -> np.ndarray:
    """What a function of a draw has returned, as an array; raises `NotANumber` for a label."""
    if is_label(value):
        raise errors.NotANumber(
            f"the label {value!r} is no number, and has no mean and no quantiles",
            remedy="Use posterior.probability for the probability of each text, or compare it: draw[name] == text",
        )
    return np.asarray(value, np.float64)


def called(
    f: Function, solution: Solution, points: np.ndarray, lacked: dict[str, None], convert: Callable[[Any], Any]
) -> list[Any]:
    """f at each point, converted; None where it is, or where the draw lacks a name that f reads: then in `lacked`."""
    try:
        value = at_path(f, solution.path)
        return [None if value is None else convert(value)] * len(points)
    except (Varies, Exception):  # what goes wrong is told below
        out: list[Any] = [None] * len(points)
    for i, draw in drawn_at(solution.path, points):
        try:
            value = f(draw)
            out[i] = None if value is None else convert(value)
        except errors.UnknownName as error:
            if error.name is None:  # raised by something other than a draw
                raise
            lacked[error.name] = None
        except Exception as error:
            error.add_note(f"anabranch: raised by the function on the path: {solution.path.description}")
            raise
    return out
