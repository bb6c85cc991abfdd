"""The density of a path without the coordinates that are gamma or beta given the others (`conjugate`).

A point takes two evaluations of the path, whatever the number of such coordinates, and is exact but for rounding. The
prior is integrated in the same way, so that tempering goes from the prior of the others to their posterior. The
derivative is that of the integral, by JAX.

The form of the density is checked at every point, and at draws of the posterior (`verify`). Where it has another one,
`NotConjugate` is raised, and the path is visited with all its coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from anabranch.conquer.conjugate import Conjugates, draw, features, find_conjugates, log_normaliser
from anabranch.conquer.conjugate_integral import Integral, Slopes, has_form, integral, slopes_at
from anabranch.conquer.elimination import Eliminated
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.marginal import log_density_where, prior_of_columns
from anabranch.conquer.target import PathTarget, Target
from anabranch.conquer.weights import systematic
from anabranch.divide import (
    Density,
    Evaluation,
    Jitted,
    Path,
    PriorDraws,
    analytic_columns,
    finite_values,
    in_blocks,
    is_prior_alone,
    numbers_per_point,
    quadratic_columns,
)

__all__ = ["Integrated", "NotConjugate", "integrated_out", "verify"]

_BLOCK, _NUMBERS = (8, 256), 2**22
"""Points of one call of compiled code, at least and at most, and the numbers that these compute."""
_GRADIENT_BLOCK = 64
"""The same with the gradient, at most."""
_CHECKED = 128
"""Draws of the posterior at which the form is checked in each visit."""


class NotConjugate(Exception):
    """The density has not the form by which coordinates were integrated out."""


def integrated_out(target: Target, evaluations: int, max_others: int) -> Target:
    """The target without coordinates that are gamma or beta given the others; the same if there are none.

    They are looked for once. Where nothing is observed, the prior is drawn from; where all coordinates but so many are
    Gaussian given these, that suits `Quadrature`. Discrete variables are no longer summed out if without the others
    they have so few values that these can be evaluated one by one.
    """
    whole = target.target if isinstance(target, Eliminated) else target
    if not isinstance(whole, PathTarget) or whole.is_integrable is False:
        return target
    path, gaussian = whole.path, len(quadratic_columns(whole.path))
    if is_prior_alone(path) or (gaussian and target.dim - gaussian <= max_others):
        return target
    if isinstance(target, Eliminated) and not 0 < 2 * _number_of_values(path) <= evaluations:
        return target
    found = find_conjugates(whole)
    whole.is_integrable = found is not None
    if found is None or (target is not whole and len(found.columns) < (~path.discrete).sum()):
        return target
    return Integrated(whole, found)


def _number_of_values(path: Path) -> int:
    """How many values the discrete coordinates have together, if the others may all be integrated out; else zero."""
    values = [each for each, discrete in zip(finite_values(path), path.discrete, strict=True) if discrete]
    if any(each is None for each in values) or len(analytic_columns(path).columns) < (~path.discrete).sum():
        return 0
    return math.prod(len(each) for each in values if each is not None)


class Integrated(Target):
    """The density of a path with some coordinates integrated out.

    Args:
        target: the density of the path.
        conjugates: the coordinates.
    """

    def __init__(self, target: PathTarget, conjugates: Conjugates) -> None:
        columns = np.setdiff1d(np.arange(target.path.dim), conjugates.columns)
        super().__init__(target.path, columns, target.account)
        self.target, self.conjugates = target, conjugates
        self.density = target.path.recording.once(Density)

    @property
    def cost(self) -> int:
        return 2

    @property
    def source(self) -> Target:
        return self.target  # which is smooth along the coordinates integrated out, and takes less to compile

    @property
    def has_gradient(self) -> bool:
        return self.target.has_gradient

    @property
    def known(self) -> np.ndarray:
        return self.target.known[:, self.columns]

    def prior(self, n: int, rng: Generator) -> PriorDraws:
        return prior_of_columns(self.path, self.columns, n, rng)

    def evaluate(self, points: np.ndarray) -> Evaluation:
        with self._timed(len(points)):
            found, jacobian, guard = self._integrated(points)
            return self._checked(found.logs, found.deviation, jacobian, guard)

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        block = min(self._block, _GRADIENT_BLOCK)
        with self._timed(len(points)):
            *parts, gradient = in_blocks(self._gradient, block, points, float(inverse_temperature))
            return self._checked(*parts), np.where(np.isfinite(gradient), gradient, 0.0)

    def log_density_function(self) -> Callable[[Any], Any]:
        (_, own), places, marginal = self.density.code, self.conjugates.places, self._marginal

        def traced(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            (_, log_density), _, _, holds = marginal.traced(x, [jnp.asarray(each) for each in own], places)
            return log_density, holds

        return log_density_where(traced)

    def executions(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        """The points with values of the coordinates integrated out, drawn given the others."""
        return self.drawn(points, rng)[0]

    def drawn(self, points: np.ndarray, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
        """The points in the coordinates of the path, those integrated out drawn, and their log density by the form."""
        found, power = self._integrated(points)[0], self.conjugates.power
        a, b = found.a[:, 1], found.b[:, 1]
        u = draw(a, b, power, rng)
        of_u = features(u, power)
        log_conditional = a * of_u.a + b * of_u.b - log_normaliser(a, b, power)[0]
        rows = np.zeros((len(points), self.path.dim))
        rows[:, self.columns], rows[:, self.conjugates.columns] = points, u
        return rows, found.logs[:, 1] + log_conditional.sum(axis=1)

    # The integrals ------------------------------------------------------------------------------------------------

    def _integrated(self, points: np.ndarray) -> tuple[Integral, np.ndarray, np.ndarray]:
        """The integrals, the log Jacobian and the guard at points."""
        *slopes, jacobian, guard = in_blocks(self._slopes, self._block, points)
        return integral(Slopes(*slopes), self.conjugates, self.conjugates.places), jacobian, guard

    def _checked(self, logs: np.ndarray, deviation: np.ndarray, jacobian: np.ndarray, guard: np.ndarray) -> Evaluation:
        """The evaluation, counted; raises `NotConjugate` where the density has not the form."""
        if not (deviation[guard] <= 1.0).all():
            raise NotConjugate
        prior, total = logs.T
        is_some = prior > -np.inf
        likelihood = np.where(is_some, total - np.where(is_some, prior, 0.0), -np.inf)
        return self._noted(self.path.counted(Evaluation(prior, likelihood, jacobian, guard)))

    @cached_property
    def _block(self) -> int:
        fitting = _NUMBERS // max(4 * numbers_per_point(self.density), 1)
        return int(np.clip(1 << max(fitting, 1).bit_length() >> 1, *_BLOCK))

    @cached_property
    def _marginal(self) -> _Marginal:
        return _Marginal(self.density.code[0], self.columns, self.conjugates)

    def _jitted(self, function: Callable[..., Any], what: str, *axes: None) -> Jitted:
        """The function of points, and of the arguments of the code and the places last, compiled."""
        (code, own), conjugates = self.density.code, self.conjugates
        key = what, code.key, tuple(conjugates.columns.tolist()), tuple(conjugates.power.tolist())
        return Jitted(jax.vmap(function, in_axes=(0, *axes, None, None)), [own, conjugates.places], key=key)

    @cached_property
    def _slopes(self) -> Jitted:
        return self._jitted(self._marginal.slopes, "slopes")

    @cached_property
    def _gradient(self) -> Jitted:
        marginal = self._marginal

        def at(x: Any, inverse_temperature: Any, own: Any, places: Any) -> tuple[Any, ...]:
            def tempered(x: Any) -> tuple[Any, Any]:
                logs, *others = marginal.traced(x, own, places)
                return (1 - inverse_temperature) * logs[0] + inverse_temperature * logs[1], (logs, *others)

            (_, values), gradient = jax.value_and_grad(tempered, has_aux=True)(x)
            return (*values, gradient)

        return self._jitted(at, "gradient of integral", None)


class _Marginal(NamedTuple):
    """What is compiled: the density of this code without the coordinates integrated out."""

    code: Any
    columns: np.ndarray
    conjugates: Conjugates

    def slopes(self, x: Any, own: Any, places: Any) -> tuple[Any, ...]:
        """Values and derivatives at the places, log Jacobian and guard, at one point."""
        columns = self.conjugates.columns
        row = jnp.zeros(len(self.columns) + len(columns)).at[self.columns].set(x)

        def logs(u: Any) -> tuple[Any, Any]:
            prior, likelihood, *others = self.code.traced(row.at[columns].set(u), own)
            return jnp.stack([prior, prior + likelihood]), others

        found, others = slopes_at(logs, places)
        return (*found, *others)

    def traced(self, x: Any, own: Any, places: Any) -> tuple[Any, ...]:
        """The integrals, the deviation from the form, log Jacobian and guard, at one point."""
        *slopes, jacobian, holds = self.slopes(x, own, places)
        found = integral(Slopes(*slopes), self.conjugates, places, by_jax=True)
        return found.logs, found.deviation, jacobian, holds


def verify(target: Integrated, estimate: Estimate, rng: Generator) -> None:
    """Raise `NotConjugate` unless the density of the path has the form at draws of the posterior."""
    if not len(estimate.points):
        return
    weights = np.exp(estimate.log_weights - estimate.log_weights.max())
    chosen = systematic(weights / weights.sum(), _CHECKED, rng)
    rows, expected = target.drawn(estimate.points[chosen], rng)
    target.account.evaluations += len(rows)
    if not has_form(target.path.evaluate(rows, compile=False, count=False).log_density, expected):
        raise NotConjugate
