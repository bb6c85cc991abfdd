"""A posterior as one figure: the weights and the evidence of the heaviest paths, and marginals of one of them."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Solution
from anabranch.report.palette import BLUE, GREY, ORANGE
from anabranch.report.summary import MAX_PATHS, evidence_in_words
from anabranch.report.table import shortened, with_error, without_repeats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot"]

MAX_MARGINALS = 4
MAX_LINE, MAX_DECISION = 38, 30
"""Characters in a line of a path's label, and in one decision of it."""
MAX_LINEAR_RANGE = 50.0
"""The range of log evidences, in nats, above which their axis is logarithmic."""
SHOWN_MASS = 0.999
"""The posterior mass that the histogram of a marginal spans; a few draws of small weight may lie far away."""


def plot(
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
    # The object itself, not pyplot: that would choose a backend and keep the figure alive.
    from matplotlib.figure import Figure

    marginals = _marginals(chosen)
    shown = [s for s in solutions[:MAX_PATHS] if s.estimate is not None]
    height = 1 + 0.4 * len(shown)
    figure = Figure(figsize=(12, 0.5 + height + (2.4 if marginals else 0)), layout="constrained")
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
    _draw_weights(weights, shown, evidence.weights[: len(shown)], evidence.weight_sds[: len(shown)])
    each = [solution.estimate.evaluations for solution in shown if solution.estimate is not None]
    spent.barh(np.arange(len(shown)), np.array(each) / max(evaluations, sum(each), 1), color=GREY, height=0.5)
    spent.set_xlim(0, None)
    spent.locator_params(axis="x", nbins=3)
    spent.set_xlabel("share of evaluations (bars)", fontsize="small")


def _draw_weights(axes: Axes, shown: list[Solution], weights: np.ndarray, errors: np.ndarray) -> None:
    """Bars, with the numbers beside them: a weight of 1e-30 has no visible length."""
    rows = np.arange(len(shown))
    axes.barh(rows, weights, color=BLUE)
    known = np.isfinite(errors) & (errors > 0)
    low = np.minimum(errors, weights)  # a weight is not negative
    axes.errorbar(weights[known], rows[known], xerr=[low[known], errors[known]], fmt="none", ecolor="black", capsize=3)
    for place, (weight, error) in enumerate(zip(weights, errors, strict=True)):
        text = with_error(float(weight), float(error))
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize="small")
    axes.set_yticks(rows, [_label(solution.path.description) for solution in shown], fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    axes.set_xlabel("posterior probability")


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
    values = solution.path.values(solution.points)
    out = {}
    for site in solution.path.sites:
        if not site.discrete:
            for index in np.ndindex(site.shape):
                label = f"{site.name}[{','.join(map(str, index))}]" if index else site.name
                out[label] = values[site.name][(slice(None), *index)]
    return dict(list(out.items())[:MAX_MARGINALS])


def _draw_marginals(figure: Any, marginals: dict[str, np.ndarray], solution: Solution) -> None:
    figure.suptitle(f"path: {shortened(without_repeats(solution.path.description), 110)}", fontsize="medium")
    grid = np.atleast_1d(figure.subplots(1, len(marginals)))
    for axes, (name, values) in zip(grid, marginals.items(), strict=True):
        span = _span(values, solution.weights)
        axes.hist(values, bins=40, range=span, weights=solution.weights, color=BLUE)
        axes.set_xlabel(shortened(name, 32))
        axes.locator_params(axis="x", nbins=4)
        axes.set_yticks([])


def _span(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """The interval that holds the mass shown, with a margin."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order])
    tail = (1 - SHOWN_MASS) / 2
    first, last = np.searchsorted(cumulative, [tail, 1 - tail])
    low, high = values[order[first]], values[order[min(last, len(order) - 1)]]
    margin = 0.05 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


def _label(description: str) -> str:
    """A description in at most two lines."""
    decisions = without_repeats(re.sub(r" \[\d+ decision sequences\]$", "", description)).split(", ")
    text = shortened(", ".join(shortened(each, MAX_DECISION) for each in decisions), 2 * MAX_LINE - 6)
    return "\n".join(textwrap.wrap(text, MAX_LINE, break_on_hyphens=False))
