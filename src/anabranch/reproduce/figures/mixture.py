"""The mixtures of sections 7.1 and 7.2: figures 3, 4 and 5 of the paper."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.programs import mixture_data
from anabranch.report.table import number
from anabranch.reproduce.figures.labels import METHODS, Method, probability_text, runs_of
from anabranch.reproduce.figures.panels import SMALL, draw_strips, panel_grid, strip_height
from anabranch.reproduce.records import Record
from anabranch.reproduce.rows import distance_of
from anabranch.reproduce.truth import MixtureTruth, Truths

__all__ = ["distance", "evidence", "misspecified_probability", "predictive", "probability", "visits"]

MIN_ERROR = 1e-12
"""Smaller errors are drawn here, on the logarithmic axis."""
BINS = np.linspace(0, 20, 101).tolist()
LARGE_DISTANCE = 0.01
"""The axis of the distances begins here at the latest."""
HEADROOM = 1.6
"""The height of a panel relative to the histogram of the data; densities above it are cut, with a remark."""


def predictive(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the posterior predictive density by each method, over the data (figure 3)."""
    runs = runs_of(records, "gmm")
    if not runs:
        return None
    figure, panels = panel_grid(len(runs), 2, (5.5, 1.9), ("y", "density"))
    highest = HEADROOM * np.histogram(mixture_data(), BINS, density=True)[0].max()
    for axes, (method, found) in zip(panels, runs.items(), strict=True):
        _draw_predictive(axes, METHODS[method], found, truths.gmm)
        peak = max(max(run["predictive"]["density"]) for run in found)
        if peak > highest:
            looks: dict[str, Any] = {"fontsize": SMALL, "bbox": {"color": "white", "alpha": 0.85, "pad": 2}}
            words = f"cut: peaks up to {peak:.1f}"
            axes.text(0.985, 0.93, words, transform=axes.transAxes, ha="right", va="top", **looks)
    panels[0].set(xlim=(0, 20), ylim=(0, highest))
    figure.suptitle(
        "Posterior predictive density of the mixture; the thick line is the first run, thin ones the others"
    )
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _draw_predictive(axes: Axes, method: Method, runs: list[Record], truth: MixtureTruth) -> None:
    axes.hist(mixture_data(), BINS, density=True, color="#D0D0D0", label="data (histogram)")
    for order, run in enumerate(runs):
        width, strength = (1.8, 1.0) if order == 0 else (0.6, 0.45)
        y, density = run["predictive"]["y"], run["predictive"]["density"]
        axes.plot(y, density, color=method.colour, linewidth=width, alpha=strength, rasterized=True)
    exact = truth.predictive_y, truth.predictive_density
    axes.plot(*exact, color="black", linestyle=(0, (3, 2)), linewidth=1, label="exact predictive density")
    axes.set_title(method.label, fontsize=10)


def evidence(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the squared error of log Z against evaluations: median and quartiles (figure 4, left)."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for method, runs in runs_of(records, "gmm").items():
        known = [history for history in map(_known_history, runs) if len(history[0])]
        if known:
            _draw_errors(axes, METHODS[method], known, truths.gmm.log_evidence, len(runs))
    if not axes.lines:
        return None
    axes.set(xscale="log", yscale="log", xlabel="evaluations of the density", ylabel="squared error of log Z (nats²)")
    axes.set_title("Error of the evidence of the mixture: median over the runs, shaded between the quartiles")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def _known_history(run: Record) -> tuple[np.ndarray, np.ndarray]:
    """Evaluations and log Z of a run, where log Z is finite."""
    evaluations, values = (np.array(run["history"][key], float) for key in ("evaluations", "log_evidence"))
    known = np.isfinite(values)
    return evaluations[known], values[known]


def _draw_errors(
    axes: Axes, method: Method, histories: list[tuple[np.ndarray, np.ndarray]], truth: float, runs: int
) -> None:
    first = max(min(evaluations[0] for evaluations, _ in histories), 1.0)
    last = max(evaluations[-1] for evaluations, _ in histories)
    grid = np.clip(np.geomspace(first, last, 200), first, last)  # rounding may put the ends outside
    errors = np.array([_squared_error(*history, truth, grid) for history in histories])
    low, middle, high = np.nanpercentile(errors, [25, 50, 75], axis=0)
    label = method.label if len(histories) == runs else f"{method.label} ({len(histories)} of {runs} runs have a value)"
    axes.fill_between(grid, low, high, color=method.colour, alpha=0.2, linewidth=0, step="post")
    looks: dict[str, Any] = {"color": method.colour, "linestyle": method.line, "marker": method.marker}
    axes.step(grid, middle, where="post", markevery=[*range(0, len(grid), 40), len(grid) - 1], label=label, **looks)


def _squared_error(evaluations: np.ndarray, values: np.ndarray, truth: float, grid: np.ndarray) -> np.ndarray:
    """The error of a run's latest estimate at each grid point, nan before the first."""
    latest = np.searchsorted(evaluations, grid, side="right") - 1
    return np.where(latest >= 0, np.maximum((values[latest] - truth) ** 2, MIN_ERROR), np.nan)


def probability(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of p(K = 5 | y) in every run of every method (figure 4, right)."""
    return _probability(runs_of(records, "gmm"), truths.gmm, "Probability of five clusters, one point per run")


def misspecified_probability(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the same under the misspecified prior (figure 5, right)."""
    title = "Probability of five clusters under the misspecified prior, one point per run"
    return _probability(runs_of(records, "misspecified"), truths.misspecified, title)


def _probability(runs: dict[str, list[Record]], truth: MixtureTruth, title: str) -> Figure | None:
    if not runs:
        return None
    figure = Figure(figsize=(10, strip_height(len(runs)) + 0.6), layout="constrained")
    axes = figure.subplots()
    values = {method: [run["probability"].get("5", 0.0) for run in found] for method, found in runs.items()}
    draw_strips(axes, values, probability_text)
    exact = truth.probability[5]
    axes.axvline(exact, color="black", linestyle="--", linewidth=1, label=f"exact: {probability_text(exact)}")
    axes.set(xlim=(-0.02, 1.02), xlabel="p(K = 5 | y)")
    figure.suptitle(title)
    figure.legend(loc="outside lower center")
    return figure


def distance(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the distance of p(K | y) from the exact one, of the data for which K is uncertain."""
    runs = runs_of(records, "uncertain")
    if not runs:
        return None
    figure = Figure(figsize=(10, strip_height(len(runs)) + 0.3), layout="constrained")
    axes = figure.subplots()
    exact = truths.uncertain.probability
    values = {
        method: [max(distance_of(run["probability"], exact), MIN_ERROR) for run in found]
        for method, found in runs.items()
    }
    draw_strips(axes, values, lambda value: number(value, 2) if value >= 0.001 else f"{value:.1e}")
    lowest = min(LARGE_DISTANCE, *map(min, values.values()))
    axes.set(xscale="log", xlim=(lowest / 2, 1.2), xlabel="distance of p(K | y) from the exact one, in total variation")
    figure.suptitle("Where the number of clusters is uncertain: distance of its posterior from the exact one")
    return figure


def visits(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of K against evaluations in the first run of each method, misspecified prior (figure 5, left)."""
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
