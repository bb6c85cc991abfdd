"""Blocks of discrete variables whose factors are small enough: summed out, or drawn together given all others.

    z_B ~ prior(x, z) likelihood(x, z)^β   given x and the other z

is drawn by elimination (`sums.draw`). Where not all variables fit into one block, several cover them, each of which has
the tables of its own variables given all others. Drawing one block after the other leaves prior · likelihood^β as it is
(blocked Gibbs sampling; on lattices, Hamze and de Freitas, 2004).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.elimination.conditionals import batches
from anabranch.conquer.elimination.settings import Elimination
from anabranch.conquer.elimination.sums import draw
from anabranch.conquer.elimination.tables import Logs, Tables
from anabranch.conquer.elimination.tabling import Tabling
from anabranch.divide import Density, Factors, Path

__all__ = ["Block", "Sums", "block_of", "find_cover", "largest_block", "tempered"]


@dataclass(frozen=True)
class Sums:
    """What is summed out, as plain data: columns with their values, and the size of factors by which a `Block` with
    the same tables is made again."""

    values: tuple[tuple[int, range], ...]
    max_factor: int


@dataclass(frozen=True)
class Block:
    """Variables that are summed out or drawn together: the tables of each decision sequence, their values, and how many
    numbers a factor may have."""

    tables: list[Tables]
    values: Mapping[int, range]
    max_factor: int

    @property
    def sums(self) -> Sums:
        """The block as plain data."""
        return Sums(tuple(self.values.items()), self.max_factor)

    @property
    def numbers(self) -> int:
        """Numbers in the tables of one point."""
        return sum(each.numbers for each in self.tables)

    def redraw(self, rows: np.ndarray, beta: float, rng: Generator) -> np.ndarray:
        """Draw the variables of the block anew in rows of all coordinates, given the others; log of the sum there."""
        totals = np.empty(len(rows))
        for batch in batches(len(rows), self.numbers):
            logs = [tempered(each.by_numpy(rows[batch]), beta, np) for each in self.tables]
            totals[batch] = self.draw_into(rows[batch], logs, rng)
        return totals

    def draw_into(self, rows: np.ndarray, logs: Sequence[Logs], rng: Generator) -> np.ndarray:
        """The same, from the tables at these rows, or at one of them, where all have the same."""
        n = len(rows)
        drawn = [draw(tables.plan, log.density, n, rng) for tables, log in zip(self.tables, logs, strict=True)]
        totals = _totals(logs, [log_sum for _, log_sum in drawn], n)
        chosen = _choose(totals, rng)
        for number, (found, _) in enumerate(drawn):
            own = np.flatnonzero(chosen == number)
            for column, values in found.items():
                rows[own, column] = self.values[column][0] + values[own]
        return logsumexp(totals, axis=0)


def largest_block(
    path: Path,
    columns: Iterable[int],
    settings: Elimination,
    values_of: Callable[[Tabling, Sequence[int]], tuple[Mapping[int, range], Set[int]]],
    wanted: Container[int] = (),
) -> Block | None:
    """As many variables as can be summed out together. None: no variable can be.

    Args:
        path: the path.
        columns: the variables.
        settings: the settings.
        values_of: gives the values of some variables, and those of them that have too many.
        wanted: variables that are left out last.
    """
    found, max_factor = list(columns), settings.max_factor
    while found and max_factor > 1:
        factors = [Factors(recording.once(Density), np.array(found)) for recording in path.recordings]
        tabling = Tabling(factors, max_factor, settings.max_numbers, wanted)
        values, too_many = values_of(tabling, found)
        kept = too_many or tabling.kept(values)
        tables = None if kept else tabling.tables(values)
        if tables is not None:
            return Block(tables, values, max_factor)
        if not kept:
            max_factor //= 8
        found = [column for column in found if column not in kept]
    return None


def block_of(path: Path, sums: Sums, settings: Elimination) -> Block:
    """The block that was described as plain data."""
    values = dict(sums.values)
    columns = np.array(sorted(values))
    factors = [Factors(recording.once(Density), columns) for recording in path.recordings]
    tables = Tabling(factors, sums.max_factor, settings.max_numbers).tables(values)
    assert tables is not None
    return Block(tables, values, sums.max_factor)


def find_cover(path: Path, values: Mapping[int, range], settings: Elimination, covered: Set[int]) -> list[Block]:
    """Blocks that contain all variables but those covered already, and but those that alone are too large."""
    blocks: list[Block] = []
    waiting = values.keys() - covered
    while waiting:
        block = largest_block(path, values, settings, lambda _, own: ({c: values[c] for c in own}, set()), waiting)
        if block is None or waiting.isdisjoint(block.values):
            break
        blocks.append(block)
        waiting -= block.values.keys()
    return blocks


def tempered(logs: Logs, beta: Any, numpy: Any) -> Logs:
    """The tables of prior · likelihood^β; at β = 0 also where the likelihood is zero."""

    def mixed(prior: Any, density: Any) -> Any:
        possible = density > -np.inf
        likelihood = numpy.where(possible, density - numpy.where(possible, prior, 0.0), 0.0)
        return numpy.where(possible | (beta == 0), prior + beta * likelihood, -np.inf)

    density = [mixed(*each) for each in zip(logs.prior, logs.density, strict=True)]
    free = numpy.where(beta == 0, 0.0, beta * logs.free_likelihood)
    return logs._replace(density=density, free_likelihood=free)


def _totals(logs: Sequence[Logs], sums: Sequence[np.ndarray], n: int) -> np.ndarray:
    """log Σ_z γ of each decision sequence at n points, from the sums over its tables; minus infinity where its
    conditions fail."""
    totals = [log.free_prior + log.free_likelihood + each for log, each in zip(logs, sums, strict=True)]
    held = [np.where(log.holds, each, -np.inf) for log, each in zip(logs, totals, strict=True)]
    return np.stack([np.broadcast_to(each, n) for each in held])


def _choose(logs: np.ndarray, rng: Generator) -> np.ndarray:
    """For each column the number of a row, with probabilities proportional to the exponentials."""
    if len(logs) == 1:
        return np.zeros(logs.shape[1], int)
    top = logs.max(axis=0)
    weights = np.cumsum(np.exp(logs - np.where(np.isfinite(top), top, 0.0)), axis=0)
    return np.minimum((rng.uniform(size=logs.shape[1]) * weights[-1] >= weights).sum(axis=0), len(logs) - 1)
