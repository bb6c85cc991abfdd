"""Ends a program that does not end by itself.

A program that samples or branches for ever is ended by counting. One that does neither, such as `while True: pass`,
never calls the library, so it is ended from outside: a thread checks the running programs a few times a second, and
raises an exception in the thread of a program

    that has reached no statement and no branch on a random value for a minute, and is taken to be endless; or
    whose run is over, because its time limit is reached or because the user has interrupted it.

The exception must never arrive after the program has ended, nor while the library's own code runs. Raising it, the end
of the program and the start of the library's own code therefore take one lock; one that has not arrived is withdrawn.
"""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from anabranch import errors
from anabranch.divide.source_location import program_frame, where
from anabranch.limits import LimitReached, current

__all__ = ["Watch"]

ENDLESS = 60.0
"""Seconds without a statement or a branch after which a program is taken to be endless, in a run without time limit."""
_GRACE = 0.3
"""Seconds beyond the time limit before a program is ended: most end by themselves at their next statement."""
_EVERY = 0.2
"""Seconds between two checks."""
_AGAIN = 5.0
"""Seconds after which the exception is raised again in a program that has caught it."""
_IDLE = 25
"""Checks without a running program after which the thread ends; the next program starts another."""

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc


class _Stopped(BaseException):
    """Raised in the thread of the program. Not an `Exception`: the program must not catch it."""


class Watch:
    """Watches one run of a program: `run` runs it, and `with watch:` surrounds the library's own code."""

    __slots__ = ("_fired", "_limits", "_lock", "_ours", "_outer", "_over", "_reason", "_since", "_thread")

    def __init__(self) -> None:
        self._thread, self._limits, self._since = threading.get_ident(), current(), time.monotonic()
        self._lock = threading.Lock()
        self._ours, self._over, self._fired = 0, False, -_AGAIN
        self._reason: BaseException | None = None
        self._outer: Watch | None = None

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The function's result; `EndlessProgram` or `LimitReached` if it was ended, even if it caught that."""
        try:
            try:
                self._begin()
                result = function(*args, **kwargs)
            finally:
                self._end()
        except BaseException as error:
            self._end_surely()  # the exception may have arrived while the end was under way
            if self._reason is None or isinstance(error, KeyboardInterrupt):
                raise
        if self._reason is not None:
            raise self._reason from None
        return result

    def progressed(self) -> None:
        """The program has branched on a random value."""
        self._since = time.monotonic()

    def __enter__(self) -> None:
        """The library's own code begins: it checks the limits itself, and must not be interrupted."""
        if self._limits is not None:
            self._limits.check()
        with self._lock:
            if self._reason is not None:
                raise _Stopped
            self._ours += 1

    def __exit__(self, *exception: object) -> None:
        """The program goes on."""
        self._since = time.monotonic()
        with self._lock:
            self._ours -= 1

    def _begin(self) -> None:
        global _watching
        self._outer, self._since = _running.get(self._thread), time.monotonic()
        with _registering:
            _running[self._thread] = self
            if not _watching:
                _watching = True
                threading.Thread(target=_watch_all, name="anabranch-watchdog", daemon=True).start()

    def _end(self) -> None:
        with self._lock:
            if self._reason is not None:
                _raise_in_thread(ctypes.c_ulong(self._thread), None)  # takes it back
            if self._outer is None:
                _running.pop(self._thread, None)
            else:
                self._outer.progressed()
                _running[self._thread] = self._outer
            self._over = True  # at last: whatever arrives before begins this anew

    def _end_surely(self) -> None:
        """End, whichever exceptions arrive meanwhile."""
        interrupt = None
        while not self._over:
            try:
                self._end()
            except BaseException as error:
                interrupt = error
        if isinstance(interrupt, KeyboardInterrupt):
            raise interrupt

    def check(self) -> None:
        """End the program if there is a reason to; called by the watching thread."""
        with self._lock:
            if self._over or self._ours or time.monotonic() - self._fired < _AGAIN:
                return
            reason = self._reason_to_end()
            if reason is not None:
                self._reason, self._fired = reason, time.monotonic()
                _raise_in_thread(ctypes.c_ulong(self._thread), ctypes.py_object(_Stopped))

    def _reason_to_end(self) -> BaseException | None:
        limits = self._limits
        seconds = None if limits is None else limits.seconds
        is_over = limits is not None and seconds is not None and limits.elapsed > seconds + _GRACE
        if is_over or (limits is not None and limits.cancelled.is_set()):
            return LimitReached()
        if seconds is not None or time.monotonic() - self._since < ENDLESS:
            return None
        return errors.EndlessProgram(
            f"the program has reached no statement and no branch on a random value for {ENDLESS:g} seconds",
            where=where(program_frame(sys._current_frames().get(self._thread))),
            remedy="Make its loop end; to allow for a computation that takes longer, set a time for the run (seconds=)",
        )


_running: dict[int, Watch] = {}
"""The innermost program that runs in each thread."""
_registering = threading.Lock()
_watching = False


def _check_all() -> None:
    # A function of its own, whose end lets go of the last watch and of the arguments of its program.
    for watch in list(_running.values()):
        watch.check()


def _watch_all() -> None:
    global _watching
    idle = 0
    while idle < _IDLE:
        time.sleep(_EVERY)
        _check_all()
        with _registering:
            idle = 0 if _running else idle + 1
            _watching = idle < _IDLE


def _start_anew() -> None:
    """A forked child has no watching thread, and of the others only the one that forked."""
    global _watching, _registering
    _watching, _registering = False, threading.Lock()
    _running.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)
