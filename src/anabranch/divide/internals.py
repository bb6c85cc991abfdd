"""Everything that needs jax's internals, and nothing else.

`PathTrace` is a JAX trace of our own. While it is current, every primitive that the user's program applies comes to
`process_primitive`, which either computes it at once on the host (all its inputs are known) or records it in a graph.
`PathTracer` is what the program holds instead of a random value. When Python demands an answer of it (`bool`, `int`,
an index, a hash, a format), the trace passes the question on to its `decide`.

What is used of `jax._src`, and why:

- `core.Trace`, `core.Tracer`, `core.set_current_trace`: the extension point for custom traces, without a public name.
- `core.eval_trace`, `core.trace_ctx`: to compute with concrete values while our trace is current, and to notice that
  some other transformation (`jit`, `vmap`, `grad`) is current instead.
- `core.concrete_or_error`, `indexing._is_slice_element...`: jax probes a tracer for a value (and is refused) or demands
  one (which is a decision). The two arrive by the same method and differ only in the caller.
- `core.ShapedArray`, `core.typeof`: the types of values.
- `literals.TypedNdArray`: what jax makes of a NumPy array before it reaches a trace; see `_own`.
- `partial_eval.convert_constvars_jaxpr`: turns values that a custom derivative closes over into arguments.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, SupportsIndex

import jax
import numpy as np
from jax import lax
from jax._src import core, literals
from jax._src.interpreters import partial_eval
from jax._src.numpy import indexing
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from anabranch.divide import numpy_backend
from anabranch.divide.dispatch import one_call
from anabranch.divide.graph import Graph, Node
from anabranch.divide.source_location import empty_plate

__all__ = [
    "LeakedTracer",
    "PathTrace",
    "PathTracer",
    "TracedElsewhere",
    "Undecided",
    "as_input",
    "inside",
    "is_key",
    "known_array",
]


class LeakedTracer(Exception):
    """A value of an earlier run of the program turned up in a later one."""


class Undecided(BaseException):
    """A decision was asked for where none may be taken. Not an `Exception`: the program must not catch it."""


class TracedElsewhere(Exception):
    """A decision was asked for while another JAX transformation was tracing."""


_DEMANDS = {core.concrete_or_error.__code__, indexing._is_slice_element_none_or_constant_or_symbolic.__code__}


def _is_demand(frame: types.FrameType | None) -> bool:
    """Whether jax cannot go on without a value: it wants a shape, or the ends of a slice."""
    for _ in range(3):
        if frame is None:
            return False
        if frame.f_code in _DEMANDS:
            return True
        frame = frame.f_back
    return False


def _scalar(tracer: PathTracer) -> PathTracer:
    if tracer.aval.ndim:
        raise TypeError(f"Only scalar arrays can be converted to Python scalars; got shape {tracer.aval.shape}")
    return tracer


class PathTracer(core.Tracer):
    """A value of the program under a `PathTrace`.

    `node` is its place in the graph (None for a constant), `known` its value once that is fixed in this path, and
    `sites` the set of latent sites it depends on, as the bits of an integer.
    """

    __slots__ = ("known", "node", "sites")
    _trace: PathTrace
    aval: Any
    node: Any  # a Node, or None
    known: Any  # an array, or None
    sites: int
    __pandas_priority__ = 10_000  # above that of its columns, so that `column * x` is computed by jax as a whole

    def __init__(self, trace: PathTrace, aval: Any, node: Node | None, known: np.ndarray | None, sites: int) -> None:
        self._trace, self.aval, self._line_info = trace, aval, None
        self.node, self.known, self.sites = node, known, sites

    def concrete(self) -> np.ndarray:
        """The value in this path: a decision, unless it is known."""
        return self._trace.concrete(self)

    def check_run(self) -> None:
        """Raise `LeakedTracer` if this is a value of another run that may not be used in the one that is running."""
        running = core.trace_ctx.trace
        if running is not self._trace and isinstance(running, PathTrace):
            running._accept(self)

    def splits(self) -> bool:
        """Whether a decision on this value would fix a discrete site."""
        return self._trace.recorder.splits(self)

    def _exact(self) -> bool:
        return not np.issubdtype(self.aval.dtype, np.inexact)

    def __bool__(self) -> bool:
        if self.aval.size != 1:
            raise ValueError(
                f"The truth value of an array of shape {self.aval.shape} is ambiguous: use .any() or .all()"
            )
        question: Any = self if self._exact() else self != 0
        # NumPyro asserts that a plate has a positive size; one of a random size may be empty.
        return bool(question.concrete()) or empty_plate(sys._getframe(1)) is not None

    def __int__(self) -> int:
        _scalar(self)
        question: Any = self if self._exact() or self.known is not None else self.astype(int)
        return int(question.concrete())

    __trunc__ = __int__

    def __index__(self) -> int:
        if self.aval.ndim or not self._exact():
            raise TypeError(
                f"Only integer scalar arrays can be converted to a scalar index; got {self.aval.str_short()}"
            )
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
                return self._entry(index, _aval_of(shape[1:], self.aval.dtype, self.aval.weak_type))
        if isinstance(index, PathTracer) and index.aval.dtype == bool and index.aval.ndim:
            index = index.concrete()
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        shape = self.aval.shape
        if not shape or self.known is None or not self._trace.is_current():
            return super().__iter__()
        aval = _aval_of(shape[1:], self.aval.dtype, self.aval.weak_type)
        return iter([self._entry(index, aval) for index in range(shape[0])])

    def _entry(self, index: int, aval: Any) -> PathTracer:
        """An entry of a known array; not the question that jax would make of it, which takes far longer."""
        return PathTracer(self._trace, aval, None, np.asarray(self.known[index]), self.sites)


def _operator(name: str, function: Any, ufunc: np.ufunc, reflected: bool) -> Any:
    """An operator with a short cut for plain scalars, and for arrays that are known.

    jax.numpy takes a tenth of a millisecond for each, most of it to find the function compiled for these types; a loop
    over a random walk is made of them.
    """
    through_jax = getattr(core.Tracer, name)

    def operator(self: PathTracer, other: Any) -> Any:
        kind = type(other)
        if (kind is float or kind is int or kind is PathTracer) and (self.known is not None or not self.aval.shape):
            result = self._trace.short_cut(function, ufunc, self, other, reflected)
            if result is not None:
                return result
        return through_jax(self, other.view() if kind is np.ndarray else _array_of(other))

    return operator


def _array_of(other: Any) -> Any:
    """A column or a table of pandas as the array that it holds."""
    return np.asarray(other) if hasattr(other, "__pandas_priority__") and not isinstance(other, PathTracer) else other


_LOGICAL = {lax.bitwise_and, lax.bitwise_or}
for _name, _function, _ufunc in [
    ("add", lax.add, np.add), ("sub", lax.sub, np.subtract), ("mul", lax.mul, np.multiply),
    ("truediv", lax.div, np.true_divide), ("lt", lax.lt, np.less), ("le", lax.le, np.less_equal),
    ("gt", lax.gt, np.greater), ("ge", lax.ge, np.greater_equal), ("eq", lax.eq, np.equal),
    ("ne", lax.ne, np.not_equal), ("and", lax.bitwise_and, np.logical_and), ("or", lax.bitwise_or, np.logical_or),
]:  # fmt: skip
    setattr(PathTracer, f"__{_name}__", _operator(f"__{_name}__", _function, _ufunc, False))
    if _name in ("add", "sub", "mul", "truediv"):
        setattr(PathTracer, f"__r{_name}__", _operator(f"__r{_name}__", _function, _ufunc, True))


def _with_arrays(name: str) -> Any:
    through_jax = getattr(core.Tracer, name)
    return lambda self, other: through_jax(self, _array_of(other))


for _name in (
    "rand", "ror", "xor", "rxor", "mod", "rmod", "floordiv", "rfloordiv", "pow", "rpow", "matmul", "rmatmul",
):  # fmt: skip
    setattr(PathTracer, f"__{_name}__", _with_arrays(f"__{_name}__"))


class _InlineCall:
    """Has the face of a primitive that evaluates a jaxpr, custom derivatives included."""

    name = "closed_call"
    multiple_results = True

    @staticmethod
    def bind(*args: Any, call_jaxpr: ClosedJaxpr) -> list[Any]:
        return jaxpr_as_fun(call_jaxpr)(*args)


_INLINE_CALL = _InlineCall()


class Decider(Protocol):
    """What a trace asks of the recorder."""

    def decide(self, tracer: PathTracer) -> np.ndarray: ...

    def asked(self, tracer: PathTracer) -> None: ...

    def splits(self, tracer: PathTracer) -> bool: ...

    def same_in(self, other: Any, sites: int) -> bool: ...


class PathTrace(core.Trace):
    """Records what the program does with its random values.

    The recorder is told of every demand for a concrete answer: `decide(tracer)` for a value that is not known and must
    become so, `asked(tracer)` for one that is. `splits(tracer)` says whether a decision would fix a discrete site.
    """

    __slots__ = ("_may_decide", "graph", "recorder")

    def __init__(self, recorder: Decider) -> None:
        super().__init__()
        self.graph, self.recorder, self._may_decide = Graph(), recorder, True

    # What the recorder uses -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Run under this trace, in double precision, leaving the caller's settings as they were."""
        with jax.enable_x64(True), core.set_current_trace(self):
            yield

    def is_current(self) -> bool:
        return core.trace_ctx.trace is self

    def input(self, shape: tuple[int, ...], dtype: Any, sites: int = 0) -> PathTracer:
        aval = _aval_of(shape, np.dtype(dtype))
        return PathTracer(self, aval, self.graph.input(aval), None, sites)

    def constant(self, value: np.ndarray) -> PathTracer:
        return PathTracer(self, _aval_of(value.shape, value.dtype), None, value.copy(), 0)

    def short_cut(
        self, function: Any, ufunc: np.ufunc, tracer: PathTracer, other: Any, reflected: bool
    ) -> PathTracer | None:
        """A binary operation where JAX's promotion of types is beyond doubt; None where it is not."""
        right, sites = other, tracer.sites
        if type(other) is PathTracer:
            if other._trace is not self:
                return self._across_runs(function, tracer, other)
            if other.aval is not tracer.aval:
                return None
            right, sites = other.node if other.known is None else other.known, sites | other.sites
        if core.trace_ctx.trace is not self and isinstance(core.trace_ctx.trace, PathTrace):
            return None  # a value of another run: whether it may be used here is to be seen
        if tracer.known is not None and not isinstance(right, Node):
            logical = function in _LOGICAL
            if (tracer.aval.dtype == bool) is not logical or (logical and type(other) is not PathTracer):
                return None
            with np.errstate(all="ignore"):
                value = np.asarray(ufunc(right, tracer.known) if reflected else ufunc(tracer.known, right))
            return PathTracer(self, _aval_of(value.shape, value.dtype), None, value, sites)
        if tracer.aval is not _FLOAT_SCALAR or not self.is_current():
            return None
        left: Any = tracer.node if tracer.known is None else tracer.known
        if not isinstance(right, Node):
            right = np.asarray(right, _FLOAT)
        primitive, params, avals = _as_equation(function)
        return self._record(primitive, [right, left] if reflected else [left, right], params, avals, sites)[0]

    def _across_runs(self, function: Any, tracer: PathTracer, other: PathTracer) -> PathTracer | None:
        """A cache asks whether a key of an earlier run equals that of this run."""
        if function is not lax.eq or tracer.known is None or other.known is None:
            return None
        return self.constant(np.asarray(np.equal(tracer.known, other.known)))

    def concrete(self, tracer: PathTracer) -> np.ndarray:
        if tracer.known is None:
            if not self.is_current():
                raise TracedElsewhere
            if not self._may_decide:
                raise Undecided
            with core.set_current_trace(core.eval_trace):
                tracer.known = self.recorder.decide(tracer)
        else:
            tracer.check_run()
            self.recorder.asked(tracer)
        return tracer.known

    @contextlib.contextmanager
    def undecided(self) -> Iterator[None]:
        """Within this, a decision raises `Undecided` instead of being taken."""
        before, self._may_decide = self._may_decide, False
        try:
            yield
        finally:
            self._may_decide = before

    # What jax asks of a trace -----------------------------------------------------------------------------------

    def stage_value(self, value: Any) -> Any:
        return value if isinstance(value, jax.Array) else self.constant(np.asarray(value))

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        inputs, sites, known = self._inputs(tracers)
        params = self._static(params)
        if known:
            return self._fold(primitive, inputs, tracers, params, sites)
        if primitive.name == "jit":
            avals = params["jaxpr"].out_avals
        else:
            avals, _ = primitive.abstract_eval(*map(_aval, tracers), **params)
        many = primitive.multiple_results
        outputs = self._record(primitive, inputs, params, avals if many else [avals], sites)
        return outputs if many else outputs[0]

    def process_custom_jvp_call(
        self, primitive: Any, fun: Any, jvp: Any, tracers: Sequence[Any], /, *, symbolic_zeros: bool
    ) -> Any:
        return self._custom_call(primitive, (fun, jvp), tracers, {"symbolic_zeros": symbolic_zeros})

    def process_custom_vjp_call(
        self, primitive: Any, fun: Any, fwd: Any, bwd: Any, tracers: Sequence[Any], /, *, out_trees: Any,
        symbolic_zeros: bool,
    ) -> Any:  # fmt: skip
        params = {"out_trees": out_trees, "symbolic_zeros": symbolic_zeros}
        return self._custom_call(primitive, (fun, fwd, bwd), tracers, params)

    # How it does it ---------------------------------------------------------------------------------------------

    def _inputs(self, tracers: Sequence[Any]) -> tuple[list[Any], int, bool]:
        """Nodes and constants for the graph, the sites they depend on, and whether all are constants."""
        inputs, sites, known = [], 0, True
        for tracer in tracers:
            if not isinstance(tracer, PathTracer):
                inputs.append(_own(tracer))
                continue
            if tracer._trace is not self:
                self._accept(tracer)
            sites |= tracer.sites
            if tracer.known is None:
                known = False
                inputs.append(tracer.node)
            else:
                inputs.append(tracer.known)
        return inputs, sites, known

    def _accept(self, tracer: PathTracer) -> None:
        """A value of another run may be used in this one if it is known and would have been the same here."""
        if tracer.known is None or (tracer.sites and not tracer._trace.recorder.same_in(self.recorder, tracer.sites)):
            raise LeakedTracer

    def _static(self, params: dict[str, Any]) -> dict[str, Any]:
        """Parameters that must be plain numbers, such as repetitions, with the traced ones among them decided."""
        traced = {k: v for k, v in params.items() if type(v) is tuple and any(type(x) is PathTracer for x in v)}
        if not traced:
            return params
        with core.set_current_trace(self):
            return {**params, **{k: tuple(int(x) for x in v) for k, v in traced.items()}}

    def _record(
        self, primitive: Any, inputs: list[Any], params: dict[str, Any], avals: Sequence[Any], sites: int
    ) -> list[PathTracer]:
        nodes = self.graph.record(primitive, params, inputs, avals)
        return [PathTracer(self, aval, node, None, sites) for aval, node in zip(avals, nodes, strict=True)]

    def _fold(
        self, primitive: Any, inputs: list[Any], tracers: Sequence[Any], params: dict[str, Any], sites: int
    ) -> Any:
        """Compute now. On the host where there is a rule, for XLA would compile each primitive for each shape."""
        if not numpy_backend.supports(primitive, params) or any(map(_belongs_to_jax, inputs)):
            with core.set_current_trace(core.eval_trace), one_call():
                return jax.block_until_ready(primitive.bind(*inputs, **params))
        values = numpy_backend.apply(primitive, params, [np.asarray(x)[None] for x in inputs])
        if primitive.name == "jit":
            weak = [aval.weak_type for aval in params["jaxpr"].out_avals]
        elif "weak_type" in params:
            weak = [params["weak_type"]]
        else:
            weak = [bool(tracers) and all(getattr(_aval(t), "weak_type", False) for t in tracers)] * len(values)
        outputs = []
        for value, is_weak in zip(values, weak, strict=True):
            outputs.append(PathTracer(self, _aval_of(value.shape[1:], value.dtype, is_weak), None, value[0], sites))
        return outputs if primitive.multiple_results else outputs[0]

    def _custom_call(self, primitive: Any, functions: tuple[Any, ...], tracers: Sequence[Any], params: Any) -> Any:
        """A call with a derivative of its own, kept inside the recorded jaxpr so that gradients use it."""
        if all(t.known is not None for t in tracers if isinstance(t, PathTracer)):
            with core.set_current_trace(self):
                return functions[0].call_wrapped(*tracers)
        hoisted, consts = _custom_jaxpr(primitive, functions, tuple(map(_aval, tracers)), params)
        inputs, sites, _ = self._inputs([*consts, *tracers])
        return self._record(_INLINE_CALL, inputs, {"call_jaxpr": hoisted}, hoisted.out_avals, sites)


_custom_jaxprs: dict[Any, tuple[ClosedJaxpr, Any]] = {}


def _custom_jaxpr(primitive: Any, functions: tuple[Any, ...], avals: Any, params: Any) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr of a call with a derivative of its own, and the values that it closes over as its first arguments.

    The same function of the same types gives the same jaxpr, which is kept: to make one takes milliseconds, and calls
    that share one can be packed.
    """
    key: Any = (functions[0], tuple(f.f for f in functions[1:]), avals)
    try:
        kept = _custom_jaxprs.get(key)
    except TypeError:  # an argument that is not differentiated need not be hashable
        key, kept = None, None
    if kept is not None:
        functions[0].populate_stores(kept[1])
        return kept[0], []
    shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type) for a in avals]
    with core.set_current_trace(core.eval_trace):
        closed = jax.make_jaxpr(lambda *args: primitive.bind(*args, subfuns=functions, **params))(*shapes)
    hoisted = ClosedJaxpr(partial_eval.convert_constvars_jaxpr(closed.jaxpr), ())
    if key is not None and not closed.consts:
        if len(_custom_jaxprs) >= 1000:
            _custom_jaxprs.clear()
        _custom_jaxprs[key] = hoisted, functions[0].stores
    return hoisted, list(closed.consts)


_FLOAT = np.dtype(np.float64)


@functools.cache
def _as_equation(function: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    """The primitive that a function of two real scalars binds, with its parameters and the types of its results."""
    with inside():
        jaxpr = jax.make_jaxpr(function)(np.float64(1), np.float64(1))
    [equation] = jaxpr.eqns
    return equation.primitive, equation.params, jaxpr.out_avals


@functools.lru_cache(maxsize=4096)
def _aval_of(shape: tuple[int, ...], dtype: np.dtype, weak: bool = False) -> Any:
    return core.ShapedArray(shape, dtype, weak_type=weak)


_FLOAT_SCALAR = _aval_of((), _FLOAT)


def as_input(value: Any) -> Any:
    """A traced value as an input of the graph: its node, or the constant that it is known to be."""
    if isinstance(value, PathTracer):
        return value.node if value.known is None else value.known
    return value


def known_array(value: Any) -> tuple[np.ndarray, bool] | None:
    """The array that a value of jax is known to be, and whether its dtype is weak; None if there is none."""
    if isinstance(value, PathTracer):
        return None if value.known is None or is_key(value.known) else (np.asarray(value.known), value.aval.weak_type)
    if isinstance(value, jax.Array) and not isinstance(value, core.Tracer) and not is_key(value):
        return np.asarray(value), bool(value.weak_type)
    return None


def _own(value: Any) -> Any:
    """A constant that may be kept: a copy, for the program may change its array afterwards.

    Also, jax remembers for each NumPy array, as long as something holds its answer, which of its own arrays it became,
    and does not ask again when `jax_enable_x64` has changed: the user's own must not be held.
    """
    return np.array(value) if isinstance(value, np.ndarray | literals.TypedNdArray) else value


def _aval(value: Any) -> Any:
    return value.aval if isinstance(value, PathTracer) else core.typeof(value)


def _belongs_to_jax(value: Any) -> bool:
    """Keys have no NumPy form, and jax insists that the integers inside them are arrays of its own."""
    return is_key(value) or (isinstance(value, jax.Array) and value.dtype == np.uint32)


def is_key(value: Any) -> bool:
    """Whether a value has no NumPy form, as the keys of `jax.random` have none."""
    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.extended)


@contextlib.contextmanager
def inside() -> Iterator[None]:
    """Compute concretely, in double precision, whatever trace is current, while no other thread does."""
    with jax.enable_x64(True), core.set_current_trace(core.eval_trace), one_call():
        yield
