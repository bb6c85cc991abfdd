"""Arrays all of whose elements are equal, computed as one number.

Where every assignment of a mixture has the same value, so have the mean and the scale that each of them selects: a
thousand elements are looked up, and their logarithms computed, where one would do. Steps on such arrays become steps on
numbers; an array is made of a number where a step reads it beside arrays whose elements differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax import lax

from anabranch.divide.graph import Equation, Graph, Node
from anabranch.divide.numpy_backend import primitives

__all__ = ["with_numbers"]

_SAME_NUMBER = frozenset({"broadcast_in_dim", "reshape", "rev", "slice", "squeeze", "tile", "transpose"})
"""Primitives of one array, whose result has no other elements than that."""


def with_numbers(
    graph: Graph, steps: Sequence[Equation], uniform: Iterable[Node], results: Iterable[Node]
) -> list[Equation]:
    """Steps that compute the same results, with numbers in the place of uniform arrays.

    Args:
        graph: to which the numbers are added.
        steps: what computes the results.
        uniform: inputs that are arrays with equal elements.
        results: the nodes that are asked for.
    """
    rewriting = _Rewriting(graph, steps)
    for node in uniform:
        rewriting.add_input(node)
    if not rewriting.numbers:
        return list(steps)
    for step in steps:
        rewriting.add(step)
    for node in results:
        rewriting.make_array(node)
    return rewriting.steps


class _Rewriting:
    """The steps so far, and the number of each uniform array: a scalar node, or a constant."""

    def __init__(self, graph: Graph, steps: Sequence[Equation]) -> None:
        self.graph, self.steps = graph, list[Equation]()
        self.numbers: dict[Node, Any] = {}
        self._arrays: set[Node] = set()
        self._producers = {node: step for step in steps for node in step.outputs}

    def add_input(self, node: Node) -> None:
        shape = self.graph.types[node].shape
        ones = (1,) * len(shape)
        first = {"start_indices": (0,) * len(shape), "limit_indices": ones, "strides": None}
        self.numbers[node] = self._reshaped(self._record(lax.slice_p, first, [node], node, ones), ())
        self._arrays.add(node)

    def add(self, step: Equation) -> None:
        """The step itself, or one on numbers."""
        name = step.primitive.name
        if len(step.outputs) == 1 and self.graph.types[step.outputs[0]].shape != ():
            numbers = [self._number(x) for x in step.inputs]
            if name in _SAME_NUMBER and numbers[0] is not None:
                self.numbers[step.outputs[0]] = numbers[0]
                return
            if name in primitives.ELEMENTWISE and all(x is not None for x in numbers):
                number = self._record(step.primitive, step.params, numbers, step.outputs[0], ())
                self.numbers[step.outputs[0]] = number
                return
            if name == "gather" and numbers[1] is not None and self._gather(step, numbers[1]):
                return
        for x in step.inputs:
            self.make_array(x)
        self.steps.append(step)

    def make_array(self, x: Any) -> None:
        """See that an array is there, if only its number is so far."""
        if isinstance(x, Node) and x in self.numbers and x not in self._arrays:
            self._spread(self.numbers[x], (), x)

    def _number(self, x: Any) -> Any:
        """The number that all elements of an input are equal to; None if they may differ."""
        if isinstance(x, Node):
            return x if self.graph.types[x].shape == () else self.numbers.get(x)
        array = np.asarray(x)
        if not array.size or array.tobytes() != np.full_like(array, array.flat[0]).tobytes():
            return None
        return array.reshape(-1)[0]

    def _gather(self, step: Equation, index: Any) -> bool:
        """Elements or slices of an array, all at one index, as one of them; False if there are several indices."""
        indices, out = step.inputs[1], step.outputs[0]
        shape = self.graph.types[indices].shape if isinstance(indices, Node) else np.shape(indices)
        if shape[-1] != 1 or not isinstance(step.inputs[0], Node):
            return False
        operand, d, sizes = self._source(step)
        of_indices = [axis for axis in range(len(self.graph.types[out].shape)) if axis not in d.offset_dims]
        batches = dict(zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True))
        windows = iter(d.offset_dims)
        axes = []  # of the result, for those of the operand that one slice keeps
        for axis, size in enumerate(self.graph.types[operand].shape):
            if axis in batches:
                sizes[axis] = size
                axes.append(of_indices[batches[axis]])
            elif axis not in d.collapsed_slice_dims:
                axes.append(next(windows))
        if axes != sorted(axes):
            return False
        self.make_array(operand)
        d = d._replace(offset_dims=tuple(range(len(axes))), operand_batching_dims=(), start_indices_batching_dims=())
        params = {**step.params, "dimension_numbers": d, "slice_sizes": tuple(sizes)}
        kept = tuple(size for axis, size in enumerate(sizes) if axis not in d.collapsed_slice_dims)
        one = self._record(step.primitive, params, [operand, self._reshaped(index, (1,))], out, kept)
        if axes:
            self._spread(one, tuple(axes), out)
        else:
            self.numbers[out] = one
        return True

    def _source(self, gather: Equation) -> tuple[Node, Any, list[int]]:
        """What a gather reads, with its dimension numbers and slice sizes: where each index has a copy of one array,
        that array."""
        operand, d, sizes = gather.inputs[0], gather.params["dimension_numbers"], list(gather.params["slice_sizes"])
        made = self._producers.get(operand)
        if made is None or made.primitive.name != "broadcast_in_dim" or not isinstance(made.inputs[0], Node):
            return operand, d, sizes
        axes = list(made.params["broadcast_dimensions"])
        shape, source = self.graph.types[operand].shape, self.graph.types[made.inputs[0]].shape
        copied = [axis for axis in range(len(shape)) if axis not in axes]
        if copied != sorted(d.operand_batching_dims) or source != tuple(shape[axis] for axis in axes):
            return operand, d, sizes
        own = d._replace(
            collapsed_slice_dims=tuple(sorted(axes.index(axis) for axis in d.collapsed_slice_dims)),
            start_index_map=tuple(axes.index(axis) for axis in d.start_index_map),
            operand_batching_dims=(), start_indices_batching_dims=(),
        )  # fmt: skip
        return made.inputs[0], own, [sizes[axis] for axis in axes]

    def _spread(self, x: Any, axes: tuple[int, ...], node: Node) -> None:
        """The node as an array that is the same along all axes but these."""
        params = {"shape": self.graph.types[node].shape, "broadcast_dimensions": axes, "sharding": None}
        self.steps.append(Equation(lax.broadcast_in_dim_p, params, [x], [node]))
        self._arrays.add(node)

    def _reshaped(self, x: Any, shape: tuple[int, ...]) -> Any:
        if not isinstance(x, Node):
            return np.reshape(x, shape)
        params = {"new_sizes": shape, "dimensions": None, "sharding": None}
        return self._record(lax.reshape_p, params, [x], x, shape)

    def _record(self, primitive: Any, params: Any, inputs: Sequence[Any], like: Node, shape: tuple[int, ...]) -> Node:
        """A new step, whose result has the type of a node, but for its shape."""
        [node] = self.graph.record(primitive, params, inputs, [self.graph.types[like].update(shape=shape)])
        self.steps.append(Equation(primitive, params, inputs, [node]))
        return node
