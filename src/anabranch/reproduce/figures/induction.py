"""Function induction, section 7.3: figures 6 and 7 of the paper."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.programs import function_induction_data, function_induction_test_data
from anabranch.report.palette import BLUE, GREY, ORANGE
from anabranch.reproduce.figures.labels import METHODS, PALETTE, Line, runs_of
from anabranch.reproduce.figures.panels import panel_grid
from anabranch.reproduce.records import Record
from anabranch.reproduce.rows import best_run, heavy_paths
from anabranch.reproduce.truth import InductionTruth, Truths

__all__ = ["formula", "functions", "resources", "runs_with_resources"]

Resource = Mapping[str, list[Any]]
"""One path of a record, by visit: evaluations of the run so far, log Z_k, and evaluations spent on the path."""

MAX_PATHS = 8
MAX_NATS = 60.0
"""The range of the evidence axis below the best path: lower paths have no posterior mass."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
MAX_MARKERS = 20
LIGHT = "#C8C8C8"
STYLES: tuple[Line, ...] = ("-", (0.0, (6.0, 1.5)), "-.", (0.0, (3.0, 1.0, 1.0, 1.0, 1.0, 1.0)))


def functions(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of posterior functions, of each method's run with the highest LPPD, and the exact ones (figure 6)."""
    found = runs_of(records, "induction")
    if not found:
        return None
    best = {method: best_run(runs) for method, runs in found.items()}
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


def resources(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of log Z_k of the heaviest paths, and what was spent on them, in the first runs of DCC (figure 7)."""
    runs = runs_with_resources(records)
    if not runs:
        return None
    visited = dict.fromkeys(path for run in runs.values() for path in run["resources"])
    paths = heavy_paths(visited, truths.induction, MAX_PATHS)
    figure = Figure(figsize=(1 + 5.2 * len(runs), 8.5), layout="constrained")
    grid = figure.subplots(2, len(runs), sharex=True, sharey="row", squeeze=False)
    for (above, below), (method, run) in zip(grid.T, runs.items(), strict=True):
        above.set_title(f"{METHODS[method].label}, run {run['seed']}", fontsize=10)
        _draw_run(above, below, run, paths)
        _draw_truth(above, truths.induction, paths)
        below.set_xlabel("evaluations of the density, in all")
    limits = _limits(runs, truths.induction, paths)
    grid[0, 0].set(xscale="log", ylabel="log evidence of the path (nats), cut below", ylim=limits)
    grid[1, 0].set(yscale="log", ylabel="evaluations spent on the path")
    figure.suptitle("Evidence of the paths of function induction, and what was spent on them")
    figure.legend(*grid[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def runs_with_resources(records: Sequence[Record]) -> dict[str, Record]:
    """The first run of function induction by each method that counts evaluations by path."""
    first = {method: found[0] for method, found in runs_of(records, "induction").items()}
    return {method: run for method, run in first.items() if run["resources"]}


def formula(shape: str) -> str:
    """The formula of a shape, without coefficients.

    >>> formula("x+sx2"), formula("sin(x+x2)")
    ('x + sin(x²)', 'sin(x + x²)')
    """
    return re.sub(r"\bs(x²?)", r"sin(\1)", shape.replace("x2", "x²").replace("+", " + "))


def _draw_run(above: Axes, below: Axes, run: Record, paths: list[str]) -> None:
    """The heaviest paths in colour, the others thin and grey."""
    for path, resource in run["resources"].items():
        if path not in paths:
            _draw_path(above, below, resource, run["evaluations"], color=LIGHT, linewidth=0.7, zorder=1)
    for order, path in enumerate(paths):
        looks: dict[str, Any] = {"color": PALETTE[order], "linewidth": 1.8, "markersize": 4}
        looks |= {"linestyle": STYLES[order % len(STYLES)], "marker": MARKERS[order]}
        above.plot([], [], **looks, label=formula(path))
        if path in run["resources"]:
            _draw_path(above, below, run["resources"][path], run["evaluations"], **looks)
    above.plot([], [], color=LIGHT, linewidth=0.7, label="other paths")
    for axes in (above, below):
        axes.grid(alpha=0.3)


def _draw_path(above: Axes, below: Axes, resource: Resource, end: int, **looks: Any) -> None:
    """Steps from visit to visit and to the end of the run, with markers at the visits."""
    visits = len(resource["evaluations"])
    evaluations = [*resource["evaluations"], end]
    every = list(range(0, visits, max(visits // MAX_MARKERS, 1)))
    log_evidence, spent = (np.array([*resource[key], resource[key][-1]], float) for key in ("log_evidence", "spent"))
    above.step(evaluations, log_evidence, where="post", markevery=every, **looks)
    below.step(evaluations, spent, where="post", markevery=every, **looks)


def _draw_truth(axes: Axes, truth: InductionTruth, paths: list[str]) -> None:
    """Dashed lines; mirror images have the same evidence, and their dashes alternate."""
    for order, path in enumerate(paths):
        dashes = (4.0 * (order % 2), (4.0, 4.0))
        axes.axhline(truth.log_evidence_of[path], color=PALETTE[order], linestyle=dashes, linewidth=1)
    axes.plot([], [], color="black", linestyle=(0, (4, 4)), linewidth=1, label="exact, in the colour of the path")


def _limits(runs: dict[str, Record], truth: InductionTruth, paths: list[str]) -> tuple[float, float]:
    """From the lightest path shown, but at most `MAX_NATS` below the heaviest, to the heaviest."""
    shown = [run["resources"][path] for run in runs.values() for path in paths if path in run["resources"]]
    values = [truth.log_evidence_of[path] for path in paths]
    values += [resource["log_evidence"][-1] for resource in shown if resource["log_evidence"][-1] is not None]
    low, high = max(min(values), max(values) - MAX_NATS), max(values)
    margin = 0.15 * (high - low) + 1
    return low - margin, high + margin
