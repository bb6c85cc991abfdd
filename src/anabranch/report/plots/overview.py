"""A posterior as one figure: the weights and the evidence of the heaviest paths, and marginals of one of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Solution
from anabranch.report.palette import BLUE, GREY, ORANGE
from anabranch.report.plots.canvas import NotebookFigure, span
from anabranch.report.plots.pairs import numbers_of
from anabranch.report.plots.weights import draw_weights
from anabranch.report.summary import MAX_PATHS, evidence_in_words
from anabranch.report.table import shortened, without_repeats

__all__ = ["overview"]

MAX_MARGINALS = 4
MAX_LINEAR_RANGE = 50.0
"""The range of log evidences, in nats, above which their axis is logarithmic."""


def overview(
    name: str,
    solutions: Sequence[Solution],
    evidence: Evidence,
    evaluations: int,
    chosen: Solution,
    file: str | os.PathLike[str] | None,
) -> Figure:
    """The figure, with the marginals of the continuous sites of the chosen path; needs no display.

    Solutions and evidence are in the same order, and `evaluations` are those of the whole run.
    """
    marginals = _marginals(chosen)
    shown = [s for s in solutions[:MAX_PATHS] if s.estimate is not None]
    height = 1 + 0.4 * len(shown)
    figure = NotebookFigure(figsize=(12, 0.5 + height + (2.4 if marginals else 0)), layout="constrained")
    rows: Any = figure.subfigures(2, 1, height_ratios=[height, 2.4]) if marginals else [figure]
    _draw_paths(rows[0], shown, evidence, evaluations)
    rows[0].suptitle(f"{name}: {evidence_in_words(solutions, evidence)}")
    if marginals:
        _draw_marginals(rows[1], marginals, chosen)
    if file is not None:
        figure.savefig(file, dpi=150)
    return figure


def _draw_paths(figure: Any, shown: list[Solution], evidence: Evidence, evaluations: int) -> None:
    """Panels side by side: weights, log evidences if the engine estimates them, and evaluations."""
    if evidence.log_evidence is None:
        weights, spent = figure.subplots(1, 2, sharey=True, width_ratios=[8, 2.3])
    else:
        weights, log_evidences, spent = figure.subplots(1, 3, sharey=True, width_ratios=[4, 4, 2.3])
        _draw_evidence(log_evidences, shown)
    draw_weights(weights, shown, evidence)
    each = [solution.estimate.evaluations for solution in shown if solution.estimate is not None]
    spent.barh(np.arange(len(shown)), np.array(each) / max(evaluations, sum(each), 1), color=GREY, height=0.5)
    spent.set_xlim(0, None)
    spent.locator_params(axis="x", nbins=3)
    spent.set_xlabel("share of evaluations (bars)", fontsize="small")


def _draw_evidence(axes: Axes, shown: list[Solution]) -> None:
    """Dots with error bars, hollow if the error is infinite.

    Where the paths differ by many nats, the axis is logarithmic, in nats below the heaviest path.
    """
    values = np.array([solution.log_evidence for solution in shown], float)
    errors = np.array([solution.estimate.log_evidence_sd for solution in shown if solution.estimate is not None], float)
    known = np.isfinite(values)
    values, errors, position = values[known], errors[known], np.flatnonzero(known)
    best = np.max(values, initial=-np.inf)
    farthest = best - np.min(values, initial=best)
    if farthest > MAX_LINEAR_RANGE:
        values = values - best
        axes.set_xscale("symlog", linthresh=1.0)
        # Ticks at powers of ten down to beyond the farthest path, at most about eight.
        powers = np.arange(np.ceil(np.log10(farthest)) + 1)
        chosen = -(10.0 ** powers[:: -(len(powers) // 8 + 1)])
        axes.set_xticks([*chosen, 0.0], [*(f"{each:,.0f}" for each in chosen), "0"], fontsize="x-small")
        axes.set_xticks([], minor=True)
        axes.set_title("nats below the heaviest path", fontsize="small")
    else:
        axes.locator_params(axis="x", nbins=5)
    sure = np.isfinite(errors)
    axes.errorbar(values[sure], position[sure], xerr=errors[sure], fmt="o", color=ORANGE, ecolor="black", capsize=3)
    axes.plot(values[~sure], position[~sure], "o", color=ORANGE, markerfacecolor="white")
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("log evidence (dots)")


def _marginals(solution: Solution) -> dict[str, np.ndarray]:
    """Draws of the first few continuous numbers of a path."""
    return dict(list(numbers_of(solution, solution.points).items())[:MAX_MARGINALS])


def _draw_marginals(figure: Any, marginals: dict[str, np.ndarray], solution: Solution) -> None:
    figure.suptitle(f"path: {shortened(without_repeats(solution.path.description), 110)}", fontsize="medium")
    grid = np.atleast_1d(figure.subplots(1, len(marginals)))
    for axes, (name, values) in zip(grid, marginals.items(), strict=True):
        axes.hist(values, bins=40, range=span(values, solution.weights), weights=solution.weights, color=BLUE)
        axes.set_xlabel(shortened(name, 32))
        axes.locator_params(axis="x", nbins=4)
        axes.set_yticks([])
