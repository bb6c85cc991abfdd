"""The integral of a density over coordinates that are gamma or beta given the others, from derivatives at two places.

    log ∫ γ(x, u) du = log γ(x, m) + Σ_j [log ∫ exp(a_j A + b_j B) du − (a_j A(m_j) + b_j B(m_j))]

The derivatives a_j A' + b_j B' of log γ along each coordinate (`conjugate`), at two places m and m' of all of them,
give the coefficients. The change of log γ from m to m' must be the one that follows: a check at every point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln as gammaln_by_jax
from scipy.special import gammaln

from anabranch.conquer.conjugate import Conjugates, features, log_normaliser

__all__ = ["Integral", "Slopes", "has_form", "integral", "slopes_at"]

_DEVIATION, _ROUNDING = 1e-6, 1e-11
"""Deviation from the form in nats that is allowed, and that for rounding, relative to the sum of the absolute values of
the numbers that are added up."""
_LOST = 1e12
"""The sum of these from which on they say nothing: the density is taken for zero."""


class Slopes(NamedTuple):
    """Log prior and log density at both places, and their derivatives along the coordinates.

    Attributes:
        values: (..., 2 places, 2).
        slopes: (..., 2 places, 2, coordinates).
    """

    values: Any
    slopes: Any


class Integral(NamedTuple):
    """Log prior and log density without the coordinates.

    Attributes:
        logs: (..., 2).
        deviation: from the form, in terms of that allowed: (..., 2).
        a, b: the coefficients: (..., 2, coordinates).
    """

    logs: Any
    deviation: Any
    a: Any
    b: Any


def slopes_at(logs: Callable[[Any], tuple[Any, Any]], places: Any) -> tuple[Slopes, Any]:
    """By JAX, values and derivatives of a function that gives two numbers, and others, which come out of the first."""

    def at(place: Any) -> tuple[Any, Any, Any]:
        values, pull, others = jax.vjp(logs, place, has_aux=True)
        return values, jax.vmap(lambda unit: pull(unit)[0])(jnp.eye(2)), others

    values, slopes, others = jax.vmap(at)(jnp.asarray(places))
    return Slopes(values, slopes), jax.tree.map(lambda each: each[0], others)


def integral(found: Slopes, conjugates: Conjugates, places: Any, by_jax: bool = False) -> Integral:
    """The integral, by NumPy for many points or by JAX for one."""
    numpy, of_gamma = (jnp, gammaln_by_jax) if by_jax else (np, gammaln)
    low, high = (features(places[i], conjugates.power, numpy) for i in range(2))
    one, other = found.slopes[..., 0, :, :], found.slopes[..., 1, :, :]
    determinant = low.a_slope * high.b_slope - high.a_slope * low.b_slope
    a = (one * high.b_slope - other * low.b_slope) / determinant
    b = (low.a_slope * other - high.a_slope * one) / determinant
    terms = a * low.a, b * low.b, a * high.a, b * high.b
    at_low, at_high = (terms[0] + terms[1]).sum(-1), (terms[2] + terms[3]).sum(-1)
    first, second = found.values[..., 0, :], found.values[..., 1, :]
    scale = sum(numpy.abs(each).sum(-1) for each in terms) + numpy.abs(first) + numpy.abs(second)
    logs, is_proper = log_normaliser(a, b, conjugates.power, numpy, of_gamma)
    deviation = numpy.abs(second - first - (at_high - at_low)) / (_DEVIATION + _ROUNDING * scale)
    is_zero = ((first == -np.inf) & (second == -np.inf)) | (scale > _LOST)
    deviation = numpy.where(is_proper.all(-1) & ~numpy.isnan(deviation), deviation, np.inf)
    total = numpy.where(is_zero, -np.inf, first - at_low + logs.sum(-1))
    return Integral(total, numpy.where(is_zero, 0.0, deviation), a, b)


def has_form(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether log densities are the expected ones but for rounding."""
    return bool((np.abs(found - expected) <= _DEVIATION + _ROUNDING * np.abs(found)).all())
