"""The density of a path over one ordering of its exchangeable components: Π K! times γ there, and zero elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from anabranch.conquer.symmetry import Exchangeable, fold, log_copies, ordered
from anabranch.conquer.target import Target
from anabranch.divide import Evaluation, PriorDraws

__all__ = ["Ordered"]


class Ordered(Target):
    """Another density where the blocks are in order; both have the same evidence (`symmetry`)."""

    def __init__(self, whole: Target, symmetries: Sequence[Exchangeable]) -> None:
        super().__init__(whole.path, whole.columns, whole.account)
        self.whole, self.symmetries = whole, symmetries
        self.climbable = whole.climbable  # a kernel that leaves the ordering is rejected: that is no jump to look for

    @property
    def terms(self) -> int:
        return self.whole.terms

    @property
    def cost(self) -> int:
        return self.whole.cost

    @property
    def has_gradient(self) -> bool:
        return self.whole.has_gradient

    @property
    def known(self) -> np.ndarray:
        return fold(self.whole.known, self.symmetries)

    def arranged(self, points: np.ndarray) -> np.ndarray:
        return fold(points, self.symmetries)

    def evaluate(self, points: np.ndarray) -> Evaluation:
        return self._ordered(points, self.whole.evaluate(points))

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        evaluation, gradient = self.whole.differentiate(points, inverse_temperature)
        return self._ordered(points, evaluation), gradient

    def _ordered(self, points: np.ndarray, evaluation: Evaluation) -> Evaluation:
        log_prior = evaluation.log_prior + log_copies(self.symmetries)
        return replace(evaluation, log_prior=log_prior, guard=evaluation.guard & ordered(points, self.symmetries))

    def log_density_function(self) -> Callable[[Any], Any]:
        log_density, copies = self.whole.log_density_function(), log_copies(self.symmetries)

        def in_order(x: Any) -> Any:
            holds = [jnp.all(jnp.diff(x[each.keys]) >= 0) for each in self.symmetries]
            return jnp.where(jnp.all(jnp.array(holds)), log_density(x) + copies, -jnp.inf)

        return in_order

    def prior(self, n: int, rng: Generator) -> PriorDraws:
        drawn = self.whole.prior(n, rng)
        return replace(drawn, points=fold(drawn.points, self.symmetries))

    def executions(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        return self.whole.executions(points, rng)
