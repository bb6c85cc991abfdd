"""What a run of inference hands over: each path with what is known of it, and how the run went."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from anabranch.combine.history import History
from anabranch.conquer.estimate import Estimate
from anabranch.divide import Path

__all__ = ["Run", "Solution"]


@dataclass(frozen=True)
class Solution:
    """A path, and what inference on it gave.

    Attributes:
        path: the path.
        estimate: None where the path was found and never given any budget; its points are in the path's coordinates.
        visits: how often the allocation chose it.
        look: its place in the order of first looks, which go from the more to the less promising; zero: unknown.
        log_possible: log of the evidence that the path may have, where its estimate is in doubt; else minus infinity.
        doubt: why it is, as a clause; empty where it is not.
    """

    path: Path
    estimate: Estimate | None
    visits: int = 0
    look: int = 0
    log_possible: float = -np.inf
    doubt: str = ""

    @property
    def log_evidence(self) -> float:
        """log Ẑ_k, minus infinity where nothing is known."""
        return -np.inf if self.estimate is None else self.estimate.log_evidence

    @property
    def points(self) -> np.ndarray:
        """The draws, rows of the path's coordinates; none where nothing is known."""
        return np.zeros((0, self.path.dim)) if self.estimate is None else self.estimate.points

    @property
    def weights(self) -> np.ndarray:
        """The weights of the draws, which sum to one."""
        if not len(self.points):
            return np.zeros(0)
        assert self.estimate is not None
        weights = np.exp(self.estimate.log_weights - self.estimate.log_weights.max())
        return weights / weights.sum()

    @property
    def blocks(self) -> np.ndarray | None:
        """The independent block of each draw; None where the path was solved by itself."""
        if not len(self.points):
            return np.zeros(0, int)
        assert self.estimate is not None
        return self.estimate.blocks

    @property
    def is_exact(self) -> bool:
        """Whether the draws are all the values there are, each with its exact weight, and so without an error."""
        if self.estimate is None or self.estimate.log_evidence_sd != 0 or self.estimate.blocks is not None:
            return False
        if self.path.dim == 0:
            return True
        return bool(self.path.discrete.all()) and len(np.unique(self.points, axis=0)) == len(self.points)


@dataclass(frozen=True)
class Run:
    """How a run of inference went.

    Attributes:
        stopped: why it stopped, as a sentence.
        evaluations: points at which a density was computed.
        executions: executions of the program from the prior or from proposals.
        seconds: how long it took.
        seed: where every random choice came from.
        prior_mass_found: prior probability of the paths found; None for engines whose draws are whole executions.
        prior_mass_truncated: prior probability of executions with more sites than `max_sites`, which were not followed.
        notes: what else the user should know, as sentences.
        settings: the settings, as text.
        history: what it did when.
    """

    stopped: str
    evaluations: int
    executions: int
    seconds: float
    seed: int
    prior_mass_found: float | None = None
    prior_mass_truncated: float = 0.0
    notes: tuple[str, ...] = ()
    settings: str = ""
    history: History = field(default_factory=History, compare=False, repr=False)
