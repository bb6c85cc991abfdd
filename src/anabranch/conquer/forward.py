"""Forward sampling of a path without observations and factors, whose posterior is the prior within the path.

    Z_k = ∫ Π_i f(x_i | η_i) · 1[x takes path k] dx = P(k),   π_k(x) = f(x | k)

(paper, section 4.2, with a likelihood of one). Fixed sites are held at their values and the others drawn. The weight of
a draw that meets the guards is the probability of the fixed values, and the mean weight of all attempts is Ẑ_k. It is
exact where there is no guard and the probability of the fixed values is constant.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from anabranch import errors
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target
from anabranch.divide import is_prior_alone
from anabranch.limits import checkpoint
from anabranch.settings import check, whole

__all__ = ["Forward", "ForwardState"]

_PROBE = 100
"""Draws of the first attempt, which shows how often the guards are met."""


@dataclass(frozen=True)
class Forward:
    """Draw from the prior of a path that has no likelihood; an attempt counts as an evaluation, if one is left.

    Args:
        min_attempts: of a visit; more make the evidence more precise at little cost.
        max_draws: draws that are kept; further ones only make the evidence more precise.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def walk():
        ...     if ab.sample("up", dist.Bernoulli(0.25)):
        ...         ab.sample("x", dist.Normal(3.0, 1.0))
        >>> target = PathTarget(max(ab.find_paths(walk).paths, key=lambda path: path.dim))
        >>> estimate = solve(Forward(), target, 4_000)
        >>> round(float(np.exp(estimate.log_evidence)), 6), round(estimate.log_evidence_sd, 6)
        (0.25, 0.0)
    """

    min_attempts: int = 1_000
    max_draws: int = 50_000

    def __post_init__(self) -> None:
        check(self, min_attempts=whole(1), max_draws=whole(1))

    def start(self, target: Target, rng: Generator) -> ForwardState:
        if not is_prior_alone(target.path):
            raise errors.StrategyCannotRun(
                f"the density of the path ({target.path.description}) is more than a prior",
                remedy="Use Auto, which takes Forward for the paths that it suits",
            )
        return ForwardState(np.zeros((0, target.dim)), np.zeros(0))

    def advance(self, target: Target, state: ForwardState, rng: Generator, evaluations: int) -> ForwardState:
        end = state.attempts + max(evaluations, self.min_attempts)
        while state.attempts < end:
            checkpoint()
            rate = state.passed / state.attempts if state.passed else 0.0
            wanted = int(rate * (end - state.attempts)) if state.attempts else _PROBE
            before = state.attempts
            state = self._added(target, state, rng, max(wanted, 1))
            # Splitting makes more of them than were asked for, which are no evaluations of the density.
            target.charge(int(min(state.attempts - before, end - before, max(target.left, 0))))
        return state

    def _added(self, target: Target, state: ForwardState, rng: Generator, n: int) -> ForwardState:
        """The state after n more draws, or after as many attempts as `path.prior` makes for them."""
        drawn = target.prior(n, rng)
        log_weight = drawn.log_probability + np.log(drawn.attempts)
        log_total = float(np.logaddexp(state.log_total, log_weight))
        # The errors of two sums relative to their sum, in logs: probabilities may be too small for a float.
        parts = [(state.log_total, state.error), (log_weight, drawn.log_probability_sd)]
        error = np.sqrt(sum((np.exp(part - log_total) * sd) ** 2 for part, sd in parts if part > -np.inf))
        if drawn.pool is not None:  # more draws rest on the same probability
            error = drawn.log_probability_sd
        return ForwardState(
            np.concatenate([state.points, drawn.points])[: self.max_draws],
            np.concatenate([state.log_weights, drawn.log_weights])[: self.max_draws],
            state.attempts + drawn.attempts,
            state.passed + len(drawn.points),
            log_total,
            float(error),
        )

    def estimate(self, target: Target, state: ForwardState) -> Estimate:
        if not len(state.points):
            return Estimate.nothing(target.dim, target.evaluations, "Forward")
        log_evidence = state.log_total - np.log(state.attempts)
        return Estimate.from_draws(
            state.points, state.log_weights, float(log_evidence), state.error, target.evaluations, "Forward"
        )


@dataclass(frozen=True)
class ForwardState:
    """Draws and weights, attempts and those that met the guards, the log of the sum of weights, its relative error."""

    points: np.ndarray
    log_weights: np.ndarray
    attempts: int = 0
    passed: int = 0
    log_total: float = -np.inf
    error: float = 0.0
