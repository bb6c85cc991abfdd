"""Programs with a region that prior draws never meet: is it found, and is the evidence right?

    python benchmarks/rare.py                         a table in Markdown: five seeds of each program
    python benchmarks/rare.py --only deep --seeds 2   one program, two seeds

The prior mass of the regions is 10⁻⁸ to 10⁻¹⁵: behind one deep condition, behind a conjunction, after a loop that must
go on, for a count far in the tail; with most of the mass behind, or with none. Every evidence is exact, by a closed
form or quadrature. z is the error over the standard error that the library itself reports. `met` says whether some
execution came into the region; where none did, `unmet` must name its condition.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.integrate import quad
from scipy.special import k0, logsumexp
from scipy.stats import norm, poisson

import anabranch as ab

__all__ = ["RARE", "Rare"]


@dataclass(frozen=True)
class Rare:
    """A program whose argument is the log likelihood behind the rare condition, that argument, the log prior mass of
    the region, and the log of the mean likelihood behind it where that is not the argument."""

    program: Callable[[float], Any]
    log_factor: float
    log_mass: float
    log_mean: float | None = None

    @property
    def log_evidence(self) -> float:
        """log Z: outside the region the likelihood is one."""
        behind = self.log_factor if self.log_mean is None else self.log_mean
        return float(np.logaddexp(np.log1p(-np.exp(self.log_mass)), self.log_mass + behind))


def standard(name: str) -> Any:
    return ab.sample(name, dist.Normal(0.0, 1.0))


def deep(log_factor: float) -> None:
    if standard("x") > 6:
        ab.factor("behind", log_factor)


def deeper(log_factor: float) -> None:
    if standard("x") > 8:
        ab.factor("behind", log_factor)


def nested(log_factor: float) -> None:
    a, b, c, d, e = (standard(name) for name in "abcde")
    if a > 2.5:
        if b > 2.5:
            if c > 2.5:
                if d > 2.5:
                    if e > 2.5:
                        ab.factor("behind", log_factor)


def conjunction(log_factor: float) -> None:
    a, b, c, d = (standard(name) for name in "abcd")
    if a > 3 and b > 3 and c > 2 and d < -2:
        ab.factor("behind", log_factor)


def vector(log_factor: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([5]).to_event(1))
    if jnp.all(x > 2.5):
        ab.factor("behind", log_factor)


def loop(log_factor: float) -> None:
    turns = 0
    while ab.sample(f"step{turns}", dist.Normal(0.0, 1.0)) > 1.5:
        turns += 1
    if turns >= 8:
        ab.factor("behind", log_factor)


def difference(log_factor: float) -> None:
    if standard("a") - standard("b") > 9:
        ab.factor("behind", log_factor)


def product(log_factor: float) -> None:
    if standard("a") * standard("b") > 18:
        ab.factor("behind", log_factor)


def count(log_factor: float) -> None:
    if ab.sample("count", dist.Poisson(3.0)) > 20:
        ab.factor("behind", log_factor)


def observed(log_factor: float) -> None:
    x = ab.sample("x", dist.Exponential(1.0))
    if x > 20:
        ab.observe("y", dist.Normal(x, 0.5), 22.0)
        ab.factor("behind", log_factor)


def either_side(log_factor: float) -> None:
    x = standard("x")
    if x > 6.5:
        ab.factor("above", log_factor)
    elif x < -6.5:
        ab.factor("below", log_factor)


def corner(log_factor: float) -> None:
    if ab.sample("u", dist.Uniform(0.0, 1.0)) < 1e-8:
        ab.factor("behind", log_factor)


def after_choice(log_factor: float) -> None:
    if ab.sample("z", dist.Bernoulli(0.3)):
        m = standard("m")
        if ab.sample("x", dist.Normal(m, 0.5)) > 6.5:
            ab.sample("w", dist.Normal(0.0, 1.0))
            ab.factor("behind", log_factor)


def any_of(log_factor: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 1.0).expand([3]).to_event(1))
    if jnp.any(x > 6):
        ab.factor("behind", log_factor)


def _log_mean_of_observed(log_factor: float) -> float:
    integral, _ = quad(lambda x: np.exp(20 - x) * norm.pdf(22.0, x, 0.5), 20, 30, epsabs=0, epsrel=1e-10)
    return float(np.log(integral)) + log_factor


_TURNS = np.arange(8, 60)
_GOES_ON = norm.logsf(1.5)
RARE = {
    "deep": Rare(deep, 25.0, norm.logsf(6)),
    "deep, nothing behind": Rare(deep, 5.0, norm.logsf(6)),
    "deeper": Rare(deeper, 36.0, norm.logsf(8)),
    "nested": Rare(nested, 30.0, 5 * norm.logsf(2.5)),
    "conjunction": Rare(conjunction, 20.0, 2 * norm.logsf(3) + 2 * norm.logsf(2)),
    "vector": Rare(vector, 30.0, 5 * norm.logsf(2.5)),
    "vector, nothing behind": Rare(vector, 3.0, 5 * norm.logsf(2.5)),
    "loop": Rare(loop, 25.0, float(logsumexp(_TURNS * _GOES_ON + norm.logcdf(1.5)))),
    "difference": Rare(difference, 24.0, norm.logsf(9 / np.sqrt(2))),
    "product": Rare(product, 24.0, float(np.log(quad(lambda z: k0(z) / np.pi, 18, 60, epsabs=0)[0]))),
    "count": Rare(count, 28.0, poisson.logsf(20, 3.0)),
    "observed": Rare(observed, 22.0, -20.0, _log_mean_of_observed(22.0)),
    "either side": Rare(either_side, 24.0, np.log(2) + norm.logsf(6.5)),
    "corner": Rare(corner, 20.0, np.log(1e-8)),
    "after a choice": Rare(after_choice, 24.0, np.log(0.3) + norm.logsf(6.5 / np.sqrt(1.25))),
    "any": Rare(any_of, 22.0, float(np.log(-np.expm1(3 * norm.logcdf(6))))),
}


def is_met(posterior: ab.Posterior, rare: Rare) -> bool:
    """Whether a path behind the rare condition has an estimate; one that the prior finds has a likelihood of one."""
    return any(
        solution.estimate is not None and solution.path.log_prior_probability < rare.log_mass / 2
        for solution in posterior.solutions
    )


def row(name: str, rare: Rare, seed: int, budget: int) -> str:
    began = time.perf_counter()
    posterior = ab.infer(rare.program, rare.log_factor, seed=seed, budget=budget)
    error, sd = posterior.log_evidence - rare.log_evidence, posterior.log_evidence_sd
    met = "yes" if is_met(posterior, rare) else "; ".join(posterior.unmet) or "NO"
    cells = [
        name, f"{rare.log_mass / np.log(10):.1f}", str(seed), met, f"{posterior.log_evidence:.4f}", f"{error:+.4f}",
        f"{sd:.4f}", f"{error / max(sd, 1e-9):+.1f}", f"{posterior.run.evaluations:,}",
        f"{time.perf_counter() - began:.0f}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=RARE)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--budget", type=int, default=1_000_000)
    args = parser.parse_args()
    header = ["program", "log10 mass", "seed", "met", "log Z", "error", "sd", "z", "evaluations", "seconds"]
    print(f"| {' | '.join(header)} |\n|{' --- |' * len(header)}", flush=True)
    for name, rare in RARE.items():
        for seed in range(args.seeds if args.only in (None, name) else 0):
            print(row(name, rare, seed, args.budget), flush=True)


if __name__ == "__main__":
    main()
