"""NumPyro distributions: log densities, supports, the parameters that they may have."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints

from anabranch import errors
from anabranch.divide.graph import Node
from anabranch.divide.internals import PathTracer, as_input, is_key
from anabranch.errors import Place
from anabranch.numpyro_internals import BATCH_SHAPE, VALIDATE_ARGS, log_prob_of, mask_of

__all__ = [
    "base_support", "check_mask", "check_parameters", "coordinates", "elementwise_log_prob", "is_finite",
    "is_taken_out", "log_jacobian", "offender", "placed", "private_copy", "show_value", "summed", "support_holds",
    "support_text", "unwrapped", "why_not_drawn",
]  # fmt: skip

_WRAPPERS = dist.MaskedDistribution | dist.ExpandedDistribution | dist.Independent
"""What changes the shape or the mask of a distribution, and not what its numbers are."""


def check_mask(at: Place, value: Any, what: str) -> None:
    """Refuse a masked array of NumPy with masked entries."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise errors.MaskedData(
            f"{what} are a masked array of NumPy, whose mask JAX does not see",
            at=at,
            remedy="Observe y.compressed(), or leave the masked entries out of the density with "
            "distribution.mask(~y.mask) and y.data, or make them latent with numpyro.sample(..., obs=y.data, "
            "obs_mask=~y.mask)",
        )


def private_copy(distribution: Any) -> Any:
    """A copy, down to the distributions inside, so that what NumPyro caches in it does not outlive the run."""
    copied = object.__new__(type(distribution))
    state = vars(copied)
    state.update(vars(distribution))
    state[BATCH_SHAPE] = tuple(map(int, copied.batch_shape))  # a size may be a random number, decided
    for name, value in state.items():
        kind = type(value)
        if kind is float or kind is tuple:
            continue
        if isinstance(value, dist.Distribution):
            state[name] = private_copy(value)
        elif kind is np.ndarray:
            state[name] = value.copy()
        elif isinstance(value, PathTracer):
            value.check_run()
        elif type(value) is list:
            if value and all(isinstance(each, dist.Distribution) for each in value):
                setattr(copied, name, [private_copy(each) for each in value])
            elif name in copied.arg_constraints:
                setattr(copied, name, jnp.asarray(value))
    return copied


def check_parameters(distribution: Any, at: Place, validate: bool = True) -> None:
    """Refuse parameters outside their domain, as far as they are constants: NumPyro's own check skips arrays of jax."""
    held = vars(distribution)
    validate = validate and held.get(VALIDATE_ARGS) is not False
    for parameter, constraint in distribution.arg_constraints.items():
        value = _constant(held.get(parameter))
        if value is None:
            continue
        check_mask(at, value, f"the values of {parameter}")
        if not validate or constraints.is_dependent(constraint):
            continue
        key = id(constraint), value.dtype, value.shape, value.tobytes() if value.size <= _MAX_TO_COMPARE else None
        if key in _found_valid:
            continue
        valid = np.asarray(as_input(constraint(value)))
        if valid.all() and key[-1] is not None:
            if len(_found_valid) >= _MAX_FOUND:
                _found_valid.clear()
            _found_valid[key] = constraint
        if not valid.all():
            shown = offender(value, valid) if valid.shape == value.shape else show_value(value)
            _refuse(distribution, f"{parameter} = {shown} is not {_domain(constraint)}", at)
    low, high = _constant(held.get("low")), _constant(held.get("high"))
    if validate and low is not None and high is not None:
        ordered = low <= high if distribution.support.is_discrete else low < high
        if not np.all(ordered):
            _refuse(distribution, f"low = {show_value(low)} is not below high = {show_value(high)}", at)
    for part in held.values():
        for each in part if isinstance(part, list | tuple) else (part,):
            if isinstance(each, dist.Distribution):
                check_parameters(each, at, validate)


_found_valid: dict[Any, Any] = {}
"""Parameters that were found to be valid, with the constraint, which keeps its number while it is here."""
_MAX_FOUND, _MAX_TO_COMPARE = 10_000, 64
"""How many are remembered, and the numbers in a parameter above which it is not."""


def _constant(value: Any) -> np.ndarray | None:
    """A parameter as an array; None where there is none, or where it depends on a random value."""
    if isinstance(value, PathTracer):
        return value.known if value.known is not None and not value.sites else None
    if value is None or is_key(value):
        return None
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    return array if np.issubdtype(array.dtype, np.number) or array.dtype == bool else None


def _refuse(distribution: Any, what: str, at: Place) -> None:
    raise errors.InvalidParameter(
        f"{type(distribution).__name__} has an invalid parameter: {what}",
        at=at,
        remedy="Correct the parameter; where it is computed, look at what it is computed from",
    )


_DOMAINS = {
    "simplex": "non-negative with a sum of one",
    "real": "a finite number",
    "real_vector": "finite",
    "unit_interval": "between 0 and 1",
    "positive": "positive",
    "nonnegative": "non-negative",
}
_RELATIONS = {
    "greater_than": "greater than", "greater_than_eq": "at least", "less_than": "less than", "less_than_eq": "at most",
    "interval": "between", "integer_interval": "a whole number between",
    "integer_greater_than": "a whole number of at least", "integer_nonnegative": "a whole number of at least",
    "integer_positive": "a whole number of at least",
}  # fmt: skip


def _domain(constraint: Any) -> str:
    """What a parameter must be, in words: `positive`, `between 0 and 1`, `at least 1.0`."""
    known = [words for name, words in _DOMAINS.items() if constraint is getattr(constraints, name)]
    if known:
        return known[0]
    name, _, bounds = support_text(constraint).partition("(")
    if name in _RELATIONS:
        return f"{_RELATIONS[name]} {bounds.rstrip(')').replace(', ', ' and ')}"
    return support_text(constraint).replace("_", " ")


def offender(value: Any, held: np.ndarray) -> str:
    """The first part of a value that is not held, in words."""
    value = np.asarray(as_input(value))
    if held.shape == value.shape and held.ndim:
        index = tuple(int(i) for i in np.argwhere(~held)[0])
        return f"{value[index]!r} at index {index if len(index) > 1 else index[0]}"
    return repr(value.item()) if value.ndim == 0 else f"of shape {value.shape}"


def support_holds(distribution: Any, value: Any, masked: bool = True) -> Any:
    """Whether a value is inside the support, elementwise; what is masked out is not asked, unless `masked` is False."""
    if not isinstance(distribution, _WRAPPERS):
        return True if distribution.support is None else distribution.support(value)
    holds = support_holds(distribution.base_dist, value, masked)
    if masked and isinstance(distribution, dist.MaskedDistribution):
        return jnp.logical_or(holds, jnp.logical_not(mask_of(distribution)))
    if isinstance(distribution, dist.Independent):
        return jnp.all(holds, axis=tuple(range(-distribution.reinterpreted_batch_ndims, 0)))
    return holds


def elementwise_log_prob(
    distribution: Any, value: Any, scale: Any, check_support: bool, at: Any, masked: bool = True
) -> Any:
    """log f of each independent part of the value; where the value is known to be outside the support, a scalar.

    NumPyro's densities assume a value inside the support and return any number outside it; `check_support` makes that
    minus infinity, as it must be for discrete values and for observations whose support is random. A mask takes an
    observation out of the check, too; of a latent site (`masked` is False) only the density.
    """
    value = jnp.asarray(value)
    holds = support_holds(distribution, value, masked) if check_support else True
    known = as_input(holds)
    if not isinstance(known, Node) and not np.all(known):
        return jnp.asarray(-np.inf)  # NumPyro would warn of a value that is known to be outside
    try:
        terms = log_prob_of(distribution, value)
    except NotImplementedError as error:
        raise errors.NoDensity(
            f"{type(distribution).__name__} has no log_prob",
            at=at,
            remedy="Give the distribution a log_prob method, or use one that has a density",
        ) from error
    if check_support:
        terms = jnp.where(holds, terms, -jnp.inf)
    return terms if scale is None else scale * terms


def placed(distribution: Any, coordinates: Any) -> Any:
    """The value at unconstrained coordinates."""
    return biject_to(distribution.support)(coordinates)


def log_jacobian(distribution: Any, coordinates: Any) -> Any:
    """log |dx/du| at unconstrained coordinates u."""
    transform = biject_to(distribution.support)
    return jnp.sum(transform.log_abs_det_jacobian(coordinates, transform(coordinates)))


def coordinates(distribution: Any, value: Any) -> Any:
    """The unconstrained coordinates of a value."""
    return biject_to(distribution.support).inv(value)


def is_taken_out(distribution: Any) -> bool:
    """Whether a mask takes some of the values out of the density, or may do so."""
    while isinstance(distribution, _WRAPPERS):
        if isinstance(distribution, dist.MaskedDistribution):
            mask = as_input(mask_of(distribution))
            if isinstance(mask, Node) or not np.all(mask):
                return True
        distribution = distribution.base_dist
    return False


def summed(terms: Any) -> Any:
    """The sum of an array; a scalar is its own."""
    return terms if np.ndim(terms) == 0 else jnp.sum(terms)


def unwrapped(distribution: Any, wrappers: Any = _WRAPPERS) -> Any:
    """The distribution inside masks, expansions and event axes, or inside those of the wrappers that are named."""
    while isinstance(distribution, wrappers):
        distribution = distribution.base_dist
    return distribution


def base_support(support: Any) -> Any:
    """A support without the axes over which it is repeated."""
    while isinstance(support, dist.constraints.independent):
        support = support.base_constraint
    return support


def is_finite(support: Any) -> bool:
    """Whether a discrete support has finitely many values."""
    base = base_support(support)
    return base is constraints.boolean or hasattr(base, "upper_bound")


def support_text(support: Any) -> str:
    """A support in words: `interval(0.0, random)`."""
    base = base_support(support)
    name = type(base).__name__.strip("_")
    words = "".join("_" + c.lower() if c.isupper() else c for c in name).strip("_")
    bounds = [as_input(getattr(base, b)) for b in ("lower_bound", "upper_bound") if hasattr(base, b)]
    texts = ["random" if isinstance(bound, Node) else show_value(np.asarray(bound)) for bound in bounds]
    return f"{words}({', '.join(texts)})" if texts else words


def show_value(value: np.ndarray) -> str:
    """A value on one line."""
    if value.ndim == 0:
        return str(value.item())
    return np.array2string(value, separator=", ", threshold=8).replace("\n", "")


def why_not_drawn(site: Any) -> str:
    """Why the draws of a site do not have the density that it states, as a clause; empty if they have."""
    parts = list(_within(site.distribution))
    if any(isinstance(part, dist.ImproperUniform) for part in parts):
        return "an improper prior has no draws"
    if site.scale is not None or any(isinstance(part, dist.MaskedDistribution) for part in parts):
        return "a mask or a scale gives the site another density than its draws have"
    return ""


def _within(distribution: dist.Distribution) -> Iterator[dist.Distribution]:
    """A distribution and those inside it."""
    yield distribution
    for part in vars(distribution).values():
        if isinstance(part, dist.Distribution):
            yield from _within(part)
