"""The state of `Auto` between visits to a path."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from anabranch.conquer.second_opinion import Opinion
from anabranch.conquer.settled import Settled, movable
from anabranch.conquer.smc import SMC, SMCState
from anabranch.conquer.symmetry import Exchangeable
from anabranch.conquer.target import Target
from anabranch.conquer.warm_tempering import WarmPopulation
from anabranch.limits import LimitReached

__all__ = ["LAPLACE", "MODES", "PARTICLES", "AutoState"]

LAPLACE, MODES, PARTICLES = "laplace", "modes", "particles"
"""The methods of `Auto` that find a mixture."""


@dataclass(frozen=True)
class AutoState:
    """The method at work and its state.

    Attributes:
        method: the method; of the last three, where the mixture comes from.
        state: its state, None before it has begun.
        population: the tempered population.
        opinion: what the population says of the mixture.
        settled: its particles moved on at the posterior, where exchangeable blocks can be moved as a whole.
        warm: a population tempered from a mixture fitted to that one, where the weights are not believed.
        scans, scanned: scans of the prior, and their draws.
        scouts: climbs from prior draws that came to the highest modes; None where the density is not climbed.
        scouting: evaluations of these and all other such climbs.
        first: the log evidence by importance weights before that.
        spent: evaluations so far.
        attempts: Laplace estimates so far.
    """

    method: str
    state: Any = None
    population: SMCState | None = None
    opinion: Opinion | None = None
    settled: Settled | None = None
    warm: WarmPopulation | None = None
    scans: int = 0
    scanned: int = 0
    scouts: int | None = None
    scouting: int = 0
    first: float = np.nan
    spent: int = 0
    attempts: int = 0

    @property
    def has_mixture(self) -> bool:
        """Whether there is a mixture to draw from."""
        return self.state is not None and not self.state.failed and self.state.proposal is not None

    @property
    def blocks(self) -> tuple[Exchangeable, ...]:
        """The exchangeable blocks that can be moved as a whole."""
        return movable(self.state.symmetries) if self.has_mixture else ()

    @property
    def may_settle(self) -> bool:
        """Whether new chains at the posterior would show more than those so far."""
        if not self.blocks or self.population is None or not self.population.particles:
            return False
        settled = self.settled
        return settled is None or settled.is_outgrown(self.population) or settled.needs_more(self.spent)

    @property
    def heard(self) -> Opinion:
        """The opinion, with what a mixture fitted to settled particles misses by halves."""
        assert self.opinion is not None
        return self.opinion if self.settled is None else replace(self.opinion, by_halves=self.settled.missed)

    @property
    def needs_draws(self) -> bool:
        """Whether more draws from a mixture fitted to settled particles come before anything else."""
        if self.settled is None or self.opinion is None or not self.state.pooled:
            return False
        return self.settled.needs_draws(len(self.state.points))

    @property
    def asked(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The points that give the opinion, with their families, if they are others than the particles."""
        return (self.settled.points, self.settled.families) if self.settled and self.settled.fitted_to else None

    @property
    def unseen(self) -> float:
        """The share of the mass that may be missed where tempering starts from a mixture; by all, before it does."""
        assert self.population is not None
        assert self.opinion is not None
        if self.warm is None or self.warm.is_outgrown(self.population):
            return self.opinion.unseen
        return self.warm.bias

    def warmed(self, target: Target, tempering: SMC, rng: Generator, left: int, sweep: int) -> AutoState:
        """The state after so many more evaluations of the warm population, begun anew where it has been outgrown; by
        the size of its sweeps."""
        warm, population = self.warm, self.population
        assert population is not None
        with suppress(LimitReached), target.bounded(left):
            if warm is None or warm.is_outgrown(population):
                former = None if warm is None else warm.estimate(target, tempering)
                warm = WarmPopulation.fitted(target, population, self.state.symmetries, rng, former)
            warm = warm.advanced(target, tempering, rng, max(left, sweep))
        return replace(self, warm=warm)

    @property
    def scouts_see_more(self) -> bool:
        """Whether more climbs from the prior come to the modes, for each evaluation, than there are effective
        particles."""
        assert self.population is not None
        assert self.opinion is not None
        tempering = self.population.cost * sum(sweep.size for sweep in self.population.sweeps)
        return (self.scouts or 0) * tempering > self.opinion.ess * self.scouting
