"""All values of one deciding site, the others as they are: what a climb from path to path chooses from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from anabranch.divide.discover import FEW_VALUES
from anabranch.divide.path import Path
from anabranch.divide.path_moves import Slot, Values, movable, partition_targets, with_label

__all__ = ["Holding", "changes_of", "number_of_choices", "values_of_choice"]


def number_of_choices(path: Path, labels: frozenset[str]) -> int:
    """The entries of fixed sites that can have another value."""
    return len(movable(path.recording, labels))


def values_of_choice(path: Path, labels: frozenset[str], number: int) -> list[Values]:
    """The values of the fixed sites with each other value of one entry: for labels of a partition, with one element in
    each other block, and in a block of its own."""
    slots = movable(path.recording, labels)
    slot = slots[number]
    values = {name: np.array(value) for name, value in path.fixed.items()}
    if slot.site.name in labels:
        group = [each for each in slots if each.site.name in labels]
        targets = partition_targets(values, slot.site.name, group)
        return [with_label(values, slot.site.name, target, group) for target in targets]
    return [_with(values, slot, other) for other in _others(int(values[slot.site.name].reshape(-1)[slot.entry]), slot)]


class Holding(NamedTuple):
    """An entry of a fixed site that keeps its value."""

    name: str
    entry: int
    value: int

    def is_kept(self, path: Path) -> bool:
        """Whether a path has this value."""
        values = path.fixed.get(self.name)
        return values is not None and values.size > self.entry and values.reshape(-1)[self.entry] == self.value


def changes_of(path: Path, labels: frozenset[str]) -> list[tuple[Values, Holding]]:
    """The values of the fixed sites with another value of one entry, for each entry and value, and what was changed;
    labels of a partition are left as they are."""
    values = {name: np.array(value) for name, value in path.fixed.items()}
    return [
        (_with(values, slot, other), Holding(slot.site.name, slot.entry, other))
        for slot in movable(path.recording, labels)
        if slot.site.name not in labels
        for other in _others(int(values[slot.site.name].reshape(-1)[slot.entry]), slot)
    ]


def _others(value: int, slot: Slot) -> list[int]:
    """All other values where they are few, else one step up and down."""
    if slot.high - slot.low < FEW_VALUES:
        return [v for v in range(int(slot.low), int(slot.high) + 1) if v != value]
    return [v for v in (value - 1, value + 1) if slot.low <= v <= slot.high]


def _with(values: Values, slot: Slot, other: int) -> Values:
    changed = np.array(values[slot.site.name])
    changed.reshape(-1)[slot.entry] = other
    return {**values, slot.site.name: changed}
