"""Comparison of posteriors of the same data: by their evidence, and by leave-one-out prediction.

With the evidence Z_m of each model and its prior probability π_m,

    BF_m = Z_m / Z_best,    P(m | data) = π_m Z_m / Σ_j π_j Z_j,

with errors to first order in those of the log evidences, which are independent. The expected log predictive density of
n parts of the data, and its standard error, which is that of data and not of Monte Carlo (Vehtari et al., 2017), are

    elpd_m = Σ_i log p_m(y_i | y_−i),    sd(elpd_m)² = n var_i log p_m(y_i | y_−i),

by PSIS-LOO (`psis`). Of a program with several paths, of weights w_k,

    1/p(y_i | y_−i) = E[1/p(y_i | θ)] = Σ_k w_k / p_k(y_i | y_−i).

Stacking weights are those of the mixture of models that predicts best
(`stacking`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax

from anabranch.combine.draws import with_draws
from anabranch.combine.evidence import weight_sds_of
from anabranch.combine.observed import Parts, data_of
from anabranch.combine.posterior import Posterior
from anabranch.combine.psis import leave_one_out
from anabranch.combine.solution import Solution
from anabranch.combine.stacking import MAX_DRAWS, is_summed, stacking_weights, weighted_pointwise
from anabranch.conquer.estimate import MAX_PARETO_K
from anabranch.errors import BadSetting, NeedsProgram
from anabranch.settings import positive

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["Comparison", "compare"]

_MAX_PATHS, _MIN_WEIGHT = 200, 1e-6
"""Paths that leave-one-out prediction takes into account: so many, with so much of the weight of the heaviest."""
_MIN_DRAWS = 100
"""Draws of a light path."""


@dataclass(frozen=True)
class Comparison:
    """Models compared. It prints as a table, and `plot` draws it.

    Attributes:
        table: a row for each model under its name, as in `table.loc["linear"]`, that with the largest evidence first:
            `log_evidence`; `log_bayes_factor`, against the first row; `probability`; `elpd`, the expected log
            predictive density by PSIS-LOO; `elpd_difference`, to the best one; each with its error, as in
            `log_evidence_sd`; `pareto_k`, the largest over the data; `stacking_weight`. NaN where it is not known, and
            a note says why.
        notes: sentences on what cannot be compared, or is not reliable.
    """

    table: pd.DataFrame
    notes: tuple[str, ...]

    def plot(self, file: str | os.PathLike[str] | None = None) -> Figure:
        """A figure of the Bayes factors, probabilities and predictive densities, also written to `file`."""
        from anabranch.report.comparison import plot

        return plot(self.table, file)

    def __repr__(self) -> str:
        from anabranch.report.comparison import text

        return text(self.table, self.notes)

    def _repr_html_(self) -> str:
        from anabranch.report.comparison import html

        return html(self.table, self.notes)


def compare(models: Mapping[str, Posterior], prior: Mapping[str, float] | None = None) -> Comparison:
    """Compare models of the same data: evidences, Bayes factors, probabilities, PSIS-LOO and stacking weights.

    Args:
        models: a posterior for each name.
        prior: the prior probability of each model, or numbers in that ratio; by default the same for all.

    Example:
        >>> import anabranch as ab, numpy as np, numpyro.distributions as dist
        >>> def model(y, scale):
        ...     ab.observe("y", dist.Normal(ab.sample("mu", dist.Normal(0.0, scale)), 1.0), y)
        >>> y = np.array([0.9, 1.6, 0.4, 1.3])
        >>> comparison = ab.compare({"narrow": ab.infer(model, y, 1.0), "wide": ab.infer(model, y, 100.0)})
        >>> comparison.table.index.tolist(), round(float(comparison.table.loc["wide", "log_bayes_factor"]), 1)
        (['narrow', 'wide'], -4.1)
    """
    if not isinstance(models, Mapping) or len(models) < 2 or not all(isinstance(x, Posterior) for x in models.values()):
        raise BadSetting('models must be two or more posteriors by name, as in {"linear": a, "quadratic": b}')
    names, log_prior = [str(name) for name in models], _log_prior(models, prior)
    evidence = _by_evidence(list(models.values()), log_prior)
    predictions = [_Predictions(posterior) for posterior in models.values()]
    elpd, notes = _by_prediction(names, predictions)
    import pandas as pd

    table = pd.DataFrame({**evidence, **elpd}, index=pd.Index(names, name="model"))
    table = table.sort_values(["log_evidence", "elpd"], ascending=False, kind="stable")
    return Comparison(table, (*_notes_of_evidence(models, predictions), *notes))


def _log_prior(models: Mapping[str, Posterior], prior: Mapping[str, float] | None) -> np.ndarray:
    if prior is None:
        return np.zeros(len(models))
    if not isinstance(prior, Mapping) or prior.keys() != models.keys():
        raise BadSetting(f"prior must have a number for each model: {', '.join(map(str, models))}; got {prior!r}")
    return np.log([positive()(f"prior[{name!r}]", prior[name]) for name in models])


# By evidence ----------------------------------------------------------------------------------------------------------


def _by_evidence(posteriors: Sequence[Posterior], log_prior: np.ndarray) -> dict[str, np.ndarray]:
    logs, sds = (
        np.array([getattr(posterior, name) for posterior in posteriors], float)  # NaN for None
        for name in ("log_evidence", "log_evidence_sd")
    )
    if np.isnan(logs).any():
        missing = np.full(len(logs), np.nan)
        names = ("log_bayes_factor", "log_bayes_factor_sd", "probability", "probability_sd")
        return {"log_evidence": logs, "log_evidence_sd": sds, **dict.fromkeys(names, missing)}
    best = int(logs.argmax())
    factor_sds = np.hypot(sds, sds[best])
    factor_sds[best] = 0.0
    probabilities = softmax(log_prior + logs)
    total_sd = float(np.sqrt(((probabilities * sds) ** 2).sum()))
    return {
        "log_evidence": logs, "log_evidence_sd": sds,
        "log_bayes_factor": logs - logs[best], "log_bayes_factor_sd": factor_sds,
        "probability": probabilities, "probability_sd": weight_sds_of(probabilities, sds, total_sd),
    }  # fmt: skip


def _notes_of_evidence(models: Mapping[str, Posterior], predictions: Sequence[_Predictions]) -> list[str]:
    out = []
    without = [str(name) for name, posterior in models.items() if posterior.log_evidence is None]
    if without:
        out.append(
            f"The engine of {', '.join(without)} gives no evidence: there are no Bayes factors. "
            "Run it with the default engine."
        )
    known = [each for each in predictions if each.is_known]
    data = [np.sort(np.concatenate([np.zeros(0), *(x.ravel() for x in each.data.values())])) for each in known]
    if len(known) < len(predictions):
        unknown = [str(name) for name, each in zip(models, predictions, strict=True) if not each.is_known]
        out.append(
            f"The program of {', '.join(unknown)} was not loaded: whether the data are the same was not checked, and "
            "there is no elpd. Load it with its program."
        )
    if not all(np.array_equal(data[0], other) for other in data[1:]):
        out.append("The models do not observe the same data: neither their evidences nor their elpd can be compared.")
    doubtful = [str(name) for name, posterior in models.items() if posterior.warnings]
    if doubtful:
        out.append(f"The posterior of {', '.join(doubtful)} has warnings: see posterior.warnings.")
    return out


# By prediction --------------------------------------------------------------------------------------------------------


class _Predictions:
    """The data of a model, and the log density of each part of them given the others.

    parts: the observations, each with the number of its parts; None if there are none, or they differ.
    pareto_k: the largest Pareto k; NaN if the draws have no tail.
    is_known: False of a posterior that was loaded without its program, which has neither.
    """

    def __init__(self, posterior: Posterior) -> None:
        self.data: dict[str, np.ndarray] = {}
        self.parts: Parts | None = None
        self.is_known = True
        try:
            self.data = data_of(posterior.solution().path)
        except NeedsProgram:
            self.is_known = False
            return
        weighted = with_draws(posterior.solutions, posterior.evidence.weights)
        heavy = [each for each in weighted[:_MAX_PATHS] if each[1] > _MIN_WEIGHT * weighted[0][1]]
        found = [_of_path(solution, weight / weighted[0][1]) for solution, weight in heavy]
        self.parts = found[0].parts
        if any(each.parts != self.parts for each in found):
            self.parts = None
        if self.parts is not None:
            logs = np.log([[weight] for _, weight in heavy]) - np.array([each.log_predictive for each in found])
            self.log_predictive = -logsumexp(logs, axis=0)
            self.pareto_k = max((each.pareto_k for each in found if not np.isnan(each.pareto_k)), default=np.nan)

    def elpd_like(self, other: _Predictions) -> np.ndarray | None:
        """log p(y_i | y_−i) in the order of the data of another model; None if they are not the same data."""
        if self.parts is None or other.parts is None:
            return None
        values = self.log_predictive
        if sorted(self.parts) == sorted(other.parts):  # the same names
            ends = np.cumsum([size for _, size in self.parts])
            rows = dict(zip([name for name, _ in self.parts], np.split(values, ends[:-1]), strict=True))
            return np.concatenate([rows[name] for name, _ in other.parts])
        mine, others = list(self.data.values()), list(other.data.values())
        is_same = len(mine) == len(others) and all(map(np.array_equal, mine, others))
        return values if is_same and [size for _, size in self.parts] == [size for _, size in other.parts] else None


class _OfPath(NamedTuple):
    parts: Parts | None
    log_predictive: np.ndarray
    pareto_k: float


def _of_path(solution: Solution, relative_weight: float) -> _OfPath:
    """log p_k(y_i | y_−i), from fewer draws of lighter paths."""
    max_draws = max(int(MAX_DRAWS * np.sqrt(relative_weight)), _MIN_DRAWS)
    log_weights, parts, log_likelihood = weighted_pointwise(solution, max_draws)
    if not parts:
        return _OfPath(None, np.zeros(0), np.nan)
    log_predictive, shapes = leave_one_out(log_weights, log_likelihood)
    return _OfPath(parts, log_predictive, np.nan if is_summed(solution) else float(np.max(shapes)))


def _by_prediction(names: Sequence[str], models: Sequence[_Predictions]) -> tuple[dict[str, Any], list[str]]:
    found = [model.elpd_like(models[0]) for model in models]
    columns = ("elpd", "elpd_sd", "elpd_difference", "elpd_difference_sd", "pareto_k", "stacking_weight")
    if not all(model.is_known for model in models):
        return dict.fromkeys(columns, np.full(len(names), np.nan)), []
    if any(each is None for each in found):
        without = [name for name, each in zip(names, found, strict=True) if each is None]
        note = f"There is no elpd: the observations of {', '.join(without)} differ, or are not those of the others."
        return dict.fromkeys(columns, np.full(len(names), np.nan)), [note]
    logs, shapes = np.array(found), np.array([model.pareto_k for model in models])
    differences = logs - logs[logs.sum(axis=1).argmax()]
    values = (
        logs.sum(axis=1), _sum_sd(logs), differences.sum(axis=1), _sum_sd(differences), shapes, stacking_weights(logs)
    )  # fmt: skip
    doubtful = [name for name, k in zip(names, shapes, strict=True) if k > MAX_PARETO_K]
    notes = (
        [f"The elpd of {', '.join(doubtful)} is not reliable: pareto_k is above {MAX_PARETO_K:g}."] if doubtful else []
    )
    return dict(zip(columns, values, strict=True)), notes


def _sum_sd(rows: np.ndarray) -> np.ndarray:
    """The standard error of the sum of each row, over other data; NaN for a single part."""
    n = rows.shape[1]
    return np.sqrt(n * rows.var(axis=1, ddof=1)) if n > 1 else np.full(len(rows), np.nan)
