"""Margins: how far an execution is from the other side of a condition.

The margin of a condition is a number that is positive where the condition holds and negative where it does not:

    a > b, a ≥ b:   a − b                A and B, all:   the least margin of the parts
    a = b, whole:   −|a − b|             A or B, any:    the greatest
                                         not A:          minus that of A

as in the robustness of temporal logic (Fainekos and Pappas, 2009) and the branch distance of search-based testing. A
condition of any other kind has a margin of plus or minus infinity, which says on which side it is, and not how far; so
has the equality of two reals, which has no mass to be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from anabranch.divide.graph import Equation, Graph, Node, with_batch_axis
from anabranch.divide.numpy_backend import RULES, apply
from anabranch.divide.numpy_backend.primitives import CALL_BODIES, COMPARISONS, EQUALITIES, JUNCTIONS, MOVES

__all__ = ["Margins", "signed"]

Margin = np.ndarray | None
"""Over a batch, as the condition itself; None of a value that is no condition."""


class Margins:
    """The margins of the conditions among some steps of a graph, which are in the order of their computation."""

    def __init__(self, graph: Graph, steps: Sequence[Any]) -> None:
        self.steps = [
            step
            for step in steps
            if isinstance(step, Equation) and any(graph.types[node].dtype == bool for node in step.outputs)
        ]

    def at(self, env: Mapping[Node, np.ndarray]) -> dict[Node, Margin]:
        """The margins, given all values on the way, over a batch."""
        found: dict[Node, Margin] = {}
        for step in self.steps:
            values = [env[x] if isinstance(x, Node) else with_batch_axis(x) for x in step.inputs]
            margins = [
                found.get(x) if isinstance(x, Node) and x in found else _sides(v)
                for x, v in zip(step.inputs, values, strict=True)
            ]
            results = [env[node] for node in step.outputs]
            found.update(zip(step.outputs, _margins(step, values, margins, results), strict=True))
        return found


def signed(value: np.ndarray, answer: np.ndarray, margin: Margin) -> tuple[np.ndarray, np.ndarray]:
    """Whether a value over a batch is the answer, and the margin of that, at most zero where it is not."""
    n = len(value)
    holds = (value == answer).reshape(n, -1).all(axis=1)
    if margin is None:
        distance = -np.abs(value.astype(float) - answer.astype(float)) if value.dtype != bool else _sides(value)
    else:
        distance = np.where(answer, margin, -margin)
    assert distance is not None
    least = np.nan_to_num(distance.reshape(n, -1).min(axis=1, initial=np.inf), nan=-np.inf, posinf=0.0, neginf=-np.inf)
    return holds, np.where(holds, 0.0, np.minimum(least, 0.0))


def _margins(
    step: Any, values: Sequence[np.ndarray], margins: Sequence[Margin], results: Sequence[np.ndarray]
) -> list[Margin]:
    """The margins of the results of a step: an equation of a graph, or of a jaxpr inside one."""
    name, params = step.primitive.name, step.params
    with np.errstate(all="ignore"):
        if name in CALL_BODIES:
            return _of_call(params[CALL_BODIES[name]], values, margins)
        if results[0].dtype != bool or len(results) > 1:
            return [_sides(result) for result in results]
        are_real = any(np.issubdtype(value.dtype, np.inexact) for value in values)
        if name in COMPARISONS or (name in EQUALITIES and not are_real):
            difference = RULES["sub"]({}, *(np.asarray(value, float) for value in values))
            return [COMPARISONS[name] * difference if name in COMPARISONS else EQUALITIES[name] * np.abs(difference)]
        if any(margin is None for margin in margins):
            return [_sides(results[0])]
        if name in JUNCTIONS:
            return [RULES[JUNCTIONS[name]](params, *margins)]
        if name in MOVES:
            return list(apply(step.primitive, params, margins))  # type: ignore[arg-type]
        return [_sides(results[0])]


def _sides(value: np.ndarray) -> Margin:
    """Plus or minus infinity, where it is not known how far a condition is from its other side."""
    return np.where(value, np.inf, -np.inf) if value.dtype == bool else None


def _of_call(body: Any, values: Sequence[np.ndarray], margins: Sequence[Margin]) -> list[Margin]:
    """The margins of the results of a jaxpr."""
    jaxpr, constants = getattr(body, "jaxpr", body), getattr(body, "consts", ())
    known = dict(zip(jaxpr.invars, zip(values, margins, strict=True), strict=True))
    for variable, constant in zip(jaxpr.constvars, constants, strict=True):
        known[variable] = _constant(constant)

    def read(atom: Any) -> tuple[np.ndarray, Margin]:
        return _constant(atom.val) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        inner, parts = zip(*map(read, equation.invars), strict=True) if equation.invars else ((), ())
        results = apply(equation.primitive, equation.params, inner)
        outcomes = zip(results, _margins(equation, inner, parts, results), strict=True)
        known.update(zip(equation.outvars, outcomes, strict=True))
    return [read(atom)[1] for atom in jaxpr.outvars]


def _constant(value: Any) -> tuple[np.ndarray, Margin]:
    value = with_batch_axis(value)
    return value, _sides(value)
