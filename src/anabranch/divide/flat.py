"""A graph without calls, and what each of its values depends on.

The calls of a recorded graph (`jit` and the like) are written out, down to the primitives that do the work, so that the
terms of a density can be taken apart; what does not depend on a coordinate, nor on a random value, is computed at once.
A loop calls the same functions in every turn, each time on other coordinates. So a call is written out once for
arguments of the same form, and repeated with the coordinates renamed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core

from anabranch.divide.dependence import Dependence, Scopes, Value
from anabranch.divide.graph import Equation, Graph, Node
from anabranch.divide.numpy_backend import primitives

__all__ = ["Flat"]

_INLINED = {name: primitives.CALL_BODIES[name] for name in ("call", "closed_call", "jit", "remat2")}
"""Calls that are written out; those with derivatives of their own are not."""
_CUSTOM = {name: body for name, body in primitives.CALL_BODIES.items() if name not in _INLINED}
"""Those others."""
_MAX_COMPARED = 64
"""Elements of an argument up to which the call is compared with earlier ones; a loop has small ones."""


class _Call(NamedTuple):
    """A call that was written out: what it was given, and what came of it."""

    jaxpr: Any
    inputs: Sequence[Any]
    coordinates: Sequence[int]
    equations: Sequence[Equation]
    outputs: Sequence[Any]


class Flat:
    """A graph without calls, which grows as primitives are bound. A value is a node of it, or a constant."""

    def __init__(self) -> None:
        self.graph, self.scopes = Graph(), Scopes()
        self._values: dict[Node, Value] = {}
        self._dependence = Dependence(self.scopes)
        self._custom: dict[int, tuple[Any, Any]] = {}
        self._calls: dict[Any, _Call] = {}

    def input(self, type_: Any, scopes: np.ndarray | None) -> Node:
        """A new input, whose elements have these scopes; None if all are empty."""
        node = self.graph.input(type_)
        self._values[node] = Value(type_.shape, scopes)
        return node

    def value(self, x: Any) -> Value:
        """What is known of a value."""
        return self._values[x] if isinstance(x, Node) else Value.of_constant(x)

    def width(self, scopes: np.ndarray) -> int:
        """The coordinates on which an element depends, at most."""
        numbers = scopes.ravel().tolist() if scopes.size == 1 else np.unique(scopes).tolist()
        return max((len(self.scopes.members[number]) for number in numbers), default=0)

    def bind(self, primitive: Any, params: Mapping[str, Any], inputs: Sequence[Any], types: Sequence[Any]) -> list[Any]:
        """The results of a primitive, which have these types."""
        if primitive.name in _INLINED:
            return self._inlined(params[_INLINED[primitive.name]], inputs)
        given = [self.value(x) for x in inputs]
        found = self._dependence.of(primitive, params, given, [type_.shape for type_ in types])
        if all(value.constant is not None for value in found):
            return [value.constant for value in found]
        outputs = list(self.graph.record(self._own(primitive, params), params, inputs, types))
        self._values.update(zip(outputs, found, strict=True))
        return outputs

    def _own(self, primitive: Any, params: Mapping[str, Any]) -> Any:
        """The primitive as it is applied; the same one for the same function with a derivative of its own."""
        body = _CUSTOM.get(primitive.name)
        if body is None:
            return primitive
        key = id(params[body])
        if key not in self._custom:
            self._custom[key] = params, primitives.bound(primitive, params)
        return self._custom[key][1]

    # Calls --------------------------------------------------------------------------------------------------------

    def _inlined(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
        """The results of a call."""
        form, coordinates = self._form(inputs)
        if form is None:
            return self._written_out(jaxpr, inputs)
        call = self._calls.get((id(jaxpr), form))
        if call is not None:
            return self._repeated(call, inputs, coordinates)
        first = len(self.graph)
        outputs = self._written_out(jaxpr, inputs)
        found = (self.graph.producers[number] for number in range(first, len(self.graph)))
        equations = list({id(equation): equation for equation in found if equation is not None}.values())
        self._calls[id(jaxpr), form] = _Call(jaxpr, inputs, coordinates, equations, outputs)
        return outputs

    def _form(self, inputs: Sequence[Any]) -> tuple[Any, list[int]]:
        """What the arguments of calls have in common that differ in the names of coordinates alone, and those names.

        Constants have the same value, and scopes the same members but for their names; nodes that are the same are the
        same in both. (Types are those of the function's parameters.) The form is None if an argument is large.
        """
        form: list[Any] = []
        nodes: dict[Node, int] = {}
        places: dict[int, int] = {}
        for x in inputs:
            _, scopes, constant = self.value(x)
            if max(0 if scopes is None else scopes.size, 0 if constant is None else constant.size) > _MAX_COMPARED:
                return None, []
            if isinstance(x, Node):
                form.append(nodes.setdefault(x, len(nodes)))
            elif constant is None:
                form.append(id(x))  # random keys
            form.append(None if constant is None else constant.tobytes())
            for number in () if scopes is None else scopes.ravel().tolist():
                form.append(tuple(places.setdefault(c, len(places)) for c in self.scopes.members[number]))
        return tuple(form), list(places)

    def _written_out(self, jaxpr: Any, inputs: Sequence[Any]) -> list[Any]:
        body = getattr(jaxpr, "jaxpr", jaxpr)
        known = dict(zip(body.invars, inputs, strict=True))
        known.update(zip(body.constvars, getattr(jaxpr, "consts", ()), strict=True))

        def read(atom: Any) -> Any:
            is_literal = isinstance(atom, core.Literal)
            return np.asarray(atom.val, atom.aval.dtype) if is_literal else known[atom]

        for equation in body.eqns:
            types = [variable.aval for variable in equation.outvars]
            outputs = self.bind(equation.primitive, equation.params, list(map(read, equation.invars)), types)
            known.update(zip(equation.outvars, outputs, strict=True))
        return list(map(read, body.outvars))

    def _repeated(self, call: _Call, inputs: Sequence[Any], coordinates: Sequence[int]) -> list[Any]:
        """A call like an earlier one, of other nodes over other coordinates."""
        nodes = {old: new for old, new in zip(call.inputs, inputs, strict=True) if isinstance(old, Node)}
        graph, values = self.graph, self._values
        renamed = _Renamed(self.scopes, dict(zip(call.coordinates, coordinates, strict=True)))
        for old, new in nodes.items():
            renamed.add(values[old], values[new])
        for equation in call.equations:
            given = [nodes[x] if isinstance(x, Node) else x for x in equation.inputs]
            types = [graph.types[old] for old in equation.outputs]
            made = graph.record(equation.primitive, equation.params, given, types)
            for old, new in zip(equation.outputs, made, strict=True):
                nodes[old], values[new] = new, renamed.value(values[old])
        return [nodes[x] if isinstance(x, Node) else x for x in call.outputs]


class _Renamed:
    """Values over other coordinates."""

    def __init__(self, scopes: Scopes, names: Mapping[int, int]) -> None:
        self._scopes, self._names = scopes, names
        self._made: dict[int, np.ndarray] = {}

    def add(self, old: Value, new: Value) -> None:
        """Note a value that is known."""
        if old.scopes is not None and new.scopes is not None:
            self._made[id(old.scopes)] = new.scopes

    def value(self, value: Value) -> Value:
        """The value with its coordinates renamed."""
        scopes = value.scopes
        if scopes is None:
            return value
        key = id(scopes)  # which most results of a call share
        if key not in self._made:
            members = (self._scopes.members[number] for number in scopes.ravel().tolist())
            numbers = [self._scopes.number([self._names[c] for c in each]) for each in members]
            self._made[key] = np.array(numbers, int).reshape(scopes.shape)
        return Value(value.shape, self._made[key], value.constant)
