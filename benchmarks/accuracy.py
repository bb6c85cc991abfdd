"""How close the answers come to the truth, seed by seed.

    python benchmarks/accuracy.py                              prints six tables in Markdown; takes hours
    python benchmarks/accuracy.py --only induction --seeds 3   one table, three seeds

The truths of function induction and of the mixture were computed apart from this library's inference, by closed forms
and quadrature (`anabranch.reproduce.truth`). Those of the other programs are in tests/exact.py.
An error is estimate minus truth; z is the error over the standard error that the library itself reports.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import poisson

import anabranch as ab
from anabranch import programs
from anabranch.allocate import Uniform
from anabranch.reproduce.measures import shape
from anabranch.reproduce.truth import induction_truth, mixture_truth

INDUCTION = induction_truth().log_evidence_of
"""log Z_k of every path of function induction, by shape: x+sx2 is a·x + b·sin(c·x²)."""


def mixture_evidence(rate: float) -> np.ndarray:
    """log Z_K for K = 1 to 15, under K - 1 ~ Poisson(rate)."""
    given = list(mixture_truth(rate).log_likelihood.values())
    return np.array(given) + poisson.logpmf(np.arange(len(given)), rate)


# Which path is which --------------------------------------------------------------------------------------------------


def by_shape(posterior: ab.Posterior) -> dict[str, float]:
    """log Ẑ_k of the paths found."""
    found = [(shape(solution.path), solution.log_evidence) for solution in posterior.solutions]
    if len(dict(found)) != len(found):
        raise ValueError("two paths of function induction have the same shape")
    return dict(found)


def by_components(posterior: ab.Posterior) -> dict[int, float]:
    """log Ẑ_K of the paths of a mixture."""
    return {_components(solution.path): solution.log_evidence for solution in posterior.solutions}


def _components(path: ab.Path) -> int:
    [extra] = [site.value for site in path.sites if site.name == "extra"]
    return int(extra) + 1


# Tables ---------------------------------------------------------------------------------------------------------------


def header(*columns: str) -> None:
    print("\n| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns), flush=True)


def row(*cells: Any) -> None:
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


def z_score(error: float, sd: float) -> float:
    """Error over standard error; an exact answer may be off by rounding."""
    if sd == 0:
        return 0.0 if abs(error) < 1e-9 else float(np.copysign(np.inf, error))
    return error / sd


def timed(run: Callable[[], ab.Posterior]) -> tuple[ab.Posterior, float]:
    start = time.perf_counter()
    posterior = run()
    return posterior, time.perf_counter() - start


def effort(posterior: ab.Posterior, seconds: float) -> tuple[str, str]:
    return f"{posterior.run.evaluations:,}", f"{seconds:.1f}"


def against(posterior: ab.Posterior, truth: float) -> tuple[str, str, str]:
    """The columns: error, standard error, z."""
    error, sd = posterior.log_evidence - truth, posterior.log_evidence_sd
    return f"{error:+.4f}", f"{sd:.4f}", f"{z_score(error, sd):+.2f}"


def induction(options: argparse.Namespace) -> None:
    """Function induction: log Z, and the total variation of the posterior over its 26 paths."""
    truth = np.array(list(INDUCTION.values()))
    total = float(logsumexp(truth))
    weights = np.exp(truth - total)
    heavy = [name for name, weight in zip(INDUCTION, weights, strict=True) if weight > 0.001]
    header("function induction, seed", "error of log Z", "standard error", "z", "total variation", "paths",
           "largest error of a path above 0.1 %", "evaluations", "seconds")  # fmt: skip
    for seed in options.numbers:
        posterior, seconds = timed(
            lambda s=seed: ab.infer(
                programs.function_induction, *programs.function_induction_data(), seed=s, budget=options.budget
            )
        )
        found = by_shape(posterior)
        ours = np.exp([found.get(name, -np.inf) - posterior.log_evidence for name in INDUCTION])
        variation = 0.5 * np.abs(ours - weights).sum()
        errors = {name: found.get(name, -np.inf) - INDUCTION[name] for name in heavy}
        worst = max(errors, key=lambda name, e=errors: abs(e[name]))
        row(seed, *against(posterior, total), f"{variation:.4f}", len(found), f"{worst}: {errors[worst]:+.3f}",
            *effort(posterior, seconds))  # fmt: skip


def mixture(options: argparse.Namespace) -> None:
    """The mixture with the default engine."""
    truth = float(logsumexp(mixture_evidence(9.0)))
    header("mixture, seed", "error of log Z", "standard error", "z", "weight of K = 5", "evaluations", "seconds")
    for seed in options.numbers:
        posterior, seconds = timed(
            lambda s=seed: ab.infer(programs.mixture, programs.mixture_data(), seed=s, budget=options.budget)
        )
        weight = posterior.probability("K").get(5, 0.0)
        row(seed, *against(posterior, truth), f"{weight:.4f}", *effort(posterior, seconds))


def components(options: argparse.Namespace) -> None:
    """The mixture again, with as many evaluations for every K: 100,000 executions of the prior find K = 1 to 15.

    Nothing else finds paths, so that the budget is not spent on those far out.
    """
    truth = mixture_evidence(9.0)
    engine = ab.DCC(allocator=Uniform(), executions=100_000, proposals=0, systematic=False, prune_negligible=False)
    header("mixture in even shares, seed", "K of 1 to 15 found", "within 0.1", "largest error", "at K", "largest z",
           "at K", "evaluations", "seconds")  # fmt: skip
    for seed in options.numbers:
        posterior, seconds = timed(
            lambda s=seed: ab.infer(
                programs.mixture,
                programs.mixture_data(),
                engine=engine,
                seed=s,
                budget=options.budget,
                tolerance=None,
            )
        )
        estimates = {_components(solution.path): solution.estimate for solution in posterior.solutions}
        errors, zs = {}, {}
        for K, value in enumerate(truth, start=1):
            estimate = estimates.get(K)
            errors[K] = np.inf if estimate is None else estimate.log_evidence - value
            zs[K] = np.inf if estimate is None else z_score(errors[K], estimate.log_evidence_sd)
        worst, outlier = (max(of, key=lambda K, of=of: abs(of[K])) for of in (errors, zs))
        found = sum(np.isfinite(error) for error in errors.values())
        within = sum(abs(error) < 0.1 for error in errors.values())
        row(seed, found, within, f"{errors[worst]:+.4f}", worst, f"{zs[outlier]:+.2f}", outlier,
            *effort(posterior, seconds))  # fmt: skip


def misspecified(options: argparse.Namespace) -> None:
    """The mixture under a prior that puts K near 91: whether K = 5 is found at all."""
    truth = float(logsumexp(mixture_evidence(90.0)))
    header("misspecified mixture, seed", "error of log Z", "standard error", "z", "K = 5 found", "its weight", "paths",
           "evaluations", "seconds")  # fmt: skip
    for seed in options.numbers:
        posterior, seconds = timed(
            lambda s=seed: ab.infer(
                programs.misspecified_mixture, programs.mixture_data(), seed=s, budget=options.budget
            )
        )
        found = by_components(posterior).get(5, -np.inf)
        weight = np.exp(found - posterior.log_evidence)
        row(seed, *against(posterior, truth), "yes" if np.isfinite(found) else "no", f"{weight:.4f}",
            len(posterior.solutions), *effort(posterior, seconds))  # fmt: skip


# Programs with exact answers ------------------------------------------------------------------------------------------


def exact_cases() -> list[Any]:
    """The programs of tests/exact.py."""
    file = Path(__file__).parent.parent / "tests" / "exact.py"
    spec = importlib.util.spec_from_file_location("exact", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exact"] = module
    spec.loader.exec_module(module)
    return list(module.EXACT)


def answers(case: Any, seeds: Sequence[int], budget: int) -> Iterator[tuple[ab.Posterior, float]]:
    for seed in seeds:
        yield timed(lambda s=seed: ab.infer(case.program, *case.args, seed=s, budget=budget))


def probability_error(case: Any, posterior: ab.Posterior) -> float:
    """The largest error of any posterior probability."""
    worst = 0.0
    for name, truth in case.probabilities.items():
        ours = posterior.probability(name)
        for value in truth.keys() | ours.keys():
            worst = max(worst, abs(ours.get(value, 0.0) - truth.get(value, 0.0)))
    return worst


def expectation_z(case: Any, posterior: ab.Posterior) -> float:
    """The z-score of the worst expectation."""
    zs = [0.0]
    for function, truth in case.expectations.values():
        mean, sd = posterior.expectation(function)
        zs.append(z_score(float(mean) - truth, float(sd)))
    return max(zs, key=abs)


def exact(options: argparse.Namespace) -> None:
    """The programs of tests/exact.py: the worst over the seeds."""
    header("program, worst of its seeds", "seeds", "error of log Z", "largest standard error", "z", "r.m.s. z",
           "error of a probability", "z of an expectation", "mean evaluations", "mean seconds")  # fmt: skip
    for case in exact_cases():
        if options.program and case.name not in options.program:
            continue
        errors, sds, zs, probabilities, expectations, evaluations, times = [], [], [], [], [], [], []
        for posterior, seconds in answers(case, options.numbers, options.budget):
            errors.append(posterior.log_evidence - case.log_evidence)
            sds.append(posterior.log_evidence_sd)
            zs.append(z_score(errors[-1], sds[-1]))
            probabilities.append(probability_error(case, posterior))
            expectations.append(expectation_z(case, posterior))
            evaluations.append(posterior.run.evaluations)
            times.append(seconds)
        row(case.name, len(zs), f"{max(errors, key=abs):+.4f}", f"{max(sds):.4f}", f"{max(zs, key=abs):+.2f}",
            f"{np.sqrt(np.mean(np.square(zs))):.2f}", f"{max(probabilities):.4f}",
            f"{max(expectations, key=abs):+.2f}", f"{np.mean(evaluations):,.0f}",
            f"{np.mean(times):.1f}")  # fmt: skip


def coverage(options: argparse.Namespace) -> None:
    """How often log Z lies within its own error bars; a normal error does in 68.3 % and 95.4 % of the runs."""
    header("coverage of log Z", "runs", "within one standard error", "within two", "mean z", "r.m.s. z",
           "r.m.s. error", "mean standard error", "mean seconds")  # fmt: skip
    for case in exact_cases():
        if case.name not in (options.program or ("figure_two", "polynomial", "unknown_components")):
            continue
        errors, zs, sds, times = [], [], [], []
        for posterior, seconds in answers(case, range(options.runs), options.budget):
            errors.append(posterior.log_evidence - case.log_evidence)
            sds.append(posterior.log_evidence_sd)
            zs.append(z_score(errors[-1], sds[-1]))
            times.append(seconds)
        one, two = (np.mean(np.abs(zs) < k) for k in (1, 2))
        row(case.name, len(zs), f"{one:.0%}", f"{two:.0%}", f"{np.mean(zs):+.2f}",
            f"{np.sqrt(np.mean(np.square(zs))):.2f}", f"{np.sqrt(np.mean(np.square(errors))):.5f}",
            f"{np.mean(sds):.5f}", f"{np.mean(times):.1f}")  # fmt: skip


PARTS = {part.__name__: part for part in (induction, mixture, components, misspecified, exact, coverage)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="NAME", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=15, help="how many seeds for every table but coverage")
    parser.add_argument("--first", type=int, default=0, help="the first of these seeds")
    parser.add_argument("--runs", type=int, default=100, help="seeds of coverage")
    parser.add_argument("--budget", type=int, default=1_000_000, help="evaluations of a run, at most")
    parser.add_argument("--program", nargs="+", help="programs of tests/exact.py, for exact and coverage")
    options = parser.parse_args()
    options.numbers = range(options.first, options.first + options.seeds)
    for name in options.only:
        PARTS[name](options)


if __name__ == "__main__":
    main()
