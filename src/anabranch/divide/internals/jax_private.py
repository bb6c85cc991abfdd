"""The private names of jax that the library uses, each with its reason: no other file imports from `jax._src`.

- `Trace`, `Tracer`, `set_current_trace`: the extension point for custom traces, without a public name.
- `eval_trace`, `trace_ctx`: to compute with concrete values while our trace is current, and to notice that some other
  transformation (`jit`, `vmap`, `grad`) is current instead.
- `DEMANDS`: jax probes a tracer for a value (and is refused) or demands one (which is a decision). The two arrive by
  the same method and differ only in the caller, which is one of these.
- `ShapedArray`, `typeof`: the types of values.
- `TypedNdArray`: what jax makes of a NumPy array before it reaches a trace; see `values.own`.
- `convert_constvars_jaxpr`: turns values that a custom derivative closes over into arguments.
"""

from jax._src.core import (
    ShapedArray,
    Trace,
    Tracer,
    concrete_or_error,
    eval_trace,
    set_current_trace,
    trace_ctx,
    typeof,
)
from jax._src.interpreters.partial_eval import convert_constvars_jaxpr
from jax._src.literals import TypedNdArray
from jax._src.numpy.indexing import _is_slice_element_none_or_constant_or_symbolic

__all__ = [
    "DEMANDS", "ShapedArray", "Trace", "Tracer", "TypedNdArray", "convert_constvars_jaxpr", "eval_trace",
    "set_current_trace", "trace_ctx", "typeof",
]  # fmt: skip

DEMANDS = frozenset({concrete_or_error.__code__, _is_slice_element_none_or_constant_or_symbolic.__code__})
"""Code that cannot go on without a value: it wants a shape, or the ends of a slice."""
