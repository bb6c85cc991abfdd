"""Linear algebra over a batch: products, Cholesky and LU factors, eigenvectors, triangular systems.

Leading axes before the matrix (the batch of executions, then any the program itself has) are handled by NumPy's own
stacking, except where LAPACK is only offered one matrix at a time.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import scipy.linalg

from anabranch.divide.numpy_backend.elementwise import Array


@cache
def _product_plan(numbers: tuple, left: tuple[int, ...], right: tuple[int, ...]) -> tuple:
    """Axis orders and shapes that turn a general contraction into a stack of matrix products, and the result shape."""
    (left_sum, right_sum), (left_stack, right_stack) = numbers
    left_free = [d for d in range(len(left)) if d not in left_sum and d not in left_stack]
    right_free = [d for d in range(len(right)) if d not in right_sum and d not in right_stack]

    def length(shape: Sequence[int], axes: Sequence[int]) -> int:
        return math.prod(shape[d] for d in axes)

    stack, summed = length(left, left_stack), length(left, left_sum)
    return (
        (0, *[d + 1 for d in (*left_stack, *left_free, *left_sum)]),
        (stack, length(left, left_free), summed),
        (0, *[d + 1 for d in (*right_stack, *right_sum, *right_free)]),
        (stack, summed, length(right, right_free)),
        (*[left[d] for d in (*left_stack, *left_free)], *[right[d] for d in right_free]),
    )


def dot_general(left: Array, right: Array, numbers: Sequence, dtype: np.dtype | None) -> Array:
    """The contraction that the dimension numbers of `jax.lax.dot_general` describe, in this dtype."""
    (left_sum, right_sum), (left_stack, right_stack) = numbers
    # JAX sometimes gives lists here, which cannot be looked up.
    numbers = ((tuple(left_sum), tuple(right_sum)), (tuple(left_stack), tuple(right_stack)))
    left_order, left_shape, right_order, right_shape, shape = _product_plan(numbers, left.shape[1:], right.shape[1:])
    if dtype is not None and not left.dtype == right.dtype == dtype:
        left, right = left.astype(dtype), right.astype(dtype)
    product = np.matmul(
        left.transpose(left_order).reshape(left.shape[:1] + left_shape),
        right.transpose(right_order).reshape(right.shape[:1] + right_shape),
    )
    return product.reshape(product.shape[:1] + shape)


def cholesky(a: Array) -> Array:
    (factor,) = _factorise(lambda matrices: (np.linalg.cholesky(matrices),), a)
    return factor


def eigh(a: Array, lower: bool) -> list[Array]:
    values, vectors = _factorise(lambda matrices: np.linalg.eigh(matrices, "L" if lower else "U"), a)
    return [vectors, values]


def _factorise(function: Callable, a: Array) -> Sequence[Array]:
    """NumPy refuses a whole stack if the method fails for one matrix; JAX marks the results of that one with NaN."""
    try:
        return function(a)
    except np.linalg.LinAlgError:
        shapes = [part.shape for part in function(np.eye(a.shape[-1]))]
    results = [np.full(a.shape[:-2] + shape, np.nan, a.dtype) for shape in shapes]
    for position in np.ndindex(a.shape[:-2]):
        try:
            parts = function(a[position])
        except np.linalg.LinAlgError:
            continue
        for result, part in zip(results, parts, strict=True):
            result[position] = part
    return results


def triangular_solve(a: Array, b: Array, left_side: bool, lower: bool, transposed: bool, unit_diagonal: bool) -> Array:
    # x a = b is solved as a' x' = b', so that there is one direction only.
    if not left_side:
        b, transposed = b.swapaxes(-1, -2), not transposed
    if transposed:
        a = a.swapaxes(-1, -2)
    x = _substitute(a, b, lower=lower != transposed, unit_diagonal=unit_diagonal)
    return x if left_side else x.swapaxes(-1, -2)


def _substitute(a: Array, b: Array, lower: bool, unit_diagonal: bool) -> Array:
    """Forward or backward substitution, each step over the whole stack of systems."""
    size = a.shape[-1]
    x = np.empty(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) + b.shape[-2:], b.dtype)
    for i in range(size) if lower else range(size - 1, -1, -1):
        known = slice(0, i) if lower else slice(i + 1, size)
        row = b[..., i, :] - np.matmul(a[..., i : i + 1, known], x[..., known, :])[..., 0, :]
        x[..., i, :] = row if unit_diagonal else row / a[..., i, i, None]
    return x


def lu(a: Array) -> list[Array]:
    rows, columns = a.shape[-2:]
    factors = np.empty_like(a)
    pivots = np.empty((*a.shape[:-2], min(rows, columns)), np.int32)
    permutation = np.empty((*a.shape[:-2], rows), np.int32)
    (factorise,) = scipy.linalg.get_lapack_funcs(("getrf",), (a,))
    for position in np.ndindex(a.shape[:-2]):
        factors[position], pivots[position], _ = factorise(a[position])
        order = np.arange(rows)
        for i, j in enumerate(pivots[position]):
            order[[i, j]] = order[[j, i]]
        permutation[position] = order
    return [factors, pivots, permutation]
