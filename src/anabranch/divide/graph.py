"""The recorded graph: which primitive was applied to what, and in which order to apply it again.

A graph knows nothing of JAX traces or of batches. Its nodes are numbered in the order of recording, so that the same
program, led through the same decisions, gives the same node the same number: values computed for one recording can be
carried over to another that shares its beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from anabranch.divide import host
from anabranch.limits import checkpoint

__all__ = ["Equation", "Graph", "Node", "Step", "alias", "evaluate", "with_batch_axis"]


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
    """One application of a JAX primitive. An input is a `Node` or a constant."""

    primitive: Any
    params: Mapping[str, Any]
    inputs: Sequence[Any]
    outputs: Sequence[Node]


class _Copy:
    """Has the face of a primitive; hands its argument on."""

    name = "copy"
    multiple_results = False

    @staticmethod
    def bind(value: Any) -> Any:
        return value


_COPY = _Copy()


def alias(node: Node, value: Any) -> Equation:
    """An equation that defines `node` to be `value`."""
    return Equation(_COPY, {}, (value,), (node,))


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

    def record(
        self, primitive: Any, params: Mapping[str, Any], inputs: Sequence[Any], types: Sequence[Any]
    ) -> Sequence[Node]:
        first = len(self.producers)
        outputs = [Node(i) for i in range(first, first + len(types))]
        self.producers.extend([Equation(primitive, params, inputs, outputs)] * len(types))
        self.types.extend(types)
        return outputs

    def schedule(
        self, targets: Iterable[Any], have: Mapping[Node, Any], sources: Mapping[Node, Step] | None = None
    ) -> list[Step]:
        """The steps that compute `targets` from the nodes in `have`, each after what it needs.

        `sources` says where nodes that no equation produces come from: how a site is drawn, say, or how it follows
        from its unconstrained coordinates. Targets that are not nodes are constants and need no step.
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


def evaluate(steps: Sequence[Any], env: dict[Node, np.ndarray]) -> None:
    """Apply equations on the host. Every array has the batch as its first axis, of length one where it is constant."""
    for step in steps:
        checkpoint()
        values = [env[x] if isinstance(x, Node) else with_batch_axis(x) for x in step.inputs]
        env.update(zip(step.outputs, host.apply(step.primitive, step.params, values), strict=True))


def with_batch_axis(constant: Any) -> Any:
    """A constant as a batch of one. The keys of `jax.random` have no NumPy form and stay what they are."""
    if isinstance(constant, jax.Array) and jax.dtypes.issubdtype(constant.dtype, jax.dtypes.extended):
        return constant[None]
    return np.asarray(constant)[None]
