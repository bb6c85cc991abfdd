"""`anabranch compare`: runs of several models of the same data, side by side."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from anabranch.combine import compare
from anabranch.command.arguments import Subparsers, add_json, new_parser
from anabranch.command.saved_run import add_with_program, loaded
from anabranch.command.status import FINE, WARNED, WrongUsage
from anabranch.command.summary import plain

__all__ = ["add"]

_MORE = """\
The models are compared by their evidence, and with --with-program by
leave-one-out prediction, too. No code is run without it. The exit status is 3
if a run has warnings.

examples:
  anabranch compare linear quadratic
  anabranch compare runs/* --with-program --json"""


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(commands, "compare", perform, what="compare saved runs of models of the same data", more=_MORE)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs, two or more")
    add_with_program(parser, "predictions")
    add_json(parser)


def perform(given: argparse.Namespace) -> int:
    """Load the runs, compare them, and print the table."""
    if len(given.runs) < 2:
        raise WrongUsage("give two runs or more to compare")
    models = {
        name: loaded(folder, with_program=given.with_program)
        for name, folder in zip(_names(given.runs), given.runs, strict=True)
    }
    comparison = compare(models)
    rows = {"models": comparison.table.reset_index().to_dict("records"), "notes": comparison.notes}
    print(json.dumps(plain(rows), indent=1) if given.json else comparison)
    return WARNED if any(posterior.warnings for posterior in models.values()) else FINE


def _names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path, or all of it where two are the same."""
    last = [folder.resolve().name for folder in folders]
    if len(set(map(str, folders))) < len(folders):
        raise WrongUsage("the same run is given twice")
    return last if len(set(last)) == len(last) else [str(folder) for folder in folders]
