"""The density of a path without the discrete coordinates that are summed out of it.

    log γ(x) = log Σ_z γ(x, z)

for the path's other coordinates x, exactly, by elimination (`order`, `plan`), whatever the number of z (the paper's
section 4.2 leaves the local estimator open). The log likelihood is log Σ_z γ(x, z) − log Σ_z prior(x, z), so that
tempering goes from the prior of x to its posterior. The derivative is that of the sum, by JAX.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from anabranch.conquer.elimination.blocks import Block, Sums, tempered
from anabranch.conquer.elimination.conditionals import NUMBERS_AT_ONCE, batches, conditionals
from anabranch.conquer.elimination.sums import log_sum_by_jax, log_sum_by_numpy
from anabranch.conquer.elimination.tables import Logs, Tables
from anabranch.conquer.elimination.windows import Sides, tails
from anabranch.conquer.marginal import log_density_where, prior_of_columns
from anabranch.conquer.target import Target, TargetSettings, Way, Ways
from anabranch.divide import Evaluation, Jitted, PriorDraws, in_blocks

__all__ = ["Eliminated"]

_MAX_BLOCK = 64
"""Points of one call of compiled code, at most."""


class Eliminated(Target):
    """The density of a path with some discrete coordinates summed out; made by `eliminate`.

    Args:
        target: the density before.
        block: what is summed out.
        others: blocks with which those coordinates are redrawn that have finitely many values and are not summed out.
        cut: where there may be values beyond those over which the sums are.
    """

    def __init__(self, target: Target, block: Block, others: Sequence[Block] = (), cut: Sides | None = None) -> None:
        super().__init__(target.path, np.setdiff1d(target.columns, list(block.values)), target.account)
        self.target, self.block, self.others, self.cut = target, block, others, cut or {}
        self.settings: TargetSettings = getattr(target, "settings", TargetSettings())
        self.ways = Ways(self.settings)
        self._functions: dict[tuple[Any, bool], Jitted] = {}

    @property
    def sums(self) -> Sums:
        """What is summed out, as plain data."""
        return self.block.sums

    @property
    def tables(self) -> list[Tables]:
        """The tables of each decision sequence."""
        return self.block.tables

    @property
    def values(self) -> Mapping[int, range]:
        """The values of each coordinate summed out."""
        return self.block.values

    @cached_property
    def redrawn(self) -> np.ndarray:
        """Which coordinates are in blocks that are redrawn."""
        return np.isin(self.columns, [column for block in self.others for column in block.values])

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
        return prior_of_columns(self.path, self.columns, n, rng)

    def evaluate(self, points: np.ndarray) -> Evaluation:
        return self._noted(Evaluation(*self._evaluated(points)))

    def tempered(self, points: np.ndarray, beta: float) -> tuple[Evaluation, np.ndarray]:
        """The evaluation, and log Σ_z prior · likelihood^β, by one pass through the tables."""
        *parts, total = self._evaluated(points, beta)
        evaluation = self._noted(Evaluation(*parts))
        return evaluation, np.where(evaluation.inside, total, -np.inf)

    def redraw(self, points: np.ndarray, beta: float, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
        """The points after blocked Gibbs moves, which are reversible with respect to Σ_z prior · likelihood^β; and the
        log of that at the points before.

        The coordinates summed out are drawn given the others, then each block given all others, in a random order; then
        they are dropped. A pass through the tables of a block is one evaluation.
        """
        rows = self._joined(points)
        blocks = [self.block, *(self.others[i] for i in rng.permutation(len(self.others)))]
        totals = []
        for block in blocks:
            with self._timed(len(points)):
                totals.append(block.redraw(rows, beta, rng))
            self.charge(len(points))
        return rows[:, self.columns], totals[0]

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        with self._timed(len(points)):
            *values, gradient = self._compiled(Eliminated._gradient, self._joined(points), inverse_temperature)
            self.ways.is_differentiated = True
            gradient = gradient[:, self.columns]
            return self._noted(Evaluation(*values)), np.where(np.isfinite(gradient), gradient, 0.0)

    def log_density_function(self) -> Callable[[Any], Any]:
        reference, columns = self._joined(np.zeros((1, self.dim)))[0], self.columns

        def traced(x: jax.Array) -> tuple[jax.Array, jax.Array]:
            _, density, _, holds = self._traced(jnp.asarray(reference).at[columns].set(x))
            return density, holds

        return log_density_where(traced)

    def executions(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        """The points with values of the coordinates summed out, drawn given the others."""
        rows = self._joined(points)
        # Where all points are the same, as without other coordinates, their tables are.
        if len(points) and (points == points[0]).all():
            logs = [each.by_numpy(rows[:1]) for each in self.tables]
            values = sum(len(values) for values in self.values.values())
            for block in batches(len(points), values):
                self.block.draw_into(rows[block], logs, rng)
        else:
            for block in self._blocks(len(points)):
                self.block.draw_into(rows[block], [each.by_numpy(rows[block]) for each in self.tables], rng)
        return self.target.executions(rows, rng)

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
        out = np.tile(self._first, (len(points), 1))
        out[:, self.columns] = points
        return out

    @cached_property
    def _first(self) -> np.ndarray:
        """The first value of each coordinate that is summed out."""
        out = np.zeros(self.path.dim)
        out[list(self.values)] = [values[0] for values in self.values.values()]
        return out

    def _blocks(self, n: int) -> Iterator[slice]:
        return batches(n, self.block.numbers)

    def _evaluated(self, points: np.ndarray, *betas: float) -> Sequence[np.ndarray]:
        """The parts of an evaluation, and log Σ_z prior · likelihood^β for each β."""
        rows = self._joined(points)
        steps = sum(len(each.plan.batches) for each in self.tables)
        with self._timed(len(points)):
            way = self.ways.next(len(points), max(len(points) * self.terms, steps))
            if way is Way.HOST or not self.dim:
                return self._by_numpy(rows, *betas)
            if way is Way.GRADIENT and not betas:
                return self._compiled(Eliminated._gradient, rows, 1.0)[:-1]
            return self._compiled(Eliminated._tempered if betas else Eliminated._function, rows, *betas)

    def _compiled(self, function: Callable[[Eliminated, bool], Jitted], rows: np.ndarray, *args: float) -> list[Any]:
        """The results of compiled code, in blocks: of the quick one, or, where that gives NaN, of the other."""
        found = in_blocks(self._jitted(function, True), self._block, rows, *args)
        lost = np.isnan(found[1]) | np.isnan(found[0])
        if lost.any() and any(tables.plan.loops for tables in self.tables):
            again = in_blocks(self._jitted(function, False), self._block, rows[lost], *args)
            for one, other in zip(found, again, strict=True):
                one[lost] = other
        return found

    def _jitted(self, function: Callable[[Eliminated, bool], Jitted], quick: bool) -> Jitted:
        """The function, made once."""
        if (function, quick) not in self._functions:
            self._functions[function, quick] = function(self, quick)
        return self._functions[function, quick]

    def _by_numpy(self, rows: np.ndarray, *betas: float) -> Sequence[np.ndarray]:
        parts: list[tuple[np.ndarray, ...]] = []
        for block in self._blocks(len(rows)):
            found = [_sums(tables, tables.by_numpy(rows[block]), betas, log_sum_by_numpy) for tables in self.tables]
            n = len(rows[block])
            parts.append(tuple(np.broadcast_to(each, (n,)) for each in _joint(found, np)))
        with np.errstate(invalid="ignore"):
            return _parts(tuple(np.concatenate(each) for each in zip(*parts, strict=True)), np)

    def _traced(self, row: jax.Array, *betas: Any, quick: bool = False) -> tuple[Any, ...]:
        """log Σ prior, log Σ γ, log Jacobian, guard, and log Σ prior · likelihood^β for each β, at one point by JAX."""
        log_sum = partial(log_sum_by_jax, quick=quick)
        return _joint([_sums(tables, tables.by_jax(row), betas, log_sum) for tables in self.tables], jnp)

    @property
    def _block(self) -> int:
        """Points of one call of compiled code."""
        fitting = NUMBERS_AT_ONCE // max(self.block.numbers, 1)
        return int(np.clip(1 << max(fitting, 1).bit_length() >> 1, 1, _MAX_BLOCK))

    def _function(self, quick: bool) -> Jitted:
        return Jitted(jax.vmap(lambda row: _parts(self._traced(row, quick=quick), jnp)))

    def _tempered(self, quick: bool) -> Jitted:
        return Jitted(jax.vmap(lambda row, beta: _parts(self._traced(row, beta, quick=quick), jnp), in_axes=(0, None)))

    def _gradient(self, quick: bool) -> Jitted:
        def at(row: jax.Array, inverse_temperature: Any) -> tuple[Any, ...]:
            def tempered(row: jax.Array) -> tuple[Any, Any]:
                prior, density, jacobian, holds = self._traced(row, quick=quick)
                total = (1 - inverse_temperature) * prior + inverse_temperature * density
                return total, _parts((prior, density, jacobian, holds), jnp)

            (_, values), gradient = jax.value_and_grad(tempered, has_aux=True)(row)
            return (*values, gradient)

        return Jitted(jax.vmap(at, in_axes=(0, None)))


def _sums(tables: Tables, logs: Logs, betas: Sequence[Any], log_sum: Callable[..., Any]) -> tuple[Any, ...]:
    """What `_traced` gives, of one decision sequence."""
    numpy = np if log_sum is log_sum_by_numpy else jnp
    prior = 0.0 if tables.prior_is_normalised else log_sum(tables.plan, logs.prior)
    totals = [
        logs.free_prior + each.free_likelihood + log_sum(tables.plan, each.density)
        for each in (logs, *(tempered(logs, beta, numpy) for beta in betas))
    ]
    return logs.free_prior + prior, totals[0], logs.free_jacobian, logs.holds, *totals[1:]


def _joint(found: list[tuple[Any, ...]], numpy: Any) -> tuple[Any, ...]:
    """The sums over all decision sequences."""
    if len(found) == 1:
        return found[0]
    priors, densities, jacobians, holds, *others = zip(*found, strict=True)
    prior, density, *rest = (
        reduce(numpy.logaddexp, (numpy.where(h, x, -np.inf) for h, x in zip(holds, each, strict=True)))
        for each in (priors, densities, *others)
    )
    jacobian, hold = jacobians[0], holds[0]
    for j, h in zip(jacobians[1:], holds[1:], strict=True):
        jacobian, hold = numpy.where(h, j, jacobian), hold | h
    return prior, density, jacobian, hold, *rest


def _parts(sums: tuple[Any, ...], numpy: Any) -> tuple[Any, ...]:
    """Log prior, log likelihood, log Jacobian, guard and the rest, from log Σ prior, log Σ γ and all others."""
    prior, density, *others = sums
    some = prior > -np.inf
    likelihood = numpy.where(some, density - numpy.where(some, prior, 0.0), -np.inf)
    return prior, likelihood, *others
