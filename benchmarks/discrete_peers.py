"""A hidden Markov model and a mixture, with unknown parameters, by this library and by NumPyro.

Each program is written with its discrete variables and with the sum by hand. This library solves it by `ab.infer`,
NumPyro by NUTS, with its own enumeration (annotated, by funsor) or on the sum by hand. NUTS gives no evidence, so what
is compared is the posterior mean of the first level, with its error, and the processor seconds, compiling included, for
a hundred effective draws. The levels have priors of their own, so that nearly all mass is on one of their orders, and
NUTS starts at the medians of the prior: elsewhere it stays in another order. Run by `benchmarks/discrete.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.contrib.control_flow import scan
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, init_to_median

import anabranch as ab

HEADER = ("program", "by", "log evidence", "mean of the first level", "effective draws", "seconds",
          "seconds for 100 draws")  # fmt: skip
LEVELS = np.array([-2.0, 0.0, 2.0])
WARMUP, DRAWS, BUDGET = 200, 300, 200_000


def data(n: int, sticky: bool) -> np.ndarray:
    """Levels with noise: of a chain that stays with probability 0.9, or each drawn by itself."""
    rng = np.random.default_rng(0)
    z = [0]
    while len(z) < n:
        z.append(z[-1] if sticky and rng.uniform() < 0.9 else int(rng.integers(3)))
    return np.asarray(LEVELS[z] + rng.normal(size=n))


def _levels() -> jax.Array:
    return numpyro.sample("means", dist.Normal(jnp.asarray(LEVELS), 1.0).to_event(1))


def _rows() -> jax.Array:
    return numpyro.sample("rows", dist.Dirichlet(jnp.ones((3, 3))).to_event(1))


def states(y: np.ndarray) -> None:
    means, rows, z = _levels(), _rows(), 0
    for t in range(len(y)):
        z = numpyro.sample(f"z{t}", dist.Categorical(rows[z]))
        numpyro.sample(f"y{t}", dist.Normal(means[z], 1.0), obs=y[t])


def states_annotated(y: np.ndarray) -> None:
    means, rows = _levels(), _rows()

    def step(z: Any, value: Any) -> tuple[Any, None]:
        z = numpyro.sample("z", dist.Categorical(rows[z]), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(means[z], 1.0), obs=value)
        return z, None

    scan(step, 0, jnp.asarray(y))


def forward(y: np.ndarray) -> None:
    means, rows = _levels(), _rows()
    logs = dist.Normal(means, 1.0).log_prob(jnp.asarray(y)[:, None])

    def step(alpha: jax.Array, log: jax.Array) -> tuple[jax.Array, None]:
        return jax.nn.logsumexp(alpha[:, None] + jnp.log(rows), axis=0) + log, None

    alpha, _ = jax.lax.scan(step, jnp.log(rows[0]) + logs[0], logs[1:])
    numpyro.factor("y", jax.nn.logsumexp(alpha))


def assignments(y: np.ndarray) -> None:
    means, shares = _levels(), numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("points", len(y)):
        z = numpyro.sample("z", dist.Categorical(shares))
        numpyro.sample("y", dist.Normal(means[z], 1.0), obs=y)


def assignments_annotated(y: np.ndarray) -> None:
    means, shares = _levels(), numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("points", len(y), dim=-1):
        z = numpyro.sample("z", dist.Categorical(shares), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(means[z], 1.0), obs=y)


def mixture(y: np.ndarray) -> None:
    means, shares = _levels(), numpyro.sample("shares", dist.Dirichlet(jnp.ones(3)))
    both = dist.MixtureSameFamily(dist.Categorical(shares), dist.Normal(means, 1.0))
    with numpyro.plate("points", len(y)):
        numpyro.sample("y", both, obs=y)


def compare() -> Iterator[list[str]]:
    """The rows of the table, each as soon as it is there."""
    chain, points = data(300, sticky=True), data(1_000, sticky=False)
    for y, by_hand, plain, annotated in (
        (chain, forward, states, states_annotated), (points, mixture, assignments, assignments_annotated)
    ):  # fmt: skip
        yield _by_anabranch(plain, y)
        yield _by_anabranch(by_hand, y)
        yield _by_numpyro(annotated, y)
        yield _by_numpyro(by_hand, y)


def _by_anabranch(program: Callable[..., Any], y: np.ndarray) -> list[str]:
    started = time.process_time()
    posterior = ab.infer(program, y, seed=0, budget=BUDGET, progress=False)
    mean, error = posterior.expectation(lambda draw: draw["means"][0])
    seconds = time.process_time() - started
    evidence = f"{posterior.log_evidence:.4f} ± {posterior.log_evidence_sd:.4f}"
    return _row(program, "ab.infer", evidence, mean, error, float(posterior.paths["ess"][0]), seconds)


def _by_numpyro(program: Callable[..., Any], y: np.ndarray) -> list[str]:
    with jax.enable_x64(True):
        started = time.process_time()
        mcmc = MCMC(
            NUTS(program, init_strategy=init_to_median), num_warmup=WARMUP, num_samples=DRAWS, progress_bar=False
        )
        mcmc.run(jax.random.key(0), y)
        draws = {name: np.asarray(each)[None] for name, each in mcmc.get_samples().items() if name != "z"}
        seconds = time.process_time() - started
    ess = float(min(np.min(effective_sample_size(each)) for each in draws.values()))
    first = draws["means"][0, :, 0]
    error = first.std() / np.sqrt(effective_sample_size(first[None]))
    return _row(program, "NumPyro, NUTS", "", first.mean(), error, ess, seconds)


def _row(
    program: Callable[..., Any], by: str, evidence: str, mean: float, error: float, ess: float, seconds: float
) -> list[str]:
    numbers = f"{mean:.3f} ± {error:.3f}", f"{ess:,.0f}", f"{seconds:.0f}", f"{100 * seconds / ess:.2f}"
    return [program.__name__, by, evidence, *numbers]
