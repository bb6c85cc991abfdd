"""How time and memory grow: with workers, paths, sites and observations; and what a hundred machines would give.

`known` has paths that executions were led to, `resume` the time of a call that finds its checkpoint complete, by paths,
and `help` the seconds of a run with one path, and of an engine, in one process and by two workers, by the milliseconds
for which each execution waits, as for a simulator that is another program.

    python benchmarks/scale.py                          everything, about half an hour on two idle cores
    python benchmarks/scale.py --only sites,observations --seconds 20

Each measurement runs in a process of its own, whose peak memory is that of the run. The growth exponent b of time ~ n^b
is fitted to the processor time of the larger half of the sizes that no time limit ended. The simulation takes the times
of the visits of a real run, one by one, and the time between rounds, which is spent in one process: a scheduler gives
each visit of a round to the machine that is free first.
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import anabranch as ab
from anabranch.divide import divide
from anabranch.search.visit import Outcome, Task, Visitor
from anabranch.search.visiting import Visiting
from wide import selection

SIZES: dict[str, list[int]] = {
    "workers": [1, 2], "processes": [1, 2], "paths": [10, 100, 1_000, 10_000, 100_000],
    "known": [10, 100, 1_000, 10_000, 100_000], "resume": [16, 64, 256], "help": [1, 10, 100],
    "sites": [10, 50, 200, 500, 2_000], "observations": [100, 1_000, 10_000, 100_000, 1_000_000], "machines": [1],
}  # fmt: skip


# The programs ---------------------------------------------------------------------------------------------------------


def heavy_tailed(X: np.ndarray, y: np.ndarray) -> None:
    """`selection` with outliers: paths that take evaluations."""
    mean = jnp.zeros(len(y))
    for j in range(X.shape[1]):
        if ab.sample(f"z{j}", dist.Bernoulli(0.5)):
            mean = mean + X[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.StudentT(4.0, mean, 1.0), y)


def mixture(y: np.ndarray) -> None:
    """One to eight components: paths that take evaluations."""
    K = ab.sample("K", dist.DiscreteUniform(1, 8))
    mu = [ab.sample(f"mu{k}", dist.Uniform(20 * k / K, 20 * (k + 1) / K)) for k in range(K)]
    clusters = dist.Normal(jnp.stack(mu), 0.5)
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(K) / K), clusters), y)


def chain(n: int) -> None:
    """A random walk of n sites, one by one, each observed."""
    x = ab.sample("x0", dist.Normal(0.0, 1.0))
    for i in range(1, n):
        x = ab.sample(f"x{i}", dist.Normal(x, 1.0))
        ab.observe(f"y{i}", dist.Normal(x, 1.0), 0.1 * i)


def line(x: np.ndarray, y: np.ndarray) -> None:
    """A regression with or without a slope: all observations at one site."""
    a = ab.sample("a", dist.Normal(0.0, 1.0))
    b = ab.sample("b", dist.Normal(0.0, 1.0)) if ab.sample("slope", dist.Bernoulli(0.5)) else 0.0
    ab.observe("y", dist.Normal(a + b * x, ab.sample("s", dist.HalfNormal(2.0))), y)


def simulator(y: float, milliseconds: float) -> None:
    """One path, run by the interpreter, which waits."""
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    s = float(ab.sample("s", dist.HalfNormal(1.0)))
    time.sleep(milliseconds / 1000)
    ab.observe("y", dist.Normal(round(x, 3), 0.5 + s), y)


def _regression(n: int, p: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, p))
    return X, X[:, : min(3, p)] @ np.array([1.0, -0.7, 0.4])[:p] + rng.standard_normal(n)


def _clusters() -> np.ndarray:
    return np.random.default_rng(0).normal(np.repeat([2.0, 5.0, 11.0, 17.0], 25), 0.5)


# The measurements -----------------------------------------------------------------------------------------------------


def measure(what: str, n: int, seconds: float) -> dict[str, Any]:
    """One run, in this process."""
    other = {"machines": lambda n: {"simulated": simulated()}, "known": known, "resume": resumed, "help": by_two}
    if what in other:
        return other[what](n)
    runs: dict[str, Callable[[], ab.Posterior]] = {
        "workers": lambda: ab.infer(mixture, _clusters(), budget=200_000, tolerance=None, workers=n),
        "processes": lambda: ab.infer(mixture, _clusters(), budget=200_000, tolerance=None, executor=ab.Processes(n)),
        "paths": lambda: ab.infer(selection, *_regression(50, int(np.ceil(np.log2(n)))), seconds=seconds),
        "sites": lambda: ab.infer(chain, n, budget=20_000, seconds=seconds),
        "observations": lambda: ab.infer(line, *_line(n), budget=3_000, tolerance=None),
    }
    began, spent = time.perf_counter(), time.process_time()
    posterior = runs[what]()
    return {
        "seconds": time.perf_counter() - began,
        "processor": time.process_time() - spent,
        "megabytes": _peak(),
        "paths": len(posterior.paths),
        "visited": int((posterior.paths.evaluations > 0).sum()),
        "error": posterior.log_evidence_sd,
        "stopped": posterior.run.stopped,
    }


def known(n: int) -> dict[str, Any]:
    """Lead executions to n subsets of predictors, each a path."""
    p, began = int(np.ceil(np.log2(n))), time.process_time()
    division = divide(selection, _regression(50, p), {})
    for start in range(0, n, 1_000):
        subsets = np.arange(start, min(start + 1_000, n))[:, None] >> np.arange(p) & 1
        division.route({f"z{j}": subsets[:, j] for j in range(p)})
    return {"processor": time.process_time() - began, "megabytes": _peak(), "paths": len(division)}


def resumed(n: int) -> dict[str, Any]:
    """A run with a checkpoint, and the same call again."""
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):
            began = time.process_time()
            ab.infer(selection, *_regression(50, int(np.log2(n))), checkpoint=folder)
            times.append(time.process_time() - began)
    return {"processor": times[0], "again": times[1]}


def by_two(milliseconds: int) -> dict[str, Any]:
    """Runs in one process, and by two workers that have started."""
    out: dict[str, Any] = {}
    with ab.Processes(2) as two:
        ab.infer(simulator, 0.5, 0.0, executor=two, budget=100)
        time.sleep(10.0)  # the second one starts when it could help
        ab.infer(simulator, 0.5, 0.0, executor=two, budget=100)
        for name, engine in [("DCC", ab.DCC(executions=50)), ("RandomWalkMH", ab.engines.RandomWalkMH())]:
            settings: dict[str, Any] = {"engine": engine, "budget": 500, "tolerance": None}
            for workers, executor in (("one", ab.Threads(1)), ("two", two)):
                began = time.perf_counter()
                posterior = ab.infer(simulator, 0.5, milliseconds, executor=executor, **settings)
                out[f"{name}, {workers}"] = round(time.perf_counter() - began, 1), posterior.log_evidence
    return out


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _line(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(n)
    return x, 0.5 + 0.3 * x + rng.standard_normal(n)


def simulated() -> list[dict[str, Any]]:
    """The time of runs on 1 to 100 machines, from the times of its visits and between its rounds."""
    rounds: list[list[float]] = []
    call, conquer = Visitor.__call__, Visiting.conquer

    def timed(self: Visitor, task: Task) -> Outcome:
        began = time.process_time()
        outcome = call(self, task)
        rounds[-1].append(time.process_time() - began)
        return outcome

    def begun(self: Visiting, *args: Any) -> None:
        rounds.append([])
        conquer(self, *args)

    Visitor.__call__, Visiting.conquer = timed, begun  # type: ignore[method-assign]
    out = []
    programs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [
        (mixture, (_clusters(),)), (selection, _regression(50, 8)), (heavy_tailed, _regression(50, 6))
    ]  # fmt: skip
    for program, data in programs:
        rounds.clear()
        began = time.process_time()
        ab.infer(program, *data, budget=200_000, tolerance=None, workers=1)
        alone = time.process_time() - began - sum(map(sum, rounds))
        longest = sum(max(visits, default=0.0) for visits in rounds)
        times = {n: round(alone + sum(makespan(visits, n) for visits in rounds), 1) for n in (1, 2, 10, 100)}
        out.append({"program": program.__name__, "by machines": times, "in one process": round(alone, 1),
                    "longest visits": round(longest, 1), "visits": sum(map(len, rounds))})  # fmt: skip
    return out


def makespan(times: Sequence[float], machines: int) -> float:
    """The time of a round: each visit goes to the machine that is free first.

    >>> makespan([3.0, 1.0, 1.0, 1.0], 2)
    3.0
    """
    free = [0.0] * machines
    for each in times:
        heapq.heappush(free, heapq.heappop(free) + each)
    return max(free)


def exponent(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """b in seconds ~ size^b, over the larger half of the sizes."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(seconds[half:]), 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SIZES), help="some of " + ", ".join(SIZES))
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="the time limit of the runs with many paths or sites"
    )
    parser.add_argument("--most", type=int, default=10**9, help="the largest size")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one[0], int(given.one[1]), given.seconds)))
        return
    for what in given.only.split(","):
        found: dict[int, dict[str, Any]] = {}
        for n in [size for size in SIZES[what] if size <= given.most]:
            command = [sys.executable, __file__, "--one", what, str(n), "--seconds", str(given.seconds)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            found[n] = json.loads(done.stdout.splitlines()[-1])
            print(what, n, found[n], flush=True)
        ended = {n for n, each in found.items() if "seconds are over" in each.get("stopped", "")}
        whole = {n: each["processor"] for n, each in found.items() if n not in ended and "processor" in each}
        if len(whole) > 2:
            print(what, "growth exponent", round(exponent(list(whole), list(whole.values())), 2))


if __name__ == "__main__":
    main()
