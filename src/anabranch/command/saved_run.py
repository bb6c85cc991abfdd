"""Runs that were saved, read again; with the program and the data that they name, if that is allowed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from anabranch.combine import Posterior
from anabranch.command.data import arguments_of, read
from anabranch.command.program import program_of
from anabranch.command.run import SUMMARY
from anabranch.command.status import WrongUsage
from anabranch.errors import CannotLoad
from anabranch.loading import load

__all__ = ["add_with_program", "loaded"]


def add_with_program(parser: argparse.ArgumentParser, what: str) -> None:
    """Whether the code of the program may run."""
    parser.add_argument("--with-program", action="store_true",
                        help=f"run the program that the run names, with its data: {what} need it")  # fmt: skip


def loaded(folder: Path, *, with_program: bool) -> Posterior:
    """The posterior in a folder. No code is run unless it is asked for."""
    try:
        if not with_program:
            return load(folder)
        source = _source(folder)
        program = program_of(source["program"])
        data = read(None if source["data"] is None else Path(source["data"]))
        bound = arguments_of(program, data, list(source["set"].items()))
        return load(folder, program, *bound.args, **bound.kwargs)
    except CannotLoad as error:
        raise WrongUsage(str(error)) from error


def _source(folder: Path) -> dict[str, Any]:
    try:
        source: dict[str, Any] = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, KeyError) as error:
        raise WrongUsage(
            f"{folder} does not say what its program is: it was not made by `anabranch run`. Leave out --with-program"
        ) from error
    return source
