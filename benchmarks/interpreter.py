"""What the interpreter adds to one execution of a program that leaves JAX, as multiples of the bare program."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.primitives import Messenger
from scipy import special

import anabranch as ab

DATA = np.linspace(-1.0, 2.0, 50)


def simulated(level: float, growth: float, share: float, start: float, shifts: list[float], step: float) -> np.ndarray:
    """The deterministic part: a few dozen operations on Python floats, and one of SciPy."""
    state, out = start, []
    for t in range(12):
        state = state + step * growth * state * (1.0 - share * state) + shifts[t % 4]
        out.append(math.tanh(state))
    return np.interp(np.linspace(0, 11, 50), np.arange(12), out) * level + float(special.expit(level))


def ten_sites(y: np.ndarray) -> float:
    """Ten sites, two of them vectors and three discrete, and one observation of fifty points."""
    level = ab.sample("level", dist.Normal(0.0, 1.0))
    growth = ab.sample("growth", dist.Gamma(2.0, 2.0))
    share = ab.sample("share", dist.Beta(2.0, 3.0))
    start = ab.sample("start", dist.Uniform(0.1, 1.0))
    shifts = ab.sample("shifts", dist.Normal(0.0, 0.1).expand([4]).to_event(1))
    weights = ab.sample("weights", dist.Dirichlet(np.ones(3)))
    fast = ab.sample("fast", dist.Bernoulli(0.4))
    kind = ab.sample("kind", dist.Categorical(np.array([0.2, 0.3, 0.5])))
    count = ab.sample("count", dist.Poisson(3.0))
    noise = ab.sample("noise", dist.HalfNormal(1.0))
    step = 0.2 if fast else 0.1
    offset = [float(w) for w in weights][int(kind)] + 0.01 * float(count)
    shape = simulated(float(level), float(growth), float(share), float(start), [float(s) for s in shifts], step)
    ab.observe("y", dist.Normal(shape + offset, 0.1 + float(noise)), y)
    return offset


class Constraints(Messenger):
    """Gives each site of a program a value, and does nothing else: the program by itself."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        self.values = values

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["value"] is None:
            msg["value"] = self.values[msg["name"]]


def bare(y: np.ndarray, values: dict[str, Any]) -> float:
    """The program with its sites given, its distributions made, and no density."""
    with jax.enable_x64(True), Constraints(values):
        return ten_sites(y)


def seconds_per_call(function: Callable[[], Any], calls: int, repeats: int = 5) -> float:
    """The fastest of several rounds, in seconds of the processor: other work on the machine counts less."""
    rounds = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(calls):
            function()
        rounds.append((time.process_time() - start) / calls)
    return min(rounds)


def main() -> None:
    path = ab.find_paths(ten_sites, DATA, executions=20).paths[0]
    points = path.prior(20, seed=1).points
    values = path.values(points)
    row = {name: value[0] for name, value in values.items()}
    own = seconds_per_call(lambda: bare(DATA, row), 100)
    n = len(points)
    print(f"the program by itself: {1e3 * own:.2f} ms\n")
    print("| one execution | ms | times the program by itself |\n| --- | --- | --- |")
    for name, function in {
        "`path.evaluate`": lambda: path.evaluate(points),
        "`path.values`": lambda: path.values(points),
        "`path.points`": lambda: path.points(values),
        "`path.prior`, each attempt": lambda: path.prior(n, seed=2),
    }.items():
        runs = path.prior(n, seed=2).attempts if "prior" in name else n
        each = seconds_per_call(function, 1) / runs
        print(f"| {name} | {1e3 * each:.2f} | {each / own:.1f} |")


if __name__ == "__main__":
    main()
