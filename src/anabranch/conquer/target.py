"""A path as the strategies see it: a density over rows of coordinates, that counts how often it is asked.

A few points are computed on the host; a path that is asked for more is compiled. The numbers of points decide, never
the clock, so that the same seed gives the same answer. A visit has an allowance of evaluations, which is not exceeded:
a density that is asked for more raises `LimitReached`, as it does when the time of the run is over.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from anabranch import errors
from anabranch.divide import Evaluation, Executions, Path, PriorDraws, known_points
from anabranch.limits import LimitReached, checkpoint

__all__ = ["PathTarget", "Target"]

COMPILE_ABOVE = 2_000
"""Points computed on the host before the density is compiled."""
CALL = 50
"""Points that take about as long on the host as the call itself: fewer count as so many."""
_KNOWN = 50
_ATTEMPTS = 4
"""One in so many of the runs that are left of a visit go into prior draws of a path that the interpreter runs."""
PLAIN_ABOVE = 20_000
"""Points computed by the function with the gradient, if there is one, before that without it is compiled, too."""


class Target(Protocol):
    """A density γ over rows of coordinates, which strategies integrate and sample."""

    @property
    def path(self) -> Path:
        """The path behind it."""

    @property
    def dim(self) -> int:
        """The number of coordinates."""

    @property
    def discrete(self) -> np.ndarray:
        """Which coordinates hold whole numbers."""

    @property
    def has_gradient(self) -> bool:
        """Whether `differentiate` can be used."""

    @property
    def evaluations(self) -> int:
        """Points at which the density was computed so far."""

    @property
    def left(self) -> float:
        """Evaluations that the visit under way may still take; infinite if there is no bound."""

    @property
    def cost(self) -> int:
        """Evaluations that one point takes."""

    @property
    def seconds(self) -> float:
        """How long evaluations have taken so far, compilation included."""

    @property
    def best_likelihood(self) -> float:
        """The largest log likelihood met so far."""

    @property
    def known(self) -> np.ndarray:
        """Points known to lie in the path, from the executions that found it; rows, maybe none."""

    def evaluate(self, points: np.ndarray) -> Evaluation:
        """Log prior, log likelihood and guard at each point."""

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        """The same, and the gradient of log prior + inverse_temperature · log likelihood."""

    def allow(self, evaluations: float) -> None:
        """Let the visit that begins now take at most so many evaluations."""

    def charge(self, evaluations: int) -> None:
        """Count evaluations that were made elsewhere, by a sampler compiled together with the density."""

    def prior(self, n: int, rng: np.random.Generator) -> PriorDraws:
        """Draws from the prior within the path: at most n, fewer where the guards are rarely met.

        Where the path is run by the interpreter, each attempt takes a run of the program, and counts as an evaluation.
        """

    def executions(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Rows of the path's own coordinates for rows of these: what was summed out is drawn."""


class PathTarget:
    """The density of a path itself."""

    def __init__(self, path: Path, found_by: Sequence[Executions] = ()) -> None:
        self.path = path
        self.found_by = list(found_by)
        self.dim = path.dim
        self.discrete = path.discrete
        self.has_gradient = path.has_gradient
        self.evaluations = 0
        self.cost = 1
        self.seconds = 0.0
        self.best_likelihood = -np.inf
        self._allowed = np.inf
        self._on_host, self._with_gradient = 0, 0
        self._differentiated = False

    @cached_property
    def known(self) -> np.ndarray:
        """Some of the executions that found the path, as points."""
        points = [known_points(executions)[:_KNOWN] for executions in self.found_by]
        return np.concatenate(points) if points else np.zeros((0, self.dim))

    @property
    def left(self) -> float:
        return self._allowed - self.evaluations

    def allow(self, evaluations: float) -> None:
        self._allowed = self.evaluations + evaluations

    def charge(self, evaluations: int) -> None:
        self.evaluations += evaluations

    def _check(self, evaluations: int) -> None:
        """Raise `LimitReached` if so many evaluations more are too many."""
        checkpoint()
        if evaluations > self.left:
            raise LimitReached

    def evaluate(self, points: np.ndarray) -> Evaluation:
        self._check(len(points))
        started = time.perf_counter()
        evaluation = self._noted(self._evaluate(points))
        self.seconds += time.perf_counter() - started
        return evaluation

    def _evaluate(self, points: np.ndarray) -> Evaluation:
        if not self._differentiated and self._on_host + max(len(points), CALL) <= COMPILE_ABOVE:
            self._on_host += max(len(points), CALL)
            return self.path.evaluate(points, compile=False)
        if self._differentiated and self._with_gradient + len(points) <= PLAIN_ABOVE:
            self._with_gradient += len(points)
            return self.path.differentiate(points)[0]
        return self.path.evaluate(points)

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        self._check(len(points))
        started = time.perf_counter()
        try:
            evaluation, gradient = self.path.differentiate(points, inverse_temperature)
        except errors.NoGradient:
            self.has_gradient = False
            raise
        self.seconds += time.perf_counter() - started
        self._differentiated = True
        return self._noted(evaluation), gradient

    def _noted(self, evaluation: Evaluation) -> Evaluation:
        self.evaluations += len(evaluation.inside)
        inside = evaluation.log_likelihood[evaluation.inside]
        self.best_likelihood = max(self.best_likelihood, float(inside.max(initial=-np.inf)))
        return evaluation

    def prior(self, n: int, rng: np.random.Generator) -> PriorDraws:
        if not self.path.interpreted:
            return self.path.prior(n, seed=int(rng.integers(2**31)))
        n = int(np.clip(self.left / _ATTEMPTS, 1, n))
        self._check(n)
        started = time.perf_counter()
        draws = self.path.prior(n, seed=int(rng.integers(2**31)), attempts=int(min(self.left, 100 * n)))
        self.charge(draws.attempts)
        self.seconds += time.perf_counter() - started
        return draws

    def executions(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return points
