"""How far a run has come, and who is told."""

from dataclasses import dataclass
from typing import Self

__all__ = ["Progress", "Status"]


@dataclass(frozen=True)
class Status:
    """Paths found and estimated, the evidence so far (None: the engine gives none), and evaluations of the budget."""

    found: int
    active: int
    log_evidence: float | None
    log_evidence_sd: float | None
    evaluations: int
    budget: int


class Progress:
    """A context in which a run reports its status. This one shows nothing; `report.progress` has a display."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def update(self, status: Status) -> None:
        """Report the status after a round."""
