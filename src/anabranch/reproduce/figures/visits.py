"""Which numbers of clusters a method visits under the misspecified prior: figure 5 of the paper, left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from anabranch.reproduce.figures.labels import METHODS, runs_of
from anabranch.reproduce.figures.panels import panel_grid
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["visits"]


def visits(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of K against evaluations in the first run of each method."""
    runs = {method: found[0] for method, found in runs_of(records, "misspecified").items()}
    runs = {method: run for method, run in runs.items() if run["visits"]["K"]}
    if not runs:
        return None
    figure, panels = panel_grid(len(runs), 1, (9, 2.1), ("evaluations of the density", "K visited"))
    for axes, (name, run) in zip(panels, runs.items(), strict=True):
        method = METHODS[name]
        evaluations = np.maximum(run["visits"]["evaluations"], 1)  # a logarithmic axis has no zero
        axes.plot(evaluations, run["visits"]["K"], ".", color=method.colour, markersize=3, alpha=0.6, rasterized=True)
        axes.axhline(5, color="black", linestyle="--", linewidth=1, label="K = 5, which has most of the posterior")
        axes.set_title(f"{method.label}, run {run['seed']}", fontsize=10)
        axes.grid(alpha=0.3)
    panels[0].set(xscale="log", ylim=(0, None))
    figure.suptitle("Numbers of clusters visited under the misspecified prior")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center")
    return figure
