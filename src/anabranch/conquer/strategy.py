"""The protocol of a local strategy: how inference runs on one path."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target

__all__ = ["Strategy"]


class Strategy(Protocol):
    """A frozen dataclass of settings with three functions over an explicit state of plain data (arrays, numbers).

    A state pickles, and `advance` never changes the one it is given: it returns another.
    """

    def start(self, target: Target, rng: np.random.Generator) -> Any:
        """The state before any work; raises `errors.StrategyCannotRun` where the strategy does not suit the path."""

    def advance(self, target: Target, state: Any, rng: np.random.Generator, evaluations: int) -> Any:
        """Spend about this many evaluations of the density: whole steps, at least one, so a few more or less."""

    def estimate(self, target: Target, state: Any) -> Estimate:
        """What is known by now. Costs no evaluation of the density."""
