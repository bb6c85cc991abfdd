"""A checkpoint: a journal that is saved to a folder while the run goes on, and read when the same run begins again."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch import errors
from anabranch.checkpoint.fingerprint import difference, of_program
from anabranch.checkpoint.folder import Folder, packed, read_part
from anabranch.checkpoint.journal import Parts
from anabranch.checkpoint.visit_log import VisitLog
from anabranch.conquer import PerPath
from anabranch.divide import Division, program_fingerprint
from anabranch.limits import Limits
from anabranch.progress import Status

if TYPE_CHECKING:
    from anabranch.dcc import DCC

__all__ = ["Checkpoint"]

TIME_SHARE = 0.03
"""The share of the time of a run that saving takes at most; more save more often, and lose less at a power cut."""
_MAX_PARTS, _GROWTH, _FREE_BYTES = 64, 3, 2**24
"""Parts, and bytes as a multiple of those after the last time, from which on all parts are made one."""


class Checkpoint(VisitLog):
    """The checkpoint of one run of `DCC`.

    Args:
        folder: where; one that holds the checkpoint of another run is refused.
        settings: the engine.
        division: the program and its data.
        limits: of the first part of the run.
        seed: of the run.
    """

    def __init__(
        self, folder: str | os.PathLike[str], settings: DCC, division: Division, limits: Limits, seed: int
    ) -> None:
        super().__init__(settings, division.program)
        self._folder = Folder(folder)
        self._run = _fingerprint(settings, division, limits, seed)
        self._parts: list[dict[str, Any]] = []
        self._seconds = [0.0]  # of each part of the run, as `more` makes them
        self._part, self._is_catching_up, self._unmerged = 0, True, 0
        self._saved_at, self._took = -np.inf, 0.0

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Within this the run goes on, from what is in the folder, and no other run writes to it."""
        with self._folder.locked():
            self._read()
            yield

    def _read(self) -> None:
        found = self._folder.newest()
        if found is None or found[0]["parts"] == self._parts:
            return
        index, contents = found
        if differing := difference(index["run"], self._run):
            raise errors.CannotLoad(
                f"the checkpoint in {self._folder.path} is of another run: other {differing}",
                remedy="Call infer as before, or choose another folder; to go on with a larger budget, use "
                "posterior.more",
            )
        for tree, arrays in contents:
            self.journal.known.add(Parts.unpacked(tree, arrays))
        self.journal.last = {int(number): key for number, key in index["last"].items()}
        self.journal.pinned, self.journal.unkept = set(index["pinned"]), set(index["unkept"])
        self._parts, self._seconds = index["parts"], index["seconds"]
        self._unmerged = sum(part["bytes"] for part in self._parts)

    # The run --------------------------------------------------------------------------------------------------------

    def begin_to_visit(self, limits: Limits) -> None:
        """Let the clock show the time that the run took until here, since what follows was not done before."""
        if self._is_catching_up:
            self._is_catching_up, self._seconds = False, self._seconds[: self._part + 1]
            limits.earlier.seconds += max(self._seconds[-1] - limits.elapsed, 0.0)

    def begin_part(self) -> None:
        self._part += 1
        if self._part == len(self._seconds):
            self._seconds.append(0.0)
        self._is_catching_up = True

    # Saving ---------------------------------------------------------------------------------------------------------

    def save(self, status: Status, limits: Limits) -> None:
        """Save after a round, unless the last time was too short ago."""
        if not self._is_catching_up and time.monotonic() - self._saved_at >= self._took / TIME_SHARE:
            self._save(status, limits)

    def end_part(self, status: Status, limits: Limits, is_over: bool) -> None:
        """Save when a run ends, by itself (`is_over`) or by an interrupt or the time."""
        is_last, pinned = self._part == len(self._seconds) - 1, len(self.journal.pinned)
        if is_over and is_last:
            self.journal.pin()
        if not self._is_catching_up or len(self.journal.pinned) > pinned:
            self._save(status, limits)

    def _save(self, status: Status, limits: Limits) -> None:
        began, journal = time.monotonic(), self.journal
        new = journal.take_new()
        self._seconds[self._part] = max(limits.elapsed, self._seconds[self._part])
        try:
            kept = self._parts
            if self._is_merging_due:
                new, kept = self._merged(new), []
            content = packed(*new.packed())
            self._parts = self._folder.write(self._index(status), kept, [content])
        except OSError as error:
            self.failure = (
                f"The checkpoint in {self._folder.path} could not be written ({error.strerror or error}): it is that "
                "of an earlier round. Make room on the disk."
            )
        else:
            self.failure = ""
            journal.were_saved()
            if not kept:
                self._unmerged = len(content)
        self._saved_at = time.monotonic()
        self._took = self._saved_at - began

    def _index(self, status: Status) -> dict[str, Any]:
        journal = self.journal
        return {
            "run": self._run,
            "progress": {**asdict(status), "saved": time.time()},
            "seconds": self._seconds,
            "last": {str(number): key for number, key in journal.last.items()},
            "pinned": sorted(journal.pinned),
            "unkept": sorted(journal.unkept),
        }

    @property
    def _is_merging_due(self) -> bool:
        size = sum(part["bytes"] for part in self._parts)
        return len(self._parts) >= _MAX_PARTS or size > _GROWTH * self._unmerged + _FREE_BYTES

    def entries(self) -> Parts:
        return self._merged(self.journal.take_new())

    def _merged(self, new: Parts) -> Parts:
        """All parts as one, without the states that are not kept."""
        out = Parts()
        for part in self._parts:
            out.add(Parts.unpacked(*read_part(self._folder.path, part)))
        out.add(new)
        kept = self.journal.kept_states
        out.states = {key: entry for key, entry in out.states.items() if key in kept}
        return out


def _fingerprint(settings: DCC, division: Division, limits: Limits, seed: int) -> dict[str, Any]:
    """What a run is, for a run that goes on to be the same."""
    run = {
        **of_program(division.program), "seed": seed, "budget": limits.budget, "tolerance": _tolerance(limits),
        "engine": _text_of(settings),
    }  # fmt: skip
    plain: dict[str, Any] = json.loads(json.dumps(run))
    return plain


def _tolerance(limits: Limits) -> Any:
    return limits.tolerance if limits.target is None else [limits.tolerance, program_fingerprint(limits.target)]


def _text_of(settings: DCC) -> str:
    """The settings as text, without addresses in memory."""
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(settings))
    if isinstance(settings.strategy, PerPath) and callable(settings.strategy.choice):
        text += program_fingerprint(settings.strategy.choice)
    return text
