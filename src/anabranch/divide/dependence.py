"""Which discrete coordinates each element of a computed value depends on.

In `Normal(mu[z], s)` over a hundred points, the density of point i depends on z[i] alone, whether z is one site or a
hundred. It is found from the graph, as the sparsity of a Jacobian is: primitives that work element by element, and
those that only move elements, are followed exactly, loops and calls are entered, and the result of any other primitive
depends on all that its inputs depend on. So a dependence may be stated that is not there, never the other way round,
as long as values are finite: what is multiplied by zero counts as not depended on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core

from anabranch.divide import numpy_backend
from anabranch.divide.numpy_backend import primitives
from anabranch.limits import checkpoint

__all__ = ["Dependence", "Scopes", "Value"]

_MAX_EXPANDED = 2_000_000
"""Products of a matrix multiplication up to which those with a factor of zero are told from the others."""
_MAX_FOLDED = 1_000_000
"""Elements of a constant that is computed."""


class Scopes:
    """Sets of coordinates by number. An array of such numbers says what each element of a value depends on.

    Example:
        >>> scopes = Scopes()
        >>> one, other = scopes.singletons(np.arange(3)), scopes.singletons(np.array([2, 1, 0]))
        >>> [scopes.members[number] for number in scopes.union(one, other)]
        [(0, 2), (1,), (0, 2)]
    """

    def __init__(self) -> None:
        self.members: list[tuple[int, ...]] = [()]
        """The set with each number, in order; that of number zero is empty."""
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._unions: dict[tuple[int, int], int] = {}

    def number(self, members: Iterable[int]) -> int:
        """The number of a set."""
        key = tuple(sorted(set(members)))
        if key not in self._numbers:
            self._numbers[key] = len(self.members)
            self.members.append(key)
        return self._numbers[key]

    def singletons(self, coordinates: np.ndarray) -> np.ndarray:
        """For each coordinate the set that has it alone."""
        flat = [self.number((coordinate,)) for coordinate in coordinates.ravel().tolist()]
        return np.array(flat, int).reshape(coordinates.shape)

    def union(self, *arrays: np.ndarray) -> np.ndarray:
        """The unions of sets, element by element."""
        return reduce(self._union, arrays)

    def over(self, scopes: np.ndarray, axes: Iterable[int]) -> np.ndarray:
        """The unions along axes."""
        axes = tuple(axes)
        if not axes:
            return scopes
        rest = np.moveaxis(scopes, axes, range(len(axes)))
        rest = rest.reshape(-1, *rest.shape[len(axes) :])
        if not rest.any() or not len(rest):
            return np.zeros(rest.shape[1:], int)
        while len(rest) > 1:
            half = len(rest) // 2
            rest = np.concatenate([self._union(rest[:half], rest[half : 2 * half]), rest[2 * half :]])
        return rest[0]

    def _union(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        if one.shape == other.shape == ():  # most values of a program that loops over sites
            return np.array(self._union_of(int(one), int(other)))
        if one.shape != other.shape:
            one, other = np.broadcast_arrays(one, other)
        if not other.any() or np.array_equal(one, other):
            return one
        if not one.any():
            return other
        pairs, inverse = np.unique(one * len(self.members) + other, return_inverse=True)
        first, second = np.divmod(pairs, len(self.members))
        found = [self._union_of(a, b) for a, b in zip(first.tolist(), second.tolist(), strict=True)]
        return np.array(found, int)[inverse].reshape(one.shape)

    def _union_of(self, one: int, other: int) -> int:
        if one == other or not other:
            return one
        if not one:
            return other
        if (one, other) not in self._unions:
            self._unions[one, other] = self.number(self.members[one] + self.members[other])
        return self._unions[one, other]


class Value(NamedTuple):
    """What is known of a value: its shape, the scope of each element (None if all are empty), and the value itself
    where it is a constant."""

    shape: tuple[int, ...]
    scopes: np.ndarray | None = None
    constant: np.ndarray | None = None

    @classmethod
    def of_constant(cls, constant: Any) -> Value:
        if type(constant) is not np.ndarray:  # as most are
            if numpy_backend.is_key(constant):
                return cls(np.shape(constant))
            constant = np.asarray(constant)
        return cls(constant.shape, None, constant)

    @property
    def array(self) -> np.ndarray:
        """The scopes, as an array also where all are empty."""
        return np.zeros(self.shape, int) if self.scopes is None else self.scopes


Rule = Callable[["Dependence", Any, Any, Sequence[Value], Sequence[Value]], list[np.ndarray]]


class Dependence:
    """Computes the scopes of the results of primitives."""

    def __init__(self, scopes: Scopes) -> None:
        self.scopes = scopes

    def of(
        self, primitive: Any, params: Any, inputs: Sequence[Value], shapes: Sequence[tuple[int, ...]]
    ) -> list[Value]:
        """The results of a primitive, which have these shapes."""
        if all(value.scopes is None for value in inputs):
            return self._folded(primitive, params, inputs, shapes)
        body = primitives.CALL_BODIES.get(primitive.name)
        if body is not None:
            return self.run(params[body], inputs)
        if primitive.name == primitives.SCAN:
            return self._scan(params, inputs)
        outputs = [Value(shape) for shape in shapes]
        found = _RULES.get(primitive.name, _everything)(self, primitive, params, inputs, outputs)
        return [Value(out.shape, scopes if scopes.any() else None) for out, scopes in zip(outputs, found, strict=True)]

    def _folded(
        self, primitive: Any, params: Any, inputs: Sequence[Value], shapes: Sequence[tuple[int, ...]]
    ) -> list[Value]:
        """Results that depend on no discrete coordinate; constants where the inputs are, and the results small."""
        is_small = sum(map(np.prod, shapes)) <= _MAX_FOLDED
        if is_small and all(v.constant is not None for v in inputs) and numpy_backend.supports(primitive, params):
            results = numpy_backend.apply(primitive, params, [v.constant[None] for v in inputs])  # type: ignore[index]
            return [Value.of_constant(result[0]) for result in results]
        return [Value(shape) for shape in shapes]

    def run(self, jaxpr: Any, inputs: Sequence[Value]) -> list[Value]:
        """The results of a jaxpr."""
        body = getattr(jaxpr, "jaxpr", jaxpr)
        known: dict[Any, Value] = dict(zip(body.invars, inputs, strict=True))
        known.update(zip(body.constvars, map(Value.of_constant, getattr(jaxpr, "consts", ())), strict=True))

        def read(atom: Any) -> Value:
            return Value.of_constant(atom.val) if isinstance(atom, core.Literal) else known[atom]

        for equation in body.eqns:
            shapes = [variable.aval.shape for variable in equation.outvars]
            results = self.of(equation.primitive, equation.params, list(map(read, equation.invars)), shapes)
            known.update(zip(equation.outvars, results, strict=True))
        return list(map(read, body.outvars))

    def _scan(self, params: Any, inputs: Sequence[Value]) -> list[Value]:
        """Turn by turn."""
        body = primitives.scan_body(params)
        consts, carry, over, positions = primitives.scan_parts(params, inputs)
        count, collected = len(carry), {}
        for i in positions:
            checkpoint()
            turn = [Value(v.shape[1:], v.array[i], None if v.constant is None else v.constant[i]) for v in over]
            outputs = self.run(body, [*consts, *(v._replace(constant=None) for v in carry), *turn])
            carry, collected[i] = outputs[:count], outputs[count:]
        in_order = [collected[i] for i in range(len(positions))]
        stacked = [np.stack([value.array for value in each]) for each in zip(*in_order, strict=True)]
        return [*carry, *(Value(array.shape, array) for array in stacked)]


# Rules ----------------------------------------------------------------------------------------------------------------


def _everything(
    d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> list[np.ndarray]:
    """Every element of the results depends on all that any input depends on."""
    parts = [np.unique(value.scopes) for value in inputs if value.scopes is not None]
    number = int(d.scopes.over(np.concatenate(parts), [0]))
    return [np.full(out.shape, number) for out in outputs]


def _elementwise(
    d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> list[np.ndarray]:
    (out,) = outputs
    dependent = [value.scopes for value in inputs if value.scopes is not None]
    if len(dependent) == 1 and dependent[0].shape == out.shape and primitive.name not in ("mul", "select_n"):
        return dependent
    arrays = [value.array if value.shape == out.shape else np.broadcast_to(value.array, out.shape) for value in inputs]
    if primitive.name == "mul":  # what is multiplied by zero does not matter
        zeros = [np.broadcast_to(v.constant == 0, out.shape) for v in inputs if v.constant is not None]
        return [np.where(zeros[0], 0, d.scopes.union(*arrays)) if zeros else d.scopes.union(*arrays)]
    if primitive.name == "select_n" and inputs[0].constant is not None:
        which = np.broadcast_to(inputs[0].constant.astype(int), out.shape)
        return [np.choose(which, arrays[1:])]
    return [d.scopes.union(*arrays)]


def _moved(
    d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> list[np.ndarray]:
    """The primitive only moves elements, so it moves their scopes."""
    return [a[0] for a in numpy_backend.apply(primitive, params, [value.array[None] for value in inputs])]


def _moved_to(positions: slice) -> Rule:
    """The same for a primitive of which some inputs are indices, where these are constants."""

    def rule(
        d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> list[np.ndarray]:
        indices = inputs[positions]
        if any(index.constant is None for index in indices):
            return _everything(d, primitive, params, inputs, outputs)
        arrays = [value.array for value in inputs]
        arrays[positions] = [index.constant for index in indices]  # type: ignore[misc]
        found = numpy_backend.apply(primitive, params, [array[None] for array in arrays])
        return [np.maximum(a[0], 0) for a in found]  # outside an array, a gather fills in the least whole number

    return rule


_at_constant_indices = _moved_to(slice(1, 2))


def _gather(
    d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> list[np.ndarray]:
    """An element depends on its own index, and on all elements that an index may point to."""
    operand, indices = inputs
    (out,) = outputs
    if indices.constant is not None:
        return _at_constant_indices(d, primitive, params, inputs, outputs)
    dims = params["dimension_numbers"]
    offsets = dims.offset_dims
    by_index = d.scopes.over(indices.array, [len(indices.shape) - 1])
    sizes = iter(by_index.shape)
    of_indices = [1 if axis in offsets else next(sizes) for axis in range(len(out.shape))]
    found = np.broadcast_to(by_index.reshape(of_indices), out.shape)
    if operand.scopes is None:
        return [found]
    # Along axes that operand and indices share, an index points to elements at its own place.
    shared, of_shared = dims.operand_batching_dims, dims.start_indices_batching_dims
    pointed = d.scopes.over(operand.scopes, [axis for axis in range(operand.scopes.ndim) if axis not in shared])
    places = [axis for axis in range(len(out.shape)) if axis not in offsets]
    at = [places[axis] for axis in of_shared]
    pointed = pointed.transpose(np.argsort(at)).reshape([n if i in at else 1 for i, n in enumerate(out.shape)])
    return [d.scopes.union(found, np.broadcast_to(pointed, out.shape))]


def _reduced(
    d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> list[np.ndarray]:
    return [d.scopes.over(inputs[0].array, params["axes"])]


def _along(name: str) -> Rule:
    """Every element depends on all elements along an axis, of all inputs."""

    def rule(
        d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> list[np.ndarray]:
        axis = params[name]
        joint = d.scopes.union(*(value.array for value in inputs))
        return [np.broadcast_to(np.expand_dims(d.scopes.over(joint, [axis]), axis), out.shape) for out in outputs]

    return rule


def _dot_general(
    d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> list[np.ndarray]:
    """Sums of products; a constant factor of zero takes the other one out."""
    (contracted, batch), (left, right) = params["dimension_numbers"], inputs
    sides = []
    for value, sums, batches in ((left, contracted[0], batch[0]), (right, contracted[1], batch[1])):
        kept = [axis for axis in range(len(value.shape)) if axis not in (*sums, *batches)]
        order = [*batches, *kept, *sums]
        scopes = value.array.transpose(order)
        matters = np.ones(value.shape, bool) if value.constant is None else value.constant != 0
        sides.append((scopes, matters.transpose(order), len(batches), len(kept), len(sums)))
    (a, a_matters, b, m, s), (c, c_matters, _, n, _) = sides
    left_axes = (..., *[slice(None)] * m, *[None] * n, *[slice(None)] * s)
    right_axes = (*[slice(None)] * b, *[None] * m, ...)
    if np.prod(outputs[0].shape) * np.prod(a.shape[b + m :]) > _MAX_EXPANDED:
        a, c = (d.scopes.over(x, range(x.ndim - s, x.ndim)) for x in (a, c))
        return [d.scopes.union(a[(..., *[None] * n)], c[(*[slice(None)] * b, *[None] * m, ...)])]
    product = d.scopes.union(a[left_axes], c[right_axes])
    product = np.where(a_matters[left_axes] & c_matters[right_axes], product, 0)
    return [d.scopes.over(product, range(product.ndim - s, product.ndim))]


def _passed(
    d: Dependence, primitive: Any, params: Any, inputs: Sequence[Value], outputs: Sequence[Value]
) -> list[np.ndarray]:
    return [value.array for value in inputs]


_RULES: dict[str, Rule] = {
    **dict.fromkeys(primitives.ELEMENTWISE, _elementwise),
    **dict.fromkeys(primitives.STRUCTURAL, _moved),
    **dict.fromkeys(primitives.REDUCTIONS, _reduced),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along("axis")),
    **dict.fromkeys(("optimization_barrier", "device_put"), _passed),
    "sort": _along("dimension"),
    "dot_general": _dot_general,
    "gather": _gather,
    "dynamic_slice": _moved_to(slice(1, None)),
    "dynamic_update_slice": _moved_to(slice(2, None)),
    "scatter": _moved_to(slice(1, 2)),
}
