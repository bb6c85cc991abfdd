"""Settled particles: those of a tempered population, moved on at the posterior, where exchangeable blocks can be moved.

A tempered population of a mixture ends with few families, each of them with one arrangement of the superfluous
components, and most of its evaluations go into the way there. At the posterior, chains with moves of whole blocks
(`block_moves`) come from one arrangement to another, and a state takes six or seven evaluations. To their
states a mixture is fitted for importance sampling. What it misses is seen by halves, as in warm tempering: the share of
the states of the chains from half of the families that a mixture fitted to the other half misses is part of the error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.block_moves import BlockProposal, can_move
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.mixture_fit import fit_to_points
from anabranch.conquer.mode_mixture import ModeMixtureState
from anabranch.conquer.population import broad_as_prior, log_prior_mass
from anabranch.conquer.second_opinion import drawn_particles, may_be_fitted
from anabranch.conquer.smc import SMCState
from anabranch.conquer.smc_mutation import Mutation, Shape, Tuning
from anabranch.conquer.smc_sweep import pooled_ess
from anabranch.conquer.smc_tempering import Tempering
from anabranch.conquer.symmetry import Exchangeable, fold
from anabranch.conquer.target import Target
from anabranch.conquer.warm_tempering import missed_by_halves

__all__ = ["Settled", "is_efficient", "movable"]

_CHAINS, _FIRST, _SHARE = 150, 8_000, 1 / 3
"""Chains; their states from which on a mixture is fitted to them; and the share of the evaluations that they take."""
_KEPT, _COMPONENTS, _STAGES = 20_000, 60, 2
"""States that are kept, components of the mixture, and how often in a visit the scales of the moves are computed."""
_GAIN = 2.0
"""How many times as many effective particles a population has when other chains begin, and how many times as many
states there are when the mixture is fitted again."""
_REFIT_AT = 200_000
"""Draws of the mixture from which on it may be adapted to them."""
_ENOUGH = 60_000
"""Draws of the mixture before it is extended by particles that object: with few the largest weight is small."""
_GOOD = 0.3
"""The efficiency of importance sampling from which on it needs no better mixture."""


@dataclass(frozen=True)
class Settled:
    """States of chains at the posterior.

    Attributes:
        points: the states, those at the start left out.
        families: of each of them the family of the particle from which its chain began.
        last: the last states of the chains, whose families are `founders`.
        tuning: of the moves.
        started_from: the effective number of particles from which the chains began.
        spent: evaluations so far.
        fitted_to: the number of states to which the mixture was fitted; zero before that.
        missed: the share of the mass that a mixture fitted to half of them misses.
    """

    points: np.ndarray
    families: np.ndarray
    last: np.ndarray
    founders: np.ndarray
    tuning: Tuning
    started_from: float
    spent: int = 0
    fitted_to: int = 0
    missed: float = 0.0

    @classmethod
    def begun(cls, population: SMCState, rng: Generator) -> Settled | None:
        """Chains at their start; none where nearly all particles are in one half of the families."""
        starts, founders = drawn_particles(population, rng, _CHAINS)
        if not 2 < may_be_fitted(founders).sum() < len(founders) - 2 or population.tuning is None:
            return None
        ess = pooled_ess(population.sweeps)
        return cls(starts[:0], founders[:0], starts, founders, population.tuning, ess)

    def prolonged(self, target: Target, blocks: Sequence[Exchangeable], rng: Generator, evaluations: int) -> Settled:
        """The chains after so many more evaluations, more or less."""
        before, tempering, settled = target.evaluations, Tempering(target), self
        for _ in range(_STAGES):
            settled = settled._moved(tempering, blocks, rng, evaluations // _STAGES)
        if not self.spent:  # the first states are those of the population
            recent = slice(len(settled.points) // 2, None)
            settled = replace(settled, points=settled.points[recent], families=settled.families[recent])
        return replace(settled, spent=self.spent + target.evaluations - before)

    def _moved(self, tempering: Tempering, blocks: Sequence[Exchangeable], rng: Generator, evaluations: int) -> Settled:
        """The chains after one stage, in which their moves have the same scales."""
        several = len(self.points) >= 10 * len(self.last)
        points, families = (self.points, self.families) if several else (self.last, self.founders)
        shape = Shape.of(points, families, self.founders % 2, tempering.target.discrete)
        proposals = tuple(BlockProposal.of_halves(one, shape.points, rng) for one in blocks)
        mutation, start = Mutation(tempering, 1.0, shape, proposals), tempering.at(self.last)
        states, tuning = mutation.prolonged(start, self.tuning, evaluations, rng)
        points = np.concatenate([self.points, *(state.points for state in states)])
        families = np.concatenate([self.families, np.tile(self.founders, len(states))])
        kept = np.sort(rng.permutation(len(points))[:_KEPT])
        return replace(self, points=points[kept], families=families[kept], last=states[-1].points, tuning=tuning)

    @property
    def is_due(self) -> bool:
        """Whether there are enough states for a mixture, or for a better one."""
        return len(self.points) >= min(max(_GAIN * self.fitted_to, _FIRST), _KEPT) and self.fitted_to < _KEPT

    def needs_draws(self, draws: int) -> bool:
        """Whether so many draws are too few for particles to object: the largest weight is then small."""
        return self.fitted_to > 0 and draws < _ENOUGH

    def is_outgrown(self, population: SMCState) -> bool:
        """Whether the population has come to so many more particles that other chains would show more."""
        return pooled_ess(population.sweeps) >= _GAIN * self.started_from

    def needs_more(self, spent: int) -> bool:
        """Whether the chains are to go on, on a path with so many evaluations."""
        return self.fitted_to < _KEPT and self.spent < _SHARE * spent

    def fitted(
        self, target: Target, symmetries: Sequence[Exchangeable], rng: Generator
    ) -> tuple[Settled, ModeMixtureState]:
        """The state from which importance sampling starts, fitted to all chains, and what by halves it misses."""
        symmetries = tuple(each.with_tightest_key(self.points) for each in symmetries)
        points = fold(self.points, symmetries)
        wide, mass = broad_as_prior(target, points, rng, symmetries), log_prior_mass(target, rng)
        fitted = fit_to_points(points, rng, _COMPONENTS)
        state = ModeMixtureState(fitted, wide, symmetries, mass, is_of_points=True)
        missed = missed_by_halves(points, may_be_fitted(self.families), wide, rng, _COMPONENTS)
        settled = replace(self, fitted_to=len(points), missed=missed)
        return settled, replace(state, adapting=False, refit_at=_REFIT_AT)


def is_efficient(estimate: Estimate, draws: int) -> bool:
    """Whether importance sampling with so many draws needs no better mixture."""
    return estimate.ess >= _GOOD * draws


def movable(symmetries: Sequence[Exchangeable]) -> tuple[Exchangeable, ...]:
    """The exchangeable blocks that can be moved as a whole."""
    return tuple(each for each in symmetries if can_move(each))
