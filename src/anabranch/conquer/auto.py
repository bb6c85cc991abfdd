"""Auto: the strategy that suits the path, and another one if its diagnostics are poor.

| the path | first | then, while the diagnostics are poor |
| --- | --- | --- |
| finitely many values | `Enumerate`, exact | |
| nothing observed, no factor | `Forward`, draws from the prior | |
| few dimensions, few evaluations | a Laplace estimate, on the host | as below, when there are more evaluations |
| real coordinates, with a gradient | `ModeMixture` | a mixture fitted to tempered particles; `HMC` and a bridge |
| real coordinates, no gradient | a mixture fitted to tempered particles | `SMC` |
| discrete coordinates among them | `SMC` | |

Each method starts from the draws of the one before. Importance weights, tempering and bridge sampling fail in different
ways, so their estimates are compared, and the reported error covers their differences.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from anabranch import errors
from anabranch.conquer.enumeration import Enumerate
from anabranch.conquer.estimate import MAX_PARETO_K, MIN_ESS, Estimate
from anabranch.conquer.forward import Forward
from anabranch.conquer.hmc import HMC
from anabranch.conquer.laplace import Laplace, laplace_start
from anabranch.conquer.mixture_fit import fit_to_points
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.population import broad
from anabranch.conquer.smc import SMC, SMCState
from anabranch.conquer.strategy import Strategy
from anabranch.conquer.symmetry import find_symmetries, fold
from anabranch.conquer.target import Target
from anabranch.divide import is_prior_alone
from anabranch.limits import LimitReached
from anabranch.settings import check, instance, whole

__all__ = ["Auto", "AutoState"]

ENUMERATE, FORWARD, LAPLACE, MODES = "enumerate", "forward", "laplace", "modes"
PARTICLES, TEMPER, CHAINS = "particles", "temper", "chains"


@dataclass(frozen=True)
class AutoState:
    """The method at work, its state (None before it has begun), the tempered population to which a mixture will be
    fitted, the evaluations of the method, the Laplace estimates so far, and the estimates of earlier methods."""

    method: str
    state: Any = None
    swept: SMCState | None = None
    spent: int = 0
    attempts: int = 0
    before: tuple[Estimate, ...] = ()


@dataclass(frozen=True)
class Auto:
    """The default strategy: chooses a method for each path, checks its diagnostics, and escalates.

    Args:
        modes: the method for real coordinates.
        tempering: the method for every path.
        chains: the method for many dimensions.
        laplace: when a Laplace estimate suffices.
        patience: evaluations of a method before poor diagnostics end it; more may be wasted, less may be premature.
        chains_from: dimensions from which on chains are tried where importance sampling fails; they take a compilation.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def coin(heads):
        ...     ab.observe("heads", dist.Binomial(10, ab.sample("p", dist.Beta(1.0, 1.0))), heads)
        >>> estimate = solve(Auto(), PathTarget(ab.find_paths(coin, 7).paths[0]), 20_000)
        >>> estimate.method, bool(abs(estimate.log_evidence - np.log(1 / 11)) < 3 * estimate.log_evidence_sd < 0.03)
        ('ModeMixture', True)
    """

    modes: ModeMixture = field(default_factory=ModeMixture)
    tempering: SMC = field(default_factory=SMC)
    chains: HMC = field(default_factory=HMC)
    laplace: Laplace = field(default_factory=Laplace)
    patience: int = 30_000
    chains_from: int = 10

    def __post_init__(self) -> None:
        for name, kind in (("modes", ModeMixture), ("tempering", SMC), ("chains", HMC)):
            check(self, **{name: instance(kind, f"a strategy {kind.__name__}()")})
        check(self, laplace=instance(Laplace, "settings Laplace()"), patience=whole(), chains_from=whole())

    def cheapest_visit(self, dim: int) -> int:
        """Evaluations below which a first visit to a path with so many dimensions is a Laplace estimate; else 0."""
        return self.laplace.below if dim <= self.laplace.max_dim else 0

    def start(self, target: Target, rng: Generator) -> AutoState:
        if target.discrete.all():
            with suppress(errors.StrategyCannotRun):
                return AutoState(ENUMERATE, Enumerate().start(target, rng))
        if is_prior_alone(target.path):
            return AutoState(FORWARD, Forward().start(target, rng))
        if target.discrete.any():
            return AutoState(TEMPER, self.tempering.start(target, rng))
        return AutoState(MODES if target.has_gradient else PARTICLES)

    def advance(self, target: Target, state: AutoState, rng: Generator, evaluations: int) -> AutoState:
        # The method is changed at the next visit: without one, the path was not worth it.
        if (following := self._next(target, state)) is not None:
            state = self._switched(target, state, following)
        before = target.evaluations
        try:
            state = self._advanced(target, state, rng, evaluations)
        except errors.NoGradient:  # only differentiating shows it
            state = self._advanced(target, AutoState(PARTICLES), rng, evaluations)
        except LimitReached:
            pass
        return replace(state, spent=state.spent + target.evaluations - before)

    def estimate(self, target: Target, state: AutoState) -> Estimate:
        estimates = [*state.before]
        if state.state is not None:
            estimates.append(self._strategy(state.method).estimate(target, state.state))
        elif state.swept is not None:
            estimates.append(self.tempering.estimate(target, state.swept))
        if not estimates:
            return Estimate.nothing(target.dim, target.evaluations, "Auto")
        return _reconciled(estimates, target.evaluations)

    # The methods ------------------------------------------------------------------------------------------------

    def _strategy(self, method: str) -> Strategy:
        strategies: dict[str, Strategy] = {
            ENUMERATE: Enumerate(), FORWARD: Forward(), TEMPER: self.tempering, CHAINS: self.chains
        }  # fmt: skip
        return strategies.get(method, self.modes)

    def _advanced(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """Start the method if it has not begun, and advance it."""
        # Without a gradient all evaluations are expensive, and a Laplace estimate is worth trying first.
        cheap = left < self.laplace.below * target.cost or not target.has_gradient
        untried = not (state.state or state.before) and state.attempts < self.laplace.attempts
        if state.method in (MODES, PARTICLES) and untried and cheap and self.laplace.fits(target, left):
            state = replace(state, method=LAPLACE, attempts=state.attempts + 1)
        elif state.method == LAPLACE and target.has_gradient and state.spent + left >= self.laplace.max_spent:
            state = self._switched(target, state, MODES)
        if state.method == PARTICLES and state.state is None:
            return self._with_particles(target, state, rng, left)
        if state.state is None:
            before = target.evaluations
            state = replace(state, state=self._begun(target, state, rng))
            if state.method == LAPLACE and state.state.failed:
                return state
            left = max(left - (target.evaluations - before), 100)
            left = min(left, self.laplace.draws * target.cost) if state.method == LAPLACE else left
        return replace(state, state=self._strategy(state.method).advance(target, state.state, rng, left))

    def _begun(self, target: Target, state: AutoState, rng: Generator) -> Any:
        if state.method == LAPLACE:
            return laplace_start(target, rng, self.modes)
        if state.method == CHAINS and state.before and len(state.before[-1].points):
            best = max(state.before, key=lambda each: each.ess)
            points = best.points[rng.choice(len(best.points), 4 * self.chains.chains, p=np.exp(best.log_weights))]
            return replace(self.chains, initial=points).start(target, rng)
        return self._strategy(state.method).start(target, rng)

    def _with_particles(self, target: Target, state: AutoState, rng: Generator, left: int) -> AutoState:
        """Temper a population; once it has reached the posterior, fit a mixture to it and sample from that."""
        before = target.evaluations
        swept = state.swept or self.tempering.start(target, rng)
        if not swept.sweeps:
            swept = self.tempering.advance(target, swept, rng, left // 2)
        state = replace(state, swept=swept)
        if swept.under_way is not None and not swept.sweeps:
            return state
        try:
            mixture = self._from_particles(target, swept, rng)
        except LimitReached:
            return state
        if not mixture.failed:
            mixture = self.modes.advance(target, mixture, rng, max(left - (target.evaluations - before), 100))
        return replace(state, state=mixture, swept=None)

    def _from_particles(self, target: Target, swept: SMCState, rng: Generator) -> ModeMixtureState:
        """Importance sampling from a mixture fitted to the particles of a tempered population."""
        estimate = self.tempering.estimate(target, swept)
        if len(estimate.points) < 2 * target.dim:
            return ModeMixtureState(failed="too few particles survived the tempering")
        chosen = rng.choice(len(estimate.points), min(len(estimate.points), 2_000), p=np.exp(estimate.log_weights))
        points = estimate.points[chosen]
        prior = target.prior(500, rng).points
        symmetries = find_symmetries(target, points)
        points = fold(points, symmetries)
        defensive = broad(prior if len(prior) > 50 else points)
        return ModeMixtureState(fit_to_points(points, rng), defensive, tuple(symmetries))

    # When to change them ----------------------------------------------------------------------------------------

    def _next(self, target: Target, state: AutoState) -> str | None:
        """The method to change to, if the one at work has poor diagnostics."""
        if state.method in (ENUMERATE, FORWARD, TEMPER, CHAINS) or state.state is None:
            return None
        failed = bool(state.state.failed)
        if not failed and (state.spent < self.patience or _is_hopeful(self.modes.estimate(target, state.state))):
            return None
        if state.method == LAPLACE:
            return MODES if target.has_gradient else PARTICLES
        if state.method == MODES:
            return PARTICLES
        compilable = target.has_gradient and not target.is_marginal
        return CHAINS if compilable and target.dim >= self.chains_from and not failed else TEMPER

    def _switched(self, target: Target, state: AutoState, method: str) -> AutoState:
        if state.method == LAPLACE and state.state.failed:
            return AutoState(method, attempts=state.attempts)
        done = self._strategy(state.method).estimate(target, state.state)
        # A Laplace estimate is not compared with one by gradients.
        before = state.before if state.method == LAPLACE and method == MODES else (*state.before, done)
        return AutoState(method, attempts=self.laplace.attempts, before=before)


def _is_trusted(estimate: Estimate) -> bool:
    """Whether the importance weights are reliable."""
    return estimate.ess > MIN_ESS and not estimate.pareto_k > MAX_PARETO_K


def _is_hopeful(estimate: Estimate) -> bool:
    """Whether more importance weights may become reliable."""
    return estimate.ess > max(MIN_ESS, 0.01 * len(estimate.points)) and not estimate.pareto_k > 1


def _reconciled(estimates: list[Estimate], evaluations: int) -> Estimate:
    """The best of several estimates: reliable weights before anything else, then the smallest error.

    A method that fails misses mass, and its evidence is too low. So one with significantly more evidence is preferred,
    and where no weights are reliable, the error covers the highest evidence of all methods.
    """
    usable = [each for each in estimates if np.isfinite(each.log_evidence) and each.log_evidence_sd < 1]
    usable = usable or [each for each in estimates if np.isfinite(each.log_evidence)] or estimates
    highest = max(usable, key=lambda each: each.log_evidence)
    agreeing = [each for each in usable if not _is_below(each, highest)]
    trusted = [each for each in agreeing if _is_trusted(each) or each.log_evidence_sd == 0]
    best = min(trusted or agreeing, key=lambda each: each.log_evidence_sd)
    sd = best.log_evidence_sd
    if not trusted and np.isfinite(sd):
        sd = max(sd, highest.log_evidence - best.log_evidence)
    return replace(best, log_evidence_sd=sd, evaluations=evaluations)


def _is_below(one: Estimate, other: Estimate) -> bool:
    """Whether the evidence of one is significantly below that of the other."""
    return other.log_evidence - one.log_evidence > 3 * np.hypot(one.log_evidence_sd, other.log_evidence_sd)
