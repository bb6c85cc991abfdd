"""Exchangeable components, found by evaluating the density.

Where swapping two blocks of coordinates (index i and j of every site that shares an axis, or sites that differ in their
number only: mu0, mu1) leaves prior and likelihood unchanged, the blocks are exchangeable, and every mode has K! copies.
One ordering is enough:

    Z_k = K! ∫ γ_k(x) 1[x_1 < x_2 < ... < x_K] dx,

where x_i is one coordinate of block i, the key. The draws then get their labels back at random (`unfold`), so that they
are draws from the posterior: mu0 is any of the components, as the program says.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
from numpyro.distributions import biject_to, constraints
from scipy.special import gammaln

from anabranch.conquer.target import Target
from anabranch.divide import Evaluation, SiteInfo, inside

__all__ = ["Exchangeable", "are_symmetries", "find_symmetries", "fold", "log_copies", "ordered", "unfold"]

_MOST_SETS = 31
"""Sets of sites that are tried together, at most."""
_POINTS = 50
"""Points at which a symmetry is tested."""


@dataclass(frozen=True)
class Exchangeable:
    """K blocks that can be permuted.

    Attributes:
        names: what is permuted, in words, one for each family of sites.
        families: for each family the columns of block i in row i, (K, width).
        simplices: for each family whether its K blocks are the parts of a simplex, whose K - 1 coordinates do not
            belong to one block each; its columns are then the row of coordinates, (1, K - 1).
        key: the family and the column of its blocks that they are ordered by.
    """

    names: tuple[str, ...]
    families: tuple[np.ndarray, ...]
    simplices: tuple[bool, ...]
    key: tuple[int, int]

    @property
    def size(self) -> int:
        """K, the number of blocks."""
        return len(self.keys)

    @property
    def keys(self) -> np.ndarray:
        """The columns of the key, one for each block."""
        family, column = self.key
        return self.families[family][:, column]

    def with_best_key(self, points: np.ndarray, widths: np.ndarray) -> Exchangeable:
        """Ordered by what tells the blocks apart best, at modes with these widths (both (m, d)).

        An order by what does not tell them apart would cut through the middle of every mode.
        """

        def separation(key: tuple[int, int]) -> float:
            columns = self.families[key[0]][:, key[1]]
            order = np.argsort(points[:, columns], axis=1)
            place = np.take_along_axis(points[:, columns], order, axis=1)
            width = np.take_along_axis(widths[:, columns], order, axis=1)
            return float((np.diff(place, axis=1) / (width[:, 1:] + width[:, :-1])).min(axis=1).mean())

        keys = [
            (i, j)
            for i, (columns, simplex) in enumerate(zip(self.families, self.simplices, strict=True))
            if not simplex
            for j in range(columns.shape[1])
        ]
        return replace(self, key=max(keys, key=separation))

    def permuted(self, points: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Points whose block i is what block order[:, i] was; `order` has one row for each point."""
        out = points.copy()
        for columns, simplex in zip(self.families, self.simplices, strict=True):
            if simplex:
                out[:, columns[0]] = _permuted_simplex(points[:, columns[0]], order)
            else:
                blocks = points[:, columns]  # (n, K, width)
                out[:, columns] = np.take_along_axis(blocks, order[:, :, None], axis=1)
        return out


def log_copies(symmetries: Sequence[Exchangeable]) -> float:
    """log of the number of copies of a mode, Π K!."""
    return float(sum(gammaln(each.size + 1) for each in symmetries))


def fold(points: np.ndarray, symmetries: Sequence[Exchangeable]) -> np.ndarray:
    """The points with their blocks in order."""
    return reduce(lambda x, each: each.permuted(x, np.argsort(x[:, each.keys], axis=1)), symmetries, points)


def unfold(points: np.ndarray, symmetries: Sequence[Exchangeable], rng: np.random.Generator) -> np.ndarray:
    """The points with their blocks in random order."""
    for each in symmetries:
        points = each.permuted(points, np.argsort(rng.random((len(points), each.size)), axis=1))
    return points


def ordered(points: np.ndarray, symmetries: Sequence[Exchangeable]) -> np.ndarray:
    """Whether the blocks of each point are in order."""
    out = np.ones(len(points), bool)
    for each in symmetries:
        out &= (np.diff(points[:, each.keys], axis=1) >= 0).all(axis=1)
    return out


def find_symmetries(target: Target, points: np.ndarray) -> list[Exchangeable]:
    """The exchangeable blocks of a target, tested at some of these points; the largest sets of sites first."""
    if not len(points):
        return []
    points = points[:_POINTS]
    found: list[Exchangeable] = []
    taken: set[int] = set()
    for size, families in sorted(_families(target).items(), reverse=True):
        for chosen in _sets(families):
            candidate = _candidate(size, chosen)
            columns = {int(c) for family in candidate.families for c in family.ravel()} if candidate else set()
            if candidate is None or columns & taken:
                continue
            if _is_symmetric(target, candidate, points):
                found.append(candidate)
                taken |= columns
    return found


@dataclass(frozen=True)
class _Family:
    """A site with an axis of length K, or K sites with numbered names."""

    name: str
    columns: np.ndarray
    simplex: bool


def _families(target: Target) -> dict[int, list[_Family]]:
    """What may be exchangeable, by the number of blocks."""
    out: dict[int, list[_Family]] = defaultdict(list)
    position = _positions(target)
    numbered: dict[str, list[tuple[int, SiteInfo]]] = defaultdict(list)
    for site in target.path.sites:
        if site.columns is None or site.discrete:
            continue
        columns = position[site.columns]
        if (match := re.fullmatch(r"(.*?)(\d+)(\D*)", site.name)) is not None:
            numbered[match[1] + "#" + match[3]].append((int(match[2]), site))
        if columns.size == int(np.prod(site.shape)):
            for axis, size in enumerate(site.shape):
                if size > 1:
                    blocks = np.moveaxis(columns.reshape(site.shape), axis, 0).reshape(size, -1)
                    out[size].append(_Family(site.name, blocks, False))
        elif site.support == "simplex" and len(site.shape) == 1:
            out[site.shape[0]].append(_Family(site.name, columns[None], True))
    for name, sites in numbered.items():
        shapes = {(site.shape, len(position[site.columns])) for _, site in sites}
        if len(sites) > 1 and len(shapes) == 1:
            blocks = np.array([position[site.columns] for _, site in sorted(sites, key=lambda each: each[0])])
            out[len(sites)].append(_Family(name, blocks, False))
    return out


def _positions(target: Target) -> np.ndarray:
    """Where each coordinate of the path is among the target's, which lacks what was summed out."""
    path = target.path
    if target.dim == path.dim:
        return np.arange(path.dim)
    return np.where(path.discrete, -1, np.cumsum(~path.discrete) - 1)


def _sets(families: Sequence[_Family]) -> Iterator[tuple[_Family, ...]]:
    """Sets of families, the largest first."""
    sizes = range(len(families), 0, -1)
    every = itertools.chain.from_iterable(itertools.combinations(families, size) for size in sizes)
    return itertools.islice(every, _MOST_SETS)


def _candidate(size: int, families: Sequence[_Family]) -> Exchangeable | None:
    keys = [i for i, family in enumerate(families) if not family.simplex]
    overlap = len({c for f in families for c in f.columns.ravel()}) < sum(f.columns.size for f in families)
    if not keys or overlap:
        return None
    return Exchangeable(
        tuple(family.name for family in families),
        tuple(family.columns for family in families),
        tuple(family.simplex for family in families),
        (keys[0], 0),
    )


def are_symmetries(
    target: Target, symmetries: Sequence[Exchangeable], points: np.ndarray, rng: np.random.Generator
) -> bool:
    """Whether the blocks can indeed be permuted at these points: a check where the mass is, once that is known."""
    return _same(target.evaluate(points), target.evaluate(unfold(points, symmetries, rng)))


def _is_symmetric(target: Target, candidate: Exchangeable, points: np.ndarray) -> bool:
    """Whether the swaps of neighbours, which generate all permutations, leave prior and likelihood unchanged."""
    few = points[:2]  # most candidates fail at once
    for some in (few, points):
        reference = target.evaluate(some)
        for i in range(candidate.size - 1):
            order = np.arange(candidate.size)
            order[[i, i + 1]] = order[[i + 1, i]]
            if not _same(reference, target.evaluate(candidate.permuted(some, np.tile(order, (len(some), 1))))):
                return False
    return bool(reference.inside.any())


def _same(one: Evaluation, other: Evaluation) -> bool:
    """Whether points have the same guards, likelihoods and prior densities of values."""
    if not (one.inside == other.inside).all():
        return False
    kept = one.inside
    pairs = (
        (one.log_likelihood, other.log_likelihood),
        (one.log_prior - one.log_jacobian, other.log_prior - other.log_jacobian),
    )
    return all(np.allclose(a[kept], b[kept], rtol=1e-9, atol=1e-7) for a, b in pairs)


def _permuted_simplex(coordinates: np.ndarray, order: np.ndarray) -> np.ndarray:
    """The coordinates of a simplex after its parts are permuted."""
    transform = biject_to(constraints.simplex)
    with inside():
        parts = np.take_along_axis(np.asarray(transform(coordinates)), order, axis=1)
        return np.asarray(transform.inv(parts))
