"""A posterior as one page of HTML that needs no network: styles, script and pictures are inside.

The size of the page is bounded whatever the number of paths: tables have the heaviest rows, the tree its heaviest ends,
and text that is too long is cut in its middle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path as File
from string import Template
from typing import TYPE_CHECKING

from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.divide import Program
from anabranch.report.page import about, diagnostics, pictures, tables, tree
from anabranch.report.page.elements import facts, paragraph, section, slug, text
from anabranch.report.plots import Plots
from anabranch.report.summary import evidence_in_words
from anabranch.report.table import percent

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Subject", "page", "write"]

_FILES = resources.files(__package__)
MAX_MARGINALS = 4
"""Variables whose posterior is drawn."""


@dataclass(frozen=True)
class Subject:
    """What a page is about.

    Attributes:
        program: the program with its arguments.
        solutions: the paths with their estimates, the heaviest first.
        evidence: in the order of the solutions.
        run: how the run went.
        warnings: the failed diagnostics, as sentences.
        plots: the pictures.
        summary: the table of some variables by their names.
    """

    program: Program
    solutions: Sequence[Solution]
    evidence: Evidence
    run: Run
    warnings: Sequence[str]
    plots: Plots
    summary: Callable[[Sequence[str]], pd.DataFrame]


def write(file: str | os.PathLike[str], subject: Subject) -> None:
    """Write the page; a folder that does not exist is made, and a page that is there is replaced at once."""
    target = File(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        made.write_text(page(subject), encoding="utf-8")
        made.replace(target)
    finally:
        made.unlink(missing_ok=True)


def page(subject: Subject) -> str:
    """The page as text."""
    solutions, evidence, run = subject.solutions, subject.evidence, subject.run
    variables, marginals = _variables(subject)
    sections = {
        "Diagnostics": diagnostics.described(solutions, evidence, run, subject.warnings),
        "Decisions": tables.decisions(solutions, evidence),
        "Tree of paths": tree.nested(solutions, evidence.weights),
        "Paths": tables.paths(solutions, evidence),
        "Variables": variables,
        "Pictures": pictures.figures(subject.plots, marginals),
        "Program": about.program(subject.program),
        "Run": about.run(subject.program, run),
    }
    shown = {title: content for title, content in sections.items() if content}
    links = "".join(f'<li><a href="#{slug(title)}">{text(title)}</a></li>' for title in shown)
    return Template(_read("page.html")).substitute(
        title=text(f"Posterior of {subject.program.name}"),
        style=_read("style.css"),
        script=_read("script.js"),
        headline=text(evidence_in_words(solutions, evidence)),
        facts=paragraph(run.stopped) + _facts(subject),
        links=links,
        body="\n".join(section(title, content) for title, content in shown.items()),
    )


def _read(name: str) -> str:
    return _FILES.joinpath(name).read_text(encoding="utf-8")


def _facts(subject: Subject) -> str:
    run = subject.run
    estimated = sum(solution.estimate is not None for solution in subject.solutions)
    pairs = [
        ("paths", f"{len(subject.solutions):,} found, {estimated:,} estimated"),
        ("evaluations of densities", f"{run.evaluations:,}"),
        ("executions", f"{run.executions:,}"),
        ("time", f"{run.seconds:,.1f} s"),
        ("seed", str(run.seed)),
        ("warnings", f"{len(subject.warnings):,}" if subject.warnings else "none"),
    ]
    if run.prior_mass_found is not None:
        pairs.insert(1, ("prior mass found", percent(run.prior_mass_found)))
    return facts(pairs)


def _variables(subject: Subject) -> tuple[str, list[str]]:
    """The table of variables, and the names of those to draw: the first that vary within paths, of most mass."""
    names, left_out = tables.names_for_table(subject.solutions, subject.evidence.weights)
    if not names:
        return "", []
    summary = subject.summary(names)
    constants = {name for solution in subject.solutions[: tables.MAX_ROWS] for name in solution.path.constants}
    varying = summary[summary["sd"] > 0].sort_values("share", ascending=False, kind="stable").index
    drawn = sorted(map(str, varying), key=lambda name: name.partition("[")[0] in constants)
    return tables.variables(summary, left_out), drawn[:MAX_MARGINALS]
