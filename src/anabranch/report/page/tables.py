"""The tables of the page: paths, probabilities of decisions, and variables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from anabranch.combine.decisions import probabilities_of_decisions, with_alternatives
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Solution
from anabranch.report.labels import labels_of
from anabranch.report.page.elements import Cell, Column, paragraph, table
from anabranch.report.summary import MIN_WEIGHT, decision_in_words
from anabranch.report.table import number, share_with_error, shortened, with_error

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MAX_ROWS", "decisions", "names_for_table", "paths", "variables"]

MAX_ROWS = 200
"""Rows of a table."""
MAX_NUMBERS, MIN_VARIABLES = 10_000, 5
"""Variables times paths for which means and quantiles are computed, and rows for which there is time all the same."""
MAX_CHARACTERS, MIN_LONG = 400, 30
"""Characters of the description of a path, and above how many its column is wide."""
_OF_PATHS = [
    Column("path", is_number=False),
    *map(Column, ["weight", "log evidence", "effective draws", "Pareto k", "R-hat", "dimensions", "evaluations"]),
    Column("visits"),
    Column("method", is_number=False),
    Column("prior probability"),
]


# Paths ----------------------------------------------------------------------------------------------------------------


def paths(solutions: Sequence[Solution], evidence: Evidence) -> str:
    """The heaviest paths, those without an estimate last."""
    shown = solutions[:MAX_ROWS]
    if not shown:
        return paragraph("The run found no path.")
    labels, common = labels_of([solution.path for solution in shown])
    rows = (_path(label, solution, evidence, k) for k, (label, solution) in enumerate(zip(labels, shown, strict=True)))
    kind = "sortable paths long" if max(map(len, labels)) > MIN_LONG else "sortable paths"
    left_out, rest = len(solutions) - len(shown), float(evidence.weights[len(shown) :].sum())
    more = f"{left_out:,} more paths, with a total weight of {number(rest, 2)}, are in posterior.paths."
    return "\n".join([
        paragraph(f"In all of them: {shortened(common, MAX_CHARACTERS)}." if common else ""),
        table(f"The {len(shown):,} heaviest of {len(solutions):,} paths" if left_out else "All paths", _OF_PATHS, rows,
              kind),
        paragraph(more if left_out else ""),
    ])  # fmt: skip


def _path(label: str, solution: Solution, evidence: Evidence, k: int) -> list[Cell]:
    estimate, path = solution.estimate, solution.path
    name, prior = Cell(shortened(label, MAX_CHARACTERS)), _number(path.prior_probability)
    dim, visits = _number(path.dim), _number(solution.visits)
    if estimate is None:
        absent = Cell("-")
        method = Cell("given up" if solution.visits else "not visited")
        return [name, absent, absent, absent, absent, absent, dim, _number(0), visits, method, prior]
    weight = float(evidence.weights[k])
    ess = Cell("exact", math.inf) if solution.is_exact else Cell(f"{estimate.ess:,.0f}", float(estimate.ess))
    return [
        name,
        Cell(share_with_error(weight, float(evidence.weight_sds[k])), weight, weight),
        Cell("-") if evidence.log_evidence is None else _log_evidence(solution),
        ess, _number(estimate.pareto_k, 2), _number(estimate.r_hat), dim, _number(estimate.evaluations), visits,
        Cell(estimate.method), prior,
    ]  # fmt: skip


def _log_evidence(solution: Solution) -> Cell:
    assert solution.estimate is not None
    words = with_error(solution.estimate.log_evidence, solution.estimate.log_evidence_sd)
    return Cell(words, float(solution.estimate.log_evidence))


def _number(value: float, digits: int = 4) -> Cell:
    return Cell(number(value, digits), float(value))


# Decisions ------------------------------------------------------------------------------------------------------------


def decisions(solutions: Sequence[Solution], evidence: Evidence) -> str:
    """The probability of each value of each decision that differs between paths; empty if none does."""
    if not solutions:
        return ""
    found = [row for group in with_alternatives(probabilities_of_decisions(solutions, evidence)) for row in group]
    if not found:
        return ""
    shown = [row for row in found if row.probability >= MIN_WEIGHT]
    if len(shown) > MAX_ROWS:
        shown = sorted(shown, key=lambda row: -row.probability)[:MAX_ROWS]
    rows = (
        [
            Cell(decision_in_words(row)),
            Cell(share_with_error(row.probability, row.probability_sd), row.probability, row.probability),
        ]
        for row in shown
    )
    left_out = len(found) - len(shown)
    return "\n".join([
        table("Posterior probabilities of decisions", [Column("decision", is_number=False), Column("probability")],
              rows),
        paragraph(f"{left_out:,} less probable values are in posterior.decisions." if left_out else ""),
    ])  # fmt: skip


# Variables ------------------------------------------------------------------------------------------------------------


def names_for_table(solutions: Sequence[Solution], weights: np.ndarray) -> tuple[list[str], list[str]]:
    """The sites and deterministics of the heaviest paths for which there are rows, and those that are left out.

    Where there is not room for all, decisions are left out without a word: they have a table of their own.
    """
    room = min(MAX_ROWS, max(MAX_NUMBERS // max(int((weights > 0).sum()), 1), MIN_VARIABLES))
    sizes = _sizes(solutions, weights)
    constants = {name for solution in solutions[:MAX_ROWS] for name in solution.path.constants}
    names = list(sizes) if sum(sizes.values()) <= room else [name for name in sizes if name not in constants]
    chosen: list[str] = []
    left_out: list[str] = []
    for name in names:
        (chosen if sizes[name] <= room else left_out).append(name)
        room -= sizes[name] if sizes[name] <= room else 0
    return chosen, left_out


def _sizes(solutions: Sequence[Solution], weights: np.ndarray) -> dict[str, int]:
    """How many numbers each site and deterministic has; text has none."""
    sizes: dict[str, int] = {}
    for solution, weight in zip(solutions[:MAX_ROWS], weights[:MAX_ROWS], strict=True):
        if weight > 0 and len(solution.points) and not sizes.keys() >= set(solution.path.names):
            for part in solution.path.outcomes(solution.points[:1]):
                for name, values in {**part.values, **part.deterministics}.items():
                    array = np.asarray(values)
                    varies = part.varies[0].get(name, True)
                    if array.dtype.kind in "biuf":
                        sizes[name] = max(sizes.get(name, 0), math.prod(array.shape[1:] if varies else array.shape))
    return sizes


def variables(summary: pd.DataFrame, left_out: Sequence[str]) -> str:
    """A row for each number of each site and deterministic."""
    columns = [
        Column("variable", is_number=False),
        *map(Column, ["mean", "sd", "5 %", "95 %", "error of the mean", "effective draws", "share of the mass"]),
    ]
    named = f"Left out: {shortened(', '.join(left_out), MAX_CHARACTERS)}. posterior.summary has them." * bool(left_out)
    if not len(summary):
        return paragraph(named)
    caption = "Mean, standard deviation and central 90 % interval of each variable, over the executions that have it"
    return table(caption, columns, _rows(summary)) + paragraph(named)


def _rows(summary: pd.DataFrame) -> Iterator[list[Cell]]:
    for row in summary.itertuples():
        exact = Cell("exact", math.inf) if math.isinf(row.ess) else _number(row.ess, 3)
        moments = [_number(each) for each in (row.mean, row.sd, row.low, row.high)]
        yield [Cell(str(row.Index)), *moments, _number(row.mcse, 2), exact, Cell(number(row.share, 3), row.share)]
