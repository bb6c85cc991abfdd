"""Mode mixture: importance sampling from Student-t distributions on the modes, adapted to their own weights.

1. Climb from many overdispersed starts, polish the distinct best, and take the curvature there (`ascent`): the
   paper's greedy start (appendix F), with gradients.
2. Put a Student-t distribution on each mode, and one as wide as the prior, the defensive component.
3. Adapt: draw from the mixture q and refit it to the weights γ_k/q (`mixture_fit`), as the layers of PI-MAIS do
   (appendix D), with a population in place of the chains.
4. Draw from the adapted mixture. The mean of the weights is Ẑ_k, and their scatter its error.

Exchangeable components are integrated over one ordering (`symmetry`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.ascent import Modes, distinct, polish, race, race_cost, reflections, widths
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.mixture_fit import fit_to_modes, fit_to_weights
from anabranch.conquer.population import broad, overdispersed_points
from anabranch.conquer.strategy import check_gradient
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.symmetry import Exchangeable, are_symmetries, find_symmetries, fold, log_copies, ordered, unfold
from anabranch.conquer.target import MAX_BATCH, Target
from anabranch.conquer.weights import effective_sample_size
from anabranch.limits import LimitReached
from anabranch.settings import check, finite, share, whole

__all__ = ["ModeMixture", "ModeMixtureState"]

_MIN_BATCH = 2_000
"""Draws of the first batch for the estimate, and of those after while they are few."""
_MAX_MIRRORED = 8
"""Ends of climbs whose mirror images are evaluated."""
_MAX_BEST = 16
"""Starts that are the best points known; the others are random."""


@dataclass(frozen=True)
class ModeMixtureState:
    """The state between visits. A visit that a limit ends keeps its last state, which is empty before modes are found.

    Attributes:
        proposal: the mixture, or None before the search for modes.
        defensive: the defensive component.
        symmetries: the exchangeable blocks.
        adapting: whether the mixture is still being adapted.
        rounds: adaptations so far.
        former: the mixture before the last adaptation and its efficiency, in case the adaptation made it worse.
        points, log_weights: draws from the mixture; while it adapts, from the one before.
        pooled: whether the draws make the estimate, so that more are added to them.
        searched: evaluations at the last search for modes; the next comes when they have doubled.
        refit_at: the number of draws at which a poor mixture is adapted once more.
        failed: why there is no mixture.
    """

    proposal: StudentMixture | None = None
    defensive: StudentMixture | None = None
    symmetries: tuple[Exchangeable, ...] = ()
    adapting: bool = True
    rounds: int = 0
    former: tuple[StudentMixture, float] | None = None
    points: np.ndarray | None = None
    log_weights: np.ndarray | None = None
    pooled: bool = False
    searched: int = 4_000
    refit_at: int = 2_000
    failed: str = ""

    @property
    def parts(self) -> tuple[StudentMixture, StudentMixture]:
        """The mixture and its defensive component, once there are any."""
        assert self.proposal is not None
        assert self.defensive is not None
        return self.proposal, self.defensive


@dataclass(frozen=True)
class ModeMixture:
    """Importance sampling from a mixture fitted to the modes.

    Args:
        starts: climbs, at most; more find more modes and take more evaluations.
        iterations: steps of each climb.
        max_modes: components of the first mixture.
        defensive: share of the defensive component; more of it protects against missed mass and wastes draws.
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
    defensive: float = 0.1
    rounds: int = 10
    depth: float = 15.0
    efficiency: float = 0.5
    first_draws: int = 2_000
    min_ordered: float = 0.2

    def __post_init__(self) -> None:
        check(self, starts=whole(1), iterations=whole(1), max_modes=whole(1), rounds=whole(1), depth=finite(0),
              defensive=share(zero=False, one=False), efficiency=share(), first_draws=whole(1),
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
                state = self._first_modes(target, rng, evaluations // target.cost)
            elif state.pooled and target.has_gradient and target.evaluations + evaluations > 2 * state.searched:
                state = self._search_again(target, state, rng, evaluations // target.cost // 4)
            while not state.failed:
                step = self._adapt if state.adapting else self._sample
                state = step(target, state, rng, (end - target.evaluations) // target.cost)
                drawn = len(state.points) if state.points is not None and state.pooled else 0
                if (first and drawn >= self.first_draws) or (drawn and end - target.evaluations < 50 * target.cost):
                    break
        except LimitReached:
            pass
        return state

    def estimate(self, target: Target, state: ModeMixtureState) -> Estimate:
        if state.points is None or state.log_weights is None:
            remarks = [state.failed] if state.failed else []
            return Estimate.nothing(target.dim, target.evaluations, "ModeMixture", remarks)
        # The labels are random with a fixed seed, so that the same state gives the same estimate.
        points = unfold(state.points, state.symmetries, np.random.default_rng(len(state.points)))
        return Estimate.from_weights(points, state.log_weights, target.evaluations, "ModeMixture")

    # The modes --------------------------------------------------------------------------------------------------

    def _first_modes(self, target: Target, rng: Generator, points: int) -> ModeMixtureState:
        """The first mixture, found with so many points; without symmetries if those do not hold where the mass is."""
        state = self._find_modes(target, rng, points)
        if state.symmetries and not self._confirmed(target, state, rng):
            state = self._find_modes(target, rng, points, symmetric=False)
        return replace(state, searched=points * target.cost)

    def _find_modes(self, target: Target, rng: Generator, evaluations: int, symmetric: bool = True) -> ModeMixtureState:
        population = overdispersed_points(target, int(np.clip(evaluations // 10, 50, 500)), rng)
        log_density = target.differentiate(population)[0].log_density
        if not np.isfinite(log_density).any():
            population = target.prior(max(evaluations // 2, 50), rng).points
            log_density = target.evaluate(population).log_density
        inside = np.isfinite(log_density)
        if not inside.any():
            return ModeMixtureState(failed="no point of positive density was found to start from")
        population, log_density = population[inside], log_density[inside]
        defensive = broad(population)
        symmetries = find_symmetries(target, population) if symmetric else []
        starts = _starts(population, log_density, self._number_of_starts(evaluations // 2), rng)
        modes = self._modes(target, starts, defensive.scales, evaluations)
        if symmetries:
            modes, symmetries = _folded(target, modes, symmetries, defensive.scales)
        return ModeMixtureState(fit_to_modes(modes, self.depth), defensive, tuple(symmetries))

    def _confirmed(self, target: Target, state: ModeMixtureState, rng: Generator) -> bool:
        """Whether the symmetries, found at points of the prior, also hold where the mass is, and separate modes."""
        points, log_weights = self._draw(target, state, rng, 400)
        if np.isfinite(log_weights).mean() < self.min_ordered:
            return False
        heaviest = np.argsort(-log_weights, kind="stable")[:50]
        return are_symmetries(target, state.symmetries, points[heaviest], rng)

    def _number_of_starts(self, evaluations: int) -> int:
        """The largest number of starts whose race takes at most so many evaluations."""
        possible = range(5, self.starts + 1)
        return 4 + bisect_right(possible, evaluations, key=lambda n: race_cost(n, self.iterations))

    def _modes(self, target: Target, starts: np.ndarray, scales: np.ndarray, evaluations: int) -> Modes:
        """The distinct modes that climbs lead to, as many as a quarter of the evaluations allow."""
        points, heights = race(target, starts, scales, self.iterations)
        points, heights = self._mirrored(target, points, heights, scales, evaluations // 10)
        max_points = int(np.clip(evaluations // 4 // (10 * target.dim + 10), 1, self.max_modes))
        near = heights > heights.max() - 2 * self.depth
        return polish(target, points[distinct(points, np.where(near, heights, -np.inf), scales, max_points)], scales)

    def _mirrored(
        self, target: Target, points: np.ndarray, heights: np.ndarray, scales: np.ndarray, evaluations: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """The points, and mirror images of the highest that are about as high; twice, for images of images."""
        number = int(np.clip(evaluations // (2 * len(reflections(points[:1]))), 1, _MAX_MIRRORED))
        for _ in range(2):
            images = reflections(points[distinct(points, heights, scales, number)])
            there = target.evaluate(images).log_density
            high = there > heights.max() - self.depth
            points, heights = np.concatenate([points, images[high]]), np.concatenate([heights, there[high]])
        return points, heights

    def _search_again(
        self, target: Target, state: ModeMixtureState, rng: Generator, evaluations: int
    ) -> ModeMixtureState:
        """Climb from other starts, twice as wide; modes that the mixture misses are added, and it is adapted again.

        A mode is missed where its weight γ/q would be larger than all that were drawn.
        """
        proposal, defensive = state.parts
        largest = -np.inf if state.log_weights is None else state.log_weights.max()
        state = replace(state, searched=state.searched + 4 * evaluations * target.cost)
        wide = replace(defensive, scale_trils=2 * defensive.scale_trils)
        starts = wide.draw(self._number_of_starts(evaluations), rng)
        modes = self._modes(target, starts, defensive.scales, evaluations)
        if state.symmetries:
            modes = polish(target, fold(modes.points, state.symmetries), defensive.scales)
        log_proposal = proposal.joined(defensive, self.defensive).log_density(modes.points)
        log_weights = modes.log_density + log_copies(state.symmetries) - log_proposal
        missed = log_weights > largest + 1
        if not missed.any():
            return state
        found = fit_to_modes(modes.take(np.flatnonzero(missed)), self.depth)
        return replace(state, proposal=proposal.joined(found, 0.5), former=None, adapting=True, rounds=0, pooled=False)

    # The mixture ------------------------------------------------------------------------------------------------

    def _adapt(self, target: Target, state: ModeMixtureState, rng: Generator, left: int) -> ModeMixtureState:
        """One round: draw, weigh and refit; or return to the former mixture, where that was better.

        The draws that decide whether to continue are never among those that make the estimate.
        """
        proposal, defensive = state.parts
        d = target.dim
        size = (300 + 50 * d + d * (d + 3)) * (1 + state.rounds // 2)
        if left < 3 * size:  # of a few draws, all should make the estimate
            return replace(state, adapting=False)
        points, log_weights = self._draw(target, state, rng, size)
        if not np.isfinite(log_weights).any():
            return replace(state, proposal=None, failed="no point of positive density was drawn")
        efficiency = effective_sample_size(log_weights) / len(log_weights)
        if state.former is not None and efficiency < 0.6 * state.former[1]:
            return replace(state, proposal=state.former[0], adapting=False)
        state = replace(state, points=points, log_weights=log_weights)
        if (efficiency > self.efficiency and state.rounds > 0) or state.rounds >= self.rounds:
            return replace(state, adapting=False)
        better = fit_to_weights(proposal, defensive, self.defensive, points, log_weights)
        return replace(state, proposal=better, former=(proposal, efficiency), rounds=state.rounds + 1)

    def _sample(self, target: Target, state: ModeMixtureState, rng: Generator, left: int) -> ModeMixtureState:
        """More draws from the mixture; where many of them have a poor efficiency, it is adapted to them."""
        proposal, defensive = state.parts
        before = len(state.points) if state.pooled and state.points is not None else 0
        size = min(MAX_BATCH, max(_MIN_BATCH, 2 * before))
        points, log_weights = self._draw(target, state, rng, int(np.clip(left, 200, size)))
        if state.pooled:
            points = np.concatenate([state.points, points])
            log_weights = np.concatenate([state.log_weights, log_weights])
        state = replace(state, points=points, log_weights=log_weights, pooled=True)
        if not np.isfinite(log_weights).any():
            return replace(state, failed="no point of positive density was drawn")
        n, efficiency = len(points), effective_sample_size(log_weights) / len(points)
        if n < state.refit_at or efficiency > self.efficiency or left < 2 * n:
            return state
        better = fit_to_weights(proposal, defensive, self.defensive, points, log_weights)
        return replace(
            state, proposal=better, former=(proposal, efficiency), adapting=True, pooled=False, refit_at=4 * n
        )

    def _draw(self, target: Target, state: ModeMixtureState, rng: Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws from the mixture with its defensive component, and their log weights γ/q."""
        mixture, defensive = state.parts
        proposal = mixture.joined(defensive, self.defensive)
        points = proposal.draw(n, rng)
        log_density = target.evaluate(points).log_density
        if state.symmetries:
            in_order = ordered(points, state.symmetries)
            log_density = np.where(in_order, log_density + log_copies(state.symmetries), -np.inf)
        return points, log_density - proposal.log_density(points)


def _starts(population: np.ndarray, log_density: np.ndarray, n: int, rng: Generator) -> np.ndarray:
    """Some of the best of the population, then random ones of it, two in three moved away from its median."""
    best = population[np.argsort(-log_density, kind="stable")[: min(n // 2, _MAX_BEST)]]
    others = population[rng.integers(len(population), size=n - len(best))]
    centre = np.median(population, axis=0)
    factor = np.where(np.arange(len(others)) % 3 == 0, 1.0, rng.uniform(1.5, 3.5, len(others)))
    return np.concatenate([best, centre + factor[:, None] * (others - centre)])


def _folded(
    target: Target, modes: Modes, symmetries: Sequence[Exchangeable], scales: np.ndarray
) -> tuple[Modes, list[Exchangeable]]:
    """The modes in one order, by the key that separates their components best.

    They are polished again, since a fold may change the curvature (in the coordinates of a simplex).
    """
    symmetries = [each.with_best_key(modes.points, widths(modes.precision, scales)) for each in symmetries]
    points = fold(modes.points, symmetries)
    chosen = distinct(points, modes.log_density, scales, len(points))
    return polish(target, points[chosen], scales), symmetries
