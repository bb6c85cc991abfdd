"""The protocol of a local strategy: how inference runs on one path; and what those that follow gradients need."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from anabranch import errors
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target

__all__ = ["FirstVisitCost", "Strategy", "check_gradient", "first_visit_cost"]


class Strategy(Protocol):
    """A frozen dataclass of settings with three functions over an explicit state of plain data (arrays, numbers).

    A state pickles, and `advance` never changes the one it is given: it returns another. A fourth function,
    `first_visit_cost(dim) -> FirstVisitCost`, is optional.
    """

    def start(self, target: Target, rng: np.random.Generator) -> Any:
        """The state before any work; raises `errors.StrategyCannotRun` where the strategy does not suit the path."""

    def advance(self, target: Target, state: Any, rng: np.random.Generator, evaluations: int) -> Any:
        """Spend about this many evaluations of the density: whole steps, at least one, so a few more or less."""

    def estimate(self, target: Target, state: Any) -> Estimate:
        """What is known by now. Costs no evaluation of the density."""


class FirstVisitCost(NamedTuple):
    """What the first visit of a path takes.

    Attributes:
        max_uncompiled: the most evaluations with which the visit compiles nothing; None if it always compiles.
        min_reliable: evaluations below which the visit may miss the mass of the path.
    """

    max_uncompiled: int | None = None
    min_reliable: int = 0


def first_visit_cost(strategy: Strategy, dim: int) -> FirstVisitCost:
    """What a strategy says of its first visit of a path with this many dimensions, if it does."""
    stated = getattr(strategy, "first_visit_cost", None)
    return FirstVisitCost() if stated is None else stated(dim)


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
