"""The pictures of the page, each embedded, with words for those who do not see it."""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from anabranch.errors import AnabranchError
from anabranch.report.page.elements import items, text
from anabranch.report.plots import Plots
from anabranch.report.summary import evidence_in_words
from anabranch.report.table import number, shortened

__all__ = ["figures"]

logger = logging.getLogger("anabranch")

MAX_SVG = 150_000
"""Bytes of a drawing, above which it is embedded as points."""
DPI = 130
MANY_PATHS, REPLICATES, FEW_REPLICATES = 200, 1000, 200
"""Data sets that are drawn, and those where there are many paths, each of which takes its time."""
MAX_CHARACTERS = 160


class Picture(NamedTuple):
    """A picture: its title, what it shows in words, and what draws it."""

    title: str
    words: str
    draw: Callable[[], Axes]


def figures(plots: Plots, marginals: Sequence[str]) -> str:
    """The figures, and sentences on those that could not be drawn."""
    drawn, missing = [], []
    with rc_context({"svg.hashsalt": "anabranch"}):  # the same posterior gives the same bytes
        for picture in _all(plots, marginals):
            try:
                drawn.append(_figure(picture, _embedded(picture.draw())))
            except AnabranchError as error:
                missing.append(f"{picture.title}: {error}")
            except Exception as error:  # a picture is no reason to lose the page after a long run
                logger.warning("the picture %r could not be drawn", picture.title, exc_info=True)
                missing.append(f"{picture.title}: {type(error).__name__}: {error}")
    absent = f"<h3>Pictures that there are not</h3>{items(missing)}" if missing else ""
    return f'<div class="pictures">{"".join(drawn)}</div>{absent}' if drawn or missing else ""


def _all(plots: Plots, marginals: Sequence[str]) -> Iterator[Picture]:
    heaviest, weight = _heaviest(plots)
    replicates = REPLICATES if len(plots.solutions) <= MANY_PATHS else FEW_REPLICATES
    in_front = f"The heaviest is {heaviest}, with {weight}." if heaviest else ""
    yield Picture("Weights of the heaviest paths", f"Bars of posterior probabilities. {in_front}", plots.weights)
    yield Picture("Tree of paths", "The tree above as a picture, with a bar for each line.", plots.tree)
    yield Picture("Decisions", "Dots with the probability of each value, as in the table above.", plots.decisions)
    for name in marginals:
        words = f"Histogram of {name} over all paths that have it, coloured by path."
        yield Picture(f"Posterior of {name}", words, lambda name=name: plots.marginal(name))  # type: ignore[misc]
    yield Picture("Data and replicated data", "Intervals of data drawn from the posterior, and the data as dots.",
                  lambda: plots.predictive(n=replicates))  # fmt: skip
    yield Picture("Pairs of variables", f"Draws of pairs of variables of the path {heaviest}.", plots.pairs)
    ends = evidence_in_words(plots.solutions, plots.evidence)
    yield Picture("Evidence during the run", f"Log evidence against evaluations. At the end: {ends}.", plots.history)
    yield Picture("Where the evaluations went", "Evaluations of each path against its posterior probability.",
                  plots.resources)  # fmt: skip


def _heaviest(plots: Plots) -> tuple[str, str]:
    if not plots.solutions:
        return "", ""
    return shortened(plots.solutions[0].path.description, MAX_CHARACTERS), number(float(plots.evidence.weights[0]), 3)


def _embedded(axes: Axes) -> str:
    """The figure as the address of an image that holds it: a drawing, or points if that is shorter."""
    figure = axes.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    assert isinstance(figure, Figure)
    drawing = _bytes(figure, format="svg", metadata={"Date": None, "Creator": None})
    if len(drawing) <= MAX_SVG:
        return f"data:image/svg+xml;base64,{base64.b64encode(drawing).decode()}"
    return f"data:image/png;base64,{base64.b64encode(_bytes(figure, format='png', dpi=DPI)).decode()}"


def _bytes(figure: Figure, **form: object) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, transparent=True, **form)
    return file.getvalue()


def _figure(picture: Picture, address: str) -> str:
    words = f"{picture.title}: {picture.words}"
    image = f'<img alt="{text(words)}" src="{address}" width="600" height="400">'
    return f"<figure>{image}<figcaption><b>{text(picture.title)}.</b> {text(picture.words)}</figcaption></figure>"
