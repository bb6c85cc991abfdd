"""Blocks of discrete variables whose factors are small enough: summed out, or drawn together given all others.

    z_B ~ prior(x, z) likelihood(x, z)^β   given x and the other z

is drawn by elimination (`sums.draw`). Where not all variables fit into one block, several cover them, each of which has
the tables of its own variables given all others. Drawing one block after the other leaves prior · likelihood^β as it is
(blocked Gibbs sampling; on lattices, Hamze and de Freitas, 2004).
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.elimination.order import Order, elimination_order
from anabranch.conquer.elimination.sums import draw, log_sum_by_numpy
from anabranch.conquer.elimination.tables import Logs, Tables
from anabranch.divide import Density, Factors, Path
from anabranch.limits import checkpoint
from anabranch.settings import check, whole

__all__ = ["NUMBERS_AT_ONCE", "Block", "Elimination", "batches", "find_block", "find_cover", "tempered"]

NUMBERS_AT_ONCE = 2**23
"""Numbers that NumPy evaluates at once: 64 MiB."""

_SHARE_OF_MEMORY, _MIN_NUMBERS, _MAX_NUMBERS = 64, 2**22, 2**27
"""The tables of a point may take one part in so many of the memory, within bounds of 32 MiB and 1 GiB."""


def _numbers_in_memory() -> int:
    """Numbers in the default share of the physical memory of this machine; 256 MiB where that is not known."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        memory = -1
    return int(np.clip(memory // (8 * _SHARE_OF_MEMORY), _MIN_NUMBERS, _MAX_NUMBERS)) if memory > 0 else 2**25


@dataclass(frozen=True)
class Elimination:
    """How discrete coordinates are summed out.

    Args:
        max_numbers: numbers in the tables of one point, at most; coordinates with which there were more are kept. The
            default takes 1/64 of the machine's memory, but at least 32 MiB and at most 1 GiB.
        max_factor: numbers in one factor from which a coordinate is summed out, at most; more take longer.
        max_enumerated: values of a path without other coordinates up to which they are evaluated one by one instead.
    """

    max_numbers: int = field(default_factory=_numbers_in_memory)
    max_factor: int = 2**20
    max_enumerated: int = 10_000

    def __post_init__(self) -> None:
        check(self, max_numbers=whole(1), max_factor=whole(1), max_enumerated=whole())


@dataclass(frozen=True)
class Block:
    """Variables that are summed out or drawn together: the tables of each decision sequence, and their values."""

    tables: list[Tables]
    values: Mapping[int, range]

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

    def totals(self, logs: Sequence[Logs], n: int) -> np.ndarray:
        """log Σ_z γ of each decision sequence at n points; minus infinity where its conditions fail."""
        sums = [log_sum_by_numpy(tables.plan, log.density) for tables, log in zip(self.tables, logs, strict=True)]
        return _totals(logs, sums, n)


def find_block(
    path: Path, values: Mapping[int, range], settings: Elimination, wanted: Container[int] = ()
) -> Block | None:
    """As many variables as can be summed out together; those wanted are left out last. None: no variable can be."""
    found, max_factor = dict(values), settings.max_factor
    while found and max_factor > 1:
        factors = [Factors(recording.once(Density), np.array(list(found))) for recording in path.recordings]
        orders = [_order(each, found, max_factor, wanted) for each in factors]
        kept = {column for order in orders for column in order.kept}
        if not kept:
            tables = [Tables(each, found, order) for each, order in zip(factors, orders, strict=True)]
            if all(each.numbers <= settings.max_numbers for each in tables):
                return Block(tables, found)
            max_factor //= 8
        found = {column: own for column, own in found.items() if column not in kept}
    return None


def find_cover(path: Path, values: Mapping[int, range], settings: Elimination, covered: Set[int]) -> list[Block]:
    """Blocks that contain all variables but those covered already, and but those that alone are too large."""
    blocks: list[Block] = []
    waiting = values.keys() - covered
    while waiting:
        block = find_block(path, values, settings, frozenset(waiting))
        if block is None or waiting.isdisjoint(block.values):
            break
        blocks.append(block)
        waiting -= block.values.keys()
    return blocks


def _order(factors: Factors, values: Mapping[int, range], max_factor: int, wanted: Container[int]) -> Order:
    sizes = {column: len(each) for column, each in values.items()}
    numbers = {number for summand in factors.summands for number in np.unique(summand.scopes).tolist()}
    return elimination_order([factors.scopes.members[number] for number in numbers], sizes, max_factor, wanted)


def tempered(logs: Logs, beta: Any, numpy: Any) -> Logs:
    """The tables of prior · likelihood^β; at β = 0 also where the likelihood is zero."""

    def mixed(prior: Any, density: Any) -> Any:
        possible = density > -np.inf
        likelihood = numpy.where(possible, density - numpy.where(possible, prior, 0.0), 0.0)
        return numpy.where(possible | (beta == 0), prior + beta * likelihood, -np.inf)

    density = [mixed(*each) for each in zip(logs.prior, logs.density, strict=True)]
    free = numpy.where(beta == 0, 0.0, beta * logs.free_likelihood)
    return logs._replace(density=density, free_likelihood=free)


def batches(n: int, numbers: int) -> Iterator[slice]:
    """Batches of n points, each of which has so many numbers."""
    at_once = max(NUMBERS_AT_ONCE // max(numbers, 1), 1)
    for start in range(0, n, at_once):
        checkpoint()
        yield slice(start, min(start + at_once, n))


def _totals(logs: Sequence[Logs], sums: Sequence[np.ndarray], n: int) -> np.ndarray:
    """What `Block.totals` gives, from the sums over the tables."""
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
