"""Arguments that several commands have."""

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from anabranch.settings import whole

__all__ = ["Performed", "Subparsers", "add_data", "add_json", "add_program", "new_parser", "number", "positive", "seed"]

Subparsers = Any
"""What `add_subparsers` returns; its type is private."""
Performed = Callable[[argparse.Namespace], int]

DATA = """\
data:
  The columns of a table (.csv, .tsv, .parquet), or the keys of a .json object
  or an .npz file, become the arguments of the program with the same names, and
  --set NAME=VALUE adds one. Names that the program does not take are not used.
  If no name is that of an argument, and a single argument is missing, it gets
  the only array that there is, or else all of them, as a dictionary."""


def new_parser(commands: Subparsers, name: str, perform: Performed, *, what: str, more: str) -> argparse.ArgumentParser:
    """The parser of a command, whose help ends with examples."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=what,
        description=f"{what[0].upper()}{what[1:]}.",
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.set_defaults(perform=perform, parser=parser)
    return parser


def add_program(parser: argparse.ArgumentParser) -> None:
    """Which program."""
    words = "the program: a file and the name of a function in it, or module:function"
    parser.add_argument("program", metavar="FILE.py:FUNCTION", help=words)
    add_data(parser)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Which data."""
    parser.add_argument("--data", type=Path, metavar="FILE", help="its data: .csv, .tsv, .json, .npz, .npy or .parquet")
    parser.add_argument("--set", action="append", default=[], type=_setting, dest="constants", metavar="NAME=VALUE",
                        help="another argument of the program, as JSON: --set degree=3 (may be repeated)")  # fmt: skip


def add_json(parser: argparse.ArgumentParser) -> None:
    """Whether the output is for scripts."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def positive(text: str) -> int:
    """A whole number, at least one; commas and underscores may group its digits."""
    return _whole(text, 1)


def seed(text: str) -> int:
    """A whole number, at least zero."""
    return _whole(text, 0)


def number(text: str) -> float:
    """A positive number."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number; got {text!r}")
    return value


def _whole(text: str, minimum: int) -> int:
    try:
        return int(whole(minimum)("it", int(text.replace(",", ""))))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least {minimum}; got {text!r}") from None


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    try:
        if equals and name.isidentifier():
            return name, json.loads(value)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be NAME=VALUE with a value in JSON, as in degree=3; got {text!r}")
