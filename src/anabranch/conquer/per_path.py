"""A strategy for some paths, and another one for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from numpy.random import Generator

from anabranch.conquer.auto import Auto
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.strategy import Strategy, can_scout, cheapest_visit, exact_visit, integrated
from anabranch.conquer.target import Target
from anabranch.divide import Path
from anabranch.errors import BadSetting
from anabranch.settings import check, functions

__all__ = ["PerPath"]

Choice = Mapping[str, Strategy] | Callable[[Path], Strategy | None]
"""Strategies by the description of their path, or a function of a path; None stands for the other strategy."""
_STRATEGY = functions("start", "advance", "estimate", example="anabranch.conquer.SMC()")


class _Chosen(NamedTuple):
    """The strategy of a path, which stays the same, and its state."""

    strategy: Strategy
    state: Any


@dataclass(frozen=True)
class PerPath:
    """Strategies for some paths: `DCC(strategy={"K = 5": NUTS()})`, or a function of the path, makes one.

    Args:
        choice: strategies by the description of their path, as `posterior.paths` has it; or a function that gives the
            strategy of a path, or None.
        otherwise: the strategy of the other paths.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> from anabranch.conquer import SMC
        >>> engine = ab.DCC(strategy=lambda path: SMC() if path.dim == 2 else None)
        >>> sorted(ab.infer(programs.branching, 2.0, engine=engine, budget=20_000).paths.method)
        ['ModeMixture', 'SMC']
    """

    choice: Choice
    otherwise: Strategy = field(default_factory=Auto)

    def __post_init__(self) -> None:
        check(self, otherwise=_STRATEGY)
        if isinstance(self.choice, Mapping):
            for name, strategy in self.choice.items():
                _STRATEGY(f"choice[{name!r}], a strategy,", strategy)
        elif isinstance(self.choice, type) or not callable(self.choice):
            words = "a strategy for each of some paths, by description, or a function of a path"
            raise BadSetting(f"choice must be {words}; got {self.choice!r}")

    def start(self, target: Target, rng: Generator) -> _Chosen:
        strategy = self._of(target.path)
        return _Chosen(strategy, strategy.start(target, rng))

    def advance(self, target: Target, state: _Chosen, rng: Generator, evaluations: int) -> _Chosen:
        return _Chosen(state.strategy, state.strategy.advance(target, state.state, rng, evaluations))

    def estimate(self, target: Target, state: _Chosen) -> Estimate:
        return state.strategy.estimate(target, state.state)

    def cheapest_visit(self, dim: int) -> int:
        """That of the strategy of the other paths."""
        return cheapest_visit(self.otherwise, dim)

    def exact_visit(self, path: Path) -> int:
        """That of the strategy of the path."""
        return exact_visit(self._of(path), path)

    def can_scout(self, path: Path) -> bool:
        """That of the strategy of the path."""
        return can_scout(self._of(path), path)

    def integrated(self, target: Target, evaluations: int) -> Target:
        """That of the strategy of the path."""
        return integrated(self._of(target.path), target, evaluations)

    def unmet(self, paths: Iterable[Path]) -> list[str]:
        """The descriptions that are those of none of the paths."""
        found = {path.description for path in paths}
        return [name for name in self.choice if name not in found] if isinstance(self.choice, Mapping) else []

    def _of(self, path: Path) -> Strategy:
        if isinstance(self.choice, Mapping):
            return self.choice.get(path.description, self.otherwise)
        chosen = self.choice(path)
        return self.otherwise if chosen is None else _STRATEGY("the strategy of a path", chosen)
