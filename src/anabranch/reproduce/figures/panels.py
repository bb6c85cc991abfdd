"""Parts of several figures: a grid of panels, and strips with one point per run, as in the figure of the times."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.report.table import number
from anabranch.reproduce.figures.labels import METHODS, TITLES, runs_of
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["SMALL", "draw_strips", "panel_grid", "strip_height", "times"]

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


def times(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the seconds that each run took, one panel per experiment; the paper has none."""
    runs = {experiment: found for experiment in TITLES if (found := runs_of(records, experiment))}
    if not runs:
        return None
    seconds = {
        experiment: {method: [run["seconds"] for run in those] for method, those in found.items()}
        for experiment, found in runs.items()
    }
    heights = [strip_height(len(values)) for values in seconds.values()]
    figure = Figure(figsize=(10, sum(heights) + 0.6), layout="constrained")
    grid = figure.subplots(len(seconds), 1, sharex=True, squeeze=False, height_ratios=heights)
    for axes, (experiment, values) in zip(grid.flat, seconds.items(), strict=True):
        draw_strips(axes, values, lambda value: number(value, 3))
        axes.set_title(TITLES[experiment], fontsize=10)
    grid[-1, 0].set(xscale="log", xlabel="seconds")
    figure.suptitle("Time per run, one point each")
    return figure
