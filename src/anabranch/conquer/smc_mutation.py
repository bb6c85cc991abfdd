"""The mutation step of SMC: Markov kernels that leave γ_β unchanged, over all particles at once.

Their scales come from the particles before the step: R is the Cholesky factor of the covariance of the continuous
coordinates, and discrete coordinates move by differences between particles. A particle must not set its own scales: in
twenty dimensions, 512 particles that do lower log Ẑ by 0.4. So each half of the particles has the scales of the other
half, and relatives are in the same half.

    random walk    x' = x + s R ξ, the scale s adapted to an acceptance of 0.3 and different for each particle
    Hamiltonian    leapfrog in the coordinates R⁻¹x over about a quarter of a period, the step adapted to 0.9, since
                   particles that are rejected stay in the tails and bias Ẑ
    discrete       one coordinate at a time: a step of geometric size up or down, or z' = z + z_a − z_b for a random
                   pair of the other half; both are symmetric

Moves continue until the particles have travelled, in units of R, the width of the target: Σ |R⁻¹(x' − x)|² ≥ d.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.smc_tempering import Particles, Tempering
from anabranch.conquer.student import safe_cholesky
from anabranch.limits import LimitReached

__all__ = ["Mutation", "Shape", "Tuning"]

_WALK_ACCEPTANCE, _LEAP_ACCEPTANCE = 0.3, 0.9
"""Rates of acceptance to which the random walk and the leapfrog are tuned."""
_MIN_DISCRETE = 4
"""Moves of each discrete coordinate."""
_MAX_FORCE = 100.0
"""The norm at which forces are clipped, in units of R, so that no coordinate overflows."""
_MAX_LEAPS = 24
"""Leapfrog steps of a move."""


@dataclass(frozen=True)
class Tuning:
    """Whether to use Hamiltonian moves, the scale of the random walk, and the leapfrog step."""

    gradient: bool
    scale: float = 1.0
    step: float = 0.5


@dataclass(frozen=True)
class Shape:
    """The half of each particle (n,), and for each half R (2, d, d) and the points, both from the other half."""

    half: np.ndarray
    scale_trils: np.ndarray
    points: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, points: np.ndarray, founders: np.ndarray, discrete: np.ndarray) -> Shape:
        """The shape by these particles; those with the same founder are in the same half."""
        half = founders % 2
        parts = points[half == 1], points[half == 0]
        if min(map(len, parts)) < 2:
            parts = points, points
        return cls(half, np.stack([_scale_tril(part[:, ~discrete]) for part in parts]), parts)

    def scaled(self, standard: np.ndarray) -> np.ndarray:
        """Shifts in units of R as shifts of the coordinates."""
        return np.where(self.half[:, None] == 0, standard @ self.scale_trils[0].T, standard @ self.scale_trils[1].T)

    def force(self, gradient: np.ndarray) -> np.ndarray:
        """The gradient in units of R, clipped: the leapfrog stays reversible with any function of the position."""
        gradient = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        force = np.where(self.half[:, None] == 0, gradient @ self.scale_trils[0], gradient @ self.scale_trils[1])
        size = np.sqrt((force**2).sum(axis=1, keepdims=True))
        return force * np.minimum(1.0, _MAX_FORCE / np.maximum(size, 1e-300))

    def others(self, column: int, rng: Generator) -> np.ndarray:
        """For each particle the value of a column at a random particle of the other half."""
        drawn = [part[rng.integers(len(part), size=len(self.half)), column] for part in self.points]
        return np.where(self.half == 0, *drawn)


@dataclass(frozen=True)
class Mutation:
    """The kernels at one inverse temperature β."""

    tempering: Tempering
    beta: float
    shape: Shape

    def run(
        self, particles: Particles, tuning: Tuning, max_moves: int, rng: Generator
    ) -> tuple[Particles, Tuning, bool]:
        """The particles after moves, the tuning, and whether all moves were made before a limit of the run."""
        discrete = self.tempering.target.discrete
        whole, real = np.flatnonzero(discrete), int((~discrete).sum())
        travelled, continuous = 0.0, self._leap if tuning.gradient else self._walk
        try:
            for done in range(max_moves):
                if travelled >= real and (not len(whole) or done >= _MIN_DISCRETE):
                    break
                if real:
                    particles, tuning, distance = continuous(particles, tuning, rng)
                    travelled += distance
                for column in rng.permutation(whole):
                    particles = self._step(particles, column, rng)
        except LimitReached:
            return particles, tuning, False
        return particles, tuning, True

    def _walk(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning, float]:
        real = ~self.tempering.target.discrete
        n, d = len(particles), int(real.sum())
        sizes = 2.38 / np.sqrt(d) * tuning.scale * np.exp(0.5 * rng.standard_normal((n, 1)))
        shift = sizes * rng.standard_normal((n, d))
        points = particles.points.copy()
        points[:, real] += self.shape.scaled(shift)
        tried = self.tempering.at(points)
        accepted = self._accepted(tried, particles, 0.0, rng)
        scale = float(np.clip(tuning.scale * np.exp(accepted.mean() - _WALK_ACCEPTANCE), 1e-4, 10.0))
        return particles.replaced(tried, accepted), replace(tuning, scale=scale), _distance(shift, accepted)

    def _leap(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning, float]:
        step, noise = tuning.step, rng.standard_normal(particles.points.shape)
        leaps = int(np.clip(np.rint(rng.uniform(0.6, 1.4) * np.pi / 2 / step), 1, _MAX_LEAPS))
        tried, gradient = self.tempering.differentiate(particles.points, self.beta)
        momentum, shift = noise, np.zeros_like(noise)
        for _ in range(leaps):
            momentum = momentum + step / 2 * self.shape.force(gradient)
            shift = shift + step * momentum
            tried, gradient = self.tempering.differentiate(particles.points + self.shape.scaled(shift), self.beta)
            momentum = momentum + step / 2 * self.shape.force(gradient)
        kinetic = 0.5 * ((momentum**2).sum(axis=1) - (noise**2).sum(axis=1))
        accepted = self._accepted(tried, particles, kinetic, rng)
        step = float(np.clip(step * np.exp(accepted.mean() - _LEAP_ACCEPTANCE), 1e-3, 1.5))
        return particles.replaced(tried, accepted), replace(tuning, step=step), _distance(shift, accepted)

    def _step(self, particles: Particles, column: int, rng: Generator) -> Particles:
        n = len(particles)
        one, other = self.shape.others(column, rng), self.shape.others(column, rng)
        sizes = rng.geometric(1 / (1 + one.std()), size=n) * rng.choice([-1.0, 1.0], size=n)
        points = particles.points.copy()
        points[:, column] += np.where((rng.uniform(size=n) < 0.5) & (one != other), one - other, sizes)
        tried = self.tempering.at(points)
        return particles.replaced(tried, self._accepted(tried, particles, 0.0, rng))

    def _accepted(self, tried: Particles, particles: Particles, loss: float | np.ndarray, rng: Generator) -> np.ndarray:
        """Metropolis' rule. Points outside are never accepted, not even from outside."""
        there, here = tried.log_density(self.beta), particles.log_density(self.beta)
        with np.errstate(invalid="ignore"):
            return (np.log(rng.uniform(size=len(there))) < there - here - loss) & (there > -np.inf)


def _distance(shift: np.ndarray, accepted: np.ndarray) -> float:
    """The mean squared distance travelled, in units of R."""
    return float((accepted * (shift**2).sum(axis=1)).mean())


def _scale_tril(points: np.ndarray) -> np.ndarray:
    """The Cholesky factor of the covariance, which is shrunk to its diagonal where points are few."""
    n, d = points.shape
    if not d:
        return np.zeros((0, 0))
    covariance = np.atleast_2d(np.cov(points.T))
    diagonal = np.diag(np.maximum(np.diag(covariance), 1e-12))
    trust = n / (n + 2 * d)
    return safe_cholesky(trust * covariance + (1 - trust) * diagonal)
