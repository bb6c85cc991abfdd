"""Reversible moves between paths, for a Metropolis walk over them (`search.walk`).

A move changes the value of one or two of the discrete sites that are fixed in a path k, and leads to a path k'. Sites
that both paths have keep their values. A site that only k' has is drawn from its prior, with the probability f of its
value; the reverse move removes it, and draws those that only k has:

    q(k' | k) = 1/C(k) · 1/t · Π_{s in k' only} f_s,     q(k | k') = 1/C(k') · 1/t · Π_{s in k only} f_s

with C(k) choices of sites and t other values of the sites chosen, the same in both directions. A move that the reverse
move does not undo, or whose probability is not known, is not made: its ratio is zero.

Labels in the order of their first appearance, as of the tables of a Chinese restaurant, stand for a partition. A move
takes one element to another block or to a block of its own, and labels the blocks anew; each element has as many such
moves as the others have blocks, in both directions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from anabranch.divide.batch import Constraints
from anabranch.divide.discover import FEW_VALUES, bounds_of
from anabranch.divide.division import Division
from anabranch.divide.path import Path
from anabranch.divide.recording import Recording, Site

__all__ = [
    "PathMove", "Slot", "Values", "can_walk", "label_names", "movable", "move_between_paths", "partition_targets",
    "paths_with", "slots_of", "with_label",
]  # fmt: skip

PAIRS = 0.4
"""The share of moves that change two sites: one predictor of two that resemble each other takes the other's place."""
MIN_LABELS = 3
"""Sites that are taken to be labels at least."""


Values = Mapping[str, np.ndarray]
"""The values of sites, by name."""


class PathMove(NamedTuple):
    """A move to a path: log q(k | k') − log q(k' | k), minus infinity if it is not made; `path` is None where an
    execution did not come to an end. `is_known` is False if it is not made because its probability is not known."""

    path: Path | None
    log_ratio: float
    is_known: bool = True


class Slot(NamedTuple):
    """An entry of a fixed site, and the least and the largest value that it can have, infinite where there is none."""

    site: Site
    entry: int
    low: float
    high: float


@dataclass(frozen=True)
class Change:
    """The values that the fixed sites of a path are to have, and the slots that were changed."""

    path: Path
    values: Values
    slots: tuple[Slot, ...]


def can_walk(path: Path) -> bool:
    """Whether a path is determined by the values of its fixed sites, and has any: no guard, and no interpreter."""
    return path.is_determined


def label_names(paths: Iterable[Path]) -> frozenset[str]:
    """The scalar sites that are labels in the order of their first appearance, by what all these paths show.

    Sites whose names differ in their numbers alone are a group. In each path the largest value that one of them can
    have is one more than the largest label before it; over the paths it varies.
    """
    highs: dict[str, dict[str, set[float]]] = {}
    refuted: set[str] = set()
    for path in paths:
        for stem, group in _by_stem(path.recording).items():
            if not _are_labels(group):
                refuted.add(stem)
            for slot in group:
                highs.setdefault(stem, {}).setdefault(slot.site.name, set()).add(slot.high)
    out: set[str] = set()
    for stem, by_name in highs.items():
        varies = any(len(values) > 1 for values in by_name.values())
        if stem not in refuted and varies and len(by_name) >= MIN_LABELS:
            out |= by_name.keys()
    return frozenset(out)


def _by_stem(recording: Recording) -> dict[str, list[Slot]]:
    """The scalar fixed sites, by their names without numbers."""
    out: dict[str, list[Slot]] = {}
    for slot in slots_of(recording):
        if slot.site.shape == ():
            out.setdefault(re.sub(r"\d+", "#", slot.site.name), []).append(slot)
    return out


def _are_labels(group: Sequence[Slot]) -> bool:
    largest = group[0].high - 1  # minus one; or zero, where the first element has no site
    for slot in group:
        if slot.low != 0 or slot.high != largest + 1 or slot.high > len(group):
            return False
        largest = max(largest, _value(slot))
    return True


def move_between_paths(
    division: Division, paths: Sequence[Path], labels: frozenset[str], rng: Generator
) -> list[PathMove]:
    """One move from each of the paths."""
    changes = [_changed(path, labels, rng) for path in paths]
    found = iter(paths_with(division, [change.values for change in changes if change is not None], rng))
    arrived = [None if change is None else next(found) for change in changes]
    return [
        PathMove(None, -np.inf) if change is None or path is None else _move(change, path, labels)
        for change, path in zip(changes, arrived, strict=True)
    ]


def paths_with(division: Division, values: Sequence[Values], rng: Generator) -> list[Path | None]:
    """The path to which each of these sets of values leads: looked up if it is known, else executed.

    Values that do not fit are drawn from the prior instead. It is None where an execution did not come to an end.
    """
    found = [division.path_with(each) for each in values]
    unknown = [i for i, path in enumerate(found) if path is None]
    for _, group in groupby(sorted(unknown, key=lambda i: _shapes(values[i])), key=lambda i: _shapes(values[i])):
        rows = list(group)
        together = {name: np.stack([values[i][name] for i in rows]) for name in values[rows[0]]}
        constraints = Constraints(together, redraw_outside=True)
        for executions in division.send(constraints, len(rows), seed=int(rng.integers(2**62))):
            for member in executions.members:
                found[rows[member]] = executions.path
    return found


def _shapes(values: Values) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, value.shape) for name, value in values.items())


# Changes --------------------------------------------------------------------------------------------------------------


def _changed(path: Path, labels: frozenset[str], rng: Generator) -> Change | None:
    """The values after a move, drawn at random; None if the path has fewer sites than it would change."""
    slots = movable(path.recording, labels)
    number = 2 if rng.random() < PAIRS else 1  # whatever the path: the move back must be as probable
    if len(slots) < number:
        return None
    chosen = tuple(slots[i] for i in rng.choice(len(slots), number, replace=False))
    values = {name: np.array(value) for name, value in path.fixed.items()}
    for slot in chosen:
        if slot.site.name in labels:
            _move_element(values, slot.site.name, [each for each in slots if each.site.name in labels], rng)
        else:
            flat = values[slot.site.name].reshape(-1)
            flat[slot.entry] = _other_value(int(flat[slot.entry]), slot, rng)
    return Change(path, values, chosen)


def slots_of(recording: Recording) -> list[Slot]:
    """Each entry of each fixed site, with its bounds, in the order of the sites."""
    return recording.once(_slots)


def _slots(recording: Recording) -> list[Slot]:
    fixed = [site for site in recording.sites if site.fixed is not None]
    bounded = [(site, *bounds_of(site)) for site in fixed]
    return [Slot(s, i, low[i], high[i]) for s, low, high in bounded for i in range(len(low))]


def _value(slot: Slot) -> int:
    assert slot.site.fixed is not None
    return int(slot.site.fixed.reshape(-1)[slot.entry])


def _other_value(value: int, slot: Slot, rng: Generator) -> int:
    """Any other value where they are few, else one step up or down; beyond a bound the move is not made."""
    others = slot.high - slot.low
    if others < FEW_VALUES:
        return int(slot.low + (value - slot.low + 1 + rng.integers(int(others))) % (others + 1))
    return value + (1 if rng.random() < 0.5 else -1)


def _move_element(values: dict[str, np.ndarray], name: str, group: Sequence[Slot], rng: Generator) -> None:
    """Take an element to another block, or to one of its own if it shares its block."""
    targets = partition_targets(values, name, group)
    if targets:
        values.update(with_label(values, name, targets[rng.integers(len(targets))], group))


def partition_targets(values: Values, name: str, group: Sequence[Slot]) -> list[int]:
    """The labels that an element can have instead of its own; the last one is new if it shares its block."""
    labels = {slot.site.name: int(values[slot.site.name]) for slot in group}
    own, others = labels[name], sorted({labels[each] for each in labels if each != name} | _without_site(group))
    return [label for label in others if label != own] + [len(labels) + 1] * (own in others)


def _without_site(group: Sequence[Slot]) -> set[int]:
    """The label of the first element, if it has no site."""
    return {0} if group[0].high == 1 else set()


def with_label(values: Values, name: str, label: int, group: Sequence[Slot]) -> dict[str, np.ndarray]:
    """The values with another label of an element, and all labels in the order of their first appearance."""
    labels = {slot.site.name: int(values[slot.site.name]) for slot in group} | {name: label}
    order = dict.fromkeys(_without_site(group), 0)
    for each in labels.values():
        order.setdefault(each, len(order))
    return {**values, **{each: np.asarray(order[own], values[each].dtype) for each, own in labels.items()}}


# Ratios ---------------------------------------------------------------------------------------------------------------


def _move(change: Change, path: Path, labels: frozenset[str]) -> PathMove:
    """The move to the path that a change leads to."""
    if not can_walk(path):
        return PathMove(path, -np.inf, is_known=False)
    log_ratio = _log_ratio(change, path, labels)
    return PathMove(path, -np.inf, is_known=False) if np.isnan(log_ratio) else PathMove(path, log_ratio)


def _log_ratio(change: Change, path: Path, labels: frozenset[str]) -> float:
    """log q(k | k') − log q(k' | k); NaN if it depends on reals."""
    old, new = change.path.recording, path.recording
    before, after = change.values, path.fixed
    if any(name in after and not np.array_equal(after[name], value) for name, value in before.items()):
        return -np.inf
    bounds = {(slot.site.name, slot.entry): (slot.low, slot.high) for slot in slots_of(new)}
    for slot in change.slots:
        same = bounds.get((slot.site.name, slot.entry)) == (slot.low, slot.high)
        if not same and not (slot.site.name in labels and slot.site.name in after):
            return -np.inf
    numbers = [len(movable(each, labels)) for each in (old, new)]
    choices = [n * (n - 1) if len(change.slots) > 1 else n for n in numbers]
    drawn, removed = _log_mass(new, before), _log_mass(old, after)
    if not choices[1]:
        return -np.inf
    return float(np.log(choices[0] / choices[1]) + removed - drawn)


def movable(recording: Recording, labels: frozenset[str]) -> list[Slot]:
    """The slots that can have another value."""
    return [slot for slot in slots_of(recording) if slot.site.name in labels or slot.high > slot.low]


def _log_mass(recording: Recording, known: Mapping[str, Any]) -> float:
    """The log probability of drawing the values of the fixed sites that are not known; NaN if it depends on reals."""
    total = 0.0
    for site in recording.sites:
        if site.fixed is not None and site.name not in known:
            mass = recording.log_mass(site, site.fixed)
            total += np.nan if mass is None else float(mass)
    return total
