"""The reproduction as one page of HTML, with embedded figures: the paper's results, from `sections.toml`, and ours."""

import base64
import html
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template

import pandas as pd

from anabranch.report.table import html_table, number
from anabranch.reproduce import table
from anabranch.reproduce.convergence import errors_of
from anabranch.reproduce.figures.labels import METHODS, TITLES, probability_text, runs_of
from anabranch.reproduce.records import Record
from anabranch.reproduce.rows import HEAVY, heavy_paths
from anabranch.reproduce.truth import Truths

__all__ = ["SECTIONS", "write"]

_FILES = resources.files(__package__)
_PAGE = Template(_FILES.joinpath("page.html").read_text(encoding="utf-8"))


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


SECTIONS = tuple(
    Section(**each) for each in tomllib.loads(_FILES.joinpath("sections.toml").read_text(encoding="utf-8"))["sections"]
)


def write(folder: str | os.PathLike[str], records: Sequence[Record], truths: Truths, about: Mapping[str, str]) -> Path:
    """Write report.html with the figures that `figures.draw_all` wrote to the folder.

    `about` is shown at the top; its "command" is the one that makes the page again.
    """
    results = Results(records, truths, table.tables(records, truths))
    parts = [
        _header(records, about),
        *(_section(section, results, Path(folder)) for section in SECTIONS),
        _all_numbers(results),
        _settings(records),
    ]
    file = Path(folder) / "report.html"
    file.write_text(_PAGE.substitute(body="\n".join(parts)), encoding="utf-8")
    return file


def _header(records: Sequence[Record], about: Mapping[str, str]) -> str:
    facts = {
        "version": ", ".join(sorted({record["version"] for record in records})),
        "budget": " or ".join(f"{budget:,} evaluations" for budget in sorted({record["budget"] for record in records})),
        "runs of each method": _runs_in_words(records),
    } | {key: value for key, value in about.items() if key != "command"}
    lines = "".join(f"<dt>{html.escape(key)}</dt><dd>{html.escape(value)}</dd>" for key, value in facts.items())
    return f"<dl>{lines}</dl><p>To make this page again:</p><pre>{html.escape(about['command'])}</pre>"


def _runs_in_words(records: Sequence[Record]) -> str:
    """The number of runs of each method, by experiment: one number, or a range."""
    parts = []
    for experiment, title in TITLES.items():
        counts = [len(runs) for runs in runs_of(records, experiment).values()]
        if counts:
            span = str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} – {max(counts)}"
            parts.append(f"{title}: {span}")
    return "; ".join(parts)


def _columns(section: Section, results: Results) -> str:
    experiment, *names = section.table
    frame = results.tables.get(experiment)
    return "" if frame is None else html_table(*table.cells(frame, names)) + section.note


def _spending(section: Section, results: Results) -> str:
    """The share of the evaluations spent on the heaviest paths, of the methods that count them by path."""
    frame = results.tables.get("induction")
    counted = None if frame is None else frame[frame["heavy_share_runs"] > 0]
    if counted is None or not len(counted):
        return ""
    truth = results.truths.induction
    exact = probability_text(sum(truth.weights[path] for path in heavy_paths(truth.weights, truth)))
    note = f"<p>The exact posterior probability of the {HEAVY} is {exact}.</p>"
    return html_table(*table.cells(counted, ("method", "runs", "paths", "heavy"))) + note


def _slopes(section: Section, results: Results) -> str:
    """The slope of the error of log Z of each method."""
    rows = []
    for method, runs in runs_of(results.records, "convergence").items():
        errors = errors_of(runs, results.truths.induction)
        if errors is not None:
            rows.append([METHODS[method].label, str(len(runs)), f"{errors.at(errors.evaluations[-1]):.1e}",
                         number(errors.slope, 2)])  # fmt: skip
    header = ["method", "runs", "error of log Z at the end (nats)", "slope"]
    return html_table(header, rows) if rows else ""


def _nothing(section: Section, results: Results) -> str:
    """The figure alone, if there is one."""
    return "<p>See the figure.</p>" if any(each["experiment"] == "planar" for each in results.records) else ""


def _seconds(section: Section, results: Results) -> str:
    columns = "method", "evaluations", "seconds"
    tables = results.tables.items()
    return "".join(f"<h4>{TITLES[name]}</h4>{html_table(*table.cells(frame, columns))}" for name, frame in tables)


_RESULTS = {"columns": _columns, "spending": _spending, "slopes": _slopes, "nothing": _nothing, "seconds": _seconds}


def _section(section: Section, results: Results, folder: Path) -> str:
    """The paper's results and ours side by side, the figures below; empty without results."""
    here = _RESULTS[section.here](section, results)
    if not here:
        return ""
    figures = "".join(_figure(folder / "figures" / f"{name}.svg", words) for name, words in section.figures.items())
    return (
        f'<h2>{section.title}</h2><div class="beside"><div><h3>The paper</h3>{section.paper}</div>'
        f"<div><h3>Here</h3>{here}</div></div>{figures}"
    )


def _figure(file: Path, caption: str) -> str:
    """The figure, embedded; empty if it was not drawn for lack of data."""
    if not file.exists():
        return ""
    data = base64.b64encode(file.read_bytes()).decode()
    words = html.escape(caption)
    image = f'<img alt="{words}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{image}<figcaption>{words}</figcaption></figure>"


def _all_numbers(results: Results) -> str:
    tables = {TITLES[name]: html_table(*table.cells(frame)) for name, frame in results.tables.items()}
    parts = [f'<h3>{name}</h3><div class="wide">{cells}</div>' for name, cells in tables.items()]
    return f"<h2>All numbers</h2>{''.join(parts)}"


def _settings(records: Sequence[Record]) -> str:
    rows = [
        [METHODS[method].label, TITLES[experiment], "; ".join(dict.fromkeys(run["settings"] for run in runs))]
        for experiment in TITLES
        for method, runs in runs_of(records, experiment).items()
    ]
    table_of_settings = html_table(["method", "experiment", "settings"], rows)
    return f'<h2>Settings</h2><div class="wide settings">{table_of_settings}</div>'
