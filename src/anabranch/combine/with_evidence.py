"""A posterior whose evidence is known, by its type."""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.combine.evidence import Evidence
from anabranch.combine.posterior import Posterior
from anabranch.combine.solution import Run, Solution
from anabranch.divide import Program

__all__ = ["PosteriorWithEvidence", "posterior_of"]


class PosteriorWithEvidence(Posterior):
    """A posterior of a method that estimates the evidence, as `DCC` does: `log_evidence` is a number.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, budget=20_000)
        >>> isinstance(posterior, ab.PosteriorWithEvidence), abs(posterior.log_evidence + 3.15) < 0.1
        (True, True)
    """

    @property
    def log_evidence(self) -> float:
        """log Z, the log marginal likelihood of the data."""
        assert self.evidence.log_evidence is not None
        return self.evidence.log_evidence

    @property
    def log_evidence_sd(self) -> float:
        """The standard error of `log_evidence`.

        DCC adds to the Monte Carlo errors of the paths a term for the prior mass that was not found or not visited.
        """
        assert self.evidence.log_evidence_sd is not None
        return self.evidence.log_evidence_sd


def posterior_of(
    program: Program, solutions: Sequence[Solution], run: Run, evidence: Evidence | None = None
) -> Posterior:
    """The posterior, of the type that says whether its evidence is known."""
    is_known = evidence is None or evidence.log_evidence is not None
    return (PosteriorWithEvidence if is_known else Posterior)(program, solutions, run, evidence)
