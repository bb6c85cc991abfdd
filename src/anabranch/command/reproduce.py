"""`anabranch reproduce`: the paper's experiments."""

import argparse
import shlex
import sys
from pathlib import Path

from anabranch.command.arguments import Subparsers, new_parser, positive
from anabranch.command.status import FAILED, FINE, INTERRUPTED, WrongUsage
from anabranch.cores import available_cores

__all__ = ["add"]

_EXPERIMENTS = ("gmm", "uncertain", "misspecified", "induction", "convergence", "planar")
_MORE = """\
Section 7 of the paper (Zhou et al., 2020): records, figures, tables and a
page, in a folder. The same command resumes an interrupted reproduction.

examples:
  anabranch reproduce all --quick
  anabranch reproduce gmm --methods default,paper --runs 5 --out gmm"""


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(commands, "reproduce", perform, what="reproduce the paper's experiments", more=_MORE)
    parser.add_argument("experiment", choices=[*_EXPERIMENTS, "all"], metavar="EXPERIMENT",
                        help=f"{', '.join(_EXPERIMENTS)}, or all")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a small version, in about two minutes")
    where = "where to write (default: reproduction, or reproduction-quick)"
    parser.add_argument("--out", type=Path, dest="folder", help=where)
    parser.add_argument("--from-records", type=Path, dest="records", metavar="FILE",
                        help="run nothing, and show the records in this file, records.jsonl.gz")  # fmt: skip
    parser.add_argument("--page", type=Path, action="append", default=[], dest="pages", metavar="FILE",
                        help="bring the numbers of this page, such as docs/reproduction.md, up to date")  # fmt: skip
    parser.add_argument(
        "--methods",
        type=lambda text: text.split(","),
        metavar="A,B",
        help="only these of default, paper, is, rmh, rmh_single, rmh_centred, pg, ipmcmc, bbvi",
    )
    parser.add_argument("--runs", type=positive, metavar="N", help="runs of each method (default: as in the paper)")
    parser.add_argument(
        "--budget", type=positive, metavar="N", help="evaluations of a run (default: 1000000; of convergence 10000000)"
    )
    parser.add_argument("--workers", type=positive, metavar="N", default=available_cores(),
                        help="processes (default: the number of cores)")  # fmt: skip


def perform(given: argparse.Namespace) -> int:
    """Run the experiments, and say what failed."""
    from anabranch.reproduce.experiments import EXPERIMENTS
    from anabranch.reproduce.reproduction import Settings, reproduce

    names = list(EXPERIMENTS) if given.experiment == "all" else [given.experiment]
    methods = dict.fromkeys(method for name in names for method in EXPERIMENTS[name].engines)
    unknown = [method for method in given.methods or () if method not in methods]
    if unknown:
        raise WrongUsage(f"{given.experiment} has no method {', '.join(unknown)}; there are {', '.join(methods)}")
    folder = given.folder or Path("reproduction-quick" if given.quick else "reproduction")
    command = f"anabranch {shlex.join(given.arguments)}"
    settings = Settings(names, folder, given.quick, given.methods, given.runs, given.budget, given.workers, command,
                        given.records, given.pages)  # fmt: skip
    try:
        failures = reproduce(settings)
    except OSError as error:
        raise WrongUsage(f"{error.strerror}: {error.filename}") from error
    except KeyboardInterrupt:
        return INTERRUPTED
    for failure in failures:
        print(f"failed: {failure}", file=sys.stderr)
    return FAILED if failures else FINE
