"""The paths found so far, and the inference on each: the paper's total set (appendix E)."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import PathTarget, Target
from anabranch.divide import Division, Executions, Path, prior_is_sampled

__all__ = ["PathRecord", "PathTable", "TotalEvidence", "total_evidence"]


class TotalEvidence(NamedTuple):
    """log Ẑ = log ΣẐ_k, the weights Ẑ_k/Ẑ, the standard errors of the log Ẑ_k, and that of log Ẑ."""

    log_evidence: float
    weights: np.ndarray
    path_sds: np.ndarray
    log_evidence_sd: float


def total_evidence(estimates: Sequence[Estimate | None]) -> TotalEvidence:
    """Add up the paths; one without an estimate or without mass adds nothing.

    Their errors are independent, but those of the paths that no second method has confirmed: what one of them misses,
    the others may miss, too, so their errors add up as they are. Each is at least as large as the corrections that the
    second method has made to other paths, as a root mean square.

    Example:
        >>> def path(evidence, sd):
        ...     return Estimate.from_draws(np.zeros((1, 1)), np.zeros(1), np.log(evidence), sd, 100, "example")
        >>> total = total_evidence([path(1.0, 0.1), path(3.0, 0.0)])
        >>> total.weights, round(total.log_evidence_sd, 3)
        (array([0.25, 0.75]), 0.025)
    """
    logs = np.array([-np.inf if each is None else each.log_evidence for each in estimates])
    total = float(logsumexp(logs)) if len(logs) else -np.inf
    if not np.isfinite(total):
        return TotalEvidence(total, np.zeros(len(logs)), np.full(len(logs), np.inf), np.inf)
    weights, sds = np.exp(logs - total), _standard_errors(estimates)
    errors = weights * np.where(weights > 0, sds, 0.0)
    together = np.array([each is not None and not each.is_confirmed for each in estimates])
    sd = np.hypot(np.sqrt((errors[~together] ** 2).sum()), errors[together].sum())
    return TotalEvidence(total, weights, sds, float(sd))


def _standard_errors(estimates: Sequence[Estimate | None]) -> np.ndarray:
    """The standard error of each log Ẑ_k; infinite without an estimate."""
    corrections = np.array([np.nan if each is None else each.correction for each in estimates])
    corrections = corrections[np.isfinite(corrections)]
    doubt = float(np.sqrt(np.mean(corrections**2))) if len(corrections) else 0.0
    sds = np.array([np.inf if each is None else each.log_evidence_sd for each in estimates])
    confirmed = np.array([each is not None and each.is_confirmed for each in estimates])
    return np.maximum(sds, np.where(confirmed, 0.0, doubt))


@dataclass(eq=False)
class PathRecord:
    """One path.

    Attributes:
        number: in the order of discovery.
        path: the path; replaced when the division finds another form of the program.
        revision: that of the path when its target was made.
        target: the density as the strategy sees it.
        state: of the strategy.
        estimate: the latest estimate, None before there is one.
        visits: S_k, how often the path was visited.
        first_visit: its place in the order of first visits, from one; zero before.
        parent: the largest weight of a path that it was proposed from.
        parent_likelihood: the log of the mean likelihood of that path.
        expanded: whether its neighbours were proposed.
        gave_up: why the strategy gave the path up, as a sentence; empty if it did not.
        is_named: whether the user has named it as one to begin with.
        is_scouted: whether its estimate is that of a scout, and the first visit is still to come.
    """

    number: int
    path: Path
    revision: int
    target: Target
    state: Any = None
    estimate: Estimate | None = None
    visits: int = 0
    first_visit: int = 0
    parent: float = 0.0
    parent_likelihood: float = -np.inf
    expanded: bool = False
    gave_up: str = ""
    is_named: bool = False
    is_scouted: bool = False

    @property
    def log_evidence(self) -> float:
        """log Ẑ_k, minus infinity without an estimate."""
        return -np.inf if self.estimate is None else self.estimate.log_evidence

    @property
    def error(self) -> float:
        """The standard error of log Ẑ_k, infinite without an estimate."""
        return np.inf if self.estimate is None else self.estimate.log_evidence_sd

    @property
    def is_exact(self) -> bool:
        """Whether there is an estimate whose evidence is exact."""
        return self.estimate is not None and self.estimate.has_exact_evidence

    @property
    def is_informative(self) -> bool:
        """Whether there is an estimate with mass, or one that is exact."""
        return self.estimate is not None and self.estimate.is_informative

    @property
    def evaluations(self) -> int:
        """Points at which the density of the path was computed so far."""
        return self.target.account.evaluations

    @property
    def is_confirmed(self) -> bool:
        """Whether a second method has confirmed the estimate, or none is to be asked."""
        return self.estimate is not None and self.estimate.is_confirmed

    @property
    def is_doubtful(self) -> bool:
        """Whether the diagnostics of the path's estimate fail."""
        return self.estimate is not None and not self.gave_up and not self.estimate.is_trusted

    @property
    def log_mean_likelihood(self) -> float:
        """log E[g | k] = log Z_k − log p_k, minus infinity where one of them is not known."""
        prior = self.path.log_prior_probability
        return self.log_evidence - prior if prior > -np.inf else -np.inf

    @property
    def log_possible(self) -> float:
        """log of the evidence that the path may have, by its diagnostics; minus infinity without an estimate.

        Z_k = p_k E[g | k] is at most p_k times the largest likelihood, once a visit has climbed to it.
        """
        if self.estimate is None:
            return -np.inf
        possible, prior = self.estimate.log_possible, self.path.log_prior_probability
        if self.visits and prior > -np.inf and self.is_proper:
            possible = min(possible, prior + self.target.best_likelihood)
        return max(possible, self.estimate.log_evidence)

    @cached_property
    def is_proper(self) -> bool:
        """Whether the prior of the path has a finite mass."""
        return prior_is_sampled(self.path)

    def executions(self, points: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Rows of the path's own coordinates for points of its target; marginalised variables are drawn."""
        self.target.allow(np.inf)
        return self.target.executions(points, rng)


@dataclass
class PathTable:
    """The records of all paths, by the signature of the path.

    Attributes:
        records: the records.
        written_off: evaluations spent on paths that the division has since replaced.
        numbered: records made so far.
        max_groups: groups kept of the executions that found a path; more give a strategy more points to start from.
    """

    records: dict[Any, PathRecord] = field(default_factory=dict)
    written_off: int = 0
    numbered: int = 0
    max_groups: int = 4
    _added_up: tuple[list[Estimate], TotalEvidence] | None = field(default=None, repr=False)

    def __iter__(self) -> Iterator[PathRecord]:
        return iter(self.records.values())

    def __len__(self) -> int:
        return len(self.records)

    def update(self, division: Division, arrivals: Iterable[Executions] = ()) -> None:
        """Add the paths that are new, and replace those that have another form or another decision sequence."""
        found: dict[int, list[Executions]] = {}
        for executions in arrivals:
            if executions.path is not None:
                found.setdefault(id(executions.path), []).append(executions)
        for (signature, path), old in zip_longest(division.by_signature.items(), self._in_order_of(division)):
            if old is not None and old.path is path and old.revision == path.revision:
                continue
            target = PathTarget(path, found.get(id(path), [])[: self.max_groups])
            new = PathRecord(self.numbered if old is None else old.number, path, path.revision, target)
            if old is None:
                self.numbered += 1
            else:
                self.written_off += old.evaluations
                new.parent, new.parent_likelihood = old.parent, old.parent_likelihood
                new.is_named = old.is_named
            self.records[signature] = new

    def _in_order_of(self, division: Division) -> list[PathRecord | None]:
        """The record of each path of a division, as far as there are any: the last ones found have none yet.

        A division that began again has other paths, in another order; the records of those that it lacks go.
        """
        paths = division.by_signature
        if len(self) <= len(paths) and all(map(operator.is_, (record.path for record in self), paths.values())):
            return list(self)
        for gone in self.records.keys() - paths.keys():
            self.written_off += self.records.pop(gone).evaluations
        records: list[PathRecord | None] = [self.records.get(signature) for signature in paths]
        self.records = {key: record for key, record in zip(paths, records, strict=True) if record is not None}
        return records

    @property
    def evaluations(self) -> int:
        """Points at which a density was computed, on all paths."""
        return self.written_off + sum(record.evaluations for record in self)

    @property
    def solved(self) -> list[PathRecord]:
        """The records with an estimate."""
        return [record for record in self if record.estimate is not None]

    @property
    def total(self) -> TotalEvidence:
        """The evidence of all paths with an estimate, and their weights in the order of `solved`."""
        estimates = [record.estimate for record in self if record.estimate is not None]
        if self._added_up is None or not _are_same(self._added_up[0], estimates):
            self._added_up = estimates, total_evidence(estimates)
        return self._added_up[1]

    @property
    def log_evidence(self) -> float:
        """log ΣẐ_k over the paths with an estimate."""
        return self.total.log_evidence

    def weights(self) -> dict[PathRecord, float]:
        """The posterior probability of each path, Ẑ_k/Ẑ; zero without an estimate."""
        return {**dict.fromkeys(self, 0.0), **dict(zip(self.solved, self.total.weights.tolist(), strict=True))}


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(operator.is_, some, others))
