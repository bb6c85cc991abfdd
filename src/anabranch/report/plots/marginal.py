"""The marginal of one variable over all paths that have it, coloured by path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from anabranch import errors
from anabranch.combine.draws import Picked
from anabranch.combine.names import Place, listed_names, place_of
from anabranch.combine.outcomes import outcomes_at
from anabranch.combine.solution import Solution
from anabranch.label import Label, is_label
from anabranch.report.plots.canvas import OF_PATHS, OTHERS, span
from anabranch.report.plots.weights import short_labels
from anabranch.report.table import percent, shortened

__all__ = ["draw_marginal"]

BINS, MAX_VALUES = 40, 30
"""Bins of a histogram; whole numbers with at most so many different values have a bar each."""
MAX_COMPUTED = 200
"""Paths on which a variable that is not constant is computed, which takes a run of the program on each."""


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
    if values.dtype.kind == "U":
        _draw_labels(axes, columns, colours, labels, n)
    elif np.array_equal(values, np.round(values)) and len(np.unique(values)) <= MAX_VALUES:
        _draw_bars(axes, columns, colours, labels, n)
    else:
        low, high = span(values, np.ones(len(values)))
        weights = [np.full(len(each), BINS / (n * (high - low))) for each in columns]
        axes.hist(columns, bins=BINS, range=(low, high), weights=weights, stacked=True, color=colours, label=labels)
        axes.set_ylabel("posterior density")
    if total < n:
        share = percent(round(total / n, 3))
        axes.set_title(f"{share} of the posterior mass, on paths with {name}", fontsize="small", loc="left")
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


def _draw_labels(
    axes: Axes, columns: Sequence[np.ndarray], colours: Sequence[str], labels: Sequence[str], n: int
) -> None:
    """A bar for each of the most frequent labels, the most frequent first."""
    texts, counts = np.unique(np.concatenate(columns), return_counts=True)
    shown = texts[np.argsort(-counts, kind="stable")][:MAX_VALUES]
    places = [np.array([k for text in column for k in np.flatnonzero(shown == text)]) for column in columns]
    _draw_bars(axes, places, colours, labels, n)
    small = "small" if len(shown) <= 8 else "x-small"
    axes.set_xticks(np.arange(len(shown)), [shortened(text, 30) for text in shown], rotation=30, ha="right",
                    fontsize=small)  # fmt: skip
    if len(texts) > len(shown):
        axes.set_title(f"the {len(shown)} most frequent of {len(texts):,} labels", fontsize="small", loc="right")


def _found(name: str, solutions: Sequence[Solution], picked: Sequence[Picked]) -> list[_Values]:
    """The values at the draws that have the variable, for each path, the heaviest path first."""
    out, computed = [], 0
    for each in sorted(picked, key=lambda each: -len(each.points)):
        place = place_of(each.solution.path, name)
        if place is None:
            continue
        constant = each.solution.path.constants.get(place.name)
        if constant is not None and not is_label(constant):
            columns = [np.broadcast_to(constant, (len(each.points), *np.shape(constant)))]
        elif computed < MAX_COMPUTED:
            computed += 1
            columns = list(_columns(place, each))
        else:
            continue
        parts = [_element(name, place, column) for column in columns if _reaches(column, place)]
        out += [_Values(each.solution, np.concatenate(parts))] if parts else []
    if not out:
        raise errors.UnknownName(f"none of the draws has {name!r}", remedy=f"There are: {listed_names(solutions)}")
    return out


def _columns(place: Place, picked: Picked) -> Iterator[np.ndarray]:
    """The variable at the draws of a path that have it, in one array for each decision sequence."""
    for named in outcomes_at(picked.solution.path, picked.points):
        if place.name in named.values:
            yield named.values[place.name]
        elif place.name in named.deterministics:
            value = named.deterministics[place.name]
            column = np.asarray(_in_words(value.value) if isinstance(value, Label) else value)
            varies = named.varies[0][place.name]
            yield column if varies else np.broadcast_to(column, (len(named.index), *column.shape))


def _reaches(column: np.ndarray, place: Place) -> bool:
    """Whether a vector is long enough for the element: its length may differ between paths."""
    return column.ndim - 1 != len(place.element) or all(map(int.__lt__, place.element, column.shape[1:]))


def _element(name: str, place: Place, column: np.ndarray) -> np.ndarray:
    """One number of the variable at each draw."""
    if column.ndim - 1 != len(place.element):
        example = f"{place.name}[{','.join('0' * (column.ndim - 1))}]" if column.ndim > 1 else place.name
        raise errors.UnknownName(
            f"{name!r} is no single number: {place.name} has the shape {column.shape[1:]}",
            remedy=f"Name one number, as in {example}",
        )
    index: tuple[Any, ...] = (slice(None), *place.element)
    return column if column.dtype.kind == "U" else np.asarray(column[index], float)


def _in_words(label: Any) -> str:
    return label if isinstance(label, str) else repr(label)
