"""Pictures of a posterior, one per file. Each is drawn into axes, given or new, and returns them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from anabranch.combine.draws import checked_number, pick
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.report.plots.canvas import axes_or_new
from anabranch.report.plots.decisions import draw_decisions
from anabranch.report.plots.history import draw_history
from anabranch.report.plots.marginal import draw_marginal
from anabranch.report.plots.overview import overview
from anabranch.report.plots.pairs import draw_pairs
from anabranch.report.plots.predictive import chosen_name, draw_predictive, observed_values
from anabranch.report.plots.resources import draw_resources
from anabranch.report.plots.tree import draw_tree
from anabranch.report.plots.weights import draw_weights
from anabranch.report.summary import MAX_PATHS, MIN_WEIGHT, shown_decisions
from anabranch.settings import whole

__all__ = ["Plots"]

File = str | os.PathLike[str] | None


@dataclass(frozen=True, repr=False)
class Plots:
    """Pictures of a posterior: `posterior.plot()` is an overview, `posterior.plot.tree()` and so on one picture each.

    A picture is drawn into the axes `ax`, or into a new figure of 6 by 4 inches, which a notebook shows. It returns its
    axes, and is also written to `file`: `posterior.plot.tree(file="tree.png")`. No picture uses pyplot.

    Attributes:
        name: of the program.
        solutions: the paths with their estimates, the heaviest first.
        evidence: in the order of the solutions.
        run: how the run went.
        choose: the solution with a given description, or the heaviest.
        replicate: replicated data by the name of the observation, given their number and a seed.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0)
        >>> posterior.plot.marginal("z1").get_xlabel()
        'z1'
    """

    name: str
    solutions: Sequence[Solution]
    evidence: Evidence
    run: Run
    choose: Callable[[str | None], Solution]
    replicate: Callable[[int, int], dict[str, Any]]

    def __call__(self, path: str | None = None, file: File = None) -> Figure:
        """An overview: weight, evidence and evaluations of the heaviest paths; also written to `file`.

        Below are marginals of one path: the heaviest, or the one with this description.
        """
        return overview(self.name, self.solutions, self.evidence, self.run.evaluations, self.choose(path), file)

    def tree(self, ax: Axes | None = None, *, limit: int = 12, file: File = None) -> Axes:
        """The tree of paths, with the posterior probability of each line; families of paths are one line."""
        return _written(
            draw_tree(axes_or_new(ax), self.solutions, self.evidence.weights, whole(1)("limit", limit)), file
        )

    def weights(self, ax: Axes | None = None, *, limit: int = MAX_PATHS, file: File = None) -> Axes:
        """The weights of the heaviest paths, with their errors; those below 1e-6 are left out."""
        with_mass = max(int((self.evidence.weights >= MIN_WEIGHT).sum()), 1)
        shown = self.solutions[: min(whole(1)("limit", limit), with_mass)]
        return _written(draw_weights(axes_or_new(ax), shown, self.evidence), file)

    def history(self, ax: Axes | None = None, *, file: File = None) -> Axes:
        """The log evidence against the evaluations that it took, and its error at the end."""
        return _written(draw_history(axes_or_new(ax), self.run.history, self.evidence), file)

    def resources(self, ax: Axes | None = None, *, file: File = None) -> Axes:
        """The evaluations of each path against its weight."""
        return _written(draw_resources(axes_or_new(ax), self.solutions, self.evidence.weights), file)

    def marginal(self, name: str, ax: Axes | None = None, *, n: int = 5000, seed: int = 0, file: File = None) -> Axes:
        """The marginal of a site or deterministic over all paths that have it, coloured by path, from n draws.

        An element of a vector is named as in `mu[0]`. The area is the probability that an execution has the variable.
        """
        picked = pick(self.solutions, self.evidence.weights, n, seed)
        return _written(draw_marginal(axes_or_new(ax), name, self.solutions, picked, n), file)

    def predictive(
        self,
        name: str | None = None,
        ax: Axes | None = None,
        *,
        x: Any = None,
        n: int = 1000,
        seed: int = 0,
        file: File = None,
    ) -> Axes:
        """Data and intervals of n replicated data sets, in the order of the data, or against inputs `x`.

        The observation is the one with this name, or the first.
        """
        n, seed = checked_number(n, seed)
        data = observed_values(self.solutions[:MAX_PATHS])
        name = chosen_name(name, data)
        drawn = self.replicate(n, seed)
        return _written(
            draw_predictive(axes_or_new(ax), name, data[name], drawn[name], None if x is None else np.asarray(x)), file
        )

    def pairs(
        self,
        path: str | None = None,
        ax: Axes | None = None,
        *,
        names: Sequence[str] | None = None,
        seed: int = 0,
        file: File = None,
    ) -> Axes:
        """Each pair of some continuous variables of one path, the heaviest or the one with this description.

        The panels are inside the axes, as `axes.child_axes`.
        """
        return _written(draw_pairs(axes_or_new(ax), self.choose(path), names, checked_number(1, seed)[1]), file)

    def decisions(self, ax: Axes | None = None, *, file: File = None) -> Axes:
        """The probabilities of the values of decisions, with their errors: for programs with many paths."""
        return _written(draw_decisions(axes_or_new(ax), *shown_decisions(self.solutions, self.evidence)), file)


def _written(axes: Axes, file: File) -> Axes:
    """The axes; their figure is also written to the file, if one is given."""
    if file is not None:
        axes.figure.figure.savefig(file, dpi=150)  # the whole figure, also of axes in a part of one
    return axes
