"""Reading and writing arrays over a batch at computed positions: dynamic slices, gather and scatter.

All of them become one advanced-indexing operation over the whole batch. The index of each operand axis is a start
position (which may differ per execution) plus an offset inside the window, arranged so that the index arrays broadcast
to ``(batch, *scattered positions, *window)``.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from anabranch.divide.numpy_backend.elementwise import Array, batch_size, spread

Shape = tuple[int, ...]


def _window(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Array], batch: int) -> tuple:
    """Index of a window of the given sizes, moved where needed to lie inside the shape."""
    rank = len(sizes)
    if all(start.shape[0] == 1 for start in starts):
        corners = [min(max(int(s[0]), 0), n - k) for s, n, k in zip(starts, shape, sizes, strict=True)]
        return (slice(None), *[slice(corner, corner + k) for corner, k in zip(corners, sizes, strict=True)])
    index = [np.arange(batch).reshape((batch,) + (1,) * rank)]
    for axis, (start, length, size) in enumerate(zip(starts, shape, sizes, strict=True)):
        corner = np.clip(start.astype(np.int64), 0, length - size).reshape((-1,) + (1,) * rank)
        index.append(corner + np.arange(size).reshape((-1,) + (1,) * (rank - 1 - axis)))
    return tuple(index)


def dynamic_slice(operand: Array, starts: Sequence[Array], sizes: Sequence[int]) -> Array:
    batch = batch_size((operand, *starts))
    index = _window(operand.shape[1:], sizes, starts, batch)
    return (operand if isinstance(index[0], slice) else spread(operand, batch))[index]


def dynamic_update_slice(operand: Array, update: Array, starts: Sequence[Array]) -> Array:
    batch = batch_size((operand, update, *starts))
    result = spread(operand, batch).copy()
    result[_window(operand.shape[1:], update.shape[1:], starts, batch)] = update
    return result


class Windows(NamedTuple):
    """Which axes a gather or scatter addresses how: the parts of jax's dimension numbers under one name each."""

    dropped: Shape  # operand axes that the window does not have
    start_map: Shape  # the operand axis that each component of an index vector moves along
    operand_batching: Shape
    index_batching: Shape
    window_dims: Shape  # axes of the result, or of the updates, that are the window's


class _Layout(NamedTuple):
    """How the axes of an operand are addressed; what depends on the shapes alone."""

    offsets: tuple[Array, ...]  # per indexed axis: positions inside the window, or along a shared batching axis
    components: tuple[int | None, ...]  # per indexed axis: which component of the index vector moves it
    limits: Array  # per component of an index vector: the largest start position in bounds
    indexed_window_rank: int
    window_rank: int


@cache
def _layout(operand_shape: Shape, index_shape: Shape, sizes: Shape, windows: Windows) -> _Layout:
    """The layout for windows of these sizes per operand axis; `index_shape` is without batch and index vector."""
    dropped, start_map, operand_batching, index_batching, _ = windows
    axes = range(len(operand_shape))
    window_axes = [d for d in axes if d not in dropped and d not in operand_batching]
    # The last axes, if the window has all of them, need no index.
    moved = [d for d in axes if d not in window_axes or d in start_map or sizes[d] != operand_shape[d]]
    indexed = range(max(moved, default=-1) + 1)
    indexed_window = [d for d in window_axes if d in indexed]
    offsets = []
    for d in indexed:
        shape = [1] * (len(index_shape) + len(indexed_window))
        if d in operand_batching:
            shared = index_batching[operand_batching.index(d)]
            shape[shared] = index_shape[shared]
        elif d in window_axes:
            shape[len(index_shape) + indexed_window.index(d)] = sizes[d]
        offsets.append(np.arange(math.prod(shape)).reshape([1, *shape]))
    return _Layout(
        offsets=tuple(offsets),
        components=tuple(start_map.index(d) if d in start_map else None for d in indexed),
        limits=np.array([operand_shape[d] - sizes[d] for d in start_map], np.int64),
        indexed_window_rank=len(indexed_window),
        window_rank=len(window_axes),
    )


def _positions(layout: _Layout, starts: Array, batch: int) -> tuple[Array, ...]:
    """The advanced index, given start positions already in bounds."""
    ones = (1,) * layout.indexed_window_rank
    index = [np.arange(batch).reshape((batch,) + (1,) * (starts.ndim - 2) + ones)]
    for offsets, component in zip(layout.offsets, layout.components, strict=True):
        if component is None:
            index.append(offsets)
        else:
            index.append(starts[..., component].reshape(starts.shape[:-1] + ones) + offsets)
    return tuple(index)


def _in_bounds(layout: _Layout, starts: Array) -> Array:
    """For each index vector, whether its whole window is inside the operand."""
    return np.logical_and.reduce((starts >= 0) & (starts <= layout.limits), axis=-1)


def _fill_value(dtype: np.dtype, given: Any) -> Any:
    if given is not None:
        return given
    if dtype.kind in "iu":
        return np.iinfo(dtype).min if dtype.kind == "i" else np.iinfo(dtype).max
    return True if dtype.kind == "b" else np.nan


def gather(operand: Array, indices: Array, sizes: Shape, windows: Windows, fills: bool, fill_value: Any) -> Array:
    """Windows of the operand, one for each index vector; one that sticks out is moved inside, or filled."""
    layout = _layout(operand.shape[1:], indices.shape[1:-1], sizes, windows)
    starts = indices.astype(np.int64, copy=False)
    clipped = np.minimum(np.maximum(starts, 0), layout.limits)
    # An unbatched operand is left so: its only row serves all executions.
    result = operand[_positions(layout, clipped, operand.shape[0])]
    if fills:
        inside = _in_bounds(layout, starts)
        if not inside.all():
            fill = np.asarray(_fill_value(operand.dtype, fill_value)).astype(operand.dtype)
            result = np.where(inside.reshape(inside.shape + (1,) * layout.window_rank), result, fill)
    order = _interleaved(result.ndim, windows.window_dims)
    return result if order is None else result.transpose(order)


@cache
def _interleaved(rank: int, window_dims: Shape) -> Shape | None:
    """The order of axes that moves the window's, which are last, to where the dimension numbers put them."""
    order = list(range(rank - len(window_dims)))
    for axis, place in enumerate(window_dims, len(order)):
        order.insert(place + 1, axis)
    return None if order == list(range(rank)) else tuple(order)


def replace(result: Array, index: tuple, values: Array) -> None:
    result[index] = values


def scatter(write: Callable, operand: Array, indices: Array, updates: Array, windows: Windows, clips: bool) -> Array:
    """The operand with updates written into windows; one that sticks out is moved inside, or dropped whole."""
    window_dims, without = windows.window_dims, windows.dropped + windows.operand_batching
    lengths = iter([updates.shape[d + 1] for d in window_dims])
    sizes = tuple([1 if d in without else next(lengths) for d in range(operand.ndim - 1)])
    layout = _layout(operand.shape[1:], indices.shape[1:-1], sizes, windows)
    starts = indices.astype(np.int64, copy=False)
    batch = batch_size((operand, indices, updates))
    result = spread(operand, batch).copy()
    values = np.moveaxis(updates, [d + 1 for d in window_dims], range(-len(window_dims), 0))
    index = _positions(layout, np.minimum(np.maximum(starts, 0), layout.limits), batch)
    if not clips:
        inside = _in_bounds(layout, starts)
        if not inside.all():
            kept = np.broadcast_to(inside, (batch, *inside.shape[1:]))
            shape = kept.shape + (1,) * layout.indexed_window_rank
            extents = np.broadcast_shapes(shape, *[axis.shape for axis in index])
            index = tuple([np.broadcast_to(axis, extents)[kept] for axis in index])
            values = spread(values, batch)[kept]
    write(result, index, values)
    return result
