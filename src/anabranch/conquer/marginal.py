"""Summing discrete coordinates out of a density.

For a path with continuous coordinates x and finite discrete ones z,

    log γ(x) = log Σ_z γ(x, z),   ∇ log γ(x) = Σ_z π(z | x) ∇ₓ log γ(x, z),

so that methods which know only real numbers, and gradients, serve mixtures and missing categories, too (paper,
section 4.2, leaves the choice of the local estimator open; this widens it). With m coordinates of v values the sum has
vᵐ terms. But where log γ(x, z) is a sum over groups of coordinates g, as it is for the independent assignments of a
mixture, the sum of products is a product of sums: with any reference z⁰ of positive density

    Σ_z γ(x, z) = γ(x, z⁰) Π_g Σ_{z_g} γ(x, z_g, z⁰ elsewhere) / γ(x, z⁰),

which has m·v terms. Which coordinates interact is found by evaluating, not by reading the program: i and j do not if

    γ(z_i, z_j) γ(z_i', z_j') = γ(z_i', z_j) γ(z_i, z_j')

for prior and density alike, with the others held, at points from the prior; those that a guard depends on are always
taken to interact. The groups found are then checked as a whole at more points, with values drawn at random and values
that the groups would draw. No finite number of points shows that there is no interaction anywhere, so every evaluation
goes on checking a few of its own, and raises an error rather than give a wrong density.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.sparse.csgraph import connected_components
from scipy.special import logsumexp

from anabranch import errors
from anabranch.conquer.enumeration import Enumerate
from anabranch.conquer.target import Target
from anabranch.divide import Evaluation, Path, PriorDraws, finite_values, guarded

__all__ = ["Marginal", "sum_out"]

_AT_ONCE, _NUMBERS = 65_536, 2**23
"""Rows that are evaluated at once, and the numbers in them, at most: 64 MiB."""
_PAIRS = 200_000
"""Pairs of coordinates, at most, of which it is looked whether they interact."""
_PROBES, _CHECKS = 6, 48
"""Points at which pairs are looked at, and at which the groups are checked as a whole."""
_POINTS_PER_CHECK = 64


def sum_out(target: Target, most: int = 64) -> Target:
    """The target with its finite discrete coordinates summed out, if that takes at most so many evaluations per point.

    It is returned as it is where nothing is to be gained: no such coordinate, too many values, or so few that the whole
    path can be enumerated. The probes come from a fixed seed: the same path is always summed in the same way.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer.target import PathTarget
        >>> def mixture(y):
        ...     mu = ab.sample("mu", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
        ...     z = ab.sample("z", dist.Bernoulli(0.3).expand([len(y)]).to_event(1))
        ...     ab.observe("y", dist.Normal(mu[z], 1.0), y)
        >>> path = ab.find_paths(mixture, np.arange(20.0), executions=10).paths[0]
        >>> marginal = sum_out(PathTarget(path))
        >>> path.dim, marginal.dim, marginal.cost
        (22, 2, 21)
    """
    found = finite_values(target.path) if target.dim == target.path.dim else ()
    columns = np.array([i for i, values in enumerate(found) if values is not None], int)
    values = [each for each in found if each is not None]
    sizes = [len(each) for each in values]
    count = math.prod(sizes)
    if not values or (len(values) == target.dim and count <= Enumerate.most):
        return target
    fewest = 1 + sum(size - 1 for size in sizes)
    if fewest > most or math.comb(len(values), 2) > _PAIRS:
        return target
    rng = np.random.default_rng(0)
    probes = _probes(target, rng) if count > fewest else np.zeros((0, target.dim))
    references = _references(target, columns, probes)
    if len(references):
        groups = _groups(_Interactions(target, columns, values, probes[:_PROBES]), rng)
        # Counted before they are built: a chain of hidden states is one group, with as many terms as it has histories.
        terms = 1 + sum(math.prod(sizes[i] for i in group) - 1 for group in groups)
        if len(groups) > 1 and terms <= most:
            parted = Marginal(target, columns, values, groups, references)
            if parted.holds_at(probes[:, parted.kept], rng):
                return parted
    if count > most:
        return target
    return Marginal(target, columns, values, [np.arange(len(values))], np.array([[each[0] for each in values]], float))


class Marginal:
    """The density of a target with some discrete coordinates summed out; made by `sum_out`.

    Args:
        target: the density with them.
        columns: which coordinates they are.
        values: the values of each.
        groups: which of them interact, as positions in `columns`: a partition.
        references: rows of their values, tried in turn until one has positive density at a point.
    """

    def __init__(
        self,
        target: Target,
        columns: np.ndarray,
        values: Sequence[range],
        groups: Sequence[np.ndarray],
        references: np.ndarray,
    ) -> None:
        self.target = target
        self.columns = columns
        self.kept = np.setdiff1d(np.arange(target.dim), columns)
        self.dim = len(self.kept)
        self.discrete = target.discrete[self.kept]
        self._values = values
        self._groups = groups
        self._combinations = [_combinations([values[i] for i in group]) for group in groups]
        self._plans = [self._plan(reference) for reference in _distinct(references)]
        self._checks = 0

    @property
    def path(self) -> Path:
        return self.target.path

    @property
    def has_gradient(self) -> bool:
        """Whether `differentiate` can be used."""
        return self.target.has_gradient

    @property
    def evaluations(self) -> int:
        """Evaluations of the density behind it: each point here takes several."""
        return self.target.evaluations

    @property
    def left(self) -> float:
        return self.target.left

    @property
    def seconds(self) -> float:
        return self.target.seconds

    def allow(self, evaluations: float) -> None:
        self.target.allow(evaluations)

    def charge(self, evaluations: int) -> None:
        self.target.charge(evaluations)

    @property
    def best_likelihood(self) -> float:
        """The largest log likelihood met so far."""
        return self.target.best_likelihood

    @property
    def known(self) -> np.ndarray:
        return self.target.known[:, self.kept]

    @property
    def cost(self) -> int:
        """How many evaluations one point takes."""
        return 1 + sum(len(combinations) - 1 for combinations in self._combinations)

    def evaluate(self, points: np.ndarray) -> Evaluation:
        """Log prior and density are summed; the log likelihood is what remains between the two.

        The Jacobian is that at the reference: where the transform of a site depends on z, there is no other.
        """
        self._check(points)
        return self._at(points, None)[0]

    def differentiate(self, points: np.ndarray, inverse_temperature: float = 1.0) -> tuple[Evaluation, np.ndarray]:
        self._check(points)
        return self._at(points, inverse_temperature)

    def prior(self, n: int, rng: np.random.Generator) -> PriorDraws:
        draws = self.target.prior(n, rng)
        return replace(draws, points=draws.points[:, self.kept])

    def executions(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The points with values of what was summed out, drawn from their distribution given the rest."""
        return self.target.executions(self._joined(points, self._drawn(points, rng)), rng)

    def _drawn(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Values of what was summed out, given the points; the reference where there is no density."""
        drawn = np.tile(self._plans[0].configurations[0], (len(points), 1))
        for rows, plan, terms in self._settled(points, None):
            for group, combinations, members in zip(self._groups, self._combinations, plan.members, strict=True):
                weights = np.cumsum(_weights(terms.log_density[:, members]), axis=1)
                weights[:, -1] = np.maximum(weights[:, -1], 1e-300)
                chosen = (rng.uniform(size=(len(rows), 1)) * weights[:, -1:] >= weights).sum(axis=1)
                drawn[np.ix_(rows, group)] = combinations[np.minimum(chosen, len(combinations) - 1)]
        return drawn

    def _plan(self, reference: np.ndarray) -> _Plan:
        """Every configuration of z that the sums need with this reference, and which of them each group sums."""
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
        """Whether the groups hold at a few of the points that are asked for: where it matters, that is."""
        if len(self._groups) == 1 or not len(points):
            return
        self._checks += 1
        rng = np.random.default_rng(self._checks)
        if not self.holds_at(points[rng.integers(len(points), size=1 + len(points) // _POINTS_PER_CHECK)], rng):
            raise errors.StrategyCannotRun(
                f"discrete sites of the path ({self.path.description}) were summed out as independent groups, and are "
                "not independent everywhere",
                remedy="Keep them as variables (summed=0)",
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
        self, points: np.ndarray, inverse_temperature: float | None
    ) -> Iterator[tuple[np.ndarray, _Plan, _Terms]]:
        """Rows of the points, in parts by the first reference that has positive density there, with their terms.

        A sum over one group needs no reference; rows at which none has positive density are left out.
        """
        size = max(1, _rows_at_once(self.target) // self.cost)
        for start in range(0, len(points), size):
            left = np.arange(start, min(start + size, len(points)))
            yield from self._settled_at(points, left, inverse_temperature)

    def _settled_at(
        self, points: np.ndarray, left: np.ndarray, inverse_temperature: float | None
    ) -> Iterator[tuple[np.ndarray, _Plan, _Terms]]:
        for plan in self._plans:
            base = self._terms(points[left], plan.configurations[:1], inverse_temperature)
            settled = (base.log_density[:, 0] > -np.inf) | (len(self._groups) == 1)
            rows = left[settled]
            if len(rows):
                others = self._terms(points[rows], plan.configurations[1:], inverse_temperature)
                yield rows, plan, base.rows(settled).beside(others)
            left = left[~settled]
            if not len(left):
                return

    def _terms(self, points: np.ndarray, configurations: np.ndarray, inverse_temperature: float | None) -> _Terms:
        """The parts of the density at every point with every configuration."""
        shape = len(points), len(configurations)
        joined = self._joined(np.repeat(points, shape[1], axis=0), np.tile(configurations, (shape[0], 1)))
        nothing = np.zeros((*shape, 0))
        density_gradient = prior_gradient = nothing
        if inverse_temperature is None:
            evaluation = self.target.evaluate(joined)
        if inverse_temperature is not None and inverse_temperature != 0:
            evaluation, gradient = self.target.differentiate(joined)
            density_gradient = gradient[:, self.kept].reshape(*shape, self.dim)
        if inverse_temperature is not None and inverse_temperature != 1:
            evaluation, gradient = self.target.differentiate(joined, 0.0)
            prior_gradient = gradient[:, self.kept].reshape(*shape, self.dim)
        return _Terms(
            evaluation.log_density.reshape(shape),
            np.where(evaluation.inside, evaluation.log_prior, -np.inf).reshape(shape),
            evaluation.log_jacobian.reshape(shape),
            evaluation.inside.reshape(shape),
            density_gradient,
            prior_gradient,
        )

    def _joined(self, points: np.ndarray, summed: np.ndarray) -> np.ndarray:
        """Rows of all coordinates, in the order of the target."""
        out = np.empty((len(points), self.target.dim))
        out[:, self.kept], out[:, self.columns] = points, summed
        return out

    def holds_at(self, points: np.ndarray, rng: np.random.Generator) -> bool:
        """Whether the groups give the density of the target, with z at random, as they would draw it, and extreme."""
        n, ends = len(points), np.array([(each[0], each[-1]) for each in self._values], float)
        uniform = np.stack([rng.integers(each.start, each.stop, size=n) for each in self._values], axis=1)
        extreme = np.where(rng.uniform(size=(n, 1)) < 0.5, ends[:, 0], ends[:, 1])
        z = np.stack([self._drawn(points, rng), uniform, extreme], axis=1)
        evaluation = self.target.evaluate(self._joined(np.repeat(points, 3, axis=0), z.reshape(3 * n, -1)))
        log_prior = np.where(evaluation.inside, evaluation.log_prior, -np.inf)
        said = self._products(points, z).reshape(3 * n, 2)
        return bool((_equal(said[:, 0], evaluation.log_density) & _equal(said[:, 1], log_prior)).all())

    def _products(self, points: np.ndarray, z: np.ndarray) -> np.ndarray:
        """log γ(x, z) and log prior as the groups say they are, (n, k, 2), for k values z (n, k, m) at each point.

        Minus infinity where no reference has positive density.
        """
        out = np.full((*z.shape[:2], 2), -np.inf)
        for rows, plan, terms in self._settled(points, None):
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
        """Of log prior + β log likelihood = (1 − β) log prior + β log density, each of them a log of sums."""
        if inverse_temperature == 0:
            return self._of_log_sum(terms.log_prior, terms.prior_gradient)
        of_density = self._of_log_sum(terms.log_density, terms.density_gradient)
        if inverse_temperature == 1:
            return of_density
        of_prior = self._of_log_sum(terms.log_prior, terms.prior_gradient)
        return (1 - inverse_temperature) * of_prior + inverse_temperature * of_density

    def _of_log_sum(self, logs: np.ndarray, gradients: np.ndarray) -> np.ndarray:
        # Where a term is zero its gradient may be no number.
        gradients = np.where(logs[:, :, None] > -np.inf, gradients, 0.0)
        out = -(len(self.members) - 1) * gradients[:, 0]
        for members in self.members:
            out = out + np.einsum("nc,ncd->nd", _weights(logs[:, members]), gradients[:, members])
        return out


@dataclass(frozen=True)
class _Terms:
    """The parts of the density at points (first axis) with configurations (second axis); gradients may be empty."""

    log_density: np.ndarray
    log_prior: np.ndarray
    log_jacobian: np.ndarray
    guard: np.ndarray
    density_gradient: np.ndarray
    prior_gradient: np.ndarray

    def _parts(self) -> list[np.ndarray]:
        return [getattr(self, part.name) for part in fields(self)]

    def rows(self, chosen: np.ndarray) -> _Terms:
        return _Terms(*(part[chosen] for part in self._parts()))

    def beside(self, other: _Terms) -> _Terms:
        return _Terms(*(np.concatenate(pair, axis=1) for pair in zip(self._parts(), other._parts(), strict=True)))


# Which coordinates interact -------------------------------------------------------------------------------------------


def _probes(target: Target, rng: np.random.Generator) -> np.ndarray:
    """Points of positive density, from the prior and from what is known."""
    points = np.concatenate([target.known[:_PROBES], target.prior(_CHECKS, rng).points])
    return points[target.evaluate(points).log_density > -np.inf] if len(points) else points


def _references(target: Target, columns: np.ndarray, probes: np.ndarray) -> np.ndarray:
    """Values of z from the probes, first some that have a density at every one of them; nothing if none have.

    Where it depends on the rest of a point which values of z have a density, there may be no such reference, and then
    groups cannot be summed one by one.
    """
    candidates = _distinct(probes[:_PROBES, columns])
    for number, values in enumerate(candidates):
        rows = probes.copy()
        rows[:, columns] = values
        if (target.evaluate(rows).log_density > -np.inf).all():
            return np.roll(candidates, -number, axis=0)
    return candidates[:0]


@dataclass(frozen=True)
class _Interactions:
    """What to ask: a target, the columns in question with their values, and points to ask at."""

    target: Target
    columns: np.ndarray
    values: Sequence[range]
    probes: np.ndarray

    def found(self, rng: np.random.Generator) -> np.ndarray:
        """Which pairs of columns interact at some probe, as a matrix."""
        m = len(self.columns)
        first, second = np.triu_indices(m, 1)
        of_guards = guarded(self.target.path)[self.columns]
        out = of_guards[:, None] & of_guards
        for probe in self.probes:
            other = _another(probe[self.columns], self.values, rng)
            rows = np.tile(probe, (1 + m, 1))
            rows[1 + np.arange(m), self.columns] = other
            alone = self._logs(rows)
            for start in range(0, len(first), _rows_at_once(self.target)):
                i, j = (each[start : start + _rows_at_once(self.target)] for each in (first, second))
                rows, numbers = np.tile(probe, (len(i), 1)), np.arange(len(i))
                rows[numbers, self.columns[i]], rows[numbers, self.columns[j]] = other[i], other[j]
                for logs, single in zip(self._logs(rows), alone, strict=True):
                    out[i, j] |= ~_equal(single[0] + logs, single[1 + i] + single[1 + j])
        return out

    def _logs(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The log density and the log prior."""
        evaluation = self.target.evaluate(rows)
        return evaluation.log_density, np.where(evaluation.inside, evaluation.log_prior, -np.inf)


def _groups(interactions: _Interactions, rng: np.random.Generator) -> list[np.ndarray]:
    """The columns, those together that interact, directly or through others."""
    count, labels = connected_components(interactions.found(rng), directed=False)
    return [np.flatnonzero(labels == label) for label in range(count)]


def _another(current: np.ndarray, values: Sequence[range], rng: np.random.Generator) -> np.ndarray:
    """For each coordinate a value that it does not have, if there is one."""
    sizes = np.array([len(each) for each in values])
    starts = np.array([each.start for each in values])
    return starts + (current - starts + rng.integers(1, np.maximum(sizes, 2))) % sizes


def _equal(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether logarithms agree: those that are infinite only if both are the same, whatever the size of the others."""
    finite = np.isfinite(one) & np.isfinite(other)
    a, b = np.where(finite, one, 0.0), np.where(finite, other, 0.0)
    near = np.abs(a - b) <= 1e-6 + 1e-9 * (np.abs(a) + np.abs(b))
    return np.where(finite, near, one == other)


def _rows_at_once(target: Target) -> int:
    """How many points of the target are evaluated at once."""
    return max(1, min(_AT_ONCE, _NUMBERS // max(target.dim, 1)))


# Arithmetic -----------------------------------------------------------------------------------------------------------


def _weights(logs: np.ndarray) -> np.ndarray:
    """The terms of each row relative to their sum; all zero where the sum is."""
    top = logsumexp(logs, axis=1, keepdims=True)
    return np.exp(logs - np.where(top > -np.inf, top, 0.0))


def _combinations(values: Sequence[range]) -> np.ndarray:
    """Every combination of these values, as rows."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*values, indexing="ij")], axis=1).astype(float)


def _distinct(rows: np.ndarray) -> np.ndarray:
    """The rows without repetition, in the order in which they first come."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
