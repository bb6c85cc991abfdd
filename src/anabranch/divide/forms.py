"""Functions of distributions of one form, evaluated by NumPy.

Between executions of an interpreted program the parameters of a distribution change, and its form does not: the class,
the distributions and transforms inside, and the shapes and types of the parameters. A function of it (a log density, a
transform to its support, whether its parameters are valid) is therefore traced once for each form, as a function of
the parameters. Only NumPyro's own distributions have a form: one of the user's may depend on more than its parameters.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.extend.core import ClosedJaxpr, Literal
from jax.tree_util import tree_flatten, tree_structure, tree_unflatten
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import AffineTransform, Transform

from anabranch.divide import numpy_backend
from anabranch.divide.distributions import base_support, summed, support_holds
from anabranch.divide.internals import inside, known_array
from anabranch.limits import holding
from anabranch.numpyro_internals import ONE_AT_A_TIME, VALIDATE_ARGS, has_bijection, log_prob_of

__all__ = ["Deferred", "Described", "Form", "Together", "at", "described", "held", "parameters_hold", "structure"]

_MAX_FORMS, _MAX_FOUND, _MAX_NUMBERS = 2_000, 1_000, 4_000_000
_MAX_OF_AN_ARRAY, _MAX_TO_COMPARE = 1_000, 64
"""Numbers in an array that is part of a form and not a parameter, above which there is no form; numbers among the
parameters, above which they are not remembered."""

Type = tuple[tuple[int, ...], np.dtype, bool]
"""Shape, dtype, and whether jax takes the dtype for a suggestion, as it does for numbers of Python."""


class _NoForm(Exception):
    """The distribution has a part that is not known."""


class _Function:
    """Something that distributions of one form compute from values and from their parameters."""

    def __init__(self, jaxpr: ClosedJaxpr) -> None:
        self.jaxpr = jaxpr
        self.trusted = False
        """Whether it gave what a distribution of the form gave by itself."""

    def __call__(self, arguments: Sequence[np.ndarray]) -> np.ndarray:
        """Values and parameters, each with the batch as its first axis; so has the result."""
        [result] = numpy_backend.evaluate_jaxpr(self.jaxpr, arguments)
        return result

    @cached_property
    def depends_on(self) -> list[bool]:
        """For each argument, whether the result depends on it."""
        body = self.jaxpr.jaxpr
        needed = {v for v in body.outvars if not isinstance(v, Literal)}
        for equation in reversed(body.eqns):
            if needed.intersection(equation.outvars):
                needed.update(v for v in equation.invars if not isinstance(v, Literal))
        return [v in needed for v in body.invars]


class Form:
    """Distributions of one class whose parameters have the same shapes and types."""

    def __init__(self, example: Any, types: Sequence[Type]) -> None:
        self.tree, self.types = tree_flatten(example)[1], tuple(types)
        self.discrete = bool(example.support.is_discrete)
        self.shape = tuple(int(size) for size in example.shape())
        self.unconstrained_shape: tuple[int, ...] | None = None
        """Of the coordinates of a site, once that was asked for."""
        self.found_valid: set[bytes] = set()
        """Parameters that were found to be valid: a prior has the same ones in every execution."""
        self._functions: dict[Any, _Function | None] = {}

    def function(self, of: Callable[..., Any], *types: Type) -> _Function | None:
        """A function of a distribution and of values of these types, or None if jax cannot trace it."""
        # NumPyro's own check of values, which the user may have turned off, is part of its log densities.
        with holding(ONE_AT_A_TIME):
            key = of, types, dist.Distribution._validate_args
            try:
                return self._functions[key]
            except KeyError:
                self._functions[key] = made = self._traced(of, types)
                return made

    def _traced(self, of: Callable[..., Any], types: Sequence[Type]) -> _Function | None:
        n = len(types)  # the values come first, and after them the parameters
        given = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in (*types, *self.types)]
        try:
            with inside():
                return _Function(jax.make_jaxpr(lambda *args: of(self.rebuilt(args[n:]), *args[:n]))(*given))
        except Exception:  # it takes Python decisions, say, or has no density: whoever asks finds out by asking it
            return None

    def rebuilt(self, parameters: Sequence[Any]) -> Any:
        """A distribution of this form with these parameters."""
        return _unsettled(tree_unflatten(self.tree, parameters))

    def distrust(self, function: _Function) -> None:
        """Never use a function again: it does not give what the distribution itself gives."""
        self._functions = {key: None if f is function else f for key, f in self._functions.items()}


Deferred = tuple[_Function, list[np.ndarray]]
"""A function, and what it is to be evaluated at."""


def at(function: _Function, arguments: Sequence[np.ndarray]) -> np.ndarray:
    """The value of a function that was deferred."""
    return function([x[None] for x in arguments])[0]


@dataclass(eq=False, slots=True)
class Described:
    """A distribution as its form and its parameters."""

    form: Form
    leaves: list[Any]
    parameters: list[np.ndarray]

    @property
    def content(self) -> bytes | None:
        """The parameters as bytes, if they are few."""
        if sum(x.size for x in self.parameters) > _MAX_TO_COMPARE:
            return None
        return b"".join([x.tobytes() for x in self.parameters])

    def deferred(self, of: Callable[..., Any], *values: Any) -> Deferred | None:
        """A function of the distribution and of values, to be computed; None if it cannot be had in this way."""
        try:
            given = [_as_parameter(value) for value in values]
        except _NoForm:
            return None
        function = self.form.function(of, *[(x.shape, x.dtype, weak) for x, weak in given])
        return None if function is None else (function, [*[x for x, _ in given], *self.parameters])

    def of(self, of: Callable[..., Any], *values: Any) -> np.ndarray | None:
        """What a function of the distribution gives at values; None if it cannot be had in this way."""
        waiting = self.deferred(of, *values)
        return None if waiting is None else at(*waiting)

    def log_density(self, value: Any, scale: Any, check_support: bool) -> Deferred | None:
        """The log density of a statement, to be computed."""
        of = log_density_inside if check_support else log_density
        return self.deferred(of, value, *(() if scale is None else [scale]))


_forms: dict[Any, Form | None] = {}


def described(distribution: Any) -> Described | None:
    """The form and the parameters of a distribution; None if it has no form, or a parameter is not known."""
    leaves: list[Any] = []
    try:
        key = _key(distribution, leaves)
        known = [_as_parameter(leaf) for leaf in leaves]
    except _NoForm:
        return None
    parameters, types = [value for value, _ in known], [(value.shape, value.dtype, weak) for value, weak in known]
    whole = key, tuple(types)
    try:
        form = _forms[whole]
    except KeyError:
        form = _new_form(distribution, leaves, types)
        if len(_forms) >= _MAX_FORMS:
            _forms.clear()
        _forms[whole] = form
    return None if form is None else Described(form, leaves, parameters)


def structure(distribution: Any) -> tuple[Hashable, list[Any]] | None:
    """What a distribution is apart from its parameters, as something to compare, and the parameters; None if it has a
    part that is not known."""
    leaves: list[Any] = []
    try:
        # What NumPyro computed of the parameters when it was first asked for is among the attributes.
        return (_key(distribution, leaves), tuple(vars(distribution)), dist.Distribution._validate_args), leaves
    except _NoForm:
        return None


def _new_form(distribution: Any, leaves: list[Any], types: Sequence[Type]) -> Form | None:
    own = tree_flatten(distribution)[0]
    if len(own) != len(leaves) or any(x is not y for x, y in zip(own, leaves, strict=True)):
        return None
    try:
        form = Form(distribution, types)
        return form if _same_transform(distribution.support, form.rebuilt(leaves).support) else None
    except Exception:  # without a support, for one: whoever asks the distribution itself is told
        return None


def _same_transform(one: Any, other: Any) -> bool:
    """Whether two supports have the same kind of bijection: NumPyro knows some supports by identity."""
    if type(one) is not type(other):
        return False
    if one.is_discrete or not has_bijection(base_support(one)):
        return True
    return bool(tree_structure(biject_to(one)) == tree_structure(biject_to(other)))  # type: ignore[operator]


def _unsettled(distribution: Any) -> Any:
    """A distribution out of its parts, which NumPyro's setting for all of them tells again whether to check values."""
    state = vars(distribution)
    if state.get(VALIDATE_ARGS, False) is None:
        del state[VALIDATE_ARGS]
    for part in state.values():
        if isinstance(part, dist.Distribution):
            _unsettled(part)
    return distribution


def _as_parameter(leaf: Any) -> tuple[np.ndarray, bool]:
    kind = type(leaf)
    if kind is np.ndarray:
        if leaf.dtype.kind not in "biufc":
            raise _NoForm
        return leaf, False
    if kind is float or kind is int:
        try:
            return np.asarray(leaf, np.float64 if kind is float else np.int64), True
        except OverflowError:
            raise _NoForm from None
    if kind is bool or isinstance(leaf, np.generic):
        return _as_parameter(np.asarray(leaf))
    known = known_array(leaf)
    if known is None:
        raise _NoForm
    return known


@lru_cache(maxsize=1024)
def _fields(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The parameters and the other attributes of a class, by name, in the order in which jax has them."""
    if not cls.__module__.startswith("numpyro."):
        raise _NoForm
    if not issubclass(cls, dist.Distribution) or cls.tree_flatten is not dist.Distribution.tree_flatten:
        return None
    return cls.gather_pytree_data_fields(), cls.gather_pytree_aux_fields()


@lru_cache(maxsize=1024)
def _has_parts(cls: type) -> bool:
    return issubclass(cls, (dist.Distribution, constraints.Constraint, Transform))


def _key(value: Any, leaves: list[Any]) -> Any:
    """All that two values of one form have in common, as something to compare; adds the parameters to the leaves."""
    if value is None:
        return None
    cls: Any = type(value)
    if cls is list or cls is tuple:
        return cls, *[_key(part, leaves) for part in value]
    if not _has_parts(cls):
        leaves.append(value)
        return "parameter"
    fields = _fields(cls)
    if fields is None:
        if isinstance(value, AffineTransform) and not isinstance(value.scale, jax.Array) and np.any(value.scale < 0):
            raise _NoForm  # NumPyro looks at the sign of a constant, and takes it for positive where it cannot
        children, fixed = value.tree_flatten()
        return cls, _frozen(fixed), *[_key(child, leaves) for child in children]
    state = vars(value)
    data, other = fields
    out = [cls, *[_frozen(state.get(name)) for name in other]]
    for name in data:
        part = state.get(name)
        kind = type(part)
        if kind is float or kind is np.ndarray:
            leaves.append(part)
            out.append("parameter")
        else:
            out.append(_key(part, leaves))
    return tuple(out)


def _frozen(value: Any) -> Any:
    """What is not a parameter, as something to compare."""
    kind = type(value)
    if kind is tuple and (not value or all(type(part) is int for part in value)):
        return value
    if value is None or kind in (bool, int, float, str, type):
        return kind, value
    if kind in (tuple, list):
        return kind, *[_frozen(part) for part in value]
    if isinstance(value, dict):
        return kind, *[(_frozen(name), _frozen(part)) for name, part in value.items()]
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in "biufc" and value.size <= _MAX_OF_AN_ARRAY:
        return kind, value.shape, value.dtype, value.tobytes()
    raise _NoForm


def holds(distribution: Any, value: Any) -> Any:
    """Whether a value is inside the support, elementwise."""
    return jnp.asarray(support_holds(distribution, value))


def log_density(distribution: Any, value: Any, scale: Any = None) -> Any:
    """The log density at a value, summed and scaled."""
    terms = log_prob_of(distribution, value)
    return jnp.asarray(summed(terms if scale is None else scale * terms))


def log_density_inside(distribution: Any, value: Any, scale: Any = None) -> Any:
    """The log density at a value, minus infinity outside the support."""
    inside_support = jnp.all(jnp.asarray(support_holds(distribution, value)))
    return jnp.where(inside_support, log_density(distribution, value, scale), -jnp.inf)


def valid(distribution: Any) -> Any:
    """Whether the parameters are what NumPyro requires, those of the distributions inside included."""
    out = jnp.asarray(True)
    if vars(distribution).get(VALIDATE_ARGS) is False:
        return out
    for name, value in distribution.get_args().items():
        constraint = distribution.arg_constraints[name]
        if not constraints.is_dependent(constraint):
            out = out & jnp.all(constraint(value))
    low, high = (vars(distribution).get(name) for name in ("low", "high"))
    if low is not None and high is not None:
        out = out & jnp.all(jnp.asarray(low) < jnp.asarray(high) + int(distribution.support.is_discrete))
    for part in vars(distribution).values():
        if isinstance(part, dist.Distribution):
            out = out & valid(part)
    return out


def parameters_hold(known: Described) -> bool:
    """Whether the parameters are known to be valid; if not, NumPyro is to be asked."""
    content, found = known.content, known.form.found_valid
    if content is not None and content in found:
        return True
    result = known.of(valid)
    holds = result is not None and bool(result)
    if holds and content is not None:
        if len(found) >= _MAX_FOUND:
            found.clear()
        found.add(content)
    return holds


def held(known: Described | None, value: Any) -> tuple[np.ndarray, bool] | None:
    """Which parts of a value are inside the support, and whether that depends on a site; None if that is not known."""
    waiting = None if known is None else known.deferred(holds, value)
    if known is None or waiting is None:
        return None
    depends = zip((value, *known.leaves), waiting[0].depends_on, strict=True)
    is_random = any(needed and bool(getattr(leaf, "sites", 0)) for leaf, needed in depends)
    return at(*waiting), is_random


class Together:
    """What was deferred for the statements of many executions: computed at once for those that share a form.

    Each is put in its place in an array that it is given, at the latest by `finish`.
    """

    def __init__(self) -> None:
        self._waiting: dict[_Function, tuple[list[tuple[np.ndarray, Any]], list[list[np.ndarray]]]] = {}
        self._numbers = 0

    def add(self, slots: np.ndarray, slot: int | slice, function: _Function, arguments: list[np.ndarray]) -> None:
        """Later: `slots[slot] = function(arguments)`, whose numbers are put in a row if they are several."""
        places, rows = self._waiting.setdefault(function, ([], []))
        places.append((slots, slot))
        rows.append(arguments)
        self._numbers += sum(x.size for x in arguments)
        if self._numbers > _MAX_NUMBERS:
            self.finish()

    def finish(self) -> None:
        """Compute what is waiting."""
        waiting, self._waiting, self._numbers = self._waiting, {}, 0
        for function, (places, rows) in waiting.items():
            columns = [np.array(column) if len(column) > 1 else column[0][None] for column in zip(*rows, strict=True)]
            results = function(columns)
            if len(results) == 1:
                results = np.repeat(results, len(places), axis=0)
            if results.ndim > 2:
                results = results.reshape(len(places), -1)
            for (slots, slot), result in zip(places, results, strict=True):
                slots[slot] = result
