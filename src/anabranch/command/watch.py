"""`anabranch watch`: how far a run has come that saves its checkpoints."""

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from anabranch.checkpoint import RunProgress, read_progress
from anabranch.command.arguments import Subparsers, add_json, new_parser, number
from anabranch.command.status import FINE
from anabranch.command.summary import plain

__all__ = ["add"]

_MORE = """\
Nothing is loaded but a small index: the run goes on undisturbed, in whatever
process it is. With --every, a line is printed each time it has come further,
until Ctrl-C.

examples:
  anabranch run model.py:mixture --data y.csv --out run --checkpoint run-so-far
  anabranch watch run-so-far --every 5"""


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(commands, "watch", perform, what="show how far a run with a checkpoint has come", more=_MORE)
    parser.add_argument("checkpoint", type=Path, metavar="DIR", help="the folder of the checkpoint")
    parser.add_argument("--every", type=number, metavar="S", help="look again each S seconds (default: once)")
    add_json(parser)


def perform(given: argparse.Namespace) -> int:
    """Print what the last checkpoint says."""
    last = _show(given, None)
    try:
        while given.every is not None:
            time.sleep(given.every)
            last = _show(given, last)
    except KeyboardInterrupt:
        return FINE
    return FINE


def _show(given: argparse.Namespace, last: int | None) -> int:
    """Print where the run is, unless it was there the last time; returns its evaluations."""
    progress = read_progress(given.checkpoint)
    if progress.evaluations != last:
        print(json.dumps(plain(asdict(progress))) if given.json else _line(progress))
        sys.stdout.flush()
    return progress.evaluations


def _line(progress: RunProgress) -> str:
    return (
        f"{progress.program}: {progress.visited:,} of {progress.paths:,} paths visited, log evidence "
        f"{progress.log_evidence:.4f} ± {progress.log_evidence_sd:.2g}, {progress.evaluations:,} of "
        f"{progress.budget:,} evaluations in {progress.seconds:.0f} s, {progress.age:.0f} s ago"
    )
