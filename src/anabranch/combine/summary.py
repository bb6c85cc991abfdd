"""A table of all variables of a posterior, over all paths that have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from anabranch.combine.blocks import blocks_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.expectation import mean_and_error
from anabranch.combine.outcomes import outcomes_at
from anabranch.combine.parts import Part, sampled
from anabranch.combine.quantile import quantiles_of_numbers
from anabranch.combine.solution import Solution

__all__ = ["SUMMARY_COLUMNS", "summarised"]

SUMMARY_COLUMNS = ("mean", "sd", "low", "high", "mcse", "ess", "share")


class _Columns:
    """The draws of a path that are used, and the numbers of the sites and deterministics at them."""

    def __init__(self, place: int, solution: Solution, weight: float, index: np.ndarray, *rest: Any) -> None:
        self.place, self.solution, self.weight, self.index = place, solution, weight, index
        self.weights, self.inflation = rest
        self._named = outcomes_at(solution.path, solution.points[index])

    def names(self) -> Iterator[str]:
        for named in self._named:
            yield from named.values
            yield from named.deterministics

    def arrays(self, name: str) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """The rows of the draws that have the name, and its numbers there."""
        for named in self._named:
            array = np.asarray({**named.values, **named.deterministics}.get(name, ""))
            if array.dtype.kind not in "biuf":
                continue
            if not named.varies[0].get(name, True):
                array = np.broadcast_to(array, (len(named.index), *array.shape))
            yield named.index, array

    def part(self, name: str, element: tuple[int, ...]) -> Part:
        present, values = np.zeros(len(self.index), bool), np.zeros(len(self.index))
        at: tuple[Any, ...] = (slice(None), *element)
        for rows, array in self.arrays(name):
            if array.ndim - 1 == len(element) and all(map(int.__lt__, element, array.shape[1:])):
                present[rows], values[rows] = True, array[at]
        return Part(self.place, self.solution, self.weight, self.index, self.weights, self.inflation, present, values)


def summarised(
    solutions: Sequence[Solution],
    evidence: Evidence,
    names: Sequence[str] | None,
    mass: float,
    max_draws: int,
) -> list[dict[str, Any]]:
    """A row for each number: each element of each site and deterministic."""
    weights, blocks = evidence.weights, blocks_of(solutions)
    columns = [_Columns(k, solutions[k], weights[k], *sample) for k, sample in sampled(solutions, weights, max_draws)]
    rows = []
    for name in names or dict.fromkeys(name for each in columns for name in each.names()):
        shapes = {array.shape[1:] for each in columns for _, array in each.arrays(name)}
        for element in sorted({element for shape in shapes for element in np.ndindex(shape)}):
            parts = [each.part(name, element) for each in columns]
            label = f"{name}[{','.join(map(str, element))}]" if element else name
            mean, mcse = mean_and_error(parts, blocks, evidence.doubtful_share)
            tails = np.array([(1 - mass) / 2, (1 + mass) / 2])
            low, high = quantiles_of_numbers(parts, blocks, evidence.doubtful_share, tails)[0]
            share = float(sum(part.weight * part.weights[part.present].sum() for part in parts))
            sd = np.sqrt(sum(part.weight * part.weights @ (part.present * (part.values - mean) ** 2) for part in parts))
            sd = float(sd / np.sqrt(share))
            ess = (sd / mcse) ** 2 if mcse > 0 else np.inf
            numbers = (mean, sd, float(low), float(high), mcse, ess, min(share / weights.sum(), 1.0))
            rows.append({"name": label, **dict(zip(SUMMARY_COLUMNS, numbers, strict=True))})
    return rows
