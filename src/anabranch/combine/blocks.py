"""Independent blocks of draws, and errors from them: for engines that sample whole executions.

A block is a chain, a run of SMC, or a single draw. Draws of one block may depend on each other, whatever their path;
blocks are independent. With path weights w_k and draws with weights v_ki that sum to one in each path, the
weights W_i = w_k v_ki of all draws sum to one. To first order the error of an estimate is that of Σ_i W_i g_i, with g_i
the influence of a draw on it, centred so that Σ_i W_i g_i = 0. Over the B blocks (a ratio, with clusters)

    sd² = B/(B−1) Σ_b S_b²,    S_b = Σ_{i in b} W_i g_i.

Where every draw is a block, this is the error of self-normalised importance sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.combine.solution import Solution

__all__ = ["Blocks", "blocks_of", "standard_error"]


@dataclass(frozen=True)
class Blocks:
    """The number of blocks, and the block of each draw of each path, counted from zero."""

    count: int
    of_draws: list[np.ndarray]


def blocks_of(solutions: Sequence[Solution]) -> Blocks | None:
    """The blocks of all draws; None if there are no draws, or if they have no blocks."""
    labels = [solution.blocks for solution in solutions]
    known = [each for each in labels if each is not None]
    if len(known) < len(labels) or not any(map(len, known)):
        return None
    distinct, numbers = np.unique(np.concatenate(known), return_inverse=True)
    return Blocks(len(distinct), np.split(numbers, np.cumsum([len(each) for each in known])[:-1]))


def standard_error(squares: np.ndarray, count: int) -> np.ndarray:
    """The error, given Σ_b S_b² and B; infinite for a single block, which has no variance."""
    return np.sqrt(squares * (count / (count - 1))) if count > 1 else np.full(np.shape(squares), np.inf)
