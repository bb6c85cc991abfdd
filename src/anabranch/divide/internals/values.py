"""Values of jax and their types."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from anabranch.divide.dispatch import one_call
from anabranch.divide.internals.jax_private import ShapedArray, TypedNdArray, eval_trace, set_current_trace
from anabranch.divide.numpy_backend import is_key

__all__ = ["FLOAT", "FLOAT_SCALAR", "aval_of", "belongs_to_jax", "inside", "own"]

FLOAT = np.dtype(np.float64)


@functools.lru_cache(maxsize=4096)
def aval_of(shape: tuple[int, ...], dtype: np.dtype, weak: bool = False) -> Any:
    """The type of an array; the same object each time, so that types can be compared by identity."""
    return ShapedArray(shape, dtype, weak_type=weak)


FLOAT_SCALAR = aval_of((), FLOAT)


def own(value: Any) -> Any:
    """A constant that may be kept: a copy, for the program may change its array afterwards.

    Also, jax remembers for each NumPy array, as long as something holds its answer, which of its own arrays it became,
    and does not ask again when `jax_enable_x64` has changed: the user's own must not be held.
    """
    return np.array(value) if isinstance(value, np.ndarray | TypedNdArray) else value


def belongs_to_jax(value: Any) -> bool:
    """Whether a value must stay an array of jax: keys, and the integers inside them."""
    return isinstance(value, jax.Array) and (value.dtype == np.uint32 or is_key(value))


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Compute concretely, in double precision, whatever trace is current, while no other thread does."""
    with jax.enable_x64(True), set_current_trace(eval_trace), one_call():
        yield
