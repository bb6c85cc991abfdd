"""Threads that work on several paths at the same time.

The threads are daemons: one that hangs, in the program or in a compilation, keeps neither the run nor Python from
ending. An interrupt reaches the main thread, which only waits, and then gives the others a moment to finish.
"""

from __future__ import annotations

import atexit
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

from anabranch.divide import Helpers, is_compiling
from anabranch.limits import LimitReached, Limits, enforced

if TYPE_CHECKING:
    from anabranch.search.visit import Outcome, Task, Visitor

__all__ = ["Workers"]

_POLL = 0.1
"""Seconds between two checks of the limits; fewer end a run sooner after its time, and cost more."""
_GRACE, _GRACE_INTERRUPTED = 0.5, 2.5
"""Seconds for which work goes on after the time of the run, and after an interrupt; more keep more of it."""
_left_behind: list[threading.Thread] = []

T = TypeVar("T")
R = TypeVar("R")


@dataclass
class _Job:
    """One call, with its outcome or its error."""

    call: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    outcome: Any = None
    error: BaseException | None = None
    thread: int = 0

    def run(self) -> None:
        self.thread = threading.get_ident()
        try:
            self.outcome = self.call()
        except LimitReached:
            pass
        except BaseException as error:
            self.error = error
        self.done.set()


class Workers:
    """A number of threads that share the limits of one run."""

    def __init__(self, number: int, limits: Limits) -> None:
        self.number, self.limits = number, limits
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        names = [f"anabranch-{number}" for number in range(self.number)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(_POLL)  # what they hold goes with them
        _left_behind.extend(thread for thread in self._threads if thread.is_alive())

    def _work(self) -> None:
        with enforced(self.limits):
            while (job := self._jobs.get()) is not None:
                job.run()

    @property
    def helpers(self) -> Helpers | None:
        """Those who do a share of what the main thread does: none in a process whose threads share one interpreter."""
        return None

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R | None]:
        """The outcome for each task; None where a limit or an interrupt came before.

        An interrupt sets `limits.cancelled`, and is not raised: the outcomes so far are returned.
        """
        jobs = [_Job(lambda task=task: function(task)) for task in tasks]  # type: ignore[misc]
        for job in jobs:
            self._jobs.put(job)
        try:
            while not all(job.done.is_set() for job in jobs) and self._is_worth_waiting(jobs):
                _wait_for(jobs, _POLL)
        except KeyboardInterrupt:
            self.limits.cancelled.set()
            _wait_for(jobs, _GRACE_INTERRUPTED)
        for job in jobs:
            if job.done.is_set() and job.error is not None:
                raise job.error
        return [job.outcome if job.done.is_set() else None for job in jobs]

    def visit(self, visitor: Visitor, tasks: Sequence[Task]) -> list[Outcome | None]:
        """The outcome of each visit; here by the threads of this process."""
        return self.map(visitor, tasks)

    def _is_worth_waiting(self, jobs: Sequence[_Job]) -> bool:
        """Whether the time is not over, or a thread compiles, which ends by itself."""
        limits = self.limits
        if limits.seconds is None or limits.elapsed < limits.seconds + _GRACE:
            return True
        return any(is_compiling(job.thread) for job in jobs if not job.done.is_set())


@atexit.register
def _end_compilations() -> None:
    """Let Python exit while a thread compiles, which aborts the process where the thread comes back too late.

    After an exception that nobody caught, the process ends at once with the code that Python would give it. Otherwise
    the code is not known here, and the compilation is waited for.
    """
    compiling = [thread for thread in _left_behind if thread.is_alive() and is_compiling(thread.ident or 0)]
    if compiling and hasattr(sys, "last_value"):
        atexit.unregister(_end_compilations)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(sys.last_value, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)
    for thread in compiling:
        while thread.is_alive() and is_compiling(thread.ident or 0):
            thread.join(0.1)


def _wait_for(jobs: Sequence[_Job], seconds: float) -> None:
    """Wait until all are done, but no longer than this; an interrupt ends it."""
    end = time.monotonic() + seconds
    for job in jobs:
        job.done.wait(max(end - time.monotonic(), 0.0))
