"""The protocol of a local strategy, which runs inference on one path (paper, section 4.2)."""

from typing import Any, Protocol

from numpy.random import Generator, default_rng

from anabranch import errors
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target
from anabranch.divide import Path

__all__ = ["Strategy", "can_scout", "cheapest_visit", "check_gradient", "exact_visit", "integrated", "solve"]


class Strategy(Protocol):
    """A frozen dataclass of settings with three functions over an explicit state of plain data (arrays, numbers).

    A state pickles, and `advance` returns a new one. A strategy may also have methods `cheapest_visit`, `exact_visit`,
    `can_scout` and `integrated`: see there.
    """

    def start(self, target: Target, rng: Generator) -> Any:
        """The state before any work; raises `errors.StrategyCannotRun` where the strategy does not suit the path."""

    def advance(self, target: Target, state: Any, rng: Generator, evaluations: int) -> Any:
        """Spend about this many evaluations of the density, in whole steps and at least one."""

    def estimate(self, target: Target, state: Any) -> Estimate:
        """The estimate by now. It takes no evaluation of the density."""


def solve(strategy: Strategy, target: Target, evaluations: int, seed: int = 0) -> Estimate:
    """The estimate after one visit of about so many evaluations."""
    rng = default_rng(seed)
    return strategy.estimate(target, strategy.advance(target, strategy.start(target, rng), rng, evaluations))


def cheapest_visit(strategy: Strategy, dim: int) -> int:
    """Evaluations below which a first visit to a path with so many coordinates gives only a rough estimate and compiles
    nothing; 0 where a strategy has no such visit, and no method of this name."""
    method = getattr(strategy, "cheapest_visit", None)
    return 0 if method is None else int(method(dim))


def exact_visit(strategy: Strategy, path: Path) -> int:
    """Evaluations with which a visit solves a path exactly; 0 where none do, or it has no method of this name."""
    method = getattr(strategy, "exact_visit", None)
    return 0 if method is None else int(method(path))


def can_scout(strategy: Strategy, path: Path) -> bool:
    """Whether a few hundred evaluations tell roughly how much mass a path has; not if a strategy has no method of this
    name."""
    method = getattr(strategy, "can_scout", None)
    return method is not None and bool(method(path))


def integrated(strategy: Strategy, target: Target, evaluations: int) -> Target:
    """The density for a visit with so many evaluations: without coordinates that are integrated out, or the same where
    a strategy has no method of this name."""
    method = getattr(strategy, "integrated", None)
    if method is None:
        return target
    found: Target = method(target, evaluations)
    return found


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
