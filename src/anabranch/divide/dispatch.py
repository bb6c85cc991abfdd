"""Compiled code runs one call at a time in a process; it is compiled in parallel.

Two threads that each call a compiled function with batched Cholesky factorisations or triangular solves block each
other for ever in XLA's thread pool where that has two threads, one for each core (seen with jax 0.10.2, in twelve lines
without any code of ours; neither asynchronous dispatch nor Eigen's threads make a difference). Which functions are safe
is not known, so none run at the same time. Compiling, which takes most of a cold run, and work in NumPy need no lock.
`benchmarks/limits.py --lock` measures how long threads wait for it. Workers that are processes would not need the lock,
but would each import, record and compile everything again.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import numpy as np

from anabranch import errors
from anabranch.limits import checkpoint, holding, time_limit

__all__ = ["Jitted", "compilation", "compiling", "in_blocks", "is_compiling", "name_work", "one_call"]

_RUNNING = threading.RLock()
_compiling: dict[int, str] = {}
"""The threads that compile, by number, and what they work on."""
_work = threading.local()
_MAX_SECONDS_PER_CALL, _BLOCK_DIVISOR = 0.5, 8
"""Where a run has a time limit, blocks are divided until one call takes no longer than this."""

_COMPILE_SECONDS_SHORT, _COMPILE_SECONDS_LONG, _LONG_FUNCTION = 0.005, 0.02, 1_000
"""Seconds that XLA takes to compile one operation of a short function, and of one with so many operations or more.
Measured on two cores: 0.5 s for 100 operations, 56 s for 2,250, 80 s for 4,320."""
_MAX_SHARED = 256
"""Functions whose compiled code is kept for others with the same key."""
_SETTINGS = ("jax_default_matmul_precision", "jax_debug_nans", "jax_default_device")
"""Settings of the user's on which compiled code depends."""
_MAX_SECONDS_LATE = 1.0
"""Seconds by which the expected end of a compilation may exceed the time limit."""


def one_call() -> AbstractContextManager[None]:
    """Within this, no other thread runs compiled code. Every computation with jax is done inside."""
    return holding(_RUNNING)


def is_compiling(thread: int) -> bool:
    """Whether a thread is compiling, which cannot be interrupted."""
    return thread in _compiling


def compiling() -> list[str]:
    """The names of the work for which something is compiled at this moment; empty where it has none."""
    return list(_compiling.values())


def name_work(name: str) -> None:
    """Say on what this thread works from now on."""
    _work.name = name


@contextmanager
def compilation() -> Iterator[None]:
    """Within this, functions are compiled in double precision, whatever trace is current."""
    from anabranch.divide.internals.jax_private import eval_trace, set_current_trace  # its package imports this file

    _compiling[threading.get_ident()] = getattr(_work, "name", "")
    try:
        # Whatever the user's settings: what is compiled ahead of time cannot be run step by step. Not under
        # `jax.ensure_compile_time_eval`, which would compile every operation on constants by itself.
        with jax.enable_x64(True), jax.disable_jit(False), set_current_trace(eval_trace):
            yield
    finally:
        _compiling.pop(threading.get_ident(), None)


def _operations(jaxpr: Any) -> int:
    """How many operations XLA compiles: those inside a loop or a conditional, too, and once, however often it runs."""
    inside = [body for equation in jaxpr.eqns if equation.primitive.name in _BODIES for body in _bodies(equation)]
    return len(jaxpr.eqns) + sum(map(_operations, inside))


_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
"""Primitives that run jaxprs in another way than once, and the parameters that hold them."""


def _bodies(equation: Any) -> Iterator[Any]:
    for name in _BODIES[equation.primitive.name]:
        held = equation.params[name]
        yield from (each.jaxpr for each in (held if isinstance(held, tuple) else (held,)))


def _check_time_to_compile(equations: int) -> None:
    """Raise `CompilationTooLong` if XLA would exceed the time limit: a compilation that has begun cannot be ended."""
    checkpoint()
    limits = time_limit()
    if limits is None:
        return
    per_operation = _COMPILE_SECONDS_SHORT if equations < _LONG_FUNCTION else _COMPILE_SECONDS_LONG
    needed, left = equations * per_operation, limits.left
    if needed > left + _MAX_SECONDS_LATE:
        raise errors.CompilationTooLong(
            f"compiling {equations:,} operations takes about {needed:.0f} seconds, and {left:.1f} are left",
            remedy="Give the run more seconds, or write the program's loop with arrays: one statement for many values",
        )


class _Function:
    """A function under `jax.jit`, and what it was compiled to, by the shapes of its arrays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.jitted = jax.jit(function)
        self.compiled: dict[Any, Callable[..., Any]] = {}
        self.lock = threading.Lock()
        self.seconds = 0.0


class _Functions:
    """The functions that were used last, by their keys."""

    def __init__(self) -> None:
        self._by_key: OrderedDict[Hashable, _Function] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, function: Callable[..., Any], key: Hashable) -> _Function:
        """That of an earlier function with the same key, or a new one."""
        settings = tuple(getattr(jax.config, name) for name in _SETTINGS)
        with self._lock:
            found = self._by_key.setdefault((key, settings), _Function(function))
            self._by_key.move_to_end((key, settings))
            if len(self._by_key) > _MAX_SHARED:
                self._by_key.popitem(last=False)
            return found


_functions = _Functions()


class Jitted:
    """A function of arrays under `jax.jit`, compiled in double precision once for each combination of their shapes.

    Args:
        function: of arrays, and of the arguments.
        arguments: trees of arrays that every call is given last.
        key: functions with the same key compute the same, given arguments of the same shapes, and are compiled once.
    """

    def __init__(self, function: Callable[..., Any], arguments: Sequence[Any] = (), key: Hashable = None) -> None:
        leaves = [(each.shape, each.dtype.str) for each in jax.tree.leaves(arguments)]
        self._function = _Function(function) if key is None else _functions.of(function, (key, tuple(leaves)))
        self._arguments = arguments
        self._on_device: Sequence[Any] | None = None

    def __call__(self, *arrays: Any) -> Any:
        """The results, as a tree of NumPy arrays."""
        compiled = self.compiled_for(*arrays)
        with jax.enable_x64(True), jax.disable_jit(False), jax.ensure_compile_time_eval(), one_call():
            if self._on_device is None:
                self._on_device = jax.device_put(self._arguments)
            results = compiled(*map(np.asarray, arrays), *self._on_device)
            return jax.tree.map(np.asarray, results)  # jax.device_get takes twice the time

    @property
    def seconds(self) -> float:
        """Time for one row of a block, as last measured in a run with a time limit; zero if never measured."""
        return self._function.seconds

    @seconds.setter
    def seconds(self, seconds: float) -> None:
        self._function.seconds = seconds

    @property
    def compilations(self) -> int:
        """How often the function was compiled."""
        return len(self._function.compiled)

    def compiled_for(self, *arrays: Any) -> Callable[..., Any]:
        """The function as compiled for arrays like these; they may be numbers."""
        key, function = tuple((np.shape(array), np.asarray(array).dtype) for array in arrays), self._function
        with function.lock:
            if key not in function.compiled:
                with compilation():
                    traced = function.jitted.trace(*map(np.asarray, arrays), *self._arguments)
                    _check_time_to_compile(_operations(traced.jaxpr.jaxpr))
                    function.compiled[key] = traced.lower().compile()
            return function.compiled[key]


def in_blocks(function: Jitted, size: int, points: np.ndarray, *args: Any) -> list[np.ndarray]:
    """The results of a compiled function for any number of points, in blocks of this size.

    Where the run has a time limit, the time for one row is measured, and blocks are smaller if a call takes too long.
    """
    n, blocks, limits = len(points), [], time_limit()
    while limits is not None and size > 1 and size * function.seconds > _MAX_SECONDS_PER_CALL:
        size = max(size // _BLOCK_DIVISOR, 1)
    for start in range(0, max(n, 1), size):
        checkpoint()
        block = points[start : start + size]
        if len(block) < size:
            block = np.concatenate([block, np.zeros((size - len(block), points.shape[1]))])
        if limits is None:
            blocks.append(function(block, *args))
            continue
        function.compiled_for(block, *args)  # before the call is timed
        began = limits.elapsed
        blocks.append(function(block, *args))
        function.seconds = (limits.elapsed - began) / size
    return [np.concatenate(column)[:n] for column in zip(*blocks, strict=True)]
