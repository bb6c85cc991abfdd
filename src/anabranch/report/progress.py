"""What a run shows while it goes: one line in the terminal, or nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Self

from anabranch.report.table import with_error

__all__ = ["Live", "Progress", "Status", "make_progress"]


@dataclass(frozen=True)
class Status:
    """How far a run has come: paths found and worked on, the evidence by now (None: the method has none),
    what was spent.

    >>> print(Status(20, 8, -123.456, 0.0321, 20_000, 1_000_000))
    20 paths, 8 active, log evidence -123.456 ± 0.032, 20,000 of 1,000,000 evaluations
    """

    found: int
    active: int
    log_evidence: float | None
    log_evidence_sd: float | None
    evaluations: int
    budget: int

    def __str__(self) -> str:
        known = [f"{self.found} paths, {self.active} active"]
        if self.log_evidence is not None and self.log_evidence_sd is not None:
            known.append(f"log evidence {with_error(self.log_evidence, self.log_evidence_sd)}")
        return ", ".join([*known, f"{self.evaluations:,} of {self.budget:,} evaluations"])


class Progress:
    """Something to tell how a run is going, within a `with` statement. This one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, status: Status) -> None:
        """Show how far the run has come."""


class Live(Progress):
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

    def __exit__(self, *error: object) -> None:
        self._display.stop()

    def update(self, status: Status) -> None:
        self._display.update(self._task, description=str(status), completed=status.evaluations, total=status.budget)


def make_progress(wanted: bool | None) -> Progress:
    """A display where it is wanted; without a wish (None), where standard error is a terminal."""
    if wanted is None:
        wanted = sys.stderr.isatty()
    return Live() if wanted else Progress()
