"""Exchangeable components, found by evaluating the density.

Blocks of coordinates (the indices of a shared axis of some sites, or sites that differ in their number only: mu0, mu1)
are exchangeable if swapping two of them leaves prior and likelihood unchanged. The parts of a simplex are swapped with
them where they are weights of the blocks; rows and parts at once, where it is a row of a transition matrix. Every mode
then has K! copies, and one ordering is enough:

    Z_k = K! ∫ γ_k(x) 1[x_1 < x_2 < ... < x_K] dx,

where x_i is one coordinate of block i, the key. The labels of the draws are then permuted at random (`unfold`).
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Self

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr
from numpy.random import Generator
from numpyro.distributions import biject_to, constraints
from scipy.special import gammaln

from anabranch.conquer.target import Target
from anabranch.divide import Evaluation, SiteInfo, evaluate_jaxpr, inside

__all__ = [
    "Exchangeable",
    "are_symmetries",
    "find_symmetries",
    "fold",
    "log_copies",
    "ordered",
    "simplex_coordinates",
    "simplex_parts",
    "unfold",
]

_MAX_SETS, _MAX_POINTS = 31, 50
"""Sets of families that are tested, and points at which each is."""
_MAX_TOGETHER, _MAX_TRIED = 8, 2_000
"""Families of a set, at most, and sets that are looked at, most of which have families with the same columns."""


@dataclass(frozen=True)
class Family:
    """A site with an axis of length K, or K sites with numbered names.

    Attributes:
        name: of the site, or the common part of the names.
        columns: of the coordinates, a row for each block, or for each simplex.
        by_row: whether row i belongs to block i: there are K rows.
        by_part: whether part i of each simplex belongs to block i: a row has the K - 1 coordinates of a simplex.
    """

    name: str
    columns: np.ndarray
    by_row: bool = True
    by_part: bool = False

    def permuted(self, points: np.ndarray, order: np.ndarray) -> np.ndarray:
        """The coordinates (points, rows, width) when block i is the former block order[:, i]."""
        values = points[:, self.columns]
        if self.by_row:
            values = np.take_along_axis(values, order[:, :, None], axis=1)
        return _permuted_parts(values, order) if self.by_part else values


@dataclass(frozen=True)
class Exchangeable:
    """K blocks that can be permuted: families of sites, and the key (family and column) by which they are ordered."""

    families: tuple[Family, ...]
    key: tuple[int, int]

    @property
    def size(self) -> int:
        """K, the number of blocks."""
        return len(self.keys)

    @property
    def is_weighted(self) -> bool:
        """Whether the blocks have weights, parts of a simplex: a superfluous one may then be anywhere."""
        return any(family.by_part for family in self.families)

    @property
    def keys(self) -> np.ndarray:
        """The columns of the key, one for each block."""
        family, column = self.key
        return self.families[family].columns[:, column]

    def with_best_key(self, points: np.ndarray, widths: np.ndarray) -> Self:
        """Ordered by the coordinate that separates the blocks best, at modes with these widths (both (m, d)).

        An order by a coordinate that does not separate them would cut every mode in the middle.
        """

        def separation(key: tuple[int, int]) -> float:
            columns = self.families[key[0]].columns[:, key[1]]
            order = np.argsort(points[:, columns], axis=1)
            place = np.take_along_axis(points[:, columns], order, axis=1)
            width = np.take_along_axis(widths[:, columns], order, axis=1)
            return float((np.diff(place, axis=1) / (width[:, 1:] + width[:, :-1])).min(axis=1).mean())

        return replace(self, key=max(self._possible_keys, key=separation))

    def with_tightest_key(self, points: np.ndarray) -> Self:
        """Ordered by the coordinate by which these points, in order, have the smallest covariance."""
        candidates = [replace(self, key=key) for key in self._possible_keys]
        return min(candidates, key=lambda each: np.linalg.slogdet(np.atleast_2d(np.cov(fold(points, [each]).T)))[1])

    @property
    def _possible_keys(self) -> list[tuple[int, int]]:
        possible = [(i, family.columns) for i, family in enumerate(self.families) if not family.by_part]
        return [(i, j) for i, columns in possible for j in range(columns.shape[1])]

    def permuted(self, points: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Points whose block i is the former block order[:, i]; `order` has one row for each point."""
        out = points.copy()
        for family in self.families:
            out[:, family.columns] = family.permuted(points, order)
        return out


def log_copies(symmetries: Sequence[Exchangeable]) -> float:
    """log of the number of copies of a mode, Π K!."""
    return float(sum(gammaln(each.size + 1) for each in symmetries))


def fold(points: np.ndarray, symmetries: Sequence[Exchangeable]) -> np.ndarray:
    """The points with their blocks in order."""
    if not len(points):
        return points
    return reduce(lambda x, each: each.permuted(x, np.argsort(x[:, each.keys], axis=1)), symmetries, points)


def unfold(points: np.ndarray, symmetries: Sequence[Exchangeable], rng: Generator) -> np.ndarray:
    """The points with their blocks in random order."""
    for each in symmetries if len(points) else ():
        points = each.permuted(points, np.argsort(rng.random((len(points), each.size)), axis=1))
    return points


def ordered(points: np.ndarray, symmetries: Sequence[Exchangeable]) -> np.ndarray:
    """Whether the blocks of each point are in order."""
    out = np.ones(len(points), bool)
    for each in symmetries:
        out &= (np.diff(points[:, each.keys], axis=1) >= 0).all(axis=1)
    return out


def find_symmetries(target: Target, points: np.ndarray) -> list[Exchangeable]:
    """The exchangeable blocks of a target, tested at some of the points; the largest sets of sites come first."""
    if not len(points):
        return []
    points = points[:_MAX_POINTS]
    found: list[Exchangeable] = []
    taken: set[int] = set()
    for _, families in sorted(_families(target).items(), reverse=True):
        for chosen in _sets(families):
            keys = [i for i, family in enumerate(chosen) if not family.by_part]
            every = [int(column) for family in chosen for column in family.columns.ravel()]
            if taken & set(every):
                continue
            candidate = Exchangeable(chosen, (keys[0], 0))
            if _is_symmetric(target, candidate, points):
                found.append(candidate)
                taken |= set(every)
    return found


def _families(target: Target) -> dict[int, list[Family]]:
    """The families whose blocks may be exchangeable, by the number of blocks."""
    out: dict[int, list[Family]] = defaultdict(list)
    position = np.full(target.path.dim, -1)
    position[target.columns] = np.arange(target.dim)
    numbered: dict[str, list[tuple[int, SiteInfo]]] = defaultdict(list)
    for site in target.path.sites:
        if site.columns is None or site.discrete or not position[site.columns].size:  # a simplex of one part has none
            continue
        if (position[site.columns] < 0).any():  # integrated out
            continue
        if (match := re.fullmatch(r"(.*?)(\d+)(\D*)", site.name)) is not None:
            numbered[match[1] + "#" + match[3]].append((int(match[2]), site))
        for size, family in _of_site(site, position[site.columns]):
            out[size].append(family)
    for name, sites in numbered.items():
        shapes = {(site.shape, len(position[site.columns]), site.support == "simplex") for _, site in sites}
        if len(sites) > 1 and len(shapes) == 1:
            blocks = np.array([position[site.columns] for _, site in sorted(sites, key=lambda each: each[0])])
            ((shape, _, is_simplex),) = shapes
            out[len(sites)] += _by_row(name, blocks, parts=is_simplex and shape == (len(sites),))
    return out


def _of_site(site: SiteInfo, columns: np.ndarray) -> Iterator[tuple[int, Family]]:
    """The families of one site, each with its number of blocks."""
    is_simplex = site.support == "simplex"
    if columns.size != int(np.prod(site.shape)) and not is_simplex:
        return
    axes = site.shape[:-1] if is_simplex else site.shape
    coordinates = columns.reshape(*axes, -1) if is_simplex else columns.reshape(axes)
    for axis, size in enumerate(axes):
        if size > 1:
            blocks = np.moveaxis(coordinates, axis, 0).reshape(size, -1)
            for family in _by_row(site.name, blocks, parts=is_simplex and site.shape == (size, size)):
                yield size, family
    if is_simplex:
        simplexes = coordinates.reshape(-1, coordinates.shape[-1])
        yield site.shape[-1], Family(site.name, simplexes, by_row=False, by_part=True)


def _by_row(name: str, blocks: np.ndarray, parts: bool) -> list[Family]:
    """The family of these blocks; with `parts`, first the one in which the parts of the rows are permuted, too."""
    return [Family(name, blocks, by_part=True)] * parts + [Family(name, blocks)]


def _sets(families: Sequence[Family]) -> Iterator[tuple[Family, ...]]:
    """Sets of families that have no column in common and one that can be the key, the largest first."""
    sizes = range(min(len(families), _MAX_TOGETHER), 0, -1)
    every = itertools.chain.from_iterable(itertools.combinations(families, size) for size in sizes)
    return itertools.islice(filter(_are_apart, itertools.islice(every, _MAX_TRIED)), _MAX_SETS)


def _are_apart(families: Sequence[Family]) -> bool:
    columns = np.concatenate([family.columns.ravel() for family in families])
    return len(np.unique(columns)) == len(columns) and not all(family.by_part for family in families)


def are_symmetries(target: Target, symmetries: Sequence[Exchangeable], points: np.ndarray, rng: Generator) -> bool:
    """Whether the blocks are exchangeable at these points."""
    return _same(target.evaluate(points), target.evaluate(unfold(points, symmetries, rng)))


def _is_symmetric(target: Target, candidate: Exchangeable, points: np.ndarray) -> bool:
    """Whether the swaps of neighbours, which generate all permutations, leave prior and likelihood unchanged."""
    for some in (points[:2], points):  # most candidates fail at the first two points
        reference = target.evaluate(some)
        for i in range(candidate.size - 1):
            order = np.arange(candidate.size)
            order[[i, i + 1]] = order[[i + 1, i]]
            if not _same(reference, target.evaluate(candidate.permuted(some, np.tile(order, (len(some), 1))))):
                return False
    return bool(reference.inside.any())


def _same(one: Evaluation, other: Evaluation) -> bool:
    """Whether points have the same guards, likelihoods and prior densities."""
    if not (one.inside == other.inside).all():
        return False
    kept = one.inside
    one_pair, other_pair = ((each.log_likelihood, each.log_prior - each.log_jacobian) for each in (one, other))
    pairs = zip(one_pair, other_pair, strict=True)
    return all(np.allclose(a[kept], b[kept], rtol=1e-9, atol=1e-7) for a, b in pairs)


def _permuted_parts(coordinates: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The coordinates (points, rows, K - 1) of simplexes after their parts are permuted."""
    parts = simplex_parts(coordinates.reshape(-1, coordinates.shape[2]))
    permuted = np.take_along_axis(parts.reshape(*coordinates.shape[:2], -1), order[:, None, :], axis=2)
    return simplex_coordinates(permuted.reshape(len(parts), -1)).reshape(coordinates.shape)


def simplex_parts(coordinates: np.ndarray) -> np.ndarray:
    """The parts (n, K) of simplexes with these coordinates (n, K − 1)."""
    [parts] = evaluate_jaxpr(_simplex(coordinates.shape[1])[0], [coordinates])
    return np.asarray(parts)


def simplex_coordinates(parts: np.ndarray) -> np.ndarray:
    """The coordinates of simplexes with these parts."""
    [coordinates] = evaluate_jaxpr(_simplex(parts.shape[1] - 1)[1], [parts])
    return np.asarray(coordinates)


@cache
def _simplex(coordinates: int) -> tuple[ClosedJaxpr, ClosedJaxpr]:
    """The transform of so many coordinates to a simplex, and its inverse, to be evaluated by NumPy."""
    transform = biject_to(constraints.simplex)
    with inside():
        forward = jax.make_jaxpr(transform)(np.zeros(coordinates))
        return forward, jax.make_jaxpr(transform.inv)(np.full(coordinates + 1, 1 / (coordinates + 1)))
