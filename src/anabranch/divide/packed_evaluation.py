"""A plan of packs evaluated by NumPy: one call for many equations of the same form, over a batch of executions.

A program that loops over its sites records the same equations for each, and NumPy's calls take longer than their work.
The lanes of a pack are therefore joined to the batch, which has one row for each lane and execution.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from anabranch.divide import numpy_backend
from anabranch.divide.graph import Equation, Node, with_batch_axis
from anabranch.divide.packing import Pack
from anabranch.limits import checkpoint

__all__ = ["evaluate_packed"]


def evaluate_packed(steps: Sequence[Equation | Pack], env: Mapping[Node, np.ndarray], n: int) -> "PackedValues":
    """The values of nodes over a batch of n executions, from those of the inputs."""
    values = PackedValues(env, n)
    for step in steps:
        checkpoint()
        if isinstance(step, list):
            values.run_pack(step)
        else:
            inputs = [values[x] if isinstance(x, Node) else with_batch_axis(x) for x in step.inputs]
            values.own.update(zip(step.outputs, numpy_backend.apply(step.primitive, step.params, inputs), strict=True))
    return values


class PackedValues:
    """Arrays with the batch as their first axis, of length one where it is constant; some are lanes of others."""

    def __init__(self, env: Mapping[Node, np.ndarray], n: int) -> None:
        self.own, self.n = dict(env), n
        self.lanes: dict[Node, tuple[np.ndarray, int]] = {}
        """Arrays (lanes, batch, ...), and which lane a node is."""

    def __getitem__(self, node: Node) -> np.ndarray:
        if node in self.own:
            return self.own[node]
        array, lane = self.lanes[node]
        return array[lane]

    def together(self, nodes: Sequence[Node]) -> np.ndarray:
        """Nodes of the same type as one array (nodes, batch, ...)."""
        places = [self.lanes.get(node) for node in nodes]
        first = places[0]
        if first is not None and all(place is not None and place[0] is first[0] for place in places):
            lanes = np.array([place[1] for place in places if place is not None])
            return first[0] if np.array_equal(lanes, np.arange(len(first[0]))) else first[0][lanes]
        arrays = [self[node] for node in nodes]
        size = max(map(len, arrays))
        return np.stack([np.broadcast_to(array, (size, *array.shape[1:])) for array in arrays])

    def run_pack(self, pack: Pack) -> None:
        columns = [self._column(column) for column in zip(*(equation.inputs for equation in pack), strict=True)]
        varies = any(differs for differs, _ in columns)
        size = max((array.shape[1 if differs else 0] for differs, array in columns), default=1)
        inputs = [_joined(array, len(pack), size, differs, varies) for differs, array in columns]
        outputs = numpy_backend.apply(pack[0].primitive, pack[0].params, inputs)
        for position, output in enumerate(outputs):
            if not varies:
                self.own.update((equation.outputs[position], output) for equation in pack)
                continue
            array = output.reshape(len(pack), -1, *output.shape[1:])
            self.lanes.update((equation.outputs[position], (array, i)) for i, equation in enumerate(pack))

    def _column(self, column: Sequence[Any]) -> tuple[bool, np.ndarray]:
        """One input over the lanes: whether it differs between them, and its array, with an axis for them if so."""
        head = column[0]
        if isinstance(head, Node):
            if all(isinstance(x, Node) and x == head for x in column):
                return False, self[head]
            if all(isinstance(x, Node) for x in column):
                return True, self.together(column)
        elif not any(isinstance(x, Node) for x in column):
            first = np.asarray(head)
            if all(x is head or np.asarray(x).tobytes() == first.tobytes() for x in column):
                return False, with_batch_axis(head)
            return True, np.stack([with_batch_axis(x) for x in column])
        arrays = [self[x] if isinstance(x, Node) else with_batch_axis(x) for x in column]
        size = max(map(len, arrays))
        return True, np.stack([np.broadcast_to(array, (size, *array.shape[1:])) for array in arrays])


def _joined(array: np.ndarray, lanes: int, size: int, differs: bool, varies: bool) -> np.ndarray:
    """An input with lanes and batch as its one first axis; of length one where it is the same everywhere."""
    if not varies or (not differs and len(array) == 1):
        return array
    if not differs:
        array = np.broadcast_to(array, (lanes, *array.shape))
    if array.shape[1] != size:
        array = np.broadcast_to(array, (lanes, size, *array.shape[2:]))
    return array.reshape(lanes * size, *array.shape[2:])
