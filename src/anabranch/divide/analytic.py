"""In which positive coordinates, and in which between zero and one, a log density is an analytic function.

A function that is analytic in some coordinates and has a certain form in a part of their range has it everywhere. So
where a log density is analytic, values at a few points tell whether a coordinate is gamma or beta given the others
(`conquer.conjugate`). A comparison, a clip or a choice that depends on the coordinate could make the form another one
elsewhere.

Of every recorded value it is followed through the graph whether it depends on the coordinates, and its sign: a test
whether a positive number is above zero has one answer, and log and division are analytic where their arguments are
positive. What is found is certain or too cautious.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from jax.extend import core
from numpyro.distributions import constraints

from anabranch.divide.density import Density
from anabranch.divide.distributions import base_support, unwrapped
from anabranch.divide.graph import Node
from anabranch.divide.internals import as_input
from anabranch.divide.numpy_backend import primitives
from anabranch.divide.path import Path
from anabranch.divide.recording import Site

__all__ = ["AnalyticColumns", "analytic_columns"]

_TINY, _ALMOST_ONE = 1e-300, 1 - 1e-15
"""Bounds to which numbers between zero and one are clipped for the sake of their logarithms: that changes none."""
_SMOOTH = frozenset({
    "add", "add_any", "convert_element_type", "copy", "cos", "cosh", "cumsum", "dot_general", "erf", "erfc", "exp",
    "exp2", "expm1", "logistic", "mul", "neg", "reduce_sum", "reduce_prod", "sin", "sinh", "square", "sub", "tanh",
    *primitives.STRUCTURAL,
})  # fmt: skip
"""Primitives that are analytic everywhere."""
_SMOOTH_IF_POSITIVE = frozenset({"digamma", "lgamma", "log", "pow", "rsqrt", "sqrt", "cbrt"})
"""Primitives that are where their first argument is positive."""
_CHOOSING = {"dynamic_slice": 0, "gather": 0}
"""Primitives that choose elements of the input with this number, by the others."""
_KNOWN = {dist.Beta: ("concentration1", "concentration0"), dist.InverseGamma: ("concentration", "rate")}
"""Distributions with analytic log densities, whatever the graph says, and their parameters."""


class Sign(IntEnum):
    """What is known of all elements of a value: they are in (0, ∞), in (0, 1), in (−1, 0), or nothing."""

    ANY, POSITIVE, UNIT, NEGATED = range(4)


class Dependence(IntEnum):
    """On the coordinates: none, an analytic one, or any."""

    NONE, ANALYTIC, OTHER = range(3)


class Kind(NamedTuple):
    """Of a value: how it depends on the coordinates, and its sign."""

    dependence: Dependence = Dependence.NONE
    sign: Sign = Sign.ANY


class AnalyticColumns(NamedTuple):
    """Coordinates of a path in which its log density is analytic, and which of them are of numbers in (0, 1)."""

    columns: np.ndarray
    is_unit: np.ndarray


def analytic_columns(path: Path, max_sites: int = 60) -> AnalyticColumns:
    """Coordinates of positive numbers, and of those between zero and one, in which together a log density is analytic.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def wait(y):
        ...     rate, most = ab.sample("rate", dist.Gamma(2.0, 1.0)), ab.sample("most", dist.Gamma(2.0, 1.0))
        ...     ab.observe("y", dist.Exponential(rate), y)
        ...     ab.observe("longest", dist.Uniform(0.0, most), y)
        >>> analytic_columns(ab.find_paths(wait, 0.5).paths[0]).columns
        array([0])
    """
    if path.interpreted or len(path.recordings) > 1 or not path.has_gradient:
        return AnalyticColumns(np.zeros(0, int), np.zeros(0, bool))
    signs = {site: sign for site in path.recording.free if (sign := _sign_of_support(site)) is not Sign.ANY}
    sites = list(signs)
    if sites:
        density = path.recording.once(Density)
        if not _is_analytic(density, sites):
            few = sites if len(sites) <= max_sites else []
            sites = [site for site in few if _is_analytic(density, [site])]
            sites = sites if _is_analytic(density, sites) else []
    columns = [np.arange(path.dim)[path.recording.columns[site.name]] for site in sites]
    is_unit = [np.full(len(own), signs[site] is Sign.UNIT) for site, own in zip(sites, columns, strict=True)]
    return AnalyticColumns(np.concatenate([np.zeros(0, int), *columns]), np.concatenate([np.zeros(0, bool), *is_unit]))


def _sign_of_support(site: Site) -> Sign:
    if site.discrete:
        return Sign.ANY
    support = base_support(site.support)
    if support is constraints.positive:
        return Sign.POSITIVE
    if support is constraints.unit_interval:
        return Sign.UNIT
    ends = (getattr(support, "lower_bound", None), getattr(support, "upper_bound", None))
    if not all(isinstance(end, float | int | np.ndarray | np.generic) for end in ends):
        return Sign.ANY
    low, high = map(np.asarray, ends)
    return Sign.UNIT if (low == 0).all() and (high == 1).all() else Sign.ANY


def _is_analytic(density: Density, sites: Sequence[Site]) -> bool:
    """Whether the log density is an analytic function of the coordinates of these sites, and the guards are none."""
    kinds: dict[Any, Kind] = {}
    for site in density.coordinates:
        if (sign := _sign_of_support(site)) is not Sign.ANY:
            depends = Dependence.ANALYTIC if site in sites else Dependence.NONE
            kinds[site.value.node] = Kind(depends, sign)
    given = set(kinds)
    kinds |= {density.coordinates[site]: Kind(Dependence.ANALYTIC) for site in sites}
    _follow(density.evaluator.steps, kinds, {}, given)
    names = {site.name: site for site in sites}
    for term in (*density.prior, *density.likelihood):
        found = kinds.get(term.value, Kind()) if isinstance(term.value, Node) else Kind()
        is_known = term in density.prior and term.name in names and _is_known(names[term.name], kinds)
        if found.dependence is Dependence.OTHER and not is_known:
            return False
    guards = (kinds.get(guard.value, Kind()) for guard in density.guards if isinstance(guard.value, Node))
    return all(guard.dependence is Dependence.NONE for guard in guards)


def _is_known(site: Site, kinds: dict[Any, Kind]) -> bool:
    """Whether a site has a distribution whose log density is analytic although NumPyro computes it by way of choices,
    with parameters that do not depend on the coordinates."""
    distribution = unwrapped(site.distribution)
    names = next((names for kind, names in _KNOWN.items() if type(distribution) is kind), None)
    if names is None:
        return False
    parameters = [as_input(getattr(distribution, name)) for name in names]
    return all(kinds.get(each, Kind()).dependence is Dependence.NONE for each in parameters if isinstance(each, Node))


def _follow(steps: Iterable[Any], kinds: dict[Any, Kind], known: dict[Any, Any], given: set[Any] | None = None) -> None:
    """Add the kinds of all values that the steps compute, but of those given; `known` has values that are constants or
    copies of others, and is added to."""
    for step in steps:
        inputs = step.inputs if hasattr(step, "inputs") else step.invars
        outputs = step.outputs if hasattr(step, "outputs") else step.outvars
        atoms = [atom.val if isinstance(atom, core.Literal) else atom for atom in inputs]
        own = [_kind(atom, kinds, known) for atom in atoms]
        atoms = [known.get(atom, atom) if _is_name(atom) else atom for atom in atoms]
        for output, kind in zip(outputs, _kinds(step, atoms, own, len(outputs)), strict=True):
            if not given or output not in given:
                kinds[output] = kind
        if primitives.is_copy(step.primitive):
            known[outputs[0]] = atoms[0]


def _is_name(atom: Any) -> bool:
    return isinstance(atom, Node | core.Var)


def _of_constant(atom: Any) -> Kind:
    """The kind of a constant; of a value that nothing is known of, if it is none."""
    value = np.asarray(0.0 if _is_name(atom) else atom)
    if not value.size or not np.issubdtype(value.dtype, np.number) or not (value > 0).all():
        return Kind()
    return Kind(Dependence.NONE, Sign.UNIT if (value < 1).all() else Sign.POSITIVE)


def _kinds(step: Any, atoms: Sequence[Any], inputs: Sequence[Kind], results: int) -> Sequence[Kind]:
    """The kinds of the results of a step."""
    parameter = primitives.CALL_BODIES.get(step.primitive.name)
    if parameter is None:
        name, dependence = step.primitive.name, max((each.dependence for each in inputs), default=Dependence.NONE)
        if dependence is Dependence.ANALYTIC:
            dependence = _dependence(name, step.params, atoms, inputs)
        return [Kind(dependence, _sign(name, step.params, atoms, [each.sign for each in inputs]))] * results
    jaxpr = step.params[parameter]
    body, constants = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
    inside: dict[Any, Kind] = dict(zip(body.invars, inputs, strict=True))
    known = dict(zip(body.constvars, constants, strict=False)) | dict(zip(body.invars, atoms, strict=True))
    _follow(body.eqns, inside, known)
    ends = [atom.val if isinstance(atom, core.Literal) else atom for atom in body.outvars]
    return [_kind(end, inside, known) for end in ends]


def _kind(atom: Any, kinds: dict[Any, Kind], known: dict[Any, Any]) -> Kind:
    """The kind of an input: the one that was found, or that of a constant."""
    if not _is_name(atom):
        return _of_constant(atom)
    return kinds[atom] if atom in kinds else _of_constant(known.get(atom, atom))


def _dependence(name: str, params: Any, atoms: Sequence[Any], inputs: Sequence[Kind]) -> Dependence:
    """How the result of a primitive depends on coordinates, on which some inputs depend, all analytically."""
    depends = [each.dependence is not Dependence.NONE for each in inputs]
    first, is_analytic = inputs[0].sign, False
    if name in primitives.COMPARISONS or name in primitives.EQUALITIES:
        return Dependence.NONE if _is_decided(name, atoms, inputs) else Dependence.OTHER
    if name in ("max", "min"):
        is_analytic = _is_void(name, atoms, inputs)
    elif name in _SMOOTH:
        is_analytic = name != "convert_element_type" or np.issubdtype(params["new_dtype"], np.float64)
    elif name in _SMOOTH_IF_POSITIVE:
        is_analytic = first in (Sign.POSITIVE, Sign.UNIT)
    elif name == "log1p":
        is_analytic = first is not Sign.ANY
    elif name == "integer_pow":
        is_analytic = params["y"] >= 0 or first is not Sign.ANY
    elif name == "div":
        is_analytic = not depends[1] or inputs[1].sign is not Sign.ANY
    elif name == "select_n":
        is_analytic = not depends[0]
    elif name in _CHOOSING:
        is_analytic = not any(depends[1:])
    return Dependence.ANALYTIC if is_analytic else Dependence.OTHER


def _is_decided(name: str, atoms: Sequence[Any], inputs: Sequence[Kind]) -> bool:
    """Whether a comparison has the same answer for all values of the coordinates."""
    one, other = atoms
    if one is other:
        return name in primitives.EQUALITIES
    for value, kind in ((other, inputs[0]), (one, inputs[1])):
        if not _is_name(value) and _is_beyond(np.asarray(value), kind.sign):
            return True
    return False


def _is_beyond(values: np.ndarray, sign: Sign) -> bool:
    """Whether numbers of this sign are all above, or all below, each of these values."""
    low = {Sign.ANY: -np.inf, Sign.NEGATED: -1.0}.get(sign, 0.0)
    high = {Sign.UNIT: 1.0, Sign.NEGATED: 0.0}.get(sign, np.inf)
    return bool((values <= low).all() or (values >= high).all())


def _is_void(name: str, atoms: Sequence[Any], inputs: Sequence[Kind]) -> bool:
    """Whether a bound is none for numbers of this sign."""
    for value, kind in ((atoms[1], inputs[0]), (atoms[0], inputs[1])):
        if kind.dependence is Dependence.NONE or _is_name(value):
            continue
        bound, sign = np.asarray(value), kind.sign
        if name == "max" and sign in (Sign.POSITIVE, Sign.UNIT):
            return bool((bound <= _TINY).all())
        return _is_beyond(bound, sign) or (name == "min" and sign is Sign.UNIT and bool((bound >= _ALMOST_ONE).all()))
    return False


def _sign(name: str, params: Any, atoms: Sequence[Any], signs: Sequence[Sign]) -> Sign:
    """The sign of the result of a primitive."""
    if name in ("exp", "exp2", "logistic"):
        return Sign.UNIT if name == "logistic" else Sign.POSITIVE
    if not signs:
        return Sign.ANY
    first, are_positive = signs[0], all(sign in (Sign.POSITIVE, Sign.UNIT) for sign in signs)
    if name in primitives.STRUCTURAL or name in ("convert_element_type", "copy", "mul", "max", "min"):
        return _bounded(name, atoms, signs) if name in ("max", "min") else _joined(signs)
    if name == "select_n":
        return _joined(signs[1:])
    if name in (*_CHOOSING, "sqrt", "square"):
        return first if first is not Sign.NEGATED else Sign.ANY
    if name == "neg":
        return {Sign.UNIT: Sign.NEGATED, Sign.NEGATED: Sign.UNIT}.get(first, Sign.ANY)
    if name in ("add", "sub") and _is_one_less(name, atoms, signs):
        return Sign.UNIT
    if name in ("add", "add_any", "cumsum", "div", "dot_general", "integer_pow", "reduce_sum", "rsqrt", "cbrt"):
        return Sign.POSITIVE if are_positive else Sign.ANY
    if name == "pow":
        return Sign.POSITIVE if first in (Sign.POSITIVE, Sign.UNIT) else Sign.ANY
    return Sign.ANY


def _joined(signs: Sequence[Sign]) -> Sign:
    """The sign of numbers each of which has one of these; of their products, too, but for negative ones."""
    if len(set(signs)) == 1:
        return signs[0] if len(signs) == 1 or signs[0] is not Sign.NEGATED else Sign.ANY
    return Sign.POSITIVE if set(signs) <= {Sign.POSITIVE, Sign.UNIT} else Sign.ANY


def _bounded(name: str, atoms: Sequence[Any], signs: Sequence[Sign]) -> Sign:
    """The sign of the larger or the smaller of two numbers."""
    for value, sign in ((atoms[1], signs[0]), (atoms[0], signs[1])):
        bounds = np.asarray(2.0 if _is_name(value) else value)
        if sign is Sign.UNIT and ((bounds > 0) & (bounds <= 1)).all():
            return Sign.UNIT
    if name == "max":
        return Sign.POSITIVE if {Sign.POSITIVE, Sign.UNIT} & set(signs) else Sign.ANY
    return Sign.POSITIVE if set(signs) <= {Sign.POSITIVE, Sign.UNIT} else Sign.ANY


def _is_one_less(name: str, atoms: Sequence[Any], signs: Sequence[Sign]) -> bool:
    """Whether it is one minus a number between zero and one."""
    pairs = [(atoms[0], signs[1])] + [(atoms[1], signs[0])] * (name == "add")
    wanted = Sign.UNIT if name == "sub" else Sign.NEGATED
    return any(not _is_name(value) and (np.asarray(value) == 1).all() and sign is wanted for value, sign in pairs)
