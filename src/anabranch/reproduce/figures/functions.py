"""Posterior functions by each method: figure 6 of the paper."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.programs import function_induction_data, function_induction_test_data
from anabranch.reproduce.figures.labels import BLUE, GREY, METHODS, ORANGE, Record, runs_of
from anabranch.reproduce.figures.panels import panel_grid
from anabranch.reproduce.truth import InductionTruth, Truths

__all__ = ["functions"]


def functions(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of posterior functions from the run of each method with the highest LPPD, beside the exact posterior."""
    runs = {method: _best(found) for method, found in runs_of(records, "induction").items()}
    drawn = {method: run for method, run in runs.items() if run is not None}
    if not drawn:
        return None
    truth = truths.induction
    figure, panels = panel_grid(len(drawn) + (truth is not None), 3, (4, 2.6), ("x", "f(x)"))
    if truth is not None:
        _draw_exact(panels[0], truth)
    for axes, (method, run) in zip(panels[-len(drawn) :], drawn.items(), strict=True):
        for values in run["functions"]["f"]:
            axes.plot(run["functions"]["x"], values, color=GREY, linewidth=0.7, alpha=0.5, rasterized=True)
        axes.set_title(f"{METHODS[method].label}\nrun {run['seed']}: LPPD {run['lppd']:.2f} nats", fontsize=10)
    for axes in panels:
        _draw_points(axes)
    _set_limits(panels[0])
    figure.suptitle("Posterior functions, from the run of each method with the highest LPPD")
    _draw_legend(figure, panels)
    return figure


def _best(runs: list[Record]) -> Record | None:
    """The run with the highest LPPD among those that have functions to show."""
    shown = [run for run in runs if run.get("functions") and run["lppd"] is not None and math.isfinite(run["lppd"])]
    return max(shown, key=lambda run: run["lppd"], default=None)


def _draw_exact(axes: Axes, truth: InductionTruth) -> None:
    mean, sd = np.asarray(truth.predictive_mean), np.asarray(truth.predictive_sd)
    axes.fill_between(truth.predictive_x, mean - 2 * sd, mean + 2 * sd, color="#D0D0D0", label="exact mean ± 2 sd")
    axes.plot(truth.predictive_x, mean, color="black", linewidth=1.2)
    axes.set_title(f"Exact posterior\nLPPD {truth.lppd:.2f} nats", fontsize=10)


def _draw_points(axes: Axes) -> None:
    axes.plot(*function_induction_data(), "o", color=BLUE, markersize=4, label="observed data", zorder=3)
    axes.plot(*function_induction_test_data(), "^", color=ORANGE, markersize=4, label="test data", zorder=3)


def _set_limits(axes: Axes) -> None:
    """A window around the data: a function of a poor posterior may leave it far behind."""
    y = np.concatenate([function_induction_data()[1], function_induction_test_data()[1]])
    axes.set(xlim=(-2, 2), ylim=(y.min() - 1, y.max() + 1))


def _draw_legend(figure: Figure, panels: list[Axes]) -> None:
    handles, labels = panels[0].get_legend_handles_labels()
    function = panels[-1].lines[0]
    figure.legend([*handles, function], [*labels, "posterior functions"], loc="outside lower center", ncols=4)
