"""The time that each run took; the paper has no such figure."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from anabranch.report.table import number
from anabranch.reproduce.figures.labels import TITLES, runs_of
from anabranch.reproduce.figures.panels import draw_strips, strip_height
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["times"]


def times(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the seconds that each run took, one panel per experiment."""
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
