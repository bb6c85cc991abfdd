"""Which log densities are quadratic in their coordinates, or in some of them given the others.

The evidence of a Gaussian path is exact, and coordinates that are Gaussian given the others can be integrated out.

The degree of every recorded value as a polynomial of the coordinates is bounded from the graph: a sum has the larger of
the degrees of its parts, a product their sum, a quotient by a constant that of its numerator. A value computed in any
other way from a coordinate is no polynomial. The bound may be too large, never too small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jax.extend import core
from numpyro.distributions import constraints

from anabranch.divide.density import Density
from anabranch.divide.distributions import base_support
from anabranch.divide.graph import Node
from anabranch.divide.numpy_backend import primitives
from anabranch.divide.path import Path
from anabranch.divide.recording import Site
from anabranch.divide.step_forms import of_form

__all__ = ["is_quadratic", "quadratic_columns"]

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
    density = _of_reals(path)
    return density is not None and of_form(density, _is_quadratic)


def quadratic_columns(path: Path, max_sites: int = 60) -> np.ndarray:
    """Coordinates in which, together, the log density of a path is quadratic, whatever values the others have.

    Sites are taken whole. Where not all that qualify do so together, the larger ones come first. A path with more than
    `max_sites` sites, each of which has to be looked at, has none unless all qualify together.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def line(x, y):
        ...     slope, sd = ab.sample("slope", dist.Normal(0.0, 1.0)), ab.sample("sd", dist.HalfNormal(1.0))
        ...     ab.observe("y", dist.Normal(slope * x, sd), y)
        >>> quadratic_columns(ab.find_paths(line, 2.0, 1.0).paths[0])
        array([0])
    """
    density = _of_reals(path)
    sites = [] if density is None else [site for site in density.coordinates if _is_real(site)]
    if density is None or not sites:
        return np.zeros(0, int)
    if not _is_quadratic_in(density, sites):
        sites = _together(density, sites) if len(sites) <= max_sites else []
    columns = (np.arange(path.dim)[path.recording.columns[site.name]] for site in sites)
    return np.sort(np.concatenate([np.zeros(0, int), *columns]))


def _is_real(site: Site) -> bool:
    return base_support(site.support) is constraints.real


def _together(density: Density, sites: Sequence[Site]) -> list[Site]:
    """Sites in which the log density is quadratic, the larger ones first."""
    able = [site for site in sites if _is_quadratic_in(density, [site])]
    if _is_quadratic_in(density, able):
        return able
    chosen: list[Site] = []
    for site in sorted(able, key=lambda site: -math.prod(site.shape)):
        if _is_quadratic_in(density, [*chosen, site]):
            chosen.append(site)
    return chosen


def _of_reals(path: Path) -> Density | None:
    """The density of a path without discrete coordinates and guards; None for others."""
    if path.interpreted or path.sequences > 1 or path.discrete.any() or not path.dim:
        return None
    density = path.recording.once(Density)
    return None if density.guards else density


def _is_quadratic(density: Density) -> bool:
    return _is_quadratic_in(density, density.coordinates)


def _is_quadratic_in(density: Density, sites: Iterable[Site]) -> bool:
    degrees: dict[Node, Degree] = {density.coordinates[site]: 1 for site in sites}
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
