"""A posterior as text and HTML: the evidence, decisions and heaviest paths, the cost of the run, notes, and warnings.

Of a program with many paths, a reader wants the probabilities of its decisions; the heaviest paths come after them.
"""

import html
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch.combine.decisions import ValueProbability, probabilities_of_decisions, with_alternatives
from anabranch.combine.diagnose import notes_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.report.labels import labels_of
from anabranch.report.table import (
    fitted_table,
    html_table,
    in_columns,
    number,
    percent,
    share_with_error,
    shortened,
    terminal_width,
    with_error,
    wrapped,
)

__all__ = [
    "MAX_PATHS",
    "MIN_WEIGHT",
    "Summary",
    "decision_in_words",
    "evidence_in_words",
    "shown_decisions",
    "summary",
]

MAX_PATHS, MAX_PATHS_OF_MANY = 10, 5
"""Paths that are shown, in the summary and in the plot; and in the summary of a program with many paths."""
MANY_PATHS, MANY_WITH_MASS = 100, 30
"""Paths, and paths with mass, above which a program has many."""
MIN_WEIGHT = 1e-6
"""Weight of a path with mass."""
MAX_DECISIONS, MAX_VALUES, MIN_PROBABILITY = 30, 3, 1e-3
"""Decisions that are shown, and values of each, with at least this probability."""
MAX_WARNINGS = 5
MAX_VALUE = 24
"""Characters of a value."""

HEADER = ["path", "weight", "log evidence", "ess", "Pareto k", "dim", "evaluations"]
DROPPED = ["ess", "dim", "Pareto k", "evaluations"]
"""Columns for which a narrow terminal has no room, the last one first."""


@dataclass(frozen=True)
class Summary:
    """The parts of a printed posterior: title, decisions, rows of the table of paths, lines about paths and the run."""

    title: str
    decisions: list[tuple[str, str]]
    other_decisions: list[str]
    rows: list[list[str]]
    paths: list[str]
    run: list[str]
    warnings: list[str]

    def text(self) -> str:
        """For a terminal."""
        width = terminal_width()
        parts = [wrapped(self.title, width)]
        if self.decisions:
            parts.append("\n".join(["Decisions:", in_columns(self.decisions, width), *self.other_decisions]))
        paths = [wrapped(line, width) for line in self.paths]
        parts.append("\n".join([fitted_table(HEADER, self.rows, width, DROPPED), *paths]))
        parts.append("\n".join(wrapped(line, width) for line in self.run))
        if self.warnings:
            parts.append("\n".join(["Warnings:", *(wrapped(f"- {each}", width, "  ") for each in self.warnings)]))
        return "\n\n".join(parts)

    def html(self) -> str:
        """For a notebook."""
        parts = [f"<p><b>{html.escape(self.title)}</b></p>"]
        if self.decisions:
            parts += [html_table(["decision", "probability"], self.decisions), *map(_paragraph, self.other_decisions)]
        parts += [html_table(HEADER, self.rows), _paragraph(*self.paths, *self.run)]
        if self.warnings:
            items = "".join(f"<li>{html.escape(each)}</li>" for each in self.warnings)
            parts.append(f"<p>Warnings:</p><ul>{items}</ul>")
        return f"<div>{''.join(parts)}</div>"


def _paragraph(*lines: str) -> str:
    return f"<p>{'<br>'.join(map(html.escape, lines))}</p>"


def summary(name: str, solutions: Sequence[Solution], evidence: Evidence, run: Run, warnings: Sequence[str]) -> Summary:
    """The summary of the posterior of the program with this name; solutions and evidence in the same order."""
    cost = f"{run.evaluations:,} evaluations of densities, {run.executions:,} executions, {run.seconds:.1f} s"
    found = "" if run.prior_mass_found is None else f"; {percent(run.prior_mass_found)} of the prior mass found"
    wide = _is_wide(evidence)
    decisions, left_out = shown_decisions(solutions, evidence) if wide else ([], 0)
    with_mass = max(int((evidence.weights >= MIN_WEIGHT).sum()), 1)
    shown = solutions[: min(with_mass, MAX_PATHS_OF_MANY if decisions else MAX_PATHS)]
    labels, common = labels_of([solution.path for solution in shown]) if shown else ([], "")
    more = [f"and {len(warnings) - MAX_WARNINGS} more, in posterior.warnings"] * (len(warnings) > MAX_WARNINGS)
    return Summary(
        f"Posterior of {name}: {evidence_in_words(solutions, evidence)}",
        [(decision_in_words(row), share_with_error(row.probability, row.probability_sd)) for row in decisions],
        [f"and {left_out:,} more decisions, in posterior.decisions"] * bool(left_out),
        [_row(label, solution, evidence, k) for k, (label, solution) in enumerate(zip(labels, shown, strict=True))],
        [*_other_paths(solutions, evidence, len(shown)), *([f"In all of the paths shown: {common}"] * bool(common))],
        [run.stopped, f"{cost}, seed {run.seed}{found}.", *_unmet(run), *notes_of(solutions, evidence)[:MAX_WARNINGS]],
        [*warnings[:MAX_WARNINGS], *more],
    )


def _unmet(run: Run) -> list[str]:
    """What no execution has met."""
    more = [f"and {len(run.unmet) - MAX_WARNINGS} more, in posterior.unmet"] * (len(run.unmet) > MAX_WARNINGS)
    return [f"Not met: {'; '.join([*run.unmet[:MAX_WARNINGS], *more])}."] if run.unmet else []


def evidence_in_words(solutions: Sequence[Solution], evidence: Evidence) -> str:
    """The evidence with its error, or by which method it is not given."""
    if evidence.log_evidence is None or evidence.log_evidence_sd is None:
        methods = [solution.estimate.method for solution in solutions if solution.estimate is not None]
        return f"log evidence not given{f' by {methods[0]}' if methods else ''}"
    return f"log evidence {with_error(evidence.log_evidence, evidence.log_evidence_sd)}"


def _is_wide(evidence: Evidence) -> bool:
    """Whether there are so many paths that a list of the heaviest ones says little."""
    return len(evidence.weights) > MANY_PATHS or int((evidence.weights >= MIN_WEIGHT).sum()) > MANY_WITH_MASS


def shown_decisions(solutions: Sequence[Solution], evidence: Evidence) -> tuple[list[ValueProbability], int]:
    """The values of decisions to show, in the order of the program, and how many decisions were left out.

    Of more than fit, those whose values are the least certain are shown.
    """
    groups = list(with_alternatives(probabilities_of_decisions(solutions, evidence)))
    chosen = sorted(sorted(range(len(groups)), key=lambda i: -_entropy(groups[i]))[:MAX_DECISIONS])
    return [row for i in chosen for row in _shown_values(groups[i])], len(groups) - len(chosen)


def _shown_values(rows: Sequence[ValueProbability]) -> Iterator[ValueProbability]:
    if {row.value for row in rows} == {0, 1}:
        yield from (row for row in rows if row.value == 1)
        return
    likely = [row for row in rows if row.probability >= MIN_PROBABILITY]
    yield from (likely or rows)[:MAX_VALUES]


def _entropy(rows: Sequence[ValueProbability]) -> float:
    return -sum(row.probability * math.log(row.probability) for row in rows if row.probability > 0)


def decision_in_words(row: ValueProbability) -> str:
    """`K = 5`, or that it is absent."""
    return f"{row.name} absent" if row.value is None else f"{row.name} = {_value(row.value)}"


def _value(value: Any) -> str:
    return shortened(number(value) if isinstance(value, float) else str(value), MAX_VALUE)


def _other_paths(solutions: Sequence[Solution], evidence: Evidence, shown: int) -> Iterator[str]:
    others, weight = solutions[shown:], float(evidence.weights[shown:].sum())
    if others:
        unvisited = sum(solution.estimate is None for solution in others)
        remark = f"; {unvisited:,} of them without an estimate" if unvisited else ""
        mass = (
            f"a total weight of {number(weight, 2)}" if weight >= MIN_WEIGHT else f"less than {MIN_WEIGHT:g} together"
        )
        yield f"and {len(others):,} more path{'s' if len(others) > 1 else ''}, with {mass}{remark}"


def _row(label: str, solution: Solution, evidence: Evidence, k: int) -> list[str]:
    estimate = solution.estimate
    if estimate is None:
        return [label, "-", "-", "-", "-", str(solution.path.dim), "0"]
    return [
        label,
        share_with_error(evidence.weights[k], evidence.weight_sds[k]),
        "-" if evidence.log_evidence is None else with_error(estimate.log_evidence, estimate.log_evidence_sd),
        "exact" if solution.is_exact else f"{estimate.ess:,.0f}",
        "-" if np.isnan(estimate.pareto_k) else f"{estimate.pareto_k:.2f}",
        str(solution.path.dim),
        f"{estimate.evaluations:,}",
    ]
