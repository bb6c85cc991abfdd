"""Whether `Auto` settles the particles of a path, and the mixture that it then has (`settled`)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from numpy.random import Generator

from anabranch.conquer.auto_state import AutoState
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.second_opinion import MAX_ASKED, are_good, consult, is_below
from anabranch.conquer.settled import Settled, is_efficient
from anabranch.conquer.target import Target
from anabranch.limits import LimitReached

__all__ = ["may_settle", "settle"]

_MIN_EVALUATIONS = 5_000
"""Of a visit, for chains at the posterior."""


def may_settle(target: Target, state: AutoState, estimate: Estimate, left: int) -> bool:
    """Whether chains at the posterior are worth the visit: weights are not believed, or have much scatter."""
    if left < _MIN_EVALUATIONS or target.path.interpreted or state.opinion is None:
        return False
    return estimate.method != "ModeMixture" or not is_efficient(estimate, len(state.state.points))


def settle(target: Target, modes: ModeMixture, state: AutoState, rng: Generator, left: int) -> AutoState:
    """The state after more of the chains at the posterior, and with a mixture fitted to them if there are enough for a
    better one; the same one if there can be no chains."""
    population, settled, end = state.population, state.settled, target.evaluations + left
    assert population is not None
    with suppress(LimitReached), target.bounded(left):
        if settled is None or settled.is_outgrown(population):
            settled = Settled.begun(population, rng)
        if settled is None:
            return state
        settled = settled.prolonged(target, state.blocks, rng, left // 2)
        if not settled.is_due or end - target.evaluations < 2 * MAX_ASKED:
            return replace(state, settled=settled)
        settled, mixture = settled.fitted(target, state.state.symmetries, rng)
        mixture = modes.advance(target, mixture, rng, end - target.evaluations - MAX_ASKED)
        if not mixture.failed and mixture.pooled and not _is_worse(target, modes, mixture, state):
            state = replace(state, state=mixture, settled=settled, opinion=None, warm=None)
            opinion = consult(target, modes, mixture, population, rng, state.scouts, 0, state.asked)
            return replace(state, opinion=opinion)
        return replace(state, settled=replace(settled, missed=0.0))
    return state


def _is_worse(target: Target, modes: ModeMixture, mixture: ModeMixtureState, state: AutoState) -> bool:
    """Whether the mixture finds significantly less than the one before it, whose weights have good diagnostics: climbs
    may have found modes that no particle has."""
    former = modes.estimate(target, state.state)
    return are_good(former) and is_below(modes.estimate(target, mixture), former)
