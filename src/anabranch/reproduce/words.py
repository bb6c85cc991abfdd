"""What there is to say of the runs: sentences with numbers, each made from the tables, as lines of a list."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from anabranch.report.table import number
from anabranch.reproduce.convergence import errors_of
from anabranch.reproduce.figures.labels import METHODS, runs_of
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["of_convergence", "of_tables"]

Row = Mapping[str, Any]
Rows = Mapping[str, Row]
OURS = ("default", "paper")
NAMES = {"default": "The default", "paper": "`DCC.paper()`"}
DECADES = (10_000, 100_000, 1_000_000, 10_000_000)


def of_tables(tables: Mapping[str, pd.DataFrame]) -> dict[str, str]:
    """The sentences of each experiment, by the name of their part of a page."""
    write: dict[str, Callable[[Rows], list[str]]] = {
        "gmm": _of_mixture, "uncertain": _of_uncertain, "misspecified": _of_misspecified, "induction": _of_induction
    }  # fmt: skip
    parts = {}
    for name, frame in tables.items():
        rows = {row["method"]: row for row in frame.to_dict("records")}
        parts[f"{name}_words"] = _listed(write[name](rows))
    parts |= {"calibration": _listed(_of_errors(tables)), "summary": _summary(tables)}
    return parts


def of_convergence(records: Sequence[Record], truths: Truths) -> dict[str, str]:
    """The table of errors of log Z against evaluations, with slopes."""
    lines = []
    for name, runs in runs_of(records, "convergence").items():
        errors = errors_of(runs, truths.induction)
        if errors is not None:
            cells = [_error(errors.at(n)) for n in DECADES]
            lines.append([METHODS[name].label, str(len(runs)), *cells, number(errors.slope, 2)])
    header = ["method", "runs", *(f"after {n:,}" for n in DECADES), "slope"]
    rule = [":--"] + ["--:"] * (len(header) - 1)
    table = "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *lines])
    return {"convergence": table} if lines else {}


def _of_mixture(rows: Rows) -> list[str]:
    out = [
        f"{NAMES[method]} {_visits(row)}, and {_low_high(row, 'paths')} paths in all; its error of log Z is at most "
        f"{_error(row['log_evidence_largest_error'])}."
        for method, row in _ours(rows)
    ]
    return out + _of_chains(rows)


def _of_uncertain(rows: Rows) -> list[str]:
    return [
        f"{METHODS[method].label}: p(K given y) is at most {_error(row['clusters_distance_max'])} from the exact one "
        f"in {_runs(row['runs'])}."
        for method, row in rows.items()
    ]


def _of_misspecified(rows: Rows) -> list[str]:
    out = [
        f"{NAMES[method]} {_visits(row)}; its error of log Z is at most {_error(row['log_evidence_largest_error'])}."
        for method, row in _ours(rows)
    ]
    return out + _of_chains(rows)


def _of_chains(rows: Rows) -> list[str]:
    return [
        f"{METHODS[method].label}: {row['chains_that_moved']:,} of {row['chains']:,} chains changed K in the recorded "
        f"states, and the least K of a chain was {row['least_K']}."
        for method, row in rows.items()
        if row["chains"]
    ]


def _of_induction(rows: Rows) -> list[str]:
    out = [
        f"{NAMES[method]}: the LPPD is within {_error(row['lppd_farthest'])} nats of the exact one in "
        f"{_runs(row['runs'])}, and {row['heavy_share_median']:.0%} of the evaluations went to the four paths with the "
        f"mass{_median_of(row)}."
        for method, row in _ours(rows)
    ]
    best_first = sorted(rows.values(), key=lambda row: -row["lppd_mean"])
    order = "; ".join(f"{METHODS[row['method']].label} {row['lppd_mean']:.1f}" for row in best_first)
    return [*out, f"The methods in the order of their mean LPPD: {order}."]


def _of_errors(tables: Mapping[str, pd.DataFrame]) -> list[str]:
    """How the errors of log Z compare with the standard errors that are reported."""
    out = []
    for name, frame in tables.items():
        for method, row in _ours({row["method"]: row for row in frame.to_dict("records")}):
            if row["runs"] > 2:
                out.append(
                    f"{NAMES[method]}, {name}: the errors of log Z, divided by the standard errors that it reports, "
                    f"have mean {row['score_mean']:.2f} and standard deviation {row['score_sd']:.2f} over "
                    f"{_runs(row['runs'])}."
                )
    return out


def _median_of(row: Row) -> str:
    """What is said of a share that is the median of several runs."""
    if row["runs"] == 1:
        return ""
    return f" (the median; {row['heavy_share_min']:.0%} to {row['heavy_share_max']:.0%})"


def _summary(tables: Mapping[str, pd.DataFrame]) -> str:
    """What the default did, in one sentence for each experiment."""
    rows = {
        name: row for name, frame in tables.items() for row in frame.to_dict("records") if row["method"] == "default"
    }
    out = []
    if row := rows.get("gmm"):
        error = _error(row["log_evidence_largest_error"])
        out.append(f"the mixture: the default is within {error} nats of log Z in {_runs(row['runs'])};")
    if row := rows.get("misspecified"):
        out.append(f"the mixture under a misspecified prior: it finds the five clusters in {_found(row)};")
    if row := rows.get("induction"):
        distance = _error(row["lppd_farthest"])
        out.append(
            f"function induction: it is within {distance} nats of the exact predictive density of 30 held-out points "
            f"in {_runs(row['runs'])}."
        )
    return _listed(out)


def _ours(rows: Rows) -> list[tuple[str, Row]]:
    return [(method, rows[method]) for method in OURS if method in rows]


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {sentence}" for sentence in sentences)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _visits(row: Row) -> str:
    """When K = 5 was visited."""
    if not row["discovered_runs"]:
        return f"does not visit K = 5 in {_runs(row['runs'])}"
    return f"visits K = 5 in {_found(row)}, first after {_span(row, 'discovered')} evaluations"


def _found(row: Row) -> str:
    """The runs that visited K = 5."""
    found, runs = row["discovered_runs"], row["runs"]
    return _runs(runs) if found == runs else f"{found} of {_runs(runs)}"


def _error(value: float) -> str:
    if value != value:
        return "–"
    return number(value, 2) if value >= 0.001 else f"{value:.1e}"


def _span(row: Row, what: str) -> str:
    median, low, high = (number(row[f"{what}_{which}"]) for which in ("median", "min", "max"))
    return median if low == high else f"{median} ({low} to {high})"


def _low_high(row: Row, what: str) -> str:
    low, high = row[f"{what}_min"], row[f"{what}_max"]
    return str(low) if low == high else f"{low} to {high}"
