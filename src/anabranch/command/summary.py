"""A posterior as plain numbers and text, for scripts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from anabranch.combine import Posterior
from anabranch.report.page.tables import names_for_table

__all__ = ["MAX_PATHS", "plain", "summary_of"]

MAX_PATHS = 1000
"""Paths of a summary, the heaviest; a saved run has all of them."""


def summary_of(posterior: Posterior) -> Any:
    """The evidence, the paths, decisions and variables with their errors, how the run went, and warnings."""
    run, names = posterior.run, names_for_table(posterior.solutions, posterior.evidence.weights)[0]
    variables = posterior.summary(names).reset_index().to_dict("records") if names else []
    return plain({
        "program": posterior.program.name,
        "log_evidence": posterior.log_evidence,
        "log_evidence_sd": posterior.log_evidence_sd,
        "stopped": run.stopped,
        "evaluations": run.evaluations,
        "executions": run.executions,
        "seconds": run.seconds,
        "seed": run.seed,
        "prior_mass_found": run.prior_mass_found,
        "paths_found": len(posterior.solutions),
        "paths": posterior.paths.head(MAX_PATHS).to_dict("records"),
        "decisions": posterior.decisions.to_dict("records"),
        "variables": variables,
        "warnings": posterior.warnings,
        "notes": posterior.notes,
        "unmet": posterior.unmet,
        "settings": run.settings,
        "versions": run.versions,
    })  # fmt: skip


def plain(value: Any) -> Any:
    """The value as JSON has it: numbers that are infinite or NaN, which it has not, are null."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
