"""Random-walk chains with tuned scales, and importance sampling around them, after the paper's local strategy.

The paper's own, as it stands, is in `paper/`.

*Chains* (section 6.1). A move picks a site, or one coordinate of it, and proposes either a local change
x' = x + s t, symmetric, or a draw x' ~ g, where g is fitted to the prior draws of each coordinate (the prior of a site
given the others is unknown where sites are dependent). It is accepted with probability

    min(1, γ_k(x') / γ_k(x))   or   min(1, γ_k(x') g(x) / (γ_k(x) g(x'))),

and never if it leaves the path, where γ_k is zero. T_init greedy moves, which never go down (appendix F), are followed
by as many ordinary ones. In both, each chain tunes its scales s to its rate of acceptance; then they are fixed. A step
of the main phase is a move for each coordinate, but at most M, so that the chains take at most half of the budget.

*Evidence* (appendix D; PI-MAIS of Martino, Elvira, Luengo and Corander, 2017). After each step, the states of the N
chains are centres of a mixture, and M points are drawn around each of them:

    q_t(x) = (1/N) Σ_n q(x | x_{n,t}),   w_{n,t,m} = γ_k(x_{n,t,m}) / q_t(x_{n,t,m}),   Ẑ_k = mean of all w.

The scale of q in each coordinate is fixed before the first weight: it is the median over the chains of the standard
deviation within each, in the last part of the initial phase, since chains may be on different modes or not converged.

*Error.* Given the centres, the mean weight of a step has expectation Z_k, wherever the chains are: so the errors of
different steps are uncorrelated, although the centres are not independent. The variance of Ẑ_k is the sum of the
variances of the N T strata, σ²_{n,t}/M, over (N T)²; each is estimated from its own M weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.chains import split_r_hat
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.kernel import StudentKernel
from anabranch.conquer.target import MAX_BATCH, Target
from anabranch.settings import check, share, whole

__all__ = ["RandomWalk", "RandomWalkState"]

_WIDEN = 1.2
"""The scale of the proposals over the standard deviation within a chain, which short chains underestimate."""
_MIN_SCALE, _MAX_SCALE = 1e-8, 1e3
"""Scales stay between these multiples of the prior's."""
_MIN_DISCRETE_SCALE = 0.5
"""Scales of discrete coordinates stay above this, so that neighbours are proposed."""


@dataclass(frozen=True)
class RandomWalk:
    """Random-walk MH from several chains, with importance sampling around them for the evidence.

    It runs on every path, discrete or without gradients; above about ten dimensions there are better strategies.

    Args:
        chains: N.
        importance_samples: M, at least 2, drawn around each chain after each step.
        initial_steps: T_init, greedy moves of a chain for each coordinate of the path; as many ordinary ones follow.
        prior_share: the probability that a move proposes from the fit to the prior, not locally.
        prior_draws: the draws for that fit; each chain starts at the best of its share of them.
        acceptance: the rate of acceptance to which the scales of local moves are tuned.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def program():
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)
        >>> estimate = solve(RandomWalk(), PathTarget(ab.find_paths(program).paths[0]), 3_000)
        >>> abs(estimate.log_evidence - float(dist.Normal(0.0, 2**0.5).log_prob(1.0))) < 4 * estimate.log_evidence_sd
        True
    """

    chains: int = 10
    importance_samples: int = 10
    initial_steps: int = 50
    prior_share: float = 0.2
    prior_draws: int = 100
    acceptance: float = 0.3

    def __post_init__(self) -> None:
        check(self, chains=whole(2), importance_samples=whole(2), initial_steps=whole(1), prior_share=share(),
              prior_draws=whole(1), acceptance=share(zero=False, one=False))  # fmt: skip

    def start(self, target: Target, rng: Generator) -> RandomWalkState:
        """Chains at the best of some prior draws and of the executions that found the path."""
        before = target.evaluations
        draws = target.prior(self.prior_draws, rng).points
        points = np.concatenate([draws, target.known[: self.prior_draws]])
        points = points[np.isfinite(points).all(axis=1)]
        log_density = target.evaluate(points).log_density if len(points) else np.zeros(0)
        spent = target.evaluations - before
        best = _best_of_shares(log_density, self.chains)
        centre, scale = _fit(points, target.discrete)
        n, m, d = self.chains, self.importance_samples, target.dim
        return RandomWalkState(
            points=points[best], log_density=log_density[best], prior_centre=centre, prior_scale=scale,
            move_scale=np.tile(scale, (len(best), 1)), proposal_scale=scale, initial_left=2 * self.initial_steps * d,
            initial_path=np.zeros((0, n, d)), path_taken=np.zeros((0, n, d)), samples=np.zeros((0, n, m, d)),
            log_weights=np.zeros((0, n, m)), cost=max(spent / len(points), 1.0) if len(points) else 1.0,
            evaluations=spent,
        )  # fmt: skip

    def advance(self, target: Target, state: RandomWalkState, rng: Generator, evaluations: int) -> RandomWalkState:
        """Steps of all chains, with importance samples around them after each.

        Until the initial phase is over, half of the evaluations go to it, and earlier weights are dropped.
        """
        if not len(state.points):
            again = self.start(target, rng)
            return replace(again, evaluations=state.evaluations + again.evaluations)
        before = target.evaluations
        afford = evaluations / state.cost
        initial = min(state.initial_left, int(afford / 2 / self.chains))
        if initial:
            state = self._initial_phase(target, state, rng, initial)
            afford -= initial * self.chains
        moves = min(target.dim, self.importance_samples)
        steps = max(1, round(afford / (self.chains * (moves + self.importance_samples)))) if target.dim else 1
        state, path_taken = self.walk(target, state, rng, steps, moves)
        samples, log_weights = self._weigh(target, state, rng, path_taken)
        return replace(
            state,
            path_taken=np.concatenate([state.path_taken, path_taken]),
            samples=np.concatenate([state.samples, samples]),
            log_weights=np.concatenate([state.log_weights, log_weights]),
            evaluations=state.evaluations + target.evaluations - before,
        )

    def estimate(self, target: Target, state: RandomWalkState) -> Estimate:
        """The mean of all weights, with the importance samples as draws."""
        remarks = []
        if not len(state.points):
            remarks.append("No prior draw met the guards of the path, so there was no point to start from.")
        elif not (state.log_weights > -np.inf).any():
            remarks.append("The density was zero at every point that was tried.")
        elif state.initial_left:
            remarks.append("The initial phase is not over, so the scale of the proposals may be wrong.")
        points = state.samples.reshape(state.log_weights.size, target.dim)
        by_weight = Estimate.from_weights(points, state.log_weights.ravel(), state.evaluations, "RandomWalk", remarks)
        if by_weight.log_evidence == -np.inf:
            return by_weight
        return replace(
            by_weight,
            log_evidence_sd=_relative_error(state.log_weights - by_weight.log_evidence) if target.dim else 0.0,
            r_hat=split_r_hat(state.path_taken.swapaxes(0, 1)),
        )

    def walk(
        self, target: Target, state: RandomWalkState, rng: Generator, steps: int, moves_per_step: int
    ) -> tuple[RandomWalkState, np.ndarray]:
        """Random-walk MH with fixed scales: the last state, and the positions after each step (steps, N, d)."""
        moves = SiteMoves.of(target)
        path_taken = np.empty((steps, *state.points.shape))
        for t in range(steps):
            for _ in range(moves_per_step):
                state, _, _ = self._move(target, state, rng, moves)
            path_taken[t] = state.points
        return state, path_taken

    def _initial_phase(self, target: Target, state: RandomWalkState, rng: Generator, count: int) -> RandomWalkState:
        """So many moves of the initial phase, all tuned: its first half is greedy, its last quarter kept."""
        moves, total = SiteMoves.of(target), 2 * self.initial_steps * target.dim
        smallest = np.where(target.discrete, _MIN_DISCRETE_SCALE, _MIN_SCALE * state.prior_scale)
        kept = [state.initial_path]
        for left in range(state.initial_left, state.initial_left - count, -1):
            if left == total // 2:
                state = _gathered(state, rng)
            state, moved, accepted = self._move(target, state, rng, moves, greedy=left > total // 2)
            change = moved * np.where(state.log_density > -np.inf, accepted - self.acceptance, 0.0)[:, None]
            scale = np.clip(state.move_scale * np.exp(change), smallest, _MAX_SCALE * state.prior_scale)
            state = replace(state, move_scale=scale, initial_left=left - 1)
            if left <= total // 4:
                kept.append(state.points[None])
        path_taken = np.concatenate(kept)
        return replace(
            state, proposal_scale=np.maximum(_proposal_scale(state, path_taken), smallest),
            initial_path=path_taken if state.initial_left else path_taken[:0], path_taken=state.path_taken[:0],
            samples=state.samples[:0], log_weights=state.log_weights[:0],
        )  # fmt: skip

    def _move(
        self, target: Target, state: RandomWalkState, rng: Generator, moves: SiteMoves, greedy: bool = False
    ) -> tuple[RandomWalkState, np.ndarray, np.ndarray]:
        """One move of each chain; also the coordinates that it moved locally (N, d), and which chains accepted (N,)."""
        n = len(state.points)
        chosen, widths = moves.choose(n, rng)
        local = rng.uniform(size=n) >= self.prior_share
        step = StudentKernel(state.move_scale * widths[:, None], target.discrete)
        prior = StudentKernel(state.prior_scale, target.discrete)
        drawn = step.draw(state.points, rng), prior.draw(np.tile(state.prior_centre, (n, 1)), rng)
        proposed = np.where(chosen, np.where(local[:, None], *drawn), state.points)
        log_density = target.evaluate(proposed).log_density
        if greedy:
            accepted = log_density >= state.log_density  # also where both are zero: then the chain wanders
        else:
            back, forth = (prior.log_densities(x, state.prior_centre) for x in (state.points, proposed))
            correction = np.where(local, 0.0, ((back - forth) * chosen).sum(axis=1))
            accepted = _accepted(log_density, state.log_density, correction, rng)
        points = np.where(accepted[:, None], proposed, state.points)
        log_density = np.where(accepted, log_density, state.log_density)
        return replace(state, points=points, log_density=log_density), chosen & local[:, None], accepted

    def _weigh(
        self, target: Target, state: RandomWalkState, rng: Generator, path_taken: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Importance samples (T, N, M, d) around the centres (T, N, d) of each step, and their log weights."""
        kernel = StudentKernel(state.proposal_scale, target.discrete)
        size = self.chains * self.importance_samples
        samples, log_weights = [], []
        for some in np.array_split(path_taken, np.ceil(len(path_taken) * size / MAX_BATCH)):
            centres = np.repeat(some[:, :, None], self.importance_samples, axis=2)
            points = kernel.draw(centres, rng)
            log_density = target.evaluate(points.reshape(len(some) * size, target.dim)).log_density
            log_parts = [kernel.log_densities(points, some[:, [n], None]).sum(axis=-1) for n in range(self.chains)]
            log_mixture = logsumexp(log_parts, axis=0) - np.log(self.chains)
            samples.append(points)
            log_weights.append(log_density.reshape(log_mixture.shape) - log_mixture)
        return np.concatenate(samples), np.concatenate(log_weights)


@dataclass(frozen=True)
class RandomWalkState:
    """The chains, their scales, and the importance samples.

    Attributes:
        points: the positions of the chains (N, d); none where no point of the path was found.
        log_density: log γ_k there.
        prior_centre, prior_scale: the fit to the prior draws, (d,) each.
        move_scale: scale of the local moves of each chain, (N, d).
        proposal_scale: scale of the importance samples around a chain, (d,).
        initial_left: moves left of the initial phase.
        initial_path: the last positions of the initial phase, until it is over (moves, N, d).
        path_taken: the positions after each step of the main phase (T, N, d).
        samples, log_weights: the importance samples (T, N, M, d) and the logs of their weights (T, N, M).
        cost: evaluations for each point.
        evaluations: evaluations spent.
    """

    points: np.ndarray
    log_density: np.ndarray
    prior_centre: np.ndarray
    prior_scale: np.ndarray
    move_scale: np.ndarray
    proposal_scale: np.ndarray
    initial_left: int
    initial_path: np.ndarray
    path_taken: np.ndarray
    samples: np.ndarray
    log_weights: np.ndarray
    cost: float
    evaluations: int


@dataclass(frozen=True)
class SiteMoves:
    """The sets of coordinates that a move may change: `masks` (moves, d) with `odds` that sum to one.

    All sites are equally likely; a site of several coordinates is moved as a whole or in one of them.
    """

    masks: np.ndarray
    odds: np.ndarray

    @classmethod
    def of(cls, target: Target) -> SiteMoves:
        masks, odds = [np.zeros((0, target.dim), bool)], [np.zeros(0)]
        sites = _sites(target)
        for columns in sites:
            single = np.eye(target.dim, dtype=bool)[columns]
            masks.append(single)
            if len(single) > 1:
                masks.append(np.logical_or.reduce(single)[None])
                odds += [np.full(len(single), 0.5 / len(single)), np.array([0.5])]
            else:
                odds.append(np.ones(1))
        return cls(np.concatenate(masks), np.concatenate(odds) / max(len(sites), 1))

    def choose(self, n: int, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
        """For each of n chains the coordinates to change (n, d), and a factor of the scale of a local move (n,).

        The factor spans a decade around one over the root of the number of coordinates, as the best scale varies.
        """
        chosen = self.masks[rng.choice(len(self.odds), size=n, p=self.odds)]
        return chosen, 10 ** rng.uniform(-0.5, 0.5, n) / np.sqrt(chosen.sum(axis=1))


def _sites(target: Target) -> list[slice]:
    """The columns of each site; of a marginal density, each coordinate by itself."""
    if target.is_marginal:
        return [slice(j, j + 1) for j in range(target.dim)]
    columns = [site.columns for site in target.path.sites if site.columns is not None]
    return [each for each in columns if each.stop > each.start]


def _best_of_shares(log_density: np.ndarray, chains: int) -> np.ndarray:
    """The index of the best point of each chain's share; few points are in several shares."""
    if not len(log_density):
        return np.zeros(0, int)
    size = -(-len(log_density) // chains)
    shares = np.resize(np.arange(len(log_density)), (size, chains))
    return shares[log_density[shares].argmax(axis=0), np.arange(chains)]


def _fit(points: np.ndarray, discrete: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A centre and a scale for each coordinate: the median, and half the range of the middle two thirds."""
    if not len(points):
        return np.zeros(len(discrete)), np.ones(len(discrete))
    low, centre, high = np.quantile(points, [1 / 6, 1 / 2, 5 / 6], axis=0)
    scale = (high - low) / 2
    scale = np.where(scale > 0, scale, points.std(axis=0))
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    return centre, np.where(discrete, np.maximum(scale, _MIN_DISCRETE_SCALE), scale)


def _gathered(state: RandomWalkState, rng: Generator) -> RandomWalkState:
    """Chains that found no density join, at random, those that did."""
    found = np.flatnonzero(state.log_density > -np.inf)
    if not len(found):
        return state
    at = np.where(state.log_density > -np.inf, np.arange(len(state.points)), rng.choice(found, len(state.points)))
    return replace(state, points=state.points[at], log_density=state.log_density[at], move_scale=state.move_scale[at])


def _proposal_scale(state: RandomWalkState, path_taken: np.ndarray) -> np.ndarray:
    """The scale of the proposals; until the initial phase is over, a third of that of the moves.

    Moves with the wanted rate of acceptance are about three times as wide as the posterior.
    """
    by_moves = np.median(state.move_scale, axis=0) / 3
    if state.initial_left:
        return by_moves
    within = np.median(path_taken.std(axis=0), axis=0)
    return np.where(within > 0, _WIDEN * within, by_moves)


def _accepted(proposed: np.ndarray, current: np.ndarray, correction: np.ndarray, rng: Generator) -> np.ndarray:
    """Metropolis and Hastings' rule; from zero density every point of positive density is accepted."""
    outside = proposed == -np.inf
    ratio = np.where(outside, 0.0, proposed) - np.where(outside, 0.0, current) + correction
    return ~outside & (np.log(rng.uniform(size=len(proposed))) < ratio)


def _relative_error(log_weights: np.ndarray) -> float:
    """The standard error of the mean of weights (T, N, M) relative to it, from the variance within the T N strata."""
    t, n, m = log_weights.shape
    return float(np.sqrt(np.exp(log_weights).var(axis=2, ddof=1).sum() / m) / (t * n))
