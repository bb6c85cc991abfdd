"""A posterior as text and HTML: the evidence, the heaviest paths, the cost of the run, notes, and the warnings."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.combine.diagnose import notes_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.report.table import html_table, number, percent, shortened, text_table, with_error, without_repeats

__all__ = ["MAX_PATHS", "Summary", "evidence_in_words", "summary"]

MAX_PATHS = 10
"""Paths that are shown, in the summary and in the plot."""
MAX_WARNINGS = 5
MAX_DESCRIPTION = 48
"""Characters of a path's description."""

HEADER = ["path", "weight", "log evidence", "ess", "Pareto k", "dim", "evaluations"]


@dataclass(frozen=True)
class Summary:
    """The parts of a printed posterior: title, rows of the table of paths, lines about the other paths and the run."""

    title: str
    rows: list[list[str]]
    other_paths: list[str]
    run: list[str]
    warnings: list[str]

    def text(self) -> str:
        """For a terminal."""
        lines = [self.title, "", text_table(HEADER, self.rows), *self.other_paths, "", *self.run]
        return "\n".join([*lines, *(["", "Warnings:", *(f"- {each}" for each in self.warnings)] * bool(self.warnings))])

    def html(self) -> str:
        """For a notebook."""
        parts = [f"<p><b>{html.escape(self.title)}</b></p>", html_table(HEADER, self.rows)]
        parts += [f"<p>{'<br>'.join(html.escape(line) for line in [*self.other_paths, *self.run])}</p>"]
        if self.warnings:
            items = "".join(f"<li>{html.escape(each)}</li>" for each in self.warnings)
            parts.append(f"<p>Warnings:</p><ul>{items}</ul>")
        return f"<div>{''.join(parts)}</div>"


def summary(name: str, solutions: Sequence[Solution], evidence: Evidence, run: Run, warnings: Sequence[str]) -> Summary:
    """The summary of the posterior of the program with this name; solutions and evidence in the same order."""
    cost = f"{run.evaluations:,} evaluations of densities, {run.executions:,} executions, {run.seconds:.1f} s"
    found = "" if run.prior_mass_found is None else f"; {percent(run.prior_mass_found)} of the prior mass found"
    others, weight = solutions[MAX_PATHS:], float(evidence.weights[MAX_PATHS:].sum())
    unvisited = sum(solution.estimate is None for solution in others)
    remark = f"; {unvisited:,} of them without an estimate" if unvisited else ""
    more = [f"and {len(warnings) - MAX_WARNINGS} more, in posterior.warnings"] * (len(warnings) > MAX_WARNINGS)
    return Summary(
        f"Posterior of {name}: {evidence_in_words(solutions, evidence)}",
        [_row(solution, evidence, k) for k, solution in enumerate(solutions[:MAX_PATHS])],
        [f"and {len(others):,} more paths, with a total weight of {number(weight, 2)}{remark}"] if others else [],
        [run.stopped, f"{cost}, seed {run.seed}{found}.", *_unmet(run), *notes_of(solutions, evidence)[:MAX_WARNINGS]],
        [*warnings[:MAX_WARNINGS], *more],
    )


def _unmet(run: Run) -> list[str]:
    """What no execution has met."""
    more = [f"and {len(run.unmet) - MAX_WARNINGS} more, in posterior.unmet"] * (len(run.unmet) > MAX_WARNINGS)
    return [f"Not met: {'; '.join([*run.unmet[:MAX_WARNINGS], *more])}."] if run.unmet else []


def evidence_in_words(solutions: Sequence[Solution], evidence: Evidence) -> str:
    """The log evidence with its error, or the method that does not estimate it."""
    if evidence.log_evidence is None or evidence.log_evidence_sd is None:
        methods = [solution.estimate.method for solution in solutions if solution.estimate is not None]
        return f"log evidence not given{f' by {methods[0]}' if methods else ''}"
    return f"log evidence {with_error(evidence.log_evidence, evidence.log_evidence_sd)}"


def _row(solution: Solution, evidence: Evidence, k: int) -> list[str]:
    estimate = solution.estimate
    description = shortened(without_repeats(solution.path.description), MAX_DESCRIPTION)
    if estimate is None:
        return [description, "-", "-", "-", "-", str(solution.path.dim), "0"]
    return [
        description,
        with_error(evidence.weights[k], evidence.weight_sds[k]),
        "-" if evidence.log_evidence is None else with_error(estimate.log_evidence, estimate.log_evidence_sd),
        "exact" if solution.is_exact else f"{estimate.ess:,.0f}",
        "-" if np.isnan(estimate.pareto_k) else f"{estimate.pareto_k:.2f}",
        str(solution.path.dim),
        f"{estimate.evaluations:,}",
    ]
