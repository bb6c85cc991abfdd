"""Mode mixture: importance sampling from Student-t distributions on the modes, adapted to their own weights.

1. Climb from many over-dispersed starts, polish the distinct best, and take the curvature there (`ascent`): the
   paper's greedy start (appendix F), with gradients.
2. Put a Student-t distribution on each mode, and one as wide as the prior on all of it, the defensive component.
3. Adapt: draw from the mixture q, refit it to the weights γ_k/q, again and again: PI-MAIS's layers (appendix D), with
   a population in place of the chains.
4. Draw from what came out. The weights are independent, their mean is Ẑ_k, their scatter its error, and they are a
   weighted sample of the posterior.

Exchangeable components are integrated over one ordering (`symmetry`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from anabranch import errors
from anabranch.conquer.ascent import Modes, distinct, polish, race, race_cost, reflections, widths
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.population import broad, spread_out
from anabranch.conquer.student import StudentMixture, root_of
from anabranch.conquer.symmetry import Exchangeable, are_symmetries, find_symmetries, fold, log_copies, ordered, unfold
from anabranch.conquer.target import Target
from anabranch.conquer.weights import effective_sample_size
from anabranch.limits import LimitReached
from anabranch.settings import check, share, whole

__all__ = ["ModeMixture", "ModeMixtureState", "mixture_on"]

_FEWEST_FREEDOM = 3.0
_DEPTH = 15.0
"""Modes whose mass is less than that of the best by more than this many nats are left out."""
_GOOD = 0.5
"""An efficiency (effective draws per draw) with which there is nothing left to adapt."""
_BATCH = 20_000
_IN_ORDER = 0.2
"""The least share of draws that must be in order for exchangeable components to be integrated over one ordering."""
_UNSEARCHED = 4_000
"""Half of the evaluations at which modes are looked for around a mixture that was found by other means."""
_MIRRORED = 8
"""Ends of climbs whose mirror images are looked at."""
_BEST = 16
"""Starts that are the best points known; the others are any."""
_FIRST_DRAWS = 2_000
"""Draws of the visit that finds the modes: enough to see whether the path deserves more."""


@dataclass(frozen=True)
class ModeMixtureState:
    """What is known by now.

    Attributes:
        proposal: the mixture, or None before the modes were looked for.
        defence: the defensive component.
        symmetries: the exchangeable blocks.
        adapting: whether the mixture is still being adapted.
        rounds: adaptations so far.
        former: the mixture before the last adaptation, in case that made it worse, and its efficiency.
        points, log_weights: draws from the mixture as it is now; while it adapts, from the one before.
        pooled: whether the draws are those that make the estimate, to which more are added.
        searched: evaluations by which modes were looked for the last time; again when they have doubled.
        refit_at: the number of draws at which a mixture that turned out poor is adapted once more.
        failed: why there is nothing to sample from.

    A visit that a limit ends leaves what it had by then, which is nothing before modes were found.
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
    searched: int = _UNSEARCHED
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
        starts: climbs, at most; those that promise least are given up on the way.
        iterations: steps of each climb.
        most_modes: components of the first mixture, at most.
        defence: share of the defensive component.
        rounds: adaptations of the mixture, at most.

    Example:
        >>> import anabranch as ab, numpy as np, numpyro.distributions as dist
        >>> from anabranch.conquer import ModeMixture, PathTarget
        >>> def program(y):
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), y)
        >>> target, rng = PathTarget(ab.find_paths(program, 1.0).paths[0]), np.random.default_rng(0)
        >>> strategy = ModeMixture()
        >>> state = strategy.advance(target, strategy.start(target, rng), rng, 20_000)
        >>> estimate = strategy.estimate(target, state)
        >>> bool(abs(estimate.log_evidence - -1.5155) < 3 * estimate.log_evidence_sd < 0.05)  # log N(1; 0, 2)
        True
    """

    starts: int = 1024
    iterations: int = 40
    max_modes: int = 40
    defensive: float = 0.1
    rounds: int = 10

    def __post_init__(self) -> None:
        defensive = share(zero=False, one=False)
        check(self, starts=whole(1), iterations=whole(1), max_modes=whole(1), defensive=defensive, rounds=whole(1))

    def start(self, target: Target, rng: np.random.Generator) -> ModeMixtureState:
        if target.discrete.any() or target.dim == 0:
            raise errors.StrategyCannotRun(
                f"ModeMixture needs real coordinates and nothing else; the path ({target.path.description}) has "
                f"{target.dim}, of which {int(target.discrete.sum())} are discrete",
                remedy="Use Enumerate or SMC for it",
            )
        if not target.has_gradient:
            raise errors.StrategyCannotRun(
                f"ModeMixture needs a gradient, which the path ({target.path.description}) does not have",
                remedy="Use SMC or RandomWalk for it",
            )
        return ModeMixtureState()

    def start_from(
        self, proposal: StudentMixture, defensive: StudentMixture, symmetries: Sequence[Exchangeable] = ()
    ) -> ModeMixtureState:
        """A state that goes on from a mixture found by other means, such as a fit to a population."""
        return ModeMixtureState(proposal, defensive, tuple(symmetries))

    def advance(
        self, target: Target, state: ModeMixtureState, rng: np.random.Generator, evaluations: int
    ) -> ModeMixtureState:
        end = target.evaluations + evaluations
        state = ModeMixtureState() if state.failed else state
        first = state.proposal is None
        try:
            if first:
                state = self._first_modes(target, rng, evaluations // target.cost)
            elif state.pooled and target.has_gradient and target.evaluations + evaluations > 2 * state.searched:
                state = self._search_again(target, state, rng, evaluations // target.cost // 4)
            while not state.failed:
                left = (end - target.evaluations) // target.cost
                go_on = self._adapt if state.adapting else self._sample
                state = go_on(target, state, rng, left)
                drawn = len(state.points) if state.points is not None and state.pooled else 0
                if (first and drawn >= _FIRST_DRAWS) or (drawn and end - target.evaluations < 50 * target.cost):
                    break
        except LimitReached:
            pass
        return state

    def estimate(self, target: Target, state: ModeMixtureState) -> Estimate:
        if state.points is None or state.log_weights is None:
            remarks = [state.failed] if state.failed else []
            return Estimate.nothing(target.dim, target.evaluations, "ModeMixture", remarks)
        # The labels go back at random: of always the same randomness, since an estimate of a state is always the same.
        points = unfold(state.points, state.symmetries, np.random.default_rng(len(state.points)))
        return Estimate.from_weights(points, state.log_weights, target.evaluations, "ModeMixture")

    # The modes --------------------------------------------------------------------------------------------------

    def _first_modes(self, target: Target, rng: np.random.Generator, points: int) -> ModeMixtureState:
        """Where to begin, found with so many points; without symmetries if those do not hold where the mass is."""
        state = self._find_modes(target, rng, points)
        if state.symmetries and not self._confirmed(target, state, rng):
            state = self._find_modes(target, rng, points, symmetric=False)
        return replace(state, searched=points * target.cost)

    def _find_modes(
        self, target: Target, rng: np.random.Generator, evaluations: int, symmetric: bool = True
    ) -> ModeMixtureState:
        population = spread_out(target, int(np.clip(evaluations // 10, 50, 500)), rng)
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
        modes = self._modes(target, starts, defensive.spread, evaluations)
        if symmetries:
            modes, symmetries = _folded(target, modes, symmetries, defensive.spread)
        return ModeMixtureState(mixture_on(modes), defensive, tuple(symmetries))

    def _confirmed(self, target: Target, state: ModeMixtureState, rng: np.random.Generator) -> bool:
        """Whether the symmetries, found at points of the prior, hold where the mass is, too, and are of use there.

        Of components that overlap, few draws are in order: they have one mode together, and nothing to gain.
        """
        points, log_weights = self._draw(target, state, rng, 400)
        if np.isfinite(log_weights).mean() < _IN_ORDER:
            return False
        heaviest = np.argsort(-log_weights, kind="stable")[:50]
        return are_symmetries(target, state.symmetries, points[heaviest], rng)

    def _number_of_starts(self, evaluations: int) -> int:
        """With how many starts a race keeps to so many evaluations."""
        possible = range(5, self.starts + 1)
        return 4 + bisect_right(possible, evaluations, key=lambda n: race_cost(n, self.iterations))

    def _modes(self, target: Target, starts: np.ndarray, spread: np.ndarray, evaluations: int) -> Modes:
        """The distinct modes that climbs lead to, as many as a quarter of the evaluations allow."""
        points, heights = _mirrored(target, *race(target, starts, spread, self.iterations), spread, evaluations // 10)
        most = int(np.clip(evaluations // 4 // (10 * target.dim + 10), 1, self.max_modes))
        near = heights > heights.max() - 2 * _DEPTH
        return polish(target, points[distinct(points, np.where(near, heights, -np.inf), spread, most)], spread)

    def _search_again(
        self, target: Target, state: ModeMixtureState, rng: np.random.Generator, evaluations: int
    ) -> ModeMixtureState:
        """Climb from other starts; where that leads to a mode that the mixture misses, adapt it again with that one.

        A mode is missed where its weight γ/q would be larger than all that were drawn.
        """
        proposal, defensive = state.parts
        largest = -np.inf if state.log_weights is None else state.log_weights.max()
        state = replace(state, searched=state.searched + 4 * evaluations * target.cost)
        starts = _wide(defensive).draw(self._number_of_starts(evaluations), rng)
        modes = self._modes(target, starts, defensive.spread, evaluations)
        if state.symmetries:
            modes = polish(target, fold(modes.points, state.symmetries), defensive.spread)
        log_proposal = _defended(proposal, defensive, self.defensive).log_density(modes.points)
        log_weights = modes.log_density + log_copies(state.symmetries) - log_proposal
        missed = log_weights > largest + 1
        if not missed.any():
            return state
        found = mixture_on(modes.take(np.flatnonzero(missed)))
        return replace(state, proposal=proposal.joined(found, 0.5), former=None, adapting=True, rounds=0, pooled=False)

    # The mixture ------------------------------------------------------------------------------------------------

    def _adapt(self, target: Target, state: ModeMixtureState, rng: np.random.Generator, left: int) -> ModeMixtureState:
        """One round: draw, weigh and refit; or go back to the former mixture, where that was better.

        The draws that decide whether to go on are never among those that make the estimate.
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
        if (efficiency > _GOOD and state.rounds > 0) or state.rounds >= self.rounds:
            return replace(state, adapting=False)
        better = _refit(proposal, defensive, self.defensive, points, log_weights)
        return replace(state, proposal=better, former=(proposal, efficiency), rounds=state.rounds + 1)

    def _sample(self, target: Target, state: ModeMixtureState, rng: np.random.Generator, left: int) -> ModeMixtureState:
        """More draws from the mixture; or, where many have shown it to be poor, a better one from them."""
        proposal, defensive = state.parts
        size = min(_BATCH, max(2_000, 2 * len(state.points))) if state.pooled and state.points is not None else 2_000
        points, log_weights = self._draw(target, state, rng, int(np.clip(left, 200, size)))
        if state.pooled:
            points = np.concatenate([state.points, points])
            log_weights = np.concatenate([state.log_weights, log_weights])
        state = replace(state, points=points, log_weights=log_weights, pooled=True)
        if not np.isfinite(log_weights).any():
            return replace(state, failed="no point of positive density was drawn")
        n, efficiency = len(points), effective_sample_size(log_weights) / len(points)
        if n < state.refit_at or efficiency > _GOOD or left < 2 * n:
            return state
        better = _refit(proposal, defensive, self.defensive, points, log_weights)
        return replace(
            state, proposal=better, former=(proposal, efficiency), adapting=True, pooled=False, refit_at=4 * n
        )

    def _draw(
        self, target: Target, state: ModeMixtureState, rng: np.random.Generator, n: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draws from the mixture with its defensive component, and their log weights γ/q."""
        proposal = _defended(*state.parts, self.defensive)
        points = proposal.draw(n, rng)
        log_density = target.evaluate(points).log_density
        if state.symmetries:
            in_order = ordered(points, state.symmetries)
            log_density = np.where(in_order, log_density + log_copies(state.symmetries), -np.inf)
        return points, log_density - proposal.log_density(points)


def _starts(population: np.ndarray, log_density: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """At first some of the best of the population, then any of it, two in three blown up."""
    best = population[np.argsort(-log_density, kind="stable")[: min(n // 2, _BEST)]]
    others = population[rng.integers(len(population), size=n - len(best))]
    centre = np.median(population, axis=0)
    factor = np.where(np.arange(len(others)) % 3 == 0, 1.0, rng.uniform(1.5, 3.5, len(others)))
    return np.concatenate([best, centre + factor[:, None] * (others - centre)])


def _mirrored(
    target: Target, points: np.ndarray, heights: np.ndarray, spread: np.ndarray, evaluations: int
) -> tuple[np.ndarray, np.ndarray]:
    """The points, and those mirror images of the highest that are about as high; twice, for images of images.

    They are so many as half of the evaluations allow each time, and one point has at least.
    """
    number = int(np.clip(evaluations // (2 * len(reflections(points[:1]))), 1, _MIRRORED))
    for _ in range(2):
        images = reflections(points[distinct(points, heights, spread, number)])
        there = target.evaluate(images).log_density
        high = there > heights.max() - _DEPTH
        points, heights = np.concatenate([points, images[high]]), np.concatenate([heights, there[high]])
    return points, heights


def _wide(component: StudentMixture) -> StudentMixture:
    """Twice as wide: where modes are looked for that nobody has seen."""
    return replace(component, roots=2 * component.roots)


def _folded(
    target: Target, modes: Modes, symmetries: Sequence[Exchangeable], spread: np.ndarray
) -> tuple[Modes, list[Exchangeable]]:
    """The modes in one order, by whatever tells their components apart best."""
    symmetries = [each.with_best_key(modes.points, widths(modes.precision, spread)) for each in symmetries]
    points = fold(modes.points, symmetries)
    chosen = distinct(points, modes.log_density, spread, len(points))
    # Polished again: a fold may bend coordinates (those of a simplex), and the curvature with them.
    return polish(target, points[chosen], spread), symmetries


def _without_repeats(modes: Modes) -> Modes:
    """The modes that matter, the heaviest first, each once."""
    order = np.argsort(-modes.log_mass, kind="stable")
    kept: list[int] = []
    for i in order:
        if modes.log_mass[i] < modes.log_mass[order[0]] - _DEPTH:
            break
        offset = modes.points[kept] - modes.points[i]
        if all(x @ modes.precision[j] @ x > 1.0 for x, j in zip(offset, kept, strict=True)):
            kept.append(int(i))
    return modes.take(np.array(kept))


def mixture_on(modes: Modes) -> StudentMixture:
    """A Student-t on each mode, its share by Laplace's approximation, tempered since that is only an approximation."""
    modes = _without_repeats(modes)
    roots = np.array([root_of(np.linalg.inv(precision)) for precision in modes.precision])
    shares = np.exp(0.5 * (modes.log_mass - modes.log_mass.max()))
    return StudentMixture(modes.points, roots, shares / shares.sum(), np.full(len(modes), 5.0))


def _defended(proposal: StudentMixture, defensive: StudentMixture, share: float) -> StudentMixture:
    return proposal.with_component(defensive.means[0], defensive.roots[0], share, float(defensive.freedom[0]))


def _refit(
    proposal: StudentMixture, defensive: StudentMixture, share: float, points: np.ndarray, log_weights: np.ndarray
) -> StudentMixture:
    """The mixture moved towards the weighted points, with the tails that suit them best.

    Weights of which a few dominate are tempered first: they say where to go, not yet how far. Of the candidates the one
    is taken whose own weights will have the smallest second moment, E_q'[(γ/q')²] = E_q[(γ/q)² q/q']: of the tails of a
    density a fit by likelihood sees too little.
    """
    weights = _tempered(log_weights, least=20.0 + 2 * proposal.dim)
    log_old = _defended(proposal, defensive, share).log_density(points)
    extended = _extended(proposal, defensive, points, weights)
    candidates = []
    now = float(extended.freedom.mean())
    # With more degrees of freedom the tails would be too light to be safe; in many dimensions, with fewer too heavy.
    for freedom in np.clip([now / 2, now, 2 * now], _FEWEST_FREEDOM, 8.0 + 2 * proposal.dim):
        candidate = extended.with_freedom(freedom)
        for _ in range(2):
            candidate = candidate.refitted(points, weights)
        log_new = _defended(candidate, defensive, share).log_density(points)
        candidates.append((logsumexp(2 * log_weights + log_old - log_new), freedom, candidate))
    return min(candidates, key=lambda each: each[:2])[2]


def _tempered(log_weights: np.ndarray, least: float) -> np.ndarray:
    """Normalised weights w^α, with the largest α of a few that leaves at least this effective size."""
    for power in (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05):
        scaled = power * log_weights
        if effective_sample_size(scaled) >= least:
            break
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def _extended(
    proposal: StudentMixture, defensive: StudentMixture, points: np.ndarray, weights: np.ndarray
) -> StudentMixture:
    """A component more, where points that only the defensive one explains have a good part of the weight."""
    mean, root = defensive.means[0], defensive.roots[0]
    logs, _ = proposal.with_component(mean, root, 0.05, float(defensive.freedom[0])).log_parts(points)
    missed = logs[:, -1] >= logs[:, :-1].max(axis=1)
    share = float(weights[missed].sum())
    if share < 0.02 or share > 0.98:
        return proposal
    part = weights[missed] / share
    centre = part @ points[missed]
    centred = points[missed] - centre
    effective = 1 / (part**2).sum()
    trust = effective / (effective + 2 * proposal.dim)
    scale = trust * (centred * part[:, None]).T @ centred + (1 - trust) * 0.1 * root @ root.T
    return proposal.with_component(centre, root_of(scale), share, 5.0)
