"""Recordings that were used last are kept; the others are made again when they are asked for.

A recording takes tens of kilobytes, and a program may have a hundred thousand paths, of which few are visited at a
time. Of the others there is what says where they are: the answers that lead there, and an outline. Once a recording is
asked for that was dropped, the program is run again with these answers, as in a worker process, which gets no more than
the answers either: so nothing depends on what was dropped.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from anabranch.divide.distributions import support_text
from anabranch.limits import enforced, holding
from anabranch.numpyro_internals import ONE_AT_A_TIME

if TYPE_CHECKING:
    from anabranch.divide.recording import Choices, Decision, Recording, Site

__all__ = ["Kept", "Outline", "RecentRecordings", "SiteInfo"]

_MAX_NODES, _LEAST = 150_000, 100
"""Nodes in the graphs of recordings that are kept, of some two kilobytes each; and recordings that are kept at least,
however large they are."""
_MIN_ADDED = 50
"""Recordings added before the least used ones are looked for."""
_clock = itertools.count(1)


class Same(Protocol):
    """Gives the same object for the same key."""

    def __call__(self, key: Hashable, make: Callable[[], Any] | None = None) -> Any: ...


@dataclass(frozen=True, slots=True)
class SiteInfo:
    """A site of a path. `value` is the value to which a discrete site is fixed, or None."""

    name: str
    shape: tuple[int, ...]
    support: str
    discrete: bool
    where: str
    columns: slice | None
    value: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Outline:
    """What is said of a recording without it.

    Attributes:
        sites: the sites, fixed ones included, with the columns of their coordinates.
        deterministics: the names of the deterministics.
        constants: those of them that the fixed sites decide, with their values.
    """

    sites: tuple[SiteInfo, ...]
    deterministics: tuple[str, ...]
    constants: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, recording: Recording) -> Outline:
        """The outline of a recording that is complete; its parts are shared with the others of the program."""
        same, columns, fixed = recording.program.recent.same, recording.columns, recording.fixed
        constants = recording.constants if recording.deterministics else {}
        return cls(
            tuple([_info(site, columns.get(site.name), same) for site in recording.sites]),
            same(tuple(recording.deterministics)),
            tuple([(name, value) for name, value in constants.items() if name not in fixed]),
        )

    @property
    def fixed(self) -> dict[str, np.ndarray]:
        """The values to which sites are fixed, by name."""
        return {site.name: site.value for site in self.sites if site.value is not None}


def _info(site: Site, columns: slice | None, same: Same) -> SiteInfo:
    value, support = site.fixed, support_text(site.support)
    key = (
        site.name, site.shape, support, site.discrete, site.where,
        None if columns is None else (columns.start, columns.stop), None if value is None else _content(value),
    )  # fmt: skip
    return cast(SiteInfo, same(key, lambda: SiteInfo(*key[:5], columns, value)))


def _content(value: np.ndarray) -> Hashable:
    return value.dtype.str, value.shape, value.tobytes()


class Kept:
    """The recording of one run: itself, or how to make it again.

    Attributes:
        made: what a path makes of its recordings, such as its compiled density; it is dropped with them.
        used: when it was used last, as a number.
    """

    __slots__ = ("_decisions", "_outline", "_recording", "_weak", "made", "program", "used")

    def __init__(self, recording: Recording) -> None:
        self.program = recording.program
        self._recording: Recording | None = recording
        self._weak: weakref.ref[Recording] | None = None
        self._outline: Outline | None = None
        self._decisions: tuple[Decision, ...] | None = None
        self.made: Any = None
        self.used = 0

    @property
    def is_there(self) -> bool:
        """Whether the recording need not be made again."""
        return self._recording is not None

    @property
    def is_concrete(self) -> bool:
        """Whether the interpreter has made the recording, which is never dropped."""
        return self._recording is not None and self._recording.concrete

    @property
    def recording(self) -> Recording:
        """The recording; made again if it was dropped."""
        self.used = next(_clock)
        return self._recording or self._found_again()

    @property
    def outline(self) -> Outline:
        """The outline of the recording; kept from the first time on that it is asked for."""
        if self._outline is None:
            self._outline = Outline.of(self.recording)
        return self._outline

    @property
    def decisions(self) -> Sequence[Decision]:
        """Its decisions: those so far, if the run is not complete."""
        return self.recording.decisions if self._decisions is None else self._decisions

    @property
    def choices(self) -> Choices:
        """What another run needs to be the same."""
        if self._decisions is None:
            return self.recording.choices
        return [decision.answer for decision in self._decisions]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The names of its sites: those so far, if the run is not complete."""
        if self._recording is None and self._outline is not None:
            return tuple([site.name for site in self._outline.sites])
        return self.recording.addresses

    @property
    def nodes(self) -> int:
        """How large the recording is, as it is now."""
        recording = self._recording
        return 0 if recording is None else len(recording.trace.graph) + len(recording.sites)

    def complete(self, recording: Recording) -> None:
        """The run is over: from now on, the recording may be dropped, unless the interpreter has made it."""
        self._recording, recording.kept = recording, self
        if recording.concrete:
            return
        recent = self.program.recent
        if self._decisions is None:
            self._decisions = tuple([recent.same_decision(each) for each in recording.decisions])
        self.used = next(_clock)
        recent.add(self)

    def drop(self) -> None:
        """Let go of the recording. Whoever has it goes on with it, and so does whoever asks for it meanwhile."""
        recording = self._recording
        if recording is not None:
            with enforced(None):
                self._outline = self._outline or Outline.of(recording)
            self._weak = weakref.ref(recording)
            self._recording = self.made = None

    def _found_again(self) -> Recording:
        from anabranch.divide.replay import rerun

        # Whatever the limits: the end of a run is described, too, and this takes as long as the run did that is known.
        with holding(ONE_AT_A_TIME), enforced(None):
            if self._recording is not None:
                return self._recording
            recording = None if self._weak is None else self._weak()
            if recording is None:
                recording = rerun(self.program, self.choices)
            self.complete(recording)
            return recording


class RecentRecordings:
    """The recordings of one program that are kept, and what they share."""

    def __init__(self) -> None:
        self._kept: list[Kept] = []
        self._added, self._lock = 0, threading.Lock()
        self._shared: dict[Hashable, Any] = {}

    def add(self, kept: Kept) -> None:
        """Keep a recording, and drop those that were used least recently if there are too many."""
        with self._lock:
            self._kept.append(kept)
            self._added += 1
            if self._added < max(_MIN_ADDED, len(self._kept) // 4):
                return
            self._added = 0
            dropped = self._dropped()
        for each in dropped:
            each.drop()

    def _dropped(self) -> list[Kept]:
        recent, nodes = sorted(self._kept, key=lambda each: -each.used), 0
        for number, each in enumerate(recent):
            nodes += each.nodes
            if nodes > _MAX_NODES and number >= _LEAST:
                self._kept = recent[:number]
                return recent[number:]
        return []

    def same(self, key: Hashable, make: Callable[[], Any] | None = None) -> Any:
        """An object that is equal to the key, or was made for it: the same one each time."""
        try:
            return self._shared[key]
        except KeyError:
            return self._shared.setdefault(key, key if make is None else make())

    def same_decision(self, decision: Decision) -> Decision:
        """The decision, as another recording has it that came to it with the same answer."""
        asked = decision.site, decision.node, decision.text, decision.where, decision.source
        return cast("Decision", self.same((asked, _content(decision.answer)), lambda: decision))

    def same_array(self, array: np.ndarray) -> np.ndarray:
        """The array, or one with the same content."""
        return cast(np.ndarray, self.same(_content(array), lambda: array))

    def __reduce__(self) -> Any:
        return RecentRecordings, ()  # in another process there are others
