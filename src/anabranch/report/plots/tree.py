"""The tree of paths with its posterior masses: a line for each decision or family of paths, and a bar beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes

from anabranch import errors
from anabranch.combine.solution import Solution
from anabranch.divide import Line, lines_of
from anabranch.report.leaves import leaves_of
from anabranch.report.palette import BLUE, GREY, SKY
from anabranch.report.table import number, power_of_ten, shortened

__all__ = ["draw_tree"]

BARS = 0.58
"""Where the bars begin, as a share of the width; before them is the text."""
INDENT, CHARACTERS = 0.025, 46
"""Of a level of the tree, as a share of the width; and the characters of a line without indent."""
MIN_MASS, MIN_ROWS = 1e-4, 8
"""Mass of a line that is shown, and rows for which there is room at least."""


def draw_tree(axes: Axes, solutions: Sequence[Solution], weights: np.ndarray, limit: int) -> Axes:
    """The `limit` heaviest ends of the tree; the bars of those that lead on are paler."""
    if not (weights > 0).any():
        raise errors.NoDraws("no path has mass", remedy="Give the run more budget")
    root = lines_of(leaves_of(solutions, weights), limit)
    rows = list(_rows(root, 0)) or [(0, "always", 1.0, True)]
    size = "small" if len(rows) <= 16 else "x-small" if len(rows) <= 26 else "xx-small"
    for row, (depth, text, mass, is_end) in enumerate(rows):
        start = INDENT * depth
        axes.text(start, row, shortened(text, max(CHARACTERS - 2 * depth, 12)), va="center", fontsize=size)
        axes.barh(row, mass * (0.88 - BARS), left=BARS, height=0.6, color=BLUE if is_end else SKY)
        axes.text(0.9, row, number(mass, 3) if mass >= 1e-3 else power_of_ten(mass), va="center", fontsize=size)
        _connect(axes, rows, row, depth)
    axes.set_xlim(0, 1)
    axes.set_ylim(max(len(rows), MIN_ROWS) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_xticks([BARS, (BARS + 0.88) / 2, 0.88], ["0", "0.5", "1"], fontsize="small")
    axes.set_xlabel("posterior probability", x=(BARS + 0.88) / 2)
    axes.spines[["left", "top", "right", "bottom"]].set_visible(False)
    return axes


def _rows(line: Line, depth: int) -> Iterator[tuple[int, str, float, bool]]:
    """Depth, text, mass, and whether nothing is below."""
    shown = [below for below in line.below if below.shown and below.probability >= MIN_MASS]
    for below in shown:
        yield depth, below.text, below.probability, not below.below
        yield from _rows(below, depth + 1)
    left_out = [below for below in line.below if below not in shown]
    if left_out:
        ends, mass = sum(below.ends for below in left_out), sum(below.probability for below in left_out)
        yield depth, f"{ends:,} more", mass, True


def _connect(axes: Axes, rows: Sequence[tuple[int, str, float, bool]], row: int, depth: int) -> None:
    """The line from a row to the one above it that it belongs to."""
    if depth:
        parent = max(i for i in range(row) if rows[i][0] == depth - 1)
        at = INDENT * (depth - 1) + 0.4 * INDENT
        axes.plot([at, at, at + 0.5 * INDENT], [parent + 0.4, row, row], color=GREY, linewidth=0.8)
