"""The statistics of the runs of one method: a row of the table of an experiment.

Names that end in _runs count the runs with a value; statistics are over those runs, and nan without any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from anabranch.reproduce.records import Record
from anabranch.reproduce.truth import InductionTruth, MixtureTruth, Truths

__all__ = ["HEAVY", "best_run", "distance_of", "heavy_paths", "row_of", "share_of"]

HEAVY = 4
"""The number of paths of function induction with nearly all posterior mass."""


def row_of(experiment: str, method: str, runs: list[Record], truths: Truths) -> dict[str, Any]:
    """The row of a method."""
    truth = getattr(truths, experiment)
    out: dict[str, Any] = {"method": method, "runs": len(runs)}
    if experiment == "induction":
        out |= _lppd(runs, truth) | _spending(runs, truth)
    else:
        out |= _clusters(runs, truth) | _chains(runs)
    if experiment == "gmm":
        out["predictive_distance"] = _median(_predictive_distances(runs, truth))
    paths, evaluations, seconds = ([run[key] for run in runs] for key in ("paths", "evaluations", "seconds"))
    medians = {"evaluations_median": _median(evaluations), "seconds_median": _median(seconds)}
    return out | _evidence(runs, truth.log_evidence) | {"paths_min": min(paths), "paths_max": max(paths)} | medians


def _lppd(runs: list[Record], truth: InductionTruth) -> dict[str, Any]:
    values = [run["lppd"] for run in runs]
    return {
        "lppd_mean": float(np.mean(values)),
        "lppd_sd": float(np.std(values, ddof=1)) if len(values) > 1 else math.nan,
        "lppd_farthest": max(abs(value - truth.lppd) for value in values),
        "lppd_exact": truth.lppd,
    }


def best_run(runs: Sequence[Record]) -> Record:
    """The run of function induction with the highest LPPD, whose functions are shown."""
    return max(runs, key=lambda run: run["lppd"])


def heavy_paths(paths: Iterable[str], truth: InductionTruth, count: int = HEAVY) -> list[str]:
    """The paths with the largest exact posterior probabilities, the heaviest first."""
    return sorted(paths, key=lambda path: truth.weights[path], reverse=True)[:count]


def share_of(run: Record, paths: Iterable[str]) -> float:
    """The share of the evaluations of a run that some paths got, of those that are counted by path."""
    spent = {path: resource["spent"][-1] for path, resource in run["resources"].items()}
    return sum(spent.get(path, 0) for path in paths) / sum(spent.values())


def _spending(runs: list[Record], truth: InductionTruth) -> dict[str, Any]:
    """The share that the heavy paths got, of the methods that count evaluations by path."""
    heavy = heavy_paths(truth.weights, truth)
    return _range("heavy_share", [share_of(run, heavy) for run in runs if run["resources"]])


def _clusters(runs: list[Record], truth: MixtureTruth) -> dict[str, Any]:
    """The probability of five clusters and of all numbers, and the evaluations at the first visit of K = 5."""
    values = [run["probability"].get("5", 0.0) for run in runs]
    distances = [distance_of(run["probability"], truth.probability) for run in runs]
    return {
        "clusters_distance_median": _median(distances),
        "clusters_distance_max": max(distances),
        "probability_median": _median(values),
        "probability_min": min(values),
        "probability_exact": truth.probability[5],
        **_range("discovered", _known(runs, "discovered")),
    }


def distance_of(found: Mapping[str, float], exact: Mapping[int, float]) -> float:
    """The distance in total variation of p(K | y): the largest difference of the probability of any set of K."""
    here = {int(K): p for K, p in found.items()}
    return 0.5 * sum(abs(here.get(K, 0.0) - exact.get(K, 0.0)) for K in here.keys() | exact.keys())


def _chains(runs: list[Record]) -> dict[str, Any]:
    """The least K of a visit, and how many chains there were and how many of them changed K."""
    return {
        "least_K": min(run["least_K"] for run in runs),
        "chains": sum(run["chains"] for run in runs),
        "chains_that_moved": sum(run["chains_that_moved"] for run in runs),
    }


def _evidence(runs: list[Record], exact: float) -> dict[str, Any]:
    values = _known(runs, "log_evidence")
    known = [run for run in runs if run["log_evidence"] is not None and run["log_evidence_sd"]]
    scores = [(run["log_evidence"] - exact) / run["log_evidence_sd"] for run in known]
    return {
        "log_evidence_largest_error": max((abs(value - exact) for value in values), default=math.nan),
        "score_mean": float(np.mean(scores)) if scores else math.nan,
        "score_sd": float(np.std(scores, ddof=1)) if len(scores) > 1 else math.nan,
        **_range("settled", [found for run in runs if (found := _settled(run["history"], exact)) is not None]),
        "log_evidence_runs": len(values),
        "log_evidence_squared_error": _median([(value - exact) ** 2 for value in values]),
        "log_evidence_exact": exact,
    }


def _range(name: str, values: Sequence[float]) -> dict[str, Any]:
    """How many values there are, their median and their range."""
    low, high = min(values, default=math.nan), max(values, default=math.nan)
    return {f"{name}_runs": len(values), f"{name}_median": _median(values), f"{name}_min": low, f"{name}_max": high}


def _settled(history: Mapping[str, Sequence[Any]], exact: float) -> int | None:
    """Evaluations after which log Z stays within one nat of the exact value; None if it is farther at the end."""
    since = None
    for evaluations, value in zip(history["evaluations"], history["log_evidence"], strict=True):
        close = value is not None and abs(value - exact) < 1
        since = (evaluations if since is None else since) if close else None
    return since


def _predictive_distances(runs: list[Record], truth: MixtureTruth) -> list[float]:
    """Half of the area between a run's predictive density and the exact one: 0 if equal, 1 if they share nothing."""
    y, exact = truth.predictive_y, truth.predictive_density
    densities = [np.interp(y, run["predictive"]["y"], run["predictive"]["density"]) for run in runs]
    return [0.5 * float(np.trapezoid(abs(density - exact), y)) for density in densities]


def _known(runs: list[Record], key: str) -> list[float]:
    return [run[key] for run in runs if run[key] is not None]


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if values else math.nan
