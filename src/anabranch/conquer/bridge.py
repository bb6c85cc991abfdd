"""Bridge sampling: the evidence from draws of the posterior and draws of a proposal (Meng and Wong, 1996).

With n₁ draws x of γ/Z, worth n_eff independent ones, n₂ draws x̃ of a normalised proposal q, and shares
s₁ = n_eff/(n_eff + n₂), s₂ = n₂/(n_eff + n₂), the best bridge between the two gives the Z that solves

    Z = [1/n₂ Σ γ(x̃)/(s₁ γ(x̃) + s₂ Z q(x̃))] / [1/n₁ Σ q(x)/(s₁ γ(x) + s₂ Z q(x))].

The difference of the two sides is monotone in Z, so the fixed point is the root of one function. The relative error of
Ẑ (Frühwirth-Schnatter, 2004) is

    Var(Ẑ)/Z² ≈ 1/n₂ · Var_q(f₁)/E_q(f₁)² + 1/n_eff · Var_γ(f₂)/E_γ(f₂)²

with f₁ and f₂ the terms of the two sums. With a proposal fitted to the same draws, Ẑ is too low: by 0.7 nats for a
normal posterior of 60 dimensions and 1,200 draws. So each half of the draws has the proposal of the other
(cross-fitting, as Gronau et al., 2017, do for one of the halves), and the two answers are averaged.

The paper asks of a local method that it estimates Z_k (section 4.2); bridge sampling lets chains do so.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.special import logsumexp

from anabranch.conquer.chains import chain_ess
from anabranch.conquer.student import StudentMixture, safe_cholesky
from anabranch.conquer.target import Target

__all__ = ["Side", "bridge", "crossed", "fit_proposal"]

_DFS, _REFITS = (np.inf, 30.0, 10.0, 4.0), 3
"""Degrees of freedom of the proposals that are fitted, and steps of expectation maximisation for each."""
_CORRELATION = 0.5
"""Of the two answers of cross-fitting, as measured with normal posteriors of 1 to 60 dimensions."""
_MIN_OVERLAP = 10.0
"""Draws of the proposal that may be of the posterior, at least; with fewer, both may be far apart without a sign."""
_MARGIN = 50.0
"""Nats beyond all ratios γ/q between which the root lies."""


def bridge(
    log_target_at_draws: np.ndarray,
    log_proposal_at_draws: np.ndarray,
    log_target_at_proposals: np.ndarray,
    log_proposal_at_proposals: np.ndarray,
    effective: float,
    families: np.ndarray | None = None,
) -> tuple[float, float]:
    """log Ẑ and its standard error, from draws that are worth `effective` independent ones.

    Where only draws of different `families` are independent, the error is at least that of sums over families. It is
    infinite where the two kinds of draws overlap too little, and log Ẑ minus infinity where no draw of the proposal has
    positive density.
    """
    at_draws = log_target_at_draws - log_proposal_at_draws
    at_proposals = log_target_at_proposals - log_proposal_at_proposals
    met = at_proposals[at_proposals > -np.inf]
    if not len(met) or not len(at_draws):
        return -np.inf, np.inf
    n = len(at_proposals)
    log_s1, log_s2 = np.log(effective / (effective + n)), np.log(n / (effective + n))

    def terms(log_z: float) -> tuple[np.ndarray, np.ndarray]:
        """log f₁ at the draws of the proposal with positive density, and log f₂ at those of the posterior."""
        log_f1 = met - np.logaddexp(log_s1 + met, log_s2 + log_z)
        log_f2 = -np.logaddexp(log_s1 + at_draws, log_s2 + log_z)
        return log_f1, log_f2

    def excess(log_z: float) -> float:
        log_f1, log_f2 = terms(log_z)
        return float(logsumexp(log_f1) - np.log(n) - logsumexp(log_f2) + np.log(len(at_draws)) - log_z)

    from scipy.optimize import brentq  # slow to import, and not needed by every run

    both = np.concatenate([met, at_draws])
    log_z = float(brentq(excess, both.min() - _MARGIN, both.max() + _MARGIN, xtol=1e-10))
    log_f1, log_f2 = terms(log_z)
    if np.exp(log_s1 + log_f1).sum() < _MIN_OVERLAP:  # s₁ f₁ is the probability that a draw is of the posterior
        return log_z, np.inf
    log_f1 = np.append(log_f1, np.full(n - len(met), -np.inf))
    of_draws = _relative_variance(log_f2) / effective
    if families is not None:
        of_draws = max(of_draws, _variance_by_family(log_f2, families))
    return log_z, float(np.sqrt(_relative_variance(log_f1) / n + of_draws))


def _relative_variance(log_terms: np.ndarray) -> float:
    terms = np.exp(log_terms - log_terms.max())
    return float(terms.var() / terms.mean() ** 2)


def _variance_by_family(log_terms: np.ndarray, families: np.ndarray) -> float:
    """The relative variance of the mean: with S_e the sum over a family of deviations from the mean, Σ S_e² / n², times
    F/(F − 1) for F families of the same size, n²/Σ n_e² of unequal ones."""
    terms = np.exp(log_terms - log_terms.max())
    _, numbers, sizes = np.unique(families, return_inverse=True, return_counts=True)
    if len(sizes) == 1:
        return np.inf
    sums = np.bincount(numbers, weights=terms / terms.mean() - 1)
    number = len(terms) ** 2 / (sizes**2).sum()
    return float((sums**2).sum() / len(terms) ** 2 * number / (number - 1))


@dataclass(frozen=True)
class Side:
    """A proposal fitted to one half of the chains, and the densities of γ and of itself at its own draws."""

    proposal: StudentMixture
    log_target: np.ndarray
    log_proposal: np.ndarray

    @classmethod
    def fitted(cls, chains: np.ndarray, scale_tril: np.ndarray) -> Self:
        """The proposal for chains (N, T, d), without draws of it; `scale_tril` is as in `fit_proposal`."""
        return cls(fit_proposal(chains.reshape(-1, chains.shape[2]), scale_tril), np.zeros(0), np.zeros(0))

    def extended(self, target: Target, n: int, rng: np.random.Generator) -> Self:
        """With as many more draws of the proposal as make n."""
        missing = n - len(self.log_target)
        if missing <= 0:
            return self
        points = self.proposal.draw(missing, rng)
        log_target = np.concatenate([self.log_target, target.evaluate(points).log_density])
        log_proposal = np.concatenate([self.log_proposal, self.proposal.log_density(points)])
        return replace(self, log_target=log_target, log_proposal=log_proposal)

    def bridged(self, chains: np.ndarray, log_density: np.ndarray) -> tuple[float, float]:
        """log Ẑ and its error by the bridge to other chains (N, T, d) with these log densities (N, T)."""
        log_proposal = self.proposal.log_density(chains.reshape(-1, chains.shape[2])).reshape(log_density.shape)
        # Chains that stay out of a tail for long leave the ratio there unseen: the slowest moment counts.
        seen = np.concatenate([(log_density - log_proposal)[:, :, None], chains, chains**2], axis=2)
        size = float(chain_ess(seen).min())
        effective = min(size, log_density.size) if np.isfinite(size) else float(len(log_density))
        return bridge(log_density.ravel(), log_proposal.ravel(), self.log_target, self.log_proposal, effective)


def crossed(first: tuple[float, float], second: tuple[float, float]) -> tuple[float, float]:
    """The mean of two estimates of log Z, and its error, which is at least half their difference.

    The errors are correlated, since each half of the draws has the proposal fitted to the other.
    """
    (a, sd_a), (b, sd_b) = first, second
    if not (np.isfinite(a) and np.isfinite(b)):
        return max(a, b), np.inf
    sd = 0.5 * float(np.sqrt(sd_a**2 + sd_b**2 + 2 * _CORRELATION * sd_a * sd_b))
    return 0.5 * (a + b), max(sd, 0.5 * abs(a - b))


def fit_proposal(draws: np.ndarray, scale_tril: np.ndarray) -> StudentMixture:
    """A normal or Student-t distribution for draws (n, d), with the degrees of freedom that suit them best.

    The covariance is shrunk to that of `scale_tril`, the more the fewer draws there are.
    """
    fits = [_fit(draws, scale_tril, df) for df in _DFS]
    return max(fits, key=lambda fit: fit.log_density(draws).mean())


def _fit(draws: np.ndarray, scale_tril: np.ndarray, df: float) -> StudentMixture:
    n, d = draws.shape
    trust = n / (n + 2 * d)
    centred = draws - draws.mean(axis=0)
    covariance = trust * centred.T @ centred / n + (1 - trust) * scale_tril @ scale_tril.T
    mean, scale_tril = draws.mean(axis=0), safe_cholesky(covariance)
    if not np.isfinite(df):
        return StudentMixture.single(mean, scale_tril, df)
    fit = StudentMixture.single(mean, scale_tril * np.sqrt((df - 2) / df), df)
    for _ in range(_REFITS):
        fit = fit.refitted(draws, np.ones(n))
    return fit
