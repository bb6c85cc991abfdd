"""Workers that have nothing to do help with a visit, or with what the process of the run does itself.

Whoever has much to compute asks who is idle, keeps a share, and gives the others theirs (`divide.sharing`). A worker
asks through the process of the run, which knows who is idle. A helper that ends, fails or is too late leaves its share
to whoever asked, so that an answer never depends on help.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import cloudpickle

from anabranch.divide import Order, Program
from anabranch.limits import LimitReached, checkpoint

if TYPE_CHECKING:
    from anabranch.execution.remote import Channel, RemoteWorkers

__all__ = ["Ask", "Asking", "Crew", "Requests", "WorkerDied"]

_POLL = 0.1
"""Seconds between two looks at the limits."""
_PATIENCE = 2
"""Helpers that fail in a run before no others are asked: what makes them fail does so every time."""
Ask = Callable[[str, Any], Callable[[], Any]]
"""Sends a request to the process of the run; the result waits for the reply."""


class WorkerDied(Exception):
    """A worker ended while it made a visit or helped; the message says how."""


class Crew:
    """The workers of a run, as helpers of one of them, or of the process of the run.

    Args:
        workers: of the run.
        number: all that there should be: one fewer than the run may have where its own process works, too.
    """

    def __init__(self, workers: RemoteWorkers, number: int) -> None:
        self._workers, self._number = workers, number
        self._reserved: list[Channel] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._release()

    def _release(self) -> None:
        """Let go of those who were reserved, where whoever asked ended before they began."""
        while self._reserved:
            self._workers.channels.give_back(self._reserved.pop())

    def reserve(self, program: Program) -> int:
        try:
            return self.reserve_for(self._workers.name_of(program))
        except Exception:  # it cannot travel, and is run here
            self._workers.helpers_failed = _PATIENCE
            return 0

    def begin(self, program: Program, orders: Sequence[Order[Any]]) -> Callable[[], list[Any]]:
        collect = self.begin_for(self._workers.name_of(program), list(map(cloudpickle.dumps, orders)))
        return lambda: [None if each is None else cloudpickle.loads(each) for each in collect()]

    def reserve_for(self, program: str) -> int:
        """The same for a program by its name; workers that have not started yet begin to, and help the next time."""
        self._release()
        channels, workers = self._workers.channels, self._workers
        if workers.helpers_failed >= _PATIENCE:
            return 0
        self._reserved = channels.reserve(workers.number - 1)
        for channel in channels.missing(self._number):
            threading.Thread(target=self._start, args=(channel, program), daemon=True).start()
        return len(self._reserved)

    def begin_for(self, program: str, orders: Sequence[bytes]) -> Callable[[], list[bytes | None]]:
        """The same for orders and results as they travel."""
        reserved, self._reserved = self._reserved, []
        found: list[bytes | None] = [None] * len(orders)
        threads = []
        for channel in reserved[len(orders) :]:
            self._workers.channels.give_back(channel)
        for k, (channel, order) in enumerate(zip(reserved, orders, strict=False)):
            threads.append(threading.Thread(target=self._fill, args=(channel, program, order, found, k), daemon=True))
            threads[-1].start()

        def collect() -> list[bytes | None]:
            for thread in threads:
                thread.join()
            return found

        return collect

    def answered(self, program: str, kind: str, request: Any) -> Any:
        """The reply to a request of a worker that makes a visit."""
        if kind == "reserve":
            return self.reserve_for(program)
        return self.begin_for(program, request)()

    def _start(self, make: Callable[[], Channel], program: str) -> None:
        """Start a worker, and give it the program."""
        try:
            channel = make()
        except Exception:  # whoever needs it for a visit will say why
            return
        self._fill(channel, program, None, [None], 0)

    def _fill(self, channel: Channel, program: str, order: bytes | None, found: list[bytes | None], place: int) -> None:
        workers = self._workers
        try:
            workers.provide(channel, program)
            found[place] = channel.help(program, order, workers.limits)
        except (WorkerDied, LimitReached):
            workers.helpers_failed += 1
            workers.channels.drop(channel)
            return
        except Exception:  # the program does not run there: whoever asked will see whether it does here
            workers.helpers_failed += 1
        workers.channels.give_back(channel)
        if workers.is_over:
            workers.channels.forget([program])


class Requests:
    """Requests of a worker, each with a number, and the replies to them.

    Args:
        send: sends a number and a request to the process of the run.
    """

    def __init__(self, send: Callable[[int, tuple[str, Any]], None]) -> None:
        self._send, self._numbers = send, itertools.count()
        self._replies: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()

    def reply(self, number: int, value: Any) -> None:
        """Take the reply to a request; another thread does it than the one that waits."""
        self._replies.put((number, value))

    def ask(self, kind: str, request: Any) -> Callable[[], Any]:
        """Send a request; the result waits for the reply."""
        number = next(self._numbers)
        self._send(number, (kind, request))
        return lambda: self._wait(number)

    def _wait(self, number: int) -> Any:
        while True:
            try:
                found, value = self._replies.get(timeout=_POLL)
            except queue.Empty:
                checkpoint()
                continue
            if found == number:  # and not one that nobody waited for, after an error
                return value


class Asking:
    """The helpers of a worker, whom it reaches through the process of the run."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def reserve(self, program: Program) -> int:
        found: int = self._ask("reserve", None)()
        return found

    def begin(self, program: Program, orders: Sequence[Order[Any]]) -> Callable[[], list[Any]]:
        wait = self._ask("begin", list(map(cloudpickle.dumps, orders)))
        return lambda: [None if each is None else cloudpickle.loads(each) for each in wait()]
