"""A density and its gradient by NumPy: what JAX traces of them, evaluated primitive by primitive over a batch.

XLA compiles the gradient of a path in about half a second, in which NumPy computes it at thousands of points. The trace
takes a tenth of that, and densities with the same code share it. Packs are one operation in it, so that it is as long
for forty means drawn one by one as for four. Whether a gradient is computed in this way or compiled is not decided here
(`conquer.target.Ways`), but by what both take, which follows from the trace alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr

from anabranch.divide import numpy_backend
from anabranch.divide.dispatch import compilation
from anabranch.divide.numpy_backend.primitives import CALL_BODIES, jaxprs_in, repetitions
from anabranch.limits import checkpoint

__all__ = ["HostCost", "HostGradient"]

NUMBERS_PER_CALL = 1_500
"""Numbers that NumPy computes in the time that it takes to call one of its functions."""
NUMBERS_PER_OPERATION = 6_000_000
"""Numbers that NumPy computes in the time in which XLA compiles an operation, less what XLA takes for as many."""
MAX_NUMBERS, MAX_BLOCK = 2**21, 512
"""Numbers of all steps for one block of points, which should stay in the cache of the processor, and its points."""
_MAX_TRACES = 256
"""Traces that are kept for others with the same key."""


@dataclass(frozen=True)
class HostCost:
    """What the gradient takes by NumPy, and its compilation, both in numbers that NumPy computes in the same time.

    Attributes:
        calls: functions of NumPy that are called for one block of points.
        numbers: what they compute for one point.
        operations: those that XLA would compile; a loop has the same, however often it is run.
    """

    calls: int
    numbers: int
    operations: int

    @property
    def block(self) -> int:
        """Points that are computed at once, at most."""
        return int(np.clip(MAX_NUMBERS // max(self.numbers, 1), 1, MAX_BLOCK))

    @property
    def compilation(self) -> int:
        """What the compilation takes."""
        return self.operations * NUMBERS_PER_OPERATION

    def of(self, points: int) -> int:
        """What so many points take."""
        return -(-points // self.block) * self.calls * NUMBERS_PER_CALL + points * self.numbers


Evaluate = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


class _Trace:
    """What JAX traces at one point: the parts of an evaluation, and the gradient after them."""

    def __init__(self, jaxpr: ClosedJaxpr) -> None:
        self.jaxpr = jaxpr
        # None where a primitive has no rule: JAX would compile it by itself, for each size of a batch.
        self.cost = HostCost(*_counted(jaxpr.jaxpr)) if numpy_backend.supports_all(jaxpr.jaxpr) else None


class HostGradient:
    """The parts of an evaluation at points, and the gradient of its density.

    Args:
        function: of a point, an inverse temperature and the arguments; the gradient is the last of its results.
        dim: numbers of a point.
        arguments: trees of arrays, which the function is given last.
        key: functions with the same key compute the same, given arguments of the same shapes, and are traced once.
    """

    def __init__(self, function: Callable[..., Any], dim: int, arguments: Sequence[Any], key: Hashable) -> None:
        leaves = jax.tree.leaves(arguments)
        types = tuple((each.shape, each.dtype.str) for each in leaves)
        self._trace = _traced((key, dim, types), lambda: _trace_of(function, dim, arguments))
        self._arguments = [np.asarray(each)[None] for each in leaves]

    @property
    def cost(self) -> HostCost | None:
        """What it takes; None if it cannot be computed by NumPy alone."""
        return self._trace.cost

    def at(self, points: np.ndarray, inverse_temperature: float) -> list[np.ndarray]:
        """What the function gives at points: each of its results has a row for each."""
        return self._in_blocks(self._whole, points, inverse_temperature, self._results)

    def values(self, points: np.ndarray) -> list[np.ndarray]:
        """The same without the gradient, bit for bit."""
        return self._in_blocks(self._without_gradient, points, 1.0, self._results[:-1])

    @property
    def _results(self) -> Sequence[Any]:
        """The types of the results at one point."""
        return self._trace.jaxpr.out_avals

    @cached_property
    def _whole(self) -> Evaluate:
        return numpy_backend.prepared(self._trace.jaxpr, self._arguments)

    @cached_property
    def _without_gradient(self) -> Evaluate:
        return numpy_backend.prepared(self._trace.jaxpr, self._arguments, len(self._results) - 1)

    def _in_blocks(
        self, evaluate: Evaluate, points: np.ndarray, inverse_temperature: float, results: Sequence[Any]
    ) -> list[np.ndarray]:
        assert self.cost is not None
        size, inverse = self.cost.block, np.array([inverse_temperature])
        found = [[np.empty((0, *aval.shape), aval.dtype) for aval in results]]
        for start in range(0, len(points), size):
            checkpoint()
            block = points[start : start + size]
            found.append([np.broadcast_to(x, (len(block), *x.shape[1:])) for x in evaluate([block, inverse])])
        return [np.concatenate(column) for column in zip(*found, strict=True)]


_traces: OrderedDict[Hashable, _Trace] = OrderedDict()
_lock = threading.Lock()


def _traced(key: Hashable, trace: Callable[[], _Trace]) -> _Trace:
    """That of an earlier function with the same key, or a new one."""
    with _lock:
        found = _traces.get(key)
    if found is None:
        found = trace()
    with _lock:
        found = _traces.setdefault(key, found)
        _traces.move_to_end(key)
        if len(_traces) > _MAX_TRACES:
            _traces.popitem(last=False)
    return found


def _trace_of(function: Callable[..., Any], dim: int, arguments: Sequence[Any]) -> _Trace:
    with compilation():
        return _Trace(jax.make_jaxpr(function)(np.zeros(dim), np.float64(1.0), *arguments))


def _counted(body: Jaxpr) -> tuple[int, int, int]:
    """Calls of NumPy for one block, numbers computed for one point, and operations to compile."""
    calls = numbers = operations = 0
    for equation in body.eqns:
        avals: list[Any] = [variable.aval for variable in equation.outvars]
        inside = [_counted(each) for each in jaxprs_in(equation.params)]
        times = repetitions(equation.params)
        calls += times * sum(each[0] for each in inside)
        numbers += times * sum(each[1] for each in inside)
        operations += sum(each[2] for each in inside)
        if equation.primitive.name not in CALL_BODIES:
            calls, numbers, operations = calls + 1, numbers + sum(aval.size for aval in avals), operations + 1
    return calls, numbers, operations
