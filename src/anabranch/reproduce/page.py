"""The reproduction as one page of HTML with embedded figures."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from anabranch.report.table import html_table
from anabranch.reproduce import table
from anabranch.reproduce.figures.labels import METHODS, TITLES, runs_of
from anabranch.reproduce.records import Record
from anabranch.reproduce.sections import SECTIONS, Results, Section
from anabranch.reproduce.truth import Truths

__all__ = ["write"]

TITLE = "The experiments of Divide, Conquer, and Combine, reproduced"
INTRODUCTION = """
<p>Section 7 of Zhou, Yang, Teh and Rainforth, <cite>Divide, Conquer, and Combine: a New Inference Strategy for
Probabilistic Programs with Stochastic Support</cite> (ICML 2020), reproduced with Anabranch. Each section has the
paper's results beside ours; every number under “Here” comes from the records of the runs, or is an exact answer.</p>
<p class="note">The paper does not publish its data, so the data are new draws from the process that it describes.
Absolute values such as an LPPD or log Z are therefore not comparable with the paper's; distances from the exact answers
are.</p>
"""
STYLE = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 70rem; padding: 1rem; background: #fff; color: #1a1a1a;
       font: 1rem/1.5 system-ui, sans-serif; }
h1, h2, h3, h4 { line-height: 1.25; }
h2 { margin-top: 3rem; border-bottom: 1px solid #ccc; }
h3, h4 { margin: 0.5rem 0; }
.beside { display: grid; grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); gap: 1.5rem; }
.beside > div, .wide { overflow-x: auto; }
.note { border-left: 4px solid #e69f00; padding-left: 0.8rem; }
table { border-collapse: collapse; font-size: 0.9rem; }
th, td { border-bottom: 1px solid #ddd; padding: 0.25rem 0.6rem; vertical-align: bottom; }
td { white-space: nowrap; }
.settings td { white-space: normal; }
figure { margin: 1.5rem 0; }
img { width: 100%; height: auto; }
figcaption { color: #444; font-size: 0.9rem; }
pre { overflow-x: auto; background: #f4f4f4; padding: 0.5rem; }
dl { display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.2rem 1rem; }
dt { font-weight: 600; }
dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 48rem) {
  .beside { grid-template-columns: minmax(0, 1fr); }
  figure { overflow-x: auto; }
  img { min-width: 44rem; }
}
"""


def write(folder: str | os.PathLike[str], records: Sequence[Record], truths: Truths, about: Mapping[str, str]) -> Path:
    """Write report.html with the figures that `figures.draw_all` wrote to the folder.

    `about` is shown at the top; its "command" is the one that makes the page again.
    """
    results = Results(records, truths, table.tables(records, truths))
    parts = [
        f"<h1>{TITLE}</h1>",
        INTRODUCTION,
        _header(records, about),
        *(_section(section, results, Path(folder)) for section in SECTIONS),
        _all_numbers(results),
        _settings(records),
    ]
    file = Path(folder) / "report.html"
    file.write_text(_document("\n".join(parts)), encoding="utf-8")
    return file


def _document(body: str) -> str:
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{TITLE}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _header(records: Sequence[Record], about: Mapping[str, str]) -> str:
    """Versions, budgets, numbers of runs, machine and date, and the command."""
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


def _section(section: Section, results: Results, folder: Path) -> str:
    """The paper's results and ours side by side, the figures below; empty without results."""
    here = section.here(results)
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
    return (
        f'<figure><img alt="{words}" src="data:image/svg+xml;base64,{data}"><figcaption>{words}</figcaption></figure>'
    )


def _all_numbers(results: Results) -> str:
    parts = [
        f'<h3>{TITLES[name]}</h3><div class="wide">{html_table(*table.cells(frame))}</div>'
        for name, frame in results.tables.items()
    ]
    return f"<h2>All numbers</h2>{''.join(parts)}"


def _settings(records: Sequence[Record]) -> str:
    """The settings of each method."""
    rows = [
        [METHODS[method].label, TITLES[experiment], "; ".join(dict.fromkeys(run["settings"] for run in runs))]
        for experiment in TITLES
        for method, runs in runs_of(records, experiment).items()
    ]
    table_of_settings = html_table(["method", "experiment", "settings"], rows)
    return f'<h2>Settings</h2><div class="wide settings">{table_of_settings}</div>'
