"""Compiled code runs one call at a time in a process; it is compiled in parallel.

Two threads that each call a compiled function with batched Cholesky factorisations or triangular solves block each
other for ever in XLA's thread pool where that has two threads, one for each core (seen with jax 0.10.2, in twelve lines
without any code of ours; neither asynchronous dispatch nor Eigen's threads make a difference). Which functions are safe
is not known, so none run at the same time. What a run does besides takes no lock: compiling, of which most of a cold
run consists, and work in NumPy. `benchmarks/limits.py --lock` measures the rest. Workers that are processes would not
need the lock, but would each import, record and compile everything again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from anabranch import errors
from anabranch.limits import holding, time_limit

__all__ = ["Jitted", "is_compiling", "one_call"]

_RUNNING = threading.RLock()
_compiling: set[int] = set()  # threads, by number
_LONGEST, _SMALLER = 0.5, 8
"""Seconds that one call should take at most where the time is limited, and by what blocks are cut for that."""

_SECONDS_EACH, _SECONDS_EACH_OF_LONG, _LONG = 0.005, 0.02, 1_000
"""Seconds for which XLA compiles one operation, in a short function and in one of so many operations or more: measured
on two cores; 0.5 s for 100 operations, 56 s for 2,250, 80 s for 4,320."""
_LATE = 1.0
"""Seconds by which a compilation may be expected to exceed the time that is left."""


@contextmanager
def one_call() -> Iterator[None]:
    """Within this, no other thread runs compiled code. Whoever computes with jax must be inside."""
    with holding(_RUNNING):
        yield


def is_compiling(thread: int) -> bool:
    """Whether a thread is in the middle of a compilation, which nothing can end."""
    return thread in _compiling


@contextmanager
def _compilation() -> Iterator[None]:
    """Within this, functions are compiled in double precision, whatever trace is current."""
    _compiling.add(threading.get_ident())
    try:
        # Whatever the user's settings: what is compiled ahead of time cannot be run step by step.
        with jax.enable_x64(True), jax.disable_jit(False), jax.ensure_compile_time_eval():
            yield
    finally:
        _compiling.discard(threading.get_ident())


def _check_time_to_compile(equations: int) -> None:
    """Raise `CompilationTooLong` where XLA would need much longer than the time that is left: nothing can end it."""
    limits = time_limit()
    if limits is None:
        return
    needed, left = equations * (_SECONDS_EACH if equations < _LONG else _SECONDS_EACH_OF_LONG), limits.left
    if needed > left + _LATE:
        raise errors.CompilationTooLong(
            f"compiling {equations:,} operations takes about {needed:.0f} seconds, and {max(left, 0):.1f} are left",
            remedy="Give the run more seconds, or write the program's loop with arrays: one statement for many values",
        )


class Jitted:
    """A function of arrays under `jax.jit`, compiled in double precision once for each combination of their shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> square = Jitted(lambda x: (jnp.sum(x**2),))
        >>> [float(part) for part in square(np.arange(4.0))]
        [14.0]
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = jax.jit(function)
        self._compiled: dict[Any, Callable[..., Any]] = {}
        self._lock = threading.Lock()
        self.seconds = 0.0
        """What one row of a block took when last measured, as it is where the time is limited; zero: not known."""

    def __call__(self, *arrays: Any) -> Any:
        """The results, as a tree of NumPy arrays."""
        compiled = self.compiled_for(*arrays)
        with jax.enable_x64(True), jax.disable_jit(False), jax.ensure_compile_time_eval(), one_call():
            return jax.device_get(compiled(*map(np.asarray, arrays)))

    def over_rows(self, block: np.ndarray, *arrays: Any) -> Any:
        """The same; where the time is limited, it is measured how long a row of the block takes."""
        limits = time_limit()
        if limits is None:
            return self(block, *arrays)
        self.compiled_for(block, *arrays)
        began = limits.elapsed
        result = self(block, *arrays)
        self.seconds = (limits.elapsed - began) / len(block)
        return result

    def rows_for(self, most: int) -> int:
        """The rows of a block: so many, but fewer where the time is limited and they would take long."""
        if time_limit() is not None:
            while most > 1 and most * self.seconds > _LONGEST:
                most = max(most // _SMALLER, 1)
        return most

    @property
    def compilations(self) -> int:
        """How often the function was compiled."""
        return len(self._compiled)

    def compiled_for(self, *arrays: Any) -> Callable[..., Any]:
        """The function as compiled for arrays like these; arguments may be numbers."""
        key = tuple((np.shape(array), np.asarray(array).dtype) for array in arrays)
        with self._lock:
            if key not in self._compiled:
                with _compilation():
                    traced = self._function.trace(*map(np.asarray, arrays))
                    _check_time_to_compile(len(traced.jaxpr.eqns))
                    self._compiled[key] = traced.lower().compile()
            return self._compiled[key]
