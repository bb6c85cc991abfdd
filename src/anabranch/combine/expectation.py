"""Expectations under the posterior, with their Monte Carlo error.

With path weights w_k, draws with weights v_ki that sum to one in each path, and h_ki one for a draw that has what the
function asks for and else zero,

    μ = Σ_k w_k Σ_i v_ki h_ki f_ki / H,    H = Σ_k w_k Σ_i v_ki h_ki.

To first order the error of μ is that of Σ_k w_k Σ_i v_ki g_ki with g = h (f − μ)/H, whose parts are the error within
each path, of weights and draws, and that of the evidence of the path, s_k relative to it:

    sd² = Σ_k w_k² (c_k Σ_i v_ki² (g_ki − ḡ_k)² + ḡ_k² s_k²),    ḡ_k = Σ_i v_ki g_ki.

c_k = (1/Σ_i v_ki²)/ess_k is one for independent draws, and larger for chains. The two errors of one path are taken to
be independent of one another.

That is for paths estimated each by itself. Of a method that samples the whole program, the draws come in independent
blocks (`blocks.py`), and the error from the sums of w_k v_ki g_ki over each of them. A path with more draws than f may
be called at is resampled, to weights u_ki. That makes no difference to its own weight, which stays known from all of
its draws, and so the sum over a block is

    S_b = Σ_k w_k (T_kb ḡ_k + Σ_{i in b} u_ki (g_ki − ḡ_k)),    T_kb = Σ_{i in b} v_ki.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.blocks import Blocks, blocks_of, standard_error
from anabranch.combine.draws import Draw, drawn_at
from anabranch.combine.probability import all_names
from anabranch.combine.solution import Solution
from anabranch.conquer.weights import systematic

__all__ = ["expectation"]

_FEWEST = 10
_MOST_NAMES = 20


@dataclass(frozen=True)
class _Sample:
    """Draws of one path: their numbers, weights that sum to one, and c_k."""

    index: np.ndarray
    weights: np.ndarray
    inflation: float


@dataclass(frozen=True)
class _Part:
    """What one path adds: its place among all, w_k, the draws that f was called at, h_ki, and f_ki (zero if absent)."""

    place: int
    solution: Solution
    weight: float
    sample: _Sample
    present: np.ndarray
    values: np.ndarray


def expectation(
    solutions: Sequence[Solution], weights: np.ndarray, f: Callable[[Draw], Any], most: int
) -> tuple[Any, Any]:
    """The mean of f over the draws that have what it asks for, and its Monte Carlo error.

    f is called at most `most` times for a path: fewer for light paths, whose error counts less. The choice of draws is
    always the same one, so that a posterior gives one answer to one question.
    """
    heaviest = max(weights, default=0.0)
    rng = np.random.default_rng(0)
    called = []
    lacked: dict[str, None] = {}
    for k, (solution, weight) in enumerate(zip(solutions, weights, strict=True)):
        if weight > 0 and len(solution.points):
            limit = max(math.ceil(most * math.sqrt(weight / heaviest)), _FEWEST)
            sample = _sample(solution, limit, rng)
            called.append((k, sample, _call(f, solution, solution.points[sample.index], lacked)))
    present = [value for *_, values in called for value in values if value is not None]
    if not present:
        asked = " or ".join(map(repr, lacked))
        raise errors.UnknownName(
            f"no draw has what the function asks for: it lacks {asked}",
            remedy=f"There are: {', '.join(all_names(solutions)[:_MOST_NAMES])}",
        )
    shape = _shape(present)
    parts = [_part(k, solutions[k], weights[k], sample, values, shape) for k, sample, values in called]
    return _delta_method(parts, blocks_of(solutions))


def _sample(solution: Solution, limit: int, rng: np.random.Generator) -> _Sample:
    """The draws of a path, or as many of them as the limit allows."""
    estimate = solution.estimate
    assert estimate is not None
    weights = solution.weights
    own = 1 / (weights**2).sum()
    ess = np.inf if solution.is_exact else estimate.ess if estimate.ess > 0 else own
    if len(weights) <= limit:
        return _Sample(np.arange(len(weights)), weights, own / ess)
    chosen = systematic(weights, limit, rng)
    # The error of choosing adds to that of what was chosen from.
    return _Sample(chosen, np.full(limit, 1 / limit), 1 + limit / ess)


def _call(
    f: Callable[[Draw], Any], solution: Solution, points: np.ndarray, lacked: dict[str, None]
) -> list[np.ndarray | None]:
    """f at each point; None where the draw lacks what it asks for, the name of which is added to `lacked`."""
    out: list[np.ndarray | None] = [None] * len(points)
    for i, draw in drawn_at(solution.path, points):
        try:
            out[i] = np.asarray(f(draw), np.float64)
        except errors.UnknownName as error:
            if error.name is None:  # it was not a draw that was asked
                raise
            lacked[error.name] = None
        except Exception as error:
            error.add_note(f"anabranch: raised by the function on the path: {solution.path.description}")
            raise
    return out


def _shape(values: Sequence[np.ndarray]) -> tuple[int, ...]:
    shapes = {value.shape for value in values}
    if len(shapes) > 1:
        raise ValueError(f"the function must give the same shape for every draw; got {' and '.join(map(str, shapes))}")
    return shapes.pop()


def _part(
    place: int,
    solution: Solution,
    weight: float,
    sample: _Sample,
    values: list[np.ndarray | None],
    shape: tuple[int, ...],
) -> _Part:
    present = np.array([value is not None for value in values])
    filled = np.stack([np.zeros(shape) if value is None else value for value in values])
    return _Part(place, solution, weight, sample, present, filled)


def _delta_method(parts: Sequence[_Part], blocks: Blocks | None) -> tuple[Any, Any]:
    having = sum(part.weight * part.sample.weights[part.present].sum() for part in parts)
    mean = sum(part.weight * np.tensordot(part.sample.weights, part.values, 1) for part in parts) / having
    influences = []
    for part in parts:
        present = part.present.reshape(-1, *[1] * np.ndim(mean))
        influences.append(np.where(present, part.values - mean, 0.0) / having)
    sd = _error_by_paths(parts, influences) if blocks is None else _error_by_blocks(parts, influences, blocks)
    return (float(mean), float(sd)) if np.ndim(mean) == 0 else (mean, sd)


def _error_by_paths(parts: Sequence[_Part], influences: Sequence[np.ndarray]) -> np.ndarray:
    """The error where each path was estimated by itself."""
    variance = np.zeros(influences[0].shape[1:])
    for part, influence in zip(parts, influences, strict=True):
        assert part.solution.estimate is not None
        relative_error, weights = part.solution.estimate.log_evidence_sd, part.sample.weights
        centre = np.tensordot(weights, influence, 1)
        within = part.sample.inflation * np.tensordot(weights**2, (influence - centre) ** 2, 1)
        with np.errstate(invalid="ignore"):  # an unknown evidence does no harm where the path agrees with the others
            between = np.where(centre == 0, 0.0, (centre * relative_error) ** 2)
        variance = variance + part.weight**2 * (within + between)
    return np.sqrt(variance)


def _error_by_blocks(parts: Sequence[_Part], influences: Sequence[np.ndarray], blocks: Blocks) -> np.ndarray:
    """The error where all paths were sampled together."""
    shape = influences[0].shape[1:]
    # One number of f at a time: there may be as many blocks as draws.
    squares = np.zeros(shape)
    for c in np.ndindex(shape):
        sums = _block_sums(parts, [influence[:, *c] for influence in influences], blocks)
        squares[c] = sums @ sums
    return standard_error(squares, blocks.count)


def _block_sums(parts: Sequence[_Part], influences: Sequence[np.ndarray], blocks: Blocks) -> np.ndarray:
    """S_b, for a single number of f."""
    sums = np.zeros(blocks.count)
    for part, influence in zip(parts, influences, strict=True):
        numbers, sample = blocks.of_draws[part.place], part.sample
        centre = sample.weights @ influence
        np.add.at(sums, numbers, part.weight * centre * part.solution.weights)
        np.add.at(sums, numbers[sample.index], part.weight * sample.weights * (influence - centre))
    return sums
