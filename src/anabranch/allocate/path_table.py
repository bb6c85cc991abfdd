"""What is known of every path while inference runs: the paper's total set (appendix E)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import logsumexp

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import PathTarget, Target
from anabranch.divide import Division, Executions, Path
from anabranch.divide.support import prior_is_sampled

__all__ = ["PathRecord", "PathTable"]

_FOUND_BY = 4
"""Groups of executions kept of those that found a path: a few points of it are enough to start from."""


@dataclass(eq=False)
class PathRecord:
    """One path.

    Attributes:
        number: in the order of discovery.
        path: the path; replaced when the division finds another form of the program.
        sequences: decision sequences that the path had when its target was made.
        target: the density as the strategy sees it.
        state: of the strategy.
        estimate: what is known by now, None before the first visit.
        visits: S_k, how often the path was chosen.
        look: its place in the order of first looks, from one; zero before.
        parent: the largest weight of a path that it was proposed from.
        parent_likelihood: the log of the mean likelihood of that path.
        expanded: whether the paths around it were looked for.
        gave_up: why nothing more can be done on it.
    """

    number: int
    path: Path
    sequences: int
    target: Target
    state: Any = None
    estimate: Estimate | None = None
    visits: int = 0
    look: int = 0
    parent: float = 0.0
    parent_likelihood: float = -np.inf
    expanded: bool = False
    gave_up: str = ""

    @property
    def log_evidence(self) -> float:
        return -np.inf if self.estimate is None else self.estimate.log_evidence

    @property
    def is_known(self) -> bool:
        """Whether there is an estimate that says anything."""
        return self.estimate is not None and self.estimate.is_informative

    def executions(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Rows of the path's own coordinates for points of its target; what was summed out is drawn."""
        self.target.allow(np.inf)
        return self.target.executions(points, rng)

    @property
    def log_mean_likelihood(self) -> float:
        """log E[g | k] = log Z_k − log p_k, as far as it is known."""
        prior = self.path.log_prior_probability
        return self.log_evidence - prior if prior > -np.inf else -np.inf

    @property
    def log_possible(self) -> float:
        """log of the evidence that the path may have, as its diagnostics allow; minus infinity if nothing is known.

        Z_k = p_k E[g | k] is at most p_k times the largest likelihood, once that was climbed to.
        """
        if self.estimate is None:
            return -np.inf
        possible, prior = self.estimate.log_possible, self.path.log_prior_probability
        if self.visits and prior > -np.inf and self.is_proper:
            possible = min(possible, prior + self.target.best_likelihood)
        return max(possible, self.estimate.log_evidence)

    @cached_property
    def is_proper(self) -> bool:
        """Whether the prior is a probability distribution, which one without a finite mass is not."""
        return prior_is_sampled(self.path)

    @property
    def error(self) -> float:
        """The standard error of the log evidence."""
        return np.inf if self.estimate is None else self.estimate.log_evidence_sd


@dataclass
class PathTable:
    """The entries, by the signature of their path."""

    entries: dict[Any, PathRecord] = field(default_factory=dict)
    written_off: int = 0
    """Evaluations spent on paths that the division has since replaced."""
    numbered: int = 0
    """Entries made so far."""

    def __iter__(self) -> Iterator[PathRecord]:
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)

    def update(self, division: Division, arrivals: Iterable[Executions] = ()) -> None:
        """Enter the paths that are new, and start those again of which more is known than when they were entered."""
        found: dict[Any, list[Executions]] = {}
        for executions in arrivals:
            if executions.path is not None:
                found.setdefault(executions.path.signature, []).append(executions)
        for gone in self.entries.keys() - division.by_signature.keys():
            self.written_off += self.entries.pop(gone).target.evaluations
        for signature, path in division.by_signature.items():
            entry = self.entries.get(signature)
            executions_here = found.get(signature, [])[:_FOUND_BY]
            if entry is None:
                number = self.numbered
                self.numbered += 1
                self.entries[signature] = PathRecord(
                    number, path, len(path.recordings), PathTarget(path, executions_here)
                )
            elif entry.path is not path or entry.sequences != len(path.recordings):
                self.written_off += entry.target.evaluations
                target = PathTarget(path, executions_here)
                again = PathRecord(entry.number, path, len(path.recordings), target)
                again.parent, again.parent_likelihood = entry.parent, entry.parent_likelihood
                self.entries[signature] = again

    @property
    def evaluations(self) -> int:
        """Points at which a density was computed, on all paths."""
        return self.written_off + sum(entry.target.evaluations for entry in self)

    @property
    def solved(self) -> list[PathRecord]:
        """The entries with an estimate."""
        return [entry for entry in self if entry.estimate is not None]

    @property
    def log_evidence(self) -> float:
        """log ΣẐ_k over the paths that were visited."""
        logs = [entry.log_evidence for entry in self.solved]
        return float(logsumexp(logs)) if logs else -np.inf

    def weights(self) -> dict[Any, float]:
        """The posterior probability of each path, Ẑ_k/Ẑ, by its signature."""
        total = self.log_evidence
        if not np.isfinite(total):
            return dict.fromkeys(self.entries, 0.0)
        return {key: float(np.exp(entry.log_evidence - total)) for key, entry in self.entries.items()}
