"""Replicated data beside the data: intervals of the posterior predictive distribution at each datum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from anabranch import errors
from anabranch.combine.solution import Solution
from anabranch.report.palette import BLUE, SKY, VERMILLION

__all__ = ["draw_predictive", "observed_values"]

INTERVALS = ((0.95, SKY, 0.45), (0.5, BLUE, 0.45))
"""Probability, colour and opacity of the bands."""


def observed_values(solutions: Sequence[Solution]) -> dict[str, np.ndarray]:
    """The data by the name of the observation, as the first path that has it observed them."""
    out: dict[str, np.ndarray] = {}
    for solution in solutions:
        for recording in solution.path.recordings:
            for each in recording.observations:
                if (
                    each.is_data
                    and each.name not in out
                    and isinstance(each.inputs[0], np.ndarray | np.generic | float | int)
                ):
                    out[each.name] = np.asarray(each.inputs[0])
    return out


def draw_predictive(axes: Axes, name: str, data: np.ndarray, replicates: Any, x: np.ndarray | None) -> Axes:
    """Bands over the data in their order, or over inputs x; dots are the data."""
    drawn = _rows(name, replicates)
    flat = np.ravel(data)
    place = np.arange(len(flat)) if x is None else np.ravel(x)
    if len(place) != len(flat) or drawn.shape[1] != len(flat):
        raise errors.BadSetting(f"x must have one number for each of the {len(flat)} data of {name}; got {len(place)}")
    order = np.argsort(place, kind="stable")
    for probability, colour, alpha in INTERVALS:
        low, high = np.quantile(drawn, [(1 - probability) / 2, (1 + probability) / 2], axis=0)
        label = f"{100 * probability:.0f} % of replicated data"
        if x is None:
            axes.vlines(
                place, low, high, color=colour, alpha=alpha, linewidth=max(2.0, min(12.0, 180 / len(flat))), label=label
            )
        else:
            axes.fill_between(
                place[order], low[order], high[order], color=colour, alpha=alpha, linewidth=0, label=label
            )
    axes.plot(place, flat, "o", color=VERMILLION, markersize=4, label="data")
    if x is None:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("number of the datum" if x is None else "x")
    axes.set_ylabel(name)
    axes.legend(fontsize="small", loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False)
    return axes


def _rows(name: str, replicates: Any) -> np.ndarray:
    """One row of numbers for each draw that has the observation."""
    if isinstance(replicates, list):
        raise errors.BadSetting(
            f"the data of {name!r} have another shape on other paths, and cannot be drawn together",
            remedy="Draw posterior.replicate(n) of the paths of interest by hand",
        )
    rows = np.ma.asarray(replicates)
    rows = rows.reshape(len(rows), -1)
    present = ~np.ma.getmaskarray(rows).any(axis=1)
    return np.asarray(rows[present], float)


def chosen_name(name: str | None, data: Mapping[str, np.ndarray]) -> str:
    """The name of the observation, or of the first one."""
    if name is None and data:
        return next(iter(data))
    if name not in data:
        known = f"There are: {', '.join(data)}" if data else "Its factors have no data"
        raise errors.UnknownName(
            f"the program observes no data {name!r}" if name else "the program observes no data", remedy=known
        )
    assert name is not None
    return name
