"""`anabranch run`: inference on a program in a file, with data from a file."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from anabranch.combine import Posterior, check_free
from anabranch.command.arguments import DATA, Subparsers, add_json, add_program, new_parser, number, positive, seed
from anabranch.command.data import arguments_of, read
from anabranch.command.engine import engine_of, names
from anabranch.command.program import absolute, program_of
from anabranch.command.status import FINE, INTERRUPTED, WARNED, WrongUsage
from anabranch.command.summary import summary_of
from anabranch.execution import Processes
from anabranch.inference import infer
from anabranch.limits import INTERRUPTED as WAS_INTERRUPTED
from anabranch.limits import TOLERANCE

__all__ = ["REPORT", "SUMMARY", "add"]

REPORT, SUMMARY = "report.html", "summary.json"
"""Files in the folder of a run, beside the saved posterior."""
_MORE = f"""\
{DATA}

The folder gets the posterior (for ab.load, `anabranch report` and `anabranch
compare`), {REPORT} and {SUMMARY}. An interrupt (Ctrl-C) ends the run, and
writes what there is. With --checkpoint the same command goes on from there,
and `anabranch watch` shows how far it has come. The exit status is 3 if there
are warnings.

examples:
  anabranch run model.py:mixture --data y.csv --out run
  anabranch run model.py:line --data xy.json --set degree=2 --json > line.json
  anabranch run anabranch.programs:branching --budget 20000 --engine SMC"""


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(commands, "run", perform, what="run inference on a program, and print its posterior",
                        more=_MORE)  # fmt: skip
    add_program(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder for the run (default: it is not kept)")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of all random choices (default: 0)")
    parser.add_argument("--budget", type=positive, metavar="N",
                        help="evaluations of the density, at most (default: 1000000; 20000 for a program that the "
                             "interpreter runs)")  # fmt: skip
    parser.add_argument("--seconds", type=number, metavar="S", help="time, at most (default: no limit)")
    parser.add_argument("--tolerance", type=number, default=TOLERANCE, metavar="E",
                        help=f"stop when the errors of log Z and of the path weights are below it "
                             f"(default: {TOLERANCE:g})")  # fmt: skip
    parser.add_argument("--engine", default="DCC", metavar="NAME", help=f"one of {', '.join(names())} (default: DCC)")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR",
                        help="save the run there while it goes; the same command goes on after a kill")  # fmt: skip
    parser.add_argument("--processes", type=positive, metavar="N",
                        help="visit paths in so many processes (default: threads of this one)")  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors; the files say the rest")
    add_json(parser)


def perform(given: argparse.Namespace) -> int:
    """Run inference, write the folder, and print the posterior."""
    engine = engine_of(given.engine)
    if given.out is not None:
        try:
            check_free(given.out)
        except FileExistsError as error:
            raise WrongUsage(str(error)) from None
    program = program_of(given.program)
    bound = arguments_of(program, read(given.data), given.constants)
    posterior = infer(program, *bound.args, engine=engine, seed=given.seed, budget=given.budget, seconds=given.seconds,
                      tolerance=given.tolerance, progress=not given.quiet, checkpoint=given.checkpoint,
                      executor=None if given.processes is None else Processes(given.processes),
                      **bound.kwargs)  # fmt: skip
    summary = {**summary_of(posterior), "source": _source(given)}
    if given.out is not None:
        _write(posterior, given.out, summary)
    if given.json:
        print(json.dumps(summary, indent=1))
    elif not given.quiet:
        print(posterior)
    if given.out is not None and not given.quiet:
        print(f"The report is {given.out / REPORT}.", file=sys.stderr)
    if posterior.run.stopped == WAS_INTERRUPTED:
        return INTERRUPTED
    return WARNED if posterior.warnings else FINE


def _source(given: argparse.Namespace) -> dict[str, Any]:
    """Where the program and the data are."""
    data = None if given.data is None else str(given.data.resolve())
    return {"program": absolute(given.program), "data": data, "set": dict(given.constants)}


def _write(posterior: Posterior, folder: Path, summary: dict[str, Any]) -> None:
    """The posterior first: without it the rest is worth little."""
    posterior.save(folder)
    (folder / SUMMARY).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    posterior.report(folder / REPORT)
