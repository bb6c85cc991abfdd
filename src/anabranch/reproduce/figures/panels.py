"""Parts of several figures: a grid of panels, and strips with one point per run."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.reproduce.figures.labels import METHODS

__all__ = ["SMALL", "draw_strips", "panel_grid", "strip_height"]

SMALL = 9
"""The smallest font size, in points."""


def panel_grid(n: int, columns: int, size: tuple[float, float], labels: tuple[str, str]) -> tuple[Figure, list[Axes]]:
    """A figure of panels with common axes, each of the given size in inches; empty ones are removed."""
    columns = min(columns, n)
    rows = -(-n // columns)
    figure = Figure(figsize=(columns * size[0], rows * size[1] + 1), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    panels = list(grid.flat)
    for empty in panels[n:]:
        empty.remove()
    # Labels of the whole figure would overlap with a legend outside the axes.
    for lowest in panels[max(n - columns, 0) : n]:
        lowest.tick_params(labelbottom=True)
        lowest.set_xlabel(labels[0])
    for leftmost in panels[:n:columns]:
        leftmost.set_ylabel(labels[1])
    return figure, panels[:n]


def strip_height(methods: int) -> float:
    """The height in inches of the strips of so many methods."""
    return 1.0 + 0.42 * methods


def draw_strips(axes: Axes, values: Mapping[str, Sequence[float]], text: Callable[[float], str]) -> None:
    """One row per method with a point per run, a bar at the median, and the numbers beside it."""
    for place, (name, numbers) in enumerate(values.items()):
        method = METHODS[name]
        spread = np.linspace(-0.28, 0.28, len(numbers)) if len(numbers) > 1 else np.zeros(1)
        middle = float(np.median(numbers))
        looks: dict[str, Any] = {"color": method.colour, "markersize": 5, "alpha": 0.75, "clip_on": False, "zorder": 3}
        axes.plot(numbers, place + spread, method.marker, **looks)
        axes.plot([middle, middle], [place - 0.36, place + 0.36], color=method.colour, linewidth=2)
        words = text(middle)
        if len(numbers) > 1:
            words += f" ({text(min(numbers))} – {text(max(numbers))})"
        axes.text(1.03, place, words, transform=axes.get_yaxis_transform(), va="center", fontsize=SMALL)
    axes.text(1.03, -0.75, "median (min – max)", transform=axes.get_yaxis_transform(), va="bottom", fontsize=SMALL)
    axes.set_yticks(range(len(values)), [METHODS[name].label for name in values])
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.grid(axis="x", alpha=0.3)
