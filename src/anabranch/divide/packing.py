"""Many equations of the same form as one vectorised operation, over an axis of lanes.

A program that draws eighty means one by one records every operation on them eighty times, and XLA's time to compile
grows with the number of operations, not with their size. Equations that apply the same primitive to values of the same
types, none depending on another, are therefore packed: one vectorised operation over an axis of lanes. Where the inputs
of one pack are the outputs of another in the same order, as most are, no array is copied in between.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from anabranch.divide.graph import Equation, Graph, Node
from anabranch.divide.numpy_backend.primitives import NOT_PACKED, joined_axis
from anabranch.limits import checkpoint

__all__ = ["MIN_LANES", "Argument", "Forms", "Lanes", "Pack", "Runnable", "form", "identity", "packed", "plan"]

MIN_LANES = 3
"""Equations of the same form that are packed; fewer are computed one by one."""


class Argument(NamedTuple):
    """An array that is given when steps are run, or one lane of it, in the place of a constant."""

    number: int
    lane: int | None = None


Pack = list[Equation]
"""Equations of the same form, one for each lane."""


def plan(
    forms: "Forms", steps: Sequence[Equation], kind: Callable[[Equation], Hashable] | None = None
) -> list[Equation | Pack]:
    """The steps in an order in which equations of the same form and depth, and of the same kind, are together, and
    packed."""
    depth: dict[Node, int] = {}
    groups: dict[Hashable, list[Equation]] = defaultdict(list)
    for step in steps:
        level = 1 + max((depth.get(x, 0) for x in step.inputs if isinstance(x, Node)), default=0)
        for node in step.outputs:
            depth[node] = level
        groups[(level, forms(step), None if kind is None else kind(step))].append(step)
    out: list[Equation | Pack] = []
    for _, group in sorted(groups.items(), key=lambda item: item[0][0]):  # type: ignore[index]
        out.extend(packed(group))
    return out


def packed(group: Sequence[Equation]) -> Sequence[Equation | Pack]:
    """Equations of the same form as one pack, if they are enough and may be; else one by one."""
    if len(group) >= MIN_LANES and group[0].primitive.name not in NOT_PACKED:
        return [list(group)]
    return group


def form(graph: Graph, step: Equation) -> Hashable:
    """The primitive, its parameters, and the types of its inputs."""
    inputs = tuple(graph.types[x] if isinstance(x, Node) else (np.shape(x), _dtype(x)) for x in step.inputs)
    return step.primitive, _items(step.params), inputs


class Forms:
    """A number for the form of each equation of a graph: the parameters and types that thousands of them share are
    looked at once."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._by_address: dict[int, tuple[Any, int]] = {}
        self._numbers: dict[Hashable, int] = {}

    def __call__(self, step: Equation) -> int:
        types = [
            self._known(self._graph.types[x], _itself) if isinstance(x, Node) else (np.shape(x), _dtype(x))
            for x in step.inputs
        ]
        return self._number((step.primitive, self._known(step.params, _items), tuple(types)))

    def _known(self, value: Any, key: Callable[[Any], Hashable]) -> int:
        found = self._by_address.get(id(value))
        if found is None:  # the value is kept, and with it its address
            found = self._by_address[id(value)] = value, self._number((key, key(value)))
        return found[1]

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))


def _itself(type_: Any) -> Hashable:
    return type_


def _items(params: Mapping[str, Any]) -> Hashable:
    return tuple((name, identity(value)) for name, value in params.items())


def _dtype(constant: Any) -> Any:
    return getattr(constant, "dtype", type(constant))


def identity(value: Any) -> Hashable:
    """A parameter of a primitive as a part of a key; an object that has no hash is equal to itself alone."""
    try:
        hash(value)
    except TypeError:
        return id(value)
    return value


class Runnable(Protocol):
    """What computes many nodes in another way: a loop."""

    def run_in(self, lanes: "Lanes", /) -> None: ...


class Lanes:
    """The values of nodes while a plan is run under JAX: by themselves, or as a lane of a packed array."""

    def __init__(self, values: Mapping[Node, Any] | None = None, arguments: Sequence[Any] = ()) -> None:
        self.values: dict[Node, Any] = dict(values or {})
        self.packed: dict[Node, tuple[Any, int]] = {}
        self.arguments = arguments

    def __getitem__(self, x: Any) -> Any:
        if isinstance(x, Argument):
            return self.arguments[x.number] if x.lane is None else self.arguments[x.number][x.lane]
        if not isinstance(x, Node):
            return jnp.asarray(x) if isinstance(x, np.ndarray) else x
        if x not in self.values:
            array, lane = self.packed[x]
            self.values[x] = array[lane]
        return self.values[x]

    def run(self, steps: Sequence[Equation | Pack | Runnable]) -> None:
        for step in steps:
            checkpoint()  # tracing thousands of them takes seconds
            if isinstance(step, list):
                self._run_pack(step)
            elif not isinstance(step, Equation):
                step.run_in(self)
            elif not self._join(step):
                outputs = step.primitive.bind(*[self[x] for x in step.inputs], **step.params)
                self.values.update(zip(step.outputs, _listed(step, outputs), strict=True))

    def total(self, terms: Sequence[Any]) -> Any:
        """The sum of scalars, of a whole packed array at once where they are its lanes."""
        arrays: dict[int, tuple[Any, list[int]]] = {}
        rest = jnp.zeros(())
        for term in terms:
            if isinstance(term, Node) and term in self.packed:
                array, lane = self.packed[term]
                arrays.setdefault(id(array), (array, []))[1].append(lane)
            else:
                rest = rest + self[term]
        for array, lanes in arrays.values():
            rest = rest + jnp.sum(array if sorted(lanes) == list(range(len(array))) else array[np.array(lanes)])
        return rest

    def together(self, nodes: Sequence[Node]) -> Any:
        """Nodes of the same type as one array, a row for each."""
        array = self._one_array(nodes)
        return jnp.stack([self[node] for node in nodes]) if array is None else array

    def stacked(self, terms: Sequence[Any]) -> Any:
        """Scalars as one array, taken from a packed one at once where they are all lanes of it."""
        packed = [self.packed[term] for term in terms if isinstance(term, Node) and term in self.packed]
        if packed and len(packed) == len(terms) and all(array is packed[0][0] for array, _ in packed):
            return packed[0][0][np.array([lane for _, lane in packed])]
        return jnp.stack([jnp.zeros(()), *(jnp.asarray(self[term], np.float64) for term in terms)])[1:]

    def _run_pack(self, pack: Pack) -> None:
        first = pack[0]
        inputs = [self._lanes(column) for column in zip(*(equation.inputs for equation in pack), strict=True)]
        axes = tuple(0 if many else None for many, _ in inputs)
        values = [value for _, value in inputs]
        if any(axis == 0 for axis in axes):
            outputs = jax.vmap(lambda *args: first.primitive.bind(*args, **first.params), in_axes=axes)(*values)
        else:  # the same computation in every lane
            once = _listed(first, first.primitive.bind(*values, **first.params))
            outputs = [jnp.broadcast_to(x, (len(pack), *x.shape)) for x in once]
        for position, array in enumerate(outputs if axes.count(0) == 0 else _listed(first, outputs)):
            for lane, equation in enumerate(pack):
                self.packed[equation.outputs[position]] = (array, lane)

    def _lanes(self, column: Sequence[Any]) -> tuple[bool, Any]:
        """One input over the lanes: whether it differs between them, and its value."""
        head = column[0]
        if isinstance(head, Argument) and not any(isinstance(x, Node) for x in column):
            return (False, self[head]) if column[-1] == head else (True, self.arguments[head.number])
        if not any(isinstance(x, Node) for x in column):
            # To the bit: the sign of a zero matters to some functions.
            if all(x is head or np.asarray(x).tobytes() == np.asarray(head).tobytes() for x in column):
                return False, self[head]
            return True, jnp.asarray(np.stack([np.asarray(x) for x in column]))
        if all(isinstance(x, Node) and x == head for x in column):
            return False, self[head]
        array = self._one_array(column)
        return True, jnp.stack([jnp.asarray(self[x]) for x in column]) if array is None else array

    def _join(self, step: Equation) -> bool:
        """Stack or concatenate the lanes of one array by a reshape, as `jnp.stack` of many sites asks for."""
        along = joined_axis(step.primitive, step.params)
        array = None if along is None or len(step.inputs) < MIN_LANES else self._one_array(step.inputs)
        if along is None or array is None:
            return False
        axis, is_new = along
        joined = jnp.moveaxis(array, 0, axis)
        if not is_new:
            joined = joined.reshape(*joined.shape[:axis], -1, *joined.shape[axis + 2 :])
        self.values[step.outputs[0]] = joined
        return True

    def _one_array(self, nodes: Sequence[Any]) -> Any | None:
        """The nodes as one array over lanes, if they are lanes of few arrays already: one by one they were as many
        operations as nodes."""
        starts: dict[tuple[int, bool], int] = {}
        arrays: list[Any] = []
        lanes = np.zeros(len(nodes), int)
        total = 0
        for i, x in enumerate(nodes):
            if not isinstance(x, Node) or (x not in self.packed and x not in self.values):
                return None
            array, lane = self.packed[x] if x in self.packed else (self.values[x], 0)
            is_whole = x not in self.packed  # a value by itself
            if (id(array), is_whole) not in starts:
                starts[id(array), is_whole] = total
                arrays.append(jnp.asarray(array)[None] if is_whole else array)
                total += len(arrays[-1])
            lanes[i] = starts[id(array), is_whole] + lane
            if len(arrays) * MIN_LANES > max(len(nodes), MIN_LANES):
                return None
        if len({(a.shape[1:], a.dtype) for a in arrays}) > 1:
            return None
        joined = arrays[0] if len(arrays) == 1 else jnp.concatenate(arrays)
        return joined if np.array_equal(lanes, np.arange(len(joined))) else joined[lanes]


def _listed(step: Equation, outputs: Any) -> Sequence[Any]:
    return outputs if step.primitive.multiple_results else [outputs]
