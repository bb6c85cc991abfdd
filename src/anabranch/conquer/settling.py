"""When `Auto` settles the particles of a path (`settled`), and when it believes the bridge to them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.auto_state import AutoState
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.settled import Settled
from anabranch.conquer.settled_bridge import SettledBridge
from anabranch.conquer.target import Target
from anabranch.limits import LimitReached

__all__ = ["may_settle", "needs_families", "settle", "with_settled"]

_MIN_EVALUATIONS = 5_000
"""Of a visit, for chains at the posterior."""
_EFFICIENT = 0.3
"""The efficiency of importance sampling from which on it needs nothing else."""
_FAR = 2.0
"""How many times as large as that of the others the error of the bridge may be, for the chains to go on."""
_YOUNG = 0.5
"""The share of the evaluations of a path below which the chains go on in any case."""
_SIGNIFICANT = 3.0
"""Standard errors between two estimates that differ significantly."""
_SHARE = 0.5
"""The share of a visit that the chains take; the rest is for draws from the mixtures."""


def may_settle(target: Target, state: AutoState, estimate: Estimate, left: int) -> bool:
    """Whether chains at the posterior are worth the visit: weights are not believed, or have much scatter; and the
    chains so far are not in vain."""
    if left < _MIN_EVALUATIONS or target.path.interpreted or state.opinion is None or not state.has_blocks:
        return False
    if estimate.method == "ModeMixture" and estimate.ess >= _EFFICIENT * len(state.state.points):
        return False
    if state.settled is None or state.settled.spent < _YOUNG * state.spent:
        return True
    return state.bridge is not None and state.bridge.sd < _FAR * estimate.log_evidence_sd


def needs_families(state: AutoState) -> bool:
    """Whether the chains began from so few families that the population is to grow before they go on."""
    if state.bridge is None or state.settled is None or state.population is None:
        return False
    return state.bridge.lacks_families and not state.settled.is_outgrown(state.population)


def settle(target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
    """The state after more of the chains at the posterior, and more draws from the mixtures fitted to them; the same
    one if there can be no chains."""
    assert state.population is not None
    settled, bridge, end = state.settled, state.bridge, target.evaluations + left
    if settled is None or settled.is_outgrown(state.population):
        settled = Settled.begun(state.population, rng)
    if settled is None:
        return state
    with suppress(LimitReached), target.bounded(left):
        settled = settled.prolonged(target, state.blocks, rng, int(_SHARE * left))
        state = replace(state, settled=settled)
        if bridge is None or bridge.is_outgrown(settled) or settled.spent < bridge.fitted_to:
            bridge = SettledBridge.fitted(target, settled, state.exchangeable, rng, bridge)
        bridge = bridge.drawn(target, rng, end - target.evaluations)
        return replace(state, bridge=bridge.bridged(settled))
    return state


def with_settled(target: Target, state: AutoState, estimate: Estimate) -> Estimate:
    """The estimate, or the bridge to settled chains: where that has the smaller error, or finds significantly more, and
    not significantly less."""
    if state.bridge is None or state.settled is None or not np.isfinite(state.bridge.sd):
        return estimate
    unseen = 0.0 if state.opinion is None else state.opinion.unseen
    log_z, sd = state.bridge.log_evidence, float(np.hypot(state.bridge.sd, unseen))
    above = (log_z - estimate.log_evidence) / np.hypot(sd, estimate.log_evidence_sd)
    if above < -_SIGNIFICANT or not (sd < estimate.log_evidence_sd or above > _SIGNIFICANT):
        return estimate
    return replace(state.bridge.estimate(target, state.settled), log_evidence_sd=sd, log_possible=log_z + 3 * sd)
