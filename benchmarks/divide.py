"""How fast a program is divided, beside a loop over NumPyro's handlers in the same run.

    python benchmarks/divide.py            prints four tables in Markdown; about two minutes

Times on a shared machine vary from day to day: compare the columns of one run, not two runs.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import handlers

import anabranch as ab
from anabranch import addresses, programs
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program

PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "mixture": (programs.mixture, lambda: (programs.mixture_data(),)),
    "misspecified_mixture": (programs.misspecified_mixture, lambda: (programs.mixture_data(),)),
    "function_induction": (programs.function_induction, programs.function_induction_data),
}


def vector_mixture(y: Any) -> None:
    """The mixture with one vector site for all means."""
    K = ab.sample("extra", dist.Poisson(9)) + 1
    low = 20 * jnp.arange(K) / K
    mu = ab.sample("mu", dist.Uniform(low, low + 20 / K))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(K) / K), dist.Normal(mu, 0.1)), y)


def seconds(function: Callable[[], Any], repeats: int = 1) -> float:
    """The best of some runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def numpyro_executions(program: Callable[..., Any], data: tuple[Any, ...], n: int) -> None:
    for key in jax.random.split(jax.random.key(0), n):
        with addresses.execution(program):
            handlers.trace(handlers.seed(program, key)).get_trace(*data)


def our_executions(division: ab.Division, n: int, seed: int) -> None:
    """Every site of every execution, as a trace has them."""
    for executions in division.explore(n, seed=seed):
        if executions.path is not None:
            executions.values()


def header(*columns: str) -> None:
    print("\n| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))


def print_executions(n_ours: int, n_loop: int) -> None:
    header("prior executions per second", "anabranch", "NumPyro, seed and trace in a loop", "ratio")
    for name, (program, data) in PROGRAMS.items():
        division = ab.find_paths(program, *data(), executions=n_ours, seed=0)
        ours = n_ours / seconds(lambda d=division: our_executions(d, n_ours, seed=0), repeats=3)
        numpyro_executions(program, data(), n_loop // 4)  # compile its samplers
        loop = n_loop / seconds(lambda p=program, d=data: numpyro_executions(p, d(), n_loop))
        print(f"| {name} | {ours:,.0f} | {loop:,.0f} | {ours / loop:,.0f} |")


def print_cold() -> None:
    header("cold process, after imports: 1,000 prior executions to paths", "seconds", "paths", "Python runs")
    for name in PROGRAMS:
        command = [sys.executable, __file__, "--cold", name]
        line = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        print(line.strip())


def cold(name: str) -> None:
    program, data = PROGRAMS[name]
    arguments = data()
    start = time.perf_counter()
    division = ab.find_paths(program, *arguments)
    took = time.perf_counter() - start
    print(f"| {name} | {took:.2f} | {len(division)} | {division.python_runs} |")


def print_growth() -> None:
    y = programs.mixture_data()
    header("K", "sites", "record", "compile density", "with gradient", "1,000 points", "1,000 gradients", "on the host")
    rebuild(Program(vector_mixture, (y,)), [[np.array(1)]]).evaluate(np.zeros((1, 2)))  # start jax
    for K in (5, 20, 80):
        for label, program in (("one per mean", programs.mixture), ("one vector", vector_mixture)):
            described = Program(program, (y,))
            answers = [[np.array(K - 1)]]
            record = seconds(lambda d=described, a=answers: rebuild(d, a), repeats=3)
            path = rebuild(described, answers)
            points = path.prior(1000).points
            compiling = seconds(lambda p=path, z=points: p.evaluate(z[:1]))
            gradient = seconds(lambda p=path, z=points: p.differentiate(z[:1]))
            run = seconds(lambda p=path, z=points: p.evaluate(z), repeats=5)
            run_gradient = seconds(lambda p=path, z=points: p.differentiate(z), repeats=5)
            host = seconds(lambda p=path, z=points: p.evaluate(z, compile=False), repeats=2)
            milliseconds = [f"{1000 * t:,.0f} ms" for t in (record, compiling, gradient)]
            milliseconds += [f"{1000 * t:,.1f} ms" for t in (run, run_gradient, host)]
            print(f"| {K} | {label} | " + " | ".join(milliseconds) + " |")


def print_routing(n: int) -> None:
    header("routing known executions through the tree", "executions per second", "Python runs")
    for name, (program, data) in PROGRAMS.items():
        division = ab.find_paths(program, *data(), executions=n, seed=0)
        before = division.python_runs
        rate = n / seconds(lambda d=division: d.explore(n, seed=0), repeats=3)
        print(f"| {name} | {rate:,.0f} | {division.python_runs - before} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    parser.add_argument("--executions", type=int, default=10_000, help="prior executions for our rate")
    parser.add_argument("--loop", type=int, default=100, help="prior executions for NumPyro's rate")
    options = parser.parse_args()
    if options.cold:
        cold(options.cold)
        return
    print_cold()
    print_executions(options.executions, options.loop)
    print_routing(options.executions)
    print_growth()


if __name__ == "__main__":
    main()
