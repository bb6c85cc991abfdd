"""The draws of an engine, and the estimates by them.

Executions have weights w_i, and belong to blocks b that are independent of each other: single draws, chains, or runs of
a particle filter. With A_bk the weight of block b on path k, n_b the number of draws or runs in the block, and p_k the
share of path k in all weight,

    Ẑ = Σ A_bk / Σ n_b,        sd(Ẑ)² = B/(B−1) Σ_b (A_b − n_b Ẑ)² / (Σ n_b)²,
                               sd(p_k)² = B/(B−1) Σ_b (A_bk − p_k A_b)² / (Σ A_b)².

All weights count in these sums. Some of the executions are kept, light ones in proportion to their weight.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp

from anabranch.combine import Solution
from anabranch.combine.evidence import Evidence
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.weights import effective_sample_size, pareto_k
from anabranch.divide import Path
from anabranch.engines.traces import Traces

__all__ = ["BLOCKS", "Collection"]

BLOCKS = 400
"""The number of blocks: more draws or runs than that share them. More blocks estimate errors better."""
Kept = tuple[Traces, np.ndarray, np.ndarray]
"""Executions with their log weights and blocks."""


class Collection:
    """Weighted executions.

    With `weighted`, draws are independent and have a Pareto k; with `apart`, their weights do not give the evidence.
    """

    max_kept: ClassVar[int] = 50_000
    """Executions kept as draws: more take more memory and time in the posterior."""
    negligible: ClassVar[float] = 40.0
    """Nats below the largest weight at which an execution is not kept."""

    def __init__(self, method: str, seed: int, weighted: bool, apart: bool = False) -> None:
        self.method, self.weighted, self.apart = method, weighted, apart
        self.rng = np.random.default_rng([seed, 11])
        self.masses: dict[Path, np.ndarray] = {}
        self.counts = np.zeros(BLOCKS)
        self._evidence: tuple[np.ndarray, np.ndarray] | None = None
        self.executions = self.beyond = 0
        self.ess_share, self.r_hat = 1.0, np.nan
        self._kept: list[Kept] = []
        self._size = 0
        self._top = -np.inf

    @property
    def has_evidence(self) -> bool:
        return not self.apart or self._evidence is not None

    @property
    def is_empty(self) -> bool:
        """Whether no execution has a positive weight."""
        return not self.masses

    def add(
        self,
        traces: Traces,
        log_weights: np.ndarray,
        blocks: np.ndarray,
        counted: np.ndarray | None = None,
        keep: bool = True,
    ) -> None:
        """Add executions; without `keep` they count in the weights of the paths alone.

        `counted` has the block of each draw or run; by default each execution is one.
        """
        kept = [(traces, log_weights, blocks)] if keep else []
        self.add_all(traces.paths, traces.path, log_weights, blocks, blocks if counted is None else counted, kept)

    def add_all(
        self,
        paths: list[Path],
        path: np.ndarray,
        log_weights: np.ndarray,
        blocks: np.ndarray,
        counted: np.ndarray,
        kept: Iterable[Kept] = (),
    ) -> None:
        """Add executions on paths with these numbers, and keep some as draws; after an interrupt all or none."""
        counts, masses = self.counts.copy(), {}
        np.add.at(counts, counted % BLOCKS, 1.0)
        inside = np.flatnonzero((path >= 0) & (log_weights > -np.inf))
        for number in np.unique(path[inside]):
            rows = inside[path[inside] == number]
            known = self.masses.get(paths[number])
            mass = np.full(BLOCKS, -np.inf) if known is None else known.copy()
            np.logaddexp.at(mass, blocks[rows] % BLOCKS, log_weights[rows])
            masses[paths[number]] = mass
        top, taken = self._taken(kept)
        executions, beyond = self.executions + len(path), self.beyond + int((path < 0).sum())
        masses, size = self.masses | masses, self._size + sum(len(each) for _, each, _ in taken)
        # Python handles an interrupt after a call, or where a loop begins again: not between these.
        self.counts, self.masses, self.executions, self.beyond = counts, masses, executions, beyond
        self._top, self._size = top, size
        self._kept.extend(taken)
        if self._size > 2 * self.max_kept:
            self._thin()

    def _taken(self, kept: Iterable[Kept]) -> tuple[float, list[Kept]]:
        """The largest weight, and those of the executions to keep that are not negligible."""
        top, taken = self._top, []
        for traces, log_weights, blocks in kept:
            inside = np.flatnonzero((traces.path >= 0) & (log_weights > -np.inf))
            if len(inside):
                top = max(top, float(log_weights[inside].max()))
                rows = inside[log_weights[inside] > top - self.negligible]
                taken.append((traces.take(rows), log_weights[rows], blocks[rows] % BLOCKS))
        return top, taken

    def add_evidence(self, log_evidence: np.ndarray) -> None:
        """Add independent, unbiased estimates of Z that do not come from the weights of the executions."""
        mass, counts = map(np.copy, self._evidence or (np.full(BLOCKS, -np.inf), np.zeros(BLOCKS)))
        blocks = int(counts.sum()) + np.arange(len(log_evidence))
        np.logaddexp.at(mass, blocks % BLOCKS, log_evidence)
        np.add.at(counts, blocks % BLOCKS, 1.0)
        self._evidence = mass, counts

    def _thin(self) -> None:
        """Keep each execution with probability min(1, w/c), and those kept with the weight max(w, c)."""
        traces, log_weights, blocks = self._all()
        relative = np.exp(log_weights - log_weights.max())
        if len(relative) > self.max_kept:

            def excess(log_c: float) -> float:
                return float(np.minimum(1.0, relative / np.exp(log_c)).sum() - self.max_kept)

            from scipy.optimize import brentq  # slow to import, and seldom needed

            log_c = brentq(excess, np.log(relative.min()) - 1, 50)
            rows = np.flatnonzero(self.rng.random(len(relative)) < relative / np.exp(log_c))
            log_weights = np.maximum(log_weights[rows], log_c + log_weights.max())
            traces, blocks = traces.take(rows), blocks[rows]
        self._kept, self._size = [(traces, log_weights, blocks)], len(log_weights)

    def _all(self) -> Kept:
        if not self._kept:
            return Traces.empty(list(self.masses), 0), np.zeros(0), np.zeros(0, int)
        traces, log_weights, blocks = zip(*self._kept, strict=True)
        return Traces.joined(traces), np.concatenate(log_weights), np.concatenate(blocks)

    def evidence(self) -> tuple[float, float]:
        """log Ẑ and its standard error."""
        if self._evidence is not None:
            return _log_mean(*self._evidence)
        if self.is_empty or self.apart:
            return -np.inf, np.inf
        return _log_mean(logsumexp(list(self.masses.values()), axis=0), self.counts)

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """The share of each path in all weight, in the order of their first visits, and its standard error."""
        masses = np.array(list(self.masses.values())).reshape(-1, BLOCKS)[:, self.counts > 0]
        masses = np.exp(masses - logsumexp(masses)) if len(masses) else masses
        weights, size = masses.sum(axis=1), masses.shape[1]
        if size < 2:
            return weights, np.where(weights < 1, np.inf, 0.0)
        deviation = masses - weights[:, None] * masses.sum(axis=0)
        return weights, np.sqrt(size / (size - 1) * (deviation**2).sum(axis=1))

    def solutions(self, with_evidence: bool) -> tuple[list[Solution], Evidence]:
        """Each path with its draws, and the evidence, if the engine estimates it."""
        log_z, log_z_sd = self.evidence()
        weights, sds = self.weights()
        kept, solutions = self._all(), []
        for path, weight, sd in zip(self.masses, weights, sds, strict=True):
            log_share = float(np.log(weight)) if weight > 0 else -np.inf
            log_mass = log_share + log_z if with_evidence else log_share
            relative = sd / weight if weight > 0 else np.inf
            if with_evidence:
                own_sd = _log_mean(self.masses[path], self.counts)[1]
                relative = np.hypot(relative, log_z_sd) if self.apart else own_sd
            solutions.append(Solution(path, self._estimate(path, kept, log_mass, float(relative))))
        evidence = Evidence(log_z, log_z_sd, weights, sds) if with_evidence else Evidence(None, None, weights, sds)
        return solutions, evidence

    def _estimate(self, path: Path, kept: Kept, log_mass: float, sd: float) -> Estimate:
        traces, log_weights, blocks = kept
        rows = np.flatnonzero(traces.path == traces.paths.index(path))
        points = traces.coordinates(path, rows)
        # A draw at the edge of a support has no finite coordinates.
        inside = np.isfinite(points).all(axis=1)
        points, log_weights, blocks = points[inside], log_weights[rows[inside]], blocks[rows[inside]]
        if not len(points):
            none = Estimate.nothing(path.dim, self.executions, self.method)
            return replace(none, log_evidence=log_mass, log_evidence_sd=sd)
        ess = effective_sample_size(log_weights) * self.ess_share
        k = pareto_k(log_weights) if self.weighted else np.nan
        return Estimate.from_draws(points, log_weights, log_mass, sd, self.executions, self.method, ess=ess,
                                   pareto_k=k, r_hat=self.r_hat, blocks=blocks)  # fmt: skip


def _log_mean(log_mass: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The log of the mean weight per draw or run, and its standard error."""
    used = counts > 0
    log_mass, n, size = log_mass[used], counts[used], int(used.sum())
    total = logsumexp(log_mass)
    if size < 2 or not np.isfinite(total):
        return float(total - np.log(n.sum())), np.inf
    deviation = np.exp(log_mass - total) - n / n.sum()
    return float(total - np.log(n.sum())), float(np.sqrt(size / (size - 1) * (deviation**2).sum()))
