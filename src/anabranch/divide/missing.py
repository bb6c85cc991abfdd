"""Statements with `obs_mask`: some values are observed, the others are latent.

NumPyro makes two sites of `numpyro.sample(name, d, obs=y, obs_mask=m)`: `name_observed`, which the mask takes out of
the density where m is False, and `name_unobserved`, a latent of the whole shape, which the mask takes out where m is
True. There the latent would have a flat density over all numbers, and the evidence would be infinite. Here the latent
site holds the missing values alone, each with the density that d gives it:

    p(y_seen, y_missing) = Π_{i: m_i} d_i(y_i) · Π_{i: not m_i} d_i(y_i)
"""

import copy
import inspect
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from anabranch import errors
from anabranch.divide.source_location import belongs_to_program
from anabranch.errors import Place
from anabranch.numpyro_internals import locals_of_obs_mask

__all__ = ["Missing", "missing_values"]

_ENDINGS = ("_observed", "_unobserved")


@dataclass(frozen=True)
class Missing:
    """The latent values of a statement with `obs_mask`.

    distribution: that of the missing values, in one row; None where none is missing.
    """

    distribution: Any
    shape: tuple[int, ...]
    positions: np.ndarray

    def spread(self, values: Any) -> Any:
        """The missing values at their places in an array of the whole shape; the other entries are not used."""
        return values if self.distribution.shape() == self.shape else values[self.positions]


def missing_values(msg: dict[str, Any], at: Place) -> Missing | None:
    """The latent part of a statement with `obs_mask`, if the message of a latent site comes from one."""
    if not at.name.endswith(_ENDINGS):
        return None
    of_statement = locals_of_obs_mask(ends_at=belongs_to_program)
    if of_statement is None:
        return None
    mask = np.asarray(of_statement["obs_mask"], bool)  # a random one is a decision
    # With obs=None the part that would have been observed is latent, too.
    wanted = ~mask if "observed" in of_statement else mask
    given, distribution = of_statement["fn"], msg["fn"]
    if not (isinstance(of_statement["obs_mask"], bool) and wanted.all()):  # NumPyro makes no mask of True
        distribution = _without_mask(distribution, len(_masks(given)))
    shapes = [tuple(distribution.batch_shape), wanted.shape]
    if of_statement["obs"] is not None:
        seen = np.shape(of_statement["obs"])
        shapes.append(seen[: len(seen) - len(given.event_shape)])
    batch_shape = np.broadcast_shapes(*shapes)
    if distribution.batch_shape != batch_shape:
        distribution = distribution.expand(batch_shape)
    wanted = np.broadcast_to(wanted, batch_shape)
    whole = (*batch_shape, *distribution.event_shape)
    # Each missing value has its number; the others get that of the first, which nobody sees.
    positions = np.where(wanted, np.cumsum(wanted).reshape(batch_shape) - 1, 0)
    if wanted.all():
        return Missing(distribution, whole, positions)
    part = _Part(batch_shape, np.flatnonzero(wanted), at)
    return Missing(part.of(distribution) if wanted.any() else None, whole, positions)


def _masks(distribution: Any) -> list[Any]:
    """The masks of a distribution, the outermost first."""
    out = []
    while isinstance(distribution, dist.MaskedDistribution | dist.ExpandedDistribution | dist.Independent):
        out += [distribution] if isinstance(distribution, dist.MaskedDistribution) else []
        distribution = distribution.base_dist
    return out


def _without_mask(distribution: Any, number: int) -> Any:
    """The distribution without one of its masks, counted from the inside."""
    if isinstance(distribution, dist.MaskedDistribution) and len(_masks(distribution)) == number + 1:
        return distribution.base_dist
    changed = copy.copy(distribution)
    changed.base_dist = _without_mask(distribution.base_dist, number)
    return changed


@dataclass(frozen=True)
class _Part:
    """Some of the independent values of a distribution: `chosen` of those in `batch_shape`, counted in one row."""

    batch_shape: tuple[int, ...]
    chosen: np.ndarray
    at: Place

    def of(self, distribution: Any, events: tuple[int, ...] = ()) -> Any:
        """The distribution of these values; `events` are axes of its batch that belong to a value."""
        if isinstance(distribution, dist.ExpandedDistribution):
            return self.of(distribution.base_dist, events)
        if isinstance(distribution, dist.Independent):
            axes = distribution.reinterpreted_batch_ndims
            base = distribution.base_dist
            return self.of(base, (*events, *base.batch_shape[len(base.batch_shape) - axes :])).to_event(axes)
        constraints = distribution.arg_constraints
        required = [
            name
            for name, each in inspect.signature(type(distribution)).parameters.items()
            if each.default is each.empty and each.kind is not each.VAR_KEYWORD
        ]
        if not constraints or not set(required) <= set(constraints):
            raise errors.UnsupportedStatement(
                f"obs_mask leaves some values of {type(distribution).__name__} latent, and how to take them out of the "
                "others is not known",
                at=self.at,
                remedy="Write two statements, one that observes the values that are there and one that samples the "
                "others",
            )
        held = {name: value for name, value in vars(distribution).items() if name in constraints}
        rows = {name: self._row(value, events, constraints[name].event_dim) for name, value in held.items()}
        return type(distribution)(**rows).expand((len(self.chosen), *events))

    def _row(self, parameter: Any, events: tuple[int, ...], event_dim: int) -> Any:
        """The rows of a parameter that belong to the chosen values."""
        shape = np.shape(parameter)
        own = shape[len(shape) - event_dim :]
        if len(shape) <= event_dim:  # the same for all
            return parameter
        whole = jnp.broadcast_to(parameter, (*self.batch_shape, *events, *own))
        return jnp.reshape(whole, (-1, *events, *own))[self.chosen]
