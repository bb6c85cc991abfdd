"""What a process of `Processes` does: it holds programs, makes visits, and ends when nobody is left to ask for them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from anabranch.cores import one_blas_thread
from anabranch.execution.message import Worker
from anabranch.limits import Limits

__all__ = ["serve", "set_up_jax"]


def serve() -> None:
    """Answer what comes through the pipe whose number is the last argument; the end of the pipe ends the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the process of the run to say that it is over
    pipe = Connection(int(sys.argv[-1]))
    set_up_jax(pipe.recv())
    tasks: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    under_way = _UnderWay()
    threading.Thread(target=_receive, args=(pipe, tasks, under_way), daemon=True).start()
    worker = Worker()
    with one_blas_thread():
        while True:
            kind, *rest = tasks.get()
            if kind == "visit":
                pipe.send_bytes(cloudpickle.dumps(_answer(worker, under_way, *rest)))
            elif kind == "hold":
                worker.hold(*rest)
            else:
                worker.forget(*rest)


class _UnderWay:
    """The limits of the visit under way, which a message may end."""

    def __init__(self) -> None:
        self.limits = Limits()


def _receive(pipe: Connection, tasks: queue.SimpleQueue[tuple[Any, ...]], under_way: _UnderWay) -> None:
    """Queue what comes; an end of the visit at once, also while it goes on."""
    while True:
        try:
            message = pipe.recv()
        except (EOFError, OSError):
            os._exit(0)
        if message[0] == "cancel":
            under_way.limits.cancelled.set()
            continue
        if message[0] == "visit":
            under_way.limits = Limits(seconds=message[2])
            message = (*message[:2], under_way.limits)
        tasks.put(message)


def _answer(worker: Worker, under_way: _UnderWay, pickled: bytes, limits: Limits) -> Any:
    try:
        return worker.visit(cloudpickle.loads(pickled), limits)
    except Exception as error:
        return error


def set_up_jax(settings: dict[str, Any]) -> None:
    """Compile as the process of the run does, so that the same program gives the same numbers."""
    import jax

    for name, value in settings.items():
        if jax.config.values.get(name) != value:
            with contextlib.suppress(Exception):  # some can be set only in the environment, which is the same
                jax.config.update(name, value)
