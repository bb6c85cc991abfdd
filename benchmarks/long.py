"""Long programs: a statement or more in each turn of a Python loop, from 60 to 2,000 turns.

    python benchmarks/long.py              prints two tables in Markdown; about two minutes of processor time
    python benchmarks/long.py --turns 60 250

Seconds of processor time, which other work on the machine changes less than the time of the clock. The growth is the
exponent of the number of turns between the fewest and the most: one is linear.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp

import anabranch as ab
from anabranch.divide import code as coding
from anabranch.divide.compiled import Compiled
from anabranch.divide.density import Density
from anabranch.divide.graph import Graph
from anabranch.divide.packing import Forms, plan
from anabranch.divide.recording import Program
from anabranch.divide.replay import rerun

EVALUATIONS = 15 * 64  # whole blocks
PARTS = ["record", "density", "plan", "compile", f"{EVALUATIONS:,} gradients", "operations"]


def random_walk(y: Any) -> None:
    """A latent site in each turn; what the turns compute is independent, given the sites, and is packed."""
    scale, x = ab.sample("scale", dist.HalfNormal(1.0)), 0.0
    for t in range(len(y)):
        x = ab.sample(f"x{t}", dist.Normal(0.9 * x, scale))
        ab.observe(f"y{t}", dist.Normal(x, 0.5), y[t])


def arma(y: Any) -> None:
    """Each turn needs the error of the one before."""
    mu, phi = ab.sample("mu", dist.Normal(0.0, 10.0)), ab.sample("phi", dist.Normal(0.0, 2.0))
    theta, scale = ab.sample("theta", dist.Normal(0.0, 2.0)), ab.sample("scale", dist.HalfCauchy(2.5))
    error = y[0] - mu - phi * mu
    for t in range(1, len(y)):
        mean = mu + phi * y[t - 1] + theta * error
        error = y[t] - mean
        ab.observe(f"y{t}", dist.Normal(mean, scale), y[t])


def hidden_markov(y: Any) -> None:
    """The forward algorithm, written by hand."""
    stay, means = ab.sample("stay", dist.Beta(2.0, 2.0)), ab.sample("means", dist.Normal(0.0, 1.0).expand([2]))
    steps = jnp.log(jnp.stack([jnp.stack([stay, 1 - stay]), jnp.stack([1 - stay, stay])]))
    log_mass = dist.Normal(means, 1.0).log_prob(y[0])
    for t in range(1, len(y)):
        log_mass = logsumexp(log_mass[:, None] + steps, axis=0) + dist.Normal(means, 1.0).log_prob(y[t])
    ab.factor("y", logsumexp(log_mass))


PROGRAMS = [random_walk, arma, hidden_markov]


def measured(program: Callable[..., Any], turns: int) -> list[float]:
    """The processor seconds of each part, and the number of operations that XLA is given."""
    y = np.random.default_rng(0).normal(size=turns)
    clock, times = time.process_time, []

    def timed(function: Callable[[], Any]) -> Any:
        start = clock()
        result = function()
        times.append(clock() - start)
        return result

    recording = timed(lambda: rerun(Program(program, (y,)), []))
    density = timed(lambda: recording.once(Density))
    code, _ = timed(lambda: density.code)
    compiled, points = Compiled([recording], {}), 0.3 * np.random.default_rng(1).normal(size=(64, recording.dim))
    timed(lambda: compiled.differentiate(points, 1.0))
    timed(lambda: [compiled.differentiate(points, 1.0) for _ in range(EVALUATIONS // 64)])
    operations = sum(len(step.turns[0]) if hasattr(step, "turns") else 1 for step in code.steps)
    return [*times, operations]


def packed_only(graph: Graph, steps: Sequence[Any], ends: Any) -> list[Any]:
    """What is compiled without rolling."""
    return list(plan(Forms(graph), steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, nargs="+", default=[60, 250, 1_000, 2_000])
    turns = parser.parse_args().turns
    for program in PROGRAMS:
        measured(program, 30)  # whatever is done once in a process
    print(f"| program | turns | {' | '.join(PARTS)} |\n|{'---|' * (len(PARTS) + 2)}")
    for program in PROGRAMS:
        rows = [measured(program, n) for n in turns]
        for n, row in zip(turns, rows, strict=True):
            print(
                f"| {program.__name__} | {n:,} | {' | '.join(f'{x:.2f}' for x in row[:-1])} | {row[-1]} |", flush=True
            )
        growth = np.log(np.array(rows[-1]) / rows[0]) / np.log(turns[-1] / turns[0])
        print(f"| {program.__name__} | growth | {' | '.join(f'{x:.2f}' for x in growth)} |", flush=True)
    rolled, coding.rolled_plan = coding.rolled_plan, packed_only  # type: ignore[assignment]
    print(f"\n| not rolled | turns | {' | '.join(PARTS)} |\n|{'---|' * (len(PARTS) + 2)}")
    row = measured(arma, turns[0])
    print(f"| arma | {turns[0]} | {' | '.join(f'{x:.2f}' for x in row[:-1])} | {row[-1]} |")
    coding.rolled_plan = rolled


if __name__ == "__main__":
    main()
