"""Discover more paths while inference runs (paper, section 6.2 and appendix E).

A global proposal takes an execution x of a known path, changes the value of one of its sites, keeps the others as far
as they exist where that leads and fit there, and draws the rest from the prior (random-walk Metropolis-Hastings on
traces). A path that is proposed is remembered whether or not the move would be accepted:

    x ~ path k,   i ~ the sites of k that decisions depend on,   x_i' ~ q_i(· | x_i),   x' = run with x_i', x_-i
    C_k' ← C_k' + 1 for the path k' that x' takes

A change of any other site would lead back to the same path. The moves q_i are many, and of many sizes, since none of
them is ever rejected: whole numbers are stepped, halved and doubled, so that a path far from the prior is a few
generations away; reals are moved in unconstrained coordinates.

`propose` does this at random from many executions, `neighbours` takes every near value of every fixed site in turn.
Each sends its proposals through the tree in one batch: where all is known, no Python runs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator

from anabranch.divide.batch import Constraints
from anabranch.divide.division import Division
from anabranch.divide.executions import Executions
from anabranch.divide.path import Path
from anabranch.divide.recording import Recording, Site
from anabranch.divide.unmet import bounds_of
from anabranch.settings import whole

__all__ = ["FEW_VALUES", "Proposals", "bounds_of", "counts_of", "known_points", "neighbours", "propose"]

FROM_PRIOR = 0.25
"""The share of proposals that draw the chosen site from its prior; so every path can be proposed in some generation."""
FEW_VALUES = 20
"""A site with no more values than this is changed to any of them."""
MAX_WHOLE = 2.0**53
"""Whole numbers beyond it are not proposed: not all of them are doubles."""


@dataclass(frozen=True)
class Proposals:
    """Executions that were proposed.

    Attributes:
        arrivals: the executions proposed, by the path they took; several groups may have the same path.
        counts: how many were proposed into each path, C_k, by the path's signature.
    """

    arrivals: list[Executions] = field(default_factory=list)
    counts: dict[Any, int] = field(default_factory=dict)


def propose(division: Division, path: Path, points: np.ndarray, rng: Generator) -> Proposals:
    """One proposal from each point of a path: one of the sites that decisions depend on is changed at random."""
    groups = _deciding(path)
    if not len(points) or not groups:
        return Proposals()
    draft = _Draft(path.values(points))
    # Half of the proposals change a fixed site even where guards depend on many more reals.
    group = rng.integers(len(groups), size=len(points))
    number = np.array([len(sites) for sites in groups])[group]
    chosen = (number * rng.random(len(points))).astype(int)
    for g, sites in enumerate(groups):
        for i, site in enumerate(sites):
            rows = np.flatnonzero((group == g) & (chosen == i))
            if len(rows):
                _change(draft, site, rows, _std(path, site, points), rng)
    return _send(division, draft, rng)


def neighbours(division: Division, path: Path, points: np.ndarray, rng: Generator, max_changes: int = 200) -> Proposals:
    """Every value near that of each fixed site, one at a time: the paths around this one.

    Each is tried twice: alone, and as if the values were labels in the order of their first appearance, as of the
    tables of a Chinese restaurant: one is opened or closed, and later labels above it move up or down with it.

    The other sites have the values of some of the points; without any, they are drawn from the prior. Where there are
    more than `max_changes`, as many are taken at random.
    """
    max_changes = whole(1)("max_changes", max_changes)
    fixed = _fixed(path)
    alone = [(site, entry, value) for site in fixed for entry, value in _near(site)]
    changes: list[tuple[Site, int, int, dict[Site, int]]] = [(*change, {}) for change in alone]
    changes += [(*change, moved) for change in alone if (moved := _relabelled(fixed, change[0], change[2]))]
    if len(changes) > max_changes:
        changes = [changes[i] for i in np.sort(rng.choice(len(changes), max_changes, replace=False))]
    if not changes:
        return Proposals()
    draft = _Draft(_some_values(path, points, len(changes), rng))
    for row, (site, entry, value, moved) in enumerate(changes):
        draft.flat(site)[row, entry] = value
        for other, label in moved.items():
            draft.flat(other)[row, 0] = label
    return _send(division, draft, rng)


def counts_of(arrivals: Sequence[Executions]) -> dict[Any, int]:
    """How many executions took each path, by the path's signature."""
    counts: Counter[Any] = Counter()
    for executions in arrivals:
        if executions.path is not None:
            counts[executions.path.signature] += len(executions.members)
    return dict(counts)


def known_points(executions: Executions, first: int | None = None) -> np.ndarray:
    """The executions, or so many of them, as points of the path they took; without those that have no finite
    coordinates."""
    if executions.path is None:
        return np.zeros((0, 0))
    points = executions.path.coordinates(executions.values(first))
    return points[np.isfinite(points).all(axis=1)]


def _fixed(path: Path) -> list[Site]:
    return [site for site in path.recording.sites if site.fixed is not None]


def _deciding(path: Path) -> list[list[Site]]:
    """The fixed sites, and the variables that guards depend on: all of them if the interpreter runs the path."""
    guarding = set(range(len(path.sites))) if path.interpreted else set().union(*map(_guarding, path.recordings))
    variables = [site for site in path.recording.free if site.index in guarding]
    return [group for group in (_fixed(path), variables) if group]


def _guarding(recording: Recording) -> set[int]:
    nodes = [decision.node for decision in recording.decisions if decision.node is not None]
    steps = recording.trace.graph.schedule(nodes, {}, recording.drawn_from)
    return {step.index for step in steps if isinstance(step, Site)}


class _Draft:
    """The values of proposals, one row each, while they are changed."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self.values = {name: np.array(value) for name, value in values.items()}
        self.size = len(next(iter(self.values.values())))
        self.present: dict[str, np.ndarray] = {}
        self.steps: dict[str, np.ndarray] = {}

    def flat(self, site: Site) -> np.ndarray:
        """A view of a site's values with one column for each entry."""
        return self.values[site.name].reshape(self.size, -1)

    def move(self, site: Site, rows: np.ndarray, steps: np.ndarray) -> None:
        shape = (self.size, *site.unconstrained_shape)
        self.steps.setdefault(site.name, np.zeros(shape))[rows] = steps.reshape(-1, *shape[1:])


def _some_values(path: Path, points: np.ndarray, n: int, rng: Generator) -> dict[str, np.ndarray]:
    """Values at n points chosen at random, repeated if there are fewer; of the fixed sites alone if there are none."""
    if not len(points):
        return {name: np.stack([value] * n) for name, value in path.fixed.items()}
    values = path.values(points[rng.permutation(len(points))[:n]])
    row = np.resize(np.arange(min(n, len(points))), n)
    return {name: value[row] for name, value in values.items()}


def _send(division: Division, draft: _Draft, rng: Generator) -> Proposals:
    constraints = Constraints(draft.values, draft.present, draft.steps, redraw_outside=True)
    arrivals = division.send(constraints, draft.size, seed=int(rng.integers(2**62)))
    return Proposals(arrivals, counts_of(arrivals))


def _change(draft: _Draft, site: Site, rows: np.ndarray, spread: np.ndarray, rng: Generator) -> None:
    """Propose another value of a site in some of the rows."""
    from_prior = rng.random(len(rows)) < FROM_PRIOR
    draft.present.setdefault(site.name, np.ones(draft.size, bool))[rows[from_prior]] = False
    rows = rows[~from_prior]
    if site.discrete:
        _move_whole(draft.flat(site), rows, bounds_of(site), rng)
    else:
        draft.move(site, rows, _real_steps(len(rows), spread, rng))


def _std(path: Path, site: Site, points: np.ndarray) -> np.ndarray:
    """The standard deviation of each coordinate of a site; one where it is zero or not finite."""
    columns = path.sites[site.index].columns
    spread = points[:, columns].std(axis=0) if columns is not None else np.ones(0)
    return np.where(np.isfinite(spread) & (spread > 0), spread, 1.0)


def _real_steps(n: int, spread: np.ndarray, rng: Generator) -> np.ndarray:
    """Normal steps of one or all coordinates of a site, with scales around their standard deviation or around one."""
    scale = 10.0 ** rng.uniform(-2, 1, (n, 1)) * np.where(rng.random((n, 1)) < 0.5, spread, 1.0)
    one = np.arange(len(spread)) == rng.integers(max(len(spread), 1), size=(n, 1))
    return scale * rng.standard_normal((n, len(spread))) * (one | (rng.random((n, 1)) < 0.5))


def _move_whole(values: np.ndarray, rows: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], rng: Generator) -> None:
    """Change one entry of a discrete site in each row: to any value where they are few, else nearby or by a factor."""
    if not values.shape[1]:
        return
    entry = rng.integers(values.shape[1], size=len(rows))
    old, low, high = values[rows, entry].astype(float), bounds[0][entry], bounds[1][entry]
    anywhere = high - low < FEW_VALUES
    anywhere |= np.isfinite(high - low) & (rng.random(len(rows)) < 1 / 3)
    new = np.where(rng.random(len(rows)) < 0.5, _stepped(old, rng), _scaled(old, rng))
    new = np.clip(np.where(new == old, old + 1, new), np.maximum(low, -MAX_WHOLE), np.minimum(high, MAX_WHOLE))
    new[anywhere] = _any_other(old[anywhere], low[anywhere], high[anywhere], rng)
    values[rows, entry] = new


def _stepped(old: np.ndarray, rng: Generator) -> np.ndarray:
    """A geometric step, mostly of one or a few, at times of a hundred."""
    return old + rng.choice([-1, 1], len(old)) * rng.geometric(10.0 ** rng.uniform(-2, 0, len(old)))


def _scaled(old: np.ndarray, rng: Generator) -> np.ndarray:
    """Halved, doubled, or multiplied by a factor of at most two: more sites cost more to run."""
    half_or_twice = rng.choice([0.5, 2.0], len(old))
    factor = np.exp(rng.uniform(np.log(1 / 20), np.log(2), len(old)))
    return np.round(old * np.where(rng.random(len(old)) < 0.5, half_or_twice, factor))


def _any_other(old: np.ndarray, low: np.ndarray, high: np.ndarray, rng: Generator) -> np.ndarray:
    """Each of the other values of a finite support with the same probability."""
    shift = np.ceil(rng.random(len(old)) * (high - low))
    return low + (old - low + shift) % (high - low + 1)


def _near(site: Site) -> Iterator[tuple[int, int]]:
    """Each entry of a fixed site with each of the other values near it."""
    assert site.fixed is not None
    for entry, (value, low, high) in enumerate(zip(site.fixed.reshape(-1).tolist(), *bounds_of(site), strict=True)):
        near = [value - 1, value + 1, value - 2, value + 2, value // 2, 2 * value]
        if np.isfinite(high - low):
            first = max(low, min(value - FEW_VALUES // 2, high - FEW_VALUES))
            near = list(range(int(first), int(first) + FEW_VALUES + 1))
        for other in dict.fromkeys(near):
            if other != value and low <= other <= high:
                yield entry, other


def _relabelled(fixed: Sequence[Site], site: Site, value: int) -> dict[Site, int]:
    """The labels that later sites would have if this change opened or closed one."""
    labels = {each: int(each.fixed) for each in fixed if each.fixed is not None and each.shape == ()}
    if site not in labels:
        return {}
    old, later = labels[site], [each for each in labels if each.index > site.index]
    if value > old and value == 1 + max((labels[each] for each in labels if each.index < site.index), default=-1):
        return {each: labels[each] + 1 for each in later if labels[each] >= value}
    if value < old and all(labels[each] != old for each in labels if each is not site):
        return {each: labels[each] - 1 for each in later if labels[each] > old}
    return {}
