"""Runs the gallery, and writes its page: pictures, answers, running times, and the distance from references.

    python examples/gallery/build.py                 everything, some minutes
    python examples/gallery/build.py clusters        one problem; the others stay as they were recorded
    python examples/gallery/build.py --page          the page alone, from the records

A problem is a file of this folder with a function `main(file)`; each is run in a process of its own. Records and
pictures are in docs/gallery.
"""

import ast
import contextlib
import importlib
import io
import json
import math
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parent.parent / "docs"
RECORDS = DOCS / "gallery" / "records.json"
PROBLEMS = {
    "change_points": "Change points",
    "clusters": "Clusters",
    "polynomial": "Polynomial",
    "variable_selection": "Variable selection",
    "symbolic_regression": "Symbolic regression",
    "kernels": "Kernels",
    "hidden_markov": "Hidden Markov",
    "robust_line": "Robust line",
    "regression_tree": "Regression tree",
    "epidemic": "Epidemic",
    "dose_response": "Dose response",
    "phylogeny": "Phylogeny",
}
GRID_ERROR = 1e-4
"""The error of references that are sums over a grid: where our answer is exact, it is all that is left."""
INTRODUCTION = """\
# Gallery

Real problems with data that ship with the library: find the one nearest to yours, and change it. Each is a script of
`examples/gallery`, which prints its answer and draws its picture:

```console
python examples/gallery/change_points.py
```

Three of them are notebooks, too: [change points](notebooks/change_points.ipynb), [dose
response](notebooks/dose_response.ipynb), [variable selection](notebooks/variable_selection.ipynb).

Seconds are those of the processor, compilation included, in a process that has compiled nothing before (two cores,
beside other work). References are closed forms, enumerations, quadratures, or importance sampling that shares nothing
with the library (`examples/gallery/references.py`); errors are standard errors of the computation, and where ours is
zero or nearly so, that of the reference, 0.0001, counts. Tolerances are 0.02, four times the default. `make gallery`
makes this page.
"""


def main(arguments: list[str]) -> None:
    """Run what is asked for, and write the page."""
    if arguments[:1] == ["--run"]:
        print(json.dumps(run(arguments[1])))
        return
    records = json.loads(RECORDS.read_text()) if RECORDS.exists() else {}
    for name in [] if arguments == ["--page"] else arguments or PROBLEMS:
        print(f"==> {name}", flush=True)
        done = subprocess.run([sys.executable, __file__, "--run", name], stdout=subprocess.PIPE, text=True, check=True)
        records[name] = json.loads(done.stdout.splitlines()[-1])
        RECORDS.write_text(json.dumps(records, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
    (DOCS / "gallery.md").write_text(page(records))


def run(name: str) -> dict:
    """The record of one problem: its answer in words, its seconds, and answers beside references."""
    problem = importlib.import_module(name)
    printed, start = io.StringIO(), time.process_time()
    with contextlib.redirect_stdout(printed):
        posterior = problem.main(DOCS / "gallery" / f"{name}.png")
    seconds = time.process_time() - start
    checks = getattr(importlib.import_module("references"), name, lambda posterior: ())
    return {
        "answer": printed.getvalue().removeprefix(f"{posterior}\n").strip(),
        "seconds": round(seconds),
        "evaluations": posterior.run.evaluations,
        "paths": len(posterior.paths),
        "log_evidence": [float(posterior.log_evidence), float(posterior.log_evidence_sd)],
        "warnings": len(posterior.warnings),
        "checks": [[what, *map(float, numbers)] for what, *numbers in checks(posterior)],
    }


def page(records: dict) -> str:
    """The page, from the records and the text of the scripts."""
    rows = "\n".join(summary(name, records[name]) for name in PROBLEMS if name in records)
    table = "| problem | paths | log evidence | seconds | largest difference from a reference |\n|" + " --- |" * 5
    sections = [section(name, records[name]) for name in PROBLEMS if name in records]
    return "\n".join([INTRODUCTION, table, rows, "", *sections])


def summary(name: str, record: dict) -> str:
    """A row of the table."""
    title = PROBLEMS[name]
    value, error = record["log_evidence"]
    worst = max((abs(z) for _, *numbers in record["checks"] if (z := in_errors(*numbers)) is not None), default=None)
    difference = "–" if worst is None else f"{worst:.1f} errors"
    link = f"[{title}](#{title.lower().replace(' ', '-')})"
    return f"| {link} | {record['paths']:,} | {value:.3f} ± {error:.2g} | {record['seconds']} | {difference} |"


def in_errors(ours: float, error: float, truth: float) -> float | None:
    """The difference in units of the error, in which is that of the reference; None for an infinite error."""
    return (ours - truth) / math.hypot(error, GRID_ERROR) if math.isfinite(error) else None


def section(name: str, record: dict) -> str:
    """One problem: the question, the program, the picture, the answer and the references."""
    script = (HERE / f"{name}.py").read_text()
    question = ast.get_docstring(ast.parse(script))
    program = script[script.index("\nDATA = ") : script.index("\n\ndef main(")].partition("\n")[2].partition("\n")[2]
    lines = [f"## {PROBLEMS[name]}", "", question, "", "```python", program.strip(), "```", ""]
    lines += [f"![{PROBLEMS[name]}](gallery/{name}.png)", ""]
    lines += ["    " + line for line in record["answer"].splitlines()]
    lines += [
        "",
        f"{record['evaluations']:,} evaluations, {record['seconds']} seconds. `examples/gallery/{name}.py`",
        "",
    ]
    if record["checks"]:
        lines += [f"| {kind_of_reference(name)} | ours | reference | difference |", "| --- | --- | --- | --- |"]
        for what, ours, error, truth in record["checks"]:
            lines.append(f"| {what} | {ours:.4f} ± {error:.4f} | {truth:.4f} | {ours - truth:+.4f} |")
        lines.append("")
    return "\n".join(lines)


def kind_of_reference(name: str) -> str:
    """What a reference is, from its docstring."""
    tree = ast.parse((HERE / "references.py").read_text())
    [function] = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name]
    return ast.get_docstring(function).partition("\n")[0].rstrip(".")


if __name__ == "__main__":
    main(sys.argv[1:])
