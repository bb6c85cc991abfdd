"""The protocol of an executor, and the default: threads."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from anabranch.cores import available_cores
from anabranch.limits import Limits
from anabranch.settings import check, whole
from anabranch.workers import Workers

__all__ = ["Executor", "Threads", "executor_of"]


@runtime_checkable
class Executor(Protocol):
    """Where visits are made."""

    @property
    def workers(self) -> int:
        """Visits that are made at the same time."""

    def opened(self, limits: Limits) -> AbstractContextManager[Workers]:
        """The workers of one run, within its limits."""


@dataclass(frozen=True)
class Threads:
    """Threads of this process, the default.

    Args:
        workers: how many; 0: as many as the process may use cores.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, budget=20_000, executor=ab.Threads(2))
        >>> posterior.log_evidence == ab.infer(programs.branching, 2.0, budget=20_000).log_evidence
        True
    """

    workers: int = 0

    def __post_init__(self) -> None:
        check(self, workers=whole())
        object.__setattr__(self, "workers", self.workers or available_cores())

    def opened(self, limits: Limits) -> AbstractContextManager[Workers]:
        return Workers(self.workers, limits)


def executor_of(workers: int | Executor) -> Executor:
    """An executor, or that many threads."""
    return Threads(workers) if isinstance(workers, int) else workers
