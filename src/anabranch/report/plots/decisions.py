"""The probabilities of decisions, with their errors: the picture of a program with many paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from anabranch import errors
from anabranch.combine.decisions import ValueProbability
from anabranch.report.palette import BLUE, GREY
from anabranch.report.summary import decision_in_words
from anabranch.report.table import shortened

__all__ = ["draw_decisions"]


def draw_decisions(axes: Axes, rows: Sequence[ValueProbability], left_out: int) -> Axes:
    """A dot for each value, hollow if its error is infinite."""
    if not rows:
        raise errors.UnknownName(
            "no site or deterministic has different values on different paths",
            remedy="Use posterior.plot.weights(), the weights of the paths",
        )
    place = np.arange(len(rows))
    probabilities = np.array([row.probability for row in rows])
    sds = np.array([row.probability_sd for row in rows])
    known = np.isfinite(sds)
    axes.hlines(place, 0, probabilities, color=GREY, linewidth=0.8)
    axes.errorbar(
        probabilities[known],
        place[known],
        xerr=sds[known],
        fmt="o",
        color=BLUE,
        ecolor="black",
        capsize=2,
        markersize=4,
    )
    axes.plot(probabilities[~known], place[~known], "o", color=BLUE, markerfacecolor="white", markersize=4)
    size = "small" if len(rows) <= 16 else "x-small" if len(rows) <= 26 else "xx-small"
    axes.set_yticks(place, [shortened(decision_in_words(row), 34) for row in rows], fontsize=size)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("posterior probability")
    if left_out:
        axes.set_title(f"and {left_out:,} more decisions, in posterior.decisions", fontsize="small", loc="left")
    return axes
