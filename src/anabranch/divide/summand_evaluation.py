"""The summands of a density (`factors`) evaluated by NumPy over a batch, or by JAX, where some coordinates are alike.

Coordinates that have the same value wherever summands are evaluated are one input, and what is computed twice from the
same inputs is computed once: the transitions of a hidden Markov model, written as a loop over time, are then one
summand and not one for each step. Arrays of such coordinates are computed as one number (`uniform`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from anabranch.divide.factors import Factors
from anabranch.divide.graph import Equation, Graph, Node
from anabranch.divide.packed_evaluation import evaluate_packed
from anabranch.divide.packing import Forms, Lanes, form, plan
from anabranch.divide.uniform import with_numbers

__all__ = ["SummandEvaluator"]

_MAX_COMPARED = 64
"""Numbers of a constant that are compared; larger ones are the same only if they are one object."""


class SummandEvaluator:
    """Evaluates the summands of a density.

    Args:
        factors: the summands.
        alike: a key for some columns; those with the same key have the same value at every point.
    """

    def __init__(self, factors: Factors, alike: Mapping[int, Hashable]) -> None:
        self.factors, self.graph = factors, factors.graph
        same = _same_inputs(factors, alike)
        nodes = [summand.node for summand in factors.summands]
        inputs = {node: None for node, _, _ in factors.inputs}
        schedule: list[Any] = self.graph.schedule(nodes, inputs)
        steps = _without_repetition(self.graph, schedule, same)
        self.nodes = [same.get(node, node) for node in nodes]
        """Of each summand the node that computes it; summands that are always equal have the same one."""
        self._steps = with_numbers(self.graph, steps, _uniform_inputs(factors, alike), self.nodes)
        self._plans: dict[tuple[int, ...], Any] = {}

    def colours(self, of_columns: Mapping[int, int]) -> list[frozenset[int]]:
        """The colours with which each summand varies when it is computed: also those of elements that it leaves out."""
        of_nodes = self._colours_of_nodes(of_columns)
        return [of_nodes[node] for node in self.nodes]

    def _colours_of_nodes(self, colours: Mapping[int, int]) -> dict[Node, frozenset[int]]:
        out: dict[Node, frozenset[int]] = {}
        for node, columns, _ in self.factors.inputs:
            own = (colours.get(column) for column in range(columns.start, columns.stop))
            out[node] = frozenset(colour for colour in own if colour is not None)
        for step in self._steps:
            joint = frozenset[int]().union(*(out[x] for x in step.inputs if isinstance(x, Node)))
            out.update(dict.fromkeys(step.outputs, joint))
        return out

    @cached_property
    def static(self) -> list[bool]:
        """For each summand, whether it depends on no coordinate but those that scopes are sets of."""
        own = self.factors.columns
        varies = {node for node, columns, _ in self.factors.inputs
                  if not np.isin(range(columns.start, columns.stop), own).all()}  # fmt: skip
        for step in self._steps:
            if not varies.isdisjoint(x for x in step.inputs if isinstance(x, Node)):
                varies.update(step.outputs)
        return [node not in varies for node in self.nodes]

    def by_numpy(self, points: np.ndarray, chosen: Sequence[int]) -> list[tuple[list[int], np.ndarray]]:
        """The elements of some summands at points: the numbers of those of the same part that were computed together,
        and an array (points, summands, elements)."""
        n, key = len(points), tuple(chosen)
        env = {node: points[:, columns].reshape(n, *shape) for node, columns, shape in self.factors.inputs}
        if key not in self._plans:
            self._plans[key] = plan(Forms(self.graph), self._needed(chosen))
        with np.errstate(all="ignore"):
            values = evaluate_packed(self._plans[key], env, n)
        return [(numbers, _rows(values.together([self.nodes[i] for i in numbers]), n))
                for numbers in self._together(chosen, values.lanes)]  # fmt: skip

    def by_jax(
        self, chosen: Sequence[int], point: Any, values: Sequence[Any], colours: Mapping[int, tuple[int, int]]
    ) -> list[tuple[list[int], Any]]:
        """What `by_numpy` gives, at one point: an array has a row for each summand.

        Args:
            chosen: the numbers of the summands.
            point: the point; its values in the columns with a colour are not used.
            values: those values, in an array for each colour.
            colours: the colour of each such column, and its place in the array.
        """
        lanes = Lanes()
        for node, columns, shape in self.factors.inputs:
            places = [colours.get(column) for column in range(columns.start, columns.stop)]
            if shape == ():
                colour, place = places[0] or (None, columns.start)
                lanes.packed[node] = (point if colour is None else values[colour], place)
            elif not any(places):
                lanes.values[node] = point[columns].reshape(shape)
            else:
                lanes.values[node] = _assembled(point[columns], values, places).reshape(shape)

        of_nodes = self._colours_of_nodes({column: colour for column, (colour, _) in colours.items()})

        def kind(step: Equation) -> Hashable:
            """The colours with which each input varies: beside others it would be computed more often than needed."""
            return tuple(of_nodes[x] if isinstance(x, Node) else None for x in step.inputs)

        lanes.run(plan(Forms(self.graph), self._needed(chosen), kind))
        return [(numbers, lanes.together([self.nodes[i] for i in numbers]).reshape(len(numbers), -1))
                for numbers in self._together(chosen, lanes.packed)]  # fmt: skip

    def _needed(self, chosen: Sequence[int]) -> list[Equation]:
        """The steps that compute some summands."""
        needed = {self.nodes[number] for number in chosen}
        out = []
        for step in reversed(self._steps):
            if not needed.isdisjoint(step.outputs):
                needed.update(x for x in step.inputs if isinstance(x, Node))
                out.append(step)
        return out[::-1]

    def _together(self, chosen: Sequence[int], lanes: Mapping[Node, tuple[Any, int]]) -> list[list[int]]:
        """The summands by the array that they are lanes of, and by part; the others one by one."""
        out: dict[Any, list[int]] = {}
        for number in chosen:
            array, _ = lanes.get(self.nodes[number], (None, 0))
            key = number if array is None else (id(array), self.factors.summands[number].part)
            out.setdefault(key, []).append(number)
        return list(out.values())


def _same_inputs(factors: Factors, alike: Mapping[int, Hashable]) -> dict[Node, Node]:
    """For each scalar input that is like an earlier one, that one."""
    first: dict[Hashable, Node] = {}
    out: dict[Node, Node] = {}
    for node, columns, shape in factors.inputs:
        if shape == () and columns.start in alike:
            key = alike[columns.start], factors.graph.types[node]
            out[node] = first.setdefault(key, node)
    return out


def _uniform_inputs(factors: Factors, alike: Mapping[int, Hashable]) -> list[Node]:
    """The arrays whose coordinates all have the same value."""
    out = []
    for node, columns, shape in factors.inputs:
        keys = {alike.get(column) for column in range(columns.start, columns.stop)}
        if shape != () and len(keys) == 1 and None not in keys:
            out.append(node)
    return out


def _without_repetition(graph: Graph, steps: Sequence[Equation], same: dict[Node, Node]) -> list[Equation]:
    """The steps without those that compute what an earlier one has computed, whose nodes are added to `same`."""
    first: dict[Hashable, Equation] = {}
    out = []
    for step in steps:
        inputs = [same.get(x, x) if isinstance(x, Node) else x for x in step.inputs]
        key = form(graph, step), tuple(map(_identity, inputs))
        earlier = first.get(key)
        if earlier is not None:
            same.update(zip(step.outputs, earlier.outputs, strict=True))
            continue
        first[key] = made = Equation(step.primitive, step.params, inputs, step.outputs)
        out.append(made)
    return out


def _identity(x: Any) -> Hashable:
    """What is equal for equal inputs; a constant is compared to the bit."""
    if isinstance(x, Node):
        return int(x)
    array = np.asarray(x)
    return (array.tobytes(), array.shape) if array.size <= _MAX_COMPARED else ("object", id(x))


def _assembled(own: Any, values: Sequence[Any], places: Sequence[tuple[int, int] | None]) -> Any:
    """The coordinates of a site, each its own or one of the values by colour."""
    used = sorted({place[0] for place in places if place is not None})
    start, total = {}, 0
    for colour in used:
        start[colour] = total
        total += len(values[colour])
    index = [total + i if place is None else start[place[0]] + place[1] for i, place in enumerate(places)]
    parts = [values[colour] for colour in used] + ([own] if None in places else [])
    joined = parts[0] if len(parts) == 1 else jnp.concatenate(parts)
    return joined if np.array_equal(index, np.arange(len(joined))) else joined[np.array(index)]


def _rows(array: np.ndarray, n: int) -> np.ndarray:
    """Values (summands, batch, ...) as (points, summands, elements)."""
    flat = array.reshape(*array.shape[:2], -1)
    return np.broadcast_to(flat, (len(flat), n, flat.shape[2])).transpose(1, 0, 2)
