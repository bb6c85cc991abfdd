"""A run of `DCC` that goes on: in its process from where it is, and in another one from a file.

From a file, the run begins again with the same settings, limits and seed, and takes the outcomes of its visits from the
journal, until that has no more of them. So it comes to where it was, and goes on from there as it would have: bit for
bit, unless a time limit or an interrupt ended one of its visits, which is then made again.
"""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch import errors
from anabranch.checkpoint.fingerprint import difference, of_program
from anabranch.checkpoint.folder import packed, unpacked
from anabranch.checkpoint.journal import Parts
from anabranch.checkpoint.plain import NotPlain, from_plain, to_plain
from anabranch.checkpoint.visit_log import VisitLog
from anabranch.combine.continuation import GONE_ON, Refusal
from anabranch.divide import divide
from anabranch.execution import Executor, executor_of
from anabranch.limits import Limits
from anabranch.progress import Progress
from anabranch.search import SearchState, search_paths

if TYPE_CHECKING:
    from anabranch.combine import PosteriorWithEvidence
    from anabranch.dcc import DCC

__all__ = ["Continuing", "SavedRun"]

_OWN_CODE = Refusal(
    "its settings or its tolerance have functions or classes of your own, which a folder does not keep",
    "Call more in the process of the run; or give infer checkpoint=..., and call it again with the same arguments",
)


class Continuing:
    """Continues a run in its process.

    Args:
        state: of the run, which goes on; from one posterior once.
        executor: where it ran.
    """

    def __init__(self, state: SearchState, executor: Executor) -> None:
        self.state, self.executor, self.part = state, executor, len(state.ended)

    def __call__(self, limits: Limits, workers: int | None, progress: Progress) -> PosteriorWithEvidence:
        if self._is_spent:
            GONE_ON(limits, workers, progress)
        self.state.go_on(limits)
        executor = self.executor if workers is None else executor_of(workers)
        return self.state.settings.searched(self.state, executor, progress)

    @property
    def _is_spent(self) -> bool:
        return self.part != len(self.state.ended)

    def saved(self) -> bytes | Refusal:
        """The journal of the run with its settings and limits, as JSON and arrays."""
        if self._is_spent:
            return GONE_ON
        state, visit_log = self.state, self.state.visit_log
        arrays: list[np.ndarray] = []
        try:
            tree = self._beginning(arrays)
        except NotPlain:
            return _OWN_CODE
        try:
            entries = visit_log.contents().packed()
        except (OSError, ValueError) as error:
            return Refusal(f"its checkpoint could not be read ({error})", "Call more in the process of the run")
        tree |= {
            "seed": state.seed,
            "last": list(visit_log.journal.last.items()),
            "unkept": sorted(visit_log.journal.unkept),
            "entries": entries.tree,
            "first": len(arrays),
        }
        return packed(tree, arrays + entries.arrays)

    def _beginning(self, arrays: list[np.ndarray]) -> dict[str, Any]:
        """The program, the settings and the limits of each part of the run; raises NotPlain for code of the user's."""
        limits = [*self.state.ended, self.state.limits]
        settings = to_plain(self.state.settings, arrays)
        from_plain(settings, arrays)
        if any(each.target is not None for each in limits):
            raise NotPlain
        return {
            "run": of_program(self.state.visit_log.program),
            "settings": settings,
            "limits": [[each.budget, each.seconds, each.tolerance] for each in limits],
        }


@dataclass(frozen=True)
class SavedRun:
    """Continues a run from what `Continuing.saved` gave; as often as it is called.

    Args:
        content: of the file.
        program, args, kwargs: the program and its data, which must be those of the run.
        seconds: how long the run took.
    """

    content: bytes
    program: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    seconds: float

    def __call__(self, limits: Limits, workers: int | None, progress: Progress) -> PosteriorWithEvidence:
        try:
            tree, arrays = unpacked(self.content)
        except (ValueError, KeyError, EOFError, OSError, zipfile.BadZipFile) as error:
            raise _other(f"the file of its visits is damaged ({error})") from error
        state = self._begun(tree, arrays)
        executor = executor_of(workers or 0)
        for k, (budget, seconds, tolerance) in enumerate(tree["limits"]):
            earlier = Limits(budget, seconds, tolerance)
            if k:
                state.go_on(earlier)
            else:
                state.limits = earlier
            with executor.opened(earlier) as opened:
                search_paths(state, opened, progress)
            if limits.cancelled.is_set():
                raise KeyboardInterrupt
        state.visit_log.is_replaying = False
        state.visit_log.complete(state.table)
        state.go_on(limits)
        state.seconds = self.seconds
        return state.settings.searched(state, executor, progress)

    def saved(self) -> bytes:
        return self.content

    def _begun(self, tree: dict[str, Any], arrays: list[Any]) -> SearchState:
        """The state of the run at its beginning, with the journal of its visits."""
        try:
            settings: DCC = from_plain(tree["settings"], arrays)
        except (NotPlain, TypeError, errors.BadSetting) as error:
            raise _other(f"its settings are not those of this version of Anabranch ({error})") from error
        division = divide(self.program, self.args, self.kwargs, tree["run"]["split"], tree["run"]["max_sites"])
        if differing := difference(tree["run"], of_program(division.program)):
            raise _other(f"other {differing} than when it was saved")
        visit_log = VisitLog(settings, division.program)
        journal, visit_log.is_replaying = visit_log.journal, True
        journal.known = Parts.unpacked(tree["entries"], arrays[tree["first"] :])
        journal.last, journal.unkept = dict(tree["last"]), set(tree["unkept"])
        return SearchState(settings=settings, limits=Limits(), seed=tree["seed"], active=settings.active,
                           division=division, visit_log=visit_log)  # fmt: skip


def _other(reason: str) -> errors.CannotContinue:
    return errors.CannotContinue(
        f"this run cannot go on: {reason}", remedy="Run infer again with a larger budget, and save its posterior"
    )
