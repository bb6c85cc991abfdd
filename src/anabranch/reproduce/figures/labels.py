"""Titles of the experiments, labels and looks of the methods: the same in every figure."""

from collections.abc import Sequence
from dataclasses import dataclass

from anabranch.report.palette import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILLION
from anabranch.reproduce.records import Record

__all__ = ["METHODS", "PALETTE", "TITLES", "Line", "Method", "probability_text", "runs_of"]

Line = str | tuple[float, tuple[float, ...]]
"""A line style of matplotlib."""

PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK, GREY)


@dataclass(frozen=True)
class Method:
    """A method's label and looks."""

    label: str
    colour: str
    line: Line
    marker: str


METHODS = {
    "default": Method("Anabranch (default)", BLUE, "-", "o"),
    "paper": Method("DCC, as in the paper", VERMILLION, "--", "s"),
    "is": Method("Importance sampling", GREY, ":", "^"),
    "rmh": Method("RMH, many chains", GREEN, "-.", "D"),
    "rmh_single": Method("RMH, one chain", GREEN, (0.0, (2.0, 2.0)), "d"),
    "rmh_centred": Method("RMH + importance samples", PURPLE, (0.0, (5.0, 1.0, 1.0, 1.0, 1.0, 1.0)), "v"),
    "pg": Method("Particle Gibbs", ORANGE, (0.0, (7.0, 3.0)), "P"),
    "ipmcmc": Method("IPMCMC", SKY, (0.0, (1.0, 3.0)), "X"),
    "bbvi": Method("BBVI", BLACK, (0.0, (3.0, 1.0)), "*"),
}
TITLES = {
    "gmm": "Gaussian mixture",
    "uncertain": "Gaussian mixture, uncertain number of clusters",
    "misspecified": "Gaussian mixture, misspecified prior",
    "induction": "Function induction",
}
"""The experiments that have tables."""


def runs_of(records: Sequence[Record], experiment: str) -> dict[str, list[Record]]:
    """The runs of an experiment by method, in the order of the methods and of the seeds."""
    chosen = sorted((r for r in records if r["experiment"] == experiment), key=lambda record: record["seed"])
    grouped = {method: [r for r in chosen if r["method"] == method] for method in METHODS}
    return {method: runs for method, runs in grouped.items() if runs}


def probability_text(value: float) -> str:
    """A probability to four places; 0 and 1 only if exact.

    >>> [probability_text(value) for value in (0.99761, 0.0, 3e-9, 1 - 3e-9, 1.0)]
    ['0.9976', '0', '< 0.0001', '> 0.9999', '1']
    """
    if 0 < value < 0.00005:
        return "< 0.0001"
    if 0.99995 <= value < 1:
        return "> 0.9999"
    return f"{value:.4f}" if 0 < value < 1 else f"{value:.0f}"
