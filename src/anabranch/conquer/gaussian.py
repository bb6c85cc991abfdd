"""The exact evidence and posterior of a path whose log density is quadratic: a Gaussian.

    log γ_k(x) = log γ_k(m) − ½ (x − m)ᵀ Λ (x − m),    Z_k = γ_k(m) (2π)^{d/2} |Λ|^{−1/2},    π_k = N(m, Λ⁻¹)

That it is quadratic is read off the recorded program (`divide.is_quadratic`), so that (d + 1)(d + 2)/2 values determine
it. They are taken at unit steps from zero; where rounding may matter there, or the value at the mean is not the one
that follows, again at the steps of the Gaussian found from its mean, where rounding is smallest. Linear regressions
with known noise, state-space models and Gaussian processes with fixed kernels are such paths.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from anabranch import errors
from anabranch.conquer.differences import difference_steps, quadratics
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target
from anabranch.divide import Path, is_quadratic
from anabranch.settings import check, whole

__all__ = ["Gaussian", "GaussianState"]

_EPSILON, _MIN_ERROR = 4 * float(np.finfo(float).eps), 1e-8
"""The relative error of a computed log density; and the least error that is claimed, beyond what rounding does."""
_FEW_ROUNDS, _MAX_ROUNDS, _CLOSE = 2, 6, 1e-5
"""Times that the mean and the scale are determined, nearly always and at most, and how far from the identity the last
precision may be."""
_NEGLIGIBLE = 1e-9
"""Error of the log evidence by rounding below which the values are not taken again."""


@dataclass(frozen=True)
class Gaussian:
    """Solve a path whose log density is quadratic in its coordinates.

    Args:
        max_dim: dimensions up to which it is done; the evaluations grow with their square.
        min_draws: draws from the posterior of a path at least.
        max_draws: and at most; more make expectations more precise, and take more memory.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def location(y):
        ...     ab.observe("y", dist.Normal(ab.sample("mean", dist.Normal(0.0, 3.0)), 1.0), y)
        >>> estimate = solve(Gaussian(), PathTarget(ab.find_paths(location, 2.0).paths[0]), 1_000)
        >>> exact = dist.Normal(0.0, np.sqrt(10.0)).log_prob(2.0)
        >>> bool(abs(estimate.log_evidence - exact) < 1e-6), estimate.log_evidence_sd
        (True, 1e-08)
    """

    max_dim: int = 100
    min_draws: int = 100
    max_draws: int = 10_000

    def __post_init__(self) -> None:
        check(self, max_dim=whole(1), min_draws=whole(1), max_draws=whole(1))

    def fits(self, target: Target, evaluations: float = np.inf) -> bool:
        """Whether the path is Gaussian, and so many evaluations suffice."""
        if target.is_marginal or not 0 < target.dim <= self.max_dim:
            return False
        return _cost(target.dim) <= evaluations and is_quadratic(target.path)

    def exact_visit(self, path: Path) -> int:
        """The evaluations of a visit that solves a path; 0 if it is none for this strategy."""
        return _cost(path.dim) if path.dim <= self.max_dim and is_quadratic(path) else 0

    def start(self, target: Target, rng: Generator) -> GaussianState:
        if not self.fits(target):
            raise errors.StrategyCannotRun(
                f"the log density of the path ({target.path.description}) is not quadratic in at most {self.max_dim} "
                "real coordinates",
                remedy="Use Auto, which takes Gaussian for the paths that it suits",
            )
        return GaussianState(np.zeros((0, target.dim)))

    def advance(self, target: Target, state: GaussianState, rng: Generator, evaluations: int) -> GaussianState:
        if state.scale is None:
            state = _solved(target)
        if state.scale is None:
            return state
        n = int(np.clip(evaluations - len(state.points), self.min_draws, self.max_draws - len(state.points)))
        points = state.mean + rng.standard_normal((max(n, 0), target.dim)) @ state.scale.T
        return GaussianState(np.concatenate([state.points, points]), state.log_evidence, state.mean, state.scale)

    def estimate(self, target: Target, state: GaussianState) -> Estimate:
        if state.scale is None:
            return Estimate.nothing(target.dim, target.evaluations, "Gaussian")
        weights = np.zeros(len(state.points))
        rounding = max(_EPSILON * _values(target.dim) * (1 + abs(state.log_evidence)), _MIN_ERROR)
        return Estimate.from_draws(state.points, weights, state.log_evidence, rounding, target.evaluations, "Gaussian")


@dataclass(frozen=True)
class GaussianState:
    """Draws from the posterior, its log evidence, its mean m, and a scale L with L Lᵀ = Λ⁻¹, None if it has none."""

    points: np.ndarray
    log_evidence: float = -np.inf
    mean: np.ndarray | None = None
    scale: np.ndarray | None = None

    @property
    def is_solved(self) -> bool:
        """Whether there is a Gaussian."""
        return self.scale is not None


def _values(dim: int) -> int:
    """Values of a quadratic function that determine it: `len(difference_steps(dim))`."""
    return 1 + 2 * dim + dim * (dim - 1) // 2


def _cost(dim: int) -> int:
    """The evaluations that nearly always suffice; where they do not, the next visit goes on."""
    return _FEW_ROUNDS * (_values(dim) + 1)


def _solved(target: Target) -> GaussianState:
    """The Gaussian; without a scale where the precision is not positive definite, or rounding hides it."""
    failed = GaussianState(np.zeros((0, target.dim)))
    mean, scale, steps = np.zeros(target.dim), np.eye(target.dim), difference_steps(target.dim)
    for _ in range(_MAX_ROUNDS):
        values = target.evaluate(mean + steps @ scale.T).log_density
        top, gradient, precision = (each[0] for each in quadratics(values[None], target.dim))
        if not np.isfinite(top) or not np.isfinite(precision).all():
            return failed
        try:
            root = np.linalg.cholesky(precision)
        except np.linalg.LinAlgError:
            return failed
        step = np.linalg.solve(precision, gradient)
        inverse = np.linalg.inv(root)
        is_close = np.abs(precision - np.eye(target.dim)).max() < _CLOSE and np.abs(step).max() < _CLOSE
        top += 0.5 * float(gradient @ step)
        mean, scale = mean + scale @ step, scale @ inverse.T
        if not is_close and _rounding(values, step, inverse) < _NEGLIGIBLE:
            # Which also says how large the likelihood is: it bounds that of the paths not visited.
            is_close = abs(float(target.evaluate(mean[None]).log_density[0]) - top) < _CLOSE
        if is_close:
            log_volume = 0.5 * target.dim * np.log(2 * np.pi) + np.linalg.slogdet(scale)[1]
            return GaussianState(np.zeros((0, target.dim)), float(top + log_volume), mean, scale)
    return failed


def _rounding(values: np.ndarray, step: np.ndarray, inverse: np.ndarray) -> float:
    """A bound on the error of the log evidence by the rounding of the values, from the step to the mean and the inverse
    of the root of the precision.

    With values wrong by e, gradients are wrong by e and second differences by 4e; so are gᵀs/2 by e|s| + 2e|s|², and
    log|Λ| by the trace of Λ⁻¹ times 4e d, with |s| the sum of the absolute values.
    """
    error, length = _EPSILON * float(np.abs(values).max()), float(np.abs(step).sum())
    return error * (1 + length + 2 * length**2 + 2 * len(step) * float((inverse**2).sum()))
