"""The density of a path as the strategies see it: a function over rows of coordinates that counts its evaluations.

The first points are computed on the host; a path with more of them is compiled, and so is its gradient. Counts decide,
never the clock, nor what the process has compiled for others, so that the same seed gives the same answer. A visit has
an allowance of evaluations: a density that is asked for more raises `LimitReached`, as it does when the time of the run
is over.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import Generator

from anabranch import errors
from anabranch.divide import (
    Evaluation,
    Executions,
    HostCost,
    Path,
    PriorDraws,
    known_points,
    log_density_function,
    more_draws,
)
from anabranch.limits import LimitReached, checkpoint
from anabranch.settings import check, finite, whole

__all__ = ["MAX_BATCH", "Account", "PathTarget", "Target", "TargetSettings", "Way", "Ways"]

MAX_BATCH = 20_000
"""Points that strategies evaluate in one call; more would take more memory."""


@dataclass
class Account:
    """The evaluations of a path, the number at which the visit ends, the seconds they took, and the largest log
    likelihood among them."""

    evaluations: int = 0
    allowed: float = np.inf
    seconds: float = 0.0
    best_likelihood: float = -np.inf


class Target(ABC):
    """A density γ over rows of coordinates, which strategies integrate and sample.

    Attributes:
        path: the path behind it.
        columns: the coordinates of the path that it has: all but those summed out.
        dim: their number.
        discrete: which of them are discrete.
        account: the evaluations so far, which a density and the one behind it share.
        notes: sentences for the user about what was summed out.
        climbable: whether its gradient can be followed, None before that was looked into: without jumps (`jumps`).
    """

    def __init__(self, path: Path, columns: np.ndarray, account: Account) -> None:
        self.path, self.columns, self.account = path, columns, account
        self.dim, self.discrete = len(columns), path.discrete[columns]
        self._samplers: dict[Any, Callable[..., Any]] = {}
        self.climbable: bool | None = None
        self.notes: tuple[str, ...] = ()

    @property
    def samplers(self) -> dict[Any, Callable[..., Any]]:
        """Functions that were compiled together with the density, by their settings."""
        return self._samplers

    def arranged(self, points: np.ndarray) -> np.ndarray:
        """The points themselves, or, where only one order of exchangeable blocks has a density, those in that order."""
        return points

    @property
    def is_marginal(self) -> bool:
        """Whether coordinates of the path were summed out."""
        return self.dim < self.path.dim

    @property
    def terms(self) -> int:
        """Evaluations of the program's graph for one point: more than one where coordinates were summed out."""
        return 1

    @property
    def cost(self) -> int:
        """Evaluations of the path, by which visits are counted, that a point takes; methods count points."""
        return 1

    @property
    def source(self) -> Target:
        """The density that jumps where this one does."""
        return self

    @property
    @abstractmethod
    def has_gradient(self) -> bool:
        """Whether `differentiate` can be used."""

    @property
    def evaluations(self) -> int:
        """Points at which the density was computed so far: those of the path over the cost."""
        return self.account.evaluations // self.cost

    @property
    def seconds(self) -> float:
        """How long evaluations have taken so far, compilation included."""
        return self.account.seconds

    @property
    def best_likelihood(self) -> float:
        """The largest log likelihood met so far."""
        return self.account.best_likelihood

    @property
    def left(self) -> float:
        """Points that the visit under way may still take; infinite if there is no bound."""
        return (self.account.allowed - self.account.evaluations) / self.cost

    def allow(self, evaluations: float) -> None:
        """Let the visit that begins now take at most so many evaluations of the path."""
        self.account.allowed = self.account.evaluations + evaluations

    @contextmanager
    def bounded(self, evaluations: float) -> Iterator[None]:
        """Within the block, at most so many points, and no more than the visit may take."""
        allowed = self.account.allowed
        self.account.allowed = min(allowed, self.account.evaluations + self.cost * evaluations)
        try:
            yield
        finally:
            self.account.allowed = allowed

    @contextmanager
    def _timed(self, evaluations: int) -> Iterator[None]:
        """Raise `LimitReached` if so many more evaluations are not allowed; count the seconds that they take."""
        checkpoint()
        if evaluations > self.left:
            raise LimitReached
        started = time.perf_counter()
        yield
        self.account.seconds += time.perf_counter() - started

    def _noted(self, evaluation: Evaluation) -> Evaluation:
        """The evaluation, counted."""
        self.charge(len(evaluation.inside))
        inside = evaluation.log_likelihood[evaluation.inside]
        self.account.best_likelihood = max(self.best_likelihood, float(inside.max(initial=-np.inf)))
        return evaluation

    def charge(self, evaluations: int) -> None:
        """Count points at which it was computed elsewhere, by a sampler compiled together with the density."""
        self.account.evaluations += self.cost * evaluations

    @property
    @abstractmethod
    def known(self) -> np.ndarray:
        """Points of the path, from the executions that found it; rows, maybe none."""

    @abstractmethod
    def evaluate(self, points: np.ndarray) -> Evaluation:
        """Log prior, log likelihood and guard at each point."""

    @abstractmethod
    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        """The same, and the gradient of log prior + inverse_temperature · log likelihood."""

    @abstractmethod
    def log_density_function(self) -> Callable[[Any], Any]:
        """log γ at one point for JAX, to be compiled into a sampler: its gradient is zero where it would not be finite.

        It does not count evaluations.
        """

    @abstractmethod
    def prior(self, n: int, rng: Generator) -> PriorDraws:
        """Draws from the prior within the path: at most n, fewer where the guards are rarely met.

        Where the interpreter runs the path, each attempt is an execution of the program and counts as an evaluation.
        """

    @abstractmethod
    def executions(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        """The points in the path's own coordinates: those summed out are drawn from their conditional distribution."""


@dataclass(frozen=True)
class TargetSettings:
    """How a path's density is evaluated.

    Args:
        compile_above: points computed on the host before the density is compiled; a compilation takes about as long as
            some thousand points.
        call_cost: points that take as long on the host as the call itself; a call counts as so many at least.
        compile_gradient_above: gradients computed on the host before they are compiled, as a multiple of what the
            compilation takes; more makes paths that few points suffice for cheaper, and those that matter slower.
        compile_plain_above: points computed by the function with the gradient, where there is one, before the one
            without is compiled, too.
        max_known: points kept of each group of executions that found the path; strategies start from them.
        prior_attempts: one in so many of a visit's evaluations may go into prior draws by the interpreter.
    """

    compile_above: int = 2_000
    call_cost: int = 50
    compile_gradient_above: float = 1.0
    compile_plain_above: int = 20_000
    max_known: int = 50
    prior_attempts: int = 4

    def __post_init__(self) -> None:
        check(self, compile_above=whole(), call_cost=whole(1), compile_gradient_above=finite(0),
              compile_plain_above=whole(), max_known=whole(), prior_attempts=whole(1))  # fmt: skip


class Way(Enum):
    """How points are evaluated: by NumPy, by the function with the gradient, or by the compiled one without."""

    HOST, GRADIENT, PLAIN = range(3)


Counts = tuple[bool, int, int, int]


class Ways:
    """Decides how points are evaluated, by counting: a function is compiled when enough of them have come.

    Attributes:
        is_differentiated: whether there is the function with the gradient, traced for the host or compiled.
    """

    def __init__(self, settings: TargetSettings) -> None:
        self.settings, self.is_differentiated = settings, False
        self._on_host, self._with_gradient, self._gradients_on_host = 0, 0, 0

    @property
    def counts(self) -> Counts:
        """All that the next way depends on."""
        return self.is_differentiated, self._on_host, self._with_gradient, self._gradients_on_host

    @counts.setter
    def counts(self, counts: Counts) -> None:
        self.is_differentiated, self._on_host, self._with_gradient, self._gradients_on_host = counts

    def next(self, points: int, cost: int | None = None) -> Way:
        """The way for so many points, which take as long on the host as `cost` points of a path as a rule do."""
        on_host = self._on_host + max(points if cost is None else cost, self.settings.call_cost)
        if not self.is_differentiated and on_host <= self.settings.compile_above:
            self._on_host = on_host
            return Way.HOST
        if self.is_differentiated and self._with_gradient + points <= self.settings.compile_plain_above:
            self._with_gradient += points
            return Way.GRADIENT
        return Way.PLAIN

    def compiles_gradient(self, points: int, cost: HostCost | None) -> bool:
        """Whether so many points come to the compiled function with the gradient; if not, they are counted.

        Once it was worth compiling it remains so: the last points, which were too many, are counted, too.
        """
        if cost is None:
            return True
        self._gradients_on_host += cost.of(points)
        return self._gradients_on_host > self.settings.compile_gradient_above * cost.compilation


class PathTarget(Target):
    """The density of a path itself.

    `ways` decides how points are evaluated, and `split` has prior draws where they take splitting. `is_integrable` says
    whether coordinates can be integrated out (`conjugate`), None before that was looked into.
    """

    def __init__(self, path: Path, found_by: Sequence[Executions] = (), settings: TargetSettings | None = None) -> None:
        super().__init__(path, np.arange(path.dim), Account())
        self.found_by, self.settings = list(found_by), settings or TargetSettings()
        self._has_gradient = path.has_gradient
        self.ways = Ways(self.settings)
        self.split: PriorDraws | None = None
        self.is_integrable: bool | None = None

    @property
    def samplers(self) -> dict[Any, Callable[..., Any]]:
        return self.path.samplers

    @property
    def has_gradient(self) -> bool:
        return self._has_gradient

    @has_gradient.setter
    def has_gradient(self, value: bool) -> None:
        self._has_gradient = value

    @cached_property
    def known(self) -> np.ndarray:
        """Some of the executions that found the path, as points."""
        points = [known_points(executions, self.settings.max_known) for executions in self.found_by]
        return np.concatenate(points) if points else np.zeros((0, self.dim))

    def evaluate(self, points: np.ndarray) -> Evaluation:
        with self._timed(len(points)):
            return self._noted(self._evaluate(points))

    def _evaluate(self, points: np.ndarray) -> Evaluation:
        way = self.ways.next(len(points))
        if way is Way.HOST:
            return self.path.evaluate(points, compile=False)
        if way is Way.GRADIENT:
            compile = self.ways.compiles_gradient(len(points), self.path.host_cost())
            return self.path.evaluate_as_differentiated(points, compile=compile)
        return self.path.evaluate(points)

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        with self._timed(len(points)):
            try:
                compile = self.ways.compiles_gradient(len(points), self.path.host_cost())
                evaluation, gradient = self.path.differentiate(points, inverse_temperature, compile=compile)
            except errors.NoGradient:
                self._has_gradient = False
                raise
            self.ways.is_differentiated = True
            return self._noted(evaluation), gradient

    def log_density_function(self) -> Callable[[Any], Any]:
        return log_density_function(self.path)

    def prior(self, n: int, rng: Generator) -> PriorDraws:
        if not self.path.interpreted:
            return self._drawn(n, int(rng.integers(2**31)))
        n = int(np.clip(self.left / self.settings.prior_attempts, 1, n))
        with self._timed(n):
            draws = self.path.prior(n, seed=int(rng.integers(2**31)), attempts=int(min(self.left, 100 * n)))
            self.charge(draws.attempts)
            return draws

    def _drawn(self, n: int, seed: int) -> PriorDraws:
        """Prior draws; where they take splitting, it is done once."""
        if self.split is not None:
            return more_draws(self.path, self.split, n, seed)
        drawn = self.path.prior(n, seed=seed)
        self.split = drawn if drawn.pool is not None else None
        return drawn

    def executions(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        return points
