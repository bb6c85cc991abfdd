"""How long inference takes, where the time goes, and how near the truth the answer is.

    python benchmarks/infer.py             prints four tables in Markdown; ten minutes or more
    python benchmarks/infer.py --all       the misspecified mixture, too
    python benchmarks/infer.py --paper     the paper's own configuration beside the default
    python benchmarks/infer.py --full      NumPyro's DCC with longer chains and all paths, 32 and 64 bits: many minutes

Times on a shared machine vary from day to day: compare the rows of one run, not two runs.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.stochastic_support.dcc import DCC as NumPyroDCC

import anabranch as ab
from anabranch import programs
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program

Data = Callable[[], tuple[Any, ...]]
PROGRAMS: dict[str, tuple[Callable[..., Any], Data, float]] = {
    "mixture": (programs.mixture, lambda: (programs.mixture_data(),), -132.61168711820375),
    "function_induction": (programs.function_induction, programs.function_induction_data, -43.105194622992656),
    "misspecified_mixture": (programs.misspecified_mixture, lambda: (programs.mixture_data(),), -204.40134674622746),
}
"""Program, data, and log Z, which was computed apart from this library (see accuracy.py)."""


def header(*columns: str) -> None:
    print("\n| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns), flush=True)


def row(*cells: Any) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def run(name: str, **settings: Any) -> tuple[ab.Posterior, float]:
    """The answer, and the seconds that it took."""
    program, data, _ = PROGRAMS[name]
    start = time.perf_counter()
    posterior = ab.infer(program, *data(), **settings)
    return posterior, time.perf_counter() - start


def against(name: str, posterior: ab.Posterior) -> tuple[str, str, str]:
    """The columns: error of log Z, its standard error, evaluations."""
    error = posterior.log_evidence - PROGRAMS[name][2]
    return f"{error:+.4f}", f"{posterior.log_evidence_sd:.4f}", f"{posterior.run.evaluations:,}"


# Time to the answer ---------------------------------------------------------------------------------------------------


def print_times(names: list[str]) -> None:
    header("time to the answer", "seconds", "error of log Z", "standard error", "evaluations")
    for name in names:
        command = [sys.executable, __file__, "--cold", name, "--started", repr(time.time())]
        print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip(), flush=True)


def cold(name: str, started: float) -> None:
    posterior, first = run(name)
    row(f"{name}, cold process with imports", f"{time.time() - started:.1f}", *against(name, posterior))
    row(f"{name}, cold process after imports", f"{first:.1f}", *against(name, posterior))
    posterior, again = run(name)
    row(f"{name}, again in the same process", f"{again:.1f}", *against(name, posterior))


# Where it goes --------------------------------------------------------------------------------------------------------


class Clock:
    """Seconds in densities of paths: first calls, which compile, later ones, and those that are not compiled."""

    def __init__(self) -> None:
        self.first = self.later = self.host = 0.0
        self.seen: set[tuple[int, str]] = set()
        self.paths: list[ab.Path] = []  # kept, so that no other gets the identity of one of them
        self.lock = threading.Lock()

    def around(self, name: str) -> Callable[..., Any]:
        method = getattr(ab.Path, name)

        def timed(path: ab.Path, *args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            out = method(path, *args, **kwargs)
            took = time.perf_counter() - start
            key = id(path), name
            with self.lock:
                if not kwargs.get("compile", True):
                    self.host += took
                elif key in self.seen:
                    self.later += took
                else:
                    self.seen.add(key)
                    self.paths.append(path)
                    self.first += took
            return out

        return timed

    @contextmanager
    def running(self) -> Iterator[None]:
        kept = {name: getattr(ab.Path, name) for name in ("evaluate", "differentiate")}
        for name in kept:
            setattr(ab.Path, name, self.around(name))
        try:
            yield
        finally:
            for name, method in kept.items():
                setattr(ab.Path, name, method)


def print_shares(names: list[str]) -> None:
    header("where the time goes, one thread", "seconds", "first calls, which compile", "later calls",
           "on the host", "all else", "functions compiled")  # fmt: skip
    for name in names:
        clock = Clock()
        with clock.running():
            _, took = run(name, workers=1)
        rest = took - clock.first - clock.later - clock.host
        shares = [f"{part / took:.0%}" for part in (clock.first, clock.later, clock.host, rest)]
        row(name, f"{took:.1f}", *shares, len(clock.seen))


# Evaluations per second -----------------------------------------------------------------------------------------------


def by_hand(y: np.ndarray, K: int) -> Callable[[Any], Any]:
    """The density of the mixture with K parts, as one would write it for this case alone."""
    low = 20 * np.arange(K) / K
    constant = -len(y) * (0.5 * np.log(2 * np.pi) + np.log(0.1) + np.log(K))
    log_prior_of_K = float(dist.Poisson(9.0).log_prob(K - 1))

    def log_density(point: Any) -> Any:
        mu = low + 20 / K * jax.nn.sigmoid(point)
        prior = jnp.sum(jax.nn.log_sigmoid(point) + jax.nn.log_sigmoid(-point)) + log_prior_of_K
        standard = (y[:, None] - mu) / 0.1
        return prior + jnp.sum(jax.nn.logsumexp(-0.5 * standard**2, axis=1)) + constant

    return jax.jit(jax.vmap(log_density))


def in_calls(function: Callable[[Any], Any], points: np.ndarray, size: int) -> np.ndarray:
    parts = [function(points[start : start + size]) for start in range(0, len(points), size)]
    return np.concatenate([np.asarray(part) for part in parts])


def print_rates(n: int, repeats: int) -> None:
    """Ours and by hand in turns, the best of each, so that what else the machine does strikes both."""
    y, K = programs.mixture_data(), 5
    path = rebuild(Program(programs.mixture, (y,)), [[np.array(K - 1)]])
    points = path.prior(n).points
    with jax.enable_x64(True):
        hand = by_hand(y, K)
        rivals: dict[str, Callable[[], np.ndarray]] = {
            "anabranch": lambda: path.evaluate(points).log_density,
            "by hand, one call": lambda: in_calls(hand, points, n),
            "by hand, calls of 512": lambda: in_calls(hand, points, 512),
        }
        values = {name: function() for name, function in rivals.items()}
        best = dict.fromkeys(rivals, np.inf)
        for _ in range(repeats):
            for name, function in rivals.items():
                start = time.perf_counter()
                function()
                best[name] = min(best[name], time.perf_counter() - start)
    fastest = min(seconds for name, seconds in best.items() if name != "anabranch")
    header(f"density of the mixture, K = 5, {n:,} points", "evaluations per second", "share of the best by hand",
           "largest difference")  # fmt: skip
    for name, seconds in best.items():
        difference = np.abs(values[name] - values["anabranch"]).max()
        row(name, f"{n / seconds:,.0f}", f"{fastest / seconds:.0%}", f"{difference:.1e}")


# Beside others --------------------------------------------------------------------------------------------------------


def numpyro_mixture(y: Any) -> None:
    """The mixture as NumPyro's DCC wants it: the site that decides is marked."""
    K = int(numpyro.sample("extra", dist.Poisson(9.0), infer={"branching": True})) + 1
    mu = [numpyro.sample(f"mu{k}", dist.Uniform(20 * k / K, 20 * (k + 1) / K)) for k in range(K)]
    clusters = dist.Normal(jnp.stack(mu), 0.1)
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(jnp.ones(K) / K), clusters), obs=y)


def print_numpyro(full: bool) -> None:
    """It gives weights of paths, and neither log Z nor an error of its own; in truth K = 5 has all but 1e-15."""
    header("mixture, posterior probability of K = 5", "seconds", "weight of K = 5", "error", "paths", "weights NaN")
    posterior, seconds = run("mixture")
    weight = posterior.probability("K").get(5, 0.0)
    nan = int(np.isnan(posterior.evidence.weights).sum())
    row("anabranch", f"{seconds:.1f}", f"{weight:.6f}", f"{weight - 1:+.1e}", len(posterior.solutions), nan)
    chain = {"num_warmup": 500, "num_samples": 1000} if full else {"num_warmup": 50, "num_samples": 100}
    search = {} if full else {"num_slp_samples": 50, "max_slps": 8}
    for bits in (32, 64) if full else (32,):
        with jax.enable_x64(bits == 64):
            dcc = NumPyroDCC(numpyro_mixture, mcmc_kwargs={**chain, "progress_bar": False}, **search)
            start = time.perf_counter()
            result = dcc.run(jax.random.key(0), jnp.asarray(programs.mixture_data()))
            weights = {key: float(weight) for key, weight in result.slp_weights.items()}
            seconds = time.perf_counter() - start
        settings = "500 + 1,000 steps, else its defaults" if full else "50 + 100 steps, 50 executions, 8 paths"
        ours, nan = weights.get("4"), sum(map(np.isnan, weights.values()))
        cells = ("not found", "") if ours is None else (f"{ours:.6f}", f"{ours - 1:+.1e}")
        row(f"NumPyro DCC, {bits} bits, {settings}", f"{seconds:.1f}", *cells, len(weights), nan)


def print_paper(budget: int) -> None:
    header(f"budget {budget:,}", "seconds", "error of log Z", "standard error", "evaluations")
    for name in PROGRAMS:
        for label, engine in (("default", ab.DCC()), ("the paper's", ab.DCC.paper())):
            posterior, seconds = run(name, engine=engine, budget=budget)
            row(f"{name}, {label}", f"{seconds:.1f}", *against(name, posterior))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the misspecified mixture, too")
    parser.add_argument("--paper", action="store_true", help="the paper's configuration, too")
    parser.add_argument("--full", action="store_true", help="NumPyro's DCC with its defaults")
    parser.add_argument("--budget", type=int, default=1_000_000, help="evaluations, at most, with --paper")
    parser.add_argument("--points", type=int, default=100_000, help="points for the evaluations per second")
    parser.add_argument("--repeats", type=int, default=10, help="runs for the evaluations per second")
    parser.add_argument("--only", choices=["times", "shares", "rates", "numpyro", "paper"], help="one table")
    parser.add_argument("--cold", help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cold:
        cold(options.cold, options.started)
        return
    names = list(PROGRAMS) if options.all else ["mixture", "function_induction"]
    tables: dict[str, Callable[[], None]] = {
        "times": lambda: print_times(names),
        "shares": lambda: print_shares(names),
        "rates": lambda: print_rates(options.points, options.repeats),
        "numpyro": lambda: print_numpyro(options.full),
    }
    if options.paper or options.only == "paper":
        tables["paper"] = lambda: print_paper(options.budget)
    for name in [options.only] if options.only else tables:
        tables[name]()


if __name__ == "__main__":
    main()
