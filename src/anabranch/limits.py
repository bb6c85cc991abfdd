"""The limits of a run: a budget of evaluations, a time, and a tolerance.

Work that takes long calls `checkpoint` inside its loops: it raises `LimitReached` once the time of the run is over or
the run was interrupted. Which run that is comes from the context (`enforced`), so that loops deep inside need no
argument for it, and two runs in two threads do not see each other.

Work that cannot be interrupted, or is lost if it is, goes on in pieces (`Pace`). Where the time is limited, the first
piece is small, and each of the next as large as the last one shows to be quick enough. Where it is not, a piece is as
large as it may be: nothing depends on the clock then, and the same seed gives the same answer.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import numpy as np

from anabranch.settings import check, finite, flag, function, instance, positive, seconds, whole

__all__ = [
    "INTERPRETED_BUDGET", "INTERRUPTED", "LONGEST_PIECE", "OUT_OF_MEMORY", "TOLERANCE", "LimitReached", "Limits",
    "Pace", "Tolerance", "checkpoint", "current", "default_budget", "enforced", "holding", "interruptible",
    "time_limit",
]  # fmt: skip

BUDGET, INTERPRETED_BUDGET = 1_000_000, 20_000
"""Evaluations of a run by default; the second where each of them is a run of the program's Python."""
TOLERANCE = 0.005
"""The error of log Z and of the path weights at which a run stops by default."""
INTERRUPTED = "The run was interrupted; the estimates so far are kept."
"""Why an interrupted run stopped."""
OUT_OF_MEMORY = "Memory ran short; the estimates so far are kept."
"""Why a run stopped that had no memory left."""
LONGEST_PIECE = 0.25
"""Seconds that a piece of work should take at most; more overrun the time limit by more."""
_TIME_SHARE = 0.05
"""The same as a share of the time limit."""
_GROWTH = 4
"""How many times as large as the last a piece may be; more adapt sooner, and overrun by more."""


class LimitReached(BaseException):
    """A limit of the run was reached. Not an `Exception`: neither the program nor a handler of errors must catch it."""


@dataclass
class Earlier:
    """Seconds that a run took in another process, before it went on in this one."""

    seconds: float = 0.0


@dataclass(frozen=True)
class Tolerance:
    """The standard error of an expectation at which a run of `DCC` stops: `tolerance=Tolerance(0.01, of=f)`.

    The evaluations go to the paths on which the error of the expectation depends, however heavy the others are.

    Args:
        bound: the standard error.
        of: the function of a draw whose expectation is wanted, as in `Posterior.expectation`.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> below = lambda draw: draw["z0"] < -1.0
        >>> posterior = ab.infer(programs.branching, 2.0, tolerance=ab.Tolerance(0.01, of=below))
        >>> posterior.expectation(below, max_draws=100_000)[1] < 0.01
        True
    """

    bound: float
    of: Callable[[Any], Any]

    def __post_init__(self) -> None:
        check(self, bound=positive(), of=function("of a draw"))


@dataclass(frozen=True)
class Limits:
    """A budget of evaluations, a time in seconds, and a tolerance for the errors; the first that is reached counts.

    An evaluation is one point at which the density of a path was computed, with or without its gradient. `cancelled`
    is set when the user interrupts the run. `earlier` counts as if it had passed since the start. `target` is the
    function of a draw whose expectation the tolerance is for: None for log Z and the weights of the paths. Where the
    user gave no budget, `is_default` is true, and `for_program` has that of the program.
    """

    budget: int = BUDGET
    seconds: float | None = None
    tolerance: float | None = TOLERANCE
    started: float = field(default_factory=time.monotonic, compare=False)
    cancelled: threading.Event = field(default_factory=threading.Event, compare=False, repr=False)
    earlier: Earlier = field(default_factory=Earlier, compare=False, repr=False)
    target: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    is_default: bool = field(default=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        event = instance(threading.Event, "a threading.Event")
        check(self, budget=whole(1), seconds=seconds(), tolerance=positive().or_none(), started=finite(),
              cancelled=event, earlier=instance(Earlier, "an Earlier()"),
              target=function("of a draw").or_none(), is_default=flag())  # fmt: skip

    @classmethod
    def given(cls, budget: int | None, seconds: float | None, tolerance: float | Tolerance | None) -> Limits:
        """The limits that a user gives: the budget is that of the program if there is none, and the tolerance is a
        number, or that of an expectation."""
        evaluations, is_default = (BUDGET, True) if budget is None else (budget, False)
        if isinstance(tolerance, Tolerance):
            return cls(evaluations, seconds, tolerance.bound, target=tolerance.of, is_default=is_default)
        return cls(evaluations, seconds, tolerance, is_default=is_default)

    def for_program(self, is_interpreted: bool) -> Limits:
        """The limits with the default budget of a program, if the user gave none; it does not depend on the clock."""
        return replace(self, budget=default_budget(is_interpreted)) if self.is_default else self

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started + self.earlier.seconds

    @property
    def left(self) -> float:
        """Seconds left; infinite if the time is not limited."""
        return np.inf if self.seconds is None else self.seconds - self.elapsed

    @property
    def time_is_over(self) -> bool:
        """Whether the time is limited, and over."""
        return self.seconds is not None and self.elapsed >= self.seconds

    def within(self, share: float) -> Limits:
        """The same limits with this share of the time."""
        return self if self.seconds is None else replace(self, seconds=share * self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether the time is over or the run was interrupted."""
        return self.cancelled.is_set() or self.time_is_over

    def check(self) -> None:
        """Raise `LimitReached` if the time is over or the run was interrupted."""
        if self.is_over:
            raise LimitReached

    def exceeded(self, evaluations: int) -> str:
        """Why to stop after so many evaluations, as a sentence; empty if the run may go on."""
        if evaluations >= self.budget:
            if self.is_default and self.budget == INTERPRETED_BUDGET:
                return (
                    f"The budget of {self.budget:,} evaluations is spent: the default where the interpreter runs the "
                    f"program. posterior.more(budget={self.budget:_}) goes on, and infer has a larger one with "
                    f"budget={5 * self.budget:_}."
                )
            return f"The budget of {self.budget:,} evaluations is spent."
        return f"The {self.seconds:g} seconds are over." if self.time_is_over else ""

    @property
    def as_arguments(self) -> str:
        """The limits as arguments of `infer`.

        >>> Limits(20_000, seconds=10.0).as_arguments
        'budget=20_000, seconds=10, tolerance=0.005'
        """
        seconds = "" if self.seconds is None else f"seconds={self.seconds:g}, "
        tolerance = "None" if self.tolerance is None else f"{self.tolerance:g}"
        if self.target is not None:
            tolerance = f"ab.Tolerance({tolerance}, of={getattr(self.target, '__name__', 'f')})"
        return f"budget={self.budget:_}, {seconds}tolerance={tolerance}"

    @property
    def met(self) -> str:
        """Why to stop at the tolerance, as a sentence."""
        return f"The errors of log Z and of the path weights are below {self.tolerance:g}."


def default_budget(is_interpreted: bool) -> int:
    """Evaluations of a run where the user gives no budget."""
    return INTERPRETED_BUDGET if is_interpreted else BUDGET


_enforced: ContextVar[Limits | None] = ContextVar("anabranch_limits", default=None)


@contextmanager
def enforced(limits: Limits | None) -> Iterator[None]:
    """Within this, `checkpoint` checks these limits; None: no limits."""
    token = _enforced.set(limits)
    try:
        yield
    finally:
        _enforced.reset(token)


@contextmanager
def interruptible(limits: Limits) -> Iterator[None]:
    """Within this, an interrupt from the keyboard sets `cancelled` before it raises KeyboardInterrupt.

    The exception alone may be lost: Python drops one that is raised while it collects garbage or calls back from C.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def interrupted(number: int, frame: FrameType | None) -> None:
        limits.cancelled.set()
        before(number, frame)

    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def current() -> Limits | None:
    """The limits of the run in this context, if there is one."""
    return _enforced.get()


def checkpoint() -> None:
    """Raise `LimitReached` if the run in this context must end."""
    if (limits := _enforced.get()) is not None:
        limits.check()


@contextmanager
def holding(lock: threading.Lock | threading.RLock) -> Iterator[None]:
    """Within this the lock is held; waiting for it, the limits are checked ten times a second."""
    while not lock.acquire(timeout=0.1):
        checkpoint()
    try:
        yield
    finally:
        lock.release()


def time_limit() -> Limits | None:
    """The limits in this context if they limit the time: only then may anything depend on the clock."""
    limits = _enforced.get()
    return limits if limits is not None and limits.seconds is not None else None


@dataclass
class Pace:
    """The size of the next piece of some work; under a time limit, the first piece has the size that is given."""

    next_size: int = 1

    def size(self, most: int) -> int:
        """The size of the next piece, of so much that is to do: at least one."""
        return most if time_limit() is None else max(min(most, self.next_size), 1)

    @contextmanager
    def measured(self, size: int) -> Iterator[None]:
        """Within this, a piece of that size is done; an exception leaves the next size as it was."""
        limits = time_limit()
        if limits is None or limits.seconds is None:
            yield
            return
        started = limits.elapsed
        yield
        each = max(limits.elapsed - started, 1e-9) / size
        longest = min(LONGEST_PIECE, _TIME_SHARE * limits.seconds)
        self.next_size = max(min(int(longest / each), _GROWTH * size), 1)
