"""What densities without some of a path's coordinates have in common, whether these are summed or integrated out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from anabranch.divide import Path, PriorDraws

__all__ = ["log_density_where", "prior_of_columns"]

Traced = Callable[[jax.Array], tuple[jax.Array, jax.Array]]
"""The log density at a point, and whether the guards hold there."""


def prior_of_columns(path: Path, columns: np.ndarray, n: int, rng: Generator) -> PriorDraws:
    """At most n prior draws of some coordinates of a path."""
    draws = path.prior(n, seed=int(rng.integers(2**31)), columns=columns)
    return replace(draws, points=draws.points[:, columns])


def log_density_where(traced: Traced) -> Callable[[Any], Any]:
    """The log density as a function for JAX: minus infinity outside the guards, and a slope of zero wherever it has
    none that is finite."""

    def total(x: jax.Array) -> jax.Array:
        density, holds = traced(x)
        return jnp.where(holds & (density < jnp.inf), density, -jnp.inf)

    @jax.custom_vjp
    def log_density(x: jax.Array) -> jax.Array:
        return total(x)

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, slope = jax.value_and_grad(total)(x)
        return value, jnp.where(jnp.isfinite(slope) & (value > -jnp.inf), slope, 0.0)

    log_density.defvjp(forward, lambda slope, cotangent: (cotangent * slope,))
    return log_density
