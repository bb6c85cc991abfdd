"""`anabranch report`: the page of a run that was saved."""

import argparse
from pathlib import Path

from anabranch.command.arguments import Subparsers, new_parser
from anabranch.command.run import REPORT
from anabranch.command.saved_run import add_with_program, loaded
from anabranch.command.status import FINE

__all__ = ["add"]

_MORE = f"""\
The page is one file that needs no network. No code is run, unless
--with-program asks for it.

examples:
  anabranch report run                       (writes run/{REPORT})
  anabranch report run --out mixture.html --with-program"""


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(commands, "report", perform, what="write the page of a saved run again", more=_MORE)
    parser.add_argument("run", type=Path, metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"the page (default: {REPORT} in the folder)")
    add_with_program(parser, "predictions")


def perform(given: argparse.Namespace) -> int:
    """Write the page, and print where it is."""
    file = given.out or given.run / REPORT
    loaded(given.run, with_program=given.with_program).report(file)
    print(file)
    return FINE
