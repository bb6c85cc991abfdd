"""One sweep of tempering, and the evidence of several.

A sweep follows γ_β = s r^β (`smc_tempering`) over inverse temperatures 0 = β_0 < … < β_T = 1. At each of them the
particles are weighted, and some of them, resampled, begin the chains whose states are the next particles (waste-free
SMC; Dau and Chopin, 2022). With w_i = r(x_i)^(β_t − β_t−1) over the N particles at β_t−1

    Ẑ = Z_0 Π_t (1/N) Σ_i w_i

is an estimate of Z_k (Del Moral, Doucet and Jasra, 2006), unbiased but for the adaptation. The next temperature is the
one at which the conditional effective sample size (Σ w)² / Σ w² is a given share of N.

The variance of log Ẑ comes from the genealogy (Chan and Lai, 2013). A draw e from the start has the influence

    I_e = (1/N) Σ_t Σ_{i descends from e} (w_i / w̄ − 1),   Var log Ẑ ≈ Σ_e I_e²,

which covers both the weights and the mixing of the moves. Several sweeps give the mean over all their particles, and
the scatter of their Ẑ raises the variance where it is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.smc_tempering import Particles
from anabranch.conquer.target import Target
from anabranch.conquer.weights import effective_sample_size, log_mean, systematic

__all__ = [
    "Raised",
    "Sweep",
    "SweepUnderWay",
    "ess_by_family",
    "next_temperature",
    "pooled",
    "pooled_ess",
    "resampled",
    "scatter",
]

_STATED = 2.0
"""Observations of the scatter between sweeps for which the variance by the genealogy counts."""
_IDENTICAL = 2.0
"""Observations for which it counts that the members of a family may all be the same."""
_KEPT = 16
"""States of each chain that are kept as draws."""
_MAX_REFERENCE = 2_000
"""Particles from which the scales of moves are computed."""


@dataclass(frozen=True)
class Sweep:
    """A finished sweep: the number of chains, its evidence and standard error, draws, their ESS, the draw from the
    start from which each descends, how many draws from the start there were, and those of them with the largest r."""

    size: int
    log_evidence: float
    log_evidence_sd: float
    points: np.ndarray
    ess: float
    founders: np.ndarray
    draws: int
    highest: np.ndarray

    @classmethod
    def empty(cls, size: int, dim: int, draws: int) -> Sweep:
        """A sweep without a particle of positive density: its evidence is zero, with a relative error of one."""
        nothing = np.zeros((0, dim))
        return cls(size, -np.inf, 1.0, nothing, 0.0, np.zeros(0, int), draws, nothing)


@dataclass(frozen=True)
class SweepUnderWay:
    """A sweep at the inverse temperature β.

    Attributes:
        chains: their number at each temperature.
        particles: draws from γ_β.
        founders: for each of them the draw from the start from which it descends.
        influence: of each such draw, I_e so far.
        beta: β.
        log_evidence: log of the normaliser of γ_β.
        start_variance: the variance of that of the start.
        highest: the draws from the start with the largest r.
        climbed: the inverse temperatures so far.
        spent: evaluations so far.
    """

    chains: int
    particles: Particles
    founders: np.ndarray
    influence: np.ndarray
    beta: float
    log_evidence: float
    start_variance: float
    highest: np.ndarray
    climbed: tuple[float, ...] = ()
    spent: int = 0

    def raised(self, beta: float, rng: Generator) -> Raised | None:
        """The sweep at a higher β, with the starts of its chains; None where no particle has positive density there."""
        n, log_weights = len(self.particles), self.particles.log_weights(beta - self.beta)
        log_step = log_mean(log_weights)
        if log_step == -np.inf:
            return None
        influence = self.influence.copy()
        np.add.at(influence, self.founders, (np.exp(log_weights - log_step) - 1) / n)
        starts = resampled(log_weights, self.chains, rng)
        chosen = resampled(log_weights, max(self.chains, min(n, _MAX_REFERENCE)), rng)
        sweep = replace(
            self, particles=self.particles.take(starts), founders=self.founders[starts], influence=influence, beta=beta,
            log_evidence=self.log_evidence + log_step, climbed=(*self.climbed, beta),
        )  # fmt: skip
        return Raised(sweep, self.particles.points[chosen], self.founders[chosen])

    def moved(self, states: Particles) -> SweepUnderWay:
        """The sweep with all states of its chains as particles."""
        repeats = len(states) // len(self.particles)
        return replace(self, particles=states, founders=np.tile(self.founders, repeats))

    @property
    def variance(self) -> float:
        """The variance of the log evidence so far."""
        return self.start_variance + float((self.influence**2).sum())

    def finished(self) -> Sweep:
        """The result at β = 1, with a few states of each chain."""
        length = len(self.particles) // self.chains
        kept = np.unique(np.ceil(np.linspace(0, length, _KEPT + 1)).astype(int)[1:] - 1)
        rows = (kept[:, None] * self.chains + np.arange(self.chains)).ravel()
        points, founders = self.particles.points[rows], self.founders[rows]
        sd = max(np.sqrt(self.variance), 1 / len(self.particles))
        ess = ess_by_family(points, founders)
        draws = len(self.influence)
        return Sweep(self.chains, float(self.log_evidence), sd, points, ess, founders, draws, self.highest)

    def estimate(self, target: Target) -> Estimate:
        """The estimate before the end: importance weights r^(1 − β) of the particles, in one step.

        Particles at β need not have come to where the mass is at 1, and their weights do not show it. By thermodynamic
        integration log Z = log Z_β + ∫_β^1 E_t[log r] dt, which the largest r bounds; a third of the way to that bound
        is the least error.
        """
        log_weights = (1 - self.beta) * self.particles.log_ratio
        remark = f"A limit ended the tempering at the inverse temperature {self.beta:.2g}: the estimate is rough."
        by_weight = Estimate.from_weights(self.particles.points, log_weights, target.evaluations, "SMC", [remark])
        possible = max(by_weight.log_possible, float(log_weights.max(initial=-np.inf)))
        gap = (possible - by_weight.log_evidence) / 3 if possible > -np.inf else np.inf
        return replace(
            by_weight,
            log_evidence=by_weight.log_evidence + self.log_evidence,
            log_evidence_sd=float(np.sqrt(by_weight.log_evidence_sd**2 + self.variance + gap**2)),
            log_weight_mean=by_weight.log_weight_mean + self.log_evidence,
            log_weight_max=by_weight.log_weight_max + self.log_evidence,
            log_possible=possible + self.log_evidence,
            is_rough=True,
        )


class Raised(NamedTuple):
    """A sweep at the starts of its chains, and a resampled population with its founders, for the scales of moves."""

    sweep: SweepUnderWay
    reference: np.ndarray
    founders: np.ndarray


def resampled(log_weights: np.ndarray, n: int, rng: Generator) -> np.ndarray:
    """n indices by systematic resampling."""
    return systematic(np.exp(log_weights - logsumexp(log_weights)), n, rng)


def next_temperature(log_ratio: np.ndarray, beta: float, ladder: tuple[float, ...], share: float) -> float:
    """The next β of the ladder; where it has none or far too few particles would remain effective, a new one."""
    ratio = log_ratio[log_ratio > -np.inf]
    following = next((rung for rung in ladder if rung > beta), None)
    if following is not None and (not len(ratio) or _conditional_share((following - beta) * ratio) >= share / 3):
        return following
    if not len(ratio) or _conditional_share((1 - beta) * ratio) >= share:
        return 1.0
    low, high = 0.0, 1 - beta
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _conditional_share(middle * ratio) >= share else (low, middle)
    return min(max(beta + low, 1.01 * beta, 1e-12), 1.0)  # a minimal step, so that there is an end


def _conditional_share(log_weights: np.ndarray) -> float:
    return effective_sample_size(log_weights) / len(log_weights)


def ess_by_family(points: np.ndarray, founders: np.ndarray) -> float:
    """The effective sample size of equally weighted draws of which those with the same founder are dependent.

    With S_e the sum over a family of deviations from the mean, the mean has the variance Σ S_e² / n². F families of the
    same size, n²/Σ n_e² of unequal ones, are F − 1 observations of it, and a single family shows nothing. So
    `_IDENTICAL` are added of the variance that it has if the members of a family are all the same.
    """
    n = len(points)
    deviations = points - points.mean(axis=0)
    _, numbers, sizes = np.unique(founders, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), points.shape[1]))
    np.add.at(sums, numbers, deviations)
    families = n**2 / (sizes**2).sum()
    total, of_families = (deviations**2).sum(axis=0), (sums**2).sum(axis=0)
    of_families = (_IDENTICAL * total * n / families + families * of_families) / (_IDENTICAL + families - 1)
    return float(n * np.min(total / np.maximum(of_families, total), where=total > 0, initial=1.0))


# Several sweeps -------------------------------------------------------------------------------------------------------


def pooled(sweeps: tuple[Sweep, ...], target: Target, remarks: list[str]) -> Estimate:
    """The estimate by the mean of the evidences, weighted by the sizes of the sweeps."""
    log_evidence = _log_evidence(sweeps)
    if log_evidence == -np.inf:
        return Estimate.nothing(target.dim, target.evaluations, "SMC", remarks)
    points = np.concatenate([sweep.points for sweep in sweeps])
    logs = np.concatenate([np.full(len(sweep.points), sweep.log_evidence) for sweep in sweeps])
    # The stated variance is raised where the scatter is larger, the more the more sweeps there are.
    observed = len(sweeps) - 1
    correction = max((_STATED + observed * scatter(sweeps)) / (_STATED + observed), 1.0)
    sd = float(np.sqrt(_stated_variance(sweeps) / sum(sweep.size for sweep in sweeps) * correction))
    return Estimate.from_draws(
        points, logs, log_evidence, sd, target.evaluations, "SMC", ess=pooled_ess(sweeps), remarks=remarks
    )


def _log_evidence(sweeps: tuple[Sweep, ...]) -> float:
    if not sweeps:
        return -np.inf
    sizes = np.array([sweep.size for sweep in sweeps], float)
    return float(logsumexp([sweep.log_evidence for sweep in sweeps], b=sizes / sizes.sum()))


def _stated_variance(sweeps: tuple[Sweep, ...]) -> float:
    """The variance of log Ẑ by one particle according to the genealogies; that of a sweep is this over its size."""
    sizes = np.array([sweep.size for sweep in sweeps], float)
    variances = np.array([sweep.log_evidence_sd**2 for sweep in sweeps])
    return float((sizes**2 * variances).sum() / sizes.sum())


def scatter(sweeps: tuple[Sweep, ...]) -> float:
    """The mean squared deviation of the sweeps from their mean, in units of their stated variance."""
    log_evidence = _log_evidence(sweeps)
    if len(sweeps) < 2 or log_evidence == -np.inf:
        return 1.0
    sizes = np.array([sweep.size for sweep in sweeps], float)
    logs = np.array([sweep.log_evidence for sweep in sweeps]) - log_evidence
    deviations = np.where(logs > -np.inf, logs, -1.0)  # an evidence of zero is below the mean by all of it
    return float((sizes * deviations**2).sum() / _stated_variance(sweeps) / (len(sweeps) - 1))


def pooled_ess(sweeps: Sequence[Sweep]) -> float:
    """The effective sample size of the particles of several sweeps, weighted by their evidence."""
    found = [sweep for sweep in sweeps if sweep.ess > 0]
    logs = np.array([np.log(sweep.size) + sweep.log_evidence for sweep in found])
    shares = np.exp(logs - logsumexp(logs))
    return float(1 / (shares**2 / [sweep.ess for sweep in found]).sum())
