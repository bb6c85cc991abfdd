"""The sequence of densities that tempering follows: γ_β(x) = s(x) r(x)^β, from a start that can be drawn from (β = 0)
to the density of the path (β = 1).

    from the prior:      s = prior, r = likelihood
    from a proposal q:   s = q,     r = γ/q,  so that γ_β = q^(1−β) γ^β

The first needs the prior probability of the path; the second does not, so it serves where guards are rarely met.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from anabranch.conquer.kernel import StudentKernel
from anabranch.conquer.population import broad
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.target import Target
from anabranch.divide import Evaluation

__all__ = ["Bridge", "FittedProposal", "FromPrior", "FromProposal", "Particles", "Start", "fitted"]


@dataclass(frozen=True)
class Particles:
    """Points with log s and log r; minus infinity where the point is outside."""

    points: np.ndarray
    log_start: np.ndarray
    log_ratio: np.ndarray

    def __len__(self) -> int:
        return len(self.points)

    def log_density(self, beta: float) -> np.ndarray:
        """log γ_β. At β = 0 a point of zero likelihood still counts."""
        return self.log_start + beta * self.log_ratio if beta > 0 else self.log_start

    def take(self, index: np.ndarray) -> Particles:
        return Particles(self.points[index], self.log_start[index], self.log_ratio[index])

    def replaced(self, by: Particles, where: np.ndarray) -> Particles:
        """Those of another population at some places."""
        return Particles(
            np.where(where[:, None], by.points, self.points),
            np.where(where, by.log_start, self.log_start),
            np.where(where, by.log_ratio, self.log_ratio),
        )


@dataclass(frozen=True)
class Start:
    """Weighted draws from s, and the log of its normaliser with a standard error."""

    points: np.ndarray
    log_weights: np.ndarray
    log_evidence: float
    log_evidence_sd: float


class Bridge(Protocol):
    """A start, and the way from there to the density of the target."""

    @property
    def target(self) -> Target: ...

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        """At most n draws from the start."""

    def at(self, points: np.ndarray) -> Particles:
        """Both densities at these points."""

    def differentiate(self, points: np.ndarray, beta: float) -> tuple[Particles, np.ndarray]:
        """The same and the gradient of log γ_β."""


@dataclass(frozen=True)
class FromPrior:
    """The bridge whose ratio is the likelihood."""

    target: Target

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        draws = self.target.prior(n, rng)
        return Start(draws.points, draws.log_weights, draws.log_probability, draws.log_probability_sd)

    def at(self, points: np.ndarray) -> Particles:
        return self._particles(points, self.target.evaluate(points))

    def differentiate(self, points: np.ndarray, beta: float) -> tuple[Particles, np.ndarray]:
        evaluation, gradient = self.target.differentiate(points, beta)
        return self._particles(points, evaluation), gradient

    @staticmethod
    def _particles(points: np.ndarray, evaluation: Evaluation) -> Particles:
        parts = (evaluation.log_prior, evaluation.log_likelihood)
        return Particles(points, *(np.where(evaluation.inside, part, -np.inf) for part in parts))


@dataclass(frozen=True)
class FittedProposal:
    """A mixture over the continuous coordinates, and independent rounded ones around centres for the discrete."""

    discrete: np.ndarray
    mixture: StudentMixture | None
    centres: np.ndarray
    kernel: StudentKernel

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        points = np.empty((n, len(self.discrete)))
        if self.mixture is not None:
            points[:, ~self.discrete] = self.mixture.draw(n, rng)
        points[:, self.discrete] = self.kernel.draw(np.tile(self.centres, (n, 1)), rng)
        return points

    def log_density(self, points: np.ndarray) -> np.ndarray:
        whole = self.kernel.log_densities(points[:, self.discrete], self.centres).sum(axis=1)
        return whole if self.mixture is None else whole + self.mixture.log_density(points[:, ~self.discrete])

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """Of the log density, zero in discrete coordinates."""
        out = np.zeros_like(points)
        if self.mixture is not None:
            out[:, ~self.discrete] = _gradient(self.mixture, points[:, ~self.discrete])
        return out


@dataclass(frozen=True)
class FromProposal:
    """The bridge from a normalised proposal."""

    target: Target
    proposal: FittedProposal

    def draw(self, n: int, rng: np.random.Generator) -> Start:
        return Start(self.proposal.draw(n, rng), np.zeros(n), 0.0, 0.0)

    def at(self, points: np.ndarray) -> Particles:
        return self._particles(points, self.target.evaluate(points))

    def differentiate(self, points: np.ndarray, beta: float) -> tuple[Particles, np.ndarray]:
        evaluation, gradient = self.target.differentiate(points)
        start = (1 - beta) * self.proposal.gradient(points)
        return self._particles(points, evaluation), start + beta * gradient

    def _particles(self, points: np.ndarray, evaluation: Evaluation) -> Particles:
        log_start = self.proposal.log_density(points)
        return Particles(points, log_start, evaluation.log_density - log_start)


def fitted(points: np.ndarray, discrete: np.ndarray, mixture: StudentMixture | None = None) -> FittedProposal:
    """A proposal as wide as the points; its continuous part may be given."""
    whole, real = points[:, discrete], points[:, ~discrete]
    if mixture is None and real.shape[1]:
        mixture = broad(real)
    kernel = StudentKernel(np.maximum(1.5 * whole.std(axis=0), 0.5), np.ones(whole.shape[1], bool))
    return FittedProposal(discrete, mixture, np.rint(np.median(whole, axis=0)), kernel)


def _gradient(mixture: StudentMixture, points: np.ndarray) -> np.ndarray:
    """Of the log density: −Σ_j p(j | x) (ν_j + d)/(ν_j + q_j) (R_j R_jᵀ)⁻¹ (x − m_j)."""
    logs, distances = mixture.log_parts(points)
    duty = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    out = np.zeros_like(points)
    for j, (mean, root, freedom) in enumerate(zip(mixture.means, mixture.roots, mixture.freedom, strict=True)):
        pull = (freedom + mixture.dim) / (freedom + distances[:, j]) if np.isfinite(freedom) else 1.0
        standard = solve_triangular(root, (points - mean).T, lower=True, check_finite=False)
        out -= (duty[:, j] * pull)[:, None] * solve_triangular(root.T, standard, check_finite=False).T
    return out
