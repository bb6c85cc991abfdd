"""The command `anabranch`: a file for each of its commands.

What is asked for goes to standard output, as text or with `--json` as one JSON object, and nothing else does: progress
and messages go to standard error. The exit status says how it ended (`status`).
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import anabranch
from anabranch.command import compare, doctor, paths, report, reproduce, run, watch
from anabranch.command.status import FAILED, INTERRUPTED, MEANINGS, WRONG_USAGE, WrongUsage
from anabranch.errors import AnabranchError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(arguments)
    given.arguments = arguments
    try:
        return int(given.perform(given))
    except WrongUsage as error:
        given.parser.exit(WRONG_USAGE, f"{given.parser.prog}: {error}\n")
    except KeyboardInterrupt:
        print("Interrupted before there was anything to keep.", file=sys.stderr)
        return INTERRUPTED
    except AnabranchError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    except BrokenPipeError:  # who read the output has left
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:  # of the program, or a fault of ours
        print(_traceback(error), end="", file=sys.stderr)
    return FAILED


def _traceback(error: Exception) -> str:
    """The traceback from the first line of the program on; the whole of it if the program was not running."""
    told = traceback.TracebackException.from_exception(error)
    installed = (str(Path(__file__).parent.parent), os.path.dirname(os.__file__), sys.prefix, "<")
    first = next((k for k, each in enumerate(told.stack) if not each.filename.startswith(installed)), 0)
    told.stack = traceback.StackSummary.from_list(list(told.stack)[first:])
    return "".join(told.format())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="anabranch",
        description="Bayesian inference on Python programs whose control flow depends on random values.",
        epilog=f"example:\n  anabranch run model.py:mixture --data y.csv --out run\n\nexit status:\n{MEANINGS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"anabranch {anabranch.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for each in (run, paths, report, watch, compare, doctor, reproduce):
        each.add(commands)
    return parser
