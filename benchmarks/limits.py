"""What runs spend of what they are allowed: `seconds` and `budget`, on programs of ten kinds.

Each run is a process of its own, ended by a watchdog if it does not end by itself. The time is that of `ab.infer`
alone, in a process that has compiled nothing before.

    python benchmarks/limits.py                     all programs, seconds 2, 10, 30 and budgets 10⁴, 10⁵, 10⁶
    python benchmarks/limits.py --only smooth,endless --seconds 2
    python benchmarks/limits.py --interrupts 10     interrupts at random moments
    python benchmarks/limits.py --lock              what it costs that compiled code runs one call at a time
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import anabranch as ab
from anabranch import errors, programs
from anabranch.divide import dispatch

BUDGET_SECONDS = 120
"""Time of the runs whose budget is measured: an interpreted program does not get through a million executions."""
WATCHDOG = 60
"""Seconds beyond the time of a run after which it is killed."""


def smooth(y):
    degree = ab.sample("degree", dist.DiscreteUniform(0, 3))
    x = np.linspace(-1, 1, len(y))
    w = [ab.sample(f"w{i}", dist.Normal(0.0, 1.0)) for i in range(int(degree) + 1)]
    ab.observe("y", dist.Normal(sum(c * x**i for i, c in enumerate(w)), 0.3), y)


def jumps(y):
    """Change points with a rate on each side."""
    k = int(ab.sample("k", dist.DiscreteUniform(0, 4)))
    at = jnp.sort(jnp.stack([ab.sample(f"at{i}", dist.Uniform(0.0, 1.0)) for i in range(k)] + [jnp.inf * jnp.ones(())]))
    level = jnp.stack([ab.sample(f"level{i}", dist.Normal(0.0, 3.0)) for i in range(k + 1)])
    ab.observe("y", dist.Normal(level[jnp.searchsorted(at[:k], np.linspace(0, 1, len(y)))], 1.0), y)


def interpreted(y):
    """A simulator in Python floats, with a choice of two models."""
    growth = float(ab.sample("growth", dist.Normal(0.5, 0.3)))
    start = float(ab.sample("start", dist.LogNormal(0.0, 0.5)))
    limit = (
        float(ab.sample("limit", dist.LogNormal(2.0, 0.5))) if ab.sample("limited", dist.Bernoulli(0.5)) else math.inf
    )
    state, out = start, []
    for _ in range(10 * len(y)):
        state += 0.1 * growth * state * (1 - state / limit)
        out.append(state)
    ab.observe("y", dist.Normal(np.array(out[9::10]), 0.5), y)


def many_paths(y):
    """Which of ten predictors are in: 1,024 paths."""
    X = np.random.default_rng(1).normal(size=(len(y), 10))
    mean = 0.0
    for j in range(10):
        if ab.sample(f"in{j}", dist.Bernoulli(0.3)):
            mean = mean + X[:, j] * ab.sample(f"b{j}", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(mean, 1.0), y)


def cholesky(y):
    """Gaussian processes with one of three kernels."""
    n = len(y)
    kernel = int(ab.sample("kernel", dist.DiscreteUniform(0, 2)))
    scale, length = ab.sample("scale", dist.LogNormal(0.0, 1.0)), ab.sample("length", dist.LogNormal(-1.0, 1.0))
    d = np.abs(np.linspace(0, 1, n)[:, None] - np.linspace(0, 1, n)) / length
    K = [jnp.exp(-(d**2) / 2), jnp.exp(-d), (1 + jnp.sqrt(3.0) * d) * jnp.exp(-jnp.sqrt(3.0) * d)][kernel]
    ab.observe("y", dist.MultivariateNormal(jnp.zeros(n), scale**2 * K + 0.05 * jnp.eye(n)), y)


def discrete(y):
    """A hidden Markov model with two or three states, one site for each step."""
    states = int(ab.sample("states", dist.DiscreteUniform(2, 3)))
    mu = ab.sample("mu", dist.Normal(0.0, 3.0).expand([states]))
    z = 0
    for t, value in enumerate(y):
        stay = jnp.full(states, 0.2 / (states - 1)).at[z].set(0.8)
        z = ab.sample(f"z{t}", dist.Categorical(stay))
        ab.observe(f"y{t}", dist.Normal(mu[z], 1.0), value)


def long(y):
    """A random walk of 400 steps, each a site."""
    x = 0.0
    scale = ab.sample("scale", dist.LogNormal(-1.0, 0.5)) if ab.sample("moves", dist.Bernoulli(0.5)) else 0.1
    for t in range(400):
        x = ab.sample(f"x{t}", dist.Normal(x, scale))
        if t % 10 == 0:
            ab.observe(f"y{t}", dist.Normal(x, 0.5), y[t // 10 % len(y)])


def wide(y):
    """A vector of 200 variables beside a scale."""
    scale = ab.sample("scale", dist.HalfNormal(1.0)) if ab.sample("pooled", dist.Bernoulli(0.5)) else 1.0
    effects = ab.sample("effects", dist.Normal(0.0, scale).expand([200]))
    ab.observe("y", dist.Normal(effects, 1.0), np.resize(y, 200))


def rare_guard(y):
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([4]))
    if jnp.sum(x) > 8.0:
        ab.observe("y", dist.Normal(x[0], 0.1), y[0])
    else:
        ab.observe("y", dist.Normal(x[0] - 5.0, 0.1), y[0])


def endless(y):
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    while x > -1e9:
        x = x + 0 * x
    ab.observe("y", dist.Normal(x, 1.0), y[0])


PROGRAMS = (smooth, jumps, interpreted, many_paths, cholesky, discrete, long, wide, rare_guard, endless)


def data(n: int = 40) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(np.arange(n) < n // 2, 1.0, 2.5) + 0.5 * rng.normal(size=n)


# One run, in a process of its own -------------------------------------------------------------------------------------


def run_here(name: str, settings: dict) -> dict:
    """What one run asked for and took; for the child process."""
    program = next(each for each in PROGRAMS if each.__name__ == name)
    y = data(15 if name == "discrete" else 40)
    started = time.monotonic()
    try:
        posterior = ab.infer(program, y, seed=0, tolerance=None, progress=False, **settings)
        said = f"{posterior.log_evidence:.2f} ± {posterior.log_evidence_sd:.2g}"
        spent, answer = posterior.run.evaluations, posterior.run.stopped
    except errors.AnabranchError as error:
        said, spent, answer = type(error).__name__, 0, str(error)
    except KeyboardInterrupt:
        said, spent, answer = "KeyboardInterrupt", 0, ""
    return {"seconds": time.monotonic() - started, "evaluations": spent, "said": said, "stopped": answer}


def run(name: str, settings: dict, interrupt_after: float | None = None) -> dict:
    """The same in a child process, which a watchdog ends; after so many seconds it may be interrupted."""
    command = [sys.executable, __file__, "--child", name, json.dumps(settings)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert child.stdout is not None
    child.stdout.readline()  # it has imported everything
    started = time.monotonic()
    if interrupt_after is not None:
        time.sleep(interrupt_after)
        interrupted = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(signal.SIGINT)
    try:
        out, _ = child.communicate(timeout=settings.get("seconds", 0) + WATCHDOG)
        lines = out.strip().splitlines()
        result = json.loads(lines[-1]) if lines else {"said": f"exit code {child.returncode}", "seconds": math.nan}
    except subprocess.TimeoutExpired:
        child.kill()
        result = {"said": "killed", "seconds": math.inf, "evaluations": 0, "stopped": ""}
    if interrupt_after is not None:
        result["after"] = time.monotonic() - interrupted
    return {**result, "wall": time.monotonic() - started}


# Tables ---------------------------------------------------------------------------------------------------------------


def table_of_seconds(chosen: list, limits: list[float]) -> None:
    print(f"{'program':<12} " + " ".join(f"{f'seconds={limit:g}':>28}" for limit in limits))
    for program in chosen:
        cells = []
        for limit in limits:
            result = run(program.__name__, {"seconds": limit, "budget": 10**9})
            cells.append(f"{result['seconds']:7.2f} s {result['said'][:18]:>18}")
        print(f"{program.__name__:<12} " + " ".join(f"{cell:>28}" for cell in cells), flush=True)


def table_of_budgets(chosen: list, budgets: list[int]) -> None:
    print(f"\n{'program':<12} " + " ".join(f"{f'budget={budget:,}':>28}" for budget in budgets))
    for program in chosen:
        cells = []
        for budget in budgets:
            result = run(program.__name__, {"budget": budget, "seconds": BUDGET_SECONDS})
            over = result["evaluations"] / budget - 1
            mark = f"{over:+.1%}" if "budget" in result["stopped"] else f"({result['seconds']:.0f} s)"
            cells.append(f"{result['evaluations']:>10,} {mark:>8} {result['said'][:9]}")
        print(f"{program.__name__:<12} " + " ".join(f"{cell:>28}" for cell in cells), flush=True)


def table_of_interrupts(chosen: list, number: int) -> None:
    rng = np.random.default_rng(0)
    print(f"\n{'program':<12} {'interrupts':>10} {'posterior':>10} {'KeyboardInterrupt':>18} {'longest':>8}")
    for program in chosen:
        results = [
            run(program.__name__, {"seconds": 120, "budget": 10**9}, rng.uniform(0.1, 12.0)) for _ in range(number)
        ]
        clean = sum(result["said"] == "KeyboardInterrupt" for result in results)
        posteriors = sum("±" in result["said"] for result in results)
        longest = max(result["after"] for result in results)
        print(f"{program.__name__:<12} {number:>10} {posteriors:>10} {clean:>18} {longest:>6.1f} s", flush=True)


def cost_of_lock() -> None:
    """Time of the paper's programs with one compiled call at a time, over that with as many as there are threads."""
    for name, program, given in (
        ("mixture", programs.mixture, programs.mixture_data()),
        ("induction", programs.function_induction, programs.function_induction_data()),
    ):
        times: dict[str, list[float]] = {"one at a time": [], "together": []}
        arguments = given if isinstance(given, tuple) else (given,)
        for turn in range(6):
            how = ("one at a time", "together")[turn % 2]
            lock, dispatch._RUNNING = dispatch._RUNNING, dispatch._RUNNING if turn % 2 == 0 else _NoLock()
            started = time.monotonic()
            ab.infer(program, *arguments, seed=turn // 2, progress=False)
            times[how].append(time.monotonic() - started)
            dispatch._RUNNING = lock
        one, both = (float(np.median(each)) for each in times.values())
        print(f"{name:<12} one at a time {one:.1f} s, together {both:.1f} s, ratio {one / both:.2f}", flush=True)


class _NoLock:
    def acquire(self, timeout: float = -1) -> bool:
        return True

    def release(self) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(each.__name__ for each in PROGRAMS))
    parser.add_argument("--seconds", default="2,10,30")
    parser.add_argument("--budgets", default="10000,100000,1000000")
    parser.add_argument("--interrupts", type=int, default=0)
    parser.add_argument("--lock", action="store_true")
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore interrupts
        print("ready", flush=True)
        print(json.dumps(run_here(options.child[0], json.loads(options.child[1]))), flush=True)
        return
    if options.lock:
        cost_of_lock()
        return
    chosen = [each for each in PROGRAMS if each.__name__ in options.only.split(",")]
    if options.interrupts:
        table_of_interrupts(chosen, options.interrupts)
        return
    if options.seconds:
        table_of_seconds(chosen, [float(each) for each in options.seconds.split(",")])
    if options.budgets:
        table_of_budgets(chosen, [int(each) for each in options.budgets.split(",")])


if __name__ == "__main__":
    main()
