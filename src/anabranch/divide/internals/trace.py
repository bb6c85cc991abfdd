"""The JAX trace that records what a program does with its random values."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Protocol

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr

from anabranch.divide import numpy_backend
from anabranch.divide.dispatch import one_call
from anabranch.divide.graph import Graph, Node
from anabranch.divide.internals.fragments import Fragment, NotKept, fragment_of, keep, kept, key_of, settings
from anabranch.divide.internals.jax_private import (
    Trace,
    convert_constvars_jaxpr,
    eval_trace,
    set_current_trace,
    trace_ctx,
    typeof,
)
from anabranch.divide.internals.tracer import LeakedTracer, PathTracer, TracedElsewhere, Undecided, aval
from anabranch.divide.internals.values import FLOAT, FLOAT_SCALAR, aval_of, belongs_to_jax, inside, own
from anabranch.divide.numpy_backend import primitives

__all__ = ["PathTrace"]

_LOGICAL = {lax.bitwise_and, lax.bitwise_or}


class Decider(Protocol):
    """What a trace asks of the recorder."""

    def decide(self, tracer: PathTracer) -> np.ndarray: ...

    def asked(self, tracer: PathTracer) -> None: ...

    def splits(self, tracer: PathTracer) -> bool: ...

    def same_in(self, other: Any, sites: int) -> bool: ...


class PathTrace(Trace):
    """Records what the program does with its random values.

    The recorder is told of every demand for a concrete answer: `decide(tracer)` for a value that is not known and must
    become so, `asked(tracer)` for one that is. `splits(tracer)` says whether a decision would fix a discrete site.
    """

    __slots__ = ("_demands", "_may_decide", "_settings", "graph", "recorder")

    def __init__(self, recorder: Decider) -> None:
        super().__init__()
        self.graph, self.recorder, self._may_decide = Graph(), recorder, True
        self._demands = 0  # for concrete answers, so far
        self._settings = settings()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Run under this trace, in double precision, leaving the caller's settings as they were."""
        with jax.enable_x64(True), set_current_trace(self):
            yield

    def is_current(self) -> bool:
        return trace_ctx.trace is self

    def input(self, shape: tuple[int, ...], dtype: Any, sites: int = 0) -> PathTracer:
        type_ = aval_of(shape, np.dtype(dtype))
        return PathTracer(self, type_, self.graph.input(type_), None, sites)

    def constant(self, value: np.ndarray) -> PathTracer:
        return PathTracer(self, aval_of(value.shape, value.dtype), None, value.copy(), 0)

    def short_cut(
        self, function: Any, ufunc: np.ufunc, tracer: PathTracer, other: Any, reflected: bool
    ) -> PathTracer | None:
        """A binary operation where JAX's promotion of types is beyond doubt; None where it is not."""
        right, sites = other, tracer.sites
        if type(other) is PathTracer:
            if other._trace is not self:  # a cache may ask whether a key of an earlier run equals that of this run
                known = function is lax.eq and tracer.known is not None and other.known is not None
                return self.constant(np.asarray(np.equal(tracer.known, other.known))) if known else None
            if other.aval is not tracer.aval:
                return None
            right, sites = other.node if other.known is None else other.known, sites | other.sites
        if trace_ctx.trace is not self and isinstance(trace_ctx.trace, PathTrace):
            return None  # a value of another run: whether it may be used here is to be seen
        if tracer.known is not None and not isinstance(right, Node):
            logical = function in _LOGICAL
            if (tracer.aval.dtype == bool) is not logical or (logical and type(other) is not PathTracer):
                return None
            with np.errstate(all="ignore"):
                value = np.asarray(ufunc(right, tracer.known) if reflected else ufunc(tracer.known, right))
            return PathTracer(self, aval_of(value.shape, value.dtype), None, value, sites)
        if tracer.aval is not FLOAT_SCALAR or not self.is_current():
            return None
        left: Any = tracer.node if tracer.known is None else tracer.known
        if not isinstance(right, Node):
            right = np.asarray(right, FLOAT)
        primitive, params, avals = _as_equation(function)
        return self._record(primitive, [right, left] if reflected else [left, right], params, avals, sites)[0]

    def repeated(self, what: Hashable, compute: Callable[[], Sequence[Any]], arguments: Sequence[Any]) -> Sequence[Any]:
        """The results of a computation under this trace that depends on what it is and on the arguments alone.

        Its equations are taken from an earlier one, of this run or another, if there was one with such arguments.
        """
        if any(type(x) is PathTracer and x._trace is not self for x in arguments):
            return compute()
        try:
            key = what, key_of(arguments), self._settings
            fragment = kept(key)
        except NotKept:
            return compute()
        except KeyError:
            start, demands = len(self.graph), self._demands
            results = compute()
            with contextlib.suppress(NotKept):
                keep(key, fragment_of(self.graph, start, arguments, results) if demands == self._demands else None)
            return results
        return compute() if fragment is None else fragment.added(self, arguments)

    def operation(self, what: str, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        """A function of jax.numpy of these operands, of which one at least is not known; None if it is to be asked.

        Its equations must depend on the types of the operands alone, unless they are numbers of Python.
        """
        try:
            key = what, tuple([_type_key(x, self) for x in operands]), self._settings
            fragment = kept(key)
        except NotKept:
            return None
        except KeyError:
            fragment = _fragment_of_operation(function, operands, self.recorder)
            keep(key, fragment)
        return None if fragment is None else fragment.added(self, operands)[0]

    def concrete(self, tracer: PathTracer) -> np.ndarray:
        self._demands += 1
        if tracer.known is None:
            if not self.is_current():
                raise TracedElsewhere
            if not self._may_decide:
                raise Undecided
            with set_current_trace(eval_trace):
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

    def stage_value(self, value: Any) -> Any:
        return value if isinstance(value, jax.Array) else self.constant(np.asarray(value))

    def process_primitive(self, primitive: Any, tracers: Sequence[Any], params: dict[str, Any], /) -> Any:
        inputs, sites, known = self._inputs(tracers)
        params = self._static(params)
        if known:
            return self._fold(primitive, inputs, tracers, params, sites)
        avals = primitives.result_types(primitive, [aval(t) for t in tracers], params)
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

    def _inputs(self, tracers: Sequence[Any]) -> tuple[list[Any], int, bool]:
        """Nodes and constants for the graph, the sites they depend on, and whether all are constants."""
        inputs, sites, known = [], 0, True
        for tracer in tracers:
            if not isinstance(tracer, PathTracer):
                inputs.append(own(tracer))
                continue
            if tracer._trace is not self:
                self.accept(tracer)
            sites |= tracer.sites
            if tracer.known is None:
                known = False
                inputs.append(tracer.node)
            else:
                inputs.append(tracer.known)
        return inputs, sites, known

    def accept(self, tracer: PathTracer) -> None:
        """A value of another run may be used in this one if it is known and would have been the same here."""
        if tracer.known is None or (tracer.sites and not tracer._trace.recorder.same_in(self.recorder, tracer.sites)):
            raise LeakedTracer

    def _static(self, params: dict[str, Any]) -> dict[str, Any]:
        """Parameters that must be plain numbers, such as repetitions, with the traced ones among them decided."""
        traced = {k: v for k, v in params.items() if type(v) is tuple and any(type(x) is PathTracer for x in v)}
        if not traced:
            return params
        with set_current_trace(self):
            return {**params, **{k: tuple(int(x) for x in v) for k, v in traced.items()}}

    def _record(
        self, primitive: Any, inputs: list[Any], params: dict[str, Any], avals: Sequence[Any], sites: int
    ) -> list[PathTracer]:
        nodes = self.graph.record(primitive, params, inputs, avals)
        return [PathTracer(self, type_, node, None, sites) for type_, node in zip(avals, nodes, strict=True)]

    def _fold(self, primitive: Any, inputs: list[Any], tracers: Sequence[Any], params: Any, sites: int) -> Any:
        """Compute now. On the host where there is a rule, for XLA would compile each primitive for each shape."""
        if not numpy_backend.supports(primitive, params) or any(map(belongs_to_jax, inputs)):
            with set_current_trace(eval_trace), one_call():
                return jax.block_until_ready(primitive.bind(*inputs, **params))
        values = numpy_backend.apply(primitive, params, [np.asarray(x)[None] for x in inputs])
        weak = primitives.weak_results(primitive, params)
        if weak is None:
            weak = [bool(tracers) and all(getattr(aval(t), "weak_type", False) for t in tracers)] * len(values)
        outputs = []
        for value, is_weak in zip(values, weak, strict=True):
            outputs.append(PathTracer(self, aval_of(value.shape[1:], value.dtype, is_weak), None, value[0], sites))
        return outputs if primitive.multiple_results else outputs[0]

    def _custom_call(self, primitive: Any, functions: tuple[Any, ...], tracers: Sequence[Any], params: Any) -> Any:
        """A call with a derivative of its own, kept inside the recorded jaxpr so that gradients use it."""
        if all(t.known is not None for t in tracers if isinstance(t, PathTracer)):
            with set_current_trace(self):
                return functions[0].call_wrapped(*tracers)
        hoisted, consts = _custom_jaxpr(primitive, functions, tuple(map(aval, tracers)), params)
        inputs, sites, _ = self._inputs([*consts, *tracers])
        return self._record(primitives.INLINE_CALL, inputs, {"call_jaxpr": hoisted}, hoisted.out_avals, sites)


def _type_key(x: Any, trace: PathTrace) -> Hashable:
    kind = type(x)
    if kind is PathTracer and x._trace is trace:
        return x.aval.shape, x.aval.dtype, x.aval.weak_type
    if kind is float:
        return kind, x.hex()
    if kind is int:
        return kind, x
    if (kind is np.ndarray or kind is np.float64) and x.dtype == FLOAT:
        return kind, x.shape
    raise NotKept


def _fragment_of_operation(function: Callable[..., Any], operands: Sequence[Any], recorder: Decider) -> Fragment | None:
    trace = PathTrace(recorder)
    types = [None if type(x) in (int, float) else x.aval if type(x) is PathTracer else typeof(x) for x in operands]
    given = [
        x if t is None else PathTracer(trace, t, trace.graph.input(t), None, 0)
        for x, t in zip(operands, types, strict=True)
    ]
    start = len(trace.graph)
    try:
        with set_current_trace(trace), trace.undecided():
            return fragment_of(trace.graph, start, given, [function(*given)])
    except (Undecided, Exception):  # whoever asks jax itself is told
        return None


_custom_jaxprs: dict[Any, tuple[ClosedJaxpr, Any]] = {}


def _custom_jaxpr(primitive: Any, functions: tuple[Any, ...], avals: Any, params: Any) -> tuple[ClosedJaxpr, list[Any]]:
    """The jaxpr of a call with a derivative of its own, and the values that it closes over as its first arguments.

    The same function of the same types gives the same jaxpr, which is kept: it takes milliseconds, and can be packed.
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
    with set_current_trace(eval_trace):
        closed = jax.make_jaxpr(lambda *args: primitives.bind_custom(primitive, functions, args, params))(*shapes)
    hoisted = ClosedJaxpr(convert_constvars_jaxpr(closed.jaxpr), ())
    if key is not None and not closed.consts:
        if len(_custom_jaxprs) >= 1000:
            _custom_jaxprs.clear()
        _custom_jaxprs[key] = hoisted, functions[0].stores
    return hoisted, list(closed.consts)


@functools.cache
def _as_equation(function: Any) -> tuple[Any, dict[str, Any], list[Any]]:
    """The primitive that a function of two real scalars binds, with its parameters and the types of its results."""
    with inside():
        jaxpr = jax.make_jaxpr(function)(np.float64(1), np.float64(1))
    [equation] = jaxpr.eqns
    return equation.primitive, equation.params, jaxpr.out_avals
