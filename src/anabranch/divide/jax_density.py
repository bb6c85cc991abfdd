"""The density of a path as one JAX function of one point, for samplers that are compiled together with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from anabranch import errors
from anabranch.divide.compiled import Compiled
from anabranch.divide.density import Density

if TYPE_CHECKING:
    from anabranch.divide.path import Path

__all__ = ["log_density_function"]


def log_density_function(path: Path) -> Callable[[jax.Array], jax.Array]:
    """log γ_k at one point: minus infinity outside the path and where the density is no number.

    The function can be differentiated once, and mapped over points with `jax.vmap`. Its gradient is zero wherever it
    would not be finite, and outside the path. To be called in double precision, as under `jax.enable_x64`. It stands
    for the decision sequences that the path has now; one that is found later needs another call.

    Example:
        >>> import anabranch as ab, jax, jax.numpy as jnp, numpyro.distributions as dist
        >>> def program():
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)
        >>> log_density = log_density_function(ab.find_paths(program).paths[0])
        >>> with jax.enable_x64(True):
        ...     value, gradient = jax.jit(jax.value_and_grad(log_density))(jnp.array([0.25]))
        >>> round(float(value), 4), gradient.tolist()
        (-2.1504, [0.5])
    """
    backend = path._backend
    if not isinstance(backend, Compiled):
        raise errors.NoGradient(
            f"the path ({path.description}) is run by the interpreter, which JAX cannot compile",
            where=path.last_question,
            remedy="Write the program with jax.numpy so that it can be compiled, or use a method without gradients",
        )
    densities = backend.densities

    @jax.custom_vjp
    def log_density(point: jax.Array) -> jax.Array:
        value = -jnp.inf * jnp.ones(())
        for density in densities:
            total, inside = _total(density, point)
            value = jnp.where(inside, total, value)
        return value

    # Each sequence is differentiated by itself, and the one that holds is chosen afterwards: the derivative of a choice
    # would take in what the others compute where they do not hold, which may be NaN.
    def forward(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        value, gradient = -jnp.inf * jnp.ones(()), jnp.zeros_like(point)
        for density in densities:
            of_density = jax.value_and_grad(lambda x, density=density: _total(density, x), has_aux=True)
            (total, inside), slope = of_density(point)
            value = jnp.where(inside, total, value)
            gradient = jnp.where(inside & jnp.isfinite(slope), slope, gradient)
        return value, gradient

    def backward(gradient: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
        return (cotangent * gradient,)

    log_density.defvjp(forward, backward)
    return log_density


def _total(density: Density, point: jax.Array) -> tuple[Any, Any]:
    """The log density of one decision sequence, and whether it is one: the guards hold and it is a number."""
    log_prior, log_likelihood, _, holds = density.traced(point)
    total = log_prior + log_likelihood
    return total, holds & (total < jnp.inf)
