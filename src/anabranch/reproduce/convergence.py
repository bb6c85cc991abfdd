"""The error of log Z against evaluations, and its slope on logarithmic axes.

error(n) = √(mean over the runs of (log Ẑ(n) − log Z)²) ∝ n^slope,    −1/2 for a mean of independent weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import InductionTruth

__all__ = ["Errors", "errors_of"]

_POINTS = 200
_NEAR = 1.0
"""The slope is that after the last error above this, in nats: before, paths are being found."""


@dataclass(frozen=True)
class Errors:
    """The root mean square error of log Z over runs on a grid of evaluations, and a line that is fitted to its end.

    The line is `constant` n^`slope`, from the evaluations `start` on; nan where there are too few.
    """

    evaluations: np.ndarray
    error: np.ndarray
    start: float
    slope: float
    constant: float

    def at(self, evaluations: float) -> float:
        """The error after so many evaluations; nan outside the grid, but for what a last step did not spend."""
        if not self.evaluations[0] <= evaluations <= 1.02 * self.evaluations[-1]:
            return float("nan")
        return float(np.exp(np.interp(np.log(evaluations), np.log(self.evaluations), np.log(self.error))))


def errors_of(runs: Sequence[Record], truth: InductionTruth) -> Errors | None:
    """The errors of some runs of one method; None without estimates."""
    known = [curve for curve in map(_curve, runs) if len(curve[0])]
    if not known:
        return None
    first, last = max(n[0] for n, _ in known), min(n[-1] for n, _ in known)
    grid = np.clip(np.geomspace(first, last, _POINTS), first, last)  # rounding may put the ends outside
    latest = [values[np.searchsorted(n, grid, side="right") - 1] for n, values in known]
    error = np.sqrt(np.mean((np.array(latest) - truth.log_evidence) ** 2, axis=0))
    far = np.flatnonzero(error > _NEAR)
    late = slice(far[-1] + 1 if len(far) else 0, None)
    if len(grid[late]) < 3 or grid[-1] < 3 * grid[late][0]:
        return Errors(grid, error, float(grid[-1]), np.nan, np.nan)
    slope, constant = np.polyfit(np.log(grid[late]), np.log(error[late]), 1)
    return Errors(grid, error, float(grid[late][0]), float(slope), float(np.exp(constant)))


def _curve(run: Record) -> tuple[np.ndarray, np.ndarray]:
    """Evaluations and log Z of a run, where log Z is finite."""
    evaluations, values = (np.array(run["history"][key], float) for key in ("evaluations", "log_evidence"))
    known = np.isfinite(values)
    return evaluations[known], values[known]
