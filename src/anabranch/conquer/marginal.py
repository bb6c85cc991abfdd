"""The marginal density of a path: discrete coordinates summed out.

For a path with continuous coordinates x and finite discrete ones z,

    log γ(x) = log Σ_z γ(x, z),   ∇ log γ(x) = Σ_z π(z | x) ∇ₓ log γ(x, z),

so that methods for real coordinates, and gradients, serve mixtures and missing categories (the paper's section 4.2
leaves the local estimator open). With m coordinates of v values the sum has vᵐ terms. But where log γ(x, z) is a sum
over groups of coordinates g, as for the independent assignments of a mixture, the sum of products is a product of sums:
with any reference z⁰ of positive density

    Σ_z γ(x, z) = γ(x, z⁰) Π_g Σ_{z_g} γ(x, z_g, z⁰ elsewhere) / γ(x, z⁰),

which has m·v terms. The groups are found by evaluating the density (`interactions`). No finite number of points proves
that groups are independent everywhere, so every evaluation checks a few of its points, and raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch import errors
from anabranch.conquer.enumeration import Enumerate
from anabranch.conquer.interactions import agree, distinct_rows, find_groups, max_rows, probe_points, references
from anabranch.conquer.target import Target
from anabranch.divide import Evaluation, PriorDraws, finite_values

__all__ = ["Marginal", "sum_out"]

_MAX_PAIRS = 200_000
"""Pairs of coordinates up to which groups are looked for."""
_POINTS_PER_CHECK = 64
"""One in so many points of an evaluation is checked."""


def sum_out(target: Target, max_terms: int = 64) -> Target:
    """The target without its finite discrete coordinates, if a point then takes at most `max_terms` evaluations.

    The target itself is returned where it has no such coordinate, too many terms, or so few values that the path can be
    enumerated. The points of the checks have a fixed seed: the same path is always summed in the same way.
    """
    found = () if target.is_marginal else finite_values(target.path)
    summed = np.array([i for i, values in enumerate(found) if values is not None], int)
    values = [each for each in found if each is not None]
    sizes = [len(each) for each in values]
    count = math.prod(sizes)
    if not values or (len(values) == target.dim and count <= Enumerate.max_values):
        return target
    min_terms = 1 + sum(size - 1 for size in sizes)
    if min_terms > max_terms or math.comb(len(values), 2) > _MAX_PAIRS:
        return target
    rng = np.random.default_rng(0)
    probes = probe_points(target, rng) if count > min_terms else np.zeros((0, target.dim))
    candidates = references(target, summed, probes)
    if len(candidates):
        groups = find_groups(target, summed, values, probes, rng)
        # Counted before they are built: a chain of hidden states is one group, with as many terms as it has histories.
        terms = 1 + sum(math.prod(sizes[i] for i in group) - 1 for group in groups)
        if len(groups) > 1 and terms <= max_terms:
            parted = Marginal(target, summed, values, groups, candidates)
            if parted.holds_at(probes[:, parted.columns], rng):
                return parted
    if count > max_terms:
        return target
    return Marginal(target, summed, values, [np.arange(len(values))], np.array([[each[0] for each in values]], float))


class Marginal(Target):
    """The density of a path with some discrete coordinates summed out; made by `sum_out`.

    Args:
        target: the density with them.
        summed: which coordinates they are.
        values: the values of each.
        groups: which of them interact, as positions in `summed`: a partition.
        candidates: rows of their values, tried in turn as the reference until one has positive density at a point.
    """

    def __init__(
        self, target: Target, summed: np.ndarray, values: list[range], groups: list[np.ndarray], candidates: np.ndarray
    ) -> None:
        self._combinations = [_combinations([values[i] for i in group]) for group in groups]
        cost = 1 + sum(len(combinations) - 1 for combinations in self._combinations)
        super().__init__(target.path, np.setdiff1d(target.columns, summed), cost, target.account)
        self.target, self.summed = target, summed
        self._values, self._groups = values, groups
        self._plans = [self._plan(reference) for reference in distinct_rows(candidates)]
        self._checks = 0

    @property
    def has_gradient(self) -> bool:
        return self.target.has_gradient

    @property
    def known(self) -> np.ndarray:
        return self.target.known[:, self.columns]

    def evaluate(self, points: np.ndarray) -> Evaluation:
        """Log prior and log density are sums over z; the log likelihood is their difference.

        The Jacobian is that at the reference, also where the transform of a site depends on z.
        """
        self._check(points)
        return self._at(points, None)[0]

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        self._check(points)
        return self._at(points, inverse_temperature)

    def prior(self, n: int, rng: Generator) -> PriorDraws:
        draws = self.target.prior(n, rng)
        return replace(draws, points=draws.points[:, self.columns])

    def executions(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        return self.target.executions(self._joined(points, self._drawn(points, rng)), rng)

    def _drawn(self, points: np.ndarray, rng: Generator) -> np.ndarray:
        """Values of the coordinates summed out, given the points; the reference where the density is zero."""
        drawn = np.tile(self._plans[0].configurations[0], (len(points), 1))
        for rows, plan, terms in self._settled(points):
            for group, combinations, members in zip(self._groups, self._combinations, plan.members, strict=True):
                weights = np.cumsum(_weights(terms.log_density[:, members]), axis=1)
                weights[:, -1] = np.maximum(weights[:, -1], 1e-300)
                chosen = (rng.uniform(size=(len(rows), 1)) * weights[:, -1:] >= weights).sum(axis=1)
                drawn[np.ix_(rows, group)] = combinations[np.minimum(chosen, len(combinations) - 1)]
        return drawn

    def _plan(self, reference: np.ndarray) -> _Plan:
        """All configurations of z in the sums with this reference, and which of them each group sums."""
        blocks, members, count = [reference[None]], [], 1
        for group, combinations in zip(self._groups, self._combinations, strict=True):
            others = (combinations != reference[group]).any(axis=1)
            block = np.tile(reference, (int(others.sum()), 1))
            block[:, group] = combinations[others]
            members.append(np.where(others, count - 1 + np.cumsum(others), 0))
            blocks.append(block)
            count += len(block)
        return _Plan(np.concatenate(blocks), tuple(members))

    def _check(self, points: np.ndarray) -> None:
        """Raise an error unless the groups are independent at a few of the points."""
        if len(self._groups) == 1 or not len(points):
            return
        self._checks += 1
        rng = np.random.default_rng(self._checks)
        if not self.holds_at(points[rng.integers(len(points), size=1 + len(points) // _POINTS_PER_CHECK)], rng):
            raise errors.StrategyCannotRun(
                f"discrete sites of the path ({self.path.description}) were summed out as independent groups, and are "
                "not independent everywhere",
                remedy="Keep them as variables (max_marginal_terms=0)",
            )

    def _at(self, points: np.ndarray, inverse_temperature: float | None) -> tuple[Evaluation, np.ndarray]:
        n = len(points)
        log_prior, log_likelihood, log_jacobian = np.full(n, -np.inf), np.full(n, -np.inf), np.zeros(n)
        guard, gradient = np.zeros(n, bool), np.zeros((n, self.dim))
        for rows, plan, terms in self._settled(points, inverse_temperature):
            log_prior[rows] = prior = plan.log_sum(terms.log_prior)
            with np.errstate(invalid="ignore"):
                log_likelihood[rows] = np.where(prior > -np.inf, plan.log_sum(terms.log_density) - prior, -np.inf)
            log_jacobian[rows] = terms.log_jacobian[:, 0]
            guard[rows] = terms.guard.any(axis=1)
            if inverse_temperature is not None:
                gradient[rows] = plan.gradient(terms, inverse_temperature)
        return Evaluation(log_prior, log_likelihood, log_jacobian, guard), gradient

    def _settled(
        self, points: np.ndarray, inverse_temperature: float | None = None
    ) -> Iterator[tuple[np.ndarray, _Plan, _Terms]]:
        """The points in batches by the first reference of positive density there: row numbers, plan and terms.

        One group needs no reference; rows where no reference has positive density are left out.
        """
        size = max(1, max_rows(self.target) // self.cost)
        for start in range(0, len(points), size):
            left = np.arange(start, min(start + size, len(points)))
            for plan in self._plans:
                base = self._terms(points[left], plan.configurations[:1], inverse_temperature)
                settled = (base.log_density[:, 0] > -np.inf) | (len(self._groups) == 1)
                rows, left = left[settled], left[~settled]
                if len(rows):
                    others = self._terms(points[rows], plan.configurations[1:], inverse_temperature)
                    yield rows, plan, base.rows(settled).beside(others)
                if not len(left):
                    break

    def _terms(self, points: np.ndarray, configurations: np.ndarray, inverse_temperature: float | None) -> _Terms:
        """The parts of the density at every point with every configuration."""
        shape = len(points), len(configurations)
        joined = self._joined(np.repeat(points, shape[1], axis=0), np.tile(configurations, (shape[0], 1)))
        density_gradient = prior_gradient = np.zeros((*shape, 0))
        if inverse_temperature is None:
            evaluation = self.target.evaluate(joined)
        if inverse_temperature is not None and inverse_temperature != 0:
            evaluation, gradient = self.target.differentiate(joined)
            density_gradient = gradient[:, self.columns].reshape(*shape, self.dim)
        if inverse_temperature is not None and inverse_temperature != 1:
            evaluation, gradient = self.target.differentiate(joined, 0.0)
            prior_gradient = gradient[:, self.columns].reshape(*shape, self.dim)
        log_prior = np.where(evaluation.inside, evaluation.log_prior, -np.inf)
        parts = (evaluation.log_density, log_prior, evaluation.log_jacobian, evaluation.inside)
        density, prior, jacobian, inside = (part.reshape(shape) for part in parts)
        return _Terms(density, prior, jacobian, inside, density_gradient, prior_gradient)

    def _joined(self, points: np.ndarray, summed: np.ndarray) -> np.ndarray:
        """Rows of all coordinates, in the order of the target."""
        out = np.empty((len(points), self.target.dim))
        out[:, self.columns], out[:, self.summed] = points, summed
        return out

    def holds_at(self, points: np.ndarray, rng: Generator) -> bool:
        """Whether the groups give the density of the target, with z as they draw it, uniform, and extreme."""
        n, ends = len(points), np.array([(each[0], each[-1]) for each in self._values], float)
        uniform = np.stack([rng.integers(each.start, each.stop, size=n) for each in self._values], axis=1)
        extreme = np.where(rng.uniform(size=(n, 1)) < 0.5, ends[:, 0], ends[:, 1])
        z = np.stack([self._drawn(points, rng), uniform, extreme], axis=1)
        evaluation = self.target.evaluate(self._joined(np.repeat(points, 3, axis=0), z.reshape(3 * n, -1)))
        log_prior = np.where(evaluation.inside, evaluation.log_prior, -np.inf)
        said = self._products(points, z).reshape(3 * n, 2)
        return bool((agree(said[:, 0], evaluation.log_density) & agree(said[:, 1], log_prior)).all())

    def _products(self, points: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log γ(x, z) and log prior by the groups, (n, k, 2), for k values z (n, k, m) at each point."""
        out = np.full((*z.shape[:2], 2), -np.inf)
        for rows, plan, terms in self._settled(points):
            for which, logs in enumerate((terms.log_density, terms.log_prior)):
                out[rows, :, which] = -(len(plan.members) - 1) * logs[:, :1]
                for group, combinations, members in zip(self._groups, self._combinations, plan.members, strict=True):
                    same = (combinations == z[rows][:, :, None, group]).all(axis=3)
                    out[rows, :, which] += np.take_along_axis(logs, members[same.argmax(axis=2)], axis=1)
        return out


@dataclass(frozen=True)
class _Plan:
    """Configurations of z, the reference first, and which of them each group sums."""

    configurations: np.ndarray
    members: tuple[np.ndarray, ...]

    def log_sum(self, logs: np.ndarray) -> np.ndarray:
        """The log of the product of sums, from the logs of its terms (n, configurations)."""
        total = sum(logsumexp(logs[:, members], axis=1) for members in self.members)
        return total - (len(self.members) - 1) * logs[:, 0] if len(self.members) > 1 else total

    def gradient(self, terms: _Terms, inverse_temperature: float) -> np.ndarray:
        """The gradient of log prior + β log likelihood = (1 − β) log prior + β log density."""
        if inverse_temperature == 0:
            return self._of_log_sum(terms.log_prior, terms.prior_gradient)
        of_density = self._of_log_sum(terms.log_density, terms.density_gradient)
        if inverse_temperature == 1:
            return of_density
        of_prior = self._of_log_sum(terms.log_prior, terms.prior_gradient)
        return (1 - inverse_temperature) * of_prior + inverse_temperature * of_density

    def _of_log_sum(self, logs: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        # Where a term is zero its gradient may be NaN.
        gradients = np.where(logs[:, :, None] > -np.inf, gradients, 0.0)
        out = -(len(self.members) - 1) * gradients[:, 0]
        for members in self.members:
            out = out + np.einsum("nc,ncd->nd", _weights(logs[:, members]), gradients[:, members])
        return out


class _Terms(NamedTuple):
    """The parts of the density at points (first axis) with configurations (second axis); gradients may be empty."""

    log_density: np.ndarray
    log_prior: np.ndarray
    log_jacobian: np.ndarray
    guard: np.ndarray
    density_gradient: np.ndarray
    prior_gradient: np.ndarray

    def rows(self, chosen: np.ndarray) -> _Terms:
        return _Terms(*(part[chosen] for part in self))

    def beside(self, other: _Terms) -> _Terms:
        return _Terms(*(np.concatenate(pair, axis=1) for pair in zip(self, other, strict=True)))


def _weights(logs: np.ndarray) -> np.ndarray:
    """The terms of each row relative to their sum; all zero where the sum is."""
    top = logsumexp(logs, axis=1, keepdims=True)
    return np.exp(logs - np.where(top > -np.inf, top, 0.0))


def _combinations(values: Sequence[range]) -> np.ndarray:
    """Every combination of these values, as rows."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*values, indexing="ij")], axis=1).astype(float)
