"""Mixtures of multivariate Student-t distributions: what importance sampling proposes from.

A component with mean m, root R (R Rᵀ is its scale matrix) and ν degrees of freedom has the density

    t(x) = c |R|⁻¹ (1 + q/ν)^(−(ν+d)/2),  q = |R⁻¹(x − m)|²,  c = Γ((ν+d)/2) / (Γ(ν/2) (νπ)^(d/2)),

the normal density where ν is infinite.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaln

__all__ = ["StudentMixture", "root_of"]


@dataclass(frozen=True)
class StudentMixture:
    """Components with means (m, d), lower triangular roots (m, d, d), shares (m,) that sum to one, and degrees of
    freedom (m,)."""

    means: np.ndarray
    roots: np.ndarray
    shares: np.ndarray
    freedom: np.ndarray

    @property
    def dim(self) -> int:
        return self.means.shape[1]

    def __len__(self) -> int:
        return len(self.means)

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """n independent draws: not stratified, since then the scatter of the weights would overstate their error."""
        component = np.minimum(np.searchsorted(np.cumsum(self.shares), rng.uniform(size=n)), len(self) - 1)
        noise = rng.standard_normal((n, self.dim))
        freedom = self.freedom[component]
        finite = np.isfinite(freedom)
        scale = np.ones(n)
        scale[finite] = np.sqrt(freedom[finite] / rng.chisquare(freedom[finite]))
        noise *= scale[:, None]
        out = np.empty((n, self.dim))
        for j in np.unique(component):
            chosen = component == j
            out[chosen] = self.means[j] + noise[chosen] @ self.roots[j].T
        return out

    def log_parts(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log(share · density) of each component at each point, and the squared distances q: both (n, m)."""
        d = self.dim
        distances = np.empty((len(points), len(self)))
        logs = np.empty_like(distances)
        with np.errstate(divide="ignore"):
            shares = np.log(self.shares)
        for j, (mean, root, freedom) in enumerate(zip(self.means, self.roots, self.freedom, strict=True)):
            standard = (points - mean) @ np.linalg.inv(root).T
            distances[:, j] = q = np.einsum("nd,nd->n", standard, standard)
            volume = np.log(np.diag(root)).sum()
            if np.isfinite(freedom):
                constant = gammaln((freedom + d) / 2) - gammaln(freedom / 2) - 0.5 * d * np.log(freedom * np.pi)
                logs[:, j] = constant - 0.5 * (freedom + d) * np.log1p(q / freedom)
            else:
                logs[:, j] = -0.5 * (q + d * np.log(2 * np.pi))
            logs[:, j] += shares[j] - volume
        return logs, distances

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """The log density of the mixture at each point."""
        return _log_sum(self.log_parts(points)[0])[:, 0]

    def refitted(self, points: np.ndarray, weights: np.ndarray, least: float = 1e-3) -> StudentMixture:
        """One step of expectation maximisation towards weighted points; components with a share below `least` go."""
        logs, distances = self.log_parts(points)
        duty = np.exp(logs - _log_sum(logs)) * (weights / weights.sum())[:, None]
        total = duty.sum(axis=0)
        alive = np.flatnonzero(total > least)
        means, roots = [], []
        for j in alive:
            freedom = self.freedom[j]
            pull = (freedom + self.dim) / (freedom + distances[:, j]) if np.isfinite(freedom) else 1.0
            each = duty[:, j] * pull
            mean = each @ points / each.sum()
            centred = points - mean
            # Towards the scale that it had, by so much as there are too few points to say: a share of a component
            # that rests on fewer effective points than it has parameters would else collapse onto them.
            effective = duty[:, j].sum() ** 2 / (duty[:, j] ** 2).sum()
            trust = effective / (effective + 2 * self.dim)
            scatter = (centred * each[:, None]).T @ centred / total[j]
            scale = trust * scatter + (1 - trust) * self.roots[j] @ self.roots[j].T
            means.append(mean)
            roots.append(root_of(scale))
        shares = total[alive] / total[alive].sum()
        return StudentMixture(np.array(means), np.array(roots), shares, self.freedom[alive])

    @property
    def spread(self) -> np.ndarray:
        """The scale of the first component along each coordinate."""
        return np.sqrt(np.einsum("ij,ij->i", self.roots[0], self.roots[0]))

    def joined(self, other: StudentMixture, share: float) -> StudentMixture:
        """The components of both, this share going to those of the other."""
        return StudentMixture(
            np.concatenate([self.means, other.means]),
            np.concatenate([self.roots, other.roots]),
            np.concatenate([self.shares * (1 - share), other.shares * share]),
            np.concatenate([self.freedom, other.freedom]),
        )

    def with_component(self, mean: np.ndarray, root: np.ndarray, share: float, freedom: float) -> StudentMixture:
        """The mixture with one more component, which takes this share from the others."""
        return StudentMixture(
            np.concatenate([self.means, mean[None]]),
            np.concatenate([self.roots, root[None]]),
            np.append(self.shares * (1 - share), share),
            np.append(self.freedom, freedom),
        )

    def with_freedom(self, freedom: float) -> StudentMixture:
        """The same means and scales with other tails."""
        return replace(self, freedom=np.full(len(self), freedom))


def _log_sum(logs: np.ndarray) -> np.ndarray:
    """log Σ exp over each row, as a column: all that is needed of SciPy's, which takes a millisecond to start."""
    top = logs.max(axis=1, keepdims=True)
    return top + np.log(np.exp(logs - top).sum(axis=1, keepdims=True))


def root_of(scale: np.ndarray) -> np.ndarray:
    """The lower triangular root of a scale matrix; one that is not positive definite is made so."""
    scale = 0.5 * (scale + scale.T)
    try:
        return np.linalg.cholesky(scale)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scale)
        values = np.maximum(values, max(values.max(), 1e-300) * 1e-10)
        return np.linalg.cholesky((vectors * values) @ vectors.T)
