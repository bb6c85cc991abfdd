"""Elementwise operations as XLA defines them, where NumPy's own differ, and what all operations over a batch share.

Every array has one extra leading axis, the batch, of length n or 1.
"""

from collections.abc import Sequence

import numpy as np
import scipy.special

Array = np.ndarray


def batch_size(args: Sequence[Array]) -> int:
    """The number of executions that some arrays stand for: their longest leading axis."""
    return max((a.shape[0] for a in args), default=1)


def spread(array: Array, size: int) -> Array:
    """The array with its leading axis stretched to the batch size."""
    return array if array.shape[0] == size else np.broadcast_to(array, (size, *array.shape[1:]))


def align(array: Array, rank: int) -> Array:
    """A batch of scalars ready to combine with higher-rank arrays.

    JAX lets a scalar operand stand beside an array; the batch axis would otherwise line up with the array's last axis.
    """
    return array if array.ndim == rank else array.reshape(array.shape[:1] + (1,) * (rank - 1))


def divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":  # NumPy rounds down, XLA towards zero
        quotient = quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)  # XLA's answer to division by zero: all bits set


def remainder(a: Array, b: Array) -> Array:
    result = np.fmod(a, b)
    return result if a.dtype.kind not in "iu" else np.where(b == 0, a, result)


def shift_right_logical(a: Array, b: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(a.view(unsigned), b.astype(unsigned)).view(a.dtype)


_LEAST_EXPONENT = float(np.log(np.finfo(np.float64).tiny))
_MANY = 1_000


def exp(a: Array) -> Array:
    """The exponential: of many numbers, zero where it would be less than the least normal one, as XLA has it.

    NumPy takes ten to a hundred times as long for such numbers, of which a likelihood far from the data has many.
    """
    if a.dtype != np.float64 or a.size < _MANY or not a.min() < _LEAST_EXPONENT:
        return np.exp(a)
    is_normal = a >= _LEAST_EXPONENT
    result = np.exp(np.where(is_normal, a, 0.0))
    result *= is_normal
    return result


def rsqrt(a: Array) -> Array:
    return np.reciprocal(np.sqrt(a))


def power(a: Array, b: Array) -> Array:
    return np.power(a, b if b.dtype == a.dtype else b.astype(a.dtype))


def integer_power(a: Array, exponent: int) -> Array:
    remaining = abs(exponent)
    result = None
    while remaining:
        if remaining & 1:
            result = a if result is None else result * a
        remaining >>= 1
        if remaining:
            a = a * a
    if result is None:
        return np.ones_like(a)
    return np.reciprocal(result) if exponent < 0 else result


def round_half_away(a: Array) -> Array:
    whole = np.trunc(a)
    return whole + np.copysign((np.abs(a - whole) >= 0.5).astype(a.dtype), a)


def select(which: Array, cases: Sequence[Array]) -> Array:
    which = align(which, cases[0].ndim)
    if which.dtype == np.bool_:
        return np.where(which, cases[-1], cases[0])
    result = cases[0]
    for number, case in enumerate(cases[1:], 1):
        result = np.where(which == number, case, result)
    return result


def _float_to_integer(a: Array, dtype: np.dtype) -> Array:
    """Conversion that saturates, and sends NaN to 0, as XLA does; C leaves these cases undefined."""
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)
    result = a.astype(dtype)
    if ((a >= low) & (a < high)).all():
        return result
    result = np.where(a < low, limits.min, np.where(a >= high, limits.max, result)).astype(dtype)
    return np.where(np.isnan(a), dtype.type(0), result)


def convert(a: Array, dtype: np.dtype) -> Array:
    if a.dtype == dtype:
        return a
    if a.dtype.kind == "c" and dtype.kind not in "cb":
        a = a.real
    if a.dtype.kind == "f" and dtype.kind in "iu":
        return _float_to_integer(a, dtype)
    return a.astype(dtype)


def reduce_precision(a: Array, narrow: np.dtype) -> Array:
    return a if narrow.itemsize >= a.dtype.itemsize else a.astype(narrow).astype(a.dtype)


def bitcast(a: Array, dtype: np.dtype) -> Array:
    if a.dtype.itemsize == dtype.itemsize:
        return a.view(dtype)
    if a.dtype.itemsize > dtype.itemsize:  # one more axis, for the pieces
        return np.ascontiguousarray(a)[..., None].view(dtype)
    return np.ascontiguousarray(a).view(dtype)[..., 0]


def complex_of(real: Array, imag: Array) -> Array:
    result = np.empty(np.broadcast_shapes(real.shape, imag.shape), np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def population_count(a: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")  # NumPy would count the bits of the absolute value
    return np.bitwise_count(a.view(unsigned)).astype(a.dtype)


def lgamma(a: Array) -> Array:
    return np.where(a == -np.inf, np.inf, scipy.special.gammaln(a))  # SciPy answers -inf there


def digamma(a: Array) -> Array:
    return np.where(a == 0, np.nan, scipy.special.psi(a))  # SciPy answers -inf at the pole
