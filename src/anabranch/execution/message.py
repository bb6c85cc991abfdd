"""What travels between the process of a run and its workers: the task of a visit, and what the visit leaves.

The program, its data and the settings travel once, to each worker. A path travels as its decisions: the worker runs the
program with them, and keeps the path and what it compiles for it. The rest is plain data.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import numpy as np

from anabranch.conquer import Estimate
from anabranch.conquer.target import PathTarget
from anabranch.conquer.target_state import TargetState, restored, state_of_target
from anabranch.divide import Order, Path, Program, helped, rebuild
from anabranch.execution.crew import Ask, Asking
from anabranch.limits import LimitReached, Limits, enforced
from anabranch.search.visit import Outcome, Task, Visitor

__all__ = ["Message", "Reply", "Worker", "message_of", "outcome_of", "seconds_left"]

logger = logging.getLogger("anabranch")


@dataclass(frozen=True)
class Message:
    """A task for a worker.

    Attributes:
        program, visitor: names under which the worker holds them.
        choices, log_prior_probability, apart: of the path.
        known: points of the path.
        task: the task, without its target.
        target: the counters of the target.
        seconds: that are left of the run; None if its time is not limited.
    """

    program: str
    visitor: str
    choices: Sequence[Any]
    log_prior_probability: float
    apart: bool
    known: np.ndarray
    task: Task
    target: TargetState
    seconds: float | None


@dataclass(frozen=True)
class Reply:
    """What a visit leaves, and what it logged."""

    target: TargetState
    state: Any
    estimate: Estimate | None
    gave_up: str
    is_visit: bool
    is_cut: bool
    logged: tuple[tuple[int, str], ...] = ()


def message_of(task: Task, program: str, visitor: str, limits: Limits) -> Message:
    """The message for a task."""
    path, target = task.target.path, task.target
    whole = getattr(target, "target", target)
    recipe = path.choices, path.log_prior_probability, path.apart
    without: Any = replace(task, target=None)  # type: ignore[arg-type]
    return Message(program, visitor, *recipe, whole.known, without, state_of_target(target), seconds_left(limits))


def seconds_left(limits: Limits) -> float | None:
    """The seconds that are left of a run; None if its time is not limited."""
    return None if limits.seconds is None else max(limits.left, 1e-3)


def outcome_of(reply: Reply, task: Task, visitor: Visitor) -> Outcome:
    """The outcome of a task, with the target of this process."""
    for level, text in reply.logged:
        logger.log(level, "%s", text)
    target = restored(task.target, reply.target, visitor.settings.elimination)
    return Outcome(target, reply.state, reply.estimate, reply.gave_up, reply.is_visit, reply.is_cut)


class Worker:
    """Makes visits for another process; it keeps the programs, settings and paths of the runs under way."""

    def __init__(self) -> None:
        self._held: dict[str, Any] = {}
        self._paths: dict[bytes, Path] = {}

    def hold(self, name: str, pickled: bytes) -> None:
        """Keep a program, or the settings of visits, under this name."""
        self._held[name] = cloudpickle.loads(pickled)

    def forget(self, names: Sequence[str]) -> None:
        """Let go of what a run is done with."""
        for name in names:
            self._held.pop(name, None)
        self._paths.clear()

    def visit(self, message: Message, limits: Limits, ask: Ask) -> Reply | None:
        """Make a visit, for which it may ask for help; None if the run was over before it began."""
        visitor: Visitor = self._held[message.visitor]
        with _logged() as logged, enforced(limits), helped(Asking(ask)):
            try:
                outcome = self._visited(message, visitor)
            except LimitReached:
                return None
        state = state_of_target(outcome.target)
        return Reply(state, *outcome[1:], logged=tuple(logged))

    def help(self, program: str, pickled: bytes | None, limits: Limits) -> bytes | None:
        """Fill an order, if there is one; None if the run was over before that was done."""
        if pickled is None:
            return None
        order: Order[Any] = cloudpickle.loads(pickled)
        with _logged(), enforced(limits), np.errstate(all="ignore"):
            try:
                result: bytes = cloudpickle.dumps(order.done(_HeldPaths(self, program)))
            except LimitReached:
                return None
        return result

    def _visited(self, message: Message, visitor: Visitor) -> Outcome:
        target = PathTarget(self._path(message))
        target.known = message.known
        whole = restored(target, message.target, visitor.settings.elimination)
        return visitor(replace(message.task, target=whole))

    def _path(self, message: Message) -> Path:
        """The path with these decisions, made once."""
        path = self.path(message.program, message.choices, message.apart)
        path.apart = message.apart
        path.met_by_solving(message.log_prior_probability)
        return path

    def path(self, name: str, choices: Sequence[Any], kind: object) -> Path:
        """The path of a program with these decisions, made once for each kind of use."""
        key = pickle.dumps((name, choices, kind))
        if key not in self._paths:
            self._paths[key] = rebuild(self.program(name), choices)
        return self._paths[key]

    def program(self, name: str) -> Program:
        """The program that is held under this name."""
        found: Program = self._held[name]
        return found


class _HeldPaths:
    """What a worker holds for orders of one program."""

    def __init__(self, worker: Worker, name: str) -> None:
        self._worker, self._name = worker, name

    @property
    def program(self) -> Program:
        return self._worker.program(self._name)

    def path(self, choices: Sequence[Any]) -> Path:
        return self._worker.path(self._name, choices, "helping")


@contextmanager
def _logged() -> Iterator[list[tuple[int, str]]]:
    """Collect what is logged within this, for the process of the run to log."""
    found: list[tuple[int, str]] = []

    class Collecting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.levelno, record.getMessage()))

    handler, propagates = Collecting(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield found
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
