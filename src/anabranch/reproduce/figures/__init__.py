"""The figures of the paper, and two of our own, from the records of runs."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from anabranch.reproduce.figures.convergence import convergence
from anabranch.reproduce.figures.induction import functions, resources
from anabranch.reproduce.figures.mixture import (
    distance,
    evidence,
    misspecified_probability,
    predictive,
    probability,
    visits,
)
from anabranch.reproduce.figures.panels import times
from anabranch.reproduce.figures.planar import clusters
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["FIGURES", "draw_all"]

_DRAWN = (
    clusters,
    predictive,
    evidence,
    probability,
    distance,
    visits,
    misspecified_probability,
    functions,
    resources,
    convergence,
    times,
)
FIGURES: dict[str, Callable[[Sequence[Record], Truths], Figure | None]] = {draw.__name__: draw for draw in _DRAWN}


def draw_all(records: Sequence[Record], truths: Truths, folder: str | os.PathLike[str]) -> None:
    """Write each figure that has data to folder/figures, as PNG and SVG, and remove the others from there."""
    target = Path(folder) / "figures"
    target.mkdir(parents=True, exist_ok=True)
    for name, draw in FIGURES.items():
        figure = draw(records, truths)
        png, svg = target / f"{name}.png", target / f"{name}.svg"
        if figure is None:
            png.unlink(missing_ok=True)
            svg.unlink(missing_ok=True)
            continue
        figure.savefig(png, dpi=150)
        figure.set_layout_engine("none")  # keep the layout, whose computation takes a while
        with matplotlib.rc_context({"svg.hashsalt": svg.name}):  # identical bytes for identical records
            figure.savefig(svg, dpi=150, metadata={"Date": None})
