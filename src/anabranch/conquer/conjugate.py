"""Coordinates that are gamma, inverse gamma or beta given the others.

Along such a coordinate u, with all others fixed, log γ is a constant plus a A(u) + b B(u):

    gamma           A = u,            B = −exp(p u)/p     with x^p = exp(p u) gamma, of shape a/p and rate b/p
    beta            A = log x,        B = log(1 − x)      with x = 1/(1 + exp(−u)) beta, with a and b

with p = 1 for a gamma distribution of x, −1 for an inverse one, and ±2 for those of x². The derivatives along u at two
points give a and b, whatever the number of such coordinates, if they are independent of each other given the rest, that
is if no mixed differences remain.

Where they are looked for, log γ is an analytic function of the coordinates (`divide.analytic_columns`): what has the
form in a part of their range has it everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import gammaln

from anabranch.conquer.target import Target
from anabranch.divide import analytic_columns

__all__ = ["BETA", "Conjugates", "Features", "draw", "features", "find_conjugates", "log_normaliser"]

BETA = 0.0
"""In place of the power p, where a coordinate is beta."""
_POWERS = (1.0, -1.0, 2.0, -2.0)
_MAX_COLUMNS, _MAX_COUPLED = 128, 40
"""Coordinates that are looked at, at most, and those of them of which some are chosen where not all are independent."""
_PROBES = 4
"""Points at which the form is checked."""
_OFFSETS = np.array([-5.0, -2.5, -1.0, 0.0, 1.0, 2.5, 5.0])
"""Places along a coordinate at which the density is evaluated: three more than the form has coefficients."""
_FAR = 15.0
"""Coordinates from which places are counted are not farther out than this."""
_STEP = 0.7
"""Half the distance of the two points at which derivatives are taken."""
_TOLERANCE = 1e-9
"""Deviation from the form, relative to the largest value, that is taken for rounding."""


class Features(NamedTuple):
    """A and B, and their derivatives."""

    a: Any
    b: Any
    a_slope: Any
    b_slope: Any


def features(u: Any, power: np.ndarray, numpy: Any = np) -> Features:
    """A(u) and B(u), and their derivatives, for coordinates of these powers."""
    is_beta, p = power == BETA, np.where(power == BETA, 1.0, power)
    log_x, log_rest = -numpy.logaddexp(0.0, -u), -numpy.logaddexp(0.0, u)
    grown = numpy.exp(numpy.where(is_beta, 0.0, p * u))
    return Features(
        numpy.where(is_beta, log_x, u), numpy.where(is_beta, log_rest, -grown / p),
        numpy.where(is_beta, numpy.exp(log_rest), 1.0), numpy.where(is_beta, -numpy.exp(log_x), -grown),
    )  # fmt: skip


def log_normaliser(a: Any, b: Any, power: np.ndarray, numpy: Any = np, gammaln: Any = gammaln) -> tuple[Any, Any]:
    """log ∫ exp(a A(u) + b B(u)) du for each coordinate, and whether it is finite; by NumPy or JAX."""
    is_beta, p = power == BETA, np.where(power == BETA, 1.0, power)
    shape, rate = a / p, b / p
    is_proper = (shape > 0) & (rate > 0)
    shape, rate = numpy.where(is_proper, shape, 1.0), numpy.where(is_proper, rate, 1.0)
    of_shape = gammaln(shape)
    of_gamma = of_shape - shape * numpy.log(rate) - np.log(np.abs(p))
    if not is_beta.any():  # less to compile
        return of_gamma, is_proper
    return numpy.where(is_beta, of_shape + gammaln(rate) - gammaln(shape + rate), of_gamma), is_proper


def draw(a: np.ndarray, b: np.ndarray, power: np.ndarray, rng: Generator) -> np.ndarray:
    """Draws of coordinates with these coefficients, one for each."""
    is_beta, p = power == BETA, np.where(power == BETA, 1.0, power)
    shape, rate = a / p, b / p
    log_gamma = _log_gamma(shape, rng)
    return np.where(is_beta, log_gamma - _log_gamma(np.where(is_beta, rate, 1.0), rng), (log_gamma - np.log(rate)) / p)


def _log_gamma(shape: np.ndarray, rng: Generator) -> np.ndarray:
    """Logs of gamma draws, which do not underflow where the shape is small: G(a) = G(a + 1) U^(1/a)."""
    return np.log(rng.standard_gamma(shape + 1)) - rng.standard_exponential(shape.shape) / shape


@dataclass(frozen=True)
class Conjugates:
    """Which columns of a path are gamma or beta given the others.

    Attributes:
        columns: their numbers.
        power: p of each, or `BETA`.
        centre: a place of each, around which derivatives are taken.
    """

    columns: np.ndarray
    power: np.ndarray
    centre: np.ndarray = field(repr=False)

    @cached_property
    def places(self) -> np.ndarray:
        """The two points at which derivatives are taken."""
        step = _STEP / np.where(self.power == BETA, 1.0, np.abs(self.power))
        return self.centre + np.array([[-1.0], [1.0]]) * step

    def is_same(self, other: Conjugates) -> bool:
        """Whether the other has the same numbers."""
        pairs = ((self.columns, other.columns), (self.power, other.power), (self.centre, other.centre))
        return all(np.array_equal(one, two) for one, two in pairs)


def find_conjugates(target: Target) -> Conjugates | None:
    """The coordinates of a path that are gamma or beta given the others, and independent of each other; None if there
    are none.

    Evaluations are made on the host: some hundred, or about ten where the first coordinate looked at is neither.
    """
    columns, is_unit = analytic_columns(target.path)
    if not 0 < len(columns) <= _MAX_COLUMNS:
        return None
    probing = _Probing(target, _probes(target))
    found = [probing.form(column, unit) for column, unit in zip(columns.tolist(), is_unit, strict=True)]
    forms = probing.independent([form for form in found if form is not None])
    if not forms:
        return None
    order = sorted(forms, key=lambda form: form.column)
    return Conjugates(*(np.array([form[i] for form in order]) for i in range(3)))


def _probes(target: Target) -> np.ndarray:
    """A few points of the path with a density, deterministic."""
    rng = np.random.default_rng(0)
    drawn = target.known[:0] if target.path.apart and len(target.known) else target.prior(4 * _PROBES, rng).points
    points = np.concatenate([target.known[: 4 * _PROBES], drawn])
    points = points[np.isfinite(_log_densities(target, points)).all(axis=0)] if len(points) else points
    return points[np.linspace(0, len(points) - 1, min(_PROBES, len(points))).astype(int)]


def _log_densities(target: Target, rows: np.ndarray) -> np.ndarray:
    """Log prior and log density at rows of a path, on the host: (2, rows); infinite where there is none."""
    evaluation = target.path.evaluate(rows, compile=False, count=False)
    target.charge(len(rows))
    return np.where(evaluation.inside, [evaluation.log_prior, evaluation.log_density], -np.inf)


class _Form(NamedTuple):
    column: int
    power: float
    centre: float


class _Probing:
    """The checks at points of a path."""

    def __init__(self, target: Target, rows: np.ndarray) -> None:
        self.target, self.rows = target, rows

    def form(self, column: int, is_unit: bool) -> _Form | None:
        """The form of a coordinate; None if it has none of those at some point."""
        powers, start = (BETA,) if is_unit else _POWERS, np.clip(self.rows[:, column], -_FAR, _FAR)
        if not len(start):
            return None
        fits = self._fits(column, start[:1], powers)
        for power in fits:
            around = self._fits(column, start, (power,)).get(power)
            if around is None:
                continue
            centre = float(np.median(np.clip(around, -4 * _FAR, 4 * _FAR)))
            if power in self._fits(column, np.full(len(start), centre), (power,)):
                return _Form(column, power, centre)
        return None

    def _fits(self, column: int, start: np.ndarray, powers: Sequence[float]) -> dict[float, np.ndarray]:
        """The powers with which the density has the form along a column, at one point or all, and the modes there."""
        n, size = len(start), len(_OFFSETS)
        rows = np.repeat(self.rows[:n], size, axis=0)
        rows[:, column] = (start[:, None] + _OFFSETS).ravel()
        values = _log_densities(self.target, rows).reshape(2, n, size)
        found = {}
        for power in powers if np.isfinite(values).all() else ():
            fitted = [_fitted(rows[:, column].reshape(n, size), power, each) for each in values]
            if fitted[0] is not None and fitted[1] is not None:
                found[power] = fitted[1]
        return found

    def independent(self, forms: Sequence[_Form]) -> Sequence[_Form]:
        """As many of the coordinates as are independent of each other, those with the fewest ties first."""
        if len(forms) < 2 or self._are_independent(forms):
            return forms
        if len(forms) > _MAX_COUPLED:
            return []
        size = len(forms)
        tied = np.zeros((size, size), bool)
        for i in range(size):
            for j in range(i):
                tied[i, j] = tied[j, i] = not self._are_independent([forms[i], forms[j]])
        chosen, left = list[int](), list(range(size))
        while left:
            best = min(left, key=lambda i: tied[i, left].sum())
            chosen.append(best)
            left = [i for i in left if i != best and not tied[i, best]]
        return [forms[i] for i in chosen] if self._are_independent([forms[i] for i in chosen]) else []

    def _are_independent(self, forms: Sequence[_Form]) -> bool:
        """Whether a step along each coordinate changes the density by the same, wherever the others are."""
        if len(forms) < 2:
            return True
        columns, centre = [form.column for form in forms], np.array([form.centre for form in forms])
        step = np.random.default_rng(0).uniform(0.3, 1.0, len(forms)) * np.where(np.arange(len(forms)) % 2, -1, 1)
        unit = np.eye(len(forms), dtype=bool)
        moved = np.concatenate([np.zeros((1, len(forms)), bool), unit, ~unit, np.ones((1, len(forms)), bool)])
        places = centre + moved * step
        rows = np.repeat(self.rows, len(places), axis=0)
        rows[:, columns] = np.tile(places, (len(self.rows), 1))
        values = _log_densities(self.target, rows).reshape(2, len(self.rows), -1)
        if not np.isfinite(values).all():
            return False
        none, one, others, every = np.split(values, [1, 1 + len(forms), 1 + 2 * len(forms)], axis=2)
        mixed = np.abs((one - none) - (every - others)).max()
        return bool(mixed <= _TOLERANCE * (1 + np.abs(values).max()))


def _fitted(u: np.ndarray, power: float, values: np.ndarray) -> np.ndarray | None:
    """The mode of the conditional density at each point, (points,), from its values at places u, (points, places); None
    where the values have not the form, or the density no finite integral."""
    modes = []
    for at, logs in zip(u, values, strict=True):
        a, b, *_ = features(at, np.full(len(at), power))
        design = np.stack([np.ones(len(at)), a, b], axis=1)
        scale = np.abs(design).max(axis=0)
        coefficients = np.linalg.lstsq(design / scale, logs, rcond=1e-15)[0]
        deviation = np.abs(design / scale @ coefficients - logs).max()
        _, shape, rate = coefficients / scale / (power or 1.0)
        if deviation > _TOLERANCE * (1 + np.abs(logs).max()) or not (shape > 0 and rate > 0):
            return None
        modes.append((np.log(shape) - np.log(rate)) / (power or 1.0))
    return np.array(modes)
