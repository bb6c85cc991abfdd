"""NumPy rules for primitives that rearrange, reduce, scan or order arrays.

Axis numbers in the parameters do not count the batch axis that leads every array here, so they are shifted by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from anabranch.divide.numpy_backend.elementwise import Array, Params, Rule, align, batch_size, spread

# Above this many elements a read-only view is cheaper than a copy; below it np.broadcast_to's own cost dominates.
_COPY_LIMIT = 4096


# --- Shapes ----------------------------------------------------------------------------------------------------------


@cache
def _iota_values(dtype: Any, shape: tuple[int, ...], dimension: int) -> Array:
    numbers = np.arange(shape[dimension]).astype(dtype)
    column = numbers.reshape((-1,) + (1,) * (len(shape) - 1 - dimension))
    return np.broadcast_to(column, shape)[None]


def _iota(params: Params, *dynamic_shape: Array) -> Array:
    return _iota_values(params["dtype"], params["shape"], params["dimension"])


def _broadcast_in_dim(params: Params, a: Array, *dynamic_shape: Array) -> Array:
    shape = params["shape"]
    expanded = [a.shape[0]] + [1] * len(shape)
    for axis, length in zip(params["broadcast_dimensions"], a.shape[1:], strict=True):
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


def _reshape(params: Params, a: Array, *dynamic_shape: Array) -> Array:
    if params["dimensions"] is not None:
        a = a.transpose((0, *(axis + 1 for axis in params["dimensions"])))
    return a.reshape((a.shape[0], *params["new_sizes"]))


def _squeeze(params: Params, a: Array) -> Array:
    return a.squeeze(tuple([axis + 1 for axis in params["dimensions"]]))


def _transpose(params: Params, a: Array) -> Array:
    return a.transpose((0, *[axis + 1 for axis in params["permutation"]]))


def _rev(params: Params, a: Array) -> Array:
    reversed_axes = params["dimensions"]
    return a[(slice(None), *[slice(None, None, -1 if axis in reversed_axes else 1) for axis in range(a.ndim - 1)])]


def _concatenate(params: Params, *args: Array) -> Array:
    size = batch_size(args)
    return np.concatenate([spread(a, size) for a in args], axis=params["dimension"] + 1)


def _stack(params: Params, *args: Array) -> Array:
    size = batch_size(args)
    return np.stack([spread(a, size) for a in args], axis=params["axis"] + 1)


def _unstack(params: Params, a: Array) -> list[Array]:
    return list(np.moveaxis(a, params["axis"] + 1, 0))


def _tile(params: Params, a: Array) -> Array:
    return np.tile(a, (1, *params["reps"]))


@cache
def _slices(starts: tuple, limits: tuple, strides: tuple | None) -> tuple[slice, ...]:
    return (slice(None), *map(slice, starts, limits, strides or (1,) * len(starts)))


def _slice(params: Params, a: Array) -> Array:
    return a[_slices(params["start_indices"], params["limit_indices"], params["strides"])]


def _split(params: Params, a: Array) -> list[Array]:
    before = (slice(None),) * (params["axis"] + 1)
    pieces, start = [], 0
    for size in params["sizes"]:
        pieces.append(a[(*before, slice(start, start + size))])
        start += size
    return pieces


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


def _pad(params: Params, a: Array, value: Array) -> Array:
    sizes, targets, kept = _pad_plan(a.shape[1:], params["padding_config"])
    result = np.empty((batch_size((a, value)), *sizes), a.dtype)
    result[...] = align(value, a.ndim)
    result[targets] = a[kept]
    return result


# --- Reductions, scans, orders ---------------------------------------------------------------------------------------


def _sum_like(ufunc: np.ufunc) -> Rule:
    def rule(params: Params, a: Array) -> Array:
        return ufunc.reduce(a, axis=tuple([axis + 1 for axis in params["axes"]]), dtype=a.dtype)

    return rule


def _extreme(dtype: np.dtype, highest: bool) -> Any:
    """The value that an empty maximum (or minimum) has: the lowest (or highest) of its type."""
    if dtype.kind == "b":
        return highest
    if dtype.kind in "iu":
        return np.iinfo(dtype).max if highest else np.iinfo(dtype).min
    return math.inf if highest else -math.inf


def _extremum(ufunc: np.ufunc, empty_is_highest: bool) -> Rule:
    def rule(params: Params, a: Array) -> Array:
        axes = tuple([axis + 1 for axis in params["axes"]])
        if a.size:
            return ufunc.reduce(a, axis=axes)
        return ufunc.reduce(a, axis=axes, initial=_extreme(a.dtype, empty_is_highest))

    return rule


def _index_of(function: Callable) -> Rule:
    def rule(params: Params, a: Array) -> Array:
        (axis,) = params["axes"]
        return function(a, axis=axis + 1).astype(params["index_dtype"])

    return rule


def _cumulative(ufunc: np.ufunc) -> Rule:
    def rule(params: Params, a: Array) -> Array:
        axis = params["axis"] + 1
        if params["reverse"]:
            return np.flip(ufunc.accumulate(np.flip(a, axis), axis=axis, dtype=a.dtype), axis)
        return ufunc.accumulate(a, axis=axis, dtype=a.dtype)

    return rule


def _sort(params: Params, *operands: Array) -> list[Array]:
    axis, keys = params["dimension"] + 1, operands[: params["num_keys"]]
    if len(operands) == 1:
        return [np.sort(operands[0], axis=axis, kind="stable")]
    size = batch_size(keys)
    order = np.lexsort([spread(key, size) for key in reversed(keys)], axis=axis)
    return [np.take_along_axis(a, order, axis) for a in operands]


def _top_k(params: Params, a: Array) -> list[Array]:
    axis = params["axis"] + 1
    flipped = np.flip(a, axis)
    # The reverse of a stable sort of the reversed array: descending, NaN first, and the lower index first among equals.
    # To XLA -0.0 is less than 0.0 here, though not in a sort.
    order = np.flip(a.shape[axis] - 1 - np.lexsort([~np.signbit(flipped), flipped], axis=axis), axis)
    best = order[(slice(None),) * axis + (slice(params["k"]),)]
    return [np.take_along_axis(a, best, axis), best.astype(np.int32)]


RULES: dict[str, Rule] = {
    "argmax": _index_of(np.argmax),
    "argmin": _index_of(np.argmin),
    "broadcast_in_dim": _broadcast_in_dim,
    "concatenate": _concatenate,
    "cumlogsumexp": _cumulative(np.logaddexp),
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "cumprod": _cumulative(np.multiply),
    "cumsum": _cumulative(np.add),
    "iota": _iota,
    "pad": _pad,
    "reduce_and": _sum_like(np.bitwise_and),
    "reduce_max": _extremum(np.maximum, empty_is_highest=False),
    "reduce_min": _extremum(np.minimum, empty_is_highest=True),
    "reduce_or": _sum_like(np.bitwise_or),
    "reduce_prod": _sum_like(np.multiply),
    "reduce_sum": _sum_like(np.add),
    "reduce_xor": _sum_like(np.bitwise_xor),
    "reshape": _reshape,
    "rev": _rev,
    "slice": _slice,
    "sort": _sort,
    "split": _split,
    "squeeze": _squeeze,
    "stack": _stack,
    "tile": _tile,
    "top_k": _top_k,
    "transpose": _transpose,
    "unstack": _unstack,
}
