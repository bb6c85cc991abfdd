"""Which log densities are quadratic in their coordinates: those of Gaussian paths, whose evidence is exact.

The degree of every recorded value as a polynomial of the coordinates is bounded from the graph: a sum has the larger of
the degrees of its parts, a product their sum, a quotient by a constant that of its numerator. A value computed in any
other way from a coordinate is no polynomial. The bound may be too large, never too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend import core

from anabranch.divide.density import Density
from anabranch.divide.graph import Node
from anabranch.divide.numpy_backend import primitives
from anabranch.divide.path import Path

__all__ = ["is_quadratic"]

Degree = float
"""The degree of a polynomial; infinite for what is none."""


def is_quadratic(path: Path) -> bool:
    """Whether the log density of a path is a quadratic polynomial of its coordinates, all over the reals.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def line(x, y):
        ...     slope, known = ab.sample("slope", dist.Normal(0.0, 1.0)), ab.sample("known", dist.Bernoulli(0.5))
        ...     ab.observe("y", dist.Normal(slope * x, 0.5 if known else ab.sample("sd", dist.HalfNormal(1.0))), y)
        >>> {path.description: is_quadratic(path) for path in ab.find_paths(line, 2.0, 1.0)}
        {'known = 0': False, 'known = 1': True}
    """
    if path.interpreted or len(path.recordings) > 1 or path.discrete.any() or not path.dim:
        return False
    density = path.recording.once(Density)
    if density.guards:
        return False
    degrees: dict[Node, Degree] = dict.fromkeys(density.coordinates.values(), 1)
    for step in density.evaluator.steps:
        own = [_degree(x, degrees) for x in step.inputs]
        degrees.update(zip(step.outputs, _degrees(step, step.inputs, own, step.outputs), strict=True))
    terms = (*density.prior, *density.jacobian, *density.likelihood)
    return all(_degree(term.value, degrees) <= 2 for term in terms)


def _degree(x: Any, degrees: Mapping[Node, Degree]) -> Degree:
    return degrees[x] if isinstance(x, Node) else 0


def _degrees(step: Any, atoms: Sequence[Any], inputs: Sequence[Degree], outputs: Sequence[Any]) -> Sequence[Degree]:
    """Bounds on the degrees of the results of a step whose inputs have these degrees."""
    if not any(inputs) or (max(inputs) < math.inf and primitives.holds_for_all_reals(step.primitive, atoms)):
        return [0] * len(outputs)
    body = primitives.CALL_BODIES.get(step.primitive.name)
    if body is not None:
        return _of_jaxpr(step.params[body], inputs)
    return [primitives.degree(step.primitive, step.params, inputs)] * len(outputs)


def _of_jaxpr(jaxpr: Any, inputs: Sequence[Degree]) -> list[Degree]:
    body = getattr(jaxpr, "jaxpr", jaxpr)
    known: dict[Any, Degree] = {**dict(zip(body.invars, inputs, strict=True)), **dict.fromkeys(body.constvars, 0)}

    def read(atom: Any) -> Degree:
        return 0 if isinstance(atom, core.Literal) else known[atom]

    for equation in body.eqns:
        atoms = [atom.val if isinstance(atom, core.Literal) else atom for atom in equation.invars]
        found = _degrees(equation, atoms, list(map(read, equation.invars)), equation.outvars)
        known.update(zip(equation.outvars, found, strict=True))
    return [read(atom) for atom in body.outvars]
