"""The sections of the page: the paper's results, and ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from anabranch.report.table import html_table
from anabranch.reproduce import table
from anabranch.reproduce.figures.labels import METHODS, TITLES, probability_text
from anabranch.reproduce.figures.resources import heaviest, runs_with_resources
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["SECTIONS", "Results", "Section"]

PAPER_LPPD = {
    "paper": "−28.560 ± 0.41",
    "is": "−73.180 ± 1.08",
    "rmh": "−32.693 ± 8.51",
    "pg": "−200.824 ± 126.63",
    "ipmcmc": "−70.580 ± 4.71",
    "bbvi": "did not run",
}
WHAT_DISTANCE_IS = """
<p>The distance is half of the area between the two densities: 0 if they are equal, 1 if they do not overlap.</p>
"""
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
    """A figure of the paper: its title, the paper's results as HTML, and ours."""

    title: str
    figures: Mapping[str, str]
    """Names of figures, and their captions."""
    paper: str
    here: Callable[[Results], str]


def _columns(experiment: str, *names: str) -> Callable[[Results], str]:
    """Some columns of the table of an experiment; empty if it was not run."""

    def here(results: Results) -> str:
        frame = results.tables.get(experiment)
        return "" if frame is None else html_table(*table.cells(frame, names))

    return here


def _distances(results: Results) -> str:
    found = _columns("gmm", "method", "predictive")(results)
    return found and found + WHAT_DISTANCE_IS


def _items(*sentences: str) -> str:
    return f"<ul>{''.join(f'<li>{sentence}</li>' for sentence in sentences)}</ul>"


def _spending(results: Results) -> str:
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


def _seconds(results: Results) -> str:
    parts = [
        f"<h4>{TITLES[name]}</h4>{html_table(*table.cells(frame, ('method', 'evaluations', 'seconds')))}"
        for name, frame in results.tables.items()
    ]
    return "".join(parts)


SECTIONS = (
    Section(
        "Figure 3: predictive density of the mixture",
        {"predictive": "Posterior predictive density of a new point by each method, over a histogram of the data."},
        _items(
            "Shown for RMH and BBVI only: both are far from the data, and have the wrong number of clusters.",
            "150 points from five clusters; K − 1 has a Poisson(9) prior.",
        ),
        _distances,
    ),
    Section(
        "Figure 4, left: evidence of the mixture",
        {"evidence": "Squared error of log Z against evaluations; median and quartiles over the runs."},
        _items(
            "10<sup>6</sup> samples, 15 runs of each method.",
            "The error of DCC ends many orders of magnitude below those of importance sampling and of importance "
            "samples around a chain of RMH.",
            "DCC finds K = 5 after about 10<sup>4</sup> samples, and its error drops.",
            "DCC visits 23 to 27 sub-models.",
        ),
        _columns("gmm", "method", "evidence", "settled", "discovered", "found", "paths"),
    ),
    Section(
        "Figure 4, right: probability of five clusters",
        {"probability": "p(K = 5 | y) at the end of each run, and the exact value."},
        _items("The true value is about 0.9998.", "Over 15 runs, DCC does well and no other method does."),
        _columns("gmm", "method", "probability"),
    ),
    Section(
        "Figure 5: misspecified prior",
        {
            "visits": "The number of clusters visited as evaluations go by, in one run of each method.",
            "misspecified_probability": "p(K = 5 | y) at the end of each run, and the exact value.",
        },
        _items(
            "K − 1 has a Poisson(90) prior, said to give K = 5 about 10<sup>−14</sup>. (That prior gives it "
            "2.2 × 10<sup>−33</sup>.)",
            "The posterior probability of K = 5 is about 0.9976.",
            "DCC starts at K near 90, works its way down and finds K = 5; over 5 runs its estimates are accurate.",
            "RMH hardly leaves the K that it starts from. It never gets to K = 5: its estimate is exactly 0 each time.",
        ),
        _columns("misspecified", "method", "probability", "discovered", "found", "paths"),
    ),
    Section(
        "Figure 6 and table 1: function induction",
        {"functions": "Functions from the posterior, in the run of each method with the highest LPPD."},
        html_table(["method", "LPPD, mean ± sd"], [[METHODS[m].label, words] for m, words in PAPER_LPPD.items()])
        + "<p>15 runs of 10<sup>6</sup> samples. Not to be compared with the values measured here: other data.</p>",
        _columns("induction", "method", "runs", "lppd", "farthest", "evidence"),
    ),
    Section(
        "Figure 7: resources",
        {"resources": "Estimates of the evidence of each path, and the evaluations spent on it, in one run of each."},
        _items(
            "Of 26 sub-models, 4 have most of the posterior: a₁x + a₂ sin(a₃x²), a₁ sin(a₂x) + a₃ sin(a₄x²), and their "
            "mirror images.",
            "DCC spends the most on these, and visits the others now and then.",
        ),
        _spending,
    ),
    Section("Times", {"times": "Seconds that each run took."}, _items("The paper reports no times."), _seconds),
)
