"""What an engine has drawn so far, and the posterior that it makes.

Executions come with weights w_i, and in blocks b that are independent of each other: single draws, chains, or runs of a
particle filter. With A_bk the weight of block b on path k, n_b what went into the block (draws, runs), and p_k the
share of path k in all weight,

    Ẑ = Σ A_bk / Σ n_b,        sd(Ẑ)² = B/(B−1) Σ_b (A_b − n_b Ẑ)² / (Σ n_b)²,
                               sd(p_k)² = B/(B−1) Σ_b (A_bk − p_k A_b)² / (Σ A_b)².

All weights count in these sums. The executions themselves are kept up to a number, the light ones with a probability
in proportion to their weight.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from anabranch.combine import Solution
from anabranch.combine.evidence import Evidence
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.weights import effective_sample_size, pareto_k
from anabranch.divide import Path
from anabranch.engines.traces import Traces

__all__ = ["BLOCKS", "Collection"]

BLOCKS = 400
"""Blocks at most: where there are more draws or runs than that, they are dealt out to so many."""
_KEPT = 50_000
Kept = tuple[Traces, np.ndarray, np.ndarray]
"""Executions with their log weights and blocks."""
_NOTHING = 40.0
"""Nats below the largest weight at which an execution is not worth keeping."""


class Collection:
    """Weighted executions.

    `weighted` says that the draws are independent, so that the tail of their weights tells whether to trust them;
    `apart` that the evidence does not come from their weights.
    """

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
        """Whether there is something that the evidence can be known from."""
        return not self.apart or self._evidence is not None

    @property
    def is_empty(self) -> bool:
        """Whether no execution with a positive weight was met."""
        return not self.masses

    def add(
        self,
        traces: Traces,
        log_weights: np.ndarray,
        blocks: np.ndarray,
        counted: np.ndarray | None = None,
        keep: bool = True,
    ) -> None:
        """Add executions; those that are not kept count in the weights of the paths alone.

        `counted` are the blocks that were given a draw or a run more, whatever its weight: those of the executions,
        unless said otherwise.
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
        """Add executions, of each of which the path is given by its number, and keep some as draws.

        All of it or nothing: an interrupt on the way leaves what was there before.
        """
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
        self.counts = counts
        self.masses = masses
        self.executions = executions
        self.beyond = beyond
        self._top = top
        self._size = size
        self._kept.extend(taken)
        if self._size > 2 * _KEPT:
            self._thin()

    def _taken(self, kept: Iterable[Kept]) -> tuple[float, list[Kept]]:
        """The largest weight, and of executions whose weights are added those that are not too light for draws."""
        top, taken = self._top, []
        for traces, log_weights, blocks in kept:
            inside = np.flatnonzero((traces.path >= 0) & (log_weights > -np.inf))
            if len(inside):
                top = max(top, float(log_weights[inside].max()))
                rows = inside[log_weights[inside] > top - _NOTHING]
                taken.append((traces.take(rows), log_weights[rows], blocks[rows] % BLOCKS))
        return top, taken

    def add_evidence(self, log_evidence: np.ndarray, blocks: np.ndarray) -> None:
        """Add unbiased estimates of Z that do not come from the weights of the executions."""
        mass, counts = map(np.copy, self._evidence or (np.full(BLOCKS, -np.inf), np.zeros(BLOCKS)))
        np.logaddexp.at(mass, blocks % BLOCKS, log_evidence)
        np.add.at(counts, blocks % BLOCKS, 1.0)
        self._evidence = mass, counts

    def _thin(self) -> None:
        """Keep each execution with probability min(1, w/c), and those kept with the weight max(w, c)."""
        traces, log_weights, blocks = self._all()
        relative = np.exp(log_weights - log_weights.max())
        if len(relative) > _KEPT:
            log_c = brentq(
                lambda c: np.minimum(1.0, relative / np.exp(c)).sum() - _KEPT, np.log(relative.min()) - 1, 50
            )
            rows = np.flatnonzero(self.rng.random(len(relative)) < relative / np.exp(log_c))
            log_weights = np.maximum(log_weights[rows], log_c + log_weights.max())
            traces, blocks = traces.take(rows), blocks[rows]
        self._kept, self._size = [(traces, log_weights, blocks)], len(log_weights)

    def _all(self) -> Kept:
        traces, log_weights, blocks = zip(*self._kept, strict=True)
        return Traces.joined(traces), np.concatenate(log_weights), np.concatenate(blocks)

    # What it says -----------------------------------------------------------------------------------------------

    def evidence(self) -> tuple[float, float]:
        """log Ẑ and its standard error."""
        if self._evidence is not None:
            return _log_mean(*self._evidence)
        if self.is_empty or self.apart:
            return -np.inf, np.inf
        return _log_mean(logsumexp(list(self.masses.values()), axis=0), self.counts)

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """The share of each path in all weight, in the order in which they were met, and its standard error."""
        masses = np.array(list(self.masses.values())).reshape(-1, BLOCKS)[:, self.counts > 0]
        masses = np.exp(masses - logsumexp(masses)) if len(masses) else masses
        weights, size = masses.sum(axis=1), masses.shape[1]
        if size < 2:
            return weights, np.where(weights < 1, np.inf, 0.0)
        deviation = masses - weights[:, None] * masses.sum(axis=0)
        return weights, np.sqrt(size / (size - 1) * (deviation**2).sum(axis=1))

    def solutions(self, with_evidence: bool) -> tuple[list[Solution], Evidence]:
        """Each path with its draws, and the evidence, if the weights are those of one."""
        log_z, log_z_sd = self.evidence()
        weights, sds = self.weights()
        kept = self._all() if self._kept else None
        solutions = []
        for path, weight, sd in zip(self.masses, weights, sds, strict=True):
            log_share = float(np.log(weight)) if weight > 0 else -np.inf
            log_mass = log_share + log_z if with_evidence else log_share
            relative = sd / weight if weight > 0 else np.inf
            if with_evidence:
                own = np.inf if self.apart else _log_mean(self.masses[path], self.counts)[1]
                relative = np.hypot(relative, log_z_sd) if self.apart else own
            solutions.append(Solution(path, self._estimate(path, kept, log_mass, float(relative))))
        evidence = Evidence(log_z, log_z_sd, weights, sds) if with_evidence else Evidence(None, None, weights, sds)
        return solutions, evidence

    def _estimate(self, path: Path, kept: Kept | None, log_mass: float, sd: float) -> Estimate:
        points, log_weights, blocks = np.zeros((0, path.dim)), np.zeros(0), np.zeros(0, int)
        rows = np.zeros(0, int) if kept is None else np.flatnonzero(kept[0].path == kept[0].paths.index(path))
        if kept is not None and len(rows):
            traces, log_weights, blocks = kept
            points, log_weights, blocks = traces.coordinates(path, rows), log_weights[rows], blocks[rows]
            # A draw at the very edge of a support has no coordinates.
            inside = np.isfinite(points).all(axis=1)
            points, log_weights, blocks = points[inside], log_weights[inside], blocks[inside]
        if not len(points):
            none = Estimate.nothing(path.dim, self.executions, self.method)
            return replace(none, log_evidence=log_mass, log_evidence_sd=sd)
        return Estimate.from_draws(
            points,
            log_weights,
            log_mass,
            sd,
            self.executions,
            self.method,
            ess=effective_sample_size(log_weights) * self.ess_share,
            pareto_k=pareto_k(log_weights) if self.weighted else np.nan,
            r_hat=self.r_hat,
            blocks=blocks,
        )


def _log_mean(log_mass: np.ndarray, counts: np.ndarray) -> tuple[float, float]:
    """The log of the mean of what the blocks have, per draw or run, and its standard error."""
    used = counts > 0
    log_mass, n, size = log_mass[used], counts[used], int(used.sum())
    total = logsumexp(log_mass)
    if size < 2 or not np.isfinite(total):
        return float(total - np.log(n.sum())), np.inf
    deviation = np.exp(log_mass - total) - n / n.sum()
    return float(total - np.log(n.sum())), float(np.sqrt(size / (size - 1) * (deviation**2).sum()))
