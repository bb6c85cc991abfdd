"""What a run of `DCC` has found out, kept in memory: by it the run goes on in another process, once it was saved.

The journal has the outcomes of the visits. A file of it (`VisitLog.packed`) has the settings and the limits, too, as
plain arrays and JSON: with the program and its data, which the user gives, that is all that a run is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from anabranch.allocate import PathTable, Visit
from anabranch.checkpoint.journal import NOT_KEPT, Journal, Parts
from anabranch.divide import Program
from anabranch.limits import Limits
from anabranch.progress import Status
from anabranch.search.visit import Outcome, Task, Visitor
from anabranch.workers import Workers

if TYPE_CHECKING:
    from anabranch.dcc import DCC

__all__ = ["VisitLog"]


class VisitLog:
    """The journal of one run of `DCC`.

    Attributes:
        program: the program and its data, in the form in which the run began.
        journal: what the visits have found out.
        is_replaying: whether the run only comes to where it was: it ends at the first visit that the journal lacks.
        failure: why it could not be saved meanwhile, as a sentence; empty if it was, or need not be.
    """

    def __init__(self, settings: DCC, program: Program) -> None:
        self.program = program
        self.journal = Journal(settings.elimination, {type(settings.strategy).__module__})
        self.is_replaying, self.failure = False, ""

    def visit(self, workers: Workers, visitor: Visitor, tasks: Sequence[Task]) -> list[Outcome | None]:
        """The outcome of each visit: from the journal, or by the workers."""
        limits, journal = workers.limits, self.journal
        is_timed = limits.seconds is not None
        outcomes = [journal.recall(task, is_timed) for task in tasks]
        missing = [i for i, outcome in enumerate(outcomes) if outcome is None]
        if not missing:
            return outcomes
        if self.is_replaying:
            limits.cancelled.set()
            return outcomes
        self.begin_to_visit(limits)
        made = [journal.completed(tasks[i]) for i in missing]
        for i, task, outcome in zip(missing, made, workers.visit(visitor, made), strict=True):
            outcomes[i] = outcome
            if outcome is not None:
                journal.note(task, outcome, is_timed, has_draws=limits.target is not None)
        return outcomes

    def complete(self, table: PathTable) -> None:
        """Give each path the draws of its last visit, where those of the visit before it are not kept: where a run was
        interrupted before it came to where it had been."""
        for record in table:
            if record.state is NOT_KEPT:
                task = self.journal.completed(Task.of(Visit(record, 0, 0), 0))
                record.target, record.state, record.estimate = task.target, task.state, task.estimate

    def contents(self) -> Parts:
        """What the journal has, with the draws and states of the last visits alone."""
        out, last = self.entries(), set(self.journal.last.values())
        out.states = {key: entry for key, entry in out.states.items() if key in last}
        return out

    def entries(self) -> Parts:
        """All entries of the journal."""
        out = Parts()
        out.add(self.journal.known)
        out.add(self.journal.take_new())
        return out

    # What a run that is saved meanwhile does, too -------------------------------------------------------------------

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Within this the run goes on."""
        yield

    def begin_to_visit(self, limits: Limits) -> None:
        """Visits follow that were not made before."""

    def begin_part(self) -> None:
        """The run goes on with other limits (`more`)."""

    def save(self, status: Status, limits: Limits) -> None:
        """A round is over."""

    def end_part(self, status: Status, limits: Limits, is_over: bool) -> None:
        """The run ends, by itself (`is_over`) or by an interrupt or the time."""
