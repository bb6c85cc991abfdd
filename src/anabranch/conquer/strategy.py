"""The protocol of a local strategy: how inference runs on one path; and what those that follow gradients need."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from anabranch import errors
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target

__all__ = ["Strategy", "check_gradient"]


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


def check_gradient(target: Target, name: str) -> None:
    """Raise `StrategyCannotRun`, with the name of the strategy, unless there is a gradient in every coordinate."""
    if target.dim == 0:
        reason, other = "has no coordinates", "Enumerate"
    elif target.discrete.any():
        reason, other = "has discrete coordinates", "SMC or RandomWalk"
    elif not target.has_gradient:
        reason, other = "has no gradient", "SMC or RandomWalk"
    else:
        return
    raise errors.StrategyCannotRun(
        f"{name}: the path ({target.path.description}) {reason}", remedy=f"Use {other} for this path, or Auto"
    )
