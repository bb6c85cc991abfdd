"""The best means and covariances of one and of two clusters: figure 1 of the paper."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse

from anabranch.programs import planar_mixture_data
from anabranch.report.palette import BLUE, VERMILLION
from anabranch.reproduce.figures.panels import panel_grid
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["clusters"]

_DEVIATIONS = 2.0
"""The size of an ellipse, in standard deviations."""


def clusters(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the most probable mean and covariance of each cluster, for each number of clusters (figure 1)."""
    runs = [record for record in records if record["experiment"] == "planar"]
    if not runs:
        return None
    figure, panels = panel_grid(len(runs[0]["best"]), 2, (4.2, 3.8), ("first coordinate", "second coordinate"))
    for axes, best in zip(panels, runs[0]["best"], strict=True):
        axes.plot(*planar_mixture_data().T, "o", color=BLUE, markersize=3, alpha=0.7)
        for mean, covariance in best:
            _draw(axes, np.array(mean), np.array(covariance))
        axes.set_title(f"K = {len(best)}", fontsize=10)
        axes.set_aspect("equal", adjustable="box")
    figure.suptitle("The best point of each path: means, and covariances by ellipses of two deviations")
    return figure


def _draw(axes: Axes, mean: np.ndarray, covariance: np.ndarray) -> None:
    """A mean and the ellipse of a covariance."""
    squares, directions = np.linalg.eigh(covariance)
    width, height = 2 * _DEVIATIONS * np.sqrt(squares)
    angle = np.degrees(np.arctan2(directions[1, 0], directions[0, 0]))
    looks = {"edgecolor": VERMILLION, "facecolor": "none", "linewidth": 1.8}
    axes.add_patch(Ellipse((mean[0], mean[1]), width, height, angle=angle, **looks))
    axes.plot(*mean, "+", color=VERMILLION, markersize=10, markeredgewidth=2)
