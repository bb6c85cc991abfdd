"""The machines of a Ray cluster, or a local one: actors that make visits.

Ray's object store has the program, its data and the settings once on each machine.
"""

from __future__ import annotations

import queue
import sys
import warnings
import weakref
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import cloudpickle

from anabranch import errors
from anabranch.cores import one_blas_thread
from anabranch.execution.crew import Requests
from anabranch.execution.message import Message, Reply, Worker, seconds_left
from anabranch.execution.remote import Answered, Channels, RemoteWorkers, WorkerDied
from anabranch.limits import LimitReached, Limits
from anabranch.settings import whole
from anabranch.workers import Workers

__all__ = ["Ray"]

_POLL, _GRACE = 0.1, 0.4
"""Seconds between two looks at the limits, and seconds for which a visit may go on after them."""


class Ray:
    """Actors of a Ray cluster that make visits.

    Args:
        address: of the cluster, as `ray.init` takes it: "auto", "ray://head:10001"; None: the one that this process has
            joined, or that RAY_ADDRESS names, or else a local one, which is started.
        workers: actors, each with one core; 0: as many as the cluster has cores.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, executor=ab.Ray("auto"))  # doctest: +SKIP
    """

    def __init__(self, address: str | None = None, workers: int = 0) -> None:
        self._ray = _imported()
        workers = whole()("workers", workers)
        self._is_own = not self._ray.is_initialized()
        if self._is_own:
            _start_or_join(self._ray, address, workers)
        self.workers = workers or max(int(self._ray.cluster_resources().get("CPU", 1)), 1)
        self._channels = Channels(self.workers, lambda: _Actor(self._ray))
        weakref.finalize(self, Channels.close, self._channels)

    def opened(self, limits: Limits) -> AbstractContextManager[Workers]:
        return RemoteWorkers(self._channels, limits, self._ray.put)

    def end_actors(self) -> None:
        """Let others have the cores; the next run starts actors again."""
        self._channels.close()

    def close(self) -> None:
        """End the actors, and a local cluster that was started for them."""
        self.end_actors()
        if self._is_own and self._ray.is_initialized():
            self._ray.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ray(workers={self.workers})"


def _start_or_join(ray: Any, address: str | None, workers: int) -> None:
    """Join a cluster, or start a local one."""
    local = {"num_cpus": workers or None, "include_dashboard": False} if address is None else {}
    with warnings.catch_warnings():
        # The processes of a local cluster are forked, and become another program at once.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        ray.init(address, log_to_driver=False, **local)


def _imported() -> Any:
    try:
        import ray
    except ImportError as error:
        raise errors.BadSetting("ab.Ray needs Ray", remedy="Install it: pip install 'anabranch[ray]'") from error
    return ray


class _Visits:
    """The actor: a `Worker`, in one thread; others take its requests out, and what ends the visit under way in."""

    def __init__(self, jax_settings: dict[str, Any], import_path: Sequence[str]) -> None:
        from anabranch.execution.process import set_up_jax

        sys.path += [folder for folder in import_path if folder not in sys.path]
        set_up_jax(jax_settings)
        self._worker, self._limits = Worker(), Limits()
        self._asked: queue.SimpleQueue[tuple[int, Any] | None] = queue.SimpleQueue()
        self._requests = Requests(lambda number, request: self._asked.put((number, request)))
        self._blas = one_blas_thread()
        self._blas.__enter__()

    def hold(self, name: str, pickled: bytes) -> None:
        self._worker.hold(name, pickled)

    def forget(self, names: Sequence[str]) -> None:
        self._worker.forget(names)

    def visit(self, pickled: bytes) -> bytes:
        message: Message = cloudpickle.loads(pickled)
        self._limits = Limits(seconds=message.seconds)
        try:
            reply: bytes = cloudpickle.dumps(self._worker.visit(message, self._limits, self._requests.ask))
        finally:
            self._asked.put(None)
        return reply

    def help(self, program: str, order: bytes | None, seconds: float | None) -> bytes | None:
        self._limits = Limits(seconds=seconds)
        return self._worker.help(program, order, self._limits)

    def asked(self) -> tuple[int, Any] | None:
        """The next request of the visit under way; None once it is over."""
        return self._asked.get()

    def reply(self, number: int, value: Any) -> None:
        self._requests.reply(number, value)

    def cancel(self) -> None:
        self._limits.cancelled.set()

    def pid(self) -> int:
        import os

        return os.getpid()


class _Actor:
    """The way to one actor."""

    def __init__(self, ray: Any) -> None:
        from anabranch.execution.processes import jax_settings

        self._ray = ray
        actor = ray.remote(num_cpus=1, max_concurrency=4, max_restarts=0)(_Visits)
        # With the caller's import path, an actor finds the module of the program where the folders are the same.
        self._actor = actor.remote(jax_settings(), sys.path)

    def hold(self, name: str, payload: Any) -> None:
        self._wait(self._actor.hold.remote(name, payload), Limits())

    def forget(self, names: Sequence[str]) -> None:
        self._actor.forget.remote(list(names))

    def visit(self, message: Message, limits: Limits, answered: Answered) -> Reply | None:
        visit, asked = self._actor.visit.remote(cloudpickle.dumps(message)), self._actor.asked.remote()
        while (request := self._wait(asked, limits)) is not None:
            number, parts = request
            self._actor.reply.remote(number, answered(*parts))
            asked = self._actor.asked.remote()
        found: Reply | None = cloudpickle.loads(self._wait(visit, limits))
        return found

    def help(self, program: str, order: bytes | None, limits: Limits) -> bytes | None:
        found: bytes | None = self._wait(self._actor.help.remote(program, order, seconds_left(limits)), limits)
        return found

    def _wait(self, reference: Any, limits: Limits) -> Any:
        """What a call of the actor gives; the run may end before."""
        while not self._ray.wait([reference], timeout=_POLL)[0]:
            if limits.is_over:
                self._actor.cancel.remote()
                if not self._ray.wait([reference], timeout=_GRACE)[0]:
                    raise LimitReached
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayActorError as error:
            raise WorkerDied(f"the actor died: {str(error).splitlines()[0]}") from None

    def close(self) -> None:
        self._ray.kill(self._actor)
