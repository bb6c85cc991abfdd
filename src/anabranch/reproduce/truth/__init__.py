"""The exact answers of the paper's experiments.

`induction.py` and `mixture.py` compute them by quadrature, without the library's inference, and store them as JSON in
this folder. This file reads them, and raises if the data of `anabranch.programs` have changed since.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import poisson

from anabranch import programs

__all__ = ["InductionTruth", "MixtureTruth", "Truths", "all_truths", "induction_truth", "mixture_truth"]

FOLDER = Path(__file__).parent
DIGITS = 12
"""Significant digits of the stored numbers."""


@dataclass(frozen=True)
class InductionTruth:
    """Function induction given its data.

    `log_evidence_of` and `weights` are log Z_k and the posterior probability of each path, by its shape, `log_evidence`
    is log Z; `lppd` is Σ_n log p(y_n | D) over the held-out points. `predictive_…` are the mean and the 5% and 95%
    quantiles of the function on a grid, without noise. `log_evidence_error` is the largest over the paths.
    """

    log_evidence_of: dict[str, float]
    log_evidence_error: float
    log_evidence: float
    weights: dict[str, float]
    lppd: float
    lppd_error: float
    predictive_x: np.ndarray
    predictive_mean: np.ndarray
    predictive_lower: np.ndarray
    predictive_upper: np.ndarray


@dataclass(frozen=True)
class MixtureTruth:
    """The mixture given its data, K − 1 ~ Poisson(rate).

    `log_likelihood` is log p(y | K), with its `error`, and `probability` is p(K | y), for K up to 15; `log_evidence` is
    log Z, whose error includes a bound for all larger K. `predictive_density` is the density of a new point on a grid,
    given K = 5, which has all but 1e-12 of the posterior.
    """

    log_likelihood: dict[int, float]
    error: dict[int, float]
    log_evidence: float
    log_evidence_error: float
    probability: dict[int, float]
    predictive_y: np.ndarray
    predictive_density: np.ndarray


@dataclass(frozen=True)
class Truths:
    """The exact answers of each experiment."""

    gmm: MixtureTruth
    misspecified: MixtureTruth
    induction: InductionTruth


def all_truths() -> Truths:
    """The exact answers of all experiments."""
    return Truths(gmm=mixture_truth(9.0), misspecified=mixture_truth(90.0), induction=induction_truth())


def induction_truth() -> InductionTruth:
    """The exact answers of `programs.function_induction` given its data."""
    stored = read("induction.json")
    (x, y), (x_test, y_test) = programs.function_induction_data(), programs.function_induction_test_data()
    require_same(stored, {"x": x, "y": y, "x_test": x_test, "y_test": y_test}, "function induction", "induction")
    answers: dict[str, Any] = {name: stored[name] for name in ("log_evidence_error", "weights", "lppd", "lppd_error")}
    answers |= {f"predictive_{name}": np.array(values) for name, values in stored["predictive"].items()}
    return InductionTruth(log_evidence_of=stored["log_evidence"], log_evidence=stored["log_evidence_total"], **answers)


def mixture_truth(rate: float) -> MixtureTruth:
    """The exact answers of `programs.mixture` given its data: p(K | y) ∝ Poisson(K − 1; rate) p(y | K)."""
    stored = read("mixture.json")
    require_same(stored, {"y": programs.mixture_data()}, "the mixture", "mixture")
    log_likelihood, error, bound = (
        {int(K): value for K, value in stored[name].items()}
        for name in ("log_likelihood_given_K", "error", "log_likelihood_bound")
    )
    log_joint = {K: poisson.logpmf(K - 1, rate) + value for K, value in log_likelihood.items()}
    log_evidence = float(logsumexp(list(log_joint.values())))
    weights = {K: float(np.exp(value - log_evidence)) for K, value in log_joint.items()}
    log_omitted = [poisson.logpmf(K - 1, rate) + value for K, value in bound.items()]
    log_omitted.append(poisson.logsf(max(bound) - 1, rate) + stored["log_likelihood_bound_beyond"])
    omitted = float(np.exp(logsumexp(log_omitted) - log_evidence))
    return MixtureTruth(
        log_likelihood=log_likelihood,
        error=error,
        log_evidence=log_evidence,
        log_evidence_error=sum(weights[K] * error[K] for K in weights) + omitted,
        probability=weights,
        predictive_y=np.array(stored["predictive"]["y"]),
        predictive_density=np.array(stored["predictive"]["density"]),
    )


def require_same(stored: Mapping[str, Any], now: Mapping[str, np.ndarray], program: str, module: str) -> None:
    """Raise if the program's data are not those of the stored answers."""
    changed = [
        name
        for name, values in now.items()
        if len(stored[name]) != len(values) or not np.allclose(stored[name], values, rtol=1e-10, atol=1e-10)
    ]
    if changed:
        raise ValueError(
            f"The data of {program} are not those of the stored answers: {', '.join(changed)} differ. Compute the "
            f"answers again with `python -m {__name__}.{module}`."
        )


def read(name: str) -> dict[str, Any]:
    """The stored answers of one experiment."""
    return json.loads((FOLDER / name).read_text())


def write(name: str, answers: Mapping[str, Any]) -> None:
    """Store the answers of one experiment in this folder."""
    (FOLDER / name).write_text(json.dumps(rounded(answers), indent=1) + "\n")


def rounding(value: float) -> float:
    """The largest change of a number by rounding it to the stored digits."""
    return abs(value) * 10.0 ** (1 - DIGITS)


def rounded(value: Any) -> Any:
    """Plain numbers, lists and dictionaries, rounded to the stored digits."""
    if isinstance(value, Mapping):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return [rounded(item) for item in value]
    if isinstance(value, float):  # NumPy's are floats too
        return float(f"{value:.{DIGITS}g}")
    return value
