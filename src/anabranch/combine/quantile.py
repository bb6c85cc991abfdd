"""Quantiles under the posterior, with their Monte Carlo error.

The quantile x_q is the least value with F(x_q) ≥ q, where F is the distribution function of f over the draws that have
the names that f reads. Its error is that of F(x_q), an expectation with the error s (`expectation`), on the scale of f
(Woodruff, 1952):

    sd = (F⁻¹(q + s) − F⁻¹(q − s))/2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from anabranch.combine.blocks import Blocks, blocks_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.expectation import mean_and_error
from anabranch.combine.parts import Function, Part, parts_of
from anabranch.combine.solution import Solution

__all__ = ["Interval", "quantile", "quantiles_of_numbers"]


class Interval(NamedTuple):
    """An interval with a share of the posterior mass, and the standard errors of its ends."""

    low: Any
    high: Any
    low_sd: Any
    high_sd: Any


def quantile(
    solutions: Sequence[Solution], evidence: Evidence, f: Function, q: np.ndarray, max_draws: int
) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles of each component of f, and their errors, with the axes of q first."""
    parts = parts_of(solutions, evidence.weights, f, max_draws)
    shape, blocks = parts[0].values.shape[1:], blocks_of(solutions)
    values, errors = np.empty((2, q.size, *shape))
    for c in np.ndindex(shape):
        component = [replace(part, values=part.values[:, *c]) for part in parts]
        found = quantiles_of_numbers(component, blocks, evidence.doubtful_share, q.ravel())
        values[:, *c], errors[:, *c] = found
    return values.reshape(q.shape + shape), errors.reshape(q.shape + shape)


def quantiles_of_numbers(
    parts: Sequence[Part], blocks: Blocks | None, doubtful_share: float, q: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The quantiles of a number, and their errors."""
    values = np.concatenate([part.values[part.present] for part in parts])
    weights = np.concatenate([part.weight * part.weights[part.present] for part in parts])
    order = np.argsort(values, kind="stable")
    values, cumulative = values[order], np.cumsum(weights[order])
    cumulative /= cumulative[-1]

    def inverse(share: np.ndarray) -> np.ndarray:
        # Rounding of the cumulative weights must not take the next value.
        places = np.searchsorted(cumulative, share - 1e-12)
        return values[np.minimum(places, len(values) - 1)]

    found = inverse(q)
    shares = [mean_and_error(_at_most(parts, x), blocks, doubtful_share)[1] for x in found]
    errors = np.array(shares)
    finite = np.where(np.isfinite(errors), errors, 0.0)
    half = (inverse(np.minimum(q + finite, 1.0)) - inverse(np.maximum(q - finite, 0.0))) / 2
    return found, np.where(np.isfinite(errors), half, np.inf)


def _at_most(parts: Sequence[Part], x: float) -> list[Part]:
    """The indicator of f ≤ x."""
    return [replace(part, values=np.where(part.present, part.values <= x, 0.0)) for part in parts]
