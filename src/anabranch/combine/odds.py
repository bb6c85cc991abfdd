"""The odds of one group of executions against another, a posteriori and a priori, and their Bayes factor.

With the evidence Z_k of each path and the shares a_k and b_k of its posterior draws in the groups A and B,

    P(A)/P(B) = Σ_k Z_k a_k / Σ_k Z_k b_k,

and likewise a priori, with the prior probability of each path and its prior draws. The Bayes factor is the ratio of the
two odds. To first order the error of the logarithm of the odds is that of Σ_k Z_k Σ_i v_ki g_ki with g = 1[A]/P(A) −
1[B]/P(B), as in `expectation`. Everything is in logarithms: odds of exp(1000) are ordinary.

What is not known adds to the error: the mass that doubtful paths may have, and a priori that of paths not found, in the
group where it changes the odds most.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from anabranch import errors
from anabranch.combine.blocks import Blocks, blocks_of
from anabranch.combine.draws import Draw
from anabranch.combine.expectation import sampling_error
from anabranch.combine.parts import MIN_DRAWS, Part, parts_of
from anabranch.combine.solution import Solution
from anabranch.conquer.estimate import PRIOR, Estimate
from anabranch.divide import Path, prior_is_sampled

__all__ = ["Group", "Odds", "odds"]

Group = Callable[[Draw], Any]
"""A function of a draw that is true for the draws of a group."""
_LARGEST = 10.0
"""The logarithm of odds from which on the logarithm is shown."""
Doubt = tuple[float, Solution | None]
"""The log of mass that a path may have beyond its estimate, and the path; None: any path."""


@dataclass(frozen=True)
class Odds:
    """The odds of one group of executions against another, in natural logarithms, each with its standard error.

    The prior odds are NaN where the prior cannot be drawn from: it is improper, or a mask or scale changes it.
    """

    log_posterior_odds: float
    log_posterior_odds_sd: float
    log_prior_odds: float
    log_prior_odds_sd: float

    @property
    def log_bayes_factor(self) -> float:
        """The log of the posterior odds over the prior odds."""
        return self.log_posterior_odds - self.log_prior_odds

    @property
    def log_bayes_factor_sd(self) -> float:
        """The standard error of `log_bayes_factor`."""
        return float(np.hypot(self.log_posterior_odds_sd, self.log_prior_odds_sd))

    @property
    def posterior_odds(self) -> float:
        """The posterior probability of the group over that of the other one; infinite beyond the range of a float."""
        return _exp(self.log_posterior_odds)

    @property
    def prior_odds(self) -> float:
        """The prior probability of the group over that of the other one."""
        return _exp(self.log_prior_odds)

    @property
    def bayes_factor(self) -> float:
        """By how much the data change the odds."""
        return _exp(self.log_bayes_factor)

    def __repr__(self) -> str:
        prior = _shown(self.log_prior_odds, self.log_prior_odds_sd)
        factor = _shown(self.log_bayes_factor, self.log_bayes_factor_sd)
        posterior = _shown(self.log_posterior_odds, self.log_posterior_odds_sd)
        return f"Odds(posterior {posterior}, prior {prior}, Bayes factor {factor})"


def odds(
    solutions: Sequence[Solution],
    group: Group,
    against: Group | None,
    log_possible_not_found: float | None,
    max_draws: int,
) -> Odds:
    """The odds of a group against another one, or against all other draws that have the names that it reads."""
    f = _indicator(group, against)
    doubts: list[Doubt] = [(each.log_possible, each) for each in solutions if each.log_possible > each.log_evidence]
    if log_possible_not_found is not None:
        doubts.append((log_possible_not_found, None))
    posterior = _log_ratio(solutions, f, blocks_of(solutions), doubts, max_draws)
    if not _has_prior(solutions):
        return Odds(*posterior, np.nan, np.nan)
    prior = _prior_solutions([solution.path for solution in solutions], max_draws)
    not_found = 1 - sum(math.exp(each.log_evidence) for each in prior)
    elsewhere: list[Doubt] = [(math.log(not_found), None)] if not_found > 1e-12 else []
    return Odds(*posterior, *_log_ratio(prior, f, None, elsewhere, max_draws))


def _has_prior(solutions: Sequence[Solution]) -> bool:
    """Whether all paths have prior draws: not if a prior is improper, or if a posterior is loaded without program."""
    try:
        return all(prior_is_sampled(solution.path) for solution in solutions)
    except errors.NeedsProgram:
        return False


def _indicator(group: Group, against: Group | None) -> Callable[[Draw], float | None]:
    """1 in the group, 0 in the other one, None in neither."""

    def f(draw: Draw) -> float | None:
        inside = bool(group(draw))
        if against is None:
            return float(inside)
        other = bool(against(draw))
        if inside and other:
            raise ValueError("a draw is in both groups: their odds need groups that exclude each other")
        return float(inside) if inside or other else None

    return f


def _prior_solutions(paths: Sequence[Path], max_draws: int) -> list[Solution]:
    """Each path with prior draws and its prior probability in place of the evidence."""
    largest = max(path.log_prior_probability for path in paths)
    out = []
    for k, path in enumerate(paths):
        n = max(math.ceil(max_draws * math.exp((path.log_prior_probability - largest) / 2)), MIN_DRAWS)
        drawn = path.prior(n, seed=k)
        # The probability of these draws where it is estimated, whose error is known.
        log_probability = path.log_prior_probability if drawn.log_probability_sd == 0 else drawn.log_probability
        estimate = Estimate.nothing(path.dim, 0, PRIOR)
        if len(drawn.points):
            estimate = Estimate.from_draws(
                drawn.points, drawn.log_weights, log_probability, drawn.log_probability_sd, 0, PRIOR
            )
        out.append(Solution(path, estimate))
    return out


def _log_ratio(
    solutions: Sequence[Solution],
    f: Callable[[Draw], float | None],
    blocks: Blocks | None,
    doubts: Iterable[Doubt],
    max_draws: int,
) -> tuple[float, float]:
    """log P(A)/P(B), and its error; infinite if a group has no draw."""
    logs = np.array([solution.log_evidence for solution in solutions])
    # A path too light for a float has some draws all the same.
    weights = np.where(logs > -np.inf, np.maximum(np.exp(logs - logs.max()), np.finfo(float).tiny), 0.0)
    parts = parts_of(solutions, weights, f, max_draws)
    inside = [part.present & (part.values > 0) for part in parts]
    outside = [part.present & (part.values == 0) for part in parts]
    masses = logs[[part.place for part in parts]]
    log_a, log_b = _log_mass(parts, masses, inside), _log_mass(parts, masses, outside)
    if not np.isfinite([log_a, log_b]).all():
        return log_a - log_b, np.inf
    influences = [
        _exp(mass - log_a, 700.0) * a - _exp(mass - log_b, 700.0) * b
        for mass, a, b in zip(masses, inside, outside, strict=True)
    ]
    sd = float(sampling_error([replace(part, weight=1.0) for part in parts], influences, blocks))
    shares = {
        id(part.solution): np.array([part.weights @ a, part.weights @ b])
        for part, a, b in zip(parts, inside, outside, strict=True)
    }
    sd = sd if sd > 1e-12 else 0.0  # of rounding: the weights of draws sum to one up to that
    return log_a - log_b, float(np.hypot(sd, _gap(np.array([log_a, log_b]), shares, doubts)))


def _gap(log_masses: np.ndarray, shares: Mapping[int, np.ndarray], doubts: Iterable[Doubt]) -> float:
    """By how much the doubtful mass may change the log of the odds; a path without draws may be of either group."""
    more = np.zeros(2)
    for log_possible, solution in doubts:
        log_known = -np.inf if solution is None else solution.log_evidence
        logs = np.minimum(np.array([[log_possible], [log_known]]) - log_masses, 700.0)
        more += shares.get(id(solution), np.ones(2)) * (np.exp(logs[0]) - np.exp(logs[1]))
    return float(np.log1p(more.max()))


def _log_mass(parts: Sequence[Part], log_masses: np.ndarray, members: Sequence[np.ndarray]) -> float:
    shares = [part.weights @ each for part, each in zip(parts, members, strict=True)]
    return float(logsumexp(log_masses, b=shares)) if any(shares) else -np.inf


def _exp(x: float, largest: float = math.inf) -> float:
    """exp(x), or that of the largest x; infinite beyond the range of a float."""
    x = min(x, largest)
    return math.inf if x > 709 else math.exp(x)


def _shown(log_odds: float, sd: float) -> str:
    from anabranch.report.table import with_error

    if math.isnan(log_odds):
        return "not known"
    if abs(log_odds) > _LARGEST:
        return f"exp({with_error(log_odds, sd)})"
    return with_error(math.exp(log_odds), math.exp(log_odds) * sd)
