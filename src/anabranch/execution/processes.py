"""Processes of this machine: for programs that hold Python's lock, or whose native code may crash."""

from __future__ import annotations

import json
import multiprocessing
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import cloudpickle

from anabranch.cores import available_cores
from anabranch.execution.message import Message, Reply, seconds_left
from anabranch.execution.remote import Answered, Channels, RemoteWorkers, WorkerDied
from anabranch.limits import LimitReached, Limits
from anabranch.settings import whole
from anabranch.workers import Workers

__all__ = ["Processes", "jax_settings"]

_POLL, _GRACE = 0.1, 0.4
"""Seconds between two looks at the limits, and seconds for which a visit may go on after them."""
_START = (
    "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from anabranch.execution.process import serve; serve()"
)


class Processes:
    """Processes that make visits, each with an interpreter of its own.

    A process is started when it is first needed, which takes some seconds, and stays for the next runs, until `close`
    or the end of the `with` block. It gets the program, its data and the settings once, and keeps what it compiles for
    the run. The program need not be in a module, and no `if __name__ == "__main__"` is needed.

    Args:
        workers: how many; 0: as many as this process may use cores.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> with ab.Processes(1) as executor:  # doctest: +SKIP
        ...     posterior = ab.infer(programs.branching, 2.0, executor=executor)
    """

    def __init__(self, workers: int = 0) -> None:
        self.workers = whole()("workers", workers) or available_cores()
        self._channels = Channels(self.workers, _Process)
        weakref.finalize(self, Channels.close, self._channels)

    def opened(self, limits: Limits) -> AbstractContextManager[Workers]:
        return RemoteWorkers(self._channels, limits, lambda pickled: pickled)

    def close(self) -> None:
        """End the processes."""
        self._channels.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Processes({self.workers})"


class _Process:
    """One process, and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, other = multiprocessing.Pipe()
        with other:
            number = other.fileno()
            command = [sys.executable, "-c", _START, json.dumps(sys.path), str(number)]
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.DEVNULL)
        self._pipe.send(jax_settings())

    @property
    def pid(self) -> int:
        return self._process.pid

    def hold(self, name: str, payload: bytes) -> None:
        self._send("hold", name, payload)

    def forget(self, names: Sequence[str]) -> None:
        self._send("forget", list(names))

    def visit(self, message: Message, limits: Limits, answered: Answered) -> Reply | None:
        self._send("visit", cloudpickle.dumps(message), message.seconds)
        found: Reply | None = self._answer(limits, answered)
        return found

    def help(self, program: str, order: bytes | None, limits: Limits) -> bytes | None:
        self._send("help", program, order, seconds_left(limits))
        found: bytes | None = self._answer(limits)
        return found

    def _answer(self, limits: Limits, answered: Answered | None = None) -> Any:
        """What the process answers in the end; its requests before that are answered."""
        cancelled_at = None
        while True:
            while not self._has_answered():
                if cancelled_at is None and limits.is_over:
                    self._send("cancel")
                    cancelled_at = time.monotonic()
                if cancelled_at is not None and time.monotonic() - cancelled_at > _GRACE:
                    raise LimitReached
            try:
                kind, number, found = cloudpickle.loads(self._pipe.recv_bytes())
            except (EOFError, OSError):
                raise WorkerDied(self._death()) from None
            if kind == "answer":
                break
            assert answered is not None
            self._send("reply", number, answered(*found))
        if isinstance(found, BaseException):
            raise found
        return found

    def _has_answered(self) -> bool:
        try:
            return self._pipe.poll(_POLL)
        except OSError:
            raise WorkerDied(self._death()) from None

    def _send(self, *parts: Any) -> None:
        try:
            self._pipe.send(parts)
        except OSError:
            raise WorkerDied(self._death()) from None

    def _death(self) -> str:
        """How the process ended."""
        try:
            code = self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return "the process no longer answers"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def close(self) -> None:
        self._pipe.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()


def jax_settings() -> dict[str, Any]:
    """The settings of jax in this process, by which the others compile as it does."""
    import jax

    plain = (bool, int, float, str, type(None))
    return {name: value for name, value in jax.config.values.items() if isinstance(value, plain)}
