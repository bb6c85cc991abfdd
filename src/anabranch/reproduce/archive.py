"""All records in one small file, from which figures, tables and the page are made without any inference.

One line of JSON for each run, compressed. Posterior functions are kept of the run that is shown. Curves are thinned:
of a long list of evaluations, and of what belongs to each of them, some entries are kept, the first and the last
among them: half of them are spaced evenly in the evaluations, and half in their logarithm.
"""

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from anabranch.reproduce.figures.labels import runs_of
from anabranch.reproduce.records import Record
from anabranch.reproduce.rows import best_run

__all__ = ["ARCHIVE", "pack", "unpack"]

ARCHIVE = "records.jsonl.gz"
"""The name of the file in the folder of a reproduction."""
_MOST, _MOST_OF_A_PATH = 300, 40
"""Entries of a curve that are kept, and of that of each path: more make figures no finer, and the file larger."""


def pack(records: Iterable[Record], file: Path) -> None:
    """Write the records, with thinned curves, to one file; the same records give the same bytes."""
    records = list(records)
    shown = [best_run(runs) for runs in runs_of(records, "induction").values()]
    small = (
        record if "functions" not in record or record in shown else record | {"functions": None} for record in records
    )
    lines = (json.dumps(thinned(record), allow_nan=False, separators=(",", ":")) + "\n" for record in small)
    file.write_bytes(gzip.compress("".join(lines).encode(), mtime=0))


def unpack(file: Path) -> list[Record]:
    """The records of a file."""
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).decode().splitlines()]


def thinned(tree: Any, most: int = _MOST) -> Any:
    """The same with fewer entries in every curve: a mapping with a list of evaluations, and lists of that length."""
    if not isinstance(tree, dict):
        return tree
    evaluations = tree.get("evaluations")
    if not isinstance(evaluations, list) or len(evaluations) <= most:
        return {key: thinned(value, _MOST_OF_A_PATH if key == "resources" else most) for key, value in tree.items()}
    n, ends = len(evaluations), (max(evaluations[0], 1), max(evaluations[-1], 1))
    places = np.concatenate([np.geomspace(*ends, most // 2), np.linspace(*ends, most // 2)])
    kept = np.unique(np.clip([0, *np.searchsorted(evaluations, places), n - 1], 0, n - 1)).tolist()
    return {key: [x[i] for i in kept] if isinstance(x, list) and len(x) == n else x for key, x in tree.items()}
