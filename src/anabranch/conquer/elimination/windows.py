"""Windows: the values over which a coordinate is summed that has infinitely many, or very many, of them.

A window must have all but a share `tail` of the mass at every point x of the other coordinates where the posterior has
mass. It starts from prior draws, and is judged by the distribution of its coordinate z given x and the data, which the
elimination itself gives (`conditionals`): so the posterior may be where the prior has hardly any mass. With the
probabilities b and a of the outermost block of values and of the one inside it, and r = b/a, what lies beyond is

    b (r + r² + ...) = b r/(1 − r)

or less, if the ratios fall outwards, as those of a log-concave tail do. Where they rise they tend to one or to a
constant, and the tail is longer by a factor: s/(s − 1) if it falls as z^(−s), and to fall below 10⁻¹² within 10⁴ values
s must be above 4. Where r is near one, the bound is large, and the window is widened; a coordinate that needs too many
values is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.conquer.elimination.conditionals import conditionals
from anabranch.conquer.elimination.settings import Elimination
from anabranch.conquer.elimination.tables import Tables
from anabranch.conquer.elimination.tabling import Tabling
from anabranch.divide import Bounds

__all__ = ["NARROW", "Sides", "WindowSearch", "cut_sides", "tails"]

NARROW = 64
"""Values up to which a coordinate is never cut."""
_RIM, _MARGIN = 6, 3
"""One in so many of the values that are needed is added on each side: this rim bounds the mass of the tail. Where there
are other coordinates, for which the windows were judged at some points alone, the rim is wider."""
_DEPTH = 50.0
"""How far, in nats, a point may lie below the highest for its window to count."""
_ROUNDS = 40
"""How often windows are moved or widened."""
_POINTS, _NUMBERS = 128, 2**26
"""Points at which windows are judged, at most, and numbers in their tables."""

Sides = Mapping[int, tuple[bool, bool]]
"""For coordinates whether there may be mass below their window, and above it."""


def cut_sides(windows: Mapping[int, range], bounds: Mapping[int, Bounds]) -> Sides:
    """The sides on which windows end before the values do."""
    sides = {c: (w[0] != bounds[c].low, w[-1] != bounds[c].high) for c, w in windows.items()}
    return {column: each for column, each in sides.items() if any(each)}


def tails(tables: Sequence[Tables], rows: np.ndarray, cut: Sides) -> np.ndarray:
    """At each point the mass beyond the windows relative to the mass within, bounded by the sum over all sides."""
    found = conditionals(tables, rows, list(cut))
    out = np.zeros(len(rows))
    for each, sides in zip(found.probabilities, cut.values(), strict=True):
        out += sum(_beyond(each[:, ::step]) for step, is_cut in zip((-1, 1), sides, strict=True) if is_cut)
    return out


def _beyond(probabilities: np.ndarray) -> np.ndarray:
    """The bound of the mass beyond the last value, at each point: (points, values)."""
    # Blocks, since single values may have no mass, as the odd ones.
    size = max(probabilities.shape[1] // 8, 1)
    last = probabilities[:, -size:].sum(axis=1)
    before = probabilities[:, -2 * size : -size].sum(axis=1)
    with np.errstate(all="ignore"):
        return np.where(last == 0, 0.0, np.where(last < before, last * last / (before - last), np.inf))


@dataclass(frozen=True)
class WindowSearch:
    """The search for the windows of the coordinates that are to be summed out.

    Args:
        tabling: makes the tables for windows, if they are not too large.
        bounds: of the values of each coordinate.
        rows: gives points, in all coordinates of the path, those of higher density first; maybe none.
        is_alone: whether there are no other coordinates.
        is_sampled: whether the points are draws from the stated prior.
        settings: the settings.
        charge: is told how many points were evaluated.
    """

    tabling: Tabling
    bounds: Mapping[int, Bounds]
    rows: Callable[[], np.ndarray]
    is_alone: bool
    is_sampled: bool
    settings: Elimination
    charge: Callable[[int], None]

    def run(self) -> tuple[dict[int, range], set[int]]:
        """The windows, and the coordinates for which there is none."""
        windows = self._start()
        for _ in range(_ROUNDS):
            cut, tables = cut_sides(windows, self.bounds), self.tabling.tables(windows)
            if not cut or tables is None:  # if they are too large for their tables, no window is the reason
                return windows, set()
            failing, needed = self._judged(tables, windows, cut)
            if not failing:
                return self._trimmed(windows, needed), set()
            moved = {column: self._moved(windows[column], column, sides) for column, sides in failing.items()}
            stuck = {column for column in failing if moved[column] == windows[column]}
            if stuck:
                return windows, stuck
            wider = self._fitting([{**windows, **moved}, {**windows, **self._rimmed(needed, _RIM), **moved}])
            if wider is None:
                return windows, self.tabling.kept({**windows, **moved}) or set(failing)
            windows = wider
        return windows, set(failing)

    def _fitting(self, choices: Sequence[Mapping[int, range]]) -> dict[int, range] | None:
        """The first of several windows whose tables are not too large."""
        return next((each for each in map(self._evened, choices) if self.tabling.tables(each) is not None), None)

    # The first windows --------------------------------------------------------------------------------------------

    def _start(self) -> dict[int, range]:
        """All values where they are few enough; else the range of the points and as much again on each side.

        Windows whose tables are too large are halved, around the best point, as long as they can be.
        """
        windows = self._evened({column: self._first(column) for column in self.bounds})
        while self.tabling.tables(windows) is None:
            longest = max(map(len, windows.values()))
            if longest <= NARROW or not len(self.rows()):
                break
            halves = {c: self._around(c, len(w) // 2) for c, w in windows.items() if 2 * len(w) > longest}
            windows = self._evened({**windows, **halves})
        return windows

    def _first(self, column: int) -> range:
        low, high = self.bounds[column]
        if low is not None and high is not None:
            whole = range(low, high + 1)
            if len(whole) <= max(self.settings.max_values, NARROW) or not len(self.rows()):
                return whole
        drawn = self.rows()[:, column]
        least, greatest = int(drawn.min()), int(drawn.max())
        more = max(greatest - least + 1, 8)
        found = self._clipped(column, least - more, greatest + more + 1)
        return found if len(found) <= self.settings.max_values else self._around(column, self.settings.max_values // 2)

    def _around(self, column: int, size: int) -> range:
        """So many values around that of the best point."""
        start = int(self.rows()[0, column]) - size // 2
        return self._clipped(column, start, start + max(size, 1))

    def _clipped(self, column: int, start: int, stop: int) -> range:
        low, high = self.bounds[column]
        start = start if low is None else max(start, low)
        return range(start, max(stop if high is None else min(stop, high + 1), start + 1))

    def _evened(self, windows: Mapping[int, range]) -> dict[int, range]:
        """The windows, some of them wider: of few sizes, so that few operations sum them (`plan`)."""
        largest = max(map(len, windows.values()))
        out = {}
        for column, window in windows.items():
            size = max(-(-largest // 2 ** int(np.log2(largest / len(window)))), len(window))
            stop = self._clipped(column, window[0], window[0] + size)[-1] + 1
            out[column] = self._clipped(column, stop - size, stop)
        return out

    # How good they are --------------------------------------------------------------------------------------------

    def _judged(
        self, tables: Sequence[Tables], windows: Mapping[int, range], cut: Sides
    ) -> tuple[Sides, Mapping[int, range]]:
        """The sides beyond which there is too much mass, and the part of each window that is needed."""
        points = self._points(sum(each.numbers for each in tables))
        self.charge(len(points))
        judged = [conditionals(tables, points, list(cut))]
        if self.is_sampled and not all(each.prior_is_normalised for each in tables):
            # The sum over the prior is taken over the windows, too, and methods propose from the prior.
            judged.append(conditionals(tables, points, list(cut), of_prior=True))
        log_totals = np.nan_to_num(judged[0].log_totals, nan=-np.inf)
        if not (alive := log_totals > max(log_totals.max() - _DEPTH, -np.inf)).any():
            return cut, {}
        failing, needed = {}, {}
        for i, (column, sides) in enumerate(cut.items()):
            of_each = np.concatenate([each.probabilities[i][alive] for each in judged])
            ends = zip((-1, 1), sides, strict=True)
            fails = [is_cut and bool((_beyond(of_each[:, ::s]) > self.settings.tail).any()) for s, is_cut in ends]
            if any(fails):
                failing[column] = (fails[0], fails[1])
            start, stop = _needed(of_each, self.settings.tail)
            needed[column] = windows[column][start:stop]
        return failing, needed

    def _points(self, numbers: int) -> np.ndarray:
        """The points at which windows are judged: the best, and as many others."""
        n, rows = int(np.clip(_NUMBERS // max(numbers, 1), 4, _POINTS)), self.rows()
        if self.is_alone:
            return rows[:1]
        if len(rows) <= n:
            return rows
        best, others = rows[: n // 2], rows[n // 2 :]
        return np.concatenate([best, others[np.linspace(0, len(others) - 1, n - n // 2).astype(int)]])

    # Other windows ------------------------------------------------------------------------------------------------

    def _moved(self, window: range, column: int, fails: tuple[bool, bool]) -> range:
        """Twice as wide where it fails on one side, three times on both; moved, where it cannot be wider."""
        size, limit = len(window), self.settings.max_values
        low, high = fails
        found = self._clipped(column, window[0] - size * low, window[-1] + 1 + size * high)
        if len(found) <= limit:
            return found
        more = max(limit - size, 0)
        if low and high:
            return self._clipped(column, window[0] - more // 2, window[0] - more // 2 + size + more)
        more = more or limit // 2
        start = window[0] - more if low else window[-1] + 1 + more - limit
        return self._clipped(column, start, start + limit)

    def _trimmed(self, windows: Mapping[int, range], needed: Mapping[int, range]) -> dict[int, range]:
        """The windows without what is not needed; but where other points may need it, with the bulk of the points."""
        if self.is_alone:
            choices = [self._rimmed(needed, _RIM)]
        else:
            hulls = {column: self._with_bulk(column, window, windows[column]) for column, window in needed.items()}
            choices = [self._rimmed(hulls, _MARGIN), self._rimmed(hulls, _RIM)]
        choices = [{**windows, **each} for each in choices]
        return self._fitting(choices) or dict(windows)

    def _rimmed(self, windows: Mapping[int, range], share: int) -> dict[int, range]:
        """The windows, on each side wider by one in so many of their values."""
        more = {column: len(window) // share + 1 for column, window in windows.items()}
        return {c: self._clipped(c, w[0] - more[c], w[-1] + 1 + more[c]) for c, w in windows.items()}

    def _with_bulk(self, column: int, needed: range, window: range) -> range:
        """The least window with what is needed and, as far as the window has it, the bulk of the points."""
        ends = np.quantile(self.rows()[:, column], [0.01, 0.99])
        low, high = np.clip(ends, window[0], window[-1]).astype(int).tolist()
        return range(min(needed[0], low), max(needed[-1], high) + 1)


def _needed(probabilities: np.ndarray, tail: float) -> tuple[int, int]:
    """The first and the last value, and one more, between which lies all but this mass on each side, at all points."""
    start, end = (int(np.argmax((np.cumsum(probabilities[:, ::step], axis=1) > tail).any(axis=0))) for step in (1, -1))
    return start, probabilities.shape[1] - end
