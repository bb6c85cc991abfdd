"""Mode mixture: importance sampling from Student-t distributions on the modes, adapted to their own weights.

1. Climb from many overdispersed starts, polish the distinct best, and take the curvature there (`ascent`): the
   paper's greedy start (appendix F), with gradients.
2. Put a Student-t distribution on each mode. Two defensive components protect against mass that these miss: a
   Student-t distribution as wide as the prior, and the prior itself where it can be drawn from exactly, which bounds
   the weights by the likelihood (Hesterberg, 1995).
3. Adapt: draw from the mixture q and refit it to the weights γ_k/q (`mixture_fit`), as the layers of PI-MAIS do
   (appendix D), with a population in place of the chains.
4. Draw from the adapted mixture. The mean of the weights is Ẑ_k, and their scatter its error.

Exchangeable components are integrated over one ordering (`symmetry`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.ascent import Modes, polish
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.mixture_fit import fit_to_modes, fit_to_weights
from anabranch.conquer.mode_search import Found, ModeSearch, folded, starts_among
from anabranch.conquer.newton import newton
from anabranch.conquer.population import broad, log_prior_mass, overdispersed_points
from anabranch.conquer.strategy import check_gradient
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.symmetry import Exchangeable, are_symmetries, find_symmetries, fold, log_copies, ordered, unfold
from anabranch.conquer.target import MAX_BATCH, Target
from anabranch.conquer.unseen_modes import Ends, Explained, ends_at, unseen_share
from anabranch.conquer.weights import effective_sample_size
from anabranch.limits import LimitReached
from anabranch.settings import check, finite, share, whole

__all__ = ["ModeMixture", "ModeMixtureState"]

_MIN_BATCH = 2_000
"""Draws of the first batch for the estimate, and of those after while they are few."""
_POOR = 0.15  # efficiency below which a mixture fitted to points is fitted anew, even if fewer draws follow
_MAX_BEST = 16
"""Heaviest draws from which another search climbs."""


@dataclass(frozen=True)
class ModeMixtureState:
    """The state between visits. A visit that a limit ends keeps its last state, which is empty before modes are found.

    Attributes:
        proposal: the mixture, or None before the search for modes.
        broad: the defensive component as wide as the prior.
        symmetries: the exchangeable blocks, of which the mixture has one ordering.
        log_prior_mass: log of the prior probability of the path, where the prior is a defensive component; else NaN.
        adapting, rounds: whether the mixture is still being adapted, and adaptations so far.
        former: the mixture before the last adaptation and its efficiency, in case the adaptation made it worse.
        points, log_weights, log_prior: draws from the mixture, with the log prior density there; while it adapts, from
            the one before.
        pooled: whether the draws make the estimate, so that more are added to them.
        searched: evaluations at the last search for modes; the next comes when they have doubled.
        refit_at: the number of draws at which a poor mixture is adapted once more.
        failed: why there is no mixture.
        is_of_points: whether its components were fitted to points, not to modes.
        ends: where the climbs of the searches for modes have ended, those near the highest, in order.
        overlapping: exchangeable blocks with weights that no ordering separates, so that the mixture has none.
    """

    proposal: StudentMixture | None = None
    broad: StudentMixture | None = None
    symmetries: tuple[Exchangeable, ...] = ()
    log_prior_mass: float = np.nan
    adapting: bool = True
    rounds: int = 0
    former: tuple[StudentMixture, float] | None = None
    points: np.ndarray | None = None
    log_weights: np.ndarray | None = None
    log_prior: np.ndarray | None = None
    pooled: bool = False
    searched: int = 4_000
    refit_at: int = 2_000
    failed: str = ""
    is_of_points: bool = False
    ends: Ends | None = None
    overlapping: tuple[Exchangeable, ...] = ()

    @property
    def parts(self) -> tuple[StudentMixture, StudentMixture]:
        """The mixture and its broad component, once there are any."""
        assert self.proposal is not None
        assert self.broad is not None
        return self.proposal, self.broad

    @property
    def has_prior(self) -> bool:
        """Whether the prior is a defensive component."""
        return bool(np.isfinite(self.log_prior_mass))


@dataclass(frozen=True)
class ModeMixture:
    """Importance sampling from a mixture fitted to the modes.

    Args:
        starts: climbs, at most; more find more modes and take more evaluations.
        iterations: steps of each climb.
        max_modes: components of the first mixture.
        broad: share of the broad component; more of it protects against missed mass and wastes draws.
        prior: share of the prior, where that is a component.
        rounds: adaptations of the mixture, at most.
        depth: modes lighter than the best by more than this many nats are left out.
        efficiency: effective draws per draw that end the adaptation; more adapts longer.
        first_draws: draws of the visit that finds the modes; fewer leave more evaluations for paths with mass.
        min_ordered: fraction of draws that must be in order for exchangeable components to be integrated over one
            ordering; where components overlap, few are, and the ordering has nothing to gain.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def program(y):
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), y)
        >>> estimate = solve(ModeMixture(), PathTarget(ab.find_paths(program, 1.0).paths[0]), 20_000)
        >>> bool(abs(estimate.log_evidence - -1.5155) < 3 * estimate.log_evidence_sd < 0.05)  # log N(1; 0, 2)
        True
    """

    starts: int = 1024
    iterations: int = 40
    max_modes: int = 40
    broad: float = 0.1
    prior: float = 0.1
    rounds: int = 10
    depth: float = 15.0
    efficiency: float = 0.5
    first_draws: int = 2_000
    min_ordered: float = 0.5

    def __post_init__(self) -> None:
        check(self, starts=whole(1), iterations=whole(1), max_modes=whole(1), rounds=whole(1), depth=finite(0),
              broad=share(zero=False, one=False), prior=share(one=False), efficiency=share(), first_draws=whole(1),
              min_ordered=share())  # fmt: skip

    def start(self, target: Target, rng: Generator) -> ModeMixtureState:
        check_gradient(target, "ModeMixture")
        return ModeMixtureState()

    def advance(self, target: Target, state: ModeMixtureState, rng: Generator, evaluations: int) -> ModeMixtureState:
        end = target.evaluations + evaluations
        state = ModeMixtureState() if state.failed else state
        first = state.proposal is None
        try:
            if first:
                state = self._first_modes(target, rng, evaluations)
            elif state.pooled and target.has_gradient and target.evaluations + evaluations > 2 * state.searched:
                state = self._search_again(target, state, rng, evaluations // 4)
            while not state.failed:
                step = self._adapt if state.adapting else self._sample
                state = step(target, state, rng, (end - target.evaluations))
                drawn = _size(state)
                if (first and drawn >= self.first_draws) or (drawn and end - target.evaluations < 50):
                    break
        except LimitReached:
            pass
        return state

    def drawn(self, target: Target, state: ModeMixtureState, rng: Generator, n: int) -> ModeMixtureState:
        """The state with the mixture adapted, and n draws from it at least, unless a limit comes before."""
        with suppress(LimitReached):
            while not state.failed and (state.adapting or not state.pooled or _size(state) < n):
                step = self._adapt if state.adapting else self._sample
                state = step(target, state, rng, n)
        return state

    def estimate(self, target: Target, state: ModeMixtureState) -> Estimate:
        if state.points is None or state.log_weights is None:
            remarks = [state.failed] if state.failed else []
            return Estimate.nothing(target.dim, target.evaluations, "ModeMixture", remarks)
        # The labels are random with a fixed seed, so that the same state gives the same estimate.
        points = unfold(state.points, state.symmetries, np.random.default_rng(len(state.points)))
        return Estimate.from_weights(points, state.log_weights, target.evaluations, "ModeMixture")

    # The modes --------------------------------------------------------------------------------------------------

    def _first_modes(self, target: Target, rng: Generator, evaluations: int) -> ModeMixtureState:
        """The first mixture, found with so many points; without symmetries if those do not hold where the mass is."""
        population = overdispersed_points(target, int(np.clip(evaluations // 10, 50, 500)), rng)
        log_density = target.differentiate(population)[0].log_density
        if not np.isfinite(log_density).any():
            population = target.prior(max(evaluations // 2, 50), rng).points
            log_density = target.evaluate(population).log_density
        inside = np.isfinite(log_density)
        if not inside.any():
            return ModeMixtureState(failed="no point of positive density was found to start from")
        population, log_density = population[inside], log_density[inside]
        wide, search = broad(population), self._search
        symmetries = find_symmetries(target, population)
        starts = starts_among(population, log_density, search.number_of_starts(evaluations // 2), rng)
        found = search.run(target, starts, wide.scales, evaluations)
        mass = log_prior_mass(target, rng)
        whole = ModeMixtureState(fit_to_modes(found.modes, self.depth), wide, (), mass, searched=evaluations)
        if symmetries:
            modes, symmetries = folded(target, found.modes, symmetries, wide.scales)
            state = replace(whole, proposal=fit_to_modes(modes, self.depth), symmetries=tuple(symmetries))
            whole = self._confirmed(target, state, whole, rng)
        return self._with_ends(target, whole, found)

    @property
    def _search(self) -> ModeSearch:
        return ModeSearch(self.starts, self.iterations, self.depth, self.max_modes)

    def _with_ends(self, target: Target, state: ModeMixtureState, found: Found) -> ModeMixtureState:
        """The state with the ends of climbs that came near the highest."""
        near = found.heights > found.heights.max() - self.depth
        ends = ends_at(target, fold(found.ends[near], state.symmetries), found.modes)
        if state.ends is not None:
            ends = Ends(*(np.concatenate(pair) for pair in zip(state.ends, ends, strict=True)))
        return replace(state, ends=ends)

    def _confirmed(
        self, target: Target, state: ModeMixtureState, without: ModeMixtureState, rng: Generator
    ) -> ModeMixtureState:
        """The state if its symmetries, found at points of the prior, also hold where the mass is, and separate modes;
        else that without them, with those of weighted blocks if they only overlap."""
        drawn = self._draw(target, state, rng, 400)
        is_separated = np.isfinite(drawn.log_weights).mean() >= self.min_ordered
        found = tuple(each for each in state.symmetries if is_separated or each.is_weighted)
        heaviest = drawn.points[np.argsort(-drawn.log_weights, kind="stable")[:50]]
        if not (found and are_symmetries(target, found, heaviest, rng)):
            return without
        return state if is_separated else replace(without, overlapping=found)

    def _search_again(
        self, target: Target, state: ModeMixtureState, rng: Generator, evaluations: int
    ) -> ModeMixtureState:
        """Climb from other starts, twice as wide, and from the heaviest draws, which a mode may have that is narrow;
        modes that the mixture misses are added, and it is adapted again.

        A mode is missed where its weight γ/q would be larger than all that were drawn.
        """
        _, wide = state.parts
        state = replace(state, searched=state.searched + 4 * evaluations)
        wider = replace(wide, scale_trils=2 * wide.scale_trils)
        drawn = _draws(state)
        heaviest = drawn.points[np.argsort(-drawn.log_weights, kind="stable")[:_MAX_BEST]]
        starts = np.concatenate([heaviest, wider.draw(self._search.number_of_starts(evaluations), rng)])
        found = self._search.run(target, starts, wide.scales, evaluations)
        return self.extended(target, self._with_ends(target, state, found), found.modes)

    def extended(self, target: Target, state: ModeMixtureState, modes: Modes) -> ModeMixtureState:
        """The state with the modes that the mixture misses as components; the same one if it misses none."""
        _, wide = state.parts
        if state.symmetries:
            folded = fold(modes.points, state.symmetries)
            modes = (
                polish(target, folded, wide.scales) if target.has_gradient else newton(target, folded, wide.scales)[0]
            )
        largest = -np.inf if state.log_weights is None else state.log_weights.max()
        missed = self.log_ratio(target, state, modes.points) > largest + 1
        if not missed.any():
            return state
        return self.with_components(state, fit_to_modes(modes.take(np.flatnonzero(missed)), self.depth), 0.5)

    def with_components(self, state: ModeMixtureState, found: StudentMixture, share: float) -> ModeMixtureState:
        """The state with a share of other components, to be adapted."""
        proposal, _ = state.parts
        joined = proposal.joined(found, share)
        return replace(state, proposal=joined, former=None, adapting=True, rounds=0, pooled=False)

    def log_ratio(self, target: Target, state: ModeMixtureState, points: np.ndarray) -> np.ndarray:
        """log γ/q at points, whose blocks are in order: the weights that they would have as draws of the proposal."""
        evaluation = target.evaluate(points)
        log_q = self._log_proposal(state, points, evaluation.log_prior)
        return evaluation.log_density + log_copies(state.symmetries) - log_q(state.parts[0])

    def log_unseen(self, state: ModeMixtureState) -> float:
        """By how much the log evidence may be low for modes that have no component, by the ends of the climbs."""
        if state.ends is None or state.log_weights is None or not np.isfinite(state.ends.log_density).any():
            return 0.0
        (proposal, wide), ends = state.parts, state.ends
        logs, _ = proposal.joined(wide, self.broad).log_parts(ends.points)
        component = logs[:, :-1].argmax(axis=1)
        others = np.where(np.arange(logs.shape[1]) == component[:, None], -np.inf, logs)
        log_density = ends.log_density + log_copies(state.symmetries)
        ratio, without = (
            log_density - self._defended(state, logsumexp(each, axis=1), ends.log_prior) for each in (logs, others)
        )
        explained = Explained(ratio, without, component, float(state.log_weights.max()))
        return float(np.log1p(unseen_share(ends, explained, proposal.shares, wide.scales)))

    # The mixture ------------------------------------------------------------------------------------------------

    def _adapt(self, target: Target, state: ModeMixtureState, rng: Generator, left: int) -> ModeMixtureState:
        """One round: draw, weigh and refit; or return to the former mixture, where that was better.

        The draws that decide whether to continue are never among those that make the estimate.
        """
        proposal, _ = state.parts
        d = target.dim
        size = max(300 + 50 * d + d * (d + 3), 4 * (d + 1) * len(proposal)) * (1 + state.rounds // 2)
        if left < 3 * size:  # of a few draws, all should make the estimate
            return replace(state, adapting=False)
        drawn = self._draw(target, state, rng, size)
        if not np.isfinite(drawn.log_weights).any():
            return replace(state, proposal=None, failed="no point of positive density was drawn")
        efficiency = effective_sample_size(drawn.log_weights) / size
        if state.former is not None and efficiency < 0.6 * state.former[1]:
            return replace(state, proposal=state.former[0], adapting=False)
        state = replace(state, **drawn._asdict())
        if (efficiency > self.efficiency and state.rounds > 0) or state.rounds >= self.rounds:
            return replace(state, adapting=False)
        return replace(state, proposal=self._refitted(state), former=(proposal, efficiency), rounds=state.rounds + 1)

    def _sample(self, target: Target, state: ModeMixtureState, rng: Generator, left: int) -> ModeMixtureState:
        """More draws from the mixture; where many of them have a poor efficiency, it is adapted to them."""
        size = min(MAX_BATCH, max(_MIN_BATCH, 2 * _size(state)))
        drawn = self._draw(target, state, rng, int(np.clip(left, 200, size)))
        if state.pooled:
            drawn = Drawn(*(np.concatenate(pair) for pair in zip(_draws(state), drawn, strict=True)))
        state = replace(state, **drawn._asdict(), pooled=True)
        if not np.isfinite(drawn.log_weights).any():
            return replace(state, failed="no point of positive density was drawn")
        n, efficiency = len(drawn.points), effective_sample_size(drawn.log_weights) / len(drawn.points)
        worth = n // 2 if state.is_of_points and efficiency < _POOR else 2 * n
        if n < state.refit_at or efficiency > self.efficiency or left < worth:
            return state
        again, former = self._refitted(state, rng if state.is_of_points else None), (state.parts[0], efficiency)
        return replace(state, proposal=again, former=former, adapting=True, pooled=False, refit_at=4 * n)

    def _refitted(self, state: ModeMixtureState, rng: Generator | None = None) -> StudentMixture:
        """The mixture refitted to the draws of the state; with `rng`, maybe a new one."""
        points, log_weights, log_prior = _draws(state)
        return fit_to_weights(*state.parts, points, log_weights, self._log_proposal(state, points, log_prior), rng)

    def _log_proposal(
        self, state: ModeMixtureState, points: np.ndarray, log_prior: np.ndarray
    ) -> Callable[[StudentMixture], np.ndarray]:
        """log q at points with this log prior, for a mixture: q has the mixture, the broad component and the prior."""
        _, wide = state.parts

        def log_density(mixture: StudentMixture) -> np.ndarray:
            return self._defended(state, mixture.joined(wide, self.broad).log_density(points), log_prior)

        return log_density

    def _defended(self, state: ModeMixtureState, log_mixture: np.ndarray, log_prior: np.ndarray) -> np.ndarray:
        """log q, of which the prior is a component where it can be drawn from."""
        if not state.has_prior or not self.prior:
            return log_mixture
        log_of_prior = log_prior - state.log_prior_mass + log_copies(state.symmetries)
        return np.logaddexp(np.log1p(-self.prior) + log_mixture, np.log(self.prior) + log_of_prior)

    def _draw(self, target: Target, state: ModeMixtureState, rng: Generator, n: int) -> Drawn:
        """Draws from the mixture with its defensive components, and their log weights γ/q."""
        mixture, wide = state.parts
        of_prior = int(rng.binomial(n, self.prior)) if state.has_prior else 0
        points = mixture.joined(wide, self.broad).draw(n - of_prior, rng)
        if of_prior:
            points = np.concatenate([points, fold(target.prior(of_prior, rng).points, state.symmetries)])
        lost = ~np.isfinite(points).all(axis=1)  # prior draws that rounding has put on the edge of the support
        points[lost] = mixture.means[0]
        evaluation = target.evaluate(points)
        log_prior = np.where(evaluation.inside & ~lost, evaluation.log_prior, -np.inf)
        log_density = np.where(lost, -np.inf, evaluation.log_density)
        if state.symmetries:
            in_order = ordered(points, state.symmetries)
            log_density = np.where(in_order, log_density + log_copies(state.symmetries), -np.inf)
        return Drawn(points, log_density - self._log_proposal(state, points, log_prior)(mixture), log_prior)


def _draws(state: ModeMixtureState) -> Drawn:
    assert state.points is not None
    assert state.log_weights is not None
    assert state.log_prior is not None
    return Drawn(state.points, state.log_weights, state.log_prior)


def _size(state: ModeMixtureState) -> int:
    """The number of draws that make the estimate."""
    return len(state.points) if state.pooled and state.points is not None else 0


class Drawn(NamedTuple):
    """Draws with their log weights γ/q and the log prior density there."""

    points: np.ndarray
    log_weights: np.ndarray
    log_prior: np.ndarray
