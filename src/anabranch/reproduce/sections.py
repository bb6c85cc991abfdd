"""The sections of the page: the paper's results, from `sections.toml`, and ours."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources

import pandas as pd

from anabranch.report.table import html_table
from anabranch.reproduce import table
from anabranch.reproduce.figures.induction import heaviest, runs_with_resources
from anabranch.reproduce.figures.labels import METHODS, TITLES, probability_text
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["SECTIONS", "Results", "Section"]

DOMINANT = 4
"""The number of paths of function induction with nearly all posterior mass, in the paper."""


@dataclass(frozen=True)
class Results:
    """The records, the exact answers and the tables."""

    records: Sequence[Record]
    truths: Truths
    tables: Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Section:
    """A figure of the paper: its title, names of our figures with their captions, and the paper's results as HTML.

    Ours are columns of the table of an experiment, and a note; or `here` names the function that gives them.
    """

    title: str
    figures: Mapping[str, str]
    paper: str
    table: Sequence[str] = ()
    note: str = ""
    here: str = "columns"

    def results(self, results: Results) -> str:
        """Our results as HTML; empty without runs."""
        return _HERE[self.here](self, results)


def _columns(section: Section, results: Results) -> str:
    experiment, *names = section.table
    frame = results.tables.get(experiment)
    return "" if frame is None else html_table(*table.cells(frame, names)) + section.note


def _spending(section: Section, results: Results) -> str:
    """The share of the evaluations spent on the heaviest paths, in the run of the figure."""
    truth = results.truths.induction
    rows = []
    for method, run in runs_with_resources(results.records).items():
        spent = {path: resource["spent"][-1] for path, resource in run["resources"].items()}
        paths = heaviest(spent, truth, DOMINANT)
        share = sum(spent[path] for path in paths) / sum(spent.values())
        exact = probability_text(sum(truth.weights[path] for path in paths))
        rows.append([METHODS[method].label, str(run["paths"]), f"{share:.1%}", exact])
    spent_on = f"evaluations spent on the {DOMINANT} heaviest of them"
    header = ["method, in the run of the figure", "paths visited", spent_on, "their exact posterior probability"]
    return html_table(header, rows) if rows else ""


def _seconds(section: Section, results: Results) -> str:
    columns = "method", "evaluations", "seconds"
    tables = results.tables.items()
    return "".join(f"<h4>{TITLES[name]}</h4>{html_table(*table.cells(frame, columns))}" for name, frame in tables)


_HERE = {"columns": _columns, "spending": _spending, "seconds": _seconds}
_TEXT = resources.files(__package__).joinpath("sections.toml").read_text(encoding="utf-8")
SECTIONS = tuple(Section(**each) for each in tomllib.loads(_TEXT)["sections"])
