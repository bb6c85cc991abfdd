"""Splitting: the prior probability of conditions that prior draws hardly ever meet, and draws that meet them.

Adaptive multilevel splitting (Cérou and Guyader, 2007), also known as subset simulation (Au and Beck, 2001). With a
score of every execution (`guarded_prior`) and levels s_1 < s_2 < … up to the score of those that meet all conditions,

    P(all conditions) = Π_j P(score ≥ s_j | score ≥ s_{j−1}).

Each level is the score that a share of the particles has; these are resampled, and moved by Metropolis steps on the
prior among the executions with at least that score. A run with n particles has Var log P̂ = Σ_j (1 − p_j)/(n p_j) if the
moves forget where they began. They do not quite: three times as much is stated, and at least the scatter of the runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.divide.guarded_prior import GuardedPrior, Particles, joined
from anabranch.limits import checkpoint
from anabranch.settings import check, finite, share, whole

__all__ = ["Split", "Splitting", "Start", "pooled"]

_STALLED, _LEAST_GAIN = 3, 0.02
"""Levels in a row that close less than this share of the distance, after which a condition counts as never met."""
_STEPS_PER_COORDINATE = 2
_CORRELATED = 3.0
"""The variance in units of that of independent particles, as found with one to ten sites."""
_ACCEPTED = 0.3
"""The share of steps that should be accepted."""


@dataclass(frozen=True)
class Split:
    """Draws that meet the conditions, as points; the log probability of these and its variance. No draws: the
    conditions were not met."""

    points: np.ndarray
    log_probability: float
    variance: float
    evaluations: int


@dataclass(frozen=True)
class Start:
    """Where a run begins: values of some sites, as a run before has left them, and the log probability of that."""

    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    log_probability: float = 0.0

    def drawn(self, prior: GuardedPrior, n: int, seed: int, rng: Generator) -> tuple[Particles, float, float]:
        """Particles with equal weights, the log probability of what they have in common, and its variance."""
        if not self.values:
            particles = prior.draw(n, seed)
            log_probability, variance = _weighed(particles)
            if variance > 0 and log_probability > -np.inf:
                particles = particles.take(_systematic(particles.log_mass, rng))
            return particles, log_probability, variance
        size = len(next(iter(self.values.values())))
        rows = rng.permutation(np.arange(max(n, size)) % size)[:n]
        known = {name: value[rows] for name, value in self.values.items()}
        return prior.draw(n, seed, known), self.log_probability, 0.0


@dataclass
class Run:
    """A run under way: its particles, the log probability of its level and the variance of that; how many levels in a
    row were hardly higher than the one before; and whether it has met all conditions, or never will."""

    particles: Particles
    log_probability: float
    variance: float
    level: tuple[int, float] = (0, -np.inf)
    stalled: int = 0
    evaluations: int = 0
    is_met: bool = False
    is_lost: bool = False
    is_to_move: bool = False

    def __post_init__(self) -> None:
        self.evaluations, self.is_lost = len(self.particles), self.log_probability == -np.inf

    @property
    def is_over(self) -> bool:
        return self.is_met or self.is_lost

    @property
    def split(self) -> Split:
        if self.is_lost:
            return Split(self.particles.points[:0], -np.inf, np.inf, self.evaluations)
        return Split(self.particles.points, self.log_probability, self.variance, self.evaluations)


@dataclass(frozen=True)
class Splitting:
    """How executions are led to conditions that are hardly ever met.

    Args:
        particles: executions of a run; more have a smaller error, and cost more.
        steps: Metropolis steps at each level, and two more for each coordinate; more make the particles independent,
            and cost more.
        survivors: the share of the particles that meets the next level; more take more levels, each with less error.
        least_log_probability: where a run gives up; less finds rarer executions.
    """

    particles: int = 1_000
    steps: int = 10
    survivors: float = 0.4
    least_log_probability: float = -60.0

    def __post_init__(self) -> None:
        check(self, particles=whole(8), steps=whole(1), survivors=share(zero=False, one=False),
              least_log_probability=finite())  # fmt: skip

    def run(self, prior: GuardedPrior, seed: int, start: Start | None = None, number: int = 1) -> list[Split]:
        """Several independent runs at once, from the prior or from where another has ended."""
        rng = np.random.default_rng((seed, 3))
        runs = [Run(*(start or Start()).drawn(prior, self.particles, seed + i, rng)) for i in range(number)]
        while moving := [run for run in runs if not run.is_over]:
            checkpoint()
            for run in moving:
                self._raise(prior, run, rng)
            self._move(prior, [run for run in moving if run.is_to_move], rng)
        return [run.split for run in runs]

    def _raise(self, prior: GuardedPrior, run: Run, rng: Generator) -> None:
        """Choose the next level of a run, and resample the particles that reach it."""
        particles, n, before = run.particles, len(run.particles), run.level
        run.is_met = bool((particles.met == len(prior.guards)).mean() >= self.survivors)
        run.level = (len(prior.guards), 0.0) if run.is_met else self._next_level(particles)
        kept = np.flatnonzero(_reaches(particles, run.level))
        p = len(kept) / n
        run.log_probability += np.log(p)
        run.variance += _CORRELATED * (1 - p) / (n * p)
        is_near = run.level[0] == before[0] and run.level[1] - before[1] < -_LEAST_GAIN * run.level[1]
        run.stalled = run.stalled + 1 if is_near and np.isfinite(before[1]) else 0
        is_rare = run.log_probability < self.least_log_probability
        run.is_lost = not run.is_met and (p == 1 or is_rare or run.stalled == _STALLED)
        run.is_to_move = p < 1 and not run.is_lost
        if run.is_to_move:
            run.particles = particles.take(rng.permutation(kept[np.arange(n) % len(kept)]))

    def _next_level(self, particles: Particles) -> tuple[int, float]:
        """The score that the share of survivors has; above the least, so that not all of the particles have it."""
        order = np.lexsort((particles.margin, particles.met))
        scores = [(int(particles.met[i]), float(particles.margin[i])) for i in order]
        level = scores[len(scores) - int(np.ceil(self.survivors * len(scores)))]
        return level if level != scores[0] else next((score for score in scores if score > level), level)

    def _move(self, prior: GuardedPrior, runs: Sequence[Run], rng: Generator) -> None:
        """Metropolis steps on the prior within the levels: along differences of particles, and along coordinates."""
        columns = prior.columns
        if not runs or not len(columns):
            return
        references = [run.particles.points[:, columns] for run in runs]
        particles = joined([run.particles for run in runs])
        ends = np.cumsum([0, *(len(run.particles) for run in runs)])
        met, margin = (np.repeat([run.level[i] for run in runs], np.diff(ends)) for i in (0, 1))
        sizes = np.ones(2)  # of each kind of step, adapted to the share that is accepted
        steps = self.steps + _STEPS_PER_COORDINATE * len(columns)
        for number in range(steps):
            checkpoint()
            kind = (_difference, _along_coordinates)[number % 2]
            step = sizes[number % 2] * np.concatenate([kind(reference, rng) for reference in references])
            tried = particles.points.copy()
            tried[:, columns] += np.where(prior.discrete, np.round(step), step)
            others = prior.at(tried)
            accepted = np.log(rng.uniform(size=len(tried))) < others.log_density - particles.log_density
            accepted &= _reaches(others, (met, margin))
            particles = particles.where(accepted, others)
            sizes[number % 2] *= np.exp(2 * (accepted.mean() - _ACCEPTED))
        for run, (first, last) in zip(runs, pairwise(ends), strict=True):
            run.particles = particles.take(np.arange(first, last))
            run.evaluations += steps * len(run.particles)

    def moved(self, prior: GuardedPrior, points: np.ndarray, rng: Generator) -> np.ndarray:
        """Points that meet all conditions, after Metropolis steps on the prior among such points."""
        run = Run(prior.at(points), 0.0, 0.0, (len(prior.guards), 0.0))
        self._move(prior, [run], rng)
        return run.particles.points


def _weighed(particles: Particles) -> tuple[float, float]:
    """The log of the mean probability of the fixed values, and its variance."""
    n = len(particles)
    log_mean = float(logsumexp(particles.log_mass) - np.log(n))
    if log_mean == -np.inf:
        return log_mean, np.inf
    return log_mean, float(np.var(np.exp(particles.log_mass - log_mean)) / n)


def _reaches(particles: Particles, level: tuple[Any, Any]) -> np.ndarray:
    """Which particles have at least this score."""
    met, margin = level
    return (particles.met > met) | ((particles.met == met) & (particles.margin >= margin))


def _systematic(log_weights: np.ndarray, rng: Generator) -> np.ndarray:
    """As many particles, resampled in proportion to their weights."""
    weights = np.exp(log_weights - log_weights.max())
    ends, n = np.cumsum(weights / weights.sum()), len(weights)
    return rng.permutation(np.minimum(np.searchsorted(ends, (rng.uniform() + np.arange(n)) / n), n - 1))


def _difference(reference: np.ndarray, rng: Generator) -> np.ndarray:
    """Steps along the difference of two particles, of many sizes (differential evolution; ter Braak, 2006)."""
    n, d = reference.shape
    one, other = reference[rng.permutation(n)], reference[rng.permutation(n)]
    return 2.38 / np.sqrt(2 * d) * 10 ** rng.uniform(-0.5, 0.5, (n, 1)) * (one - other)


def _along_coordinates(reference: np.ndarray, rng: Generator) -> np.ndarray:
    """Normal steps of one or more coordinates, of many sizes."""
    n, d = reference.shape
    spread = reference.std(axis=0)
    spread = np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)
    moved = (rng.uniform(size=(n, d)) < 0.3) | (np.arange(d) == rng.integers(d, size=(n, 1)))
    return 10 ** rng.uniform(-0.5, 0.5, (n, 1)) * spread * rng.standard_normal((n, d)) * moved


def pooled(splits: Sequence[Split]) -> tuple[float, float]:
    """The log of the mean probability of several runs, and its error."""
    logs = np.array([split.log_probability for split in splits])
    number = len(splits)
    log_probability = float(logsumexp(logs) - np.log(number))
    if log_probability == -np.inf:
        return -np.inf, np.inf
    relative = np.exp(logs - log_probability)
    stated = sum(r**2 * s.variance for r, s in zip(relative, splits, strict=True) if r > 0) / number**2
    scatter = float(np.var(relative, ddof=1) / number) if number > 1 else 0.0
    return log_probability, float(np.sqrt(max(stated, scatter)))
