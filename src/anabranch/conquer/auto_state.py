"""The state of `Auto` between visits to a path."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from anabranch.conquer.second_opinion import Opinion
from anabranch.conquer.settled import Settled, movable
from anabranch.conquer.settled_bridge import SettledBridge
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
        bridge: between these and mixtures fitted to them.
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
    bridge: SettledBridge | None = None
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
        return movable(self.exchangeable)

    @property
    def exchangeable(self) -> tuple[Exchangeable, ...]:
        """The exchangeable blocks, whether or not the mixture has one ordering of them."""
        return (self.state.symmetries or self.state.overlapping) if self.has_mixture else ()

    @property
    def has_blocks(self) -> bool:
        """Whether there are such blocks, and particles from which chains may begin."""
        return bool(self.blocks) and self.population is not None and self.population.particles > 0

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
