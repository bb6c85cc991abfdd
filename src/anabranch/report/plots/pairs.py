"""Pairs of variables within one path: histograms on the diagonal, draws below it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from anabranch import errors
from anabranch.combine.solution import Solution
from anabranch.conquer.weights import systematic
from anabranch.report.palette import BLUE
from anabranch.report.plots.canvas import span
from anabranch.report.table import shortened, without_repeats

__all__ = ["draw_pairs", "numbers_of"]

MAX_NAMES, DRAWS = 5, 1000
"""Variables and draws that are shown."""
GAP = 0.04
"""Between two panels, as a share of the width."""


def numbers_of(solution: Solution, points: np.ndarray) -> dict[str, np.ndarray]:
    """Every number of the continuous sites of a path at these points: `mu[0]` is the first of a vector."""
    values, out = solution.path.values(points), {}
    for site in solution.path.sites:
        if not site.discrete:
            for index in np.ndindex(site.shape):
                label = f"{site.name}[{','.join(map(str, index))}]" if index else site.name
                out[label] = values[site.name][(slice(None), *index)]
    return out


def draw_pairs(axes: Axes, solution: Solution, names: Sequence[str] | None, seed: int) -> Axes:
    """Panels inside the axes (`axes.child_axes`), one for each pair of the names, or of the first few variables."""
    chosen = systematic(solution.weights, DRAWS, np.random.default_rng(seed))
    columns = numbers_of(solution, solution.points[chosen])
    unknown = [name for name in names or () if name not in columns]
    if unknown or not columns:
        missing = f"no continuous variable {unknown[0]!r}" if unknown else "no continuous variable"
        known = f"It has: {', '.join(columns)}" if columns else "Choose another path"
        raise errors.UnknownName(f"the path ({solution.path.description}) has {missing}", remedy=known)
    shown = list(names or list(columns)[:MAX_NAMES])
    side = (1 + GAP) / len(shown)
    ranges = {name: span(columns[name], np.ones(DRAWS)) for name in shown}
    for i, down in enumerate(shown):
        for j, across in enumerate(shown[: i + 1]):
            panel = axes.inset_axes((j * side, 1 - (i + 1) * side + GAP, side - GAP, side - GAP))
            if i == j:
                panel.hist(columns[down], bins=30, range=ranges[down], color=BLUE)
                panel.set_yticks([])
            else:
                panel.plot(columns[across], columns[down], ".", color=BLUE, markersize=2, alpha=0.4)
                panel.set_ylim(ranges[down])
            panel.set_xlim(ranges[across])
            length = 60 // len(shown)
            below, left = across if i == len(shown) - 1 else "", down if j == 0 and i else ""
            _label(panel, shortened(below, length), shortened(left, length))
    axes.set_axis_off()
    axes.set_title(shortened(without_repeats(solution.path.description), 70), fontsize="small", loc="left")
    return axes


def _label(panel: Axes, below: str, left: str) -> None:
    """Names and numbers on the outer panels alone."""
    panel.locator_params(nbins=3)
    panel.tick_params(labelsize="x-small", labelbottom=bool(below), labelleft=bool(left))
    panel.set_xlabel(below, fontsize="x-small")
    panel.set_ylabel(left, fontsize="x-small")
