"""The tempered densities γ_β(x) = s(x) r(x)^β, from a start that can be sampled (β = 0) to the path (β = 1).

    from the prior:      s = prior, r = likelihood
    from a proposal q:   s = q,     r = γ/q,  so that γ_β = q^(1−β) γ^β

The first needs the prior probability of the path; the second serves where guards are rarely met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.linalg import solve_triangular
from scipy.special import logsumexp

from anabranch.conquer.elimination.target import Eliminated
from anabranch.conquer.kernel import StudentKernel
from anabranch.conquer.population import broad
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.target import Target
from anabranch.divide import Evaluation, PriorDraws

__all__ = ["MixedProposal", "Particles", "Tempering", "fitted"]


@dataclass(frozen=True)
class Particles:
    """Points with log s and log r; minus infinity where the point is outside."""

    points: np.ndarray
    log_start: np.ndarray
    log_ratio: np.ndarray

    def __len__(self) -> int:
        return len(self.points)

    def log_density(self, beta: float) -> np.ndarray:
        """log γ_β; at β = 0 also at points of zero likelihood."""
        return self.log_start + beta * self.log_ratio if beta > 0 else self.log_start

    def log_weights(self, step: float) -> np.ndarray:
        """log r^step, the weights of a step to a higher β; all the same without a step."""
        return step * self.log_ratio if step > 0 else np.zeros(len(self))

    @classmethod
    def joined(cls, parts: Sequence[Particles]) -> Particles:
        """The particles of several populations, one after the other."""
        return cls(
            np.concatenate([part.points for part in parts]),
            np.concatenate([part.log_start for part in parts]),
            np.concatenate([part.log_ratio for part in parts]),
        )

    def take(self, index: np.ndarray) -> Particles:
        return Particles(self.points[index], self.log_start[index], self.log_ratio[index])

    def replaced(self, by: Particles, where: np.ndarray) -> Particles:
        """With the particles of another population at some places."""
        return Particles(
            np.where(where[:, None], by.points, self.points),
            np.where(where, by.log_start, self.log_start),
            np.where(where, by.log_ratio, self.log_ratio),
        )


@dataclass(frozen=True)
class MixedProposal:
    """A mixture over the continuous coordinates, and independent rounded Student-t distributions for the discrete."""

    discrete: np.ndarray
    mixture: StudentMixture | None
    centres: np.ndarray
    kernel: StudentKernel

    def draw(self, n: int, rng: Generator) -> np.ndarray:
        points = np.empty((n, len(self.discrete)))
        if self.mixture is not None:
            points[:, ~self.discrete] = self.mixture.draw(n, rng)
        points[:, self.discrete] = self.kernel.draw(np.tile(self.centres, (n, 1)), rng)
        return points

    def log_density(self, points: np.ndarray) -> np.ndarray:
        whole = self.kernel.log_densities(points[:, self.discrete], self.centres).sum(axis=1)
        return whole if self.mixture is None else whole + self.mixture.log_density(points[:, ~self.discrete])

    def gradient(self, points: np.ndarray) -> np.ndarray:
        """The gradient of the log density, zero in discrete coordinates."""
        out = np.zeros_like(points)
        if self.mixture is not None:
            out[:, ~self.discrete] = _gradient(self.mixture, points[:, ~self.discrete])
        return out


@dataclass(frozen=True)
class Tempering:
    """The densities between a start, which is the prior or a proposal, and the target."""

    target: Target
    proposal: MixedProposal | None = None

    def draw(self, n: int, rng: Generator) -> PriorDraws:
        """At most n weighted draws from the start, and the log of its normaliser."""
        if self.proposal is None:
            return self.target.prior(n, rng)
        return PriorDraws(self.proposal.draw(n, rng), np.zeros(n), 0.0, 0.0, n)

    def at(self, points: np.ndarray) -> Particles:
        """The densities at these points."""
        return self._particles(points, self.target.evaluate(points))

    @property
    def blocked(self) -> Eliminated | None:
        """The target, if blocks of its discrete coordinates can be redrawn."""
        return self.target if isinstance(self.target, Eliminated) and self.target.others else None

    def redrawn(self, points: np.ndarray, beta: float, rng: Generator) -> tuple[Particles, np.ndarray]:
        """The points after blocked Gibbs moves, and the gain of the log density for which these are reversible."""
        assert self.blocked is not None
        moved, before = self.blocked.redraw(points, beta, rng)
        evaluation, after = self.blocked.tempered(moved, beta)
        with np.errstate(invalid="ignore"):
            return self._particles(moved, evaluation), after - before

    def differentiate(self, points: np.ndarray, beta: float) -> tuple[Particles, np.ndarray]:
        """The densities at these points, and the gradient of log γ_β."""
        if self.proposal is None:
            evaluation, gradient = self.target.differentiate(points, beta)
        else:
            evaluation, gradient = self.target.differentiate(points)
            gradient = (1 - beta) * self.proposal.gradient(points) + beta * gradient
        return self._particles(points, evaluation), gradient

    def _particles(self, points: np.ndarray, evaluation: Evaluation) -> Particles:
        if self.proposal is None:
            parts = (evaluation.log_prior, evaluation.log_likelihood)
            return Particles(points, *(np.where(evaluation.inside, part, -np.inf) for part in parts))
        log_start = self.proposal.log_density(points)
        return Particles(points, log_start, evaluation.log_density - log_start)


def fitted(points: np.ndarray, discrete: np.ndarray, mixture: StudentMixture | None = None) -> MixedProposal:
    """A proposal as wide as the points; its continuous part may be given."""
    whole, real = points[:, discrete], points[:, ~discrete]
    if mixture is None and real.shape[1]:
        mixture = broad(real)
    kernel = StudentKernel(np.maximum(1.5 * whole.std(axis=0), 0.5), np.ones(whole.shape[1], bool))
    return MixedProposal(discrete, mixture, np.rint(np.median(whole, axis=0)), kernel)


def _gradient(mixture: StudentMixture, points: np.ndarray) -> np.ndarray:
    """The gradient of the log density: −Σ_j p(j | x) (ν_j + d)/(ν_j + q_j) (R_j R_jᵀ)⁻¹ (x − m_j)."""
    logs, distances = mixture.log_parts(points)
    responsibility = np.exp(logs - logsumexp(logs, axis=1, keepdims=True))
    out = np.zeros_like(points)
    for j, (mean, scale_tril, df) in enumerate(zip(mixture.means, mixture.scale_trils, mixture.df, strict=True)):
        pull = (df + mixture.dim) / (df + distances[:, j]) if np.isfinite(df) else 1.0
        standard = solve_triangular(scale_tril, (points - mean).T, lower=True, check_finite=False)
        out -= (responsibility[:, j] * pull)[:, None] * solve_triangular(scale_tril.T, standard, check_finite=False).T
    return out
