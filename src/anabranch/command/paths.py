"""`anabranch paths`: the paths of a program."""

import argparse
import json

from anabranch.command.arguments import DATA, Subparsers, add_json, add_program, new_parser, positive, seed
from anabranch.command.data import arguments_of, read
from anabranch.command.program import program_of
from anabranch.command.status import FINE
from anabranch.command.summary import plain
from anabranch.divide import Division, find_paths

__all__ = ["add"]

_MORE = f"""\
{DATA}

examples:
  anabranch paths model.py:mixture --data y.csv
  anabranch paths anabranch.programs:branching --json"""


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(commands, "paths", perform, what="find the paths of a program, and draw their tree", more=_MORE)
    add_program(parser)
    parser.add_argument("--executions", type=positive, default=1000, metavar="N",
                        help="executions from the prior that look for paths (default: 1000)")  # fmt: skip
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="of all random choices (default: 0)")
    parser.add_argument("--limit", type=positive, default=40, metavar="N", help="ends of the tree (default: 40)")
    add_json(parser)


def perform(given: argparse.Namespace) -> int:
    """Divide the program, and print what was found."""
    program = program_of(given.program)
    bound = arguments_of(program, read(given.data), given.constants)
    division = find_paths(program, *bound.args, executions=given.executions, seed=given.seed, **bound.kwargs)
    print(json.dumps(_plain(division), indent=1) if given.json else division.tree(given.limit))
    return FINE


def _plain(division: Division) -> object:
    paths = [
        {"path": path.description, "prior_probability": path.prior_probability, "dim": path.dim,
         "sites": list(path.addresses)}
        for path in division
    ]  # fmt: skip
    return plain({
        "program": division.program.name, "prior_mass_found": division.prior_mass_found,
        "prior_mass_truncated": division.prior_mass_truncated, "unmet": list(division.unmet), "paths": paths,
    })  # fmt: skip
