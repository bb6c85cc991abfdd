"""The moves between two temperatures: Markov kernels that leave γ_β unchanged, over a whole population at once.

They are shaped by the population itself, as it was before the first of them: by the covariance of its continuous
coordinates, whose root R makes them of unit scale, and by differences between particles for the discrete ones. A
particle must not shape its own moves: in twenty dimensions, 512 particles that do lower log Ẑ by 0.4. So each half of
the population is moved as the other half says, and relatives are in the same half.

    random walk    x' = x + s R ξ, the scale s adapted to an acceptance of 0.3 and different for each particle
    Hamiltonian    leapfrog in the coordinates R⁻¹x over about a quarter of a period, the step adapted to 0.9:
                   what is rejected is stuck in the tails, and a population that keeps it there misstates Z
    discrete       one coordinate at a time: a step of geometric size up or down, or z' = z + z_a − z_b for a random
                   pair of the other half; both are symmetric

Moves go on until the particles have travelled, in units of R, as far as the target is wide: Σ |R⁻¹(x' − x)|² ≥ d.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anabranch.conquer.smc_bridge import Bridge, Particles
from anabranch.conquer.student import root_of
from anabranch.limits import LimitReached

__all__ = ["Moves", "Shape", "Tuning"]

_WALK_ACCEPTANCE, _LEAP_ACCEPTANCE = 0.3, 0.9
_FEWEST_DISCRETE = 4
_STRONGEST_FORCE = 100.0
_MOST_LEAPS = 24


@dataclass(frozen=True)
class Tuning:
    """What the moves have learned: the scale of the random walk and the step of the leapfrog.

    `gradient` says whether the continuous coordinates move by Hamiltonian dynamics.
    """

    gradient: bool
    scale: float = 1.0
    step: float = 0.5


@dataclass(frozen=True)
class Shape:
    """What each half of the population tells the other: half (n,), roots (2, d, d) by the half they serve, and points
    (one array for each half that they serve)."""

    half: np.ndarray
    roots: np.ndarray
    points: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, points: np.ndarray, founders: np.ndarray, discrete: np.ndarray) -> Shape:
        """The shape of a population; particles with the same founder are in the same half."""
        half = founders % 2
        parts = points[half == 1], points[half == 0]
        if min(map(len, parts)) < 2:
            parts = points, points
        return cls(half, np.stack([_root(part[:, ~discrete]) for part in parts]), parts)

    def scaled(self, standard: np.ndarray) -> np.ndarray:
        """Shifts in units of R as shifts of the coordinates."""
        return np.where(self.half[:, None] == 0, standard @ self.roots[0].T, standard @ self.roots[1].T)

    def force(self, gradient: np.ndarray) -> np.ndarray:
        """The gradient in units of R. A bounded force is still a function of the place alone, so the leapfrog stays
        reversible; and it throws no particle to where numbers overflow."""
        gradient = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        force = np.where(self.half[:, None] == 0, gradient @ self.roots[0], gradient @ self.roots[1])
        size = np.sqrt((force**2).sum(axis=1, keepdims=True))
        return force * np.minimum(1.0, _STRONGEST_FORCE / np.maximum(size, 1e-300))

    def others(self, column: int, rng: np.random.Generator) -> np.ndarray:
        """For each particle the value of a column at a random particle of the other half."""
        drawn = [part[rng.integers(len(part), size=len(self.half)), column] for part in self.points]
        return np.where(self.half == 0, *drawn)


@dataclass(frozen=True)
class Moves:
    """The kernels at one temperature."""

    bridge: Bridge
    beta: float
    shape: Shape

    def run(
        self, particles: Particles, tuning: Tuning, most: int, rng: np.random.Generator
    ) -> tuple[Particles, Tuning, bool]:
        """Move the particles until they have nearly forgotten where they were, at most so many times.

        The last says whether they have: a limit of the run may come before. Each move by itself leaves γ_β unchanged,
        so that those made by then count.
        """
        discrete = self.bridge.target.discrete
        whole, real = np.flatnonzero(discrete), int((~discrete).sum())
        travelled, continuous = 0.0, self._leap if tuning.gradient else self._walk
        try:
            for done in range(most):
                if travelled >= real and (not len(whole) or done >= _FEWEST_DISCRETE):
                    break
                if real:
                    particles, tuning, distance = continuous(particles, tuning, rng)
                    travelled += distance
                for column in rng.permutation(whole):
                    particles = self._step(particles, column, rng)
        except LimitReached:
            return particles, tuning, False
        return particles, tuning, True

    def _walk(self, particles: Particles, tuning: Tuning, rng: np.random.Generator) -> tuple[Particles, Tuning, float]:
        real = ~self.bridge.target.discrete
        n, d = len(particles), int(real.sum())
        sizes = 2.38 / np.sqrt(d) * tuning.scale * np.exp(0.5 * rng.standard_normal((n, 1)))
        shift = sizes * rng.standard_normal((n, d))
        points = particles.points.copy()
        points[:, real] += self.shape.scaled(shift)
        tried = self.bridge.at(points)
        accepted = self._accepted(tried, particles, 0.0, rng)
        scale = float(np.clip(tuning.scale * np.exp(accepted.mean() - _WALK_ACCEPTANCE), 1e-4, 10.0))
        return particles.replaced(tried, accepted), replace(tuning, scale=scale), _distance(shift, accepted)

    def _leap(self, particles: Particles, tuning: Tuning, rng: np.random.Generator) -> tuple[Particles, Tuning, float]:
        step, noise = tuning.step, rng.standard_normal(particles.points.shape)
        leaps = int(np.clip(np.rint(rng.uniform(0.6, 1.4) * np.pi / 2 / step), 1, _MOST_LEAPS))
        tried, gradient = self.bridge.differentiate(particles.points, self.beta)
        momentum, shift = noise, np.zeros_like(noise)
        for _ in range(leaps):
            momentum = momentum + step / 2 * self.shape.force(gradient)
            shift = shift + step * momentum
            tried, gradient = self.bridge.differentiate(particles.points + self.shape.scaled(shift), self.beta)
            momentum = momentum + step / 2 * self.shape.force(gradient)
        kinetic = 0.5 * ((momentum**2).sum(axis=1) - (noise**2).sum(axis=1))
        accepted = self._accepted(tried, particles, kinetic, rng)
        step = float(np.clip(step * np.exp(accepted.mean() - _LEAP_ACCEPTANCE), 1e-3, 1.5))
        return particles.replaced(tried, accepted), replace(tuning, step=step), _distance(shift, accepted)

    def _step(self, particles: Particles, column: int, rng: np.random.Generator) -> Particles:
        n = len(particles)
        one, other = self.shape.others(column, rng), self.shape.others(column, rng)
        sizes = rng.geometric(1 / (1 + one.std()), size=n) * rng.choice([-1.0, 1.0], size=n)
        points = particles.points.copy()
        points[:, column] += np.where((rng.uniform(size=n) < 0.5) & (one != other), one - other, sizes)
        tried = self.bridge.at(points)
        return particles.replaced(tried, self._accepted(tried, particles, 0.0, rng))

    def _accepted(
        self, tried: Particles, particles: Particles, loss: float | np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """Metropolis. What is outside is never accepted, not even from outside."""
        there, here = tried.log_density(self.beta), particles.log_density(self.beta)
        with np.errstate(invalid="ignore"):
            return (np.log(rng.uniform(size=len(there))) < there - here - loss) & (there > -np.inf)


def _distance(shift: np.ndarray, accepted: np.ndarray) -> float:
    """The mean squared distance travelled, in units of R."""
    return float((accepted * (shift**2).sum(axis=1)).mean())


def _root(points: np.ndarray) -> np.ndarray:
    """A root of the covariance, drawn to its diagonal by so much as there are too few points to say."""
    n, d = points.shape
    if not d:
        return np.zeros((0, 0))
    covariance = np.atleast_2d(np.cov(points.T))
    diagonal = np.diag(np.maximum(np.diag(covariance), 1e-12))
    trust = n / (n + 2 * d)
    return root_of(trust * covariance + (1 - trust) * diagonal)
