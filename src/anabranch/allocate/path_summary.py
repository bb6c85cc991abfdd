"""A path as an allocator sees it."""

from dataclasses import dataclass

from anabranch.conquer.estimate import Estimate

__all__ = ["PathSummary"]


@dataclass(frozen=True)
class PathSummary:
    """The visits of a path, S_k in the paper, and its estimate, None before the first visit."""

    visits: int
    estimate: Estimate | None

    @property
    def exact(self) -> bool:
        """Whether the estimate has no error."""
        return self.estimate is not None and self.estimate.has_exact_evidence
