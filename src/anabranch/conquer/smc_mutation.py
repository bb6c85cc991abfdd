"""The mutation step of SMC: Markov kernels that leave γ_β unchanged, over all chains at once.

Their scales come from the particles before the step: R is the Cholesky factor of the covariance of the continuous
coordinates. A particle must not set its own scales: in twenty dimensions, 512 particles that do lower log Ẑ by 0.4. So
each half of the chains has the scales and the differences of the other half, and relatives are in the same half.

    random walk    x' = x + s R ξ, the scale s adapted to an acceptance of 0.3 and different for each chain
    differences    x' = x + g (x_a − x_b) for a random pair of the other half (differential evolution; ter Braak, 2006);
                   g = 1, once in five times, jumps between modes
    singles        one or two coordinates alone, by steps of sizes over two and a half orders of magnitude
    mirror images  x' = x with the sign of one or two coordinates changed: coordinates that enter a density only through
                   products or squares have modes that are mirror images
    drawn anew     one coordinate of a density that jumps, from its distribution in the other half (`margin`): a place
                   of a jump may be anywhere else
    Hamiltonian    leapfrog in the coordinates R⁻¹x, the step adapted to an acceptance of 0.8; the number of leapfrog
                   steps is the one that forgets log r fastest for its cost
    discrete       one coordinate at a time: a step of geometric size up or down, or z' = z + z_a − z_b for a random
                   pair of the other half; both are symmetric
    blocks         finite discrete coordinates that could not be summed out with z are redrawn together by elimination,
                   given the others (`elimination.blocks`). This is reversible with respect to f_β = Σ_z prior lik^β,
                   and the move from x to x' is accepted with the probability min(1, γ_β(x') f_β(x) / γ_β(x) f_β(x')).
                   At β = 1 that is one, and it was 0.75 or more at all β on lattices of up to 16 × 16 spins

All states of a chain are kept (waste-free SMC; Dau and Chopin, 2022). Chains are moved until log r has forgotten its
start, and as many steps again; or until it forgets no more, as chains do that stay in their modes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.random import Generator

from anabranch.conquer.block_moves import BlockProposal
from anabranch.conquer.margin import Margin
from anabranch.conquer.ranks import average_ranks
from anabranch.conquer.smc_tempering import Particles, Tempering
from anabranch.conquer.student import safe_cholesky
from anabranch.limits import LimitReached

__all__ = ["Mutation", "Shape", "Tuning"]

_WALK_ACCEPTANCE, _LEAP_ACCEPTANCE = 0.3, 0.8
"""Rates of acceptance to which the random walk and the leapfrog are tuned."""
_MIN_MOVES = 8
"""States of a chain at one temperature, at least."""
_FORGOTTEN = 0.3
"""The correlation with the start below which it counts as forgotten."""
_PLATEAU = 0.05
"""The fall of that correlation over the second half of the steps below which more of them are in vain."""
_MAX_FORCE = 100.0
"""The norm at which forces are clipped, in units of R, so that no coordinate overflows."""
_LEAPS = np.array([1, 2, 4, 8, 16])
"""Numbers of leapfrog steps of a move."""

_BLOCK_MOVES = 3
"""Moves of whole blocks after each other move."""


@dataclass(frozen=True)
class Tuning:
    """Whether to use Hamiltonian moves, the scale of the random walk, the leapfrog step, for each number of leapfrog
    steps how much of log r was forgotten for each evaluation, and how often mirror images were accepted."""

    gradient: bool
    scale: float = 1.0
    step: float = 0.3
    gains: tuple[float, ...] = (np.inf,) * len(_LEAPS)
    mirrored: float = 0.0
    redrawn: float = 0.1


@dataclass(frozen=True)
class Shape:
    """The half of each chain (n,), and for each half R (2, d, d) and the points, both from the other half."""

    half: np.ndarray
    scale_trils: np.ndarray
    points: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, points: np.ndarray, founders: np.ndarray, half: np.ndarray, discrete: np.ndarray) -> Shape:
        """The shape by these particles, for chains in these halves; those with the same founder are in one half."""
        parts = points[founders % 2 == 1], points[founders % 2 == 0]
        if min(map(len, parts)) < 2:
            parts = points, points
        return cls(half, np.stack([_scale_tril(part[:, ~discrete]) for part in parts]), parts)

    def scaled(self, standard: np.ndarray) -> np.ndarray:
        """Shifts in units of R as shifts of the coordinates."""
        return np.where(self.half[:, None] == 0, standard @ self.scale_trils[0].T, standard @ self.scale_trils[1].T)

    @property
    def sd(self) -> np.ndarray:
        """The standard deviation of each continuous coordinate, for each chain."""
        sds = np.sqrt((self.scale_trils**2).sum(axis=2))
        return np.where(self.half[:, None] == 0, sds[0], sds[1])

    @cached_property
    def margins(self) -> tuple[list[Margin], list[Margin]]:
        """For each half the distribution of each coordinate of the other."""
        one, other = ([Margin.of(column) for column in part.T] for part in self.points)
        return one, other

    def force(self, gradient: np.ndarray) -> np.ndarray:
        """The gradient in units of R, clipped: the leapfrog stays reversible with any function of the position."""
        gradient = np.nan_to_num(gradient, posinf=0.0, neginf=0.0)
        force = np.where(self.half[:, None] == 0, gradient @ self.scale_trils[0], gradient @ self.scale_trils[1])
        size = np.sqrt((force**2).sum(axis=1, keepdims=True))
        return force * np.minimum(1.0, _MAX_FORCE / np.maximum(size, 1e-300))

    def others(self, rng: Generator) -> np.ndarray:
        """For each chain a random particle of the other half."""
        drawn = [part[rng.integers(len(part), size=len(self.half))] for part in self.points]
        return np.where(self.half[:, None] == 0, *drawn)


@dataclass(frozen=True)
class Mutation:
    """The kernels at one inverse temperature β."""

    tempering: Tempering
    beta: float
    shape: Shape
    blocks: tuple[tuple[BlockProposal, BlockProposal], ...] = ()

    def run(self, start: Particles, tuning: Tuning, max_moves: int, rng: Generator) -> tuple[Particles, Tuning, bool]:
        """All states of the chains, step by step, the tuning, and whether all moves were made before a limit."""
        states, correlations, enough = [start], [1.0], max_moves
        try:
            for done in range(1, max_moves):
                if done >= enough:
                    break
                following, tuning = self._moved(states[-1], tuning, rng)
                states.append(following)
                correlations.append(_correlation(start, following))
                if enough == max_moves and correlations[-1] < _FORGOTTEN:
                    enough = min(max(2 * (done + 1), _MIN_MOVES), max_moves)
                if done >= _MIN_MOVES + 2 and correlations[done // 2] - correlations[-1] < _PLATEAU:
                    enough = min(enough, done + 1)
        except LimitReached:
            return Particles.joined(states), tuning, False
        return Particles.joined(states), tuning, True

    def prolonged(
        self, start: Particles, tuning: Tuning, evaluations: int, rng: Generator
    ) -> tuple[list[Particles], Tuning]:
        """States of the chains after each of so many moves as take about these evaluations."""
        end, states = self.tempering.target.evaluations + evaluations, [start]
        while self.tempering.target.evaluations < end or len(states) < 2:
            following, tuning = self._moved(states[-1], tuning, rng)
            states.append(following)
        return states[1:], tuning

    def _moved(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning]:
        """The chains after one move of the continuous coordinates, and of each discrete one."""
        discrete = self.tempering.target.discrete
        if not discrete.all():
            move = self._leap if tuning.gradient and rng.uniform() < 0.75 else self._walk
            if self.tempering.target.climbable is False and rng.uniform() < 0.5:
                move = self._redraw
            particles, tuning = move(particles, tuning, rng)
            if rng.uniform() < max(10 * tuning.mirrored, 0.1):
                particles, tuning = self._mirror(particles, tuning, rng)
            for _ in range(_BLOCK_MOVES if self.blocks else 0):
                if rng.uniform() < max(10 * tuning.redrawn, 0.1):
                    particles, tuning = self._redraw_block(particles, tuning, rng)
        stepped, blocked = discrete, self.tempering.blocked
        if blocked is not None:
            stepped = discrete & ~blocked.redrawn
            tried, gain = self.tempering.redrawn(particles.points, self.beta, rng)
            particles = particles.replaced(tried, self._accepted(tried, particles, gain, rng))
        for column in rng.permutation(np.flatnonzero(stepped)):
            particles = self._step(particles, column, rng)
        return particles, tuning

    def _walk(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning]:
        """A random walk, a difference of particles, or a step of a few coordinates: a third of the chains each."""
        real = ~self.tempering.target.discrete
        n, d = len(particles), int(real.sum())
        sizes = 2.38 / np.sqrt(d) * tuning.scale * np.exp(0.7 * rng.standard_normal((n, 1)))
        walk = self.shape.scaled(sizes * rng.standard_normal((n, d)))
        factor = 2.38 / np.sqrt(2 * d) * np.exp(0.5 * rng.standard_normal((n, 1)))
        factor = np.where(rng.uniform(size=(n, 1)) < 0.2, 1.0, factor)
        difference = factor * (self.shape.others(rng) - self.shape.others(rng))[:, real] + 1e-3 * walk
        # A few coordinates, by steps of very different sizes: for what has no common scale, such as places of jumps.
        few = rng.uniform(size=(n, d)) < np.where(rng.uniform(size=(n, 1)) < 0.5, 1.0, 2.0) / d
        single = few * self.shape.sd * 10 ** rng.uniform(-2.0, 0.5, (n, 1)) * rng.standard_normal((n, d))
        kind = rng.uniform(size=n)
        walks = kind < 0.35
        shift = np.where(walks[:, None], walk, np.where((kind < 0.65)[:, None], difference, single))
        points = particles.points.copy()
        points[:, real] += shift
        tried = self.tempering.at(points)
        accepted = self._accepted(tried, particles, 0.0, rng)
        excess = accepted[walks].mean() - _WALK_ACCEPTANCE if walks.any() else 0.0
        scale = float(np.clip(tuning.scale * np.exp(0.5 * excess), 1e-6, 10.0))
        return particles.replaced(tried, accepted), replace(tuning, scale=scale)

    def _redraw(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning]:
        """One continuous coordinate drawn anew."""
        chosen = rng.choice(np.flatnonzero(~self.tempering.target.discrete), size=len(particles))
        points, loss = particles.points.copy(), np.zeros(len(particles))
        for half, margins in enumerate(self.shape.margins):
            for column in np.unique(chosen):
                rows = np.flatnonzero((self.shape.half == half) & (chosen == column))
                drawn, margin = margins[column].draw(len(rows), rng), margins[column]
                loss[rows] = margin.log_density(drawn) - margin.log_density(points[rows, column])
                points[rows, column] = drawn
        tried = self.tempering.at(points)
        return particles.replaced(tried, self._accepted(tried, particles, loss, rng)), tuning

    def _mirror(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning]:
        """The sign of one continuous coordinate changed, and, every second time, of another one."""
        columns = np.flatnonzero(~self.tempering.target.discrete)
        n, rows = len(particles), np.arange(len(particles))
        first, second = rng.choice(columns, size=n), rng.choice(columns, size=n)
        points = particles.points.copy()
        points[rows, first] *= -1
        points[rows, second] *= np.where((rng.uniform(size=n) < 0.5) & (first != second), -1, 1)
        tried = self.tempering.at(points)
        accepted = self._accepted(tried, particles, 0.0, rng)
        mirrored = 0.8 * tuning.mirrored + 0.2 * float(accepted.mean())
        return particles.replaced(tried, accepted), replace(tuning, mirrored=mirrored)

    def _redraw_block(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning]:
        """One whole block of exchangeable ones drawn anew (`block_moves`)."""
        halves = self.blocks[rng.integers(len(self.blocks))]
        points, loss = particles.points.copy(), np.full(len(particles), np.inf)
        for half, proposal in enumerate(halves):
            rows = np.flatnonzero(self.shape.half == half)
            if not len(rows):
                continue
            moved = proposal.redrawn(points[rows], rng)
            points[rows] = self.tempering.target.arranged(moved.points)
            loss[rows] = np.where(moved.possible, moved.loss, np.inf)
        tried = self.tempering.at(points)
        accepted = self._accepted(tried, particles, loss, rng)
        redrawn = 0.8 * tuning.redrawn + 0.2 * float(accepted.mean())
        return particles.replaced(tried, accepted), replace(tuning, redrawn=redrawn)

    def _leap(self, particles: Particles, tuning: Tuning, rng: Generator) -> tuple[Particles, Tuning]:
        step, noise = tuning.step, rng.standard_normal(particles.points.shape)
        number = _number_of_leaps(tuning, rng)
        tried, gradient = self.tempering.differentiate(particles.points, self.beta)
        momentum, shift = noise, np.zeros_like(noise)
        for _ in range(_LEAPS[number]):
            momentum = momentum + step / 2 * self.shape.force(gradient)
            shift = shift + step * momentum
            tried, gradient = self.tempering.differentiate(particles.points + self.shape.scaled(shift), self.beta)
            momentum = momentum + step / 2 * self.shape.force(gradient)
        kinetic = 0.5 * ((momentum**2).sum(axis=1) - (noise**2).sum(axis=1))
        accepted = self._accepted(tried, particles, kinetic, rng)
        moved = particles.replaced(tried, accepted)
        step = float(np.clip(step * np.exp(0.5 * (accepted.mean() - _LEAP_ACCEPTANCE)), 1e-4, 1.5))
        gain = (1 - _correlation(particles, moved)) / (1 + _LEAPS[number])
        before = tuning.gains[number]
        gains = list(tuning.gains)
        gains[number] = gain if np.isinf(before) else 0.8 * before + 0.2 * gain
        return moved, replace(tuning, step=step, gains=tuple(gains))

    def _step(self, particles: Particles, column: int, rng: Generator) -> Particles:
        n = len(particles)
        one, other = self.shape.others(rng)[:, column], self.shape.others(rng)[:, column]
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


def _number_of_leaps(tuning: Tuning, rng: Generator) -> int:
    """The place in `_LEAPS` of the best number so far, or, one time in four, of any: those not tried come first."""
    return int(rng.integers(len(_LEAPS))) if rng.uniform() < 0.25 else int(np.argmax(tuning.gains))


def _correlation(one: Particles, other: Particles) -> float:
    """The rank correlation of log r between two states of the chains; zero where it does not vary."""
    if not (np.ptp(one.log_ratio) > 0 and np.ptp(other.log_ratio) > 0):
        return 0.0
    return float(np.corrcoef(average_ranks(one.log_ratio), average_ranks(other.log_ratio))[0, 1])


def _scale_tril(points: np.ndarray) -> np.ndarray:
    """The Cholesky factor of the covariance, which is shrunk to its diagonal where points are few."""
    n, d = points.shape
    if not d:
        return np.zeros((0, 0))
    covariance = np.atleast_2d(np.cov(points.T))
    diagonal = np.diag(np.maximum(np.diag(covariance), 1e-24))
    trust = n / (n + 2 * d)
    return safe_cholesky(trust * covariance + (1 - trust) * diagonal)
