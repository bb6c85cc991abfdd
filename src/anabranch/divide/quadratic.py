"""Which log densities are quadratic in their coordinates: those of Gaussian paths, whose evidence is exact.

The degree of every recorded value as a polynomial of the coordinates is bounded from the graph: a sum has the larger of
the degrees of its parts, a product their sum, a quotient by a constant that of its numerator. A value computed in any
other way from a coordinate is no polynomial. The bound may be too large, never too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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
        >>> sorted((path.description, is_quadratic(path)) for path in ab.find_paths(line, 2.0, 1.0))
        [('known = 0', False), ('known = 1', True)]
    """
    if path.interpreted or len(path.recordings) > 1 or path.discrete.any() or not path.dim:
        return False
    density = path.recording.once(Density)
    if density.guards:
        return False
    degrees: dict[Node, Degree] = dict.fromkeys(density.coordinates.values(), 1)
    _follow(density.evaluator.steps, degrees, {})
    terms = (*density.prior, *density.jacobian, *density.likelihood)
    return all(degrees.get(term.value, 0) <= 2 for term in terms if isinstance(term.value, Node))


def _follow(steps: Iterable[Any], degrees: dict[Any, Degree], known: dict[Any, Any]) -> None:
    """Add the degrees of all values that the steps compute; a value that is not there is a constant.

    `known` has values that are copies of constants or of others, and is added to.
    """
    for step in steps:
        inputs = step.inputs if hasattr(step, "inputs") else step.invars
        outputs = step.outputs if hasattr(step, "outputs") else step.outvars
        atoms = [atom.val if isinstance(atom, core.Literal) else atom for atom in inputs]
        own = [degrees.get(atom, 0) if isinstance(atom, Node | core.Var) else 0 for atom in atoms]
        atoms = [known.get(atom, atom) if isinstance(atom, Node | core.Var) else atom for atom in atoms]
        degrees.update(zip(outputs, _degrees(step, atoms, own, len(outputs)), strict=True))
        if primitives.is_copy(step.primitive):
            known[outputs[0]] = atoms[0]


def _degrees(step: Any, atoms: Sequence[Any], inputs: Sequence[Degree], results: int) -> Sequence[Degree]:
    """Bounds on the degrees of the results of a step whose inputs have these degrees."""
    if not any(inputs) or (max(inputs) < math.inf and primitives.holds_for_all_reals(step.primitive, atoms)):
        return [0] * results
    parameter = primitives.CALL_BODIES.get(step.primitive.name)
    if parameter is None:
        return [primitives.degree(step.primitive, step.params, inputs)] * results
    jaxpr = step.params[parameter]
    body = getattr(jaxpr, "jaxpr", jaxpr)
    inside: dict[Any, Degree] = dict(zip(body.invars, inputs, strict=True))
    _follow(body.eqns, inside, dict(zip(body.invars, atoms, strict=True)))  # two parameters may be one argument
    return [0 if isinstance(atom, core.Literal) else inside.get(atom, 0) for atom in body.outvars]
