"""Auto: the strategy that suits the path, a second opinion on it, and another one if the two disagree.

| the path | first | then |
| --- | --- | --- |
| finitely many values | `Enumerate`, exact | |
| nothing observed, no factor | `Forward`, draws from the prior | |
| a quadratic log density | `Gaussian`, exact | |
| all coordinates but one Gaussian given that | `Quadrature`, exact | |
| some that are gamma or beta given the others | these are integrated out (`conjugate`) | as below, for the others |
| few dimensions, few evaluations | a Laplace estimate, on the host | as below, when there are more evaluations |
| real coordinates, with a gradient | `ModeMixture` | a tempered population, and what the two agree on |
| real coordinates, no gradient | a mixture fitted to a tempered population | the same |
| discrete coordinates among them | `SMC` | more sweeps |

Importance weights and tempering fail in different ways (`second_opinion`). Where the population objects, the evidence
is that of a bridge or of tempering (from the prior, or from a mixture fitted to the population: `warm_tempering`).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator

from anabranch import errors
from anabranch.conquer.auto_state import LAPLACE, MODES, PARTICLES, AutoState
from anabranch.conquer.enumeration import Enumerate
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.forward import Forward
from anabranch.conquer.gaussian import Gaussian, GaussianState
from anabranch.conquer.integrated import integrated_out
from anabranch.conquer.interpreted_paths import InterpretedPaths
from anabranch.conquer.jumps import is_climbable
from anabranch.conquer.laplace import Laplace, laplace_start
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.particle_mixture import mixture_of_particles
from anabranch.conquer.prior_scan import scanned
from anabranch.conquer.quadrature import Quadrature
from anabranch.conquer.second_opinion import (
    MAX_ASKED,
    answered,
    are_good,
    consult,
    is_enough,
    reconciled,
    scouted,
    unconfirmed,
)  # fmt: skip
from anabranch.conquer.settling import may_settle, needs_families, settle, with_settled
from anabranch.conquer.smc import SMC, SMCState
from anabranch.conquer.strategy import Strategy
from anabranch.conquer.symmetry import Exchangeable
from anabranch.conquer.target import Target
from anabranch.divide import Path, is_prior_alone
from anabranch.limits import LimitReached
from anabranch.settings import check, instance, positive, whole

__all__ = ["Auto", "AutoState"]

ENUMERATE, FORWARD, TEMPER = "enumerate", "forward", "temper"
GAUSSIAN, QUADRATURE = "gaussian", "quadrature"


@dataclass(frozen=True)
class Auto:
    """The default strategy: chooses a method for each path, asks for a second opinion, and decides between the two.

    Args:
        modes: the method for real coordinates.
        tempering: the method for every path, and the second opinion.
        quadrature: the method for paths in which all coordinates but one are Gaussian given this one.
        laplace: when a Laplace estimate suffices.
        interpreted: what differs where the interpreter runs the path.
        min_chains: chains of a second opinion, over all its sweeps; fewer may all lie in the same modes.
        min_prior_draws: prior draws of a second opinion, or half the evaluations of a visit; fewer miss rare mass.
        sweep_evaluations: evaluations by which the size of its sweeps is chosen; more make larger ones.
        min_draws: draws of the mixture before it is asked for; fewer miss the tail of their own weights.
        scan_from: evaluations of a visit from which on the prior is scanned for narrow modes (`prior_scan`).
        max_scans: scans of a path; the last one comes before weights that nobody objects to are believed.
        jumps_from: evaluations of a visit from which on jumps of the density are looked for.
        min_fitted: effective particles to which the start of a warm population is fitted; fewer may lie in one mode.
        max_rounds: how often a mixture is extended by the particles that object to it.
        unconfirmed_sd: the least error of an estimate without a second opinion.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def coin(heads):
        ...     ab.observe("heads", dist.Binomial(10, ab.sample("p", dist.Beta(1.0, 1.0))), heads)
        >>> estimate = solve(Auto(), PathTarget(ab.find_paths(coin, 7).paths[0]), 20_000)
        >>> estimate.method, bool(abs(estimate.log_evidence - np.log(1 / 11)) < 3 * estimate.log_evidence_sd)
        ('ModeMixture', True)
    """

    modes: ModeMixture = field(default_factory=ModeMixture)
    tempering: SMC = field(default_factory=lambda: SMC(chains=64, draws=256))
    quadrature: Quadrature = field(default_factory=Quadrature)
    laplace: Laplace = field(default_factory=Laplace)
    interpreted: InterpretedPaths = field(default_factory=InterpretedPaths)
    min_chains: int = 90
    min_prior_draws: int = 20_000
    sweep_evaluations: int = 100_000
    min_draws: int = 10_000
    scan_from: int = 20_000
    max_scans: int = 2
    jumps_from: int = 5_000
    min_fitted: float = 8.0
    max_rounds: int = 6
    unconfirmed_sd: float = 0.05

    def __post_init__(self) -> None:
        for name, kind in (("modes", ModeMixture), ("tempering", SMC), ("quadrature", Quadrature)):
            check(self, **{name: instance(kind, f"a strategy {kind.__name__}()")})
        check(self, laplace=instance(Laplace, "settings Laplace()"),
              interpreted=instance(InterpretedPaths, "settings InterpretedPaths()"), min_chains=whole(),
              min_prior_draws=whole(), sweep_evaluations=whole(1), min_draws=whole(1), scan_from=whole(),
              max_scans=whole(), jumps_from=whole(), min_fitted=positive(), max_rounds=whole(),
              unconfirmed_sd=positive())  # fmt: skip

    def cheapest_visit(self, dim: int) -> int:
        """Evaluations below which a first visit to a path with so many dimensions is a Laplace estimate; else 0."""
        return self.laplace.below if dim <= self.laplace.max_dim else 0

    def exact_visit(self, path: Path) -> int:
        return Gaussian().exact_visit(path)

    def can_scout(self, path: Path) -> bool:
        return self.laplace.can_scout(path)

    def integrated(self, target: Target, evaluations: int) -> Target:
        """The target without coordinates that are gamma or beta given the others, if the visit can bear it."""
        if evaluations < self.laplace.below:
            return target
        return integrated_out(target, evaluations, self.quadrature.max_dim)

    def start(self, target: Target, rng: Generator) -> AutoState:
        if target.discrete.all():
            with suppress(errors.StrategyCannotRun):
                return AutoState(ENUMERATE, Enumerate().start(target, rng))
        if is_prior_alone(target.path):
            return AutoState(FORWARD, Forward().start(target, rng))
        if Gaussian().fits(target, target.left):
            return AutoState(GAUSSIAN, GaussianState(np.zeros((0, target.dim))))
        with suppress(errors.StrategyCannotRun):
            return AutoState(QUADRATURE, self.quadrature.start(target, rng))
        if target.discrete.any():
            return AutoState(TEMPER, self.tempering.start(target, rng))
        return AutoState(MODES if target.has_gradient else PARTICLES)

    def advance(self, target: Target, state: AutoState, rng: Generator, evaluations: int) -> AutoState:
        before = target.evaluations
        with suppress(LimitReached):
            state = self._advanced(target, state, rng, evaluations)
        return replace(state, spent=state.spent + target.evaluations - before)

    def estimate(self, target: Target, state: AutoState) -> Estimate:
        if state.method == TEMPER:
            is_whole = is_enough(state.state, self.min_chains // 4)
            return replace(self.tempering.estimate(target, state.state), is_confirmed=is_whole)
        if state.method in (ENUMERATE, FORWARD, GAUSSIAN, QUADRATURE):
            exact = self._strategy(state.method).estimate(target, state.state)
            is_scanned = state.method != QUADRATURE or self.quadrature.is_scanned(target, state.state)
            return exact if is_scanned else unconfirmed(exact, None, self.unconfirmed_sd)
        by_tempering = None if state.population is None else self.tempering.estimate(target, state.population)
        if state.state is None:
            by_weights = Estimate.nothing(target.dim, target.evaluations, "Auto")
            return by_weights if by_tempering is None else unconfirmed(by_weights, by_tempering, self.unconfirmed_sd)
        by_weights = self.modes.estimate(target, state.state)
        if by_tempering is None or state.opinion is None or not (state.opinion.is_lost or len(state.opinion.points)):
            least = max(self.unconfirmed_sd, self.modes.log_unseen(state.state))
            return unconfirmed(by_weights, by_tempering, least)
        by_warm = None if state.warm is None else state.warm.estimate(target, self.tempering)
        estimate = reconciled(by_weights, by_tempering, state.opinion, by_warm)
        estimate = with_settled(target, state, estimate)
        correction = estimate.log_evidence - state.first
        return replace(estimate, evaluations=target.evaluations, correction=correction)

    # The methods ------------------------------------------------------------------------------------------------

    def _strategy(self, method: str) -> Strategy:
        strategies: dict[str, Strategy] = {
            ENUMERATE: Enumerate(), FORWARD: Forward(), GAUSSIAN: Gaussian(), QUADRATURE: self.quadrature,
            TEMPER: self.tempering,
        }  # fmt: skip
        return strategies.get(method, self.modes)

    def _advanced(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """Begin the method, or improve on it."""
        if state.method in (ENUMERATE, FORWARD, TEMPER):
            return replace(state, state=self._strategy(state.method).advance(target, state.state, rng, left))
        if state.method in (GAUSSIAN, QUADRATURE):
            before = target.evaluations
            exact = self._strategy(state.method).advance(target, state.state, rng, left)
            if exact.is_solved:
                return replace(state, state=exact)
            left = max(left - (target.evaluations - before), 1)
            state = AutoState(MODES)  # rounding hides the Gaussian, or the density is not smooth
        state = self._chosen(target, state, left)
        if state.method == PARTICLES and not state.has_mixture:
            return self._with_particles(target, state, rng, left)
        if not state.has_mixture:
            return self._first_visit(target, state, rng, left)
        if state.method == LAPLACE and not self.interpreted.asks(target, self.modes, state, self.unconfirmed_sd):
            mixture = self.interpreted.adapting(target, self.modes, state.state, left)
            return replace(state, state=self.modes.advance(target, mixture, rng, left))
        return self._improved(target, state, rng, left)

    def _chosen(self, target: Target, state: AutoState, left: int) -> AutoState:
        """The state with the method by which a mixture is found: a Laplace estimate, gradients, or particles."""
        failed = state.state is not None and bool(state.state.failed)
        if self.interpreted.keeps(target, state):
            return state
        if state.method == LAPLACE and not failed and state.spent + left < self.laplace.max_spent:
            return state
        # A Laplace estimate is worth trying where evaluations are expensive, or a visit has ended without a mixture.
        cheap = left < self.laplace.below or not target.has_gradient or state.spent > 0
        untried = not state.has_mixture and state.attempts < self.laplace.attempts
        if untried and cheap and state.population is None and self.laplace.fits(target, left):
            return AutoState(LAPLACE, spent=state.spent, attempts=state.attempts + 1)
        if state.method == LAPLACE:
            method = MODES if target.has_gradient else PARTICLES
            state, failed = AutoState(method, spent=state.spent, attempts=self.laplace.attempts), False
        # Jumps are looked for where a visit is large enough to bear it.
        if state.method == MODES and (failed or (left > self.jumps_from and not is_climbable(target))):
            return AutoState(PARTICLES, population=state.population, spent=state.spent, attempts=self.laplace.attempts)
        return state

    def _first_visit(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """A mixture on the modes, and draws from it."""
        before = target.evaluations
        if state.method == LAPLACE:
            mixture = laplace_start(target, rng, self.modes)
            left = min(max(left - (target.evaluations - before), 100), self.laplace.draws)
        else:
            mixture = self.modes.start(target, rng)
        return replace(state, state=mixture if mixture.failed else self.modes.advance(target, mixture, rng, left))

    def _with_particles(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """Temper a population; once it has reached the posterior, fit a mixture to it and sample from that."""
        before = target.evaluations
        population = state.population or self.tempering.start(target, rng)
        if not self._suffices(target, population):
            population = self._tempered(target, population, rng, left // 2)
        state = replace(state, population=population)
        if not self._suffices(target, population):
            return state
        try:
            mixture = mixture_of_particles(target, population, rng)
        except LimitReached:
            return state
        if not mixture.failed:
            mixture = self.modes.advance(target, mixture, rng, max(left - (target.evaluations - before), 100))
        return replace(state, state=mixture)

    def _suffices(self, target: Target, population: SMCState) -> bool:
        """Whether a mixture can be fitted to the particles of finished sweeps."""
        return population.particles >= 4 * target.dim

    # The second opinion -----------------------------------------------------------------------------------------

    def _improved(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """More particles until they can be asked; then whatever lowers the error."""
        end = target.evaluations + left
        if state.opinion is not None and (settled := self._settled(target, state, rng, left)) is not None:
            return settled
        if state.population is None:  # a population may take several visits: until then the weights are all there is
            state = replace(state, state=self._reweighted(target, state.state, rng, left))
        left = end - target.evaluations
        may_scan = left >= self.scan_from and state.scans < self.max_scans
        if may_scan and (state.population is None or self._believes_weights(target, state)):
            state = self._scanned(target, state, rng, left - left // 3)
        left = end - target.evaluations
        population = state.population or self.tempering.start(target, rng)
        # Where a visit is small, many paths share the budget, or there is little of it: fewer draws must do.
        draws = min(self.min_prior_draws, left // 2) - state.scanned
        least = (self.interpreted.min_chains, 0) if target.path.interpreted else (self.min_chains, draws)
        if not is_enough(population, *least):
            # The rest is for asking it.
            population = self._tempered(target, population, rng, left - left // 3, state.blocks)
            if not is_enough(population, *least) or end - target.evaluations < min(population.particles, MAX_ASKED):
                return replace(state, population=population)
        state = replace(state, population=population)
        if state.opinion is None:
            if np.isnan(state.first):
                state = replace(state, first=self.modes.estimate(target, state.state).log_evidence)
            state = self._scouted(target, state, rng, end - target.evaluations)
        if (settled := self._settled(target, state, rng, end - target.evaluations)) is not None:
            return settled
        asking = left if state.opinion is None else left // 2  # the rest is for what the last answer was worth
        state = self._consulted(target, state, rng, end - left + asking)
        left = end - target.evaluations
        if left < 1 or state.opinion is None:
            return state
        estimate = self.estimate(target, state)
        if estimate.method == "ModeMixture" and state.opinion.unseen < 0.5 * estimate.log_evidence_sd:
            return self._with_more_draws(target, state, rng, left)
        if estimate.method == "ModeMixture" and state.scouts_see_more:
            return self._scouted(target, state, rng, left)
        may_fit = state.opinion.ess >= self.min_fitted and state.unseen < 0.5 * estimate.log_evidence_sd
        if estimate.method == "Bridge":
            state = self._with_more_draws(target, state, rng, left // 2)
        if may_fit and not state.blocks:
            return state.warmed(target, self.tempering, rng, end - target.evaluations, self.sweep_evaluations)
        return replace(
            state, population=self._tempered(target, population, rng, end - target.evaluations, state.blocks)
        )

    def _settled(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState | None:
        """The state after more of the chains at the posterior, or of the population that they need; None if in vain."""
        worth = state.has_blocks and may_settle(target, state, self.estimate(target, state), left)
        if worth and state.population is not None and needs_families(state):
            return replace(state, population=self._tempered(target, state.population, rng, left, state.blocks))
        settled = settle(target, state, rng, left) if worth else state
        return None if settled is state else settled

    def _reweighted(self, target: Target, mixture: ModeMixtureState, rng: Generator, left: int) -> ModeMixtureState:
        """The mixture with enough draws for its diagnostics; if those are poor, adapted with half the evaluations."""
        mixture = self.modes.drawn(target, mixture, rng, min(self.modes.first_draws, left // 4))
        if mixture.failed or are_good(self.modes.estimate(target, mixture)):
            return mixture
        better = self.modes.advance(target, mixture, rng, left // 2)
        return mixture if better.failed else better

    def _scanned(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """The state with the modes that a scan of the prior has found; if there are any, all are to be asked again."""
        mixture, draws = state.state, 0
        with suppress(LimitReached):
            mixture, draws = scanned(target, self.modes, mixture, rng, left)
        opinion = state.opinion if mixture is state.state else None
        return replace(state, state=mixture, opinion=opinion, scans=state.scans + 1, scanned=state.scanned + draws)

    def _scouted(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """The state after climbs from the prior. If they have found a mode, all are to be asked again."""
        assert state.population is not None
        if state.method == PARTICLES and target.path.interpreted:  # no climb has found its mixture
            return state
        before = target.evaluations
        with suppress(LimitReached):
            mixture, scouts = scouted(target, self.modes, state.state, state.population, rng, left)
            spent, opinion = target.evaluations - before, state.opinion
            if mixture is not state.state:
                return replace(state, state=mixture, opinion=None, scouts=scouts, scouting=spent)
            if scouts is not None:
                scouts, spent = scouts + (state.scouts or 0), spent + state.scouting
            opinion = None if opinion is None else replace(opinion, scouts=scouts)
            return replace(state, opinion=opinion, scouts=scouts, scouting=spent)
        return state

    def _tempered(
        self, target: Target, population: SMCState, rng: Generator, left: int, blocks: tuple[Exchangeable, ...] = ()
    ) -> SMCState:
        """The population after so many more evaluations; a sweep may take several visits."""
        size = self.interpreted.sweep(left) if target.path.interpreted else max(left, self.sweep_evaluations)
        # A sweep that the end of a small visit cuts short is poor: it may take twice as much.
        with target.bounded(2 * size if target.path.interpreted else left):
            return replace(self.tempering, blocks=blocks or None).advance(target, population, rng, size)

    def _consulted(self, target: Target, state: AutoState, rng: Generator, end: int) -> AutoState:
        """The state with the opinion of the population, and a mixture to which it objects no longer, if possible."""
        population, opinion = state.population, state.opinion
        assert population is not None
        rounds = 0 if opinion is None else opinion.rounds
        min_draws = self.interpreted.min_draws if target.path.interpreted else self.min_draws
        is_new = opinion is None or opinion.sweeps < len(population.sweeps) or not opinion.is_content
        with suppress(LimitReached):
            while is_new and rounds <= self.max_rounds:
                affordable = end - target.evaluations - min(population.particles, MAX_ASKED)
                mixture = self.modes.drawn(target, state.state, rng, min(min_draws, affordable))
                if mixture.failed or not mixture.pooled:
                    break
                opinion = consult(target, self.modes, mixture, population, rng, state.scouts, rounds)
                state = replace(state, state=mixture, opinion=opinion)
                left = end - target.evaluations
                is_good = opinion.is_content and are_good(self.modes.estimate(target, mixture))
                if is_good or left < min_draws // 2:
                    break
                rounds += 1
                state = replace(state, state=answered(target, self.modes, mixture, opinion, rng, left // 2))
        return state

    def _believes_weights(self, target: Target, state: AutoState) -> bool:
        """Whether the population was asked, and the evidence is that by importance weights."""
        return state.opinion is not None and self.estimate(target, state).method == "ModeMixture"

    def _with_more_draws(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """More draws from the mixture, and what the population says of it if it was adapted to them."""
        opinion, population = state.opinion, state.population
        assert opinion is not None
        assert population is not None
        asked = len(opinion.points)  # evaluations of another opinion
        mixture = self.modes.advance(target, state.state, rng, max(left - asked, left // 2))
        if mixture.failed or not mixture.pooled or mixture.log_weights is None:
            return state
        if mixture.proposal is state.state.proposal:
            return replace(state, state=mixture, opinion=opinion.of_more_draws(mixture.log_weights))
        with suppress(LimitReached):
            opinion = consult(target, self.modes, mixture, population, rng, state.scouts, opinion.rounds)
            return replace(state, state=mixture, opinion=opinion)
        return state
