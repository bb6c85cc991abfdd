"""A comparison of models as text, HTML and a figure."""

from __future__ import annotations

import html as escaping
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from anabranch.report.palette import BLUE, GREY, ORANGE
from anabranch.report.table import html_table, shortened, text_table, with_error

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["html", "plot", "text"]

HEADER = ["model", "log evidence", "log Bayes factor", "probability", "elpd", "Δ elpd", "stacking"]
MAX_NAME = 32
"""Characters of the name of a model."""


def text(table: pd.DataFrame, notes: Sequence[str]) -> str:
    """For a terminal."""
    return "\n".join([text_table(HEADER, _rows(table)), *([""] * bool(notes)), *notes])


def html(table: pd.DataFrame, notes: Sequence[str]) -> str:
    """For a notebook."""
    return (
        f"<div>{html_table(HEADER, _rows(table))}{''.join(f'<p>{escaping.escape(each)}</p>' for each in notes)}</div>"
    )


def _rows(table: pd.DataFrame) -> list[list[str]]:
    columns = ("log_evidence", "log_bayes_factor", "probability", "elpd", "elpd_difference")
    return [
        [shortened(str(name), MAX_NAME)]
        + [_cell(row[column], row[f"{column}_sd"]) for column in columns]
        + ["-" if np.isnan(row["stacking_weight"]) else f"{row['stacking_weight']:.2f}"]
        for name, row in table.iterrows()
    ]


def _cell(value: float, error: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.4g}" if np.isnan(error) else with_error(value, error)


def plot(table: pd.DataFrame, file: str | os.PathLike[str] | None) -> Figure:
    """Three panels side by side, with a row for each model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 1.4 + 0.4 * len(table)), layout="constrained")
    factors, probabilities, elpds = figure.subplots(1, 3, sharey=True)
    _draw(factors, table.log_bayes_factor, table.log_bayes_factor_sd, ORANGE, "log Bayes factor")
    rows = np.arange(len(table))
    probabilities.barh(rows, np.nan_to_num(table.probability), color=BLUE, height=0.5)
    probabilities.set_xlim(0, 1)
    probabilities.set_xlabel("posterior probability")
    _draw(elpds, table.elpd_difference, table.elpd_difference_sd, GREY, "elpd, relative to the best")
    factors.set_yticks(rows, [shortened(name, MAX_NAME) for name in table.index])
    factors.invert_yaxis()
    if file is not None:
        figure.savefig(file, dpi=150)
    return figure


def _draw(axes: Axes, values: pd.Series, errors: pd.Series, colour: str, label: str) -> None:
    """Dots with error bars; none where a value is not known, and no bar where the error is not."""
    bars = np.where(np.isfinite(errors), errors, 0.0)
    axes.errorbar(values, np.arange(len(values)), xerr=bars, fmt="o", color=colour, ecolor="black", capsize=3)
    axes.axvline(0.0, color=GREY, linewidth=0.8)
    axes.locator_params(axis="x", nbins=5)
    axes.set_xlabel(label)
