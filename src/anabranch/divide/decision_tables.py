"""Moves to any path: independence proposals for a Metropolis walk over paths (`search.walk`).

A table holds, for each entry e of a discrete site s that is fixed in known paths, probabilities T_se(v) of its values:
their shares of the mass of these paths, as in the cross-entropy method. A proposal draws all sites from the tables; a
site without a table, and one with a value outside its support, is drawn from its prior f_s. So it comes to a path with

    q(k) = Π_s [ Π_e T_se(v_e) + (1 − Π_e T_se(support of e)) f_s(v) ],

s over the fixed sites of the path. The tables do not depend on where a walker is: q(k | k') = q(k).

Values that go together make sites dependent: a tree with another split at its root has other splits below it, too.
Then there are tables for each group h of paths beside those for all of them, and a proposal is drawn from one of them,

    q(k) = Σ_h a_h q_h(k).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.divide.division import Division
from anabranch.divide.path import Path
from anabranch.divide.path_moves import PathMove, Slot, can_walk, paths_with, slots_of
from anabranch.divide.recording import Recording, Site

__all__ = ["DecisionTables", "fit_decision_tables", "move_to_any_path"]

Table = dict[int, float]
"""The probability of each value of an entry of a site."""

ROUNDING = 1e-12
"""How far from one the shares of all values may add up."""
ALL = 0.3
"""The share of the draws from the tables for all paths, where there are groups: they mix what the groups have."""
LEAST = 0.1
"""The share of the draws from groups that these have alike, whatever their mass: a light one may grow."""


@dataclass(frozen=True)
class GroupTables:
    """The probabilities of the values of sites, entry by entry, by the name and the shape of the site."""

    tables: Mapping[tuple[str, tuple[int, ...]], Sequence[Table]]
    _log_q: dict[Any, float] = field(default_factory=dict, repr=False)

    def draw(self, n: int, rng: Generator) -> list[dict[str, np.ndarray]]:
        """Values of all sites that have a table, `n` times; of the commonest shape, if a site has several."""
        drawn = {
            name: np.stack([_drawn(table, n, rng) for table in entries], axis=1).reshape(n, *shape)
            for (name, shape), entries in self.tables.items()
        }
        return [{name: values[i] for name, values in drawn.items()} for i in range(n)]

    def log_probability(self, path: Path) -> float:
        """log q(k); minus infinity if no proposal comes there, or if it depends on reals."""
        if path.signature not in self._log_q:
            by_site = groupby(slots_of(path.recording), key=lambda slot: slot.site)
            terms = [self._log_probability(path.recording, site, list(slots)) for site, slots in by_site]
            self._log_q[path.signature] = sum(terms)
        return self._log_q[path.signature]

    def _log_probability(self, recording: Recording, site: Site, slots: Sequence[Slot]) -> float:
        assert site.fixed is not None
        entries = self.tables.get((site.name, site.shape), [{}] * len(slots))
        drawn, inside = 1.0, 1.0
        for slot, table, value in zip(slots, entries, site.fixed.reshape(-1).tolist(), strict=True):
            drawn *= table.get(int(value), 0.0)
            inside *= sum(share for each, share in table.items() if slot.low <= each <= slot.high)
        if inside < 1 - ROUNDING:
            mass = recording.log_mass(site, site.fixed)
            if mass is None:
                return -np.inf
            drawn += (1 - inside) * float(np.exp(mass))
        return float(np.log(drawn)) if drawn > 0 else -np.inf


@dataclass(frozen=True)
class DecisionTables:
    """Tables for groups of paths, and the share a_h of the draws from each."""

    groups: Sequence[GroupTables]
    shares: np.ndarray

    def draw(self, n: int, rng: Generator) -> list[dict[str, np.ndarray]]:
        """Values of all sites that have a table, `n` times."""
        numbers = rng.multinomial(n, self.shares)
        drawn = [each for group, times in zip(self.groups, numbers, strict=True) for each in group.draw(times, rng)]
        return [drawn[i] for i in rng.permutation(n)]

    def log_probability(self, path: Path) -> float:
        """log q(k); minus infinity if no proposal comes there, or if it depends on reals."""
        return float(logsumexp([group.log_probability(path) for group in self.groups], b=self.shares))


def fit_decision_tables(
    paths: Sequence[Path], weights: Sequence[float], groups: Sequence[int] | None = None
) -> DecisionTables:
    """Tables with the shares of the values in these paths, and in those of each group, which have the same number."""
    everything = _fitted(paths, weights)
    numbers = sorted(set(groups or ()))
    if groups is None or len(numbers) < 2:
        return DecisionTables([everything], np.ones(1))
    masses = {number: sum(w for w, g in zip(weights, groups, strict=True) if g == number) for number in numbers}
    heavy = [number for number in numbers if masses[number] > 0]
    fits = [_fitted(paths, [w * (g == number) for w, g in zip(weights, groups, strict=True)]) for number in heavy]
    mass = np.array([masses[number] for number in heavy])
    shares = (1 - LEAST) * mass / mass.sum() + LEAST / len(heavy)
    return DecisionTables([everything, *fits], np.array([ALL, *((1 - ALL) * shares)]))


def _fitted(paths: Iterable[Path], weights: Iterable[float]) -> GroupTables:
    """A site that some paths have in another shape has a table for the shape with the largest weight."""
    counts: dict[tuple[str, tuple[int, ...]], list[Table]] = {}
    totals: dict[tuple[str, tuple[int, ...]], float] = {}
    for path, weight in zip(paths, weights, strict=True):
        for name, values in path.fixed.items() if weight > 0 else ():
            key = name, values.shape
            totals[key] = totals.get(key, 0.0) + weight
            entries = counts.setdefault(key, [{} for _ in range(values.size)])
            for table, value in zip(entries, values.reshape(-1).tolist(), strict=True):
                table[int(value)] = table.get(int(value), 0.0) + weight
    keys = {key[0]: key for key in sorted(totals, key=lambda key: totals[key])}
    return GroupTables({key: [_normalised(each, totals[key]) for each in counts[key]] for key in keys.values()})


def _normalised(table: Table, total: float) -> Table:
    return {value: table[value] / total for value in sorted(table)}


def _drawn(table: Table, n: int, rng: Generator) -> np.ndarray:
    shares = np.array(list(table.values()))
    return rng.choice(np.array(list(table)), n, p=shares / shares.sum())


def move_to_any_path(
    division: Division, paths: Sequence[Path], tables: DecisionTables, rng: Generator
) -> list[PathMove]:
    """One proposal for each of the paths, whatever they are."""
    arrived = paths_with(division, tables.draw(len(paths), rng), rng)
    return [
        PathMove(None, -np.inf) if there is None else _move(here, there, tables)
        for here, there in zip(paths, arrived, strict=True)
    ]


def _move(here: Path, there: Path, tables: DecisionTables) -> PathMove:
    if not can_walk(there):
        return PathMove(there, -np.inf, is_known=False)
    back, forth = tables.log_probability(here), tables.log_probability(there)
    return PathMove(there, back - forth if min(back, forth) > -np.inf else -np.inf)
