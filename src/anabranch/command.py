"""The command `anabranch`."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from anabranch.cores import available_cores
from anabranch.settings import whole

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    given = _parser().parse_args(arguments)
    from anabranch.reproduce.experiments import EXPERIMENTS
    from anabranch.reproduce.reproduction import Settings, reproduce

    names = list(EXPERIMENTS) if given.experiment == "all" else [given.experiment]
    methods = dict.fromkeys(method for name in names for method in EXPERIMENTS[name].engines)
    unknown = [method for method in given.methods or () if method not in methods]
    if unknown:
        _parser().error(f"{given.experiment} has no method {', '.join(unknown)}; there are {', '.join(methods)}")
    folder = given.folder or Path("reproduction-quick" if given.quick else "reproduction")
    command = f"anabranch {shlex.join(arguments)}"
    settings = Settings(names, folder, given.quick, given.methods, given.runs, given.budget, given.workers, command,
                        given.records, given.page)  # fmt: skip
    try:
        failures = reproduce(settings)
    except OSError as error:
        _parser().error(f"{error.strerror}: {error.filename}")
    except KeyboardInterrupt:
        return 130
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return 1 if failures else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="anabranch", description="Inference on programs with random control flow.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    reproduce = commands.add_parser(
        "reproduce",
        help="reproduce the paper's experiments",
        description="Reproduce section 7 of the paper (Zhou et al., 2020): records, figures, tables and a page, in a "
        "folder. The same command resumes an interrupted reproduction.",
    )
    reproduce.add_argument("experiment", choices=["gmm", "misspecified", "induction", "all"])
    reproduce.add_argument("--quick", action="store_true", help="a small version, in about two minutes")
    where = "where to write (default: reproduction, or reproduction-quick)"
    reproduce.add_argument("--out", type=Path, dest="folder", help=where)
    reproduce.add_argument("--from-records", type=Path, dest="records", metavar="FILE",
                           help="run nothing, and show the records in this file, records.jsonl.gz")  # fmt: skip
    reproduce.add_argument("--page", type=Path, metavar="FILE",
                           help="bring the numbers of this page, such as docs/reproduction.md, up to date")  # fmt: skip
    reproduce.add_argument("--methods", type=lambda text: text.split(","), metavar="A,B",
                           help="only these of default, paper, is, rmh, rmh_centred, pg, ipmcmc, bbvi")  # fmt: skip
    reproduce.add_argument("--runs", type=_positive, metavar="N", help="runs of each method (default: as in the paper)")
    reproduce.add_argument("--budget", type=_positive, metavar="N", help="evaluations of a run (default: 1000000)")
    reproduce.add_argument("--workers", type=_positive, metavar="N", default=available_cores(),
                           help="processes (default: the number of cores)")  # fmt: skip
    return parser


def _positive(text: str) -> int:
    try:
        return whole(1)("it", int(text.replace(",", "")))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1; got {text!r}") from None
