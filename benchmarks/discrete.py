"""How the cost of summing discrete variables out grows, and what it is beside a sum that is written by hand.

    python benchmarks/discrete.py                some minutes
    python benchmarks/discrete.py --only chain
    python benchmarks/discrete.py --only peers   beside NumPyro's enumeration; needs the extra `dev`

For chains of states, plates of assignments, and a hidden Markov model with unknown parameters, once with its states as
sites and once with the forward algorithm by hand. Times are those of the processor, in seconds: of the executions and
the recording that find the path, of its factors and the order of elimination, of compiling, and of the density at a
thousand points, compiled. `operations` are those that XLA compiles for a point, `numbers` those in its tables, `MiB`
the memory that the compiled density with its gradient takes for 64 points, by XLA's own account.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import anabranch as ab
from anabranch.conquer import Elimination, PathTarget, Target
from anabranch.conquer.elimination import Eliminated, eliminate

POINTS = 4_000
"""More than are evaluated on the host before a density is compiled."""


def chain(y: np.ndarray, states: int) -> None:
    """A hidden Markov model whose states have unknown levels and persistence."""
    means, stay = _parameters(states)
    z = ab.sample("z0", dist.Categorical(jnp.ones(states) / states))
    ab.observe("y0", dist.Normal(means[z], 0.7), y[0])
    for t in range(1, len(y)):
        z = ab.sample(f"z{t}", dist.Categorical(stay[z]))
        ab.observe(f"y{t}", dist.Normal(means[z], 0.7), y[t])


def forward(y: np.ndarray, states: int) -> None:
    """The same with its states summed out by hand."""
    means, stay = _parameters(states)
    logs = dist.Normal(means, 0.7).log_prob(y[:, None])

    def step(alpha: jax.Array, log: jax.Array) -> tuple[jax.Array, None]:
        return jax.nn.logsumexp(alpha[:, None] + jnp.log(stay), axis=0) + log, None

    alpha, _ = jax.lax.scan(step, logs[0] - jnp.log(states), logs[1:])
    ab.factor("y", jax.nn.logsumexp(alpha))


def _parameters(states: int) -> tuple[jax.Array, jax.Array]:
    means = ab.sample("means", dist.Normal(0.0, 4.0).expand([states]).to_event(1))
    rows = ab.sample("rows", dist.Dirichlet(jnp.ones(states)).expand([states]).to_event(1))
    return means, rows


def plate(y: np.ndarray, states: int) -> None:
    """A mixture with its assignments."""
    means = ab.sample("means", dist.Normal(0.0, 4.0).expand([states]).to_event(1))
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones(states)))
    z = ab.sample("z", dist.Categorical(shares).expand([len(y)]).to_event(1))
    ab.observe("y", dist.Normal(means[z], 0.7), y)


def mixture(y: np.ndarray, states: int) -> None:
    """The same with its assignments summed out by hand."""
    means = ab.sample("means", dist.Normal(0.0, 4.0).expand([states]).to_event(1))
    shares = ab.sample("shares", dist.Dirichlet(jnp.ones(states)))
    ab.observe("y", dist.MixtureSameFamily(dist.Categorical(shares), dist.Normal(means, 0.7)), y)


def measure(program: Callable[..., Any], length: int, states: int) -> tuple[list[Any], np.ndarray]:
    """A row of the table, and the log density at the points."""
    y = np.random.default_rng(0).normal(size=length) * 3
    times = [time.process_time()]

    def lap() -> None:
        times.append(time.process_time())

    (path,) = ab.find_paths(program, y, states, executions=50).paths
    lap()
    target: Target = eliminate(PathTarget(path), Elimination(), np.random.default_rng(0))
    lap()
    points = np.random.default_rng(1).normal(size=(POINTS, target.dim))
    target.evaluate(points)
    lap()
    log_density = target.evaluate(points).log_density
    lap()
    target.differentiate(points[:64])
    lap()
    target.differentiate(points)
    lap()
    find, factors, compiled, evaluated, gradient, differentiated = np.diff(times)
    operations, numbers = ("", "")
    if isinstance(target, Eliminated):
        with jax.enable_x64(True):
            operations = len(jax.make_jaxpr(target._traced)(np.zeros(path.dim)).eqns)
        numbers = f"{sum(each.numbers for each in target.tables):,}"
    mebibytes = f"{_memory(target, points[:64]) / 2**20:.1f}"
    compilations = compiled - evaluated, gradient - differentiated * 64 / POINTS
    seconds = (find, factors, *compilations, 1_000 * evaluated / POINTS, 1_000 * differentiated / POINTS)
    return [
        program.__name__,
        length,
        states,
        operations,
        numbers,
        mebibytes,
        *(f"{x:.2f}" for x in seconds),
    ], log_density


def _memory(target: Target, points: np.ndarray) -> int:
    """Bytes that the compiled density with its gradient takes for some points, besides the points themselves."""
    with jax.enable_x64(True):
        function = jax.jit(jax.vmap(jax.value_and_grad(target.log_density_function())))
        analysis = function.lower(points).compile().memory_analysis()
    return int(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)


CASES: dict[str, list[tuple[Callable[..., Any], int, int]]] = {
    "chain": [(chain, 100, 3), (chain, 200, 3), (chain, 400, 3), (chain, 800, 3), (forward, 800, 3)],
    "states": [(chain, 100, 2), (chain, 100, 4), (chain, 100, 8), (chain, 100, 16), (forward, 100, 16)],
    "plate": [(plate, 100, 3), (plate, 1_000, 3), (mixture, 1_000, 3), (plate, 10_000, 3), (mixture, 10_000, 3)],
}
HEADER = ("program", "length", "states", "operations", "numbers", "MiB", "find", "factors", "compile",
          "compile, gradient", "density", "with gradient")  # fmt: skip


def show(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table, each row as soon as it is there."""
    for line in itertools.chain([header, ["---"] * len(header)], rows):
        print("| " + " | ".join(map(str, line)) + " |", flush=True)
    print()


def measured(cases: Sequence[tuple[Callable[..., Any], int, int]]) -> Iterator[list[Any]]:
    """The rows of a table; programs of the same length and states must have the same density."""
    answers: dict[tuple[int, int], np.ndarray] = {}
    for case in cases:
        row, log_density = measure(*case)
        yield row
        if not np.allclose(answers.setdefault(case[1:], log_density), log_density, rtol=1e-9):
            raise SystemExit(f"{case[0].__name__} differs from the sum by hand")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[*CASES, "peers"], help="one of the tables")
    given = parser.parse_args()
    for name, cases in CASES.items():
        if given.only in (None, name):
            show(HEADER, measured(cases))
    if given.only in (None, "peers"):
        from discrete_peers import HEADER as OF_PEERS
        from discrete_peers import compare

        show(OF_PEERS, compare())


if __name__ == "__main__":
    main()
