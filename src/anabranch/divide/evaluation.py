"""What a path says of a batch of points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

__all__ = ["Evaluation", "NamedValues"]


@dataclass(frozen=True)
class Evaluation:
    """The parts of log γ_k over a batch of points, in unconstrained coordinates.

    Attributes:
        log_prior: log density of the sites, with the Jacobian of the map from coordinates to values.
        log_likelihood: log density of the observations and factors.
        log_jacobian: that Jacobian alone; `log_prior - log_jacobian` is the density of the named values.
        guard: whether the point lies in this path.
    """

    log_prior: np.ndarray
    log_likelihood: np.ndarray
    log_jacobian: np.ndarray
    guard: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence[Evaluation]) -> Evaluation:
        """That of the points of all parts, one after the other."""
        return parts[0] if len(parts) == 1 else cls(*map(np.concatenate, zip(*map(cls._columns, parts), strict=True)))

    @cached_property
    def invalid(self) -> np.ndarray:
        """The points of the path whose density is NaN or infinite: a fault of the program, taken as no density."""
        with np.errstate(invalid="ignore"):
            total = self.log_prior + self.log_likelihood
        return self.guard & ~(total < np.inf)

    def _columns(self) -> tuple[np.ndarray, ...]:
        return self.log_prior, self.log_likelihood, self.log_jacobian, self.guard

    @cached_property
    def inside(self) -> np.ndarray:
        return self.guard & ~self.invalid

    @cached_property
    def log_density(self) -> np.ndarray:
        """log γ_k: minus infinity outside the path and where the density is no number."""
        with np.errstate(invalid="ignore"):
            return np.where(self.inside, self.log_prior + self.log_likelihood, -np.inf)


@dataclass(frozen=True)
class NamedValues:
    """Values by name at the points numbered `index`, all of which take the same decision sequence.

    Attributes:
        index: the numbers of the points.
        values: the sites by name, or what was asked for of each observation; one row for each point.
        deterministics: the deterministics by name.
        result: what the program returned.
        varies: in the form of (deterministics, result), which of their arrays have one row for each point.
    """

    index: np.ndarray
    values: dict[str, np.ndarray]
    deterministics: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    varies: tuple[dict[str, Any], Any] = field(default_factory=lambda: ({}, None))
