"""When inference stops."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """A budget of evaluations, a time in seconds, and an error that is small enough; whichever comes first.

    An evaluation is one point at which the density of a path was computed, with or without its gradient.
    """

    budget: int = 1_000_000
    seconds: float | None = None
    tolerance: float | None = 0.005
    started: float = field(default_factory=time.monotonic, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.budget, bool) or not isinstance(self.budget, int | np.integer) or self.budget < 1:
            raise ValueError(f"budget must be a whole number of evaluations, at least 1; got {self.budget!r}")
        if self.seconds is not None and not self.seconds > 0:
            raise ValueError(f"seconds must be positive, or None; got {self.seconds!r}")
        if self.tolerance is not None and not self.tolerance > 0:
            raise ValueError(f"tolerance must be positive, or None; got {self.tolerance!r}")

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def time_is_over(self) -> bool:
        """Whether there was a time, and it is over."""
        return self.seconds is not None and self.elapsed >= self.seconds

    def exceeded(self, evaluations: int) -> str:
        """Why to stop, as a sentence, or nothing."""
        if evaluations >= self.budget:
            return f"The budget of {self.budget:,} evaluations is spent."
        if self.time_is_over:
            return f"The {self.seconds:g} seconds are over."
        return ""
