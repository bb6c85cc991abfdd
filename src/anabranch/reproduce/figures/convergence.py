"""The error of log Z against evaluations, of the paper's algorithm and of the default, with the slope."""

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from anabranch.reproduce.convergence import errors_of
from anabranch.reproduce.figures.labels import METHODS, runs_of
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["convergence"]


def convergence(records: Sequence[Record], truths: Truths) -> Figure | None:
    """A figure of the root mean square error of log Z on function induction, on logarithmic axes."""
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    for name, runs in runs_of(records, "convergence").items():
        method, errors = METHODS[name], errors_of(runs, truths.induction)
        if errors is None:
            continue
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        looks: dict[str, Any] = {"color": method.colour, "linestyle": method.line}
        axes.step(errors.evaluations, errors.error, where="post", label=f"{method.label}, {count}", **looks)
        if errors.slope == errors.slope:
            ends = errors.evaluations[[0, -1]].clip(errors.start)
            words = f"slope {errors.slope:.2f}"
            axes.plot(ends, errors.constant * ends**errors.slope, color=method.colour, linewidth=0.8, label=words)
    if not axes.lines:
        return None
    axes.set(xscale="log", yscale="log", xlabel="evaluations of the density", ylabel="error of log Z (nats)")
    axes.set_title("Error of the evidence of function induction: root mean square over the runs")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    return figure
