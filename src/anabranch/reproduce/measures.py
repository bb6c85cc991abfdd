"""What the figures and tables need of a posterior, in plain numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from anabranch import Draw, Path, Posterior

__all__ = ["GRID_X", "GRID_Y", "history", "lppd", "of_induction", "of_misspecified_mixture", "of_mixture", "shape"]

GRID_Y, GRID_X = np.linspace(0, 20, 401), np.linspace(-2, 2, 201)
"""Where the density of a new point of the mixture is asked for, and the values of the functions."""
_NOISE, _SPREAD = 0.5, 0.1
_FUNCTIONS, _DENSITIES = 40, 1_000
_COMPONENTS = 5


def history(posterior: Posterior) -> dict[str, list[Any]]:
    """How the estimate of log Z changed, by evaluations; empty for a method that has none."""
    known = posterior.history.drop_duplicates("evaluations", keep="last")
    known = known[known["log_evidence"].notna()]
    return {"evaluations": known["evaluations"].tolist(), "log_evidence": numbers(known["log_evidence"])}


def numbers(values: Any, digits: int = 8) -> list[float | None]:
    """Numbers for JSON, which knows neither infinity nor NaN, to so many significant digits."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.asarray(values, float)]


# Mixtures -------------------------------------------------------------------------------------------------------------


def of_mixture(posterior: Posterior) -> dict[str, Any]:
    """p(K | y), when K = 5 was met for the first time, and the density of a new point (figures 3 and 4)."""

    def density(draw: Draw) -> np.ndarray:
        centres = np.array([draw[f"mu{k}"] for k in range(int(draw["K"]))])
        return norm.pdf(GRID_Y[:, None], centres, _SPREAD).mean(axis=1)

    predictive = posterior.expectation(density, most=_DENSITIES)[0]
    return {
        "probability": _probability(posterior),
        "discovered": _discovered(posterior),
        "predictive": {"y": numbers(GRID_Y, 5), "density": numbers(predictive, 4)},
    }


def of_misspecified_mixture(posterior: Posterior) -> dict[str, Any]:
    """p(K | y), when K = 5 was met for the first time, and which K was visited when (figure 5)."""
    visits = _visits(posterior)
    return {
        "probability": _probability(posterior),
        "discovered": _discovered(posterior),
        "visits": {name: visits[name].tolist() for name in ("evaluations", "K", "chain")},
    }


def _probability(posterior: Posterior) -> dict[str, float]:
    return {str(value): float(probability) for value, probability in posterior.probability("K").items()}


def _discovered(posterior: Posterior) -> int | None:
    visits = _visits(posterior)
    found = visits["evaluations"][visits["K"] == _COMPONENTS]
    return int(found.iloc[0]) if len(found) else None


def _visits(posterior: Posterior) -> Any:
    """The visits of paths with their K; of chains alone where the method has chains, as others are mere proposals."""
    visits = posterior.history.dropna(subset=["path"])
    if visits["chain"].notna().any():
        visits = visits.dropna(subset=["chain"])
    # The one decision of the program is the number of clusters beyond the first.
    return visits.assign(K=[int(path.rpartition(" = ")[2]) + 1 for path in visits["path"]])


# Function induction ---------------------------------------------------------------------------------------------------


def of_induction(y_test: np.ndarray) -> Callable[[Posterior], dict[str, Any]]:
    """The LPPD, some posterior functions, and what each path cost (figures 6 and 7, table 1)."""
    test = slice(-len(y_test) - len(GRID_X), -len(GRID_X))

    def measure(posterior: Posterior) -> dict[str, Any]:
        functions = [numbers(draw.result[-len(GRID_X) :], 4) for draw in posterior.draws(_FUNCTIONS)]
        return {
            "lppd": lppd(posterior, test, y_test),
            "functions": {"x": numbers(GRID_X, 4), "f": functions},
            "resources": _resources(posterior),
        }

    return measure


def lppd(posterior: Posterior, test: slice, y: np.ndarray) -> float:
    """Σ_n log ∫ p(y_n | x_n, Θ) p(Θ | D) dΘ, with f(x_n) among what the program returns (paper, section 7.3)."""
    terms = []
    for solution, weight in zip(posterior.solutions, posterior.evidence.weights, strict=True):
        if weight > 0 and len(solution.points):
            for outcome in solution.path.outcomes(solution.points):
                values = np.broadcast_to(np.asarray(outcome.result), (len(outcome.index), np.shape(outcome.result)[-1]))
                weights = weight * solution.weights[outcome.index]
                log_density = norm.logpdf(y, values[:, test], _NOISE)
                with np.errstate(divide="ignore"):
                    terms.append(logsumexp(log_density + np.log(weights)[:, None], axis=0))
    return float(logsumexp(terms, axis=0).sum())


def _resources(posterior: Posterior) -> dict[str, Any]:
    """Of each path, as the run went: its log Z_k, and the evaluations spent on it; nothing for other methods."""
    rows = posterior.history
    rows = rows[rows["spent"] > 0]
    names = {solution.path.description: shape(solution.path) for solution in posterior.solutions}
    out = {}
    for description, visits in rows.groupby("path", sort=False):
        out[names[description]] = {
            "evaluations": visits["evaluations"].tolist(),
            "log_evidence": numbers(visits["path_log_evidence"]),
            "spent": visits["spent"].tolist(),
        }
    return out


def shape(path: Path) -> str:
    """The function of a path, from the rules of the grammar that it fixes.

    >>> import anabranch as ab
    >>> from anabranch import programs
    >>> division = ab.find_paths(programs.function_induction, *programs.function_induction_data())
    >>> sorted(map(shape, division), key=len)[:3]
    ['x', 'x2', 'x+x']
    """
    rules = iter([int(site.value) for site in path.sites if site.discrete and site.value is not None])
    return _expression(rules, below_plus=False)


def _expression(rules: Iterator[int], below_plus: bool) -> str:
    """x2 is x², sx is sin(a x) where it has a factor of its own."""
    rule = next(rules)
    if rule < 2:
        return ("x", "x2")[rule]
    if rule == 2:
        inner = _expression(rules, below_plus=False)
        return f"s{inner}" if below_plus else f"sin({inner})"
    return f"{_expression(rules, below_plus=True)}+{_expression(rules, below_plus=True)}"
