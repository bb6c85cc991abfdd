"""A second opinion on importance sampling: a population tempered from the prior (`SMC`).

Importance weights γ/q see only where the proposal q goes; a tempered population sees only what has volume on the way
from the prior. So each is asked about the other:

1. Coverage. A particle x at which log γ(x)/q(x) exceeds all log weights drawn from q, by a margin, objects: q misses
   the mass there. The share of such particles estimates the share of the mass that q misses.
2. The particles that object become components of q: those that climb from them to modes, and, where they are many, a
   mixture fitted to them. Then q is adapted and asked again.
3. The evidence. Without objections the importance weights are believed. Otherwise the bridge between the draws of q and
   the particles (`bridge`), which is right as long as the two overlap somewhere; or tempering, where they do not. A
   population that has lost the mass, with far less evidence than the weights, is not heard.
4. What nobody has seen. Scouts, which climb from prior draws, look for modes as well. The fewer particles and scouts
   have looked, the larger is the mass that all may have missed, which is part of the error (`Opinion.unseen`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.ascent import climb, distinct, polish
from anabranch.conquer.bridge import bridge
from anabranch.conquer.estimate import MAX_SD, MIN_ESS, Estimate, heavy_tailed, weights_are_trusted
from anabranch.conquer.jumps import is_climbable
from anabranch.conquer.mixture_fit import fit_to_points
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.newton import newton, newton_cost
from anabranch.conquer.smc import SMCState
from anabranch.conquer.smc_sweep import ess_by_family, resampled
from anabranch.conquer.symmetry import fold
from anabranch.conquer.target import Target
from anabranch.conquer.weights import effective_sample_size, log_mean

__all__ = [
    "CLIMB",
    "MAX_ASKED",
    "Opinion",
    "answered",
    "are_good",
    "climbed",
    "consult",
    "drawn_particles",
    "is_enough",
    "may_be_fitted",
    "reconciled",
    "scouted",
    "unconfirmed",
]

_MARGIN = 2.0
"""Nats above the largest log weight from which on a particle objects."""
_MAX_CLIMBS, CLIMB = 256, 30
"""Particles that climb, and steps of each climb."""
MAX_ASKED = 4_000
"""Particles that are asked; more show smaller misses, and each takes an evaluation."""
MAX_RUNS = 256
"""The same where each evaluation is a run of the program."""
_MAX_SCOUTS = 1_024
"""Draws of the prior that climb before the particles are asked; more find modes with smaller basins."""
_MIN_SCOUTS = 8
"""The same at least, where the interpreter runs the path and each step of a climb is a run of the program."""
_MAX_COMPONENTS, _MANY_COMPONENTS = 400, 100
"""Components that a proposal may have, and from which on more modes were certainly missed by the first search."""
_MIN_CONTENT = 50.0
"""One in so many particles may object, at most, however few effective ones there are."""
_DOUBT = 0.2
"""The probability that the first search for modes has missed something."""
_MAX_K = 1.0
"""Pareto k from which on the mean of the weights may be infinite: they are not believed, however many there are."""
_LOST = 7.0
"""Nats by which the evidence of every sweep is below that of the weights where the population has lost the mass."""
_NEAR = 3.0
"""Nats below the highest mode, and half a nat for each coordinate, down to which a climb has come to the top."""


@dataclass(frozen=True)
class Opinion:
    """What the population says of the proposal.

    Attributes:
        sweeps: finished sweeps that were asked.
        points: their particles, resampled in proportion to the evidence of their sweeps.
        log_ratio: log γ/q there.
        families: the draw of the prior from which each descends; those of different families are independent.
        objects: which of them object.
        log_weights: log γ/q of the draws from the proposal.
        components: of the proposal.
        ess: how many independent draws the particles are worth, in the coordinate that mixes worst; zero where the
            population has lost the mass.
        scouts: climbs from prior draws that came to the highest modes; None where the density is not climbed.
        is_lost: whether the population has far less evidence than the weights have found.
        rounds: how often the proposal was extended by particles that objected.
    """

    sweeps: int
    points: np.ndarray
    log_ratio: np.ndarray
    families: np.ndarray
    objects: np.ndarray
    log_weights: np.ndarray
    components: int
    ess: float
    scouts: int | None = None
    is_lost: bool = False
    rounds: int = 0

    @property
    def missed(self) -> float:
        """The share of the mass that the proposal misses, by the particles."""
        return float(self.objects.mean()) if len(self.objects) else 0.0

    @property
    def unseen(self) -> float:
        """The root mean square of the share m of the mass that the proposal misses, and all who have looked with it.

        With probability p the first search has missed something (one, where there was no climb, or where so many modes
        were found one by one), and then m is anything from 0 to 1. Of n who have looked since, particles and scouts,
        none has found it, so that E[m²] = p B(3, n + 1) / (1 − p + p/(n + 1)).
        """
        n = self.ess + (self.scouts or 0)
        p = 1.0 if self.scouts is None or self.components > _MANY_COMPONENTS else _DOUBT
        return float(np.sqrt(2 * p / ((n + 2) * (n + 3)) / ((1 - p) * (n + 1) + p)))

    @property
    def is_content(self) -> bool:
        """Whether no more particles object than one in the effective number of them, or one in `_MIN_CONTENT`: with few
        effective ones a family that objects may be the only one that has seen what is missed."""
        return self.missed * max(self.ess, _MIN_CONTENT) <= 1.0

    def of_more_draws(self, log_weights: np.ndarray) -> Opinion:
        """What the same particles say once there are more draws from the same proposal."""
        return replace(self, log_weights=log_weights, objects=_objects(self.log_ratio, log_weights))


def is_enough(population: SMCState, min_chains: int, min_draws: int = 0) -> bool:
    """Whether a population has the chains and the draws from the start for an opinion, in two sweeps at least."""
    sweeps = population.sweeps
    has_chains = len(sweeps) > 1 and sum(sweep.size for sweep in sweeps) >= min_chains
    return population.lost or (has_chains and sum(sweep.draws for sweep in sweeps) >= min_draws)


def consult(
    target: Target,
    modes: ModeMixture,
    state: ModeMixtureState,
    population: SMCState,
    rng: Generator,
    scouts: int | None = None,
    rounds: int = 0,
) -> Opinion:
    """Ask the particles of all sweeps about the proposal, from which the state has draws."""
    assert state.log_weights is not None
    if not population.particles or _has_lost(population, state.log_weights):
        nothing = np.zeros((0, target.dim)), np.zeros(0), np.zeros(0, int), np.zeros(0, bool), state.log_weights
        return Opinion(
            len(population.sweeps), *nothing, len(state.parts[0]), 0.0, scouts, bool(population.particles), rounds
        )
    most = MAX_RUNS if target.path.interpreted else MAX_ASKED
    points, families = drawn_particles(population, rng, most)
    points = fold(points, state.symmetries)
    log_ratio = modes.log_ratio(target, state, points)
    return Opinion(
        len(population.sweeps), points, log_ratio, families, _objects(log_ratio, state.log_weights), state.log_weights,
        len(state.parts[0]), ess_by_family(points, families), scouts, rounds=rounds,
    )  # fmt: skip


def _has_lost(population: SMCState, log_weights: np.ndarray) -> bool:
    """Whether the weights have found far more than any sweep: what its particles may object to has no mass."""
    best = max(sweep.log_evidence for sweep in population.sweeps)
    return effective_sample_size(log_weights) >= MIN_ESS and best < log_mean(log_weights) - _LOST


def drawn_particles(population: SMCState, rng: Generator, most: int = MAX_ASKED) -> tuple[np.ndarray, np.ndarray]:
    """Particles of all sweeps, resampled in proportion to the evidence of these, and the family of each."""
    found = [sweep for sweep in population.sweeps if len(sweep.points)]
    logs = np.concatenate([np.full(len(s.points), s.log_evidence + np.log(s.size / len(s.points))) for s in found])
    families = np.concatenate(
        [2 * len(found) * (s.founders // 2) + 2 * i + s.founders % 2 for i, s in enumerate(found)]
    )
    chosen = resampled(logs, min(len(logs), most), rng)
    return np.concatenate([sweep.points for sweep in found])[chosen], families[chosen]


def may_be_fitted(families: np.ndarray) -> np.ndarray:
    """The particles to which a proposal may be fitted: half of the families. The bridge takes the others, since with a
    proposal fitted to its own draws it is too low."""
    return families % 2 == 0


def _objects(log_ratio: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """Which particles object: log γ/q there exceeds all log weights, by a margin."""
    return log_ratio > log_weights.max() + _MARGIN


def answered(
    target: Target, modes: ModeMixture, state: ModeMixtureState, opinion: Opinion, rng: Generator, evaluations: int
) -> ModeMixtureState:
    """The state with components for the particles that object; for all particles, where these are few.

    At most about so many evaluations go into climbs from the particles.
    """
    objecting, fitting = opinion.points[opinion.objects], may_be_fitted(opinion.families)
    if opinion.is_content:
        fitted = opinion.points[fitting] if fitting.sum() > target.dim else opinion.points
        return modes.with_components(state, fit_to_points(fitted, rng), 0.5) if len(fitted) else state
    starts = objecting[rng.permutation(len(objecting))[: min(_MAX_CLIMBS, max(evaluations // (2 * CLIMB), 1))]]
    state, _ = climbed(target, modes, state, starts, evaluations)
    objecting = opinion.points[opinion.objects & fitting]
    if len(objecting) >= 10 * (target.dim + 1):
        state = modes.with_components(state, fit_to_points(objecting, rng), float(np.clip(opinion.missed, 0.1, 0.5)))
    elif state.is_of_points and fitting.sum() > 4 * target.dim:  # nothing has climbed, and few object
        state = modes.with_components(state, fit_to_points(opinion.points[fitting], rng), 0.5)
    return state


def climbed(
    target: Target, modes: ModeMixture, state: ModeMixtureState, starts: np.ndarray, evaluations: int
) -> tuple[ModeMixtureState, np.ndarray]:
    """The state with the modes that its proposal misses and to which climbs from these starts lead, and which of the
    climbs came to the highest modes."""
    proposal, wide = state.parts
    if not len(starts) or len(proposal) >= _MAX_COMPONENTS or not (is_climbable(target) or may_climb(target)):
        return state, np.zeros(0, bool)
    if may_climb(target):
        found, _ = newton(target, starts[: max(evaluations // newton_cost(target.dim), 1)], wide.scales)
        chosen = distinct(found.points, found.log_density, wide.scales, _MAX_COMPONENTS - len(proposal))
        return modes.extended(target, state, found.take(chosen)), _near(found.log_density, target.dim)
    ends, heights = climb(target, starts, 0.3 * wide.scales, CLIMB)
    affordable = max(evaluations // (20 * target.dim + 20), 1)
    chosen = distinct(ends, heights, wide.scales, min(_MAX_COMPONENTS - len(proposal), affordable))
    if len(chosen):
        state = modes.extended(target, state, polish(target, ends[chosen], wide.scales))
    return state, _near(heights, target.dim)


def _near(heights: np.ndarray, dim: int) -> np.ndarray:
    """Which climbs came to the highest modes."""
    return heights > heights.max() - _NEAR - dim / 2


def may_climb(target: Target) -> bool:
    """Whether climbs are by Newton's method with differences: the interpreter runs the path, and has no gradient."""
    return target.path.interpreted and not target.discrete.any()


def scouted(
    target: Target,
    modes: ModeMixture,
    state: ModeMixtureState,
    population: SMCState,
    rng: Generator,
    evaluations: int,
) -> tuple[ModeMixtureState, int | None]:
    """The state with the modes to which scouts climb, with at most about so many evaluations; and how many of them came
    to the highest modes, None where the density is not climbed.

    Scouts are draws of the prior. The climbs that found the first modes were a race, which those to a narrow mode lose:
    they begin far below. The highest of the many draws with which the population began climb as well, and do not count.
    """
    if may_climb(target):
        scouts = target.prior(max(evaluations // (2 * newton_cost(target.dim)), _MIN_SCOUTS), rng).points
        state, near = climbed(target, modes, state, scouts, newton_cost(target.dim) * len(scouts))
        return state, int(near.sum())
    if not is_climbable(target):
        return state, None
    number = int(np.clip(evaluations // (2 * CLIMB), 32, _MAX_SCOUTS))
    scouts = target.prior(number, rng).points
    of_each = number // (2 * len(population.sweeps)) + 1 if population.sweeps else 0
    starts = np.concatenate([scouts, *(sweep.highest[:of_each] for sweep in population.sweeps)])
    state, near = climbed(target, modes, state, starts, min(evaluations // 4, 40 * (20 * target.dim + 20)))
    return state, int(near[: len(scouts)].sum())


def reconciled(
    by_weights: Estimate, by_tempering: Estimate, opinion: Opinion, by_warm: Estimate | None = None
) -> Estimate:
    """The evidence by importance weights, by the bridge, or by tempering: the first of them that can be believed.

    Weights are believed if they have good diagnostics, no particle objects, and the others do not find more. The
    evidence `by_warm` tempering is taken where its error is smaller, and tempering from the prior does not find more.
    """
    trusted = are_good(by_weights)
    sd = heavy_tailed(by_weights.log_evidence_sd, by_weights.pareto_k, by_weights.ess)
    with_unseen = replace(by_weights, log_evidence_sd=float(np.hypot(sd, opinion.unseen)))
    if opinion.is_lost:
        return replace(with_unseen, is_confirmed=trusted)
    bridged = _bridged(by_weights, by_tempering, opinion)
    others_find_more = is_below(by_weights, by_tempering) or is_below(by_weights, bridged)
    if trusted and opinion.is_content and not others_find_more:
        return with_unseen
    is_worse = bridged.log_evidence_sd > by_tempering.log_evidence_sd or is_below(bridged, by_tempering)
    best = by_tempering if is_worse else bridged
    if by_warm is not None and not is_below(by_warm, by_tempering):
        best = min(best, by_warm, key=lambda each: each.log_evidence_sd)
    # Particles may have lost what climbs have found: even poor weights do not invent mass.
    says_little = best.log_evidence_sd > MAX_SD and by_weights.ess >= MIN_ESS
    is_lower = best.log_evidence < by_weights.log_evidence
    weights_stand = is_below(best, by_weights) or (says_little and is_lower)
    return replace(with_unseen, is_confirmed=False) if weights_stand else best


def are_good(by_weights: Estimate) -> bool:
    """Whether the diagnostics of importance weights are good enough for them to be believed if nobody objects."""
    return weights_are_trusted(by_weights.ess, by_weights.pareto_k) and not by_weights.pareto_k > _MAX_K


def _bridged(by_weights: Estimate, by_tempering: Estimate, opinion: Opinion) -> Estimate:
    """The evidence by the bridge between the draws of the proposal and the particles, with the better draws of both."""
    held_out = ~may_be_fitted(opinion.families)
    log_ratio, families = opinion.log_ratio[held_out], opinion.families[held_out]
    zero, nought = np.zeros(len(log_ratio)), np.zeros(len(opinion.log_weights))
    effective = max(opinion.ess * held_out.mean(), 1.0) if len(held_out) else 1.0
    log_z, sd = bridge(log_ratio, zero, opinion.log_weights, nought, effective, families)
    draws = by_weights if opinion.is_content and by_weights.ess > by_tempering.ess else by_tempering
    possible = log_z + 3 * sd if np.isfinite(sd) else log_z
    return replace(
        draws, log_evidence=log_z, log_evidence_sd=sd, method="Bridge", pareto_k=np.nan, log_possible=possible
    )


def is_below(one: Estimate, other: Estimate) -> bool:
    """Whether the evidence of one is significantly below that of the other."""
    return other.log_evidence - one.log_evidence > 3 * np.hypot(one.log_evidence_sd, other.log_evidence_sd)


def unconfirmed(by_weights: Estimate, by_tempering: Estimate | None, least_sd: float) -> Estimate:
    """The estimate before the population can be asked, with a larger error, which covers what is known of it."""
    best = by_weights
    if by_tempering is not None and not weights_are_trusted(by_weights.ess, by_weights.pareto_k):
        best = max((by_weights, by_tempering), key=lambda each: each.log_evidence)
    sd = max(heavy_tailed(best.log_evidence_sd, best.pareto_k, best.ess), least_sd)
    if by_tempering is not None and (by_tempering.log_possible > best.log_evidence or not by_tempering.is_rough):
        # Tempering, even under way, says more of what there may be than the weights, extrapolated; but nothing before
        # it has come to what they have found.
        best = replace(best, log_possible=max(best.log_evidence, by_tempering.log_possible))
    if by_tempering is not None and is_below(best, by_tempering):
        sd = by_tempering.log_evidence - best.log_evidence
    return replace(best, log_evidence_sd=sd, is_confirmed=False)
