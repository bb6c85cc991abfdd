"""jax's primitives by name, and the parameters that are read of them: a long table, since no other file knows either.

A rule evaluates a primitive with NumPy: ``rule(params, *args)``, with the batch as the first axis of every array. The
functions are those of the files beside this one, which know no jax; a rule takes their arguments out of the parameters.
A primitive without a rule, or whose parameters do not meet its condition, is given to jax, which gives the same answer
more slowly: a test fails when the installed jax lacks a primitive that is named here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun
from jax.extend.core.primitives import add_p
from jax.lax import GatherScatterMode, RoundingMethod

from anabranch.divide.numpy_backend import elementwise, indexing, linear, shapes
from anabranch.divide.numpy_backend.elementwise import Array, align

Params = Mapping[str, Any]
Rule = Callable[..., Any]
Condition = Callable[[Params], bool]
"""Says of the parameters whether the rule covers them."""

SINCE = {"stack": (0, 10, 1), "unstack": (0, 10, 1)}
"""The first jax that has a primitive, where that is not the oldest one supported."""

# --- Rules that read no parameter ------------------------------------------------------------------------------------

_UNARY: dict[str, Callable] = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh,
    "atan": np.arctan, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "conj": np.conj, "cos": np.cos,
    "cosh": np.cosh, "exp": elementwise.exp, "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor, "imag": np.imag,
    "is_finite": np.isfinite, "log": np.log, "log1p": np.log1p, "neg": np.negative, "not": np.invert,
    "population_count": elementwise.population_count, "real": np.real, "rsqrt": elementwise.rsqrt, "sign": np.sign,
    "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "square": np.square, "tan": np.tan, "tanh": np.tanh,
}  # fmt: skip

_BINARY: dict[str, Callable] = {
    "add": np.add, "add_any": np.add, "and": np.bitwise_and, "atan2": np.arctan2, "complex": elementwise.complex_of,
    "div": elementwise.divide, "eq": np.equal, "ge": np.greater_equal, "gt": np.greater, "le": np.less_equal,
    "lt": np.less, "max": np.maximum, "min": np.minimum, "ne": np.not_equal, "nextafter": np.nextafter,
    "or": np.bitwise_or, "pow": elementwise.power, "rem": elementwise.remainder, "shift_left": np.left_shift,
    "shift_right_arithmetic": np.right_shift, "shift_right_logical": elementwise.shift_right_logical,
    "sub": np.subtract, "xor": np.bitwise_xor,
}  # fmt: skip

_SPECIAL: dict[str, Callable] = {
    "bessel_i0e": scipy.special.i0e, "bessel_i1e": scipy.special.i1e, "digamma": elementwise.digamma,
    "erf": scipy.special.erf, "erf_inv": scipy.special.erfinv, "erfc": scipy.special.erfc,
    "igamma": scipy.special.gammainc, "igammac": scipy.special.gammaincc, "lgamma": elementwise.lgamma,
    "logistic": scipy.special.expit, "polygamma": scipy.special.polygamma,
    "regularized_incomplete_beta": scipy.special.betainc, "zeta": scipy.special.zeta,
}  # fmt: skip

_IDENTITY = ("copy", "stop_gradient", "name", "sharding_constraint")
_IDENTITIES = ("optimization_barrier", "device_put")


def _unary(function: Callable) -> Rule:
    return lambda params, a: function(a)


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


# --- Rules that read parameters --------------------------------------------------------------------------------------

_multiply = _binary(np.multiply)


def _mul(params: Params, a: Array, b: Array) -> Array:
    out_dtype = params.get("out_dtype")  # since jax 0.10.0
    if out_dtype is not None:
        a, b = a.astype(out_dtype, copy=False), b.astype(out_dtype, copy=False)
    return _multiply(params, a, b)


_ROUNDINGS: dict[RoundingMethod, Callable] = {
    RoundingMethod.AWAY_FROM_ZERO: elementwise.round_half_away,
    RoundingMethod.TO_NEAREST_EVEN: np.rint,
}

# (exponent bits, mantissa bits) of the formats that NumPy can round to by conversion.
_FLOAT_FORMATS = {(11, 52): np.float64, (8, 23): np.float32, (8, 7): jnp.bfloat16, (5, 10): np.float16}


def _float_format(params: Params) -> Any:
    return _FLOAT_FORMATS.get((params["exponent_bits"], params["mantissa_bits"]))


def _reduction(ufunc: np.ufunc) -> Rule:
    return lambda params, a: shapes.reduced(ufunc, a, params["axes"])


def _extremum(ufunc: np.ufunc, empty_is_highest: bool) -> Rule:
    return lambda params, a: shapes.extremum(ufunc, a, params["axes"], empty_is_highest)


def _index_of(function: Callable) -> Rule:
    return lambda params, a: function(a, axis=params["axes"][0] + 1).astype(params["index_dtype"])


def _cumulative(ufunc: np.ufunc) -> Rule:
    return lambda params, a: shapes.accumulated(ufunc, a, params["axis"], params["reverse"])


def _gather(params: Params, operand: Array, indices: Array) -> Array:
    d = params["dimension_numbers"]
    fields = (
        d.collapsed_slice_dims, d.start_index_map, d.operand_batching_dims,
        d.start_indices_batching_dims, d.offset_dims,
    )  # fmt: skip
    windows = indexing.Windows(*map(tuple, fields))
    fills = params["mode"] is GatherScatterMode.FILL_OR_DROP
    return indexing.gather(operand, indices, tuple(params["slice_sizes"]), windows, fills, params["fill_value"])


def _scatter(write: Callable) -> Rule:
    """A scatter whose ``write(result, index, values)`` combines the updates with what is there."""

    def rule(params: Params, operand: Array, indices: Array, updates: Array) -> Array:
        d = params["dimension_numbers"]
        fields = (
            d.inserted_window_dims, d.scatter_dims_to_operand_dims, d.operand_batching_dims,
            d.scatter_indices_batching_dims, d.update_window_dims,
        )  # fmt: skip
        clips = params["mode"] is GatherScatterMode.CLIP
        return indexing.scatter(write, operand, indices, updates, indexing.Windows(*map(tuple, fields)), clips)

    return rule


def _triangular_solve(params: Params, a: Array, b: Array) -> Array:
    a = a.conj() if params["conjugate_a"] else a
    left_side, lower, transposed = params["left_side"], params["lower"], params["transpose_a"]
    return linear.triangular_solve(a, b, left_side, lower, transposed, params["unit_diagonal"])


def _platform_index(params: Params) -> Array:
    """Which of several platform-specific versions to run: the processor's, or else the one for any platform."""
    platforms = params["platforms"]
    chosen = next(i for i, names in enumerate(platforms) if names is None or "cpu" in names)
    return np.array([chosen], np.int32)


RULES: dict[str, Rule] = {
    **{name: _unary(function) for name, function in _UNARY.items()},
    **{name: _binary(function) for name, function in _BINARY.items()},
    **{name: _special(function) for name, function in _SPECIAL.items()},
    **dict.fromkeys(_IDENTITY, lambda params, a: a),
    **dict.fromkeys(_IDENTITIES, lambda params, *args: args),
    "argmax": _index_of(np.argmax),
    "argmin": _index_of(np.argmin),
    "bitcast_convert_type": lambda params, a: elementwise.bitcast(a, np.dtype(params["new_dtype"])),
    "broadcast_in_dim": lambda params, a, *_: shapes.broadcast(a, params["shape"], params["broadcast_dimensions"]),
    "cholesky": lambda params, a: linear.cholesky(a),
    "clamp": lambda params, low, a, high: np.minimum(np.maximum(a, align(low, a.ndim)), align(high, a.ndim)),
    "concatenate": lambda params, *args: shapes.joined(np.concatenate, args, params["dimension"]),
    "convert_element_type": lambda params, a: elementwise.convert(a, np.dtype(params["new_dtype"])),
    "cumlogsumexp": _cumulative(np.logaddexp),
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "cumprod": _cumulative(np.multiply),
    "cumsum": _cumulative(np.add),
    "dot_general": lambda params, left, right: linear.dot_general(
        left, right, params["dimension_numbers"], params["preferred_element_type"]
    ),
    "dynamic_slice": lambda params, operand, *starts: indexing.dynamic_slice(operand, starts, params["slice_sizes"]),
    "dynamic_update_slice": lambda params, a, update, *starts: indexing.dynamic_update_slice(a, update, starts),
    "eigh": lambda params, a: linear.eigh(a, params["lower"]),
    "gather": _gather,
    "integer_pow": lambda params, a: elementwise.integer_power(a, params["y"]),
    "iota": lambda params, *dynamic_shape: shapes.iota(params["dtype"], params["shape"], params["dimension"]),
    "lu": lambda params, a: linear.lu(a),
    "mul": _mul,
    "pad": lambda params, a, value: shapes.pad(a, value, params["padding_config"]),
    "platform_index": _platform_index,
    "reduce_and": _reduction(np.bitwise_and),
    "reduce_max": _extremum(np.maximum, empty_is_highest=False),
    "reduce_min": _extremum(np.minimum, empty_is_highest=True),
    "reduce_or": _reduction(np.bitwise_or),
    "reduce_precision": lambda params, a: elementwise.reduce_precision(a, np.dtype(_float_format(params))),
    "reduce_prod": _reduction(np.multiply),
    "reduce_sum": lambda params, a: shapes.total(a, params["axes"]),
    "reduce_xor": _reduction(np.bitwise_xor),
    "reshape": lambda params, a, *dynamic_shape: shapes.reshape(a, params["new_sizes"], params["dimensions"]),
    "rev": lambda params, a: shapes.reverse(a, params["dimensions"]),
    "round": lambda params, a: _ROUNDINGS[params["rounding_method"]](a),
    "scatter": _scatter(indexing.replace),
    "scatter-add": _scatter(np.add.at),
    "scatter-max": _scatter(np.maximum.at),
    "scatter-min": _scatter(np.minimum.at),
    "scatter-mul": _scatter(np.multiply.at),
    "scatter-sub": _scatter(np.subtract.at),
    "select_n": lambda params, which, *cases: elementwise.select(which, cases),
    "slice": lambda params, a: a[shapes.slices(params["start_indices"], params["limit_indices"], params["strides"])],
    "sort": lambda params, *operands: shapes.sort(operands, params["dimension"], params["num_keys"]),
    "split": lambda params, a: shapes.split(a, params["sizes"], params["axis"]),
    "squeeze": lambda params, a: a.squeeze(tuple([axis + 1 for axis in params["dimensions"]])),
    "stack": lambda params, *args: shapes.joined(np.stack, args, params["axis"]),
    "tile": lambda params, a: np.tile(a, (1, *params["reps"])),
    "top_k": lambda params, a: shapes.top_k(a, params["k"], params["axis"]),
    "transpose": lambda params, a: a.transpose((0, *[axis + 1 for axis in params["permutation"]])),
    "triangular_solve": _triangular_solve,
    "unstack": lambda params, a: list(np.moveaxis(a, params["axis"] + 1, 0)),
}

ELEMENTWISE = frozenset({
    *_UNARY, *_BINARY, *_SPECIAL, *_IDENTITY, "clamp", "convert_element_type", "integer_pow", "mul", "reduce_precision",
    "round", "select_n",
})  # fmt: skip
"""Primitives whose results depend, element by element, on the same elements of their inputs."""

STRUCTURAL = frozenset({
    "broadcast_in_dim", "concatenate", "pad", "reshape", "rev", "slice", "split", "squeeze", "stack", "tile",
    "transpose", "unstack",
})  # fmt: skip
"""Primitives that only move elements to places that the parameters say."""

REDUCTIONS = frozenset({
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
    "reduce_xor",
})  # fmt: skip
"""Primitives of one array, whose axes are in the parameter `axes`."""

_ADDITIVE = frozenset({
    "add", "add_any", "cumsum", "neg", "optimization_barrier", "real", "reduce_sum", "sub", *_IDENTITY, *STRUCTURAL,
}) - {"stop_gradient"}  # fmt: skip
"""Primitives whose results are sums of elements of their inputs."""
_MULTIPLICATIVE = frozenset({"dot_general", "mul"})
"""Primitives whose results are sums of products, one factor from each input."""
_LINEAR_IN = {"div": 0, "dynamic_slice": 0, "gather": 0, "triangular_solve": 1}
"""Primitives that are linear in the input with this number as long as the others are constant."""


def holds_for_all_reals(primitive: Any, inputs: Sequence[Any]) -> bool:
    """Whether a primitive asks of a real number what is true of all of them: is it itself, is it not infinite?"""
    one, other = inputs if len(inputs) == 2 else (None, None)
    if primitive.name == "eq":
        return one is not None and one is other
    return primitive.name == "ne" and isinstance(other, np.ndarray | np.generic | float) and bool(np.isinf(other).all())


def is_an_input(name: str, constants: Sequence[Array | None]) -> int | None:
    """Which input the result is, if the constants among the inputs show it: one selected, or one multiplied by one."""
    if name == "select_n" and constants[0] is not None and constants[0].size:
        return 1 + int(constants[0].flat[0]) if (constants[0] == constants[0].flat[0]).all() else None
    if name == "mul":
        return next((1 - i for i, x in enumerate(constants) if x is not None and (x == 1).all()), None)
    return None


def is_copy(primitive: Any) -> bool:
    """Whether every element of the result is an element of the input, and every one of those is in it."""
    return primitive.name in {*_IDENTITY, "broadcast_in_dim", "convert_element_type", "reshape", "squeeze"}


def degree(primitive: Any, params: Params, inputs: Sequence[float]) -> float:
    """A bound on the degree of the results as polynomials, if the inputs have these degrees; infinite for no
    polynomial."""
    name = primitive.name
    if name in _ADDITIVE:
        return max(inputs)
    if name in _MULTIPLICATIVE:
        return sum(inputs)
    if name == "square" or (name == "integer_pow" and params["y"] >= 0):
        return inputs[0] * (2 if name == "square" else params["y"])
    if name == "convert_element_type" and np.issubdtype(params["new_dtype"], np.float64):
        return inputs[0]
    if name == "select_n" and not inputs[0]:
        return max(inputs)
    linear_in = _LINEAR_IN.get(name)
    if linear_in is not None and not any(x for i, x in enumerate(inputs) if i != linear_in):
        return inputs[linear_in]
    return np.inf


_MODES = {GatherScatterMode.CLIP, GatherScatterMode.FILL_OR_DROP, GatherScatterMode.PROMISE_IN_BOUNDS}

CONDITIONS: dict[str, Condition] = {
    "eigh": lambda params: params["subset_by_index"] is None,
    "gather": lambda params: params["mode"] in _MODES,
    "reduce_precision": lambda params: _float_format(params) is not None,
    "scatter": lambda params: params["update_jaxpr"] is None,  # otherwise it applies some function in place
}

# --- Conditions ------------------------------------------------------------------------------------------------------

COMPARISONS = {"gt": 1.0, "ge": 1.0, "lt": -1.0, "le": -1.0}
"""The sign with which a - b is positive where the condition holds."""
EQUALITIES = {"eq": -1.0, "ne": 1.0}
"""The same of |a - b|."""
JUNCTIONS = {"and": "min", "or": "max", "not": "neg", "reduce_and": "reduce_min", "reduce_or": "reduce_max"}
"""The primitive that makes the margin of a condition out of those of its parts (`margins`)."""
MOVES = {"broadcast_in_dim", "concatenate", "copy", "reshape", "rev", "slice", "squeeze", "stack", "transpose"}

# --- Calls and control flow ------------------------------------------------------------------------------------------

CALL_BODIES = {
    "call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
}
"""Primitives that only run a jaxpr, and the parameter that holds it."""

COND, LINEAR_SOLVE, SCAN, WHILE = "cond", "custom_linear_solve", "scan", "while"

NOT_PACKED = {WHILE, COND, SCAN, "pure_callback", "io_callback", "debug_callback"}
"""A loop over lanes would run each until the last is done, and a conditional would take both sides."""


def branches(params: Params) -> Sequence[ClosedJaxpr]:
    """The jaxprs among which a `cond` chooses."""
    return params["branches"]


def while_parts(params: Params, args: Sequence[Any]) -> tuple[ClosedJaxpr, ClosedJaxpr, list, list, list]:
    """The condition and the body of a `while`, the constants of each, and the initial carry."""
    first_body_const = params["cond_nconsts"]
    first_carry = first_body_const + params["body_nconsts"]
    consts, body_consts, carry = args[:first_body_const], args[first_body_const:first_carry], args[first_carry:]
    return params["cond_jaxpr"], params["body_jaxpr"], list(consts), list(body_consts), list(carry)


def scan_parts(params: Params, args: Sequence[Any]) -> tuple[list[Any], list[Any], Sequence[Any], Sequence[int]]:
    """The constants, the initial carry and the inputs of a `scan`, and the positions in the order in which it runs."""
    first_carry = params["num_consts"]
    first_input = first_carry + params["num_carry"]
    positions = range(params["length"])
    consts, carry, inputs = args[:first_carry], args[first_carry:first_input], args[first_input:]
    return list(consts), list(carry), inputs, positions[::-1] if params["reverse"] else positions


def scan_body(params: Params) -> ClosedJaxpr:
    """The jaxpr that a `scan` repeats."""
    return params["jaxpr"]


def linear_solve_parts(params: Params, args: Sequence[Any]) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr that solves a `custom_linear_solve`, and its arguments."""
    lengths = params["const_lengths"]
    start = lengths.matvec + lengths.vecmat
    return params["jaxprs"].solve, [*args[start : start + lengths.solve], *args[sum(lengths) :]]


def jaxprs_in(params: Params) -> Iterator[Jaxpr]:
    """The jaxprs that a primitive runs. jax 0.9 has no public function for it."""
    for value in params.values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, ClosedJaxpr | Jaxpr):
                yield each.jaxpr if isinstance(each, ClosedJaxpr) else each


def repetitions(params: Params) -> int:
    """How often a primitive runs the jaxprs inside it, where that is known: a `scan` has a length."""
    return int(params.get("length", 1))


# --- Binding ---------------------------------------------------------------------------------------------------------

# Before jax 0.9.2, functions that a primitive calls are its first arguments; from then on they are a parameter.
_FUNCTIONS_ARE_ARGUMENTS = not isinstance(add_p.get_bind_params({}), dict)


def binder(primitive: Any, params: Params) -> Callable[..., Any]:
    """The primitive with the parameters of an equation, as a function of its inputs."""
    given = primitive.get_bind_params(dict(params))
    if _FUNCTIONS_ARE_ARGUMENTS:
        functions, given = given
        return partial(primitive.bind, *functions, **given)
    return partial(primitive.bind, **given)


def bind_custom(primitive: Any, functions: Sequence[Any], args: Sequence[Any], params: Params) -> Any:
    """Apply a primitive for a function with a derivative of its own to the function and its derivative."""
    if _FUNCTIONS_ARE_ARGUMENTS:
        return primitive.bind(*functions, *args, **params)
    return primitive.bind(*args, subfuns=tuple(functions), **params)


def result_types(primitive: Any, types: Sequence[Any], params: Params) -> Any:
    """The types of the results of a primitive: a list, or one where it has one result."""
    if primitive.name == "jit":
        return params["jaxpr"].out_avals
    try:
        key = primitive, tuple(types), tuple(params.items())
        known = _result_types.get(key)
    except TypeError:  # a parameter that has no hash
        return primitive.abstract_eval(*types, **params)[0]
    if known is None:
        if len(_result_types) >= 2_000:
            _result_types.clear()
        known = _result_types[key] = primitive.abstract_eval(*types, **params)[0]
    return known


_result_types: dict[Any, Any] = {}


def weak_results(primitive: Any, params: Params) -> list[bool] | None:
    """Whether the dtypes of the results are weak, where the parameters say so."""
    if primitive.name == "jit":
        return [aval.weak_type for aval in params["jaxpr"].out_avals]
    return [params["weak_type"]] if "weak_type" in params else None


def joined_axis(primitive: Any, params: Params) -> tuple[int, bool] | None:
    """The axis along which a primitive joins its inputs, and whether that axis is new; None if it does not join."""
    if primitive.name == "stack":
        return params["axis"], True
    return (params["dimension"], False) if primitive.name == "concatenate" else None


class _Own(NamedTuple):
    """A primitive of our own."""

    name: str
    multiple_results: bool
    bind: Callable[..., Any]


def bound(primitive: Any, params: Params) -> Any:
    """A primitive with the parameters of an equation of a jaxpr, as a primitive of our own of the same name.

    What a jaxpr holds for a function with a derivative of its own is not what `bind` takes.
    """
    bind = binder(primitive, params)
    return _Own(primitive.name, primitive.multiple_results, lambda *args, **_: bind(*args))


COPY = _Own("copy", False, lambda value: value)
INLINE_CALL = _Own("closed_call", True, lambda *args, call_jaxpr: jaxpr_as_fun(call_jaxpr)(*args))
"""Evaluates a jaxpr, custom derivatives included."""

PRODUCT: Params = jax.make_jaxpr(jax.lax.mul)(1.0, 1.0).eqns[0].params
"""The parameters of a product, of which jax has one since 0.10.0."""
