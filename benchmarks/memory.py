"""How much memory inference takes, and whether a process that infers again and again keeps any of it.

    python benchmarks/memory.py            prints two tables in Markdown; two minutes or more
    python benchmarks/memory.py --only 4096_paths

Every row of the first table is a process of its own: the peak is that of the whole process, and what the imports take
is in the row above.
"""

import argparse
import gc
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpyro.distributions as dist

import anabranch as ab
from anabranch import programs

CALLS = 20


def choices() -> None:
    """4,096 paths: twelve branches, each of its own."""
    for i in range(12):
        if ab.sample(f"b{i}", dist.Bernoulli(0.5)):
            continue


def coin(heads: int) -> None:
    fair = ab.sample("fair", dist.Bernoulli(0.5))
    p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
    ab.observe("heads", dist.Binomial(10, p), heads)


def inferred(program: Callable[..., Any], *data: Any) -> str:
    posterior = ab.infer(program, *data, progress=False)
    return f"{len(posterior.solutions)} paths, {posterior.run.evaluations:,} evaluations"


def divided() -> str:
    return f"{len(ab.find_paths(choices, executions=50_000)):,} paths"


CASES: dict[str, Callable[[], str]] = {
    "imports": lambda: "",
    "branching": lambda: inferred(programs.branching, 2.0),
    "function_induction": lambda: inferred(programs.function_induction, *programs.function_induction_data()),
    "mixture": lambda: inferred(programs.mixture, programs.mixture_data()),
    "misspecified_mixture": lambda: inferred(programs.misspecified_mixture, programs.mixture_data()),
    "4096_paths": divided,
}


def resident() -> float:
    """What the process has in memory now, in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 2**20


def growth() -> None:
    """A small program, again and again in this process."""
    print("\n| calls of infer | MiB in memory |\n| --- | --- |")
    for call in range(1, CALLS + 1):
        ab.infer(coin, 9, seed=call, progress=False)
        gc.collect()
        print(f"| {call} | {resident():.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, "growth"])
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        what = CASES[arguments.only]()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
        print(f"| {arguments.only} | {what} | {peak:.0f} |")
        return
    if arguments.only != "growth":
        print("| process | what it did | peak, MiB |\n| --- | --- | --- |", flush=True)
        for name in [arguments.only] if arguments.only else CASES:
            subprocess.run([sys.executable, __file__, "--child", "--only", name], check=True)
    if arguments.only in (None, "growth"):
        growth()


if __name__ == "__main__":
    main()
