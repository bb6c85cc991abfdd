"""Posterior functions by each method: figure 6 of the paper."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.programs import function_induction_data, function_induction_test_data
from anabranch.report.palette import BLUE, GREY, ORANGE
from anabranch.reproduce.figures.labels import METHODS, runs_of
from anabranch.reproduce.figures.panels import panel_grid
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import InductionTruth, Truths

__all__ = ["functions"]


def functions(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of posterior functions, from the run of each method with the highest LPPD, and the exact posterior."""
    found = runs_of(records, "induction")
    if not found:
        return None
    best = {method: max(runs, key=lambda run: run["lppd"]) for method, runs in found.items()}
    figure, panels = panel_grid(1 + len(best), 3, (4, 2.6), ("x", "f(x)"))
    _draw_exact(panels[0], truths.induction)
    for axes, (method, run) in zip(panels[1:], best.items(), strict=True):
        for values in run["functions"]["f"]:
            axes.plot(run["functions"]["x"], values, color=GREY, linewidth=0.7, alpha=0.5, rasterized=True)
        axes.set_title(f"{METHODS[method].label}\nrun {run['seed']}: LPPD {run['lppd']:.2f} nats", fontsize=10)
    data, test = function_induction_data(), function_induction_test_data()
    for axes in panels:
        axes.plot(*data, "o", color=BLUE, markersize=4, label="observed data", zorder=3)
        axes.plot(*test, "^", color=ORANGE, markersize=4, label="test data", zorder=3)
    # A window around the data: functions of a poor posterior may go far beyond it.
    y = np.concatenate([data[1], test[1]])
    panels[0].set(xlim=(-2, 2), ylim=(y.min() - 1, y.max() + 1))
    figure.suptitle("Posterior functions, from the run of each method with the highest LPPD")
    handles, labels = panels[0].get_legend_handles_labels()
    labels.append("posterior functions")
    figure.legend([*handles, panels[-1].lines[0]], labels, loc="outside lower center", ncols=3)
    return figure


def _draw_exact(axes: Axes, truth: InductionTruth) -> None:
    band = truth.predictive_lower, truth.predictive_upper
    axes.fill_between(truth.predictive_x, *band, color="#D0D0D0", label="exact, 5% to 95%")
    axes.plot(truth.predictive_x, truth.predictive_mean, color="black", linewidth=1.2, label="exact mean")
    axes.set_title(f"Exact posterior\nLPPD {truth.lppd:.2f} nats", fontsize=10)
