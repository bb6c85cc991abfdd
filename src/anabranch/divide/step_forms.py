"""What densities of one form have in common is found out once.

The paths of a wide program differ in the columns of a design matrix, say, and not in what is computed with them. Two
densities have the same form if their steps apply the same primitives, with the same parameters, to the same steps and
to constants of the same types; numbers are compared, arrays are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from anabranch.divide.graph import Node
from anabranch.divide.repetitions import Signature

if TYPE_CHECKING:
    from anabranch.divide.density import Density

__all__ = ["of_form", "step_form"]

T = TypeVar("T")

_MAX_FORMS = 2_000
_found: dict[Hashable, tuple[Any, list[Any]]] = {}
"""What was found out, with the parameters of the steps: a form has their addresses, which must remain theirs."""


def of_form(density: Density, what: Callable[[Density], T]) -> T:
    """A function of a density, whose value must depend on the form of the density alone."""
    key = what, density.form
    found = _found.get(key)
    if found is None:
        if len(_found) >= _MAX_FORMS:
            _found.clear()
        found = _found[key] = what(density), [getattr(step, "params", None) for step in density.evaluator.steps]
    return found[0]


def step_form(density: Density) -> Signature:
    """The same for densities of one form."""
    numbers: dict[Any, int] = {}
    for node in density.coordinates.values():
        numbers[node] = len(numbers)
    parts: list[Hashable] = [tuple(site.unconstrained_shape for site in density.coordinates)]
    for step in density.evaluator.steps:
        inputs = tuple([numbers[x] if isinstance(x, Node) else _constant(x) for x in step.inputs])
        parts.append((step.primitive, id(step.params) if step.params else 0, inputs))
        for node in step.outputs:
            numbers[node] = len(numbers)
    for terms in (density.prior, density.jacobian, density.likelihood, density.guards):
        parts.append(tuple([numbers[term.value] for term in terms if isinstance(term.value, Node)]))
    return Signature(parts)


def _constant(x: Any) -> Hashable:
    """A number with its type; of an array the shape, the type, and whether it is infinite throughout."""
    if not isinstance(x, np.ndarray):
        return (type(x), x) if isinstance(x, float | int | np.generic) else (type(x), np.shape(x), str(x.dtype))
    if x.size == 1:
        return x.shape, x.dtype, x.item()
    infinite = x.size > 0 and x.dtype.kind == "f" and math.isinf(x.item(0)) and bool(np.isinf(x).all())
    return x.shape, x.dtype, infinite
