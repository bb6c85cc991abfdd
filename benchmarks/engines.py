"""How many executions per second each engine makes of the paper's programs, beside what others do in the same run.

    python benchmarks/engines.py                 prints a table in Markdown for each program; about twenty minutes
    python benchmarks/engines.py --all           the misspecified mixture, too
    python benchmarks/engines.py --budget 20000  a shorter look

Each row is measured in a process of its own, after imports: the first run there, and a second one with another seed.
The others, NumPyro's handlers in a loop and Pyro's Importance, execute the Python text of the program once per draw.
Times on a shared machine vary from day to day: compare the rows of one run, not two runs.
"""

import argparse
import importlib
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import handlers
from scipy.special import logsumexp
from scipy.stats import norm

import anabranch as ab
from anabranch import engines, programs
from anabranch.errors import EngineCannotRun

# The programs, as others have them ------------------------------------------------------------------------------------


def branching(ppl: Any, math: Any, y: Any) -> None:
    dist = ppl.distributions
    if ppl.sample("z0", dist.Normal(0.0, 2.0)) < 0:
        z1 = ppl.sample("z1", dist.Normal(-5.0, 2.0))
        ppl.sample("y", dist.Normal(z1, 2.0), obs=y)
    else:
        z2 = ppl.sample("z2", dist.Normal(5.0, 2.0))
        z3 = ppl.sample("z3", dist.Normal(z2, 2.0))
        ppl.sample("y", dist.Normal(z3, 2.0), obs=y)


def function_induction(ppl: Any, math: Any, x: Any, y: Any) -> None:
    f = expression(ppl, math, "f", 1, None)
    ppl.sample("y", ppl.distributions.Normal(f(x), 0.5), obs=y)


def expression(ppl: Any, math: Any, at: str, depth: int, parent: str | None) -> Callable[[Any], Any]:
    """Names have to be made by hand, since recursion meets each site more than once."""
    dist = ppl.distributions
    rules = [0.5, 0.5] if depth == 3 else [0.35, 0.35, 0.3] if parent == "plus" else [0.3, 0.3, 0.2, 0.2]
    rule = int(ppl.sample(f"{at}_rule", dist.Categorical(math.asarray(rules))))
    if rule == 0:
        if parent is None:
            ppl.sample("unused", dist.Normal(0.0, 1.0))
        return lambda x: x
    a = ppl.sample(f"{at}_a", dist.Normal(0.0, 1.0))
    if rule == 1:
        return lambda x: x * x
    if rule == 2:
        inner = expression(ppl, math, f"{at}_in", depth + 1, "sine")
        return lambda x: math.sin(a * inner(x))
    b = ppl.sample(f"{at}_b", dist.Normal(0.0, 1.0))
    left = expression(ppl, math, f"{at}_left", depth + 1, "plus")
    right = expression(ppl, math, f"{at}_right", depth + 1, "plus")
    return lambda x: a * left(x) + b * right(x)


def mixture(ppl: Any, math: Any, y: Any, rate: float = 9.0) -> None:
    dist = ppl.distributions
    K = int(ppl.sample("extra", dist.Poisson(rate))) + 1
    mu = [ppl.sample(f"mu{k}", dist.Uniform(20 * k / K, 20 * (k + 1) / K)) for k in range(K)]
    clusters = dist.Normal(math.stack(mu), 0.1)
    ppl.sample("y", dist.MixtureSameFamily(dist.Categorical(math.ones(K) / K), clusters), obs=y)


def misspecified_mixture(ppl: Any, math: Any, y: Any) -> None:
    mixture(ppl, math, y, rate=90.0)


@dataclass(frozen=True)
class Case:
    """A program, the same for others, its data, log Z, and what the log likelihood never exceeds."""

    program: Callable[..., Any]
    others: Callable[..., None]
    data: tuple[Any, ...]
    log_evidence: float
    log_bound: float


CURVE, POINTS = programs.function_induction_data(), programs.mixture_data()
TWO_SIDES = [norm.logpdf(2.0, mean, np.sqrt(variance)) for mean, variance in ((-5.0, 8.0), (5.0, 12.0))]
# All but the first were computed apart from this library (see accuracy.py).
Z_BRANCHING, Z_INDUCTION = float(logsumexp(TWO_SIDES) - np.log(2)), -43.105194622992656
Z_MIXTURE, Z_MISSPECIFIED = -132.61168711820375, -204.40134674622746
HIGH, HIGHER, HIGHEST = (n * norm.logpdf(0, 0, sd) for n, sd in ((1, 2.0), (len(CURVE[1]), 0.5), (len(POINTS), 0.1)))
CASES = {
    "branching": Case(programs.branching, branching, (2.0,), Z_BRANCHING, HIGH),
    "function_induction": Case(programs.function_induction, function_induction, CURVE, Z_INDUCTION, HIGHER),
    "mixture": Case(programs.mixture, mixture, (POINTS,), Z_MIXTURE, HIGHEST),
    "misspecified_mixture": Case(
        programs.misspecified_mixture, misspecified_mixture, (POINTS,), Z_MISSPECIFIED, HIGHEST
    ),
}

_ALL = (
    engines.ImportanceSampling(), engines.Rejection(), engines.SMC(), engines.PIMH(), engines.ParticleGibbs(),
    engines.IPMCMC(), engines.PMMH(), engines.LightweightMH(), engines.RandomWalkMH(), engines.BBVI(),
)  # fmt: skip
ENGINES: dict[str, Any] = {type(engine).__name__: engine for engine in _ALL}

# What others do -------------------------------------------------------------------------------------------------------


def numpyro_importance(case: Case, n: int, seed: int) -> float:
    """log Z by executions from the prior, one at a time."""
    data = [jnp.asarray(values) for values in case.data]
    log_weights = []
    for key in jax.random.split(jax.random.key(seed), n):
        trace = handlers.trace(handlers.seed(case.others, key)).get_trace(numpyro, jnp, *data)
        log_weights.append(sum(log_prob(site) for site in trace.values() if site["is_observed"]))
    return float(logsumexp(log_weights) - np.log(n))


def numpyro_mh(case: Case, n: int, seed: int) -> None:
    """Lightweight Metropolis-Hastings: a site is drawn anew, and the others keep their values where they are met."""
    data = [jnp.asarray(values) for values in case.data]
    rng = np.random.default_rng(seed)
    keys = jax.random.split(jax.random.key(seed), n)
    state = handlers.trace(handlers.seed(case.others, keys[0])).get_trace(numpyro, jnp, *data)
    for key in keys[1:]:
        names = [name for name, site in state.items() if not site["is_observed"]]
        chosen = names[rng.integers(len(names))]
        kept = {name: state[name]["value"] for name in names if name != chosen}
        program = handlers.substitute(handlers.seed(case.others, key), kept)
        new = handlers.trace(program).get_trace(numpyro, jnp, *data)
        # What is drawn from the prior on the way there, or back, cancels.
        weighed = [name for name, site in new.items() if site["is_observed"] or name in kept]
        log_ratio = sum(log_prob(new[name]) - log_prob(state[name]) for name in weighed)
        log_ratio += np.log(len(names)) - np.log(sum(not site["is_observed"] for site in new.values()))
        if np.log(rng.random()) < log_ratio:
            state = new


def log_prob(site: dict[str, Any]) -> float:
    """NumPyro does not look whether a value is in the support."""
    fn, value = site["fn"], site["value"]
    if not site["is_observed"] and not fn.support(value).all():
        return -np.inf
    return float(fn.log_prob(value).sum())


def pyro_importance(case: Case, n: int, seed: int) -> float:
    """log Z by Pyro's own importance sampling from the prior."""
    pyro, torch, infer = map(importlib.import_module, ("pyro", "torch", "pyro.infer"))
    pyro.set_rng_seed(seed)
    data = [torch.as_tensor(values, dtype=torch.float32) for values in case.data]
    return float(infer.Importance(case.others, num_samples=n).run(pyro, torch, *data).get_log_normalizer())


OTHERS: dict[str, tuple[Callable[[Case, int, int], float | None], str]] = {
    "NumPyro's handlers in a loop, importance sampling": (numpyro_importance, "ImportanceSampling"),
    "NumPyro's handlers in a loop, lightweight MH": (numpyro_mh, "LightweightMH"),
    "Pyro, Importance": (pyro_importance, "ImportanceSampling"),
}
"""What they do, and the engine that does the same."""

# Measuring ------------------------------------------------------------------------------------------------------------


def measure(case: Case, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Executions per second of the first and the second run, the error of log Z of the second, and the memory used."""
    resource.setrlimit(resource.RLIMIT_DATA, (int(options.memory * 1e9),) * 2)
    if name.startswith("Pyro"):
        if importlib.util.find_spec("pyro") is None:
            return {"refused": "Pyro is not installed: pip install pyro-ppl"}
        importlib.import_module("pyro.infer")
    rates, executions, log_z, sd = [], 0, None, None
    for seed in (0, 1):
        start = time.perf_counter()
        if name in OTHERS:
            executions = options.steps if "MH" in name else options.loop
            log_z = OTHERS[name][0](case, executions, seed)
        else:
            limits = {"budget": options.budget, "seconds": options.seconds, "tolerance": None}
            engine = ENGINES[name]
            if name == "Rejection":
                engine = replace(engine, log_bound=case.log_bound)
            try:
                posterior = ab.infer(case.program, *case.data, engine=engine, seed=seed, **limits)
            except EngineCannotRun as refusal:
                return {"refused": f"refused: {str(refusal).splitlines()[0]}"}
            except MemoryError:
                return {"refused": f"needs more than {options.memory:g} GB"}
            executions, log_z, sd = posterior.run.evaluations, posterior.log_evidence, posterior.log_evidence_sd
        rates.append(executions / (time.perf_counter() - start))
    error = None if log_z is None else log_z - case.log_evidence
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # Linux has it in kilobytes
    return {"executions": executions, "rates": rates, "error": error, "sd": sd, "memory": peak}


def print_program(program: str, options: argparse.Namespace) -> None:
    columns = (program, "executions", "per second, cold", "per second, again", "error of log Z", "standard error",
               "memory", "the engine is faster by")  # fmt: skip
    print("\n| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns), flush=True)
    again: dict[str, float] = {}
    for name in [*ENGINES, *OTHERS]:
        command = [sys.executable, __file__, "--measure", program, name, "--budget", str(options.budget)]
        command += ["--loop", str(options.loop), "--steps", str(options.steps)]
        command += ["--seconds", str(options.seconds), "--memory", str(options.memory)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{program}, {name}:\n{done.stderr}")
        measured = json.loads(done.stdout.splitlines()[-1])
        if "refused" in measured:
            cells = [measured["refused"], *["-"] * 6]
        else:
            again[name] = measured["rates"][1]
            ours = again.get(OTHERS[name][1]) if name in OTHERS else None
            error, sd = measured["error"], measured["sd"]
            cells = [f"{measured['executions']:,}", *(f"{rate:,.0f}" for rate in measured["rates"])]
            cells += ["-" if error is None else f"{error:+.4f}", "-" if sd is None else f"{sd:.4f}"]
            cells += [f"{measured['memory']:.1f} GB"]
            cells += ["" if ours is None else f"{ours / again[name]:,.0f} ({OTHERS[name][1]})"]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="the misspecified mixture, too")
    parser.add_argument("--only", choices=list(CASES), help="one program")
    parser.add_argument("--budget", type=int, default=100_000, help="executions of an engine")
    parser.add_argument("--seconds", type=float, default=30.0, help="for a run of an engine, at most")
    parser.add_argument("--memory", type=float, default=12.0, help="for a process, at most, in GB")
    parser.add_argument("--loop", type=int, default=200, help="executions of others")
    parser.add_argument("--steps", type=int, default=100, help="steps of Metropolis-Hastings in a loop")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        program, name = options.measure
        print(json.dumps(measure(CASES[program], name, options)))
        return
    for program in [options.only] if options.only else CASES:
        if program != "misspecified_mixture" or options.all or options.only:
            print_program(program, options)


if __name__ == "__main__":
    main()
