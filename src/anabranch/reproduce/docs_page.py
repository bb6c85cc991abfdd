"""The numbers of a page of the documentation, from records.

What stands between the lines `<!-- NAME -->` and `<!-- end -->` is made from the records: the table of an experiment
(`gmm`, `misspecified`, `induction`), or where the runs came from (`runs`).
"""

import re
from collections.abc import Sequence

from anabranch.reproduce import table
from anabranch.reproduce.figures.labels import METHODS
from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import Truths

__all__ = ["updated"]


def updated(page: str, records: Sequence[Record], truths: Truths) -> str:
    """The page with the numbers of the records; a part whose experiment has none stays as it is."""
    parts = {name: table.markdown(frame) for name, frame in table.tables(records, truths).items()}
    parts["runs"] = _origin(records)

    def part(match: re.Match[str]) -> str:
        name, before = match[1], match[2]
        return f"<!-- {name} -->\n{parts.get(name, before.strip())}\n<!-- end -->"

    return re.sub(r"<!-- (\w+) -->\n(.*?)<!-- end -->", part, page, flags=re.DOTALL)


def _origin(records: Sequence[Record]) -> str:
    """The commit of the code that made the runs of each method, as lines of a list."""
    lines = []
    for method in METHODS:
        runs = [record for record in records if record["method"] == method]
        commits = sorted({record.get("commit") or f"version {record['version']}" for record in runs})
        if runs:
            lines.append(f"- {METHODS[method].label}: {len(runs)} runs, {', '.join(commits)}")
    return "\n".join(lines)
