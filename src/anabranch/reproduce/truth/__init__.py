"""The exact answers of the paper's experiments, from the JSON files in this folder.

They were computed by quadrature, without the library's inference, for the data of `anabranch.programs`; if these have
changed since, reading them raises. `tests/truth` computes them again.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import poisson

from anabranch import programs

__all__ = [
    "InductionTruth",
    "MixtureTruth",
    "Truths",
    "all_truths",
    "induction_truth",
    "mixture_truth",
    "read",
    "uncertain_mixture_truth",
]


_MADE_BY = {"uncertain": "mixture"}
"""Files that another module than the one of their name makes."""


@dataclass(frozen=True)
class InductionTruth:
    """Function induction given its data.

    `log_evidence_of` and `weights` are log Z_k and the posterior probability of each path, by its shape, `log_evidence`
    is log Z; `lppd` is Σ_n log p(y_n | D) over the held-out points. `predictive_…` are the mean and the 5% and 95%
    quantiles of the function on a grid, without noise.
    """

    log_evidence_of: dict[str, float]
    log_evidence: float
    weights: dict[str, float]
    lppd: float
    predictive_x: np.ndarray
    predictive_mean: np.ndarray
    predictive_lower: np.ndarray
    predictive_upper: np.ndarray


@dataclass(frozen=True)
class MixtureTruth:
    """The mixture given its data, K − 1 ~ Poisson(rate).

    `log_likelihood` is log p(y | K) and `probability` is p(K | y), for K up to 15, beyond which there is no mass;
    `log_evidence` is log Z. `predictive_density` is the density of a new point on a grid, given K = 5, which has all
    but 1e-12 of the posterior; where K is uncertain, it was not computed, and the grid is empty.
    """

    log_likelihood: dict[int, float]
    log_evidence: float
    probability: dict[int, float]
    predictive_y: np.ndarray
    predictive_density: np.ndarray


@dataclass(frozen=True)
class Truths:
    """The exact answers of each experiment."""

    gmm: MixtureTruth
    uncertain: MixtureTruth
    misspecified: MixtureTruth
    induction: InductionTruth


def all_truths() -> Truths:
    """The exact answers of all experiments."""
    return Truths(mixture_truth(9.0), uncertain_mixture_truth(), mixture_truth(90.0), induction_truth())


def induction_truth() -> InductionTruth:
    """The exact answers of `programs.function_induction` given its data."""
    (x, y), (x_test, y_test) = programs.function_induction_data(), programs.function_induction_test_data()
    stored = read("induction", {"x": x, "y": y, "x_test": x_test, "y_test": y_test})
    answers = [stored[name] for name in ("log_evidence", "log_evidence_total", "weights", "lppd")]
    curves = (np.array(stored["predictive"][name]) for name in ("x", "mean", "lower", "upper"))
    return InductionTruth(*answers, *curves)


def mixture_truth(rate: float) -> MixtureTruth:
    """The exact answers of `programs.mixture` given its data: p(K | y) ∝ Poisson(K − 1; rate) p(y | K)."""
    return _mixture_truth(read("mixture", {"y": programs.mixture_data()}), rate)


def uncertain_mixture_truth() -> MixtureTruth:
    """The exact answers of `programs.mixture` given the data for which K is uncertain."""
    return _mixture_truth(read("uncertain", {"y": programs.uncertain_mixture_data()}), 9.0)


def _mixture_truth(stored: Mapping[str, Any], rate: float) -> MixtureTruth:
    log_likelihood = {int(K): value for K, value in stored["log_likelihood_given_K"].items()}
    log_joint = {K: poisson.logpmf(K - 1, rate) + value for K, value in log_likelihood.items()}
    log_evidence = float(logsumexp(list(log_joint.values())))
    probability = {K: float(np.exp(value - log_evidence)) for K, value in log_joint.items()}
    predictive = (np.array(stored["predictive"][name]) for name in ("y", "density"))
    return MixtureTruth(log_likelihood, log_evidence, probability, *predictive)


def read(name: str, data: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The stored answers of one experiment; raises if its data are not those that they were computed for."""
    stored = json.loads(resources.files(__name__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    changed = [
        key
        for key, values in data.items()
        if len(stored[key]) != len(values) or not np.allclose(stored[key], values, rtol=1e-10, atol=1e-10)
    ]
    if changed:
        raise ValueError(
            f"The data of the {name} are not those of the stored answers: {', '.join(changed)} differ. Compute the "
            f"answers again: `python -m truth.{_MADE_BY.get(name, name)}`, in the folder tests."
        )
    return stored
