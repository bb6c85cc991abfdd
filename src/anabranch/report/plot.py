"""A posterior as one picture: how probable the paths are, their evidence, and marginals of one of them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.combine.solution import Solution

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from anabranch.combine.posterior import Posterior

__all__ = ["plot"]

MOST_PATHS = 10
MOST_MARGINALS = 4
# Of the palette by Okabe and Ito, which people with any kind of colour vision can tell apart.
BLUE, ORANGE, GREY = "#0072B2", "#E69F00", "#7F7F7F"


def plot(posterior: Posterior, solution: Solution, file: str | os.PathLike[str] | None) -> Figure:
    """The figure; needs no display. Marginals are of the continuous sites of the solution's path."""
    # The object itself, not pyplot: that would choose a backend and keep the figure alive.
    from matplotlib.figure import Figure

    marginals = _marginals(solution)
    shown = [s for s in posterior.solutions[:MOST_PATHS] if s.estimate is not None]
    figure = Figure(figsize=(10, 1.5 + 0.35 * len(shown) + (2.4 if marginals else 0)), layout="constrained")
    rows: Any = figure.subfigures(2, 1, height_ratios=[1 + 0.35 * len(shown), 2.4]) if marginals else [figure]
    weight_axes, evidence_axes = rows[0].subplots(1, 2, sharey=True)
    _draw_weights(weight_axes, posterior, shown)
    _draw_evidence(evidence_axes, shown)
    rows[0].suptitle(f"{posterior.program.name}: log evidence {posterior.log_evidence:.3f}")
    if marginals:
        _draw_marginals(rows[1], marginals, solution)
    if file is not None:
        figure.savefig(file, dpi=150)
    return figure


def _draw_weights(axes: Axes, posterior: Posterior, shown: list[Solution]) -> None:
    position = np.arange(len(shown))
    weights, errors = posterior.evidence.weights[: len(shown)], posterior.evidence.weight_sds[: len(shown)]
    axes.barh(position, weights, color=BLUE)
    known = np.isfinite(errors)
    axes.errorbar(weights[known], position[known], xerr=errors[known], fmt="none", ecolor="black", capsize=3)
    axes.set_yticks(position, [_shortened(solution.path.description) for solution in shown])
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    axes.set_xlabel("posterior probability")


def _draw_evidence(axes: Axes, shown: list[Solution]) -> None:
    """Log evidence as dots with errors, and behind them the share of the evaluations."""
    estimates = [solution.estimate for solution in shown if solution.estimate is not None]
    values = np.array([estimate.log_evidence for estimate in estimates])
    errors = np.array([estimate.log_evidence_sd for estimate in estimates])
    known = np.isfinite(values)
    position = np.arange(len(shown))
    axes.errorbar(
        values[known],
        position[known],
        xerr=np.where(np.isfinite(errors), errors, 0.0)[known],
        fmt="o",
        color=ORANGE,
        ecolor="black",
        capsize=3,
    )
    axes.set_xlabel("log evidence (dots)")
    spent = np.array([estimate.evaluations for estimate in estimates], float)
    budget: Any = axes.twiny()
    budget.barh(position, spent / max(spent.sum(), 1.0), color=GREY, alpha=0.25, height=0.5)
    budget.set_xlim(0, 1)
    budget.set_xlabel("share of evaluations (bars)")


def _marginals(solution: Solution) -> dict[str, np.ndarray]:
    """Draws of the first few continuous numbers of a path."""
    values = solution.path.values(solution.points)
    out = {}
    for site in solution.path.sites:
        if not site.discrete:
            for index in np.ndindex(site.shape):
                label = f"{site.name}[{','.join(map(str, index))}]" if index else site.name
                out[label] = values[site.name][(slice(None), *index)]
    return dict(list(out.items())[:MOST_MARGINALS])


def _draw_marginals(figure: Any, marginals: dict[str, np.ndarray], solution: Solution) -> None:
    figure.suptitle(f"path: {_shortened(solution.path.description, 80)}")
    grid = np.atleast_1d(figure.subplots(1, len(marginals)))
    for axes, (name, values) in zip(grid, marginals.items(), strict=True):
        axes.hist(values, bins=40, weights=solution.weights, color=BLUE, density=True)
        axes.set_xlabel(name)
        axes.set_yticks([])


def _shortened(text: str, most: int = 40) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
