"""What a run shows while it goes: one line in the terminal, or nothing."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Protocol, Self

from anabranch.report.table import with_error

__all__ = ["Live", "Progress", "Silent", "make_progress"]


class Progress(Protocol):
    """Something to tell how a run is going, within a `with` statement."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(
        self,
        *,
        found: int,
        active: int,
        log_evidence: float,
        log_evidence_sd: float,
        evaluations: int,
        budget: int | None,
    ) -> None:
        """How many paths were found and are worked on, what is known by now, and what was spent (None: no limit)."""


def make_progress(wanted: bool | None) -> Progress:
    """A display where it is wanted; without a wish (None), where standard error is a terminal."""
    if wanted is None:
        wanted = sys.stderr.isatty()
    return Live() if wanted else Silent()


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def update(
        self,
        *,
        found: int,
        active: int,
        log_evidence: float,
        log_evidence_sd: float,
        evaluations: int,
        budget: int | None,
    ) -> None:
        return None


class Live:
    """A bar and a line of figures on standard error, which go away when the run ends."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Display

        columns = (SpinnerColumn(), BarColumn(bar_width=20), TextColumn("{task.description}"), TimeElapsedColumn())
        self._display = Display(*columns, console=Console(stderr=True), transient=True)
        self._task = self._display.add_task("finding paths", total=None)

    def __enter__(self) -> Self:
        self._display.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.stop()

    def update(
        self,
        *,
        found: int,
        active: int,
        log_evidence: float,
        log_evidence_sd: float,
        evaluations: int,
        budget: int | None,
    ) -> None:
        text = described(found, active, log_evidence, log_evidence_sd, evaluations, budget)
        self._display.update(self._task, description=text, completed=evaluations, total=budget)


def described(
    found: int, active: int, log_evidence: float, log_evidence_sd: float, evaluations: int, budget: int | None
) -> str:
    """The line of figures.

    >>> described(20, 8, -123.456, 0.0321, 20_000, 1_000_000)
    '20 paths, 8 active, log evidence -123.456 ± 0.032, 20,000 of 1,000,000 evaluations'
    """
    spent = f"{evaluations:,}" if budget is None else f"{evaluations:,} of {budget:,}"
    return (
        f"{found} paths, {active} active, log evidence {with_error(log_evidence, log_evidence_sd)}, {spent} evaluations"
    )
