"""What a process of `Processes` does: it makes visits and helps, and ends when nobody is left to ask for them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from anabranch.cores import one_blas_thread
from anabranch.execution.crew import Requests
from anabranch.execution.message import Worker
from anabranch.limits import Limits

__all__ = ["serve", "set_up_jax"]


def serve() -> None:
    """Answer what comes through the pipe whose number is the last argument; the end of the pipe ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process of the run to say that it is over
    pipe = Connection(int(sys.argv[-1]))
    set_up_jax(pipe.recv())
    with one_blas_thread():
        _Server(pipe).serve()


class _Server:
    """Does one thing after the other; a thread receives what comes meanwhile."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._worker = pipe, Worker()
        self._tasks: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._requests = Requests(partial(self._send, "ask"))
        self._limits = Limits()  # of what is under way, which a message may end

    def serve(self) -> None:
        threading.Thread(target=self._receive, daemon=True).start()
        while True:
            kind, *rest = self._tasks.get()
            if kind == "hold":
                self._worker.hold(*rest)
            elif kind == "forget":
                self._worker.forget(*rest)
            else:
                self._send("answer", None, self._answer(kind, *rest))

    def _answer(self, kind: str, *rest: Any) -> Any:
        try:
            if kind == "help":
                return self._worker.help(*rest)
            pickled, limits = rest
            return self._worker.visit(cloudpickle.loads(pickled), limits, self._requests.ask)
        except Exception as error:
            return error

    def _receive(self) -> None:
        """Queue what comes; an end of what is under way at once."""
        while True:
            try:
                kind, *rest = self._pipe.recv()
            except (EOFError, OSError):
                os._exit(0)
            if kind == "cancel":
                self._limits.cancelled.set()
            elif kind == "reply":
                self._requests.reply(*rest)
            elif kind in ("visit", "help"):
                *rest, seconds = rest
                self._limits = Limits(seconds=seconds)
                self._tasks.put((kind, *rest, self._limits))
            else:
                self._tasks.put((kind, *rest))

    def _send(self, *parts: Any) -> None:
        self._pipe.send_bytes(cloudpickle.dumps(parts))


def set_up_jax(settings: dict[str, Any]) -> None:
    """Compile as the process of the run does, so that the same program gives the same numbers."""
    import jax

    for name, value in settings.items():
        if jax.config.values.get(name) != value:
            with contextlib.suppress(Exception):  # some can be set only in the environment, which is the same
                jax.config.update(name, value)
