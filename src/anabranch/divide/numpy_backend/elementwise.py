"""NumPy rules for elementwise JAX primitives, and what all the rules share.

A rule is called as ``rule(params, *args)``. Every array has one extra leading axis, the batch, of length n or 1.
``anabranch.divide.numpy_backend`` gathers the tables and says what they are for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.lax import RoundingMethod

Array = np.ndarray
Params = Mapping[str, Any]
Rule = Callable[..., Any]
Condition = Callable[[Params], bool]  # says, of the parameters, whether the rule covers them


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


def _unary(function: Callable) -> Rule:
    def rule(params: Params, a: Array) -> Array:
        return function(a)

    return rule


def _binary(function: Callable) -> Rule:
    def rule(params: Params, a: Array, b: Array) -> Array:
        if a.ndim != b.ndim:
            rank = max(a.ndim, b.ndim)
            a, b = align(a, rank), align(b, rank)
        return function(a, b)

    return rule


def _special(function: Callable) -> Rule:
    """A SciPy function: these may widen float16, and JAX does not."""

    def rule(params: Params, *args: Array) -> Array:
        rank = max([a.ndim for a in args])
        return function(*[align(a, rank) for a in args]).astype(args[0].dtype, copy=False)

    return rule


def _identity(params: Params, a: Array) -> Array:
    return a


def _identities(params: Params, *args: Array) -> Sequence[Array]:
    return args


_multiply = _binary(np.multiply)


def _mul(params: Params, a: Array, b: Array) -> Array:
    out_dtype = params.get("out_dtype")
    if out_dtype is not None:
        a, b = a.astype(out_dtype, copy=False), b.astype(out_dtype, copy=False)
    return _multiply(params, a, b)


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.divide(a, b)
    quotient = np.floor_divide(a, b)
    if a.dtype.kind == "i":  # NumPy rounds down, XLA towards zero
        quotient = quotient + ((np.remainder(a, b) != 0) & ((a < 0) != (b < 0))).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)  # XLA's answer to division by zero: all bits set


def _remainder(a: Array, b: Array) -> Array:
    result = np.fmod(a, b)
    return result if a.dtype.kind not in "iu" else np.where(b == 0, a, result)


def _shift_right_logical(a: Array, b: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(a.view(unsigned), b.astype(unsigned)).view(a.dtype)


def _rsqrt(a: Array) -> Array:
    return np.reciprocal(np.sqrt(a))


def _power(a: Array, b: Array) -> Array:
    return np.power(a, b if b.dtype == a.dtype else b.astype(a.dtype))


def _integer_pow(params: Params, a: Array) -> Array:
    exponent = params["y"]
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


def _round_half_away(a: Array) -> Array:
    whole = np.trunc(a)
    return whole + np.copysign((np.abs(a - whole) >= 0.5).astype(a.dtype), a)


_ROUNDINGS: dict[RoundingMethod, Callable] = {
    RoundingMethod.AWAY_FROM_ZERO: _round_half_away,
    RoundingMethod.TO_NEAREST_EVEN: np.rint,
}


def _round(params: Params, a: Array) -> Array:
    return _ROUNDINGS[params["rounding_method"]](a)


def _clamp(params: Params, low: Array, a: Array, high: Array) -> Array:
    return np.minimum(np.maximum(a, align(low, a.ndim)), align(high, a.ndim))


def _select_n(params: Params, which: Array, *cases: Array) -> Array:
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


def _convert_element_type(params: Params, a: Array) -> Array:
    dtype = np.dtype(params["new_dtype"])
    if a.dtype == dtype:
        return a
    if a.dtype.kind == "c" and dtype.kind not in "cb":
        a = a.real
    if a.dtype.kind == "f" and dtype.kind in "iu":
        return _float_to_integer(a, dtype)
    return a.astype(dtype)


# (exponent bits, mantissa bits) of the formats that NumPy can round to by conversion.
_FLOAT_FORMATS = {(11, 52): np.float64, (8, 23): np.float32, (8, 7): jnp.bfloat16, (5, 10): np.float16}


def _reduce_precision(params: Params, a: Array) -> Array:
    narrow = _FLOAT_FORMATS[params["exponent_bits"], params["mantissa_bits"]]
    return a if np.dtype(narrow).itemsize >= a.dtype.itemsize else a.astype(narrow).astype(a.dtype)


def _bitcast_convert_type(params: Params, a: Array) -> Array:
    dtype = np.dtype(params["new_dtype"])
    if a.dtype.itemsize == dtype.itemsize:
        return a.view(dtype)
    if a.dtype.itemsize > dtype.itemsize:  # one more axis, for the pieces
        return np.ascontiguousarray(a)[..., None].view(dtype)
    return np.ascontiguousarray(a).view(dtype)[..., 0]


def _complex(real: Array, imag: Array) -> Array:
    result = np.empty(np.broadcast_shapes(real.shape, imag.shape), np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def _population_count(a: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")  # NumPy would count the bits of the absolute value
    return np.bitwise_count(a.view(unsigned)).astype(a.dtype)


def _lgamma(a: Array) -> Array:
    return np.where(a == -np.inf, np.inf, scipy.special.gammaln(a))  # SciPy answers -inf there


def _digamma(a: Array) -> Array:
    return np.where(a == 0, np.nan, scipy.special.psi(a))  # SciPy answers -inf at the pole


_UNARY: dict[str, Callable] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "conj": np.conj,
    "cos": np.cos,
    "cosh": np.cosh,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "floor": np.floor,
    "imag": np.imag,
    "is_finite": np.isfinite,
    "log": np.log,
    "log1p": np.log1p,
    "neg": np.negative,
    "not": np.invert,
    "population_count": _population_count,
    "real": np.real,
    "rsqrt": _rsqrt,
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
}

_BINARY: dict[str, Callable] = {
    "add": np.add,
    "add_any": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "complex": _complex,
    "div": _divide,
    "eq": np.equal,
    "ge": np.greater_equal,
    "gt": np.greater,
    "le": np.less_equal,
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "ne": np.not_equal,
    "nextafter": np.nextafter,
    "or": np.bitwise_or,
    "pow": _power,
    "rem": _remainder,
    "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift,
    "shift_right_logical": _shift_right_logical,
    "sub": np.subtract,
    "xor": np.bitwise_xor,
}

_SPECIAL: dict[str, Callable] = {
    "bessel_i0e": scipy.special.i0e,
    "bessel_i1e": scipy.special.i1e,
    "digamma": _digamma,
    "erf": scipy.special.erf,
    "erf_inv": scipy.special.erfinv,
    "erfc": scipy.special.erfc,
    "igamma": scipy.special.gammainc,
    "igammac": scipy.special.gammaincc,
    "lgamma": _lgamma,
    "logistic": scipy.special.expit,
    "polygamma": scipy.special.polygamma,
    "regularized_incomplete_beta": scipy.special.betainc,
    "zeta": scipy.special.zeta,
}


RULES: dict[str, Rule] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    **{name: _special(function) for name, function in _SPECIAL.items()},
    **dict.fromkeys(("copy", "copy_p", "stop_gradient", "name", "sharding_constraint"), _identity),
    **dict.fromkeys(("optimization_barrier", "device_put"), _identities),
    "bitcast_convert_type": _bitcast_convert_type,
    "clamp": _clamp,
    "convert_element_type": _convert_element_type,
    "integer_pow": _integer_pow,
    "mul": _mul,
    "reduce_precision": _reduce_precision,
    "round": _round,
    "select_n": _select_n,
}

CONDITIONS: dict[str, Condition] = {
    "reduce_precision": lambda params: (params["exponent_bits"], params["mantissa_bits"]) in _FLOAT_FORMATS,
}
