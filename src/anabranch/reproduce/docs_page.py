"""The numbers and pictures of a page of the documentation, from records.

What stands between the lines `<!-- NAME -->` and `<!-- end -->` is made from the records: the table of an experiment
(`gmm`, `uncertain`, `misspecified`, `induction`, `convergence`), what there is to say of it (`gmm_words`, …), the
paper's numbers beside ours (`beside`), where the runs came from (`runs`), or pictures (`gmm_pictures`, …): of an
experiment without runs there are none.
"""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from anabranch.reproduce import beside, table, words
from anabranch.reproduce.experiments import EXPERIMENTS
from anabranch.reproduce.figures.labels import METHODS
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["update", "updated"]

_FOLDER = "reproduction"
"""Where the pictures are, beside the page."""
_PICTURES = {
    "gmm": {
        "predictive": "Posterior predictive densities",
        "evidence": "Squared error of log Z against evaluations",
        "probability": "Probability of five clusters",
    },
    "uncertain": {"distance": "Distance of the posterior of K from the exact one"},
    "misspecified": {
        "visits": "Numbers of clusters visited",
        "misspecified_probability": "Probability of five clusters under the misspecified prior",
    },
    "induction": {
        "functions": "Posterior functions",
        "resources": "Evidence of each path, and what was spent on it",
    },
    "convergence": {"convergence": "Error of log Z against evaluations"},
    "planar": {"clusters": "Means and covariances of one cluster and of two"},
}
"""By experiment: the figures that it has, with their captions."""


def update(page: Path, records: Sequence[Record], truths: Truths, figures: Path) -> None:
    """Bring a page up to date, and the pictures beside it that have the name of a figure."""
    text = updated(page.read_text(encoding="utf-8"), records, truths)
    page.write_text(text, encoding="utf-8")
    for picture in re.findall(r"\]\(([\w/]+\.png)\)", text):
        drawn = figures / Path(picture).name
        if drawn.exists():
            shutil.copyfile(drawn, page.parent / picture)


def updated(page: str, records: Sequence[Record], truths: Truths) -> str:
    """The page with the numbers of the records; a part whose experiment has none stays as it is."""
    tables = table.tables(records, truths)
    parts = {name: table.markdown(frame) for name, frame in tables.items()}
    parts |= words.of_tables(tables) | words.of_convergence(records, truths)
    parts |= {f"{name}_pictures": _pictures(name) for name in {each["experiment"] for each in records}}
    parts |= {"beside": beside.markdown(tables, truths), "runs": _origin(records)}

    def part(match: re.Match[str]) -> str:
        name, before = match[1], match[2]
        return f"<!-- {name} -->\n{parts.get(name) or before.strip()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n(.*?)<!-- end -->", part, page, flags=re.DOTALL)


def _pictures(experiment: str) -> str:
    """The pictures of an experiment, as Markdown."""
    return "\n\n".join(f"![{words}]({_FOLDER}/{name}.png)" for name, words in _PICTURES[experiment].items())


def _origin(records: Sequence[Record]) -> str:
    """How many runs there are of each method, of how many, and the commits of the code that made them, as a table."""
    lines = ["| experiment | method | runs | of | commits | machine |", "| :-- | :-- | --: | --: | :-- | :-- |"]
    for name, experiment in EXPERIMENTS.items():
        for method in experiment.engines:
            runs = [each for each in records if (each["experiment"], each["method"]) == (name, method)]
            commits = sorted({run.get("commit") or f"version {run['version']}" for run in runs})
            machines = sorted({run.get("machine") or "" for run in runs})
            cells = (
                name,
                METHODS[method].label,
                str(len(runs)),
                str(experiment.runs),
                *map(", ".join, (commits, machines)),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
