"""Expectations under the posterior, with their Monte Carlo error.

With path weights w_k, weights v_ki of draws that sum to one in each path, and h_ki = 1 if draw i has the names that f
reads, else 0,

    μ = Σ_k w_k Σ_i v_ki h_ki f_ki / H,    H = Σ_k w_k Σ_i v_ki h_ki.

To first order the error of μ is that of Σ_k w_k Σ_i v_ki g_ki with g = h (f − μ)/H: the error within each path, and the
error of its evidence, s_k relative to it, which are taken to be independent:

    sd² = Σ_k w_k² (c_k Σ_i v_ki² (g_ki − ḡ_k)² + ḡ_k² s_k²),    ḡ_k = Σ_i v_ki g_ki.

c_k = (1/Σ_i v_ki²)/ess_k is one for independent draws, and larger for chains, and for weights with a heavy tail
(`heavy_tailed`). Fewer than ten effective draws do not show how f varies within a path: the unweighted variance of f
over its draws takes the place of the weighted one. If a share u of the posterior mass may be where no draws are
(`Evidence.doubtful_share`), f may differ there by its standard deviation σ over the draws, which adds (u σ)².

An engine that samples whole executions gives draws in independent blocks (`blocks.py`), and the error comes from the
sums of w_k v_ki g_ki over each block. A path with too many draws is resampled, to weights u_ki, but keeps its own
weight, so that the sum over a block is

    S_b = Σ_k w_k (T_kb ḡ_k + Σ_{i in b} u_ki (g_ki − ḡ_k)),    T_kb = Σ_{i in b} v_ki.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.blocks import Blocks, blocks_of, standard_error
from anabranch.combine.draws import Draw, drawn_at
from anabranch.combine.evidence import Evidence
from anabranch.combine.probability import listed_names
from anabranch.combine.solution import Solution
from anabranch.conquer.estimate import heavy_tailed
from anabranch.conquer.weights import systematic

__all__ = ["expectation"]

_Function = Callable[[Draw], Any]

_MIN_DRAWS = 10
"""Draws at which f is called on a path, at least; and effective draws that show how f varies."""


@dataclass(frozen=True)
class _Part:
    """The term of one path: w_k, the draws at which f was called, their weights v_ki, c_k, h_ki, and f_ki or zero."""

    place: int
    solution: Solution
    weight: float
    index: np.ndarray
    weights: np.ndarray
    inflation: float
    present: np.ndarray
    values: np.ndarray


def expectation(solutions: Sequence[Solution], evidence: Evidence, f: _Function, max_draws: int) -> tuple[Any, Any]:
    """The mean of f over the draws that have the names it reads, and its Monte Carlo error.

    f is called at most `max_draws` times for a path, and fewer for light paths, whose error counts less. Resampling has
    a fixed seed: a posterior gives one answer to one question.
    """
    weights = evidence.weights
    heaviest = max(weights, default=0.0)
    rng = np.random.default_rng(0)
    called = []
    lacked: dict[str, None] = {}
    for k, (solution, weight) in enumerate(zip(solutions, weights, strict=True)):
        if weight > 0 and len(solution.points):
            sample = _sample(solution, max(math.ceil(max_draws * math.sqrt(weight / heaviest)), _MIN_DRAWS), rng)
            called.append((k, sample, _call(f, solution, solution.points[sample[0]], lacked)))
    present = [value for *_, values in called for value in values if value is not None]
    if not present:
        raise errors.UnknownName(
            f"no draw has the names that the function reads: it lacks {' or '.join(map(repr, lacked))}",
            remedy=f"There are: {listed_names(solutions)}",
        )
    shape, *others = {value.shape: None for value in present}
    if others:
        raise ValueError(f"the function must return one shape for all draws; got {shape} and {others[0]}")
    parts = []
    for k, sample, values in called:
        filled = np.stack([np.zeros(shape) if value is None else value for value in values])
        has = np.array([value is not None for value in values])
        parts.append(_Part(k, solutions[k], weights[k], *sample, has, filled))
    return _delta_method(parts, blocks_of(solutions), evidence.doubtful_share)


def _sample(solution: Solution, limit: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, float]:
    """Indices and weights of the draws of a path, resampled if they are more than the limit, and c_k."""
    estimate = solution.estimate
    assert estimate is not None
    weights = solution.weights
    own = 1 / (weights**2).sum()
    ess = np.inf if solution.is_exact else estimate.ess if estimate.ess > 0 else own
    ess /= heavy_tailed(1.0, estimate.pareto_k, ess) ** 2
    if len(weights) <= limit:
        return np.arange(len(weights)), weights, own / ess
    chosen = systematic(weights, limit, rng)
    # The variance of resampling adds to that of the draws.
    return chosen, np.full(limit, 1 / limit), 1 + limit / ess


def _call(f: _Function, solution: Solution, points: np.ndarray, lacked: dict[str, None]) -> list[np.ndarray | None]:
    """f at each point; None where the draw lacks a name that f reads, which is added to `lacked`."""
    out: list[np.ndarray | None] = [None] * len(points)
    for i, draw in drawn_at(solution.path, points):
        try:
            out[i] = np.asarray(f(draw), np.float64)
        except errors.UnknownName as error:
            if error.name is None:  # raised by something other than a draw
                raise
            lacked[error.name] = None
        except Exception as error:
            error.add_note(f"anabranch: raised by the function on the path: {solution.path.description}")
            raise
    return out


def _delta_method(parts: Sequence[_Part], blocks: Blocks | None, doubtful_share: float) -> tuple[Any, Any]:
    having = sum(part.weight * part.weights[part.present].sum() for part in parts)
    mean = sum(part.weight * np.tensordot(part.weights, part.values, 1) for part in parts) / having
    influences = []
    for part in parts:
        present = part.present.reshape(-1, *[1] * np.ndim(mean))
        influences.append(np.where(present, part.values - mean, 0.0) / having)
    if blocks is None:
        sd = np.hypot(_error_by_paths(parts, influences), doubtful_share * _spread(parts, influences, having))
    else:
        sd = _error_by_blocks(parts, influences, blocks)
    return (float(mean), float(sd)) if np.ndim(mean) == 0 else (mean, sd)


def _error_by_paths(parts: Sequence[_Part], influences: Sequence[np.ndarray]) -> np.ndarray:
    """The error if each path has an estimate of its own."""
    variance = np.zeros(influences[0].shape[1:])
    for part, influence in zip(parts, influences, strict=True):
        represented = part.solution.represented
        assert represented is not None
        relative_error, weights = represented.log_evidence_sd, part.weights
        centre = np.tensordot(weights, influence, 1)
        within = part.inflation * np.tensordot(weights**2, (influence - centre) ** 2, 1)
        if not part.solution.is_exact and represented.ess < _MIN_DRAWS:
            within = np.maximum(within, influence.var(axis=0))
        with np.errstate(invalid="ignore"):  # an infinite error of the evidence cancels if ḡ_k is zero
            between = np.where(centre == 0, 0.0, (centre * relative_error) ** 2)
        variance = variance + part.weight**2 * (within + between)
    return np.sqrt(variance)


def _spread(parts: Sequence[_Part], influences: Sequence[np.ndarray], having: float) -> np.ndarray:
    """σ: by the weights of the draws, or without them where that is larger, as with very few effective draws."""
    pairs = list(zip(parts, influences, strict=True))
    weighted = sum(part.weight * np.tensordot(part.weights, influence**2, 1) for part, influence in pairs)
    values = np.concatenate([influence[part.present] for part, influence in pairs])
    return having * np.sqrt(np.maximum(weighted / having, values.var(axis=0)))


def _error_by_blocks(parts: Sequence[_Part], influences: Sequence[np.ndarray], blocks: Blocks) -> np.ndarray:
    """The error if all paths come from the same executions."""
    shape = influences[0].shape[1:]
    # One component of f at a time: there may be as many blocks as draws.
    squares = np.zeros(shape)
    for c in np.ndindex(shape):
        sums = _block_sums(parts, [influence[:, *c] for influence in influences], blocks)
        squares[c] = sums @ sums
    return standard_error(squares, blocks.count)


def _block_sums(parts: Sequence[_Part], influences: Sequence[np.ndarray], blocks: Blocks) -> np.ndarray:
    """S_b for one component of f."""
    sums = np.zeros(blocks.count)
    for part, influence in zip(parts, influences, strict=True):
        numbers, centre = blocks.of_draws[part.place], part.weights @ influence
        np.add.at(sums, numbers, part.weight * centre * part.solution.weights)
        np.add.at(sums, numbers[part.index], part.weight * part.weights * (influence - centre))
    return sums
