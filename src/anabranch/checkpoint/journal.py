"""The journal of a run: what its visits have found out, by what each of them depends on.

A visit is a function of the path, of how often that was visited, and of the settings and the seed of the run. A run
that goes on begins again from the start, with the same decisions, and takes the outcomes of visits from the journal;
all else is computed again: executions from the prior, proposals, the rules that choose the visits. So it comes to where
it was, and from there to the answer of a run that never stopped, bit for bit.

Of all visits the journal has the numbers of their estimates, and their draws where the run decides by them, as with the
error of an expectation. Else it has draws, and the states of strategies, of the last visit to each path alone, and of
the last ones when a run ended: they may be large. Draws of earlier visits from which proposals were made are in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from anabranch.checkpoint.plain import NotPlain, from_plain, to_plain
from anabranch.conquer import Elimination, Estimate
from anabranch.conquer.target_state import TargetState, restored, state_of_target
from anabranch.divide import Path
from anabranch.search.visit import Outcome, Task

__all__ = ["NOT_KEPT", "Journal", "Packed", "Parts"]


class _NotKept:
    """Stands for the state of a strategy after a visit that was not the last one."""


NOT_KEPT = _NotKept()


class Packed(NamedTuple):
    """A value as JSON and arrays."""

    tree: Any
    arrays: list[np.ndarray]

    @classmethod
    def of(cls, value: Any) -> Packed:
        arrays: list[np.ndarray] = []
        return cls(to_plain(value, arrays), arrays)


@dataclass
class Parts:
    """Entries of a journal: of all visits, of the last ones with their draws and states, and draws by themselves."""

    visits: dict[str, Packed] = field(default_factory=dict)
    states: dict[str, Packed] = field(default_factory=dict)
    draws: dict[str, Packed] = field(default_factory=dict)

    def add(self, other: Parts) -> None:
        """Add the entries of another one."""
        for name, entries in vars(other).items():
            getattr(self, name).update(entries)

    def packed(self) -> Packed:
        """All entries as one value."""
        arrays: list[np.ndarray] = []
        tree: dict[str, dict[str, Any]] = {}
        for name, entries in vars(self).items():
            tree[name] = {}
            for key, entry in entries.items():
                tree[name][key] = [entry.tree, len(arrays), len(entry.arrays)]
                arrays += entry.arrays
        return Packed(tree, arrays)

    @classmethod
    def unpacked(cls, tree: Any, arrays: list[np.ndarray]) -> Parts:
        """The entries of what `packed` gave."""
        return cls(**{
            name: {key: Packed(each, arrays[first : first + n]) for key, (each, first, n) in entries.items()}
            for name, entries in tree.items()
        })  # fmt: skip


class _Last(NamedTuple):
    """The last visit to a path, with its draws and states."""

    key: str
    target: TargetState
    outcome: Outcome


class Journal:
    """What visits have found out.

    Args:
        elimination: how discrete variables are summed out.
        modules: those of strategies that are not Anabranch's own, whose classes may be in states.
    """

    def __init__(self, elimination: Elimination | None, modules: Collection[str] = ()) -> None:
        self.elimination, self.modules = elimination, modules
        self.known, self.new = Parts(), Parts()
        self.last: dict[int, str] = {}
        """The key of the last visit to each path, by the number of the path."""
        self.pinned: set[str] = set()
        """The last visits when the run ended by itself, from which another one may have gone on."""
        self.unkept: set[int] = set()
        """Paths whose strategy has a state that is no plain data: their visits are made again."""
        self._unsaved: dict[int, _Last] = {}

    # Visits ---------------------------------------------------------------------------------------------------------

    def recall(self, task: Task, is_timed: bool) -> Outcome | None:
        """The outcome of a visit that was made before; None if it was not."""
        if task.number in self.unkept:
            return None
        for key in _keys(task, is_timed):
            entry = self.known.states.get(key) or self.known.visits.get(key)
            if entry is not None:
                return self._outcome(task, entry, key in self.known.states)
        return None

    def note(self, task: Task, outcome: Outcome, is_timed: bool, has_draws: bool = False) -> None:
        """Enter the outcome of a visit, with its draws if they are asked for, unless the end of the run has cut it
        short."""
        if outcome.is_cut or task.number in self.unkept:
            return
        key, target = _keys(task, is_timed)[-1], state_of_target(outcome.target)
        estimate = outcome.estimate
        if estimate is not None and not has_draws:
            estimate = replace(estimate, **_without_draws(estimate))
        self.new.visits[key] = Packed.of((target.light, estimate, outcome.gave_up, outcome.is_visit))
        self._unsaved[task.number] = _Last(key, target, outcome)
        self.last[task.number] = key

    def completed(self, task: Task) -> Task:
        """The task with the state of the last visit to its path, where that of the visit before is not kept.

        So it is with a time limit, after which a run may go on with other visits than those that were made.
        """
        if task.state is not NOT_KEPT:
            return task
        entry = self.known.states.get(self.last.get(task.number, ""))
        if entry is None:
            return replace(task, state=None, estimate=None)
        found = self._outcome(task, entry, True)
        return replace(task, target=found.target, state=found.state, estimate=found.estimate)

    def _outcome(self, task: Task, entry: Packed, is_whole: bool) -> Outcome:
        target, estimate, gave_up, is_visit, *state = from_plain(*entry, self.modules)
        if not is_whole:
            target = replace(target, split=_split_of(task))
        whole = restored(task.target, target, self.elimination)
        return Outcome(whole, state[0] if is_whole else NOT_KEPT, estimate, gave_up, is_visit)

    # Draws ----------------------------------------------------------------------------------------------------------

    def draws(
        self, path: Path, visits: int, rng: np.random.Generator, draw: Callable[[np.random.Generator], np.ndarray]
    ) -> np.ndarray:
        """Draws of a path, made by a generator; or those that were made before, with the generator as it was then."""
        key = _digest(path_key(path), visits, rng.bit_generator.state)
        if (entry := self.known.draws.get(key)) is not None:
            rng.bit_generator.state = entry.tree
            return entry.arrays[0]
        points = draw(rng)
        self.new.draws[key] = Packed(rng.bit_generator.state, [points])
        return points

    # Saving ---------------------------------------------------------------------------------------------------------

    def take_new(self) -> Parts:
        """The entries since the last time, with the draws and states of the last visits."""
        for number, (key, target, outcome) in self._unsaved.items():
            try:
                parts = (target, outcome.estimate, outcome.gave_up, outcome.is_visit, outcome.state)
                self.new.states[key] = Packed.of(parts)
            except NotPlain:
                self.unkept.add(number)
        return self.new

    def were_saved(self) -> None:
        """Forget the entries that `take_new` gave: they are in a file."""
        self.new, self._unsaved = Parts(), {}

    def pin(self) -> None:
        """Keep the states of the last visits, whatever comes after them."""
        self.pinned.update(self.last.values())

    @property
    def kept_states(self) -> set[str]:
        """The visits whose draws and states are kept."""
        return self.pinned.union(self.last.values())


def _keys(task: Task, is_timed: bool) -> list[str]:
    """What a visit depends on, as text; with a time limit also without the evaluations, which depend on the clock."""
    path = path_key(task.target.path)
    whole = _digest(path, task.number, task.visits, task.evaluations, task.max_evaluations)
    return [whole, _digest(path, task.number, task.visits)] if is_timed else [whole]


def path_key(path: Path) -> str:
    """What tells a path, in its present form, from all others."""
    program = path.program
    hashed = hashlib.sha256(repr((program.selecting, program.interpreted, path.apart)).encode())
    for choices in path.choices:
        named = choices.items() if isinstance(choices, Mapping) else enumerate(choices)
        for name, value in named:
            array = np.ascontiguousarray(value)
            hashed.update(f"{name} {array.dtype} {array.shape}".encode())
            hashed.update(array.tobytes())
        hashed.update(b"|")
    return hashed.hexdigest()


def _digest(*parts: Any) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _without_draws(estimate: Estimate) -> dict[str, Any]:
    empty = {"points": estimate.points[:0], "log_weights": estimate.log_weights[:0]}
    return empty if estimate.blocks is None else {**empty, "blocks": estimate.blocks[:0]}


def _split_of(task: Task) -> Any:
    """The prior draws of the target as it is."""
    return state_of_target(task.target).split
