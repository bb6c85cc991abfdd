"""The posterior probabilities of all values of a function of a draw, with their Monte Carlo errors, at once.

The probability of a value is the mean of its indicator f, and its error that of `expectation`. With a_k and A_k the
shares of the draws of path k that have the value, by their weights v_ki and by their number, b_k = Σ_i v_ki² f_ki, and
q_k = Σ_i v_ki², over paths with weights w_k that sum to H,

    p = Σ_k w_k a_k / H,
    sd² = Σ_k (w_k/H)² (c_k (b_k (1 − a_k)² + (q_k − b_k) a_k²) + (a_k − p)² s_k²),

where A_k (1 − A_k) takes the place of the first term if that is smaller and there are few effective draws. So a value
needs only the paths that have it, and a sum over all paths: of thousands of paths, hundreds of values are counted
nearly as fast as one.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from anabranch.combine.blocks import Blocks, standard_error
from anabranch.combine.parts import MIN_DRAWS, Part, mean_where_largest

__all__ = ["probabilities_of"]

ROUNDING = 1e-12
"""Differences of shares that are taken to be those of rounding."""


class _Member(NamedTuple):
    """A path that has a value: its number among the parts, and which of its draws have it."""

    part: int
    rows: np.ndarray


@dataclass(frozen=True)
class _Paths:
    """What is summed over all paths, whatever the value."""

    parts: Sequence[Part]

    @cached_property
    def weights(self) -> np.ndarray:
        """w_k/H."""
        weights = np.array([part.weight for part in self.parts])
        return weights / weights.sum()

    @cached_property
    def relative_errors(self) -> np.ndarray:
        """s_k."""
        represented = [part.solution.represented for part in self.parts]
        return np.array([np.inf if each is None else each.log_evidence_sd for each in represented])

    @cached_property
    def have_few_draws(self) -> np.ndarray:
        """Whether the effective draws of a path are too few to show how f varies."""
        effective = [0.0 if each.solution.represented is None else each.solution.represented.ess for each in self.parts]
        return np.array(
            [ess < MIN_DRAWS and not part.solution.is_exact for ess, part in zip(effective, self.parts, strict=True)]
        )

    def block_weights(self, blocks: Blocks) -> np.ndarray:
        """The weight of each block, Σ_k (w_k/H) T_kb."""
        sums = np.zeros(blocks.count)
        for part, weight in zip(self.parts, self.weights, strict=True):
            np.add.at(sums, blocks.of_draws[part.place], weight * part.solution.weights)
        return sums

    def error(self, p: float, numbers: np.ndarray, shares: np.ndarray, within: np.ndarray) -> float:
        """The error of the probability of a value that these paths have, with these shares and variances within."""
        centres = np.full(len(self.parts), -p)
        centres[numbers] += shares
        centres[np.abs(centres) < ROUNDING] = 0.0
        with np.errstate(invalid="ignore"):  # an infinite error of the evidence cancels if a_k = p
            variances = np.where(centres == 0, 0.0, (centres * self.relative_errors) ** 2)
        variances[numbers] += within
        return float(np.sqrt((self.weights**2) @ variances))


def probabilities_of(
    parts: Sequence[Part], keys: Sequence[Sequence[Hashable]], blocks: Blocks | None, doubtful_share: float
) -> tuple[dict[Hashable, float], dict[Hashable, float]]:
    """The probability of each value and its error, given the value at each draw of each path."""
    paths, found = _Paths(parts), _members(keys)
    total, of_blocks = sum(map(len, keys)), np.zeros(0) if blocks is None else paths.block_weights(blocks)
    means, errors = {}, {}
    for value, members in found.items():
        shares = np.array([parts[k].weights[rows].sum() for k, rows in members])
        numbers = np.array([k for k, _ in members])
        p = min(float(paths.weights[numbers] @ shares), 1.0)
        means[value] = p
        if blocks is not None:
            sums = _block_sums(members, shares, paths, blocks) - p * of_blocks
            errors[value] = float(standard_error(sums @ sums, blocks.count))
            continue
        within = np.array([_within(paths, member, share) for member, share in zip(members, shares, strict=True)])
        drawn, everywhere = sum(len(rows) for _, rows in members) / total, np.full(len(parts), p**2)
        everywhere[numbers] = shares * (1 - p) ** 2 + (1 - shares) * p**2
        alike = (1 - doubtful_share) * p * (1 - p)
        if doubtful_share > 0:
            alike += doubtful_share * float(mean_where_largest(everywhere, parts))
        spread = np.sqrt(max(p * (1 - p), alike, drawn * (1 - drawn)))
        errors[value] = float(np.hypot(paths.error(p, numbers, shares, within), doubtful_share * spread))
    return means, errors


def _members(keys: Sequence[Sequence[Hashable]]) -> Mapping[Hashable, list[_Member]]:
    """The paths that have each value, with the draws that have it, in the order in which values are met."""
    found: dict[Hashable, list[_Member]] = {}
    for k, of_path in enumerate(keys):
        rows: dict[Hashable, list[int]] = {}
        for i, key in enumerate(of_path):
            rows.setdefault(key, []).append(i)
        for key, numbers in rows.items():
            found.setdefault(key, []).append(_Member(k, np.array(numbers)))
    return found


def _within(paths: _Paths, member: _Member, share: float) -> float:
    """The variance of the share of a value on a path."""
    part = paths.parts[member.part]
    count = len(member.rows) / len(part.weights)
    if count == 1:
        return 0.0
    squares = part.weights**2
    having = squares[member.rows].sum()
    variance = part.inflation * (having * (1 - share) ** 2 + (squares.sum() - having) * share**2)
    return float(max(variance, count * (1 - count)) if paths.have_few_draws[member.part] else variance)


def _block_sums(members: Sequence[_Member], shares: np.ndarray, paths: _Paths, blocks: Blocks) -> np.ndarray:
    """The weight of the draws in each block that have a value."""
    sums = np.zeros(blocks.count)
    for (k, rows), share in zip(members, shares, strict=True):
        part, weight, numbers = paths.parts[k], paths.weights[k], blocks.of_draws[paths.parts[k].place]
        np.add.at(sums, numbers, weight * share * part.solution.weights)
        np.add.at(sums, numbers[part.index], -weight * share * part.weights)
        np.add.at(sums, numbers[part.index[rows]], weight * part.weights[rows])
    return sums
