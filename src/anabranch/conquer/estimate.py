"""The estimate of one path: evidence, error, draws and diagnostics (paper, sections 4.2 and 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.conquer.weights import effective_sample_size, extrapolated_log_mean, log_mean, pareto_k, relative_sd

__all__ = ["MAX_PARETO_K", "MAX_R_HAT", "MAX_SD", "MIN_ESS", "Estimate"]

MIN_ESS = 100
"""Effective sample size below which an estimate is unreliable."""
MAX_PARETO_K = 0.7
"""Pareto k above which the mean of importance weights is unreliable (Vehtari et al., 2024)."""
LARGE_ESS = 1_000
"""Effective sample size from which on a heavy tail makes the error uncertain, but hides no mass."""
MAX_SD = 0.5
"""Standard error of the log evidence above which an estimate says little of the mass that a path may have."""
MAX_R_HAT = 1.1
"""R-hat above which chains have not converged to the same distribution."""
ROUNDING = 1e-6
"""Standard error of the log evidence up to which it is that of rounding alone."""
PRIOR = "Prior"
"""The method of estimates from prior draws."""


def weights_are_trusted(ess: float, pareto_k: float) -> bool:
    """Whether importance weights with these diagnostics have probably found the mass."""
    return ess >= MIN_ESS and (ess >= LARGE_ESS or not pareto_k > MAX_PARETO_K)


def heavy_tailed(sd: float, pareto_k: float, ess: float) -> float:
    """The error of weights whose tail is heavy, which their scatter understates.

    From k = 1/2 on they have no variance, and the error of the mean of n falls as n^(k − 1), more slowly than n^(−1/2).
    The scatter of those drawn shows some of it: the error is larger by n^((k − 1/2)/2) with the effective n, and four
    times as large at most.
    """
    return sd * min(max(ess, 1.0) ** ((pareto_k - 0.5) / 2), 4.0) if pareto_k > 0.5 else sd


@dataclass(frozen=True)
class Estimate:
    """An estimate of one path: its evidence with an error, and weighted draws from its posterior.

    Attributes:
        log_evidence: log Ẑ_k, the prior probability of the path included; minus infinity where no mass was found. Of a
            method that gives no evidence, the log of the path's share of the posterior.
        log_evidence_sd: its Monte Carlo standard error, that is the relative error of Ẑ_k; zero, or that of rounding,
            where it is exact, infinite where no mass was found.
        points: draws, rows of the path's coordinates.
        log_weights: log of their normalised weights.
        ess: their effective sample size.
        weight_sd: standard deviation of a single weight relative to Ẑ_k, σ_k in the paper's appendix F.
        log_weight_mean, log_weight_sd, log_weight_max: moments of the log of the unnormalised weights that are not
            zero, for the exploration term of the paper's allocation rule.
        pareto_k: shape of the tail of the weights; NaN where they are none or too few.
        r_hat: the largest split R-hat over the coordinates, NaN where there are no chains.
        evaluations: points at which the density, or the density with its gradient, was computed.
        method: the name of the strategy.
        remarks: sentences for the user, which are warnings.
        notes: sentences that are none.
        log_possible: log of the evidence that the path may have by extrapolation of the weights where the diagnostics
            are poor (`is_trusted`); otherwise `log_evidence`.
        is_confirmed: False while another method is still to be asked (`Auto`).
        is_rough: True where a limit ended a method before its end: the error may be larger than it says.
        is_final: True where the error is that of a rule of integration, which more draws leave as it is.
        correction: by how much asking it has changed the log evidence; NaN where none was asked.
        tail: a bound of the mass that sums over discrete variables leave out, relative to Ẑ_k (`elimination.windows`).
        blocks: for each draw, the number of its independent block: a chain, a run, or the draw itself. Paths share the
            numbers, since a chain may visit many. None where the path was solved by itself.
    """

    log_evidence: float
    log_evidence_sd: float
    points: np.ndarray
    log_weights: np.ndarray
    ess: float
    weight_sd: float
    log_weight_mean: float
    log_weight_sd: float
    log_weight_max: float
    pareto_k: float
    evaluations: int
    method: str
    r_hat: float = np.nan
    remarks: tuple[str, ...] = ()
    blocks: np.ndarray | None = None
    log_possible: float = -np.inf
    is_confirmed: bool = True
    is_rough: bool = False
    correction: float = np.nan
    tail: float = 0.0
    notes: tuple[str, ...] = ()
    is_final: bool = False

    @property
    def has_exact_evidence(self) -> bool:
        """Whether the evidence is exact, up to rounding or what the method allows: no visit can improve on it."""
        return self.log_evidence_sd <= ROUNDING or (self.is_final and self.is_confirmed)

    @property
    def is_informative(self) -> bool:
        """Whether mass was found, or it is exact that there is none."""
        return self.log_evidence > -np.inf or self.has_exact_evidence

    @property
    def is_of_prior(self) -> bool:
        """Whether it comes from a few prior draws alone (`prior_sampling`)."""
        return self.method == PRIOR

    @property
    def is_trusted(self) -> bool:
        """Whether the diagnostics are good: enough effective draws, a light tail, a small error, chains that agree."""
        if self.has_exact_evidence:
            return True
        is_precise = self.log_evidence_sd <= MAX_SD and not self.r_hat > MAX_R_HAT
        return is_precise and weights_are_trusted(self.ess, self.pareto_k)

    @classmethod
    def nothing(cls, dim: int, evaluations: int, method: str, remarks: Sequence[str] = ()) -> Estimate:
        """No point of positive density was found."""
        empty = np.zeros((0, dim))
        moments = (-np.inf, 0.0, -np.inf)
        return cls(-np.inf, np.inf, empty, np.zeros(0), 0.0, np.inf, *moments, np.nan, evaluations, method,
                   remarks=tuple(remarks))  # fmt: skip

    @classmethod
    def from_weights(
        cls, points: np.ndarray, log_weights: np.ndarray, evaluations: int, method: str, remarks: Sequence[str] = ()
    ) -> Estimate:
        """By importance sampling: independent draws with weights γ_k/q, whose mean is Ẑ_k."""
        kept = log_weights > -np.inf
        if not kept.any():
            return cls.nothing(points.shape[1], evaluations, method, remarks)
        log_z, sd, logs = log_mean(log_weights), relative_sd(log_weights), log_weights[kept]
        ess, k = effective_sample_size(logs), pareto_k(log_weights)
        possible = log_z
        if not weights_are_trusted(ess, k):
            # With a heavy tail the relative error falls as n^−(1−k), from k = 1 on not at all (Vehtari et al., 2024).
            slow_error = max(ess, 1.0) ** -(1 - min(k, 1.0)) if k > MAX_PARETO_K else 0.0
            possible = max(log_z + np.log1p(slow_error), extrapolated_log_mean(log_weights))
        n = len(log_weights)
        return cls(
            log_evidence=log_z, log_evidence_sd=sd / np.sqrt(n - 1) if n > 1 else np.inf,
            points=points[kept], log_weights=logs - log_z - np.log(n), ess=ess, weight_sd=sd,
            log_weight_mean=float(logs.mean()), log_weight_sd=float(logs.std()), log_weight_max=float(logs.max()),
            pareto_k=k, evaluations=evaluations, method=method, remarks=tuple(remarks), log_possible=float(possible),
        )  # fmt: skip

    @classmethod
    def from_draws(
        cls,
        points: np.ndarray,
        log_weights: np.ndarray,
        log_evidence: float,
        log_evidence_sd: float,
        evaluations: int,
        method: str,
        *,
        ess: float | None = None,
        pareto_k: float = np.nan,
        r_hat: float = np.nan,
        remarks: Sequence[str] = (),
        blocks: np.ndarray | None = None,
    ) -> Estimate:
        """By a method whose evidence is not the mean of its weights: chains, tempering, enumeration."""
        kept = log_weights > -np.inf
        size = max(int(kept.sum()), 1)
        weight_sd = log_evidence_sd * np.sqrt(size)
        return cls(
            log_evidence=log_evidence, log_evidence_sd=log_evidence_sd,
            points=points if kept.all() else points[kept],  # the same array as that of the state
            log_weights=log_weights[kept] - log_mean(log_weights[kept]) - np.log(size),
            ess=effective_sample_size(log_weights) if ess is None else ess, weight_sd=weight_sd,
            log_weight_mean=log_evidence, log_weight_sd=weight_sd, log_weight_max=log_evidence,
            pareto_k=pareto_k, r_hat=r_hat, evaluations=evaluations, method=method, remarks=tuple(remarks),
            blocks=None if blocks is None else blocks[kept],
            log_possible=log_evidence + 3 * log_evidence_sd if np.isfinite(log_evidence_sd) else log_evidence,
        )  # fmt: skip
