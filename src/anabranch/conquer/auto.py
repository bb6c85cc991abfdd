"""Auto: the strategy that suits the path, and another when its diagnostics say that it does not.

| the path | first | then, while the diagnostics are poor |
| --- | --- | --- |
| finitely many values | `Enumerate`, exact | |
| nothing observed, no factor | `Forward`, draws from the prior | |
| few dimensions, few evaluations | a glance, on the host | as below, when there are more evaluations |
| real coordinates, with a gradient | `ModeMixture` | a mixture fitted to tempered particles; `HMC` and a bridge |
| real coordinates, no gradient | a mixture fitted to tempered particles | `SMC` |
| discrete coordinates among them | `SMC` | |

What one method learned is where the next starts. Importance weights, tempering and bridge sampling fail in different
ways; their estimates are compared, and the error reported covers what they disagree about.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.conquer.enumeration import Enumerate
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.forward import Forward
from anabranch.conquer.hmc import HMC
from anabranch.conquer.laplace import glance, glance_cost
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.population import broad
from anabranch.conquer.smc import SMC, SMCState
from anabranch.conquer.strategy import Strategy
from anabranch.conquer.student import StudentMixture, root_of
from anabranch.conquer.symmetry import find_symmetries, fold
from anabranch.conquer.target import Target
from anabranch.divide import finite_values, is_prior_alone
from anabranch.limits import LimitReached
from anabranch.settings import check, instance

__all__ = ["GLANCE_BELOW", "GLANCE_DIM", "Auto", "AutoState"]

ENUMERATE, GLANCE, MODES, PARTICLES, TEMPER, CHAINS = "enumerate", "glance", "modes", "particles", "temper", "chains"
FORWARD = "forward"

GLANCE_BELOW = 2_500
"""Evaluations of the first visit below which a path of few dimensions gets a glance, and no compilation."""
GLANCE_DIM, _GLANCE_DRAWS = 8, 200
"""Dimensions up to which a path gets a glance, and draws of that glance."""
_PATIENCE = 30_000
"""Evaluations that a method gets before its diagnostics count."""
_GLANCES = 2
"""Glances at a path, if the first fails, before more is spent on it."""
_GLANCE_ENDS = 10_000
"""Evaluations of all visits from which on a glance is no longer enough."""
_CHAINS_FROM = 10
"""Dimensions from which on chains are tried, where importance sampling fails."""


@dataclass(frozen=True)
class AutoState:
    """The method at work, its state, the evaluations it had, the glances so far, and the estimates of those before.

    `swept` is the tempered population that a mixture is to be fitted to, until it is.
    """

    method: str
    state: Any = None
    swept: SMCState | None = None
    spent: int = 0
    glances: int = 0
    before: tuple[Estimate, ...] = ()


@dataclass(frozen=True)
class Auto:
    """The default strategy: chooses a method for each path, watches it, and escalates.

    Args:
        modes: the method for real coordinates.
        tempering: the method that needs nothing of a path.
        chains: the method for many dimensions.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget
        >>> def coin(heads):
        ...     ab.observe("heads", dist.Binomial(10, ab.sample("p", dist.Beta(1.0, 1.0))), heads)
        >>> target, rng = PathTarget(ab.find_paths(coin, 7).paths[0]), np.random.default_rng(0)
        >>> state = Auto().advance(target, Auto().start(target, rng), rng, 20_000)
        >>> estimate = Auto().estimate(target, state)
        >>> estimate.method, bool(abs(estimate.log_evidence - np.log(1 / 11)) < 3 * estimate.log_evidence_sd < 0.03)
        ('ModeMixture', True)
    """

    modes: ModeMixture = field(default_factory=ModeMixture)
    tempering: SMC = field(default_factory=SMC)
    chains: HMC = field(default_factory=HMC)

    def __post_init__(self) -> None:
        for name, kind in (("modes", ModeMixture), ("tempering", SMC), ("chains", HMC)):
            check(self, **{name: instance(kind, f"a strategy {kind.__name__}()")})

    def start(self, target: Target, rng: np.random.Generator) -> AutoState:
        if target.dim == 0 or (target.discrete.all() and _enumerable(target)):
            return AutoState(ENUMERATE, Enumerate().start(target, rng))
        if is_prior_alone(target.path):
            return AutoState(FORWARD, Forward().start(target, rng))
        if target.discrete.any():
            return AutoState(TEMPER, self.tempering.start(target, rng))
        return AutoState(MODES if target.has_gradient else PARTICLES)

    def advance(self, target: Target, state: AutoState, rng: np.random.Generator, evaluations: int) -> AutoState:
        # Whether to change the method is decided at the next visit: if there is none, the path was not worth it.
        if (following := self._next(target, state)) is not None:
            state = self._switched(target, state, following)
        before = target.evaluations
        try:
            state = self._advanced(target, state, rng, evaluations)
        except errors.NoGradient:  # which shows when it is first asked for
            state = self._advanced(target, AutoState(PARTICLES), rng, evaluations)
        except LimitReached:  # before there was anything to keep
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
        strategies: dict[str, Strategy] = {ENUMERATE: Enumerate(), TEMPER: self.tempering, CHAINS: self.chains}
        strategies[FORWARD] = Forward()
        return strategies.get(method, self.modes)

    def _advanced(self, target: Target, state: AutoState, rng: np.random.Generator, left: int) -> AutoState:
        """Start the method if it has not begun, and go on with it."""
        # Without a gradient all evaluations are dear, and a glance is worth trying first.
        cheap = left < GLANCE_BELOW * target.cost or not target.has_gradient
        untried = not (state.state or state.before) and state.glances < _GLANCES
        if state.method in (MODES, PARTICLES) and untried and cheap and _fits_glance(target, left):
            state = replace(state, method=GLANCE, glances=state.glances + 1)
        elif state.method == GLANCE and target.has_gradient and state.spent + left >= _GLANCE_ENDS:
            state = self._switched(target, state, MODES)
        if state.method == PARTICLES and state.state is None:
            return self._with_particles(target, state, rng, left)
        if state.state is None:
            before = target.evaluations
            state = replace(state, state=self._begun(target, state, rng, left))
            if state.method == GLANCE and state.state.failed:
                return state
            left = max(left - (target.evaluations - before), 100)
            left = min(left, _GLANCE_DRAWS * target.cost) if state.method == GLANCE else left
        return replace(state, state=self._strategy(state.method).advance(target, state.state, rng, left))

    def _begun(self, target: Target, state: AutoState, rng: np.random.Generator, left: int) -> Any:
        if state.method == GLANCE:
            return glance(target, rng, self.modes)
        if state.method == CHAINS and state.before and len(state.before[-1].points):
            best = max(state.before, key=lambda each: each.ess)
            points = best.points[rng.choice(len(best.points), 4 * self.chains.chains, p=np.exp(best.log_weights))]
            return replace(self.chains, initial=points).start(target, rng)
        return self._strategy(state.method).start(target, rng)

    def _with_particles(self, target: Target, state: AutoState, rng: np.random.Generator, left: int) -> AutoState:
        """Temper a population, fit a mixture to it once it has come to the posterior, and sample from that."""
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

    def _from_particles(self, target: Target, swept: SMCState, rng: np.random.Generator) -> ModeMixtureState:
        """Importance sampling from a mixture fitted to the particles of a tempered population."""
        estimate = self.tempering.estimate(target, swept)
        if len(estimate.points) < 2 * target.dim:
            return ModeMixtureState(failed="too few particles survived the tempering")
        chosen = rng.choice(len(estimate.points), min(len(estimate.points), 2_000), p=np.exp(estimate.log_weights))
        points = estimate.points[chosen]
        prior = target.prior(500, rng).points
        symmetries = find_symmetries(target, points)
        points = fold(points, symmetries)
        return self.modes.start_from(_fitted(points, rng), broad(prior if len(prior) > 50 else points), symmetries)

    # When to change them ----------------------------------------------------------------------------------------

    def _next(self, target: Target, state: AutoState) -> str | None:
        """The method to go over to, if the one at work does badly."""
        if state.method in (ENUMERATE, FORWARD, TEMPER, CHAINS) or state.state is None:
            return None
        failed = bool(state.state.failed)
        if not failed and (state.spent < _PATIENCE or _is_hopeful(self.modes.estimate(target, state.state))):
            return None
        if state.method == GLANCE:
            return MODES if target.has_gradient else PARTICLES
        if state.method == MODES:
            return PARTICLES
        is_whole = target.dim == target.path.dim  # nothing was summed out, for which chains have no gradient
        if target.has_gradient and is_whole and target.dim >= _CHAINS_FROM and not failed:
            return CHAINS
        return TEMPER

    def _switched(self, target: Target, state: AutoState, method: str) -> AutoState:
        if state.method == GLANCE and state.state.failed:
            return AutoState(method, glances=state.glances)
        done = self._strategy(state.method).estimate(target, state.state)
        # A glance has no voice beside what gradients find.
        before = state.before if state.method == GLANCE and method == MODES else (*state.before, done)
        return AutoState(method, glances=_GLANCES, before=before)


def _enumerable(target: Target) -> bool:
    values = finite_values(target.path) if target.dim == target.path.dim else (None,)
    sizes = [0 if each is None else len(each) for each in values]
    return all(sizes) and float(np.prod(np.array(sizes, float))) <= Enumerate().most


def _fits_glance(target: Target, left: int) -> bool:
    return target.dim <= GLANCE_DIM and glance_cost(target.dim) < max(0.75 * left / target.cost, 2 * _GLANCE_DRAWS)


def _is_trusted(estimate: Estimate) -> bool:
    """Whether importance weights can be trusted."""
    return estimate.ess > 100 and not estimate.pareto_k > 0.7


def _is_hopeful(estimate: Estimate) -> bool:
    """Whether importance weights are worth going on with, though they may not be trusted yet."""
    return estimate.ess > max(100, 0.01 * len(estimate.points)) and not estimate.pareto_k > 1


def _fitted(points: np.ndarray, rng: np.random.Generator, most: int = 12) -> StudentMixture:
    """A mixture fitted to points: components begin at points far from each other, with a part of the whole scale."""
    n, d = points.shape
    size = int(np.clip(n // (10 * (d + 1)), 1, most))
    scale = np.atleast_2d(np.cov(points.T)) + 1e-12 * np.eye(d)
    standard = points @ np.linalg.inv(root_of(scale)).T
    centres = [int(rng.integers(n))]
    distance = np.full(n, np.inf)
    for _ in range(size - 1):
        distance = np.minimum(distance, ((standard - standard[centres[-1]]) ** 2).sum(axis=1))
        centres.append(int(rng.choice(n, p=distance / distance.sum())) if distance.sum() > 0 else centres[0])
    roots = np.tile(root_of(scale / size), (size, 1, 1))
    mixture = StudentMixture(points[centres], roots, np.full(size, 1 / size), np.full(size, 5.0))
    for _ in range(20):
        mixture = mixture.refitted(points, np.full(n, 1 / n))
    return mixture


def _reconciled(estimates: list[Estimate], evaluations: int) -> Estimate:
    """The estimate to believe: weights that can be trusted before anything else, then the smallest error.

    A method that fails misses mass, and says too little. So one that says significantly more is believed, and where
    the weights cannot be trusted, the error covers the most that any method says.
    """
    usable = [each for each in estimates if np.isfinite(each.log_evidence) and each.log_evidence_sd < 1]
    usable = usable or [each for each in estimates if np.isfinite(each.log_evidence)] or estimates
    highest = max(usable, key=lambda each: each.log_evidence)
    agreeing = [each for each in usable if not _says_less(each, highest)]
    trusted = [each for each in agreeing if _is_trusted(each) or each.log_evidence_sd == 0]
    best = min(trusted or agreeing, key=lambda each: each.log_evidence_sd)
    sd = best.log_evidence_sd
    if not trusted and np.isfinite(sd):
        sd = max(sd, highest.log_evidence - best.log_evidence)
    return replace(best, log_evidence_sd=sd, evaluations=evaluations)


def _says_less(one: Estimate, other: Estimate) -> bool:
    return other.log_evidence - one.log_evidence > 3 * np.hypot(one.log_evidence_sd, other.log_evidence_sd)
