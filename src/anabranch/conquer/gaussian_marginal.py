"""The density of a path without the coordinates that are Gaussian given the others.

Where log γ(x, b) is quadratic in the coordinates b, whatever the others, x, are (`divide.quadratic`), as in regressions
with unknown noise and in hierarchical models, they are integrated out:

    log γ(x) = log ∫ γ(x, b) db = log γ(x, m) + ½ log det(2π Λ⁻¹),

with the mean m and the precision Λ of b given x, which follow from values of log γ (`differences`), exactly but for
rounding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.random import Generator

from anabranch.conquer.differences import difference_steps, quadratics
from anabranch.conquer.target import Target
from anabranch.divide import quadratic_columns
from anabranch.limits import LimitReached, checkpoint

__all__ = ["Frame", "GaussianMarginal", "gaussian_marginal"]

_ROWS = 8_192
"""Points of the path that are evaluated at once."""
_BLOCKS_ON_HOST = 2
"""Blocks of that size up to which nothing is compiled: by their number, so that a visit does not depend on others."""
_REFINEMENTS, _ROUGH, _LOST = 3, 1e-8, 1e-2
"""How often differences are taken again, the error for rounding from which on they are, and the one from which on
nothing is known of a density, which is taken for zero: there a scale is so small that differences drown."""
_ROUNDING, _LARGEST, _SMALLEST, _TINY = 1e-15, 1e100, 1e-14, 1e-300
"""The relative error of a value; the largest value; the least precision over the largest; and the least precision."""
_PROBES = 16
"""Points at which the conditional distribution must be proper."""


class MarginalEvaluation(NamedTuple):
    """log ∫ γ db and log ∫ prior db at each point."""

    log_density: np.ndarray
    log_prior: np.ndarray


class Gaussians(NamedTuple):
    """Quadratic functions of b as Gaussians, one for each row, in steps of a scale from a centre.

    Attributes:
        log_integral: log ∫; minus infinity of what is zero somewhere.
        mean: the mean.
        root: a root L of the covariance, L Lᵀ.
        error: a bound of the error of log ∫ for rounding, in nats; NaN where the precision is not positive, and
            rounding is not the reason.
    """

    log_integral: np.ndarray
    mean: np.ndarray
    root: np.ndarray
    error: np.ndarray


def gaussian_marginal(target: Target, max_dim: int, max_gaussian: int, rng: Generator) -> GaussianMarginal | None:
    """The density of a path without its Gaussian coordinates, if there are at most `max_gaussian` of them and at most
    `max_dim` others."""
    if target.is_marginal or target.discrete.any():
        return None
    columns = quadratic_columns(target.path)
    others = target.dim - len(columns)
    if not 0 < len(columns) <= max_gaussian or not 0 < others <= max_dim:
        return None
    probes = np.concatenate([target.known, target.prior(_PROBES, rng).points])[-_PROBES:]
    marginal = GaussianMarginal(target, Frame(columns, np.zeros(len(columns)), np.eye(len(columns))))
    frame = marginal.recentred(probes) if len(probes) else None
    return None if frame is None else GaussianMarginal(target, frame)


@dataclass(frozen=True)
class Frame:
    """Which columns of a path are integrated out, and the centre and the scale of the steps in them."""

    integrated: np.ndarray
    centre: np.ndarray
    scale: np.ndarray


class GaussianMarginal:
    """The density of a path with Gaussian coordinates integrated out; made by `gaussian_marginal`, or from a frame.

    Attributes:
        target: the density of the path.
        integrated: the columns of the path that are integrated out.
        columns: the others.
    """

    def __init__(self, target: Target, frame: Frame) -> None:
        self.target, self.frame, self.integrated = target, frame, frame.integrated
        self.columns = np.setdiff1d(np.arange(target.path.dim), self.integrated)
        self._centre, self._scale = frame.centre, frame.scale
        self._steps = difference_steps(len(self.integrated))

    @property
    def dim(self) -> int:
        """Coordinates that are left."""
        return len(self.columns)

    @property
    def terms(self) -> int:
        """Evaluations of the density of the path for one of this one."""
        return len(self._steps)

    def recentred(self, rows: np.ndarray) -> Frame | None:
        """The frame of the posterior of b at the best of these points of the path; None if b is not Gaussian at one."""
        prior, total = self._fitted(rows[:, self.columns])
        fits = np.isfinite(total.log_integral) & np.isfinite(prior.log_integral)
        if not fits.any() or (np.isnan(total.log_integral) | np.isnan(prior.log_integral)).any():
            return None
        best = int(np.argmax(np.where(fits, total.log_integral, -np.inf)))
        centre = self._centre + self._scale @ total.mean[best]
        return Frame(self.integrated, centre, self._scale @ total.root[best])

    def prior(self, n: int, rng: Generator) -> np.ndarray:
        """Draws from the prior of the coordinates that are left."""
        draws = self.target.path.prior(n, seed=int(rng.integers(2**31)), columns=self.columns)
        return draws.points[:, self.columns]

    @property
    def known(self) -> np.ndarray:
        """The executions that found the path."""
        return self.target.known[:, self.columns]

    def evaluate(self, points: np.ndarray) -> MarginalEvaluation:
        """The density and the prior at each point; each counts as one evaluation."""
        checkpoint()
        if len(points) > self.target.left:
            raise LimitReached
        prior, total = self._fitted(points)
        self.target.charge(len(points))
        is_lost = ~(prior.log_integral > -np.inf) & ~np.isnan(prior.log_integral)
        log_density = np.where(is_lost, -np.inf, total.log_integral)
        with np.errstate(invalid="ignore"):
            likelihood = np.nan_to_num(log_density - prior.log_integral, nan=-np.inf, posinf=-np.inf)
        account = self.target.account
        account.best_likelihood = max(account.best_likelihood, float(likelihood.max(initial=-np.inf)))
        return MarginalEvaluation(log_density, prior.log_integral)

    def complete(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        """The points in the coordinates of the path: those integrated out are drawn given the others."""
        if not len(points):
            return np.zeros((0, self.target.path.dim))
        _, total = self._fitted(points)
        noise = rng.standard_normal((len(points), len(self.integrated)))
        steps = total.mean + np.einsum("nij,nj->ni", total.root, noise)
        return self._rows(points, self._centre + steps @ self._scale.T)

    # The integrals ------------------------------------------------------------------------------------------------

    def _rows(self, points: np.ndarray, values: np.ndarray) -> np.ndarray:
        out = np.zeros((len(points), self.target.path.dim))
        out[:, self.columns], out[:, self.integrated] = points, values
        return out

    def _fitted(self, points: np.ndarray) -> tuple[Gaussians, Gaussians]:
        """The prior and the density as Gaussians of b at each point, in steps of the scale from the centre."""
        at_once = max(_ROWS // self.terms, 1)
        starts = range(0, max(len(points), 1), at_once)
        blocks = [self._fitted_block(points[i : i + at_once], len(starts) > _BLOCKS_ON_HOST) for i in starts]
        prior, total = zip(*blocks, strict=True)
        return _joined(prior), _joined(total)

    def _fitted_block(self, points: np.ndarray, compile: bool) -> tuple[Gaussians, Gaussians]:
        """The same. Where rounding matters, as for a mean far from the centre or strong correlations, differences are
        taken again around the mean found, in steps of the root of the covariance found."""
        prior, total = self._differenced(points, self._centre + np.zeros((len(points), 1)), self._scale[None], compile)
        to_steps = np.linalg.inv(self._scale).T
        for _ in range(_REFINEMENTS):
            rough = np.flatnonzero(total.error >= _ROUGH)
            if not len(rough):
                break
            mean, root = total.mean[rough], total.root[rough]
            centre = self._centre + mean @ self._scale.T
            again = self._differenced(points[rough], centre, self._scale @ root, compile)
            for whole, part in zip((prior, total), again, strict=True):
                # In steps so small, what is not positive is so for rounding, of b itself.
                whole.log_integral[rough], whole.error[rough] = part.log_integral, np.nan_to_num(part.error, nan=np.inf)
                whole.mean[rough] = (centre - self._centre) @ to_steps + np.einsum("nij,nj->ni", root, part.mean)
                whole.root[rough] = root @ part.root
        for gaussians in (prior, total):
            gaussians.log_integral[gaussians.error > _LOST] = -np.inf
            gaussians.log_integral[np.isnan(gaussians.error)] = np.nan
        return prior, total

    def _differenced(
        self, points: np.ndarray, centre: np.ndarray, scale: np.ndarray, compile: bool
    ) -> tuple[Gaussians, Gaussians]:
        """The same, in steps of these scales from these centres; of a scale there may be one for all points."""
        steps = centre[:, None] + self._steps @ np.swapaxes(scale, -1, -2)
        rows = self._rows(np.repeat(points, self.terms, axis=0), steps.reshape(-1, len(self.integrated)))
        evaluation = self.target.path.evaluate(rows, compile=compile, count=False)
        parts = evaluation.log_prior, evaluation.log_density
        return _gaussians(parts[0].reshape(-1, self.terms), scale), _gaussians(parts[1].reshape(-1, self.terms), scale)


def _gaussians(values: np.ndarray, scale: np.ndarray) -> Gaussians:
    """Quadratic functions from their values at the steps, rows of `values`; `scale` has one matrix for each or for all.

    A precision that is not positive up to rounding is taken for a small one.
    """
    size = scale.shape[-1]
    finite = (np.abs(values) < _LARGEST).all(axis=1)
    values = np.where(finite[:, None], values, 0.0)
    top, gradient, precision = quadratics(values, size)
    eigenvalues, vectors = np.linalg.eigh(np.where(finite[:, None, None], precision, np.eye(size)))
    least = np.maximum(_SMALLEST * eigenvalues[:, -1], _TINY)
    precisions = np.maximum(eigenvalues, least[:, None])
    root = vectors / np.sqrt(precisions)[:, None, :]
    half = np.einsum("nij,ni->nj", root, gradient)
    rise = (half**2).sum(axis=1)
    log_volume = 0.5 * size * np.log(2 * np.pi) + np.linalg.slogdet(scale)[1]
    log_integral = top + 0.5 * (rise - np.log(precisions).sum(axis=1)) + log_volume
    mean = np.einsum("nij,nj->ni", root, half)
    noise = _ROUNDING * size * (1 + np.abs(values).max(axis=1))
    error = noise * (1 + (size + rise) / precisions[:, 0])
    error = np.where(eigenvalues[:, 0] > 0, error, np.where(-eigenvalues[:, 0] <= 100 * noise, np.inf, np.nan))
    return Gaussians(np.where(finite, log_integral, -np.inf), mean, root, np.where(finite, error, 0.0))


def _joined(parts: Iterable[Gaussians]) -> Gaussians:
    return Gaussians(*(np.concatenate(each) for each in zip(*parts, strict=True)))
