"""The results of a run: an estimate of each path, and how the run went."""

from dataclasses import dataclass, field, replace

import numpy as np

from anabranch.combine.history import History
from anabranch.conquer.elimination import Elimination
from anabranch.conquer.estimate import Estimate
from anabranch.divide import Path
from anabranch.versions import installed

__all__ = ["Run", "Solution"]


@dataclass(frozen=True)
class Solution:
    """A path and its estimate.

    Attributes:
        path: the path.
        estimate: None if the path was never visited, or given up; its points are in the path's coordinates.
        visits: how often the path was visited.
        first_visit: its place in the order of first visits, from the more to the less promising; zero if not known.
        log_possible: log of the evidence that the path may have, if its diagnostics fail; else minus infinity.
        doubt: why they fail, as a clause; empty if they do not.
        terms: evaluations of the program's graph that an evaluation of the density takes: more than one where discrete
            variables are summed out.
        log_multiple: log of the mass that the path stands for over its own: it stands for paths that were not visited,
            too, if a walk over paths came to it (`search.walk`).
        multiple_sd: the relative error of that.
    """

    path: Path
    estimate: Estimate | None
    visits: int = 0
    first_visit: int = 0
    log_possible: float = -np.inf
    doubt: str = ""
    terms: int = 1
    log_multiple: float = 0.0
    multiple_sd: float = 0.0

    @property
    def represented(self) -> Estimate | None:
        """The estimate with the mass of all that the path stands for."""
        if self.estimate is None or not (self.log_multiple or self.multiple_sd):
            return self.estimate
        log_evidence = self.estimate.log_evidence + self.log_multiple
        sd = float(np.hypot(self.estimate.log_evidence_sd, self.multiple_sd))
        return replace(self.estimate, log_evidence=log_evidence, log_evidence_sd=sd, is_confirmed=True)

    @property
    def log_evidence(self) -> float:
        """log Ẑ_k, minus infinity without an estimate."""
        return -np.inf if self.estimate is None else self.estimate.log_evidence

    @property
    def points(self) -> np.ndarray:
        """The draws, rows of the path's coordinates; none without an estimate."""
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
        """The independent block of each draw; None if the path was solved on its own."""
        if not len(self.points):
            return np.zeros(0, int)
        assert self.estimate is not None
        return self.estimate.blocks

    @property
    def is_exact(self) -> bool:
        """Whether the draws are all values of the path, each with its exact weight."""
        if self.estimate is None or self.estimate.log_evidence_sd != 0 or self.estimate.blocks is not None:
            return False
        if self.path.dim == 0:
            return True
        if self.estimate.method == "Elimination" or self.estimate.is_of_prior:
            return False  # the evidence is, and the draws are some of very many
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
        log_possible_not_found: log of the evidence that paths not found may have, if time ended the search; or None.
        elimination: how discrete variables were summed out; None: they were not.
        unmet: the conditions of which no execution has met one side, and values that none has met, as sentences.
        notes: further warnings, as sentences.
        settings: the settings, as text.
        limits: the limits, as arguments of `infer`.
        versions: of the packages with which it ran, by name.
        history: the visits of paths, and the evidence after each.
        known_share: the share of the posterior mass on the paths known, by a walk over paths, and its standard error;
            None without a walk.
    """

    stopped: str
    evaluations: int
    executions: int
    seconds: float
    seed: int
    prior_mass_found: float | None = None
    prior_mass_truncated: float = 0.0
    log_possible_not_found: float | None = None
    elimination: Elimination | None = None
    unmet: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    settings: str = ""
    limits: str = ""
    versions: dict[str, str] = field(default_factory=lambda: dict(installed()))
    history: History = field(default_factory=History, compare=False, repr=False)
    known_share: tuple[float, float] | None = None
