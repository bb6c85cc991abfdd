"""What a program holds instead of a random value."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

import jax
import numpy as np
from jax import lax

from anabranch.divide.graph import Node
from anabranch.divide.internals.jax_private import DEMANDS, Tracer, trace_ctx, typeof
from anabranch.divide.internals.values import aval_of
from anabranch.divide.numpy_backend import is_key
from anabranch.numpyro_internals import empty_plate

if TYPE_CHECKING:
    from anabranch.divide.internals.trace import PathTrace

__all__ = ["LeakedTracer", "PathTracer", "TracedElsewhere", "Undecided", "as_input", "aval", "known_array"]


class LeakedTracer(Exception):
    """A value of an earlier run of the program turned up in a later one."""


class Undecided(BaseException):
    """A decision was asked for where none may be taken. Not an `Exception`: the program must not catch it."""


class TracedElsewhere(Exception):
    """A decision was asked for while another JAX transformation was tracing."""


def _is_demand(frame: types.FrameType | None) -> bool:
    """Whether jax cannot go on without a value: it wants a shape, or the ends of a slice."""
    for _ in range(3):
        if frame is None:
            return False
        if frame.f_code in DEMANDS:
            return True
        frame = frame.f_back
    return False


def _scalar(tracer: PathTracer) -> PathTracer:
    if tracer.aval.ndim:
        raise TypeError(f"Only scalar arrays can be converted to Python scalars; got shape {tracer.aval.shape}")
    return tracer


class PathTracer(Tracer):
    """A value of the program under a `PathTrace`.

    `node` is its place in the graph (None for a constant), `known` its value once that is fixed in this path, and
    `sites` the set of latent sites it depends on, as the bits of an integer.
    """

    __slots__ = ("aval", "known", "node", "sites")  # since jax 0.10.0, `aval` is among those of the base class
    _trace: PathTrace
    aval: Any
    node: Any  # a Node, or None
    known: Any  # an array, or None
    sites: int
    __pandas_priority__ = 10_000  # above that of its columns, so that `column * x` is computed by jax as a whole

    def __init__(self, trace: PathTrace, aval: Any, node: Node | None, known: np.ndarray | None, sites: int) -> None:
        self._trace, self.aval, self._line_info = trace, aval, None
        self.node, self.known, self.sites = node, known, sites

    def full_lower(self) -> PathTracer:  # as in the base class since jax 0.10.0
        return self

    def concrete(self) -> np.ndarray:
        """The value in this path: a decision, unless it is known."""
        return self._trace.concrete(self)

    def check_run(self) -> None:
        """Raise `LeakedTracer` if this is a value of another run that may not be used in the one that is running."""
        running = trace_ctx.trace
        if running is not self._trace and isinstance(running, type(self._trace)):
            running.accept(self)

    def splits(self) -> bool:
        """Whether a decision on this value would fix a discrete site."""
        return self._trace.recorder.splits(self)

    def _exact(self) -> bool:
        return not np.issubdtype(self.aval.dtype, np.inexact)

    def __bool__(self) -> bool:
        aval = self.aval
        if aval.size != 1:
            raise ValueError(f"The truth value of an array of shape {aval.shape} is ambiguous: use .any() or .all()")
        question: Any = self if self._exact() else self != 0
        # NumPyro asserts that a plate has a positive size; one of a random size may be empty.
        return bool(question.concrete()) or empty_plate(sys._getframe(1)) is not None

    def __int__(self) -> int:
        _scalar(self)
        question: Any = self if self._exact() or self.known is not None else self.astype(int)
        return int(question.concrete())

    __trunc__ = __int__

    def __index__(self) -> int:
        aval = self.aval
        if aval.ndim or not self._exact():
            raise TypeError(f"Only integer scalar arrays can be converted to a scalar index; got {aval.str_short()}")
        return int(self.concrete())

    def __floor__(self) -> int:
        return int(jax.numpy.floor(self))

    def __ceil__(self) -> int:
        return int(jax.numpy.ceil(self))

    def __float__(self) -> float:
        return float(_scalar(self).concrete())

    def __complex__(self) -> complex:
        return complex(_scalar(self).concrete())

    def __hash__(self) -> int:  # type: ignore[override]  # jax's tracers have none
        return hash(_scalar(self).item())

    def __format__(self, spec: str) -> str:
        value = self.concrete()
        return format(value.item() if value.ndim == 0 else value, spec)

    def __str__(self) -> str:
        value = self.concrete()
        return str(value.item() if value.ndim == 0 else value)

    def __array__(self, dtype: Any = None, context: None = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.concrete(), dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        """NumPy's functions of numbers are those of jax.numpy; what has no counterpart there gets concrete values."""
        function = getattr(jax.numpy, ufunc.__name__, None)
        if method == "__call__" and function is not None and not kwargs:
            if len(inputs) == 2 and ufunc in _OPERATORS:
                return _OPERATORS[ufunc](*inputs)
            return function(*inputs)
        return getattr(ufunc, method)(*[np.asarray(x) for x in inputs], **kwargs)

    def item(self, *args: SupportsIndex) -> Any:
        return self.concrete().item(*args)

    def tolist(self) -> Any:
        return self.concrete().tolist()

    def to_concrete_value(self) -> np.ndarray | None:
        # A probe of a known value is not a question: the interpreter must divide as the recorder does.
        return self.concrete() if _is_demand(sys._getframe(1)) else self.known

    def __getitem__(self, index: Any) -> Any:
        """As jax has it, but a boolean mask is a decision: the shape of the result depends on it."""
        if type(index) is int and self.known is not None and self._trace.is_current():
            shape = self.aval.shape
            if shape and -shape[0] <= index < shape[0]:  # beyond, jax does not do as NumPy does
                return self._entry(index, aval_of(shape[1:], self.aval.dtype, self.aval.weak_type))
        if isinstance(index, PathTracer) and index.aval.dtype == bool and index.aval.ndim:
            index = index.concrete()
        through_jax = super().__getitem__
        if not self._trace.is_current():
            return through_jax(index)
        parts = index if type(index) is tuple else (index,)
        what = "__getitem__", type(index) is tuple
        return self._trace.repeated(what, lambda: [through_jax(index)], (self, *parts))[0]

    def __iter__(self) -> Iterator[Any]:
        shape = self.aval.shape
        if not shape or self.known is None or not self._trace.is_current():
            return super().__iter__()
        aval = aval_of(shape[1:], self.aval.dtype, self.aval.weak_type)
        return iter([self._entry(index, aval) for index in range(shape[0])])

    def _entry(self, index: int, aval: Any) -> PathTracer:
        """An entry of a known array; not the question that jax would make of it, which takes far longer."""
        return PathTracer(self._trace, aval, None, np.asarray(self.known[index]), self.sites)


def _operator(name: str, function: Any, ufunc: np.ufunc, reflected: bool) -> Any:
    """An operator with short cuts for plain scalars, for arrays that are known, and for what was recorded before.

    jax.numpy takes a tenth of a millisecond for each, most of it to find what it has compiled; a random walk has many.
    """
    through_jax = getattr(Tracer, name)

    def operator(self: PathTracer, other: Any) -> Any:
        kind = type(other)
        if (kind is float or kind is int or kind is PathTracer) and (self.known is not None or not self.aval.shape):
            result = self._trace.short_cut(function, ufunc, self, other, reflected)
            if result is not None:
                return result
        other = other.view() if kind is np.ndarray else _array_of(other)
        if self.known is None or (kind is PathTracer and other.known is None):
            return _as_before(name, through_jax, (self, other))
        return through_jax(self, other)

    return operator


def _as_before(name: str, through_jax: Any, operands: tuple[Any, ...]) -> Any:
    """An operator of which an operand is not known, from what it was recorded as before."""
    trace = operands[0]._trace
    result = trace.operation(name, through_jax, operands) if trace.is_current() else None
    return through_jax(*operands) if result is None else result


def _array_of(other: Any) -> Any:
    """A column or a table of pandas as the array that it holds."""
    return np.asarray(other) if hasattr(other, "__pandas_priority__") and not isinstance(other, PathTracer) else other


def _applied(name: str, reflected: str) -> Any:
    """A function of two values, one at least of which is traced, as an operator of the traced one."""

    def apply(left: Any, right: Any) -> Any:
        return getattr(left, name)(right) if isinstance(left, PathTracer) else getattr(right, reflected)(left)

    return apply


_OPERATORS: dict[np.ufunc, Any] = {}
"""NumPy's functions that are operators, as functions of two values."""

for _name, _function, _ufunc in [
    ("add", lax.add, np.add), ("sub", lax.sub, np.subtract), ("mul", lax.mul, np.multiply),
    ("truediv", lax.div, np.true_divide), ("lt", lax.lt, np.less), ("le", lax.le, np.less_equal),
    ("gt", lax.gt, np.greater), ("ge", lax.ge, np.greater_equal), ("eq", lax.eq, np.equal),
    ("ne", lax.ne, np.not_equal), ("and", lax.bitwise_and, np.logical_and), ("or", lax.bitwise_or, np.logical_or),
]:  # fmt: skip
    setattr(PathTracer, f"__{_name}__", _operator(f"__{_name}__", _function, _ufunc, False))
    if _name in ("add", "sub", "mul", "truediv"):
        setattr(PathTracer, f"__r{_name}__", _operator(f"__r{_name}__", _function, _ufunc, True))
        _OPERATORS[_ufunc] = _applied(f"__{_name}__", f"__r{_name}__")


def _with_arrays(name: str) -> Any:
    through_jax = getattr(Tracer, name)

    def operator(self: PathTracer, *other: Any) -> Any:
        operands = (self, *map(_array_of, other))
        # A power by a number that is known is another operation.
        if all(x.known is None if type(x) is PathTracer else type(x) in (int, float) for x in operands):
            return _as_before(name, through_jax, operands)
        return through_jax(*operands)

    return operator


for _name in [
    "rand", "ror", "xor", "rxor", "mod", "rmod", "floordiv", "rfloordiv", "pow", "rpow", "matmul", "rmatmul",
    "neg", "pos", "abs", "invert",
]:  # fmt: skip
    setattr(PathTracer, f"__{_name}__", _with_arrays(f"__{_name}__"))


def aval(value: Any) -> Any:
    """The type of a value."""
    return value.aval if isinstance(value, PathTracer) else typeof(value)


def as_input(value: Any) -> Any:
    """A traced value as an input of the graph: its node, or the constant that it is known to be."""
    if isinstance(value, PathTracer):
        return value.node if value.known is None else value.known
    return value


def known_array(value: Any) -> tuple[np.ndarray, bool] | None:
    """The array that a value of jax is known to be, and whether its dtype is weak; None if there is none."""
    if isinstance(value, PathTracer):
        return None if value.known is None or is_key(value.known) else (np.asarray(value.known), value.aval.weak_type)
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and not is_key(value):
        return np.asarray(value), bool(value.weak_type)
    return None
