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
(`Evidence.doubtful_share`), f may differ there by its root mean square deviation σ from μ, over the draws and, as far
as the mass is doubtful, over all paths alike (`mean_where_largest`), which adds (u σ)².

An engine that samples whole executions gives draws in independent blocks (`blocks.py`), and the error comes from the
sums of w_k v_ki g_ki over each block. A path with too many draws is resampled, to weights u_ki, but keeps its own
weight, so that the sum over a block is

    S_b = Σ_k w_k (T_kb ḡ_k + Σ_{i in b} u_ki (g_ki − ḡ_k)),    T_kb = Σ_{i in b} v_ki.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from anabranch.combine.blocks import Blocks, blocks_of, standard_error
from anabranch.combine.evidence import Evidence
from anabranch.combine.parts import MIN_DRAWS, Function, Part, mean_where_largest, parts_of
from anabranch.combine.solution import Solution

__all__ = ["expectation", "mean_and_error", "sampling_error"]


def expectation(solutions: Sequence[Solution], evidence: Evidence, f: Function, max_draws: int) -> tuple[Any, Any]:
    """The mean of f over the draws that have the names it reads, and its Monte Carlo error."""
    parts = parts_of(solutions, evidence.weights, f, max_draws)
    return mean_and_error(parts, blocks_of(solutions), evidence.doubtful_share)


def mean_and_error(parts: Sequence[Part], blocks: Blocks | None, doubtful_share: float) -> tuple[Any, Any]:
    """μ and its error by the delta method, from f at draws of each path."""
    having = sum(part.weight * part.weights[part.present].sum() for part in parts)
    mean = sum(part.weight * np.tensordot(part.weights, part.values, 1) for part in parts) / having
    influences = []
    for part in parts:
        present = part.present.reshape(-1, *[1] * np.ndim(mean))
        influences.append(np.where(present, part.values - mean, 0.0) / having)
    sd = sampling_error(parts, influences, blocks)
    if blocks is None:
        sd = np.hypot(sd, doubtful_share * _spread(parts, influences, having, doubtful_share))
    return (float(mean), float(sd)) if np.ndim(mean) == 0 else (mean, sd)


def sampling_error(parts: Sequence[Part], influences: Sequence[np.ndarray], blocks: Blocks | None) -> np.ndarray:
    """The Monte Carlo error of an estimate on which the draws have these influences."""
    return _error_by_paths(parts, influences) if blocks is None else _error_by_blocks(parts, influences, blocks)


def _error_by_paths(parts: Sequence[Part], influences: Sequence[np.ndarray]) -> np.ndarray:
    """The error if each path has an estimate of its own."""
    variance = np.zeros(influences[0].shape[1:])
    for part, influence in zip(parts, influences, strict=True):
        represented = part.solution.represented
        assert represented is not None
        relative_error, weights = represented.log_evidence_sd, part.weights
        centre = np.tensordot(weights, influence, 1)
        within = part.inflation * np.tensordot(weights**2, (influence - centre) ** 2, 1)
        if not part.solution.is_exact and represented.ess < MIN_DRAWS:
            within = np.maximum(within, influence.var(axis=0))
        with np.errstate(invalid="ignore"):  # an infinite error of the evidence cancels if ḡ_k is zero
            between = np.where(centre == 0, 0.0, (centre * relative_error) ** 2)
        variance = variance + part.weight**2 * (within + between)
    return np.sqrt(variance)


def _spread(
    parts: Sequence[Part], influences: Sequence[np.ndarray], having: float, doubtful_share: float
) -> np.ndarray:
    """σ: by the weights of the draws, or without them where that is larger, as with very few effective draws; the more
    mass is doubtful, the more over all paths alike, since any of them may be like those that have it."""
    squares = [np.tensordot(part.weights, each**2, 1) for part, each in zip(parts, influences, strict=True)]
    weighted = sum(part.weight * square for part, square in zip(parts, squares, strict=True)) / having
    having_f = [k for k, part in enumerate(parts) if part.present.any()]
    everywhere = mean_where_largest(np.array([squares[k] for k in having_f]), [parts[k] for k in having_f])
    alike = (1 - doubtful_share) * weighted + doubtful_share * everywhere
    drawn = np.concatenate([each[part.present] for part, each in zip(parts, influences, strict=True)])
    return having * np.sqrt(np.maximum(np.maximum(weighted, alike), drawn.var(axis=0)))


def _error_by_blocks(parts: Sequence[Part], influences: Sequence[np.ndarray], blocks: Blocks) -> np.ndarray:
    """The error if all paths come from the same executions."""
    shape = influences[0].shape[1:]
    # One component of f at a time: there may be as many blocks as draws.
    squares = np.zeros(shape)
    for c in np.ndindex(shape):
        sums = _block_sums(parts, [influence[:, *c] for influence in influences], blocks)
        squares[c] = sums @ sums
    return standard_error(squares, blocks.count)


def _block_sums(parts: Sequence[Part], influences: Sequence[np.ndarray], blocks: Blocks) -> np.ndarray:
    """S_b for one component of f."""
    sums = np.zeros(blocks.count)
    for part, influence in zip(parts, influences, strict=True):
        numbers, centre = blocks.of_draws[part.place], part.weights @ influence
        np.add.at(sums, numbers, part.weight * centre * part.solution.weights)
        np.add.at(sums, numbers[part.index], part.weight * part.weights * (influence - centre))
    return sums
