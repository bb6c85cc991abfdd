"""The results in numbers: a data frame per experiment with a row per method, as CSV, Markdown and text."""

import io
import math
import os
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console
from rich.table import Table

from anabranch.report.table import number, with_error
from anabranch.reproduce.figures.labels import METHODS, TITLES, probability_text, runs_of
from anabranch.reproduce.records import Record
from anabranch.reproduce.rows import HEAVY, row_of
from anabranch.reproduce.truth import Truths

__all__ = ["cells", "markdown", "tables", "text", "write"]

Row = Mapping[str, Any]
NONE = "–"
TERMINAL = 120
"""Characters in a line of a terminal."""
NOT_IN_TERMINAL = ("predictive", "evaluations", "settled", "discovered", "heavy")


def tables(records: Sequence[Record], truths: Truths) -> dict[str, pd.DataFrame]:
    """A frame per experiment that was run, a row per method."""
    rows = {
        experiment: [row_of(experiment, m, found, truths) for m, found in runs_of(records, experiment).items()]
        for experiment in TITLES
    }
    return {experiment: pd.DataFrame(found) for experiment, found in rows.items() if found}


def write(frames: Mapping[str, pd.DataFrame], folder: str | os.PathLike[str]) -> None:
    """Write table.csv, with all digits, and table.md, with rounded numbers."""
    rows = [{"experiment": name} | row for name, frame in frames.items() for row in frame.to_dict("records")]
    pd.DataFrame(rows).to_csv(Path(folder) / "table.csv", index=False)
    parts = [f"## {TITLES[name]}\n\n{markdown(frame)}\n" for name, frame in frames.items()]
    (Path(folder) / "table.md").write_text("\n".join(parts), encoding="utf-8")


def text(frames: Mapping[str, pd.DataFrame]) -> str:
    """The tables for a terminal: the columns that fit."""
    out = io.StringIO()
    console = Console(width=TERMINAL, file=out)
    for name, frame in frames.items():
        header, rows = cells(frame, [column for column in COLUMNS if column not in NOT_IN_TERMINAL])
        shown = Table(title=TITLES[name], title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for order, (heading, *column) in enumerate(zip(header, *rows, strict=True)):
            lines = textwrap.wrap(heading, max(9, *map(len, column)), break_long_words=False)
            shown.add_column("\n".join(lines), justify="right" if order else "left", vertical="bottom", no_wrap=True)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _lppd_cell(row: Row) -> str:
    one_run = math.isnan(row["lppd_sd"])
    return f"{row['lppd_mean']:,.2f}" if one_run else with_error(row["lppd_mean"], row["lppd_sd"])


def _probability_cell(row: Row) -> str:
    return f"{probability_text(row['probability_median'])} ({probability_text(row['probability_min'])})"


def _evidence_cell(row: Row) -> str:
    error = row["log_evidence_squared_error"]
    return NONE if math.isnan(error) else _short(error) + _in_runs(row, "log_evidence_runs")


def _range_cell(row: Row, what: str) -> str:
    if not row[f"{what}_runs"]:
        return NONE
    median, low, high = (number(row[f"{what}_{which}"]) for which in ("median", "min", "max"))
    return median if low == high else f"{median} ({low} – {high})"


def _heavy_cell(row: Row) -> str:
    if not row["heavy_share_runs"]:
        return NONE
    median, low, high = (f"{row[f'heavy_share_{which}']:.0%}" for which in ("median", "min", "max"))
    return median if low == high else f"{median} ({low} – {high})"


def _paths_cell(row: Row) -> str:
    low, high = number(row["paths_min"]), number(row["paths_max"])
    return low if low == high else f"{low} – {high}"


def _in_runs(row: Row, count: str) -> str:
    """A remark if only some of the runs have a value."""
    return f" ({row[count]} of {row['runs']} runs)" if 0 < row[count] < row["runs"] else ""


def _short(value: float) -> str:
    """An error, to two digits, but for what rounding makes of it."""
    if 0 < value < 1e-12:
        return "< 1e-12"
    return number(value, 2) if 0.01 <= value < 1e6 or not value else f"{value:.1e}"


COLUMNS: dict[str, tuple[str, str, Callable[[Row], str]]] = {
    # By name: the heading, the column of the frame that it needs, and the cell of a row.
    "method": ("method", "method", lambda row: METHODS[row["method"]].label),
    "runs": ("runs", "runs", lambda row: str(row["runs"])),
    "lppd": ("LPPD (nats), mean ± sd", "lppd_mean", _lppd_cell),
    "farthest": ("largest distance from exact", "lppd_farthest", lambda row: _short(row["lppd_farthest"])),
    "predictive": (
        "distance of predictive density from exact, median",
        "predictive_distance",
        lambda row: f"{row['predictive_distance']:.3f}",
    ),
    "probability": ("p(K = 5), median (min)", "probability_median", _probability_cell),
    "distance": (
        "distance of p(K given y) from exact, median (max)",
        "clusters_distance_median",
        lambda row: f"{_short(row['clusters_distance_median'])} ({_short(row['clusters_distance_max'])})",
    ),
    "evidence": ("squared error of log Z (nats²), median", "log_evidence_squared_error", _evidence_cell),
    "settled": (
        "evaluations until log Z is within 1 nat for good, median (min – max)",
        "settled_runs",
        lambda row: _range_cell(row, "settled") + _in_runs(row, "settled_runs"),
    ),
    "paths": ("paths visited", "paths_min", _paths_cell),
    "discovered": (
        "evaluations until K = 5 was visited, median (min – max)",
        "discovered_runs",
        lambda row: _range_cell(row, "discovered"),
    ),
    "found": ("runs that visited K = 5", "discovered_runs", lambda row: f"{row['discovered_runs']} of {row['runs']}"),
    "heavy": (
        f"evaluations on the {HEAVY} heaviest paths, median (min – max)",
        "heavy_share_runs",
        _heavy_cell,
    ),
    "evaluations": ("evaluations, median", "evaluations_median", lambda row: number(row["evaluations_median"])),
    "seconds": ("seconds, median", "seconds_median", lambda row: _short(row["seconds_median"])),
}
EXACT = {"lppd": ("lppd_exact", "{:,.3f}".format), "probability": ("probability_exact", probability_text)}
"""Headings with the exact value: its column in the frame, and its format."""


def cells(frame: pd.DataFrame, names: Iterable[str] = tuple(COLUMNS)) -> tuple[list[str], list[list[str]]]:
    """Headings and formatted rows, of those named columns that the experiment has."""
    chosen = [name for name in names if COLUMNS[name][1] in frame]
    rows = frame.to_dict("records")
    return [_heading(name, rows) for name in chosen], [[COLUMNS[name][2](row) for name in chosen] for row in rows]


def _heading(name: str, rows: Sequence[Row]) -> str:
    column, words = EXACT.get(name, ("", str))
    return COLUMNS[name][0] + (f"; exact: {words(rows[0][column])}" if column else "")


def markdown(frame: pd.DataFrame) -> str:
    """The table in Markdown, with rounded numbers."""
    header, rows = cells(frame)
    rule = [":--"] + ["--:"] * (len(header) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *rows])
