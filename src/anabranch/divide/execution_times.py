"""How long the interpreter takes for an execution."""

from __future__ import annotations

from typing import Any

__all__ = ["ExecutionTimes"]


class ExecutionTimes:
    """How long executions take, measured over those so far; and whether the user was told (`is_told`)."""

    def __init__(self) -> None:
        self.runs, self._first, self._others = 0, 0.0, 0.0
        self.is_told = False

    def add(self, seconds: float) -> None:
        """An execution took so long."""
        if self.runs:
            self._others += seconds
        else:
            self._first = seconds
        self.runs += 1

    def add_to_last(self, seconds: float) -> None:
        """Something that executions made necessary took so long."""
        if self.runs > 1:
            self._others += seconds

    @property
    def seconds_per_run(self) -> float | None:
        """The mean; without the first, in which much is done for all that follow. None if there was none."""
        if not self.runs:
            return None
        return self._others / (self.runs - 1) if self.runs > 1 else self._first

    def seconds_for(self, executions: int) -> float:
        """What so many take; zero before two were measured."""
        return executions * self._others / (self.runs - 1) if self.runs > 1 else 0.0

    def __reduce__(self) -> Any:
        return ExecutionTimes, ()  # in another process it is measured anew
