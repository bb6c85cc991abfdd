"""The marginal of one variable over all paths that have it, coloured by path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from anabranch import errors
from anabranch.combine.draws import Picked
from anabranch.combine.probability import listed_names, split_name
from anabranch.combine.solution import Solution
from anabranch.report.plots.canvas import OF_PATHS, OTHERS, span
from anabranch.report.plots.weights import short_labels
from anabranch.report.table import percent

__all__ = ["draw_marginal"]

BINS, MAX_VALUES = 40, 30
"""Bins of a histogram; whole numbers with at most so many different values have a bar each."""


class _Values(NamedTuple):
    """The values of a variable at draws of one path."""

    solution: Solution
    values: np.ndarray


def draw_marginal(axes: Axes, name: str, solutions: Sequence[Solution], picked: Sequence[Picked], n: int) -> Axes:
    """Histograms or bars on top of each other, the heaviest path with the variable at the bottom."""
    found = _found(name, solutions, picked)
    total = sum(len(each.values) for each in found)
    named, others = found[: len(OF_PATHS)], found[len(OF_PATHS) :]
    columns, colours = [each.values for each in named], list(OF_PATHS[: len(named)])
    labels = (
        short_labels([each.solution for each in named], lines=1, line=46)
        if len(found) > 1
        else [named[0].solution.path.description]
    )
    if others:
        columns.append(np.concatenate([each.values for each in others]))
        colours.append(OTHERS)
        labels.append(f"{len(others):,} other paths")
    values = np.concatenate(columns)
    if np.array_equal(values, np.round(values)) and len(np.unique(values)) <= MAX_VALUES:
        _draw_bars(axes, columns, colours, labels, n)
    else:
        low, high = span(values, np.ones(len(values)))
        weights = [np.full(len(each), BINS / (n * (high - low))) for each in columns]
        axes.hist(columns, bins=BINS, range=(low, high), weights=weights, stacked=True, color=colours, label=labels)
        axes.set_ylabel("posterior density")
    if total < n:
        axes.set_title(
            f"{percent(round(total / n, 3))} of the mass is on paths with {name}", fontsize="small", loc="left"
        )
    axes.set_xlabel(name)
    axes.legend(fontsize="x-small", loc="best")
    return axes


def _draw_bars(
    axes: Axes, columns: Sequence[np.ndarray], colours: Sequence[str], labels: Sequence[str], n: int
) -> None:
    places = np.unique(np.concatenate(columns))
    height = np.zeros(len(places))
    for values, colour, label in zip(columns, colours, labels, strict=True):
        shares = np.array([(values == place).sum() for place in places]) / n
        axes.bar(places, shares, bottom=height, width=0.7, color=colour, label=label)
        height += shares
    axes.set_ylim(0, 1.1 * height.max())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylabel("posterior probability")


def _found(name: str, solutions: Sequence[Solution], picked: Sequence[Picked]) -> list[_Values]:
    """The values at the draws that have the variable, for each path, the heaviest path first."""
    out = []
    for each in picked:
        place = split_name(each.solution.path, name)
        if place is None:
            continue
        parts = []
        for named in each.solution.path.outcomes(each.points):
            if place.name in named.values:
                values = named.values[place.name]
            elif place.name in named.deterministics:
                values = np.asarray(named.deterministics[place.name])
                if not named.varies[0][place.name]:
                    values = np.broadcast_to(values, (len(named.index), *values.shape))
            else:
                continue
            if values.ndim - 1 != len(place.element):
                raise errors.UnknownName(
                    f"{name!r} has the shape {values.shape[1:]}: one number of it is drawn",
                    remedy=f"Name one, as in {place.name}[{','.join('0' * (values.ndim - 1))}]",
                )
            parts.append(np.asarray(values[(slice(None), *place.element)], float))
        if parts:
            out.append(_Values(each.solution, np.concatenate(parts)))
    if not out:
        raise errors.UnknownName(f"none of the draws has {name!r}", remedy=f"There are: {listed_names(solutions)}")
    return sorted(out, key=lambda each: -len(each.values))
