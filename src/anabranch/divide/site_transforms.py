"""The support of a site and its unconstrained coordinates, over a batch of executions.

Both depend on the distribution's parameters, which differ between the executions. The functions here are therefore
traced once for all sites of one form, as functions of the parameters, and evaluated by NumPy over the batch.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to

from anabranch.divide import distributions, numpy_backend
from anabranch.divide.distributions import support_holds, unwrapped
from anabranch.divide.internals import inside
from anabranch.divide.recording import Site
from anabranch.numpyro_internals import log_prob_of

__all__ = ["can_have", "coordinates_of", "log_jacobian", "moved", "placed", "possible_values"]

_functions: dict[Any, Any] = {}


def can_have(site: Site, parameters: Sequence[np.ndarray], values: np.ndarray) -> np.ndarray:
    """Which of the values, one for each execution, are in the support and, if discrete, have a probability."""
    if site.distribution.support is dist.constraints.real:
        return np.isfinite(values).reshape(len(values), -1).all(axis=1)
    try:
        if site.shape == () and len(values) == 1:
            return np.array([_can_have_number(site, parameters, values)])
        return _batched(_is_possible, site, parameters, values)
    except jax.errors.JAXTypeError:
        # A distribution of the user's own whose support takes Python decisions: nothing can be said against the value.
        return np.ones(len(values), bool)


_numbers: dict[Any, bool] = {}
"""Whether numbers can be drawn from distributions, which the paths of a program ask again and again."""
_MAX_NUMBERS = 10_000


def _can_have_number(site: Site, parameters: Sequence[np.ndarray], value: np.ndarray) -> bool:
    """The same for one number, remembered."""
    try:
        key = site._flat[1], tuple([(x.shape, x.dtype, x.tobytes()) for x in (value, *parameters)])
        known = _numbers.get(key)
    except (TypeError, ValueError):  # what else the distribution holds cannot be compared
        return bool(_batched(_is_possible, site, parameters, value)[0])
    if known is None:
        if len(_numbers) >= _MAX_NUMBERS:
            _numbers.clear()
        known = _numbers[key] = bool(_batched(_is_possible, site, parameters, value)[0])
    return known


def possible_values(site: Site, parameters: Sequence[np.ndarray], values: np.ndarray) -> np.ndarray:
    """Which values (v,) each number of a discrete site can have: (n or 1, v, *shape).

    Only for a site whose numbers do not bind each other, as the counts of a multinomial do.
    """
    try:
        return _batched(_are_possible, site, parameters, values[None])
    except jax.errors.JAXTypeError:
        return np.ones((1, len(values), *site.shape), bool)  # as in `can_have`


def _is_possible(distribution: Any, value: Any) -> Any:
    distribution = unwrapped(distribution, dist.MaskedDistribution)  # a mask changes the density, not what can be drawn
    holds = jnp.all(support_holds(distribution, value))
    if distribution.support.is_discrete:
        holds = holds & jnp.all(log_prob_of(distribution, value) > -jnp.inf)
    return holds


def _are_possible(distribution: Any, values: Any) -> Any:
    distribution = unwrapped(distribution, dist.MaskedDistribution | dist.Independent)

    def is_possible(value: Any) -> Any:
        numbers = jnp.full(distribution.batch_shape, value)
        return distribution.support(numbers) & (log_prob_of(distribution, numbers) > -jnp.inf)

    return jax.vmap(is_possible)(values)


def _moved(distribution: Any, value: Any, step: Any) -> Any:
    transform = biject_to(distribution.support)
    return transform(transform.inv(value) + step)


def _log_jacobian(distribution: Any, value: Any) -> Any:
    transform = biject_to(distribution.support)
    return jnp.sum(transform.log_abs_det_jacobian(transform.inv(value), value))


def _batched(of: Callable[..., Any], site: Site, parameters: Sequence[np.ndarray], *values: np.ndarray) -> np.ndarray:
    """A function of a distribution and of values, for each execution."""
    arrays, count = [*values, *parameters], len(values)
    key: Any = (of, site._flat[1], tuple((a.shape[1:], a.dtype) for a in arrays))
    try:
        kept = _functions.get(key)
    except (TypeError, ValueError):  # what else the distribution holds cannot be compared
        key, kept = None, None
    if kept is None:
        with inside():
            kept = jax.make_jaxpr(lambda *args: of(site.with_parameters(args[count:]), *args[:count]))(
                *[jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in arrays]
            )
        if key is not None:
            if len(_functions) >= 1000:
                _functions.clear()
            _functions[key] = kept
    [result] = numpy_backend.evaluate_jaxpr(kept, arrays)
    n = len(values[0])
    return result if len(result) == n else np.repeat(result, n, axis=0)


# Of a continuous site, its parameters, and arrays with one row for each execution.
moved = partial(_batched, _moved)
"""The values of the site, each after a step in its unconstrained coordinates."""
placed = partial(_batched, distributions.placed)
"""The values of the site at unconstrained coordinates."""
coordinates_of = partial(_batched, distributions.coordinates)
"""The unconstrained coordinates of the site at each of its values."""
log_jacobian = partial(_batched, _log_jacobian)
"""log |dx/du| of the site at each of its values x, with u its unconstrained coordinates."""
