"""Arrays over a batch rearranged, reduced, accumulated and ordered.

Axes are numbered without the batch axis that leads every array here.
"""

import functools
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from anabranch.divide.numpy_backend.elementwise import Array, align, batch_size, spread

# Above this many elements a read-only view is cheaper than a copy; below it np.broadcast_to's own cost dominates.
_COPY_LIMIT = 4096
# Rows of up to so many elements are short, and so many are many.
_SHORT_ROW, _MANY_ROWS = 64, 256


@cache
def iota(dtype: Any, shape: tuple[int, ...], dimension: int) -> Array:
    numbers = np.arange(shape[dimension]).astype(dtype)
    column = numbers.reshape((-1,) + (1,) * (len(shape) - 1 - dimension))
    return np.broadcast_to(column, shape)[None]


def broadcast(a: Array, shape: Sequence[int], axes: Sequence[int]) -> Array:
    """The array in this shape, with its axes at the given places."""
    expanded = [a.shape[0]] + [1] * len(shape)
    for axis, length in zip(axes, a.shape[1:], strict=True):
        expanded[axis + 1] = length
    target = (a.shape[0], *shape)
    a = a.reshape(expanded)
    if a.shape == target:
        return a
    if math.prod(target) > _COPY_LIMIT:
        return np.broadcast_to(a, target)
    result = np.empty(target, a.dtype)
    result[...] = a
    return result


def reshape(a: Array, shape: Sequence[int], order: Sequence[int] | None) -> Array:
    if order is not None:
        a = a.transpose((0, *(axis + 1 for axis in order)))
    return a.reshape((a.shape[0], *shape))


def reverse(a: Array, reversed_axes: Sequence[int]) -> Array:
    return a[(slice(None), *[slice(None, None, -1 if axis in reversed_axes else 1) for axis in range(a.ndim - 1)])]


def joined(function: Callable[..., Array], arrays: Sequence[Array], axis: int) -> Array:
    """`np.concatenate` or `np.stack` of arrays of which some may be the same in all executions."""
    size = batch_size(arrays)
    return function([spread(a, size) for a in arrays], axis=axis + 1)


@cache
def slices(starts: tuple, limits: tuple, strides: tuple | None) -> tuple[slice, ...]:
    return (slice(None), *map(slice, starts, limits, strides or (1,) * len(starts)))


def split(a: Array, sizes: Sequence[int], axis: int) -> list[Array]:
    before = (slice(None),) * (axis + 1)
    return [a[(*before, slice(*ends))] for ends in pairwise([0, *np.cumsum(sizes).tolist()])]


@cache
def _pad_plan(shape: tuple[int, ...], config: tuple) -> tuple[tuple[int, ...], tuple, tuple]:
    """The shape of the result, where operand elements go in it, and which of them are not cropped."""
    sizes, targets, kept = [], [slice(None)], [slice(None)]
    for length, (low, high, interior) in zip(shape, config, strict=True):
        step = interior + 1
        size = low + high + length + max(length - 1, 0) * interior
        first = max(0, -(low // step))  # the first element at or after position 0
        last = max(first, min(length, -((low - size) // step)))  # one past the last element inside the result
        sizes.append(size)
        kept.append(slice(first, last))
        start = low + first * step
        targets.append(slice(start, start + (last - first) * step, step))
    return tuple(sizes), tuple(targets), tuple(kept)


def pad(a: Array, value: Array, config: tuple) -> Array:
    """The array with the value around it: for each axis (before, after, between elements), as in `jax.lax.pad`."""
    sizes, targets, kept = _pad_plan(a.shape[1:], config)
    result = np.empty((batch_size((a, value)), *sizes), a.dtype)
    result[...] = align(value, a.ndim)
    result[targets] = a[kept]
    return result


def reduced(ufunc: np.ufunc, a: Array, axes: Sequence[int]) -> Array:
    return ufunc.reduce(a, axis=tuple([axis + 1 for axis in axes]), dtype=a.dtype)


def total(a: Array, axes: Sequence[int]) -> Array:
    """The sum over some axes."""
    if _has_short_rows(a) and len(axes) == 1 and a.dtype.kind == "f" and axes[0] >= a.ndim - 3:
        return np.einsum("...i->..." if axes[0] == a.ndim - 2 else "...ij->...j", a)
    return reduced(np.add, a, axes)


def _has_short_rows(a: Array) -> bool:
    """Whether there are many rows along the last axis, each of few elements: NumPy's loop over the rows takes several
    times as long as their elements."""
    return a.ndim > 1 and 0 < a.shape[-1] <= _SHORT_ROW and a.size >= _MANY_ROWS * a.shape[-1]


def _extreme(dtype: np.dtype, highest: bool) -> Any:
    """The value that an empty maximum (or minimum) has: the lowest (or highest) of its type."""
    if dtype.kind == "b":
        return highest
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if highest else np.iinfo(dtype).min
    return math.inf if highest else -math.inf


def extremum(ufunc: np.ufunc, a: Array, axes: Sequence[int], empty_is_highest: bool) -> Array:
    if _has_short_rows(a) and tuple(axes) == (a.ndim - 2,):  # column by column
        return functools.reduce(ufunc, np.moveaxis(a, -1, 0)[1:], a[..., 0])
    options = {} if a.size else {"initial": _extreme(a.dtype, empty_is_highest)}
    return ufunc.reduce(a, axis=tuple([axis + 1 for axis in axes]), **options)


def accumulated(ufunc: np.ufunc, a: Array, axis: int, backwards: bool) -> Array:
    axis += 1
    if backwards:
        return np.flip(ufunc.accumulate(np.flip(a, axis), axis=axis, dtype=a.dtype), axis)
    return ufunc.accumulate(a, axis=axis, dtype=a.dtype)


def sort(operands: Sequence[Array], axis: int, key_count: int) -> list[Array]:
    """The operands in the order of the first of them, which are the keys."""
    axis, keys = axis + 1, operands[:key_count]
    if len(operands) == 1:
        return [np.sort(operands[0], axis=axis, kind="stable")]
    size = batch_size(keys)
    order = np.lexsort([spread(key, size) for key in reversed(keys)], axis=axis)
    return [np.take_along_axis(a, order, axis) for a in operands]


def top_k(a: Array, k: int, axis: int) -> list[Array]:
    """The k largest entries along an axis, and where they are."""
    axis += 1
    flipped = np.flip(a, axis)
    # The reverse of a stable sort of the reversed array: descending, NaN first, and the lower index first among equals.
    # To XLA -0.0 is less than 0.0 here, though not in a sort.
    order = np.flip(a.shape[axis] - 1 - np.lexsort([~np.signbit(flipped), flipped], axis=axis), axis)
    best = order[(slice(None),) * axis + (slice(k),)]
    return [np.take_along_axis(a, best, axis), best.astype(np.int32)]
