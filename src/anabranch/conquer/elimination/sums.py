"""The sum of an elimination, by NumPy over a batch of points or by JAX for one, and draws of the variables.

    log Σ_z exp Σ_S f_S(z_S),   z ~ exp Σ_S f_S(z_S) / Σ

Draws go back through the steps: given its neighbours, which were summed out later, a variable has the probabilities
that its own step has summed (forward filtering, backward sampling, where the variables form a chain).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.random import Generator

from anabranch.conquer.elimination.plan import Batch, Link, Loop, Plan

__all__ = ["draw", "log_sum_by_jax", "log_sum_by_numpy", "marginals"]

_MIN_SUM = 1e-270
"""Sums of exponentials above which no term that counts was too small for a floating-point number."""


def log_sum_by_numpy(plan: Plan, factors: Sequence[np.ndarray]) -> np.ndarray:
    """The log of the sum. A group of factors is an array (points, factors, *sizes)."""
    total: Any = 0.0
    messages: list[np.ndarray] = []
    for batch in plan.batches:
        out = _summed(_joint(batch, factors, messages), batch)
        messages.append(out)
        total = total + (out.sum(axis=-1) if len(batch.sizes) == 1 else 0.0)
    return np.asarray(total)


def _forward(plan: Plan, factors: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The sums of factors of each batch, and its messages, at all points; or at one, where all have the same."""
    joints: list[np.ndarray] = []
    messages: list[np.ndarray] = []
    for batch in plan.batches:
        joint = _joint(batch, factors, messages)
        joints.append(joint.reshape(-1, len(batch.variables), *batch.sizes))
        messages.append(_summed(joints[-1], batch))
    return joints, messages


def draw(plan: Plan, factors: Sequence[np.ndarray], n: int, rng: Generator) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """For each variable the number of its value at each of n points, drawn given the point; and the log of the sum.

    The factors may be those of one point, which all are.
    """
    joints, messages = _forward(plan, factors)
    total = sum((out.sum(axis=-1) for out in messages if out.ndim == 2), np.zeros(()))
    drawn: dict[int, np.ndarray] = {}
    for batch, joint in zip(reversed(plan.batches), reversed(joints), strict=True):
        steps, size = joint.shape[1:3]
        given = np.zeros((n, steps), int)
        for column, width in enumerate(batch.sizes[1:]):
            values = np.stack([drawn[int(v)] for v in batch.neighbours[:, column]], axis=1)
            given = given * width + values
        rows = np.arange(n)[:, None] if len(joint) > 1 else 0
        logs = joint.reshape(len(joint), steps, size, -1)[rows, np.arange(steps), :, given]
        weights = np.cumsum(np.exp(logs - _finite(logs.max(axis=2, keepdims=True))), axis=2)
        chosen = (rng.uniform(size=(n, steps, 1)) * weights[:, :, -1:] >= weights).sum(axis=2)
        values = np.minimum(chosen, size - 1)
        drawn.update((int(v), values[:, i]) for i, v in enumerate(batch.variables))
    return drawn, total


def marginals(plan: Plan, factors: Sequence[np.ndarray], n: int) -> dict[int, np.ndarray]:
    """For each variable the probability of each of its values at each of n points: (points, values).

    Back through the steps, p(v, u) = p(u) p(v | u) for a variable v and its neighbours u, whose joint probability the
    step has that took the message of v (the two passes of a junction tree).
    """
    joints, messages = _forward(plan, factors)
    of_messages = [np.ones((n, len(batch.variables), *batch.sizes[1:])) for batch in plan.batches]
    out: dict[int, np.ndarray] = {}
    for number in reversed(range(len(plan.batches))):
        batch, joint = plan.batches[number], joints[number]
        with np.errstate(invalid="ignore"):
            conditional = np.exp(joint - np.expand_dims(messages[number], 2))
        together = np.nan_to_num(conditional) * np.expand_dims(of_messages[number], 2)
        of_variable = together.sum(axis=tuple(range(3, together.ndim)))
        out.update((int(v), of_variable[:, i]) for i, v in enumerate(batch.variables))
        for link in batch.links:
            if link.source[0] == "messages":
                summed = tuple(2 + i for i in range(len(batch.sizes)) if i not in link.axes)
                part = together[:, link.steps].sum(axis=summed)
                order = np.argsort(np.argsort(link.axes))
                of_messages[link.source[1]][:, link.rows] = part.transpose(0, 1, *(2 + order))
    return out


def log_sum_by_jax(plan: Plan, factors: Sequence[jax.Array], quick: bool = False) -> jax.Array:
    """The log of the sum for one point. A group of factors is an array (factors, *sizes).

    With `quick`, loops take a K-th of the exponentials (`_Kernel`), and the sum is NaN where that would lose terms.
    """
    total = jnp.zeros(())
    messages: dict[int, Any] = {}
    loops = {loop.start: loop for loop in plan.loops}
    number = 0
    while number < len(plan.batches):
        if number in loops:
            total = total + _run_loop(plan, loops[number], factors, messages, quick)
            number = loops[number].stop
            continue
        batch = plan.batches[number]
        messages[number] = out = _summed_by_jax(_joint(batch, factors, messages))
        total = total + (jnp.sum(out) if len(batch.sizes) == 1 else 0.0)
        number += 1
    return total


def _run_loop(plan: Plan, loop: Loop, factors: Sequence[jax.Array], messages: dict[int, Any], quick: bool) -> jax.Array:
    """Run a loop; its messages are added to the others."""
    batches = plan.batches[loop.start : loop.start + loop.period]
    outside: list[Any] = []
    constant: dict[tuple[int, int], Any] = {}
    for j, batch in enumerate(batches):
        for i, link in enumerate(batch.links):
            if not _is_inside(link, loop.start + j, j, loop.period):
                turns = [plan.batches[loop.start + t * loop.period + j].links[i].rows for t in range(loop.turns)]
                source = _source(link, factors, messages)
                if all(np.array_equal(rows, turns[0]) for rows in turns):
                    constant[j, i] = _taken(source, turns[0], len(link.axes))
                else:
                    outside.append(_taken(source, np.stack(turns), len(link.axes)))
    kernels = {}
    for j, batch in enumerate(batches) if quick else ():
        same = [(link, constant[j, i]) for i, link in enumerate(batch.links) if (j, i) in constant]
        others = [link for i, link in enumerate(batch.links) if (j, i) not in constant]
        if len(batch.sizes) > 1 and same and all(link.axes == (0,) for link in others):
            kernels[j] = _Kernel.of(_added(batch, same))
    carried = tuple(messages.get(number, jnp.zeros(())) for number in range(loop.start - loop.period, loop.start))

    def turn(before: tuple[Any, ...], given: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        made: list[Any] = []
        taken = iter(given)
        for j, batch in enumerate(batches):
            parts = []
            for i, link in enumerate(batch.links):
                if (j, i) in constant:
                    parts += [] if j in kernels else [(link, constant[j, i])]
                elif _is_inside(link, loop.start + j, j, loop.period):
                    back = loop.start + j - link.source[1]
                    source = made[j - back] if back <= j else before[j - back + loop.period]
                    parts.append((link, _taken(source, link.rows, len(link.axes))))
                else:
                    parts.append((link, next(taken)))
            made.append(kernels[j].summed(_over_variable(batch, parts)) if j in kernels else
                        _summed_by_jax(_added(batch, parts)))  # fmt: skip
        return tuple(made), tuple(made)

    # The messages that the first turn reads may have other shapes than those that the others read.
    first, made_first = turn(carried, [x[0] for x in outside])
    _, made = lax.scan(turn, first, [x[1:] for x in outside], length=loop.turns - 1)
    made = tuple(jnp.concatenate([one[None], others]) for one, others in zip(made_first, made, strict=True))
    for number in _read_later(plan, loop):
        turn_number, j = divmod(number - loop.start, loop.period)
        messages[number] = made[j][turn_number]
    return sum(
        (jnp.sum(each) for each, batch in zip(made, batches, strict=True) if len(batch.sizes) == 1), jnp.zeros(())
    )


class _Kernel(NamedTuple):
    """A factor C(v, u) of a variable and its neighbours that is the same in every turn of a loop, as exponentials.

    With the messages and factors a(v) of the turn, log Σ_v exp(a + C) = m + c(u) + log Σ_v exp(a − m) exp(C − c) takes
    as many exponentials as v has values, m and c being maxima over v. Where all large a meet a small C, the product is
    too small for a floating-point number; the result is then NaN, for the sum to be computed the long way.
    """

    logs: Any
    tops: Any
    exponentials: Any

    @classmethod
    def of(cls, logs: Any) -> _Kernel:
        tops = jnp.max(logs, axis=1, keepdims=True)
        tops = lax.stop_gradient(jnp.where(jnp.isfinite(tops), tops, 0.0))
        return cls(lax.stop_gradient(logs), tops.squeeze(1), jnp.exp(logs - tops))

    def summed(self, logs: Any) -> Any:
        """The sum over the variable for logs (steps, values)."""
        wide = logs.reshape(*logs.shape, *(1,) * (self.logs.ndim - 2))
        top = jnp.max(lax.stop_gradient(wide), axis=1, keepdims=True)
        top = jnp.where(jnp.isfinite(top), top, 0.0)
        sums = jnp.sum(jnp.exp(wide - top) * self.exponentials, axis=1)
        is_zero = jnp.max(lax.stop_gradient(wide) + self.logs, axis=1) == -jnp.inf
        out = jnp.log(jnp.where(is_zero, 1.0, sums)) + top.squeeze(1) + self.tops
        return jnp.where(is_zero, -jnp.inf, jnp.where(sums > _MIN_SUM, out, jnp.nan))


def _over_variable(batch: Batch, parts: Sequence[tuple[Link, Any]]) -> Any:
    """The sum of the factors of each step, all of which depend on the variable alone: (steps, values)."""
    return _added(replace(batch, sizes=batch.sizes[:1]), parts) if parts else jnp.zeros((len(batch.variables), 1))


def _read_later(plan: Plan, loop: Loop) -> set[int]:
    """The batches of a loop whose messages are read after it, or may be carried into another one."""
    later = (link.source for batch in plan.batches[loop.stop :] for link in batch.links)
    read = {number for kind, number in later if kind == "messages"}
    return (read & set(range(loop.start, loop.stop))) | set(range(loop.stop - loop.period, loop.stop))


def _is_inside(link: Link, number: int, position: int, period: int) -> bool:
    """Whether a loop makes the messages itself, in the same turn or the one before."""
    kind, source = link.source
    return kind == "messages" and number - source <= position + period


def _source(link: Link, factors: Sequence[Any], messages: Any) -> Any:
    kind, number = link.source
    return factors[number] if kind == "factors" else messages[number]


def _joint(batch: Batch, factors: Sequence[Any], messages: Any) -> Any:
    """The sum of the factors of each step over the variable and its neighbours: (..., steps, *sizes)."""
    links = ((link, _source(link, factors, messages)) for link in batch.links)
    return _added(batch, [(link, _taken(source, link.rows, len(link.axes))) for link, source in links])


def _added(batch: Batch, parts: Sequence[tuple[Link, Any]]) -> Any:
    steps, out = len(batch.variables), None
    for link, array in parts:
        lead = array.shape[: array.ndim - len(link.axes) - 1]
        ordered = array.transpose((*range(len(lead) + 1), *(len(lead) + 1 + np.argsort(link.axes))))
        shape = [size if i in link.axes else 1 for i, size in enumerate(batch.sizes)]
        part = ordered.reshape(*lead, -1, *shape)
        if not np.array_equal(link.steps, np.arange(steps)):
            part = _segments(part, link.steps, steps, len(lead))
        out = part if out is None else out + part
    if out is None:
        return np.zeros((steps, *batch.sizes))
    whole = (*out.shape[: out.ndim - len(batch.sizes) - 1], steps, *batch.sizes)
    return out if out.shape == whole else (np if isinstance(out, np.ndarray) else jnp).broadcast_to(out, whole)


def _taken(array: Any, rows: np.ndarray, axes: int) -> Any:
    """Rows of a group of factors, each with so many axes; one row where all are the same."""
    axis = array.ndim - axes - 1
    if rows.ndim == 1 and (rows == rows[0]).all():
        rows = rows[:1]
    if rows.ndim == 1 and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return array[(slice(None),) * axis + (slice(int(rows[0]), int(rows[0]) + len(rows)),)]
    return array.take(rows, axis=axis)


def _segments(array: Any, steps: np.ndarray, number: int, axis: int) -> Any:
    """The sums of the rows that belong to the same step; one row is that of all."""
    if array.shape[axis] < len(steps):
        whole = (*array.shape[:axis], len(steps), *array.shape[axis + 1 :])
        array = (np if isinstance(array, np.ndarray) else jnp).broadcast_to(array, whole)
    if isinstance(array, np.ndarray):
        out = np.zeros((*array.shape[:axis], number, *array.shape[axis + 1 :]))
        np.add.at(np.moveaxis(out, axis, 0), steps, np.moveaxis(array, axis, 0))
        return out
    return jax.ops.segment_sum(array, steps, number)


def _finite(top: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(top), top, 0.0)


def _summed(joint: np.ndarray, batch: Batch) -> np.ndarray:
    """log Σ exp over the variable."""
    axis = joint.ndim - len(batch.sizes)
    top = _finite(joint.max(axis=axis, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(np.exp(joint - top).sum(axis=axis)) + top.squeeze(axis)


@jax.custom_jvp
def _summed_by_jax(joint: jax.Array) -> jax.Array:
    """The same for one point, with a derivative of zero where all terms are zero."""
    top = jnp.max(joint, axis=1, keepdims=True)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return jnp.log(jnp.sum(jnp.exp(joint - top), axis=1)) + top.squeeze(1)


@_summed_by_jax.defjvp
def _derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    """Σ_v p_v dx_v, p_v = exp(x_v − log Σ exp x)."""
    ((joint,), (tangent,)) = primals, tangents
    out = _summed_by_jax(joint)
    total = jnp.where(out > -jnp.inf, out, jnp.inf)
    return out, jnp.sum(jnp.exp(joint - jnp.expand_dims(total, 1)) * tangent, axis=1)
