"""How far a run has come, and a display of it: one line in the terminal."""

import sys
from dataclasses import dataclass
from typing import Self

from anabranch.report.table import with_error

__all__ = ["Live", "Progress", "Status", "make_progress"]


@dataclass(frozen=True)
class Status:
    """Paths found and estimated, the evidence so far (None: the engine gives none), and evaluations of the budget."""

    found: int
    active: int
    log_evidence: float | None
    log_evidence_sd: float | None
    evaluations: int
    budget: int


def described(status: Status) -> str:
    """The status in one line.

    >>> described(Status(20, 8, -123.456, 0.0321, 20_000, 1_000_000))
    '20 paths, 8 active, log evidence -123.456 ± 0.032, 20,000 of 1,000,000 evaluations'
    """
    parts = [f"{status.found} paths, {status.active} active"]
    if status.log_evidence is not None and status.log_evidence_sd is not None:
        parts.append(f"log evidence {with_error(status.log_evidence, status.log_evidence_sd)}")
    return ", ".join([*parts, f"{status.evaluations:,} of {status.budget:,} evaluations"])


class Progress:
    """A context in which a run reports its status. This one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, status: Status) -> None:
        """Report the status after a round."""


class Live(Progress):
    """A bar and a line of figures on standard error, removed when the run ends."""

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

    def __exit__(self, *error: object) -> None:
        self._display.stop()

    def update(self, status: Status) -> None:
        done, text = status.evaluations, described(status)
        self._display.update(self._task, description=text, completed=done, total=status.budget)


def make_progress(wanted: bool | None) -> Progress:
    """A display if one is wanted; by default (None) if standard error is a terminal."""
    if wanted is None:
        wanted = sys.stderr.isatty()
    return Live() if wanted else Progress()
