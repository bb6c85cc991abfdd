"""Settled particles: those of a tempered population, moved on at the posterior, where exchangeable blocks can be moved.

A tempered population of a mixture ends with few families, each of them with one arrangement of the superfluous
components, and most of its evaluations go into the way there. At the posterior, chains with moves of whole blocks
(`block_moves`) come from one arrangement to another: with ten components and 29 coordinates 150 evaluations make an
independent draw. They begin from particles of all sweeps alike, not in proportion to the evidence of these: the chains
forget where they began, and those of different sweeps show whether they do. The evidence is that of the bridge from
their states to mixtures fitted to them (`settled_bridge`).

The chains are in two halves, of different families if possible. A half is moved by what the other half has found, and
its mixture is bridged to the states of the other half.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.block_moves import BlockProposal, can_move
from anabranch.conquer.smc import SMCState
from anabranch.conquer.smc_mutation import Mutation, Shape, Tuning
from anabranch.conquer.smc_sweep import Sweep
from anabranch.conquer.smc_tempering import Particles, Tempering
from anabranch.conquer.symmetry import Exchangeable
from anabranch.conquer.target import Target

__all__ = ["Settled", "effective_families", "movable"]

_CHAINS, _STATES = 100, 160
"""Chains, an even number, and states of each that are kept, at most; beyond that every second one is dropped."""
_STAGES = 3
"""How often in a visit the scales of the moves and the distribution of the blocks are computed."""
_LEFT_OUT = 1 / 3
"""The share of the states of each chain, the first ones, that are left out: it was on its way."""
_REFERENCE = 3_000
"""States from which the scales of the moves are computed."""
_GAIN = 2.0
"""How many times as many families a population has when other chains begin."""
_LOST = 7.0
"""Nats by which the evidence of a sweep is below that of the best one where it has lost the mass: no chain begins
there."""


@dataclass(frozen=True)
class Settled:
    """Chains at the posterior, the first half of them before the second one.

    Attributes:
        states: of the chains, in the order of time: (states, chains, coordinates).
        log_density: log γ there.
        last: the last state of each chain.
        founders: of each chain the family of the particle from which it began.
        tuning: of the moves.
        every: moves from one state to the next.
        spent: evaluations so far.
    """

    states: np.ndarray
    log_density: np.ndarray
    last: np.ndarray
    founders: np.ndarray
    tuning: Tuning
    every: int = 1
    spent: int = 0

    @classmethod
    def begun(cls, population: SMCState, rng: Generator) -> Settled | None:
        """Chains at their start; none where all particles are of one family: nothing would show what is forgotten."""
        points, founders = _starts(population, rng)
        if population.tuning is None or len(np.unique(founders)) < 2:
            return None
        return cls(np.zeros((0, *points.shape)), np.zeros((0, len(points))), points, founders, population.tuning)

    @property
    def half(self) -> np.ndarray:
        """The half of each chain."""
        return np.arange(len(self.last)) * 2 // len(self.last)

    @property
    def families(self) -> float:
        """How many families of the same size the chains began from."""
        return effective_families(self.founders)

    def is_outgrown(self, population: SMCState) -> bool:
        """Whether the population has so many more families that other chains would show more."""
        return _families(population) >= _GAIN * self.families

    @property
    def left_out(self) -> int:
        """How many states of each chain do not count."""
        return int(np.ceil(_LEFT_OUT * len(self.states)))

    @property
    def counted(self) -> np.ndarray:
        """The states that count."""
        return self.states[self.left_out :]

    def prolonged(self, target: Target, blocks: Sequence[Exchangeable], rng: Generator, evaluations: int) -> Settled:
        """The chains after so many more evaluations, more or less."""
        before, tempering, settled = target.evaluations, Tempering(target), self
        for _ in range(_STAGES):
            settled = settled._moved(tempering, blocks, rng, evaluations // _STAGES)
        return replace(settled, spent=self.spent + target.evaluations - before)

    def _moved(self, tempering: Tempering, blocks: Sequence[Exchangeable], rng: Generator, evaluations: int) -> Settled:
        """The chains after one stage, in which their moves have the same scales."""
        mutation = Mutation(tempering, 1.0, shape := self._shape(tempering, rng), _proposals(blocks, shape, rng))
        states, tuning = mutation.prolonged(tempering.at(self.last), self.tuning, evaluations, rng)
        return replace(self, last=states[-1].points, tuning=tuning)._with(states)

    def _shape(self, tempering: Tempering, rng: Generator) -> Shape:
        """The scales of the moves, by the recent states; before there are enough, by the last ones."""
        recent = self.counted
        recent = recent if len(recent) >= 10 else self.last[None]
        points, half = recent.reshape(-1, recent.shape[2]), np.tile(self.half, len(recent))
        chosen = rng.permutation(len(points))[:_REFERENCE]
        return Shape.of(points[chosen], half[chosen], self.half, tempering.target.discrete)

    def _with(self, found: Sequence[Particles]) -> Settled:
        """The chains with more states, of which some are dropped if they are many."""
        found = found[self.every - 1 :: self.every]
        states = np.concatenate([self.states, *(each.points[None] for each in found)])
        log_density = np.concatenate([self.log_density, *(each.log_density(1.0)[None] for each in found)])
        every = self.every
        while len(states) > _STATES:
            states, log_density, every = states[1::2], log_density[1::2], 2 * every
        return replace(self, states=states, log_density=log_density, every=every)


def effective_families(founders: np.ndarray) -> float:
    """How many families of the same size scatter as much as those of these particles."""
    _, sizes = np.unique(founders, return_counts=True)
    return float(len(founders) ** 2 / (sizes**2).sum())


def _with_mass(population: SMCState) -> list[Sweep]:
    """The sweeps that have not lost the mass."""
    best = max(sweep.log_evidence for sweep in population.sweeps)
    return [sweep for sweep in population.sweeps if len(sweep.points) and sweep.log_evidence >= best - _LOST]


def _families(population: SMCState) -> float:
    """How many families as many particles of each sweep have."""
    found = [effective_families(sweep.founders) for sweep in _with_mass(population)]
    return len(found) ** 2 / sum(1 / each for each in found)


def _starts(population: SMCState, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
    """As many particles of each sweep, and their families, by family: at most one of them is in both halves."""
    found, points, families = _with_mass(population), [], []
    for i, sweep in enumerate(found):
        number = (i + 1) * _CHAINS // len(found) - i * _CHAINS // len(found)
        chosen = np.resize(rng.permutation(len(sweep.points)), number)
        points.append(sweep.points[chosen])
        families.append(len(found) * sweep.founders[chosen] + i)
    order = np.argsort(np.concatenate(families), kind="stable")
    return np.concatenate(points)[order], np.concatenate(families)[order]


def _proposals(
    blocks: Sequence[Exchangeable], shape: Shape, rng: Generator
) -> tuple[tuple[BlockProposal, BlockProposal], ...]:
    return tuple(BlockProposal.of_halves(each, shape.points, rng) for each in blocks)


def movable(symmetries: Sequence[Exchangeable]) -> tuple[Exchangeable, ...]:
    """The exchangeable blocks that can be moved as a whole."""
    return tuple(each for each in symmetries if can_move(each))
