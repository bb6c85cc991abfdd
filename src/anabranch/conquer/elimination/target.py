"""The density of a path without the discrete coordinates that are summed out of it.

    log γ(x) = log Σ_z γ(x, z)

for the path's other coordinates x, exactly, by elimination (`order`, `plan`), whatever the number of z (the paper's
section 4.2 leaves the local estimator open). The log likelihood is log Σ_z γ(x, z) − log Σ_z prior(x, z), so that
tempering goes from the prior of x to its posterior. The derivative is that of the sum, by JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from anabranch.conquer.elimination.conditionals import NUMBERS_AT_ONCE, blocks, conditionals, log_total
from anabranch.conquer.elimination.sums import draw, log_sum_by_jax, log_sum_by_numpy
from anabranch.conquer.elimination.tables import Logs, Tables
from anabranch.conquer.elimination.windows import Sides, tails
from anabranch.conquer.target import Target, TargetSettings
from anabranch.divide import Evaluation, Jitted, PriorDraws, in_blocks

__all__ = ["Eliminated"]

_MAX_BLOCK = 64
"""Points of one call of compiled code, at most."""


class Eliminated(Target):
    """The density of a path with some discrete coordinates summed out; made by `eliminate`.

    Args:
        target: the density.
        tables: those of every decision sequence.
        values: of the coordinates summed out, those over which the sums are.
        cut: where there may be other values.
    """

    def __init__(
        self, target: Target, tables: Sequence[Tables], values: Mapping[int, range], cut: Sides | None = None
    ) -> None:
        super().__init__(target.path, np.setdiff1d(target.columns, list(values)), target.account)
        self.target, self.tables, self.values, self.cut = target, tables, values, cut or {}
        self.settings: TargetSettings = getattr(target, "settings", TargetSettings())
        self._on_host = 0

    @property
    def has_gradient(self) -> bool:
        return self.target.has_gradient

    @property
    def known(self) -> np.ndarray:
        return self.target.known[:, self.columns]

    @property
    def terms(self) -> int:
        return sum(each.configurations for each in self.tables)

    def prior(self, n: int, rng: Generator) -> PriorDraws:
        draws = self.path.prior(n, seed=int(rng.integers(2**31)), columns=self.columns)
        return replace(draws, points=draws.points[:, self.columns])

    def evaluate(self, points: np.ndarray) -> Evaluation:
        rows = self._joined(points)
        steps = sum(len(each.plan.batches) for each in self.tables)
        on_host = self._on_host + max(len(points) * self.terms, self.settings.call_cost, steps)
        with self._timed(len(points)):
            if on_host <= self.settings.compile_above or not self.dim:
                self._on_host = on_host
                return self._noted(self._by_numpy(rows))
            return self._noted(Evaluation(*in_blocks(self._function, self._block, rows)))

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        with self._timed(len(points)):
            *values, gradient = in_blocks(self._gradient, self._block, self._joined(points), inverse_temperature)
            gradient = gradient[:, self.columns]
            return self._noted(Evaluation(*values)), np.where(np.isfinite(gradient), gradient, 0.0)

    def log_density_function(self) -> Callable[[Any], Any]:
        reference, columns = self._joined(np.zeros((1, self.dim)))[0], self.columns

        def total(x: jax.Array) -> jax.Array:
            _, density, _, holds = self._traced(jnp.asarray(reference).at[columns].set(x))
            return jnp.where(holds & (density < jnp.inf), density, -jnp.inf)

        @jax.custom_vjp
        def log_density(x: jax.Array) -> jax.Array:
            return total(x)

        def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            value, slope = jax.value_and_grad(total)(x)
            return value, jnp.where(jnp.isfinite(slope) & (value > -jnp.inf), slope, 0.0)

        log_density.defvjp(forward, lambda slope, cotangent: (cotangent * slope,))
        return log_density

    def executions(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        """The points with values of the coordinates summed out, drawn given the others."""
        rows = self._joined(points)
        # Where all points are the same, as without other coordinates, their tables are.
        if len(points) and (points == points[0]).all():
            logs = [each.by_numpy(rows[:1]) for each in self.tables]
            values = sum(len(values) for values in self.values.values())
            for block in blocks(len(points), values):
                self._draw_into(rows[block], logs, rng)
        else:
            for block in self._blocks(len(points)):
                self._draw_into(rows[block], [each.by_numpy(rows[block]) for each in self.tables], rng)
        return self.target.executions(rows, rng)

    def _draw_into(self, rows: np.ndarray, logs: Sequence[Logs], rng: Generator) -> None:
        """Draw the values of the coordinates summed out of some points, given their tables."""
        n = len(rows)
        totals = np.stack([np.broadcast_to(log_total(t, log), n) for t, log in zip(self.tables, logs, strict=True)])
        chosen = _choose(totals, rng)
        for number, (tables, log) in enumerate(zip(self.tables, logs, strict=True)):
            own = np.flatnonzero(chosen == number)
            for column, values in draw(tables.plan, log.density, n, rng).items():
                rows[own, column] = self.values[column][0] + values[own]

    def conditionals(self, points: np.ndarray, columns: Sequence[int]) -> list[np.ndarray]:
        """For each of some columns summed out the probabilities of its values, given the points: (points, values)."""
        return conditionals(self.tables, self._joined(points), columns).probabilities

    def tails(self, points: np.ndarray) -> np.ndarray:
        """At each point a bound of the mass beyond the windows, relative to the mass within (`windows`)."""
        self.charge(len(points))
        return tails(self.tables, self._joined(points), self.cut)

    # The sums -----------------------------------------------------------------------------------------------------

    def _noted(self, evaluation: Evaluation) -> Evaluation:
        return super()._noted(self.path.counted(evaluation))

    def _joined(self, points: np.ndarray) -> np.ndarray:
        """Rows of all coordinates of the path; those summed out have any of their values."""
        out = np.empty((len(points), self.path.dim))
        out[:, self.columns] = points
        for column, values in self.values.items():
            out[:, column] = values[0]
        return out

    def _blocks(self, n: int) -> Iterator[slice]:
        return blocks(n, sum(each.numbers for each in self.tables))

    def _by_numpy(self, rows: np.ndarray) -> Evaluation:
        parts: list[tuple[np.ndarray, ...]] = []
        for block in self._blocks(len(rows)):
            found = []
            for tables in self.tables:
                logs = tables.by_numpy(rows[block])
                prior = 0.0 if tables.prior_is_normalised else log_sum_by_numpy(tables.plan, logs.prior)
                found.append((logs.free_prior + prior, log_total(tables, logs), logs.free_jacobian, logs.holds))
            n = len(rows[block])
            parts.append(tuple(np.broadcast_to(each, (n,)) for each in _joint(found, np)))
        with np.errstate(invalid="ignore"):
            return Evaluation(*_parts(tuple(np.concatenate(each) for each in zip(*parts, strict=True)), np))

    def _traced(self, row: jax.Array) -> tuple[Any, ...]:
        """log Σ prior, log Σ γ, log Jacobian and guard at one point, by JAX."""
        found = []
        for tables in self.tables:
            logs = tables.by_jax(row)
            prior = 0.0 if tables.prior_is_normalised else log_sum_by_jax(tables.plan, logs.prior)
            density = logs.free_prior + logs.free_likelihood + log_sum_by_jax(tables.plan, logs.density)
            found.append((logs.free_prior + prior, density, logs.free_jacobian, logs.holds))
        return _joint(found, jnp)

    @property
    def _block(self) -> int:
        """Points of one call of compiled code."""
        fitting = NUMBERS_AT_ONCE // max(sum(each.numbers for each in self.tables), 1)
        return int(np.clip(1 << max(fitting, 1).bit_length() >> 1, 1, _MAX_BLOCK))

    @cached_property
    def _function(self) -> Jitted:
        return Jitted(jax.vmap(lambda row: _parts(self._traced(row), jnp)))

    @cached_property
    def _gradient(self) -> Jitted:
        def at(row: jax.Array, inverse_temperature: Any) -> tuple[Any, ...]:
            def tempered(row: jax.Array) -> tuple[Any, Any]:
                prior, density, jacobian, holds = self._traced(row)
                total = (1 - inverse_temperature) * prior + inverse_temperature * density
                return total, _parts((prior, density, jacobian, holds), jnp)

            (_, values), gradient = jax.value_and_grad(tempered, has_aux=True)(row)
            return (*values, gradient)

        return Jitted(jax.vmap(at, in_axes=(0, None)))


def _joint(found: list[tuple[Any, ...]], numpy: Any) -> tuple[Any, ...]:
    """The sums over all decision sequences."""
    if len(found) == 1:
        return found[0]
    priors, densities, jacobians, holds = zip(*found, strict=True)
    held = [numpy.where(h, x, -np.inf) for h, x in zip(holds, priors, strict=True)]
    dense = [numpy.where(h, x, -np.inf) for h, x in zip(holds, densities, strict=True)]
    prior, density, jacobian, hold = held[0], dense[0], jacobians[0], holds[0]
    for p, d, j, h in zip(held[1:], dense[1:], jacobians[1:], holds[1:], strict=True):
        prior, density = numpy.logaddexp(prior, p), numpy.logaddexp(density, d)
        jacobian, hold = numpy.where(h, j, jacobian), hold | h
    return prior, density, jacobian, hold


def _parts(sums: tuple[Any, ...], numpy: Any) -> tuple[Any, ...]:
    """Log prior, log likelihood, log Jacobian and guard, from log Σ prior, log Σ γ and the last two."""
    prior, density, jacobian, holds = sums
    some = prior > -np.inf
    likelihood = numpy.where(some, density - numpy.where(some, prior, 0.0), -np.inf)
    return prior, likelihood, jacobian, holds


def _choose(logs: np.ndarray, rng: Generator) -> np.ndarray:
    """For each column the number of a row, with probabilities proportional to the exponentials."""
    if len(logs) == 1:
        return np.zeros(logs.shape[1], int)
    top = logs.max(axis=0)
    weights = np.cumsum(np.exp(logs - np.where(np.isfinite(top), top, 0.0)), axis=0)
    return np.minimum((rng.uniform(size=logs.shape[1]) * weights[-1] >= weights).sum(axis=0), len(logs) - 1)
