"""Mixtures of multivariate Student-t distributions: the proposals of importance sampling.

A component with mean m, scale matrix R Rᵀ (R is its Cholesky factor, `scale_tril`) and ν degrees of freedom has density

    t(x) = c |R|⁻¹ (1 + q/ν)^(−(ν+d)/2),  q = |R⁻¹(x − m)|²,  c = Γ((ν+d)/2) / (Γ(ν/2) (νπ)^(d/2)),

the normal density where ν is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from scipy.special import gammaln

__all__ = ["DF", "StudentMixture", "safe_cholesky"]

DF = 5.0
"""Degrees of freedom of proposals whose tails are not fitted: fewer waste draws, more risk weights without variance."""
_DIAGONAL_UNTIL = 10.0
"""Effective points for each dimension at which half of a scale that is shrunk to its diagonal is its own."""


@dataclass(frozen=True)
class StudentMixture:
    """Components with means (m, d), Cholesky factors of their scale matrices (m, d, d), shares (m,) that sum to one,
    and degrees of freedom (m,)."""

    means: np.ndarray
    scale_trils: np.ndarray
    shares: np.ndarray
    df: np.ndarray

    @classmethod
    def single(cls, mean: np.ndarray, scale_tril: np.ndarray, df: float) -> StudentMixture:
        """One component."""
        return cls(mean[None], scale_tril[None], np.ones(1), np.array([df]))

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    def __len__(self) -> int:
        return len(self.means)

    def draw(self, n: int, rng: Generator) -> np.ndarray:
        """n independent draws: not stratified, since then the scatter of the weights would overstate their error."""
        component = np.minimum(np.searchsorted(np.cumsum(self.shares), rng.uniform(size=n)), len(self) - 1)
        noise = rng.standard_normal((n, self.dim))
        df = self.df[component]
        finite = np.isfinite(df)
        noise[finite] *= np.sqrt(df[finite] / rng.chisquare(df[finite]))[:, None]
        out = np.empty((n, self.dim))
        for j in np.unique(component):
            chosen = component == j
            out[chosen] = self.means[j] + noise[chosen] @ self.scale_trils[j].T
        return out

    def log_parts(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log(share · density) of each component at each point, and the squared distances q: both (n, m)."""
        distances = np.empty((len(points), len(self)))
        for j, (mean, inverse) in enumerate(zip(self.means, np.linalg.inv(self.scale_trils), strict=True)):
            standard = (points - mean) @ inverse.T
            distances[:, j] = np.einsum("nd,nd->n", standard, standard)
        d, finite, df = self.dim, np.isfinite(self.df), np.where(np.isfinite(self.df), self.df, 1.0)
        tails = gammaln((df + d) / 2) - gammaln(df / 2) - 0.5 * d * np.log(df * np.pi)
        constants = np.where(finite, tails, -0.5 * d * np.log(2 * np.pi))
        with np.errstate(divide="ignore"):
            constants = constants + np.log(self.shares)
        constants -= np.log(np.einsum("mdd->md", self.scale_trils)).sum(axis=1)
        logs = constants + np.where(finite, -0.5 * (df + d) * np.log1p(distances / df), -0.5 * distances)
        return logs, distances

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """The log density of the mixture at each point."""
        return _log_sum(self.log_parts(points)[0])[:, 0]

    def reshared(self, points: np.ndarray, weights: np.ndarray, former: float) -> StudentMixture:
        """The same components with the shares that weighted draws of this mixture have; the former share of each counts
        as so many draws."""
        of_points, _ = self._responsibilities(points)
        return replace(self, shares=self._shares(of_points, weights, former))

    def refitted(
        self,
        points: np.ndarray,
        weights: np.ndarray,
        former: float = 0.0,
        min_share: float = 1e-3,
        to_diagonal: bool = False,
    ) -> StudentMixture:
        """One step of expectation maximisation on weighted points; components far below an even share, and below
        `min_share`, are dropped.

        Where the points are draws of this mixture, the `former` mean and share of a component count as so many draws:
        of many components each has few, and those without a heavy one among them are not to be lost.

        Scales are shrunk towards the former ones, or, `to_diagonal`, to their own diagonals: for points that are few
        for their dimensions, and whose coordinates hardly depend on each other within a component.
        """
        of_points, distances = self._responsibilities(points)
        responsibilities = of_points * (weights / weights.sum())[:, None]
        total, shares = responsibilities.sum(axis=0), self._shares(of_points, weights, former)
        alive = np.flatnonzero((shares > min(min_share, 0.1 / len(self))) & (total > 0))
        means, scale_trils = [], []
        for j in alive:
            df, responsibility = self.df[j], responsibilities[:, j]
            each = responsibility * ((df + self.dim) / (df + distances[:, j]) if np.isfinite(df) else 1.0)
            effective = total[j] ** 2 / (responsibility**2).sum()
            mean = (effective * (each @ points / each.sum()) + former * self.means[j]) / (effective + former)
            centred = points - mean
            # Shrunk towards the former scale: a component with fewer effective points than parameters would collapse,
            # and with not many more, its scale would be noise.
            scatter = (centred * each[:, None]).T @ centred / total[j]
            former_scale = self.scale_trils[j] @ self.scale_trils[j].T
            if to_diagonal:
                trust = effective / (effective + _DIAGONAL_UNTIL * self.dim)
                of_own = effective / (effective + _DIAGONAL_UNTIL)
                shrunk = np.diag(of_own * np.diag(scatter) + (1 - of_own) * np.diag(former_scale))
            else:
                trust = effective / (effective + 2 * self.dim * max(1.0, 10 * self.dim / effective))
                shrunk = former_scale
            scale = trust * scatter + (1 - trust) * shrunk
            means.append(mean)
            scale_trils.append(safe_cholesky(scale))
        shares = shares[alive] / shares[alive].sum()
        return StudentMixture(np.array(means), np.array(scale_trils), shares, self.df[alive])

    def _responsibilities(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The probability of each component given each point, and the squared distances: both (n, m)."""
        logs, distances = self.log_parts(points)
        return np.exp(logs - _log_sum(logs)), distances

    def _shares(self, responsibilities: np.ndarray, weights: np.ndarray, former: float) -> np.ndarray:
        total, drawn = (weights / weights.sum()) @ responsibilities, responsibilities.sum(axis=0)
        shares = (total * drawn + self.shares * former) / np.maximum(drawn + former, 1e-300)
        return shares / shares.sum()

    @property
    def scales(self) -> np.ndarray:
        """The scale of the first component along each coordinate."""
        return np.sqrt(np.einsum("ij,ij->i", self.scale_trils[0], self.scale_trils[0]))

    def joined(self, other: StudentMixture, share: float) -> StudentMixture:
        """The components of both; those of the other get this share."""
        return StudentMixture(
            np.concatenate([self.means, other.means]),
            np.concatenate([self.scale_trils, other.scale_trils]),
            np.concatenate([self.shares * (1 - share), other.shares * share]),
            np.concatenate([self.df, other.df]),
        )

    def with_df(self, df: float) -> StudentMixture:
        """The same means and scales with other degrees of freedom."""
        return replace(self, df=np.full(len(self), df))


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log Σ exp over each row, as a column; SciPy's takes a millisecond to start."""
    top = logs.max(axis=1, keepdims=True)
    return top + np.log(np.exp(logs - top).sum(axis=1, keepdims=True))


def safe_cholesky(scale: np.ndarray) -> np.ndarray:
    """The Cholesky factor of a scale matrix; one that is not positive definite is made so."""
    scale = 0.5 * (scale + scale.T)
    try:
        return np.linalg.cholesky(scale)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scale)
        values = np.maximum(values, max(values.max(), 1e-300) * 1e-10)
        return np.linalg.cholesky((vectors * values) @ vectors.T)
