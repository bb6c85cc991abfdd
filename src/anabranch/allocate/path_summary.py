"""A path as the allocation rules see it."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.conquer.estimate import Estimate

__all__ = ["PathSummary"]


@dataclass(frozen=True)
class PathSummary:
    """How often a path was given budget, S_k in the paper, and what is known of it by now: nothing before the first."""

    visits: int
    estimate: Estimate | None

    @property
    def exact(self) -> bool:
        """Whether more budget cannot change the estimate."""
        return self.estimate is not None and self.estimate.log_evidence_sd == 0
