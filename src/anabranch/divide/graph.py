"""The recorded graph: which primitive was applied to what, and in which order to apply it again.

A graph knows nothing of JAX traces or of batches. Its nodes are numbered in the order of recording, so that the same
program, led through the same decisions, gives the same node the same number: values computed for one recording can be
carried over to another that shares its beginning.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from anabranch.divide import numpy_backend
from anabranch.divide.numpy_backend.primitives import COPY
from anabranch.limits import checkpoint, time_limit

__all__ = ["Equation", "Graph", "Node", "Step", "alias", "evaluate", "with_batch_axis"]

# Where a run has a time limit, an equation is applied to so many executions at first, to measure how long one takes,
# and then for so many seconds at a time. A busy machine may take ten times as long.
_FIRST_EXECUTIONS, _MAX_SECONDS = 2, 0.05
_FEW_NUMBERS = 16_384
"""Numbers in the inputs of an equation up to which it is applied at once: a loop inside checks the limits itself."""


class Node(int):
    """The number of a value in a graph, told apart from a constant by its type."""

    __slots__ = ()


class Step(Protocol):
    """Anything that computes some nodes from others: an equation, or a site that draws its value."""

    @property
    def inputs(self) -> Sequence[Any]: ...

    @property
    def outputs(self) -> Sequence[Node]: ...


@dataclass(slots=True, eq=False)
class Equation:
    """One application of a JAX primitive. An input is a `Node` or a constant.

    `seconds` is the time that one execution took, as last measured in a run with a time limit; zero if never measured.
    """

    primitive: Any
    params: Mapping[str, Any]
    inputs: Sequence[Any]
    outputs: Sequence[Node]
    seconds: float = 0.0


def alias(node: Node, value: Any) -> Equation:
    """An equation that defines `node` to be `value`."""
    return Equation(COPY, {}, (value,), (node,))


class Graph:
    """Nodes in the order of recording, with the type of each; `producers[node]` is None for an input."""

    def __init__(self) -> None:
        self.producers: list[Equation | None] = []
        self.types: list[Any] = []

    def __len__(self) -> int:
        return len(self.producers)

    def input(self, type_: Any) -> Node:
        self.producers.append(None)
        self.types.append(type_)
        return Node(len(self.producers) - 1)

    def record(self, primitive: Any, params: Any, inputs: Sequence[Any], types: Sequence[Any]) -> Sequence[Node]:
        first = len(self.producers)
        if len(types) == 1:
            outputs = [Node(first)]
            self.producers.append(Equation(primitive, params, inputs, outputs))
            self.types.append(types[0])
            return outputs
        outputs = [Node(i) for i in range(first, first + len(types))]
        self.producers.extend([Equation(primitive, params, inputs, outputs)] * len(types))
        self.types.extend(types)
        return outputs

    def schedule(
        self, targets: Iterable[Any], have: Mapping[Node, Any], sources: Mapping[Node, Step] | None = None
    ) -> list[Step]:
        """The steps that compute `targets` from the nodes in `have`, each after the steps that it reads from.

        `sources` has the steps of nodes that no equation produces: one that draws a site, say, or computes it from its
        unconstrained coordinates. Targets that are not nodes are constants and need no step.
        """
        sources = sources or {}
        steps: list[Step] = []
        done: set[int] = set()
        # Depth first without recursion: a random walk of ten thousand steps is a chain of as many equations.
        stack: list[tuple[Step, Iterator[Any]]] = []

        def visit(node: Any) -> None:
            if not isinstance(node, Node) or node in have:
                return
            step = self.producers[node] or sources.get(node)
            if step is None:
                raise KeyError(f"node {int(node)} is an input without a value")
            if id(step) not in done:
                done.add(id(step))
                stack.append((step, iter(step.inputs)))

        for target in targets:
            visit(target)
            while stack:
                step, remaining = stack[-1]
                for node in remaining:
                    before = len(stack)
                    visit(node)
                    if len(stack) > before:
                        break
                else:
                    steps.append(step)
                    stack.pop()
        return steps


def evaluate(
    steps: Sequence[Any], env: dict[Node, np.ndarray], draw: Callable[[Any, list[Any]], np.ndarray] | None = None
) -> None:
    """Apply equations on the host, and draw sites. Every array has the batch as its first axis, of length one where it
    is constant."""
    for step in steps:
        checkpoint()
        values = [env[x] if isinstance(x, Node) else with_batch_axis(x) for x in step.inputs]
        if draw is None or isinstance(step, Equation):
            env.update(zip(step.outputs, _applied(step, values), strict=True))
        else:
            env[step.outputs[0]] = draw(step, values)


def _applied(step: Equation, values: Sequence[Any]) -> list[Any]:
    """The outputs of an equation over a batch; computed in blocks of executions where the run has a time limit."""
    limits = time_limit()
    if limits is None or sum([value.size for value in values]) <= _FEW_NUMBERS:
        return numpy_backend.apply(step.primitive, step.params, values)
    n = max((len(value) for value in values), default=1)
    columns: list[list[Any]] = [[] for _ in step.outputs]
    start = 0
    while start < n:
        checkpoint()
        size = _FIRST_EXECUTIONS if step.seconds == 0 else max(int(min(_MAX_SECONDS / step.seconds, n)), 1)
        stop, began = min(start + size, n), limits.elapsed
        rows = [value if len(value) == 1 else value[start:stop] for value in values]
        results = numpy_backend.apply(step.primitive, step.params, rows)
        # Never zero, whatever the clock says: zero means that nothing was measured.
        step.seconds = max(limits.elapsed - began, 1e-9) / (stop - start)
        if stop - start == n:
            return results
        for column, result in zip(columns, results, strict=True):
            column.append(result if len(result) == stop - start else result[np.zeros(stop - start, int)])
        start = stop
    return [jnp.concatenate(c) if isinstance(c[0], jax.Array) else np.concatenate(c) for c in columns]


def with_batch_axis(constant: Any) -> Any:
    """A constant as a batch of one. The keys of `jax.random` have no NumPy form and stay what they are."""
    return (constant if numpy_backend.is_key(constant) else np.asarray(constant))[None]
