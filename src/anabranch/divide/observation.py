"""An observation: an observed site or a factor, and the check of the value that was observed."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import tree_leaves
from numpyro.distributions.distribution import Unit

from anabranch import errors
from anabranch.divide.distributions import check_mask, offender, support_holds, support_text, unwrapped
from anabranch.divide.internals import PathTracer, as_input
from anabranch.errors import Place

__all__ = ["Held", "Observation", "as_array", "checked_observation", "held"]


@dataclass(eq=False)
class Observation:
    """A term of the likelihood: an observed site, or a factor."""

    name: str
    distribution: Any
    value: Any
    where: str
    scale: Any
    check_support: bool
    fault: errors.AnabranchError | None = None
    index: int = 0
    """How many observations the run had met before."""
    preceding: int = 0
    """How many sites the run had met before."""
    described: Any = None
    """The distribution as its form and its parameters, where they are known."""
    adds_nothing: bool = False
    """Whether it is no observation but a site with one value, whose log density is zero."""

    def __post_init__(self) -> None:
        self.inputs = [as_input(x) for x in (self.value, *tree_leaves(self.distribution))]
        """The value and the parameters of the distribution: nodes of the graph, or constants."""

    @property
    def is_data(self) -> bool:
        """Whether it is neither a factor nor a site that has only one value."""
        return not isinstance(unwrapped(self.distribution), Unit | dist.Delta)


Held = tuple[np.ndarray, bool]
"""Which parts of a value are inside a support, and whether that is random."""


def held(distribution: Any, value: Any) -> Held:
    """Which parts of a value the support of a distribution holds, as far as it can be known now."""
    inside_support = support_holds(distribution, jnp.asarray(value))
    is_random = isinstance(inside_support, PathTracer) and bool(inside_support.sites)
    return np.asarray(as_input(inside_support)) if not is_random else np.asarray(False), is_random


def checked_observation(
    at: Place, distribution: Any, value: Any, scale: Any, held_by: Callable[[Any, Any], Held]
) -> Observation:
    """Check an observed value, an array, against its distribution, as far as it can be known now.

    A value outside the support is a fault of the program unless a decision led here: another path may be meant for it.
    `held_by` says which parts of the value are inside the support of the distribution.
    """
    if isinstance(distribution, Unit):
        return Observation(at.name, distribution, value, at.where, scale, check_support=False)
    _check_shape(at, distribution, value)
    inside_support, is_random = held_by(distribution, value)
    if is_random:
        # The support is random: a value outside it has no density there, which is no mistake.
        return Observation(at.name, distribution, value, at.where, scale, check_support=True)
    fault = None
    if not inside_support.all():
        fault = errors.ObservedOutsideSupport(
            f"the observed value {offender(value, inside_support)} is outside the support "
            f"({support_text(distribution.support)}) of {type(distribution).__name__}",
            at=at,
            remedy="Check the data (a NaN?) and the distribution; mask missing values with handlers.mask or .mask()",
        )
    return Observation(at.name, distribution, value, at.where, scale, fault is not None, fault)


def as_array(at: Place, value: Any) -> Any:
    """Observed values as an array: numbers, lists, and whatever else NumPy makes an array of numbers of."""
    if isinstance(value, jax.Array):
        return value
    check_mask(at, value, "the observed values")
    if isinstance(value, list | tuple) and any(isinstance(each, jax.Array) for each in tree_leaves(value)):
        return jnp.asarray(value)
    array = np.array(value)
    if array.dtype == object and hasattr(value, "to_numpy"):  # whole numbers of pandas that may be missing
        with contextlib.suppress(TypeError, ValueError):
            array = value.to_numpy(float)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise errors.ObservedShape(
            f"the observed value is not an array of numbers; its dtype is {array.dtype}",
            at=at,
            remedy="It must hold numbers: write categories as 0, 1, ..., and leave out or mask what is missing",
        )
    return array


def _check_shape(at: Place, distribution: Any, value: Any) -> None:
    shape, event = np.shape(value), distribution.event_shape
    fits = shape[len(shape) - len(event) :] == event
    if fits:
        try:
            np.broadcast_shapes(shape[: len(shape) - len(event)], distribution.batch_shape)
        except ValueError:
            fits = False
    if not fits:
        raise errors.ObservedShape(
            f"the observed value has shape {shape}, but {type(distribution).__name__} has batch shape "
            f"{distribution.batch_shape} and event shape {event}",
            at=at,
            remedy="Make the observed value's last axes the event and the others broadcast with the batch",
        )
