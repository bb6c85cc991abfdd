"""The figures of a run in words: paths, evidence, rate, and the time left to each limit.

With the rate r, in evaluations per second over the last updates, n evaluations so far and an error s of log Z, the time
left to the budget B is (B − n)/r. The error falls as 1/√n, so that about (n (s/ε)² − n)/r is left to the tolerance ε.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from anabranch.divide import compiling
from anabranch.limits import Limits
from anabranch.report.table import shortened, with_error

__all__ = ["Meter", "Status"]

WINDOW = 20
"""Updates over which the rate is measured; more are steadier, and later to tell a change."""
WIDTH = 80
"""Columns of a line at most."""
_DAY = 86_400


@dataclass(frozen=True)
class Status:
    """Paths found and estimated, the evidence so far (None: the engine gives none), and evaluations of the budget."""

    found: int
    active: int
    log_evidence: float | None
    log_evidence_sd: float | None
    evaluations: int
    budget: int


class Meter:
    """The last status of a run, and the rate at which it evaluates densities."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.status: Status | None = None
        self._marks: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    def add(self, status: Status) -> None:
        """Note the status at this time."""
        self.status = status
        self._marks.append((self.limits.elapsed, status.evaluations))

    @property
    def share(self) -> float:
        """The share of the budget or of the time that is over, whichever is larger."""
        of_time = 0.0 if self.limits.seconds is None else self.limits.elapsed / self.limits.seconds
        of_budget = 0.0 if self.status is None else self.status.evaluations / self.status.budget
        return min(max(of_time, of_budget), 1.0)

    @property
    def rate(self) -> float:
        """Evaluations per second; zero while it is not known."""
        if len(self._marks) < 2:
            return 0.0
        (began, before), (last, after) = self._marks[0], self._marks[-1]
        return (after - before) / (last - began) if last > began else 0.0

    def lines(self, width: int = WIDTH) -> list[str]:
        """The figures, in a few lines of at most this width."""
        return [shortened(line, width) for line in self._lines()]

    def line(self) -> str:
        """The figures in one line, without what is compiled."""
        return ", ".join(self._figures())

    def _lines(self) -> Iterator[str]:
        figures = list(self._figures())
        yield ", ".join(figures[:2])
        if figures[2:]:
            yield ", ".join(figures[2:])
        left = ", ".join(f"{name} {_clock(seconds)}" for name, seconds in self._left())
        if left:
            yield f"left to each limit: {left}"
        names = compiling()
        if names:
            what = "a density" if len(names) == 1 else f"{len(names)} densities"
            known = "; ".join(filter(None, names))
            yield f"compiling {what}{f' of {known}' if known else ''}"

    def _figures(self) -> Iterator[str]:
        status = self.status
        if status is None:
            yield f"finding paths, {_clock(self.limits.elapsed)}"
            return
        yield f"{status.found:,} paths, {status.active:,} active"
        sd = status.log_evidence_sd
        yield (
            "no evidence by this engine"
            if status.log_evidence is None or sd is None
            else f"log evidence {with_error(status.log_evidence, sd)}"
        )
        yield f"{status.evaluations:,} of {status.budget:,} evaluations"
        if self.rate:
            yield f"{self.rate:,.0f} per second"
        yield _clock(self.limits.elapsed)

    def _left(self) -> Iterator[tuple[str, float]]:
        """The limits with the seconds that are left to them, as far as that can be said."""
        status, limits = self.status, self.limits
        if status is not None and self.rate:
            yield "budget", max(status.budget - status.evaluations, 0) / self.rate
        if limits.seconds is not None:
            yield "time", max(limits.left, 0.0)
        if (
            status is None
            or not self.rate
            or limits.tolerance is None
            or limits.target
            or status.log_evidence_sd is None
        ):
            return
        if math.isfinite(status.log_evidence_sd) and status.log_evidence_sd > limits.tolerance:
            needed = status.evaluations * ((status.log_evidence_sd / limits.tolerance) ** 2 - 1)
            yield "tolerance about", needed / self.rate


def _clock(seconds: float) -> str:
    """A time in hours, minutes and seconds.

    >>> _clock(7.2), _clock(75), _clock(3 * 3600 + 62), _clock(1e6)
    ('0:07', '1:15', '3:01:02', 'more than a day')
    """
    if seconds > _DAY:
        return "more than a day"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
