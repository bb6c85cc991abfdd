"""What was recorded once is recorded again without jax, which takes a tenth of a millisecond for each operation.

The thousands of paths of a program compute the same log densities and transforms, and apply the same operators, to
other values. The equations that such a computation adds to a graph depend on the types of the values that are not
known and on the content of those that are. They are kept by these as a fragment, whose inputs are numbered, and added
to the graphs of other recordings by a loop.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from anabranch.divide.graph import Equation, Graph, Node
from anabranch.divide.internals.jax_private import Tracer
from anabranch.divide.internals.tracer import PathTracer
from anabranch.divide.numpy_backend import is_key

__all__ = ["Fragment", "NotKept", "fragment_of", "keep", "kept", "key_of", "settings"]

_MAX_FRAGMENTS, _MAX_NUMBERS, _MAX_NUMBERS_OF_ONE = 5_000, 4_000_000, 10_000
"""Fragments that are kept, numbers among their constants, and the numbers of one above which it is not kept."""
_SETTINGS = ("jax_default_matmul_precision", "jax_numpy_dtype_promotion", "jax_numpy_rank_promotion")


class NotKept(Exception):
    """A computation whose equations may be others the next time."""


class _Slot(int):
    """The number of an argument or of a result of an earlier step, told apart from a constant by its type."""

    __slots__ = ()


class _Output(NamedTuple):
    """A result: an argument or a node in a slot, a value that is known, or something that is not traced."""

    slot: _Slot | None
    type: Any
    value: Any
    reads: tuple[int, ...]


class Fragment(NamedTuple):
    """Equations as functions of numbered arguments, and what a computation returns of them."""

    steps: list[tuple[Any, Any, list[Any], Sequence[Any]]]
    outputs: list[_Output]

    def added(self, trace: Any, arguments: Sequence[Any]) -> list[Any]:
        """The results for other arguments, after the equations were added to the graph of a trace."""
        record = trace.graph.record
        slots = [x.node if type(x) is PathTracer and x.known is None else _constant(x) for x in arguments]
        for primitive, params, inputs, types in self.steps:
            slots += record(primitive, params, [slots[x] if type(x) is _Slot else x for x in inputs], types)
        return list(self._results(trace, arguments, slots))

    def _results(self, trace: Any, arguments: Sequence[Any], slots: Sequence[Any]) -> Iterator[Any]:
        for slot, type_, value, reads in self.outputs:
            if type_ is None:
                yield value if slot is None else arguments[slot]
                continue
            sites = 0
            for position in reads:
                sites |= getattr(arguments[position], "sites", 0)  # an array has none
            yield PathTracer(trace, type_, None if slot is None else slots[slot], value, sites)


def _constant(x: Any) -> Any:
    if type(x) is PathTracer:
        return x.known
    return np.array(x) if isinstance(x, np.ndarray | np.generic) else x  # the program may change its array afterwards


def fragment_of(graph: Graph, start: int, arguments: Sequence[Any], results: Sequence[Any]) -> Fragment:
    """The equations of a graph from a node on, which computed results from arguments."""
    slots: dict[Node, _Slot] = {}
    for position, x in enumerate(arguments):
        if type(x) is PathTracer and x.known is None:
            slots.setdefault(x.node, _Slot(position))
    reads = {node: {int(slot)} for node, slot in slots.items()}
    steps: list[tuple[Any, Any, list[Any], Sequence[Any]]] = []
    filled, position = len(arguments), start
    while position < len(graph):
        equation = graph.producers[position]
        if not isinstance(equation, Equation) or any(isinstance(x, Node) and x not in slots for x in equation.inputs):
            raise NotKept
        inputs = [slots[x] if isinstance(x, Node) else x for x in equation.inputs]
        types = graph.types[position : position + len(equation.outputs)]
        steps.append((equation.primitive, equation.params, inputs, types))
        own = set().union(*(reads[x] for x in equation.inputs if isinstance(x, Node)))
        for node in equation.outputs:
            slots[node], reads[node] = _Slot(filled), own
            filled += 1
        position += len(equation.outputs)
    known = {position for position, x in enumerate(arguments) if type(x) is PathTracer and x.known is not None}
    return Fragment(steps, [_output(x, arguments, slots, reads, known) for x in results])


def _output(
    x: Any, arguments: Sequence[Any], slots: dict[Node, _Slot], reads: dict[Node, set[int]], known: set[int]
) -> _Output:
    same = next((position for position, argument in enumerate(arguments) if argument is x), None)
    if same is not None:
        return _Output(_Slot(same), None, None, ())
    if not isinstance(x, PathTracer):
        return _Output(None, None, x, ())
    if x.known is not None:
        return _Output(None, x.aval, x.known, tuple(sorted(known)))
    if x.node not in slots:
        raise NotKept
    return _Output(slots[x.node], x.aval, None, tuple(sorted(reads[x.node] | known)))


def key_of(arguments: Sequence[Any]) -> Hashable:
    """The types of the arguments that are not known and which of them are the same; the content of the others, and
    whether it depends on a site."""
    nodes: dict[Node, int] = {}
    return tuple([_key(x, nodes) for x in arguments])


def _key(x: Any, nodes: dict[Node, int]) -> Hashable:
    kind = type(x)
    if kind is PathTracer:
        aval = x.aval
        type_ = aval.shape, aval.dtype, aval.weak_type
        if x.known is None:
            return type_, nodes.setdefault(x.node, len(nodes))
        if type(x.known) is not np.ndarray:
            raise NotKept
        return kind, type_, bool(x.sites), _content(x.known)
    if kind is float:
        return kind, x.hex()
    if x is None or x is Ellipsis or kind in (bool, int, str):
        return kind, x
    if kind is np.ndarray or isinstance(x, np.generic):
        return kind, x.shape, x.dtype, _content(x)
    if kind is slice and all(each is None or type(each) is int for each in (x.start, x.stop, x.step)):
        return kind, x.start, x.stop, x.step
    if isinstance(x, jax.Array) and not isinstance(x, Tracer) and not is_key(x):
        return kind, x.shape, x.dtype, bool(x.weak_type), _content(np.asarray(x))
    raise NotKept


def _content(x: Any) -> bytes:
    if x.size > _MAX_NUMBERS_OF_ONE or x.dtype.kind not in "biufc":
        raise NotKept
    return x.tobytes()


_fragments: dict[Hashable, Fragment | None] = {}
_numbers = 0


def settings() -> Hashable:
    """The settings of the user's on which equations depend; a part of every key."""
    return tuple([getattr(jax.config, name) for name in _SETTINGS])


def kept(key: Hashable) -> Fragment | None:
    """The fragment with this key; None if there can be none. Raises KeyError if that is not known."""
    return _fragments[key]


def keep(key: Hashable, fragment: Fragment | None) -> None:
    """Keep a fragment for other recordings, or that there can be none."""
    global _numbers
    constants = [] if fragment is None else [x for step in fragment.steps for x in step[2] if type(x) is not _Slot]
    _numbers += sum(map(np.size, constants))
    if len(_fragments) >= _MAX_FRAGMENTS or _numbers > _MAX_NUMBERS:
        _fragments.clear()
        _numbers = sum(map(np.size, constants))
    _fragments[key] = fragment
