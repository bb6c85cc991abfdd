"""`make demo`: divide the paper's programs and print the tree of paths of each."""

import time
from typing import Any

import anabranch as ab
from anabranch import programs

__all__ = ["main"]


def main() -> None:
    """Divide each program as 1,000 executions from its prior find it."""
    y = programs.mixture_data()
    show("The branching program of figure 2", programs.branching)
    show("A Gaussian mixture with an unknown number of clusters", programs.mixture, y)
    show("The same under a prior that expects 91 clusters", programs.misspecified_mixture, y, limit=8)
    show("Function induction: shapes from a grammar", programs.function_induction, *programs.function_induction_data())


def show(title: str, program: Any, *data: Any, limit: int = 40) -> None:
    """Divide a program and print what was found."""
    start = time.perf_counter()
    division = ab.find_paths(program, *data, executions=1000, seed=0)
    seconds = time.perf_counter() - start
    print(f"\n{title}\n")
    print(division.tree(limit))
    print(f"\n1,000 executions from the prior took {division.python_runs} runs of the Python and {seconds:.2f} s.")


if __name__ == "__main__":
    main()
