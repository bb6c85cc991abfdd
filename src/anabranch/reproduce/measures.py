"""The measures of a posterior that figures, tables and pages show, as plain numbers."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy.special import logsumexp
from scipy.stats import norm

from anabranch import Draw, Path, Posterior

__all__ = [
    "GRID_X",
    "GRID_Y",
    "history",
    "lppd",
    "of_clusters",
    "of_induction",
    "of_misspecified_mixture",
    "of_mixture",
    "of_nothing",
    "of_planar_mixture",
    "shape",
]

GRID_Y, GRID_X = np.linspace(0, 20, 401), np.linspace(-2, 2, 201)
"""The grids of the predictive density of the mixture, and of the posterior functions."""
_NOISE, _SPREAD = 0.5, 0.1
_FUNCTIONS, _DENSITIES = 40, 1_000
_COMPONENTS = 5


def history(posterior: Posterior) -> dict[str, list[Any]]:
    """log Z against evaluations; empty for a method without evidence."""
    known = posterior.history.drop_duplicates("evaluations", keep="last")
    known = known[known["log_evidence"].notna()]
    return {"evaluations": known["evaluations"].tolist(), "log_evidence": numbers(known["log_evidence"])}


def numbers(values: Any, digits: int = 8) -> list[float | None]:
    """Numbers for JSON, to so many significant digits; None for infinity and NaN."""
    return [float(f"{value:.{digits}g}") if np.isfinite(value) else None for value in np.asarray(values, float)]


def of_mixture(posterior: Posterior) -> dict[str, Any]:
    """p(K | y), the first visit of K = 5, and the predictive density (figures 3 and 4)."""

    def density(draw: Draw) -> np.ndarray:
        centres = np.array([draw[f"mu{k}"] for k in range(int(draw["K"]))])
        return norm.pdf(GRID_Y[:, None], centres, _SPREAD).mean(axis=1)

    predictive = posterior.expectation(density, max_draws=_DENSITIES)[0]
    return of_clusters(posterior) | {"predictive": {"y": numbers(GRID_Y, 5), "density": numbers(predictive, 4)}}


def of_misspecified_mixture(posterior: Posterior) -> dict[str, Any]:
    """The same, and the K of each visit (figure 5)."""
    visits = _visits(posterior)
    return of_clusters(posterior) | {"visits": {name: visits[name].tolist() for name in ("evaluations", "K", "chain")}}


def of_clusters(posterior: Posterior) -> dict[str, Any]:
    """p(K | y), the first visit of K = 5, the least K visited, and how many chains changed K."""
    probability = {str(value): float(p) for value, p in posterior.probability("K").items()}
    visits = _visits(posterior)
    discovered = visits["evaluations"][visits["K"] == _COMPONENTS]
    chains = visits.dropna(subset=["chain"]).groupby("chain")["K"]
    return {
        "probability": probability,
        "discovered": int(discovered.iloc[0]) if len(discovered) else None,
        "least_K": int(visits["K"].min()),
        "chains": len(chains),
        "chains_that_moved": int((chains.nunique() > 1).sum()),
    }


def of_nothing(posterior: Posterior) -> dict[str, Any]:
    """Nothing but what every record has, such as log Z against evaluations."""
    return {}


def of_planar_mixture(posterior: Posterior) -> dict[str, Any]:
    """The most probable mean and covariance of each cluster, for each number of clusters (figure 1)."""
    return {"best": sorted((_best(posterior.map(each.path.description)) for each in posterior.solutions), key=len)}


def _best(draw: Draw) -> list[tuple[list[float | None], list[list[float | None]]]]:
    """The mean and the covariance of each cluster."""
    clusters = []
    for k in range(int(draw["K"])):
        sd, r = np.asarray(draw[f"sd{k}"]), float(draw[f"r{k}"])
        covariance = np.outer(sd, sd) * np.array([[1, r], [r, 1]])
        clusters.append((numbers(draw[f"mu{k}"], 6), [numbers(row, 6) for row in covariance]))
    return clusters


def _visits(posterior: Posterior) -> Any:
    """The visits of paths with their K; for a method with chains, the states of the chains alone."""
    visits = posterior.history.dropna(subset=["path"])
    if visits["chain"].notna().any():
        visits = visits.dropna(subset=["chain"])
    # The only decision of the program is the number of clusters beyond the first.
    return visits.assign(K=[int(path.rpartition(" = ")[2]) + 1 for path in visits["path"]])


def of_induction(y_test: np.ndarray) -> Callable[[Posterior], dict[str, Any]]:
    """The LPPD, some posterior functions, and the evaluations of each path (figures 6 and 7, table 1)."""
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
    """Σ_n log ∫ p(y_n | x_n, Θ) p(Θ | D) dΘ, with f(x_n) in the program's return value (paper, section 7.3)."""
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
    """log Z_k and the evaluations spent on each path, by visit; empty for methods that do not count them."""
    rows = posterior.history
    rows = rows[rows["spent"] > 0]
    names = {solution.path.description: shape(solution.path) for solution in posterior.solutions}
    return {
        names[description]: {
            "evaluations": visits["evaluations"].tolist(),
            "log_evidence": numbers(visits["path_log_evidence"]),
            "spent": visits["spent"].tolist(),
        }
        for description, visits in rows.groupby("path", sort=False)
    }


def shape(path: Path) -> str:
    """The shape of a path's function, from the grammar rules that it fixes."""
    rules = iter([int(site.value) for site in path.sites if site.discrete and site.value is not None])
    return _expression(rules, below_plus=False)


def _expression(rules: Iterator[int], below_plus: bool) -> str:
    """x2 is x²; sx is sin(a x) as a term of a sum."""
    rule = next(rules)
    if rule < 2:
        return ("x", "x2")[rule]
    if rule == 2:
        inner = _expression(rules, below_plus=False)
        return f"s{inner}" if below_plus else f"sin({inner})"
    return f"{_expression(rules, below_plus=True)}+{_expression(rules, below_plus=True)}"
