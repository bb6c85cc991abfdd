"""Warm tempering: a population that starts from a mixture fitted to another population, in place of the prior.

A population tempered from the prior finds the mass, and most of its evaluations go into the way there: ten
temperatures for a hidden Markov model of 16 coordinates. From a mixture q fitted to its particles the way γ_β = q^(1−β)
γ^β has four, and the error of log Ẑ for the same evaluations is a third. What the first population has not
seen, the second finds only from the component of q that is as wide as the prior. The sweeps are independent of the
draws to which q was fitted, so that Ẑ stays unbiased; but where many modes were missed, it is low more often than its
sweeps show. How much is missed is seen by halves: a mixture fitted to one half of the families misses the particles of
the other half for which the wide component has most of the density. That share is part of the error, and so is what
none of n particles has seen (`Opinion.unseen`, with p = 1: something was missed before, or nothing would be fitted to
particles).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.mixture_fit import fit_to_points
from anabranch.conquer.ordered import Ordered
from anabranch.conquer.population import broad_as_prior
from anabranch.conquer.second_opinion import drawn_particles, may_be_fitted
from anabranch.conquer.smc import SMC, SMCState
from anabranch.conquer.smc_sweep import pooled_ess
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.symmetry import Exchangeable, fold, unfold
from anabranch.conquer.target import Target

__all__ = ["WarmPopulation", "missed_by_halves"]

_BROAD = 0.1
"""The share of a component as wide as the prior, from which mass is found that the particles have missed."""
_DRAWS, _CHAINS = 128, 2
"""Draws from the mixture for each chain; more make a longer first step. Chains for each one of a sweep from the prior,
which takes more evaluations."""
_GAIN = 2.0
"""How many times as many effective particles a population has when the mixture is fitted again, to it."""


@dataclass(frozen=True)
class WarmPopulation:
    """A population tempered from a mixture.

    Attributes:
        mixture: where it starts.
        symmetries: the exchangeable blocks, of which it has one ordering.
        fitted_to: the effective number of particles to which the mixture was fitted.
        missed: the share of the mass that a mixture fitted to half of the particles misses.
        started_from: the effective number of particles of the population tempered from the prior.
        population: its sweeps.
        former: the last estimate from the mixture before, until there is one from this.
    """

    mixture: StudentMixture
    symmetries: tuple[Exchangeable, ...]
    fitted_to: float
    missed: float
    started_from: float
    population: SMCState = field(default_factory=SMCState)
    former: Estimate | None = None

    @classmethod
    def fitted(
        cls,
        target: Target,
        population: SMCState,
        symmetries: tuple[Exchangeable, ...],
        rng: Generator,
        former: Estimate | None = None,
    ) -> WarmPopulation:
        """The start, fitted to the particles of another population; with the last estimate from the mixture before."""
        points, families = drawn_particles(population, rng)
        points, ess = fold(points, symmetries), pooled_ess(population.sweeps)
        wide = broad_as_prior(target, points, rng, symmetries)
        mixture = fit_to_points(points, rng).joined(wide, _BROAD)
        missed = missed_by_halves(points, may_be_fitted(families), wide, rng)
        return cls(mixture, symmetries, ess, missed, ess, former=former)

    @property
    def bias(self) -> float:
        """By how much log Ẑ may be low for what the mixture misses, by halves and by the number of particles."""
        n = self.started_from
        return float(np.sqrt(self.missed**2 + 2 / ((n + 2) * (n + 3))))

    def is_outgrown(self, population: SMCState) -> bool:
        """Whether the population tempered from the prior has come to so many particles that one fitted to it would miss
        less."""
        return pooled_ess(population.sweeps) >= _GAIN * self.started_from

    def advanced(self, target: Target, tempering: SMC, rng: Generator, evaluations: int) -> WarmPopulation:
        """The population after so many evaluations, more or less; with a better mixture as soon as it is worth one."""
        population = self._smc(tempering).advance(Ordered(target, self.symmetries), self.population, rng, evaluations)
        advanced = replace(self, population=population)
        if len(population.sweeps) < 3 or pooled_ess(population.counted) < _GAIN * self.fitted_to:
            return advanced
        counted = replace(population, sweeps=population.counted)
        better = WarmPopulation.fitted(target, counted, self.symmetries, rng)
        # Its own particles do not show what it has missed from the start.
        missed, former = max(self.missed, better.missed), advanced.estimate(target, tempering)
        return replace(better, missed=missed, started_from=self.started_from, former=former)

    def estimate(self, target: Target, tempering: SMC) -> Estimate | None:
        """The evidence and the particles, with random labels by a fixed seed; None before the second sweep."""
        if len(self.population.sweeps) < 2:
            return self.former
        estimate = self._smc(tempering).estimate(Ordered(target, self.symmetries), self.population)
        points = unfold(estimate.points, self.symmetries, np.random.default_rng(len(estimate.points)))
        sd = float(np.hypot(estimate.log_evidence_sd, self.bias))
        return replace(estimate, points=points, log_evidence_sd=sd, method="WarmSMC")

    def _smc(self, tempering: SMC) -> SMC:
        return replace(tempering, proposal=self.mixture, draws=_DRAWS, chains=_CHAINS * tempering.chains)


def missed_by_halves(points: np.ndarray, fitted: np.ndarray, wide: StudentMixture, rng: Generator) -> float:
    """The share of the particles not fitted to for which the wide component has most of the density."""
    if not 0 < fitted.sum() < len(points):
        return 0.0
    parts, _ = fit_to_points(points[fitted], rng).joined(wide, _BROAD).log_parts(points[~fitted])
    return float((parts[:, -1] > logsumexp(parts[:, :-1], axis=1)).mean())
