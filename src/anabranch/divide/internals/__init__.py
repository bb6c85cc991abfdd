"""Everything that needs jax's internals (`jax_private`), and nothing else; the rest of the library imports from here.

`PathTrace` is a JAX trace of our own. While it is current, every primitive that the user's program applies comes to
`process_primitive`, which either computes it at once on the host (all its inputs are known) or records it in a graph.
`PathTracer` is what the program holds instead of a random value. When Python demands an answer of it (`bool`, `int`,
an index, a hash, a format), the trace passes the question on to its `decide`.

What differs between the versions of jax that are supported is said where it is used: here, and of primitives and their
parameters in `numpy_backend/primitives.py`.
"""

from anabranch.divide.internals.trace import PathTrace
from anabranch.divide.internals.tracer import (
    LeakedTracer,
    PathTracer,
    TracedElsewhere,
    Undecided,
    as_input,
    known_array,
)
from anabranch.divide.internals.values import inside
from anabranch.divide.numpy_backend import is_key

__all__ = [
    "LeakedTracer", "PathTrace", "PathTracer", "TracedElsewhere", "Undecided", "as_input", "inside", "is_key",
    "known_array", "without_reverse_mode",
]  # fmt: skip


def without_reverse_mode(error: ValueError) -> bool:
    """Whether jax says that it cannot differentiate a `while_loop`: its class is that of many errors."""
    return "Reverse-mode differentiation does not work" in str(error)
