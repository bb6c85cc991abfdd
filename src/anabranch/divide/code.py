"""What XLA compiles of a density: its steps without the constants that are arrays, which are arguments.

Densities with the same code share what is compiled, the paths of a program as well as the runs of a process: data,
columns of a design matrix and weights differ between them, and the steps do not.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from anabranch.divide.graph import Equation, Node
from anabranch.divide.packing import Argument, Lanes, Pack, identity
from anabranch.divide.rolling import Roll, rolled_plan

if TYPE_CHECKING:
    from anabranch.divide.density import Density
    from anabranch.divide.terms import Term

__all__ = ["Code", "coded"]


class Code(NamedTuple):
    """The steps of a density, and what they compute.

    Attributes:
        inputs: the coordinates of each free site: node, columns and shape.
        whole: columns of discrete sites, in which only whole numbers are points of the path.
        steps: equations, packs and loops, whose constants are numbers or arguments.
        totals: the nodes that are added to the log prior, the log Jacobian and the log likelihood.
        guards: nodes and the answers that they must have.
    """

    inputs: tuple[tuple[Node, slice, tuple[int, ...]], ...]
    whole: np.ndarray
    steps: list[Equation | Pack | Roll]
    totals: tuple[list[Node], ...]
    guards: list[tuple[Node, Any]]

    def traced(self, point: Any, arguments: Sequence[Any]) -> tuple[Any, Any, Any, Any]:
        """Log prior, log likelihood, log Jacobian and guard at one point, by JAX. The last argument has what the
        constant terms add to the three totals."""
        *arguments, offsets = arguments
        lanes = Lanes(arguments=arguments)
        for node, columns, shape in self.inputs:
            if shape == ():
                lanes.packed[node] = (point, columns.start)
            else:
                lanes.values[node] = point[columns].reshape(shape)
        lanes.run(self.steps)
        holds = jnp.all(point[self.whole] == jnp.round(point[self.whole]))
        for node, answer in self.guards:
            holds = holds & jnp.all(lanes[node] == answer)
        prior, jacobian, likelihood = (lanes.total(own) + offsets[i] for i, own in enumerate(self.totals))
        return prior + jacobian, likelihood, jacobian, holds

    @property
    def key(self) -> Hashable:
        """The same for densities with the same code."""
        numbers: dict[Node, int] = {}

        def number(x: Any) -> Hashable:
            if isinstance(x, Node):
                return numbers.setdefault(x, len(numbers))
            if isinstance(x, Argument):
                return x
            array = np.asarray(x)
            return "number", type(x), array.dtype.str, array.shape, array.tobytes()

        def of(step: Equation | Pack | Roll) -> Hashable:
            if isinstance(step, Roll):
                turns = tuple(tuple(map(of, turn)) for turn in step.turns)
                return turns, tuple(sorted(numbers[node] for node in step.wanted if node in numbers))
            equations = step if isinstance(step, list) else [step]
            inputs = tuple(tuple(map(number, each.inputs)) for each in equations)
            outputs = tuple(tuple(map(number, each.outputs)) for each in equations)
            params = tuple((name, identity(value)) for name, value in equations[0].params.items())
            return isinstance(step, list), equations[0].primitive, params, inputs, outputs

        return (
            tuple((number(node), columns.start, shape) for node, columns, shape in self.inputs),
            tuple(self.whole.tolist()),
            tuple(map(of, self.steps)),
            tuple(tuple(map(number, own)) for own in self.totals),
            tuple((number(node), np.asarray(answer).tobytes(), np.shape(answer)) for node, answer in self.guards),
        )


def coded(density: Density) -> tuple[Code, list[np.ndarray]]:
    """The code of a density, and the arguments with which it computes this one."""
    arguments = _Arguments()
    terms = [*density.prior, *density.jacobian, *density.likelihood, *density.guards]
    ends = {term.value for term in terms if isinstance(term.value, Node)}
    steps = [arguments.taken_out(step) for step in rolled_plan(density.graph, density.evaluator.steps, ends)]
    parts = [_split(terms) for terms in (density.prior, density.jacobian, density.likelihood)]
    inputs = tuple(
        (node, density.recording.columns[site.name], site.unconstrained_shape)
        for site, node in density.coordinates.items()
    )
    guards = [(guard.value, guard.answer) for guard in density.guards]
    code = Code(inputs, density.whole, steps, tuple(nodes for nodes, _ in parts), guards)
    return code, [*arguments.arrays, np.array([constant for _, constant in parts])]


def _split(terms: Sequence[Term]) -> tuple[list[Node], float]:
    """The terms that are computed, and the sum of those that are constant."""
    values = [term.value for term in terms]
    constant = sum(float(np.asarray(value)) for value in values if not isinstance(value, Node))
    return [value for value in values if isinstance(value, Node)], constant


class _Arguments:
    """The arrays among the constants of steps."""

    def __init__(self) -> None:
        self.arrays: list[np.ndarray] = []
        self._known: dict[int, Argument] = {}

    def taken_out(self, step: Equation | Pack | Roll) -> Equation | Pack | Roll:
        """The step with arguments in place of arrays; constants that differ between lanes or turns are one array."""
        if isinstance(step, Roll):
            places = [self._of_pack(list(equations)) for equations in zip(*step.turns, strict=True)]
            return Roll([list(turn) for turn in zip(*places, strict=True)], step.wanted)
        if isinstance(step, list):
            return self._of_pack(step)
        return Equation(step.primitive, step.params, [self._argument(x) for x in step.inputs], step.outputs)

    def _of_pack(self, step: Pack) -> Pack:
        columns = [self._of_lanes(column) for column in zip(*(each.inputs for each in step), strict=True)]
        rows = zip(*columns, strict=True) if columns else [()] * len(step)
        return [Equation(each.primitive, each.params, row, each.outputs) for each, row in zip(step, rows, strict=True)]

    def _argument(self, x: Any) -> Any:
        """An array as an argument; a node or a number as it is."""
        if isinstance(x, Node) or np.size(x) <= 1:
            return x
        if id(x) not in self._known:
            self._known[id(x)] = self._added(np.asarray(x))
        return self._known[id(x)]

    def _of_lanes(self, column: Sequence[Any]) -> Sequence[Any]:
        if any(isinstance(x, Node) for x in column):
            return [self._argument(x) for x in column]
        head, arrays = column[0], [np.asarray(x) for x in column]
        # To the bit: the sign of a zero matters to some functions.
        if all(x is head for x in column) or len({array.tobytes() for array in arrays}) == 1:
            return [self._argument(head)] * len(column)
        stacked = self._added(np.stack(arrays))
        return [Argument(stacked.number, lane) for lane in range(len(column))]

    def _added(self, array: np.ndarray) -> Argument:
        self.arrays.append(array)
        return Argument(len(self.arrays) - 1)
