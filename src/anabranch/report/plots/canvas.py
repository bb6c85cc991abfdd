"""Figures and axes that draw themselves in a notebook; pyplot, with its global state, is not used."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from anabranch.report.palette import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION

__all__ = ["OF_PATHS", "OTHERS", "NotebookFigure", "axes_or_new", "span"]

SIZE = (6.0, 4.0)
"""Of a figure with one picture, in inches."""
OF_PATHS, OTHERS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILLION), GREY
"""Colours of the heaviest paths, and of all others."""
SHOWN_MASS = 0.999
"""The posterior mass that a histogram spans; a few draws of small weight may lie far away."""


def _png(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=100)
    return file.getvalue()


class NotebookFigure(Figure):
    """A figure that a notebook shows when it is the last value of a cell."""

    def _repr_png_(self) -> bytes:
        return _png(self)


class NotebookAxes(Axes):
    """Axes whose figure a notebook shows when they are the last value of a cell."""

    def _repr_png_(self) -> bytes:
        figure = self.figure
        while isinstance(figure, SubFigure):
            figure = figure.figure
        assert isinstance(figure, Figure)
        return _png(figure)


def axes_or_new(ax: Axes | None) -> Axes:
    """The axes that were given, or those of a new figure of 6 by 4 inches."""
    if ax is not None:
        return ax
    figure: Any = NotebookFigure(figsize=SIZE, layout="constrained")
    axes: Axes = figure.add_subplot(axes_class=NotebookAxes)
    return axes


def span(values: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """The interval that holds the mass shown, with a margin."""
    order = np.argsort(values)
    cumulative = np.cumsum(weights[order]) / weights.sum()
    tail = (1 - SHOWN_MASS) / 2
    first, last = np.searchsorted(cumulative, [tail, 1 - tail])
    low, high = values[order[first]], values[order[min(last, len(order) - 1)]]
    margin = 0.05 * (high - low) or 0.5
    return float(low - margin), float(high + margin)
