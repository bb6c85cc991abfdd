"""The table of the paths of a posterior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Solution

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["paths_frame"]

_DIAGNOSTICS = ("log_evidence", "log_evidence_sd", "ess", "pareto_k", "r_hat", "tail")


def paths_frame(solutions: Sequence[Solution], evidence: Evidence) -> pd.DataFrame:
    """A row for each path, in the order of the solutions; NaN where there is no estimate, or no evidence."""
    import pandas as pd

    rows = zip(solutions, evidence.weights, evidence.weight_sds, strict=True)
    frame = pd.DataFrame([_row(solution, float(weight), float(sd)) for solution, weight, sd in rows])
    if evidence.log_evidence is None:
        frame[["log_evidence", "log_evidence_sd"]] = np.nan  # the engine estimated path weights alone
    return frame


def _row(solution: Solution, weight: float, weight_sd: float) -> dict[str, Any]:
    path, estimate = solution.path, solution.estimate
    return {
        "path": path.description,
        "weight": np.nan if estimate is None else weight,
        "weight_sd": np.nan if estimate is None else weight_sd,
        **{name: np.nan if estimate is None else getattr(estimate, name) for name in _DIAGNOSTICS},
        "dim": path.dim,
        "evaluations": 0 if estimate is None else estimate.evaluations,
        "terms": solution.terms,
        "visits": solution.visits,
        "method": "" if estimate is None else estimate.method,
        "prior_probability": path.prior_probability,
    }
