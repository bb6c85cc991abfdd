"""Workers whose visits are made elsewhere: each thread waits for one of them.

Of a worker that ends while it makes a visit, a crash in native code or the system's answer to a lack of memory, another
one takes the place, and makes the visit again: with the same answer, since that is a function of the task. A path at
which two of them ended is given up.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import cloudpickle

from anabranch import errors
from anabranch.divide import Program
from anabranch.execution.crew import Crew, WorkerDied
from anabranch.execution.message import Message, Reply, message_of, outcome_of
from anabranch.limits import Limits, current
from anabranch.search.visit import Outcome, Task, Visitor, given_up
from anabranch.workers import Workers

__all__ = ["Answered", "Channel", "Channels", "RemoteWorkers", "WorkerDied"]

_ATTEMPTS = 2
"""Workers that a path may end before it is given up; more are more patient with a machine that fails now and then."""
_names = itertools.count()
Answered = Callable[[str, Any], Any]
"""The reply to a request for help."""


class Channel(Protocol):
    """The way to one worker."""

    def hold(self, name: str, payload: Any) -> None:
        """Give it a program, or the settings of visits."""

    def forget(self, names: Sequence[str]) -> None:
        """Let it forget them."""

    def visit(self, message: Message, limits: Limits, answered: Answered) -> Reply | None:
        """Let it make a visit, and wait; raises `WorkerDied`, and `LimitReached` once the run is over.

        Its requests for help are `answered`.
        """

    def help(self, program: str, order: bytes | None, limits: Limits) -> bytes | None:
        """Let it fill an order; None if the run was over before. Without an order it only says that it is there."""

    def close(self) -> None:
        """End the worker."""


class Channels:
    """The workers of an executor, which several runs may share; each is made when it is first needed.

    Args:
        number: workers at most.
        make: makes one.
    """

    def __init__(self, number: int, make: Callable[[], Channel]) -> None:
        self.number, self._make = number, make
        self._idle: list[Channel] = []
        self._busy = self._waiting = 0
        self._changed = threading.Condition()
        self.held: dict[int, set[str]] = {}
        """What each channel was given, by its id."""
        self._ready: set[int] = set()
        """The channels that have answered."""
        self._closed = 0  # how often
        self._made_after: dict[int, int] = {}

    def take(self, wanted: str) -> Channel:
        """An idle channel; that which was given what is wanted, if there is one."""
        with self._changed:
            self._wait_for_one()
            self._busy += 1
            if self._idle:
                chosen = next((each for each in self._idle if wanted in self.held[id(each)]), self._idle[0])
                self._idle.remove(chosen)
                return chosen
            closed = self._closed
        return self._made(closed)

    def _wait_for_one(self) -> None:
        self._waiting += 1
        try:
            while not self._idle and self._busy >= self.number:
                self._changed.wait(0.1)
                if (limits := current()) is not None:
                    limits.check()
        finally:
            self._waiting -= 1

    def reserve(self, most: int) -> list[Channel]:
        """Idle channels that have answered before, to help; none while a visit waits for one."""
        with self._changed:
            ready = [each for each in self._idle if id(each) in self._ready][: 0 if self._waiting else most]
            self._idle = [each for each in self._idle if each not in ready]
            self._busy += len(ready)
            return ready

    def missing(self, all_in_all: int) -> list[Callable[[], Channel]]:
        """For each of so many channels that was not made yet a function that makes it."""
        with self._changed:
            number = max(all_in_all - len(self._idle) - self._busy, 0)
            self._busy += number
            return [partial(self._made, self._closed)] * number

    def _made(self, closed: int) -> Channel:
        """A new channel, which was counted as busy before."""
        try:
            made = self._make()
        except BaseException:
            self.drop(None)
            raise
        self.held[id(made)], self._made_after[id(made)] = set(), closed
        return made

    def give_back(self, channel: Channel) -> None:
        """Let others use a channel, which has answered; it ends if all were closed meanwhile."""
        if self._made_after[id(channel)] < self._closed:
            self.drop(channel)
            return
        with self._changed:
            self._ready.add(id(channel))
            self._idle.append(channel)
            self._busy -= 1
            self._changed.notify()

    def drop(self, channel: Channel | None) -> None:
        """Another one takes the place of a channel, when it is needed."""
        if channel is not None:
            self.held.pop(id(channel), None)
            self._ready.discard(id(channel))
            with suppress(Exception):
                channel.close()
        with self._changed:
            self._busy -= 1
            self._changed.notify()

    def forget(self, names: Sequence[str]) -> None:
        """Let the idle workers forget what a run is done with."""
        with self._changed:
            for channel in self._idle:
                if self.held[id(channel)].intersection(names):
                    with suppress(Exception):
                        channel.forget(names)
                    self.held[id(channel)].clear()

    def close(self) -> None:
        """End the workers; those that are busy when they are no longer."""
        with self._changed:
            self._closed += 1
            for channel in self._idle:
                with suppress(Exception):
                    channel.close()
            self._idle.clear()


class RemoteWorkers(Workers):
    """The workers of one run: a thread for each channel, which sends tasks and waits.

    Args:
        channels: the workers.
        limits: of the run.
        share: makes what is sent to each worker of what is pickled once, such as a reference.
    """

    def __init__(self, channels: Channels, limits: Limits, share: Callable[[bytes], Any]) -> None:
        super().__init__(channels.number, limits)
        self.channels, self._share = channels, share
        self.is_over = False
        self.helpers_failed = 0
        """How many orders were not filled, since a worker ended or the program did not run there."""
        self._names: dict[int, str] = {}
        self._shared: dict[str, tuple[Any, Any]] = {}
        self._sharing = threading.Lock()

    def __exit__(self, *error: object) -> None:
        self.is_over = True
        super().__exit__(*error)
        self.channels.forget(list(self._shared))

    @property
    def helpers(self) -> Crew:
        """Those who do a share of what this process does itself."""
        return Crew(self, self.number - 1)

    def visit(self, visitor: Visitor, tasks: Sequence[Task]) -> list[Outcome | None]:
        return self.map(partial(self._elsewhere, visitor), tasks)

    def _elsewhere(self, visitor: Visitor, task: Task) -> Outcome | None:
        program = self.name_of(task.target.path.program)
        message = message_of(task, program, self.name_of(visitor), self.limits)
        crew, reasons = Crew(self, self.number), []
        for _ in range(_ATTEMPTS):
            channel = self.channels.take(f"{program} {task.number}")
            try:
                self.provide(channel, message.program, message.visitor)
                with crew:
                    reply = channel.visit(message, self.limits, partial(crew.answered, program))
            except WorkerDied as error:
                self.channels.drop(channel)
                reasons.append(str(error))
                continue
            except Exception as error:  # the program does not run there, on this path
                self.channels.give_back(channel)
                return given_up(task, visitor.settings.local_strategy, error)
            except BaseException:
                self.channels.drop(channel)  # what it would answer is no longer asked for
                raise
            self.channels.held[id(channel)].add(f"{program} {task.number}")
            self.channels.give_back(channel)
            return None if reply is None else outcome_of(reply, task, visitor)
        death = errors.WorkerEnded(
            f"it ended its worker {_ATTEMPTS} times ({'; '.join(dict.fromkeys(reasons))})",
            remedy="Give the workers more memory, or look for a crash in code that the program calls on this path",
        )
        return given_up(task, visitor.settings.local_strategy, death)

    def provide(self, channel: Channel, *names: str) -> None:
        """Give a worker a program, or the settings of visits, once."""
        for name in names:
            held = self.channels.held[id(channel)]
            if name not in held:
                channel.hold(name, self._shared[name][1])
                held.add(name)

    def name_of(self, value: Program | Visitor) -> str:
        """The name under which workers hold a value, which is pickled once."""
        with self._sharing:
            if id(value) not in self._names:  # which it keeps, since the value is kept
                name = self._names[id(value)] = f"held-{next(_names)}"
                self._shared[name] = value, self._share(cloudpickle.dumps(value))
            return self._names[id(value)]
