"""The paper's own numbers beside ours."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from anabranch.report.table import number, with_error
from anabranch.reproduce.figures.labels import METHODS, probability_text
from anabranch.reproduce.truth import Truths

__all__ = ["markdown"]

NONE = "–"
Row = Mapping[str, Any]
PAPER_LPPD = {
    "paper": "−28.560 ± 0.41",
    "is": "−73.180 ± 1.08",
    "rmh": "−32.693 ± 8.51",
    "rmh_single": "−32.693 ± 8.51",
    "pg": "−200.824 ± 126.63",
    "ipmcmc": "−70.580 ± 4.71",
    "bbvi": "did not run",
}
"""Table 1 of the paper; it does not say how many chains its RMH has."""


def markdown(tables: Mapping[str, pd.DataFrame], truths: Truths) -> str:
    """A table of the numbers that the paper reports, with ours for the same quantity."""
    rows = {name: {row["method"]: row for row in frame.to_dict("records")} for name, frame in tables.items()}

    def ours(experiment: str, cell: Callable[[Row], str]) -> list[str]:
        found = rows.get(experiment, {})
        return [cell(found[method]) if method in found else NONE for method in ("paper", "default")]

    lines = [
        ["the mixture: p(K = 5)", "0.9998", probability_text(truths.gmm.probability[5]), *ours("gmm", _probability)],
        ["the same, uncertain data", NONE, probability_text(truths.uncertain.probability[5]),
         *ours("uncertain", _probability)],
        ["misspecified prior: p(K = 5)", "0.9976", probability_text(truths.misspecified.probability[5]),
         *ours("misspecified", _probability)],
        ["the mixture: evaluations until K = 5 was visited", "about 10,000", NONE, *ours("gmm", _discovered)],
        ["the mixture: paths visited", "23 – 27", "infinitely many", *ours("gmm", _paths)],
    ]  # fmt: skip
    lines += [
        [f"function induction, LPPD: {METHODS[method].label}", value, number(truths.induction.lppd),
         *(ours("induction", _lppd) if method == "paper" else [_of(rows, method), NONE])]
        for method, value in PAPER_LPPD.items()
    ]  # fmt: skip
    header = [
        "quantity",
        "the paper",
        "exact, our data",
        "here: the method of the row, or `DCC.paper()`",
        "the default",
    ]
    rule = [":--"] + ["--:"] * (len(header) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, rule, *lines])


def _of(rows: Mapping[str, Mapping[str, Row]], method: str) -> str:
    row = rows.get("induction", {}).get(method)
    return NONE if row is None else _lppd(row)


def _probability(row: Row) -> str:
    median = probability_text(row["probability_median"])
    return f"{median} (1 run)" if row["runs"] == 1 else f"{median}, median of {row['runs']}"


def _discovered(row: Row) -> str:
    if not row["discovered_runs"]:
        return "never"
    median, low, high = (number(row[f"discovered_{which}"]) for which in ("median", "min", "max"))
    return median if low == high else f"{median} ({low} – {high})"


def _paths(row: Row) -> str:
    low, high = row["paths_min"], row["paths_max"]
    return str(low) if low == high else f"{low} – {high}"


def _lppd(row: Row) -> str:
    sd = row["lppd_sd"]
    return f"{row['lppd_mean']:.3f} (1 run)" if math.isnan(sd) else with_error(row["lppd_mean"], sd)
