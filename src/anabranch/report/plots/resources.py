"""Where the run spent its evaluations: those of each path against its weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from anabranch.combine.solution import Solution
from anabranch.report.palette import GREY
from anabranch.report.plots.canvas import OF_PATHS
from anabranch.report.plots.weights import short_labels

__all__ = ["draw_resources"]

LEAST = 1e-12
"""Weight at which lighter paths are drawn, with those without any."""


def draw_resources(axes: Axes, solutions: Sequence[Solution], weights: np.ndarray) -> Axes:
    """A dot for each path that was visited; the heaviest are named."""
    visited = [k for k, solution in enumerate(solutions) if solution.estimate is not None]
    spent = np.array([s.estimate.evaluations for s in solutions if s.estimate is not None], float)
    shares = np.maximum(weights[visited], LEAST)
    named = min(len(OF_PATHS), len(visited))
    axes.scatter(shares[named:], np.maximum(spent[named:], 0.8), s=14, color=GREY, alpha=0.6, linewidth=0)
    for k, label in enumerate(short_labels([solutions[k] for k in visited[:named]], lines=1, line=46)):
        axes.scatter(
            shares[k], max(spent[k], 0.8), s=45, color=OF_PATHS[k], edgecolor="black", linewidth=0.5, label=label
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0.08, y=0.12)
    axes.grid(alpha=0.3)
    axes.set_xlabel(f"posterior probability of the path ({LEAST:g} and less on the left edge)")
    axes.set_ylabel("evaluations of its density")
    if visited:
        axes.legend(fontsize="x-small", title="heaviest paths", title_fontsize="x-small", loc="best")
    return axes
