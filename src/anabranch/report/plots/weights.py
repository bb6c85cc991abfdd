"""The weights of the heaviest paths, with their errors."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Solution
from anabranch.report.labels import labels_of
from anabranch.report.palette import BLUE
from anabranch.report.table import between_decisions, share_with_error, shortened

__all__ = ["draw_weights", "short_labels"]

MAX_DECISION = 30
"""Characters of a decision in a label."""


def draw_weights(axes: Axes, shown: Sequence[Solution], evidence: Evidence) -> Axes:
    """Bars, with the numbers beside them: a weight of 1e-30 has no visible length."""
    rows = np.arange(len(shown))
    weights, errors = evidence.weights[: len(shown)], evidence.weight_sds[: len(shown)]
    axes.barh(rows, weights, color=BLUE, height=0.6)
    known = np.isfinite(errors) & (errors > 0)
    low = np.minimum(errors, weights)  # a weight is not negative
    axes.errorbar(weights[known], rows[known], xerr=[low[known], errors[known]], fmt="none", ecolor="black", capsize=3)
    for place, (weight, error) in enumerate(zip(weights, errors, strict=True)):
        text = share_with_error(float(weight), float(error))
        axes.text(1.02, place, text, transform=axes.get_yaxis_transform(), va="center", fontsize="small")
    axes.set_yticks(rows, short_labels(shown), fontsize="small")
    axes.invert_yaxis()
    axes.set_xlim(0, None)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel("posterior probability")
    return axes


def short_labels(shown: Sequence[Solution], lines: int = 2, line: int = 38) -> list[str]:
    """The decisions in which the paths differ, each path in at most so many lines of so many characters."""
    return (
        [_short(label, lines, line) for label in labels_of([solution.path for solution in shown])[0]] if shown else []
    )


def _short(label: str, lines: int, line: int) -> str:
    decisions = re.sub(r" \[\d+ decision sequences\]$", "", label).split(", ")
    text = ", ".join(shortened(each, MAX_DECISION) for each in decisions)
    if len(between_decisions(text, line)) > lines:
        text = shortened(text, lines * line - 5 * (lines - 1))
    return "\n".join(between_decisions(text, line)[:lines]) if lines > 1 else text
