"""The density of one decision sequence as a factor graph over its discrete coordinates.

The terms of the density (`terms`) are sums: over the points of a plate, the steps of a chain, the parts of a factor.
They are taken apart down to summands, each of which depends on few of the coordinates (`dependence`):

    log γ(x, z) = Σ_e c_e f_e(x, z_S(e))   where all conditions hold,

with the scope S(e) of each summand. A condition is a guard, or the support of a distribution: a summand that is zero or
minus infinity. What is stated is read off the graph, so it holds at every point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jax import lax

from anabranch.divide.density import Density
from anabranch.divide.flat import Flat
from anabranch.divide.graph import Equation, Node
from anabranch.divide.numpy_backend import primitives
from anabranch.limits import checkpoint

__all__ = ["Factors", "Summand"]

Part = Literal["prior", "likelihood", "jacobian", "condition"]

_SAME_ELEMENTS = frozenset({"copy", "reshape", "rev", "squeeze", "transpose", "stop_gradient"})
"""Primitives whose result has every element of their input once."""


@dataclass(frozen=True)
class Summand:
    """An array of summands, or of conditions.

    Attributes:
        node: the array, in the flat graph.
        part: what its elements are summands of.
        name: the statement that they come from, or the text of a decision.
        coefficient: by which they are multiplied.
        scopes: for each element the number of its scope.
    """

    node: Node
    part: Part
    name: str
    coefficient: float
    scopes: np.ndarray


class Factors:
    """The summands of a density and their scopes.

    Args:
        density: the density.
        columns: the coordinates that scopes are sets of.
    """

    def __init__(self, density: Density, columns: np.ndarray) -> None:
        self.density, self.columns, self._flat = density, columns, Flat()
        self.graph, self.scopes = self._flat.graph, self._flat.scopes
        self.constants = {"prior": 0.0, "likelihood": 0.0, "jacobian": 0.0}
        self._found: dict[Node, Any] = {}
        self._add_inputs()
        for step in density.evaluator.steps:
            checkpoint()
            self._found.update(zip(step.outputs, self._applied(step), strict=True))
        self.summands = list(self._all_summands())
        self.never = any(not np.all(c) for c in self._constant_conditions)
        """Whether a condition fails everywhere."""

    def _add_inputs(self) -> None:
        self.inputs: list[tuple[Node, Any, tuple[int, ...]]] = []
        for site, node in self.density.coordinates.items():
            columns = self.density.recording.columns[site.name]
            shape = site.unconstrained_shape
            numbers = np.arange(columns.start, columns.stop).reshape(shape)
            own = np.isin(numbers, self.columns)
            scopes = np.where(own, self.scopes.singletons(np.where(own, numbers, -1)), 0) if own.any() else None
            new = self._found[node] = self._flat.input(self.density.graph.types[node], scopes)
            self.inputs.append((new, columns, shape))

    def _applied(self, step: Equation) -> Sequence[Any]:
        """A step of the density in the flat graph: its outputs there, nodes or constants."""
        inputs = [self._found[x] if isinstance(x, Node) else x for x in step.inputs]
        if step.primitive is primitives.COPY:
            return inputs
        types = [self.density.graph.types[node] for node in step.outputs]
        return self._flat.bind(step.primitive, step.params, inputs, types)

    # The summands -------------------------------------------------------------------------------------------------

    def _all_summands(self) -> Iterator[Summand]:
        density = self.density
        self._constant_conditions: list[np.ndarray] = []
        for part, terms in (
            ("prior", density.prior), ("jacobian", density.jacobian), ("likelihood", density.likelihood)
        ):  # fmt: skip
            for term in terms:
                value = self._found[term.value] if isinstance(term.value, Node) else term.value
                yield from self._split(value, part, term.name)  # type: ignore[arg-type]
        for guard in density.guards:
            value = self._found[guard.value] if isinstance(guard.value, Node) else guard.value
            yield from self._conditions(self._is_equal(value, guard.answer), guard.name)

    def _is_equal(self, value: Any, answer: Any) -> Any:
        if not isinstance(value, Node):
            return np.asarray(value == answer)
        type_ = self.graph.types[value]
        answer = np.broadcast_to(np.asarray(answer, type_.dtype), type_.shape)
        return self._flat.bind(lax.eq_p, {}, [value, answer], [type_.update(dtype=np.dtype(bool))])[0]

    def _split(self, value: Any, part: Part, name: str) -> Iterator[Summand]:
        """The summands of a term."""
        waiting = [(value, 1.0)]
        while waiting:
            x, c = waiting.pop()
            if not isinstance(x, Node):
                self.constants[part] += c * float(np.sum(x))
                continue
            parts = self._addends(x) if self._is_wide(x) else None
            if parts is not None:
                waiting += [(y, c * factor) for y, factor in parts]
                continue
            limited = self._limited(x, part, name) if self._is_wide(x) and c > 0 else None
            for summand in limited or [Summand(x, part, name, 1.0, self._flat.value(x).array)]:
                is_condition = summand.part == "condition"
                yield summand if is_condition else replace(summand, coefficient=c * summand.coefficient)

    def _is_wide(self, x: Node) -> bool:
        """Whether an element depends on more than one coordinate."""
        return self._flat.width(self._flat.value(x).array) > 1

    def _addends(self, x: Node) -> list[tuple[Any, float]] | None:
        """Values, with coefficients, over whose elements the sum is that over the elements of x; None if not known."""
        equation = self.graph.producers[x]
        if equation is None:
            return None
        name, inputs, size = equation.primitive.name, equation.inputs, _size(self.graph.types[x].shape)
        if name in _SAME_ELEMENTS or name == "reduce_sum":
            return [(inputs[0], 1.0)]
        if name in ("concatenate", "stack"):
            return [(each, 1.0) for each in inputs]
        if name == "convert_element_type" and np.issubdtype(equation.params["new_dtype"], np.floating):
            return [(inputs[0], 1.0)]
        if name == "broadcast_in_dim":
            return [(inputs[0], size / max(_size(self._flat.value(inputs[0]).shape), 1))]
        if name in ("add", "add_any", "sub"):
            sign = -1.0 if name == "sub" else 1.0
            times = [size / max(_size(self._flat.value(each).shape), 1) for each in inputs]
            return [(inputs[0], times[0]), (inputs[1], sign * times[1])]
        if name == "neg":
            return [(inputs[0], -1.0)]
        if name == "mul" or (name == "div" and np.issubdtype(self.graph.types[x].dtype, np.floating)):
            return self._multiple(name, inputs)
        if name == "dot_general":
            return self._products(equation)
        return None

    def _multiple(self, name: str, inputs: Sequence[Any]) -> list[tuple[Any, float]] | None:
        """One factor times a constant that is the same for all elements."""
        for number, other in ((1, 0), (0, 1))[: 2 if name == "mul" else 1]:
            constant = self._flat.value(inputs[number]).constant
            if constant is not None and constant.size and np.all(constant == constant.flat[0]):
                factor = float(constant.flat[0])
                if factor and np.isfinite(factor):
                    return [(inputs[other], factor if name == "mul" else 1 / factor)]
        return self._distributed(*inputs) if name == "mul" else None

    def _distributed(self, *inputs: Any) -> list[tuple[Any, float]] | None:
        """x · Σ y as Σ x · y, for a number x that depends on no coordinate that scopes are sets of."""
        for x, wide in (inputs, inputs[::-1]):
            if not (isinstance(x, Node) and isinstance(wide, Node) and self.graph.types[x].shape == ()):
                continue
            parts = [] if self._flat.value(x).array.any() else self._expanded(wide)
            sizes = [_size(self.graph.types[y].shape) for y, _ in parts]
            if sum(sizes) > _size(self.graph.types[wide].shape):
                return [(self._times(x, y), coefficient) for y, coefficient in parts]
        return None

    def _expanded(self, x: Node) -> list[tuple[Node, float]]:
        """The values that have no addends themselves, over whose elements the sum is that over x; none if some are
        constant."""
        out: list[tuple[Node, float]] = []
        waiting: list[tuple[Any, float]] = [(x, 1.0)]
        while waiting:
            y, coefficient = waiting.pop()
            if not isinstance(y, Node):
                return []
            parts = self._addends(y)
            if parts is None:
                out.append((y, coefficient))
            else:
                waiting += [(each, coefficient * factor) for each, factor in parts]
        return out

    def _times(self, x: Node, y: Node) -> Node:
        """The product of a number and an array, recorded."""
        type_ = self.graph.types[y].update(dtype=self.graph.types[x].dtype, weak_type=False)
        converting = {"new_dtype": type_.dtype, "weak_type": False, "sharding": None}
        spread = {"shape": type_.shape, "broadcast_dimensions": (), "sharding": None}
        [array] = self._flat.bind(lax.convert_element_type_p, converting, [y], [type_])
        [number] = self._flat.bind(lax.broadcast_in_dim_p, spread, [x], [type_])
        return self._flat.bind(lax.mul_p, primitives.PRODUCT, [number, array], [type_])[0]

    def _products(self, equation: Equation) -> list[tuple[Any, float]] | None:
        """The products whose sum a product of two vectors is."""
        left, right = equation.inputs
        one, other = self._flat.value(left), self._flat.value(right)
        (sums, _), _ = equation.params["dimension_numbers"]
        if not (len(one.shape) == len(other.shape) == len(sums) == 1):
            return None
        type_ = self.graph.types[equation.outputs[0]].update(shape=one.shape)
        params = {"new_dtype": type_.dtype, "weak_type": False, "sharding": None}
        converted = [self._flat.bind(lax.convert_element_type_p, params, [x], [type_])[0] for x in (left, right)]
        return [(self._flat.bind(lax.mul_p, primitives.PRODUCT, converted, [type_])[0], 1.0)]

    def _limited(self, x: Node, part: Part, name: str) -> list[Summand] | None:
        """The conditions and the summands of x, if x is a value where conditions hold and minus infinity elsewhere.

        None where the value has no narrower summands. Then it may be NaN where a condition fails that depends on fewer
        coordinates, and must not be taken from it.
        """
        equation = self.graph.producers[x]
        if equation is None or equation.primitive.name != "select_n" or len(equation.inputs) != 3:
            return None
        condition, otherwise, value = equation.inputs
        constant = self._flat.value(otherwise).constant
        if constant is None or not np.all(constant == -np.inf):
            return None
        before, conditions = dict(self.constants), len(self._constant_conditions)
        found = [*self._conditions(condition, name), *self._split(value, part, name)]
        if all(self._flat.width(each.scopes) < self._flat.width(self._flat.value(x).array) for each in found):
            return found
        self.constants.update(before)
        del self._constant_conditions[conditions:]
        return None

    def _conditions(self, value: Any, statement: str) -> Iterator[Summand]:
        """The conditions, all of which must hold for all elements of a value to be true."""
        waiting = [value]
        while waiting:
            x = waiting.pop()
            if not isinstance(x, Node):
                self._constant_conditions.append(np.asarray(x))
                continue
            equation = self.graph.producers[x]
            name = None if equation is None or not self._is_wide(x) else equation.primitive.name
            if equation is not None and (name in _SAME_ELEMENTS or name in ("and", "reduce_and", "broadcast_in_dim")):
                waiting += equation.inputs
            else:
                yield Summand(x, "condition", statement, 1.0, self._flat.value(x).array)


def _size(shape: Sequence[int]) -> int:
    return int(np.prod(shape))
