"""Which discrete coordinates of a path are summed out, and over which values."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cache

import numpy as np
from numpy.random import Generator

from anabranch.conquer.elimination.blocks import Block, Sums, block_of, find_cover, largest_block
from anabranch.conquer.elimination.settings import Elimination
from anabranch.conquer.elimination.tabling import Tabling
from anabranch.conquer.elimination.target import Eliminated
from anabranch.conquer.elimination.windows import WindowSearch, cut_sides
from anabranch.conquer.target import Target
from anabranch.divide import Bounds, integer_bounds, is_prior_alone, prior_is_sampled

__all__ = ["eliminate", "summed_out"]

logger = logging.getLogger(__name__)

_DRAWS, _SHARE = 500, 8
"""Prior draws from which windows start, and one in so many of the evaluations of a visit at most."""
_TRIMMED = 16
"""The factor by which windows may make the tables of a group smaller; without a search, larger groups are kept."""


def eliminate(target: Target, settings: Elimination, rng: Generator, points: np.ndarray | None = None) -> Target:
    """The target without its discrete coordinates, or without as many of them as can be summed out.

    A target that has few values altogether is returned as it is: it can be enumerated.

    Args:
        target: the density.
        settings: the settings.
        rng: for the prior draws from which windows start.
        points: rows of the path's coordinates where the posterior has mass, if they are known.
    """
    if target.path.interpreted or not target.discrete.any():
        return target
    found = _summable(target)
    sizes = [math.inf if b.low is None or b.high is None else b.high - b.low + 1 for b in found.values()]
    if len(found) == target.dim and math.prod(sizes) <= settings.max_enumerated:
        return target  # its values can be evaluated one by one, which gives the probability of each
    rows = cache(lambda: _rows(target, rng, points))
    if math.inf in sizes and not len(rows()):
        found = {column: bounds for column, bounds in found.items() if None not in bounds}
    return _without(target, found, rows, settings)


def summed_out(target: Target, sums: Sums, settings: Elimination) -> Eliminated:
    """The target without the coordinates that `eliminate` has summed out before."""
    return _eliminated(target, block_of(target.path, sums, settings), _summable(target), settings)


def _summable(target: Target) -> dict[int, Bounds]:
    """The coordinates that may be summed out. Where nothing is observed, none with infinitely many values is: prior
    draws are exact."""
    bounds = enumerate(integer_bounds(target.path))
    is_alone = is_prior_alone(target.path)
    return {column: each for column, each in bounds if each is not None and not (is_alone and None in each)}


def _rows(target: Target, rng: Generator, points: np.ndarray | None) -> np.ndarray:
    """Prior draws and known points, those of higher density first."""
    n = int(min(_DRAWS, max(target.left // _SHARE, 1)))
    parts = [target.known, target.prior(n, rng).points, *([] if points is None else [points])]
    rows = np.concatenate(parts)[-2 * n :]
    target.charge(len(rows))
    log_densities = target.path.evaluate(rows, compile=False).log_density
    return rows[np.argsort(-np.nan_to_num(log_densities, nan=-np.inf), kind="stable")]


def _without(
    target: Target, found: Mapping[int, Bounds], rows: Callable[[], np.ndarray], settings: Elimination
) -> Target:
    """The target without these coordinates, or as many of them as there are windows and tables for."""
    path, heavy, slow = target.path, set[int](), set[int]()
    most = math.inf if len(found) == target.dim else settings.max_group_numbers

    def windows(tabling: Tabling, columns: Sequence[int]) -> tuple[Mapping[int, range], Set[int]]:
        bounds = {column: found[column] for column in columns}
        search = WindowSearch(tabling, bounds, rows, len(bounds) == target.dim, prior_is_sampled(path), settings,
                              target.charge)  # fmt: skip
        # Windows may be narrower than all values, by a factor that is not known before they are searched; a coordinate
        # with infinitely many counts with one.
        values, too_many = {**dict.fromkeys(bounds, range(1)), **_finite(bounds)}, set[int]()
        costly = tabling.costly(values, settings.max_group, _TRIMMED * most)
        if not costly:
            values, too_many = search.run()
            costly = tabling.costly(values, settings.max_group, most)
        heavy.update(too_many)
        slow.update(costly)
        return values, too_many | costly

    block = largest_block(path, found, settings, windows)
    out = target if block is None else _eliminated(target, block, found, settings)
    kept = len(found) - (0 if block is None else len(block.values))
    if kept:
        out.notes = (_note(kept, len(heavy), len(slow), len(found)),)
        logger.info("path (%s): %s", path.description, out.notes[0])
    return out


def _finite(bounds: Mapping[int, Bounds]) -> dict[int, range]:
    """All values of each coordinate that has finitely many."""
    return {c: range(b.low, b.high + 1) for c, b in bounds.items() if b.low is not None and b.high is not None}


def _note(kept: int, heavy: int, slow: int, found: int) -> str:
    """How many of the variables found are not summed out, and why: so many of them have too many values, and the sum
    over so many of them takes too long."""
    reasons = [
        *["the tables would be too large"] * (kept > heavy + slow),
        *["they need too many values"] * (heavy > 0),
        *["a sum over them takes longer"] * (slow > 0),
    ]
    return f"{kept} of {found} discrete variables were sampled, not summed out: {', or '.join(reasons)}."


def _eliminated(target: Target, block: Block, bounds: Mapping[int, Bounds], settings: Elimination) -> Eliminated:
    """The target without the coordinates of a block. Those of the others that are finite are redrawn in blocks."""
    cut = cut_sides(block.values, bounds)
    if cut:
        logger.info(
            "%d discrete variables of the path (%s) are summed over windows, of %d values at most",
            len(cut), target.path.description, max(len(block.values[column]) for column in cut),
        )  # fmt: skip
    few = {column: values for column, values in _finite(bounds).items() if len(values) <= settings.max_values}
    others = find_cover(target.path, {**few, **block.values}, settings, block.values.keys())
    return Eliminated(target, block, others, cut)
