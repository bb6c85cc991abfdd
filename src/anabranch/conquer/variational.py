"""Variational inference with one guide per path (support decomposition: Reichelt, Ong and Rainforth, 2022).

The guide q is a normal distribution in the path's coordinates, x = m + R ε with ε standard normal. It maximises

    L = E_q[log γ_k(x) − log q(x) | x in the path] + log q(path)  ≤  log Z_k,

the ELBO of the guide restricted to the path. In the units of R, the score s of log q being ε for m and ε εᵀ − 1 for R,
its gradient is

    E_q[(Rᵀ ∇ log γ_k + ε) (1, εᵀ)]            if all points of a batch lie in the path: the reparametrised gradient
                                               without its score term (Roeder, Wu and Duvenaud, 2017),
    Cov(log γ_k − log q, s | in the path)      otherwise: the bound also depends on where the guide meets the guards.

Both vanish, with their noise, where the guide is the posterior. To the second the gradient of ½ log q(path) is added,
½ E[s | in the path], since importance weights have a relative variance of about 2 (log Z_k − L) − log q(path).
Steps are Adam's, m ← m + R a and R ← R exp(A), so they do not depend on the scale of the coordinates.

The evidence is the mean of importance weights γ_k/q of draws from the guide, with tails added (paper, section 4.2).
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.random import Generator

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.population import climbed
from anabranch.conquer.strategy import check_gradient
from anabranch.conquer.student import DF, StudentMixture
from anabranch.conquer.target import MAX_BATCH, Target
from anabranch.limits import LimitReached
from anabranch.settings import check, one_of, positive, share, whole

__all__ = ["Variational", "VariationalState"]

_MAX_FULL_DIM = 100
"""Dimensions up to which the guide has a full covariance by default."""
_NARROW = 0.1
"""The width of the first guide, in units of the prior's."""
_MEMORY = 0.9
"""The weight of earlier batches in the reported ELBO."""


@dataclass(frozen=True)
class VariationalState:
    """The guide, and draws from it.

    Attributes:
        mean, scale_tril: m and R; an empty mean where no point of the path was found.
        first, second: Adam's averages of the gradient and of its square, a column for m and then those for R.
        points, log_weights: draws from the guide.
        iteration: steps of training so far.
        elbo: the bound L, averaged over the last batches; minus infinity before training.
    """

    mean: np.ndarray
    scale_tril: np.ndarray
    first: np.ndarray
    second: np.ndarray
    points: np.ndarray
    log_weights: np.ndarray
    iteration: int = 0
    elbo: float = -np.inf


@dataclass(frozen=True)
class Variational:
    """A normal guide trained to the path's posterior, and importance sampling from it.

    Attributes:
        guide: "full" for one with correlations, "diagonal" for one without; None for full up to 100 coordinates.
        iterations: steps of training.
        batch: points of the guide at each of them.
        rate: the length of Adam's first steps, in units of the guide's width; it falls to zero.
        training: the fraction of the evaluations spent on training while it lasts; the others are draws.
        tails: the share of the draws from a Student-t distribution with the guide's scale, which bounds the weights.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def program():
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)
        >>> estimate = solve(Variational(), PathTarget(ab.find_paths(program).paths[0]), 30_000)
        >>> exact = -0.25 - 0.5 * np.log(4 * np.pi)
        >>> bool(abs(estimate.log_evidence - exact) < 3 * estimate.log_evidence_sd < 0.03)
        True
    """

    guide: Literal["diagonal", "full"] | None = None
    iterations: int = 400
    batch: int = 64
    rate: float = 0.1
    training: float = 0.8
    tails: float = 0.2

    def __post_init__(self) -> None:
        check(self, guide=one_of("diagonal", "full").or_none(), iterations=whole(1), batch=whole(4), rate=positive(),
              training=share(), tails=share())  # fmt: skip

    def start(self, target: Target, rng: Generator) -> VariationalState:
        """A narrow guide at the highest end of climbs from prior draws."""
        check_gradient(target, "Variational")
        points, log_density, prior_sd = climbed(target, rng)
        nothing = np.zeros((0, target.dim)), np.zeros(0)
        blank = np.zeros((target.dim, target.dim + 1))
        if not len(points):
            return VariationalState(np.zeros(0), np.eye(target.dim), blank, blank, *nothing)
        best = points[np.argmax(log_density)]
        return VariationalState(best, np.diag(_NARROW * prior_sd), blank, blank, *nothing)

    def advance(self, target: Target, state: VariationalState, rng: Generator, evaluations: int) -> VariationalState:
        """Train the guide and draw from it; draws of an earlier guide are dropped."""
        if not len(state.mean):
            return self.start(target, rng)
        limit = target.evaluations + evaluations
        if state.iteration < self.iterations:
            state = replace(state, points=state.points[:0], log_weights=state.log_weights[:0])
        pause = target.evaluations + int(self.training * evaluations)
        try:
            while state.iteration < self.iterations and target.evaluations < pause:
                state = self._trained(target, state, rng)
        except LimitReached:
            return state
        return self._drawn(target, state, rng, max(limit - target.evaluations, self.batch))

    def estimate(self, target: Target, state: VariationalState) -> Estimate:
        """By importance sampling from the guide; the ELBO is in the state."""
        remarks = []
        if not len(state.mean):
            remarks.append("No point of the path was found.")
        elif not len(state.log_weights):
            remarks.append("The guide has not been trained yet.")
        return Estimate.from_weights(state.points, state.log_weights, target.evaluations, "Variational", remarks)

    def _trained(self, target: Target, state: VariationalState, rng: Generator) -> VariationalState:
        """One step of Adam along the gradient of the bound."""
        noise = rng.standard_normal((self.batch, target.dim))
        evaluation, slope = target.differentiate(state.mean + noise @ state.scale_tril.T)
        iteration = state.iteration + 1
        inside = np.isfinite(evaluation.log_density)
        if inside.sum() < 2:
            # The guide has left the path.
            return replace(state, scale_tril=0.5 * state.scale_tril, iteration=iteration)
        noise, slope = noise[inside], slope[inside] @ state.scale_tril
        log_ratio = evaluation.log_density[inside] - _log_normal(noise, state.scale_tril)
        gradient = _reparametrised(noise, slope) if inside.all() else _by_score(noise, log_ratio)
        # Gradients beyond one, in the guide's units, only say that the guide is far off.
        gradient = np.clip(gradient, -1, 1)
        first, second = 0.9 * state.first + 0.1 * gradient, 0.99 * state.second + 0.01 * gradient**2
        step = (first / (1 - 0.9**iteration)) / (np.sqrt(second / (1 - 0.99**iteration)) + 1e-12)
        step *= self.rate * (1 - state.iteration / self.iterations)
        bound = float(log_ratio.mean() + np.log(inside.mean()))
        full = target.dim <= _MAX_FULL_DIM if self.guide is None else self.guide == "full"
        return replace(
            state, mean=state.mean + state.scale_tril @ step[:, 0],
            scale_tril=state.scale_tril @ _factor(step[:, 1:], full), first=first, second=second, iteration=iteration,
            elbo=bound if iteration == 1 else _MEMORY * state.elbo + (1 - _MEMORY) * bound,
        )  # fmt: skip

    def _drawn(self, target: Target, state: VariationalState, rng: Generator, n: int) -> VariationalState:
        """The state with n more weighted draws from the guide with tails added."""
        twice = np.stack([state.mean] * 2), np.stack([state.scale_tril] * 2)
        proposal = StudentMixture(*twice, np.array([1 - self.tails, self.tails]), np.array([np.inf, DF]))
        points, log_weights = [state.points], [state.log_weights]
        for size in np.diff(np.append(np.arange(0, n, MAX_BATCH), n)):
            drawn = proposal.draw(int(size), rng)
            try:
                log_weights.append(target.evaluate(drawn).log_density - proposal.log_density(drawn))
            except LimitReached:
                break
            points.append(drawn)
        return replace(state, points=np.concatenate(points), log_weights=np.concatenate(log_weights))


def _log_normal(noise: np.ndarray, scale_tril: np.ndarray) -> np.ndarray:
    """log q at the points with this noise ε."""
    constant = 0.5 * noise.shape[1] * np.log(2 * np.pi) + np.log(np.diag(scale_tril)).sum()
    return -0.5 * (noise**2).sum(axis=1) - constant


def _reparametrised(noise: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The gradient for m (first column) and R, in units of R, from the slope of log γ."""
    path = slope + noise
    return np.column_stack([path.mean(axis=0), path.T @ noise / len(noise)])


def _by_score(noise: np.ndarray, log_ratio: np.ndarray) -> np.ndarray:
    """The same from the covariance of the log ratio with the score, and half of the gradient of log q(path)."""
    gain = (log_ratio - log_ratio.mean()) / (len(noise) - 1) + 0.5 / len(noise)
    return np.column_stack([gain @ noise, (noise * gain[:, None]).T @ noise - 0.5 * np.eye(noise.shape[1])])


def _factor(step: np.ndarray, full: bool) -> np.ndarray:
    """The factor of R: the exponential of the diagonal, and the step below it."""
    # All entries of a row move the same coordinate: together they should not move it by more than one.
    below = np.tril(step, -1) / np.sqrt(len(step)) if full else 0.0
    return np.diag(np.exp(np.diag(step))) + below
