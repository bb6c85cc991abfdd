"""What the engines that run Markov chains have in common: where chains start, what is kept of them, how they agree."""

from __future__ import annotations

import numpy as np

from anabranch import errors
from anabranch.conquer.chains import chain_ess, split_r_hat
from anabranch.engines.sampler import Session
from anabranch.engines.traces import Traces

__all__ = ["Chains", "accepted", "check_chains", "starting_points"]

_ATTEMPTS = 50
_KEPT = 40_000


def check_chains(chains: int, warmup: float) -> None:
    """Refuse numbers with which no chain could run."""
    if chains < 1:
        raise ValueError(f"chains must be at least 1; got {chains}")
    if not 0 <= warmup < 1:
        raise ValueError(f"warmup must be a share, from 0 to below 1; got {warmup}")


def starting_points(session: Session, n: int) -> Traces:
    """Executions from the prior, all of positive density."""
    traces = session.runner.execute(n)
    for _ in range(_ATTEMPTS):
        missing = traces.log_density == -np.inf
        if not missing.any():
            return traces
        more = session.runner.execute(n)
        found = np.flatnonzero(more.log_density > -np.inf)
        rows = np.flatnonzero(missing)[: len(found)]
        index = np.arange(n)
        index[rows] = found[: len(rows)]
        chosen = np.zeros(n, bool)
        chosen[rows] = True
        traces = traces.replaced(chosen, more.take(index))
    possible = np.flatnonzero(traces.log_density > -np.inf)
    if not len(possible):
        raise errors.EngineCannotRun(
            f"none of {n * (_ATTEMPTS + 1):,} executions from the prior can have produced the data, so that "
            f"{type(session.engine).__name__} has nowhere to start",
            remedy="Use ab.DCC(), the default, which climbs from outside; or check the data against the program",
        )
    return traces.take(np.where(traces.log_density > -np.inf, np.arange(n), np.resize(possible, n)))


def accepted(log_ratio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Metropolis and Hastings' choice; a ratio that is not a number is refused."""
    return np.log(rng.random(len(log_ratio))) < log_ratio


class Chains:
    """Keeps the states of chains, each a block of its own, once the warm-up is over."""

    def __init__(self, session: Session, start: Traces, warmup: float, cost: int) -> None:
        self.session, self.warmup, self.number = session, warmup, len(start)
        states = session.limits.budget / max(cost, 1)
        self.every = max(1, int(np.ceil(states * (1 - warmup) / _KEPT)))
        self.steps = 0
        self.last = start, np.arange(self.number)
        self.log_densities: list[np.ndarray] = []

    @property
    def warming_up(self) -> bool:
        return self.session.progressed < self.warmup

    def add(self, state: Traces, blocks: np.ndarray | None = None) -> None:
        """The chains after a step, which are kept once the warm-up is over.

        Chains that depend on each other are in one block; otherwise each is one of its own.
        """
        blocks = np.arange(self.number) if blocks is None else blocks
        self.last = state, blocks
        if not self.warming_up:
            self._keep(state, blocks)

    def _keep(self, state: Traces, blocks: np.ndarray) -> None:
        self.session.collection.count(blocks)
        self.session.collection.add(state, np.zeros(self.number), blocks, keep=self.steps % self.every == 0)
        self.log_densities.append(state.log_density)
        self.steps += 1

    def finish(self) -> None:
        """What the chains say of themselves, by their log density."""
        if not self.steps:
            self.session.notes.append("The run ended before the warm-up did. Give it more budget or time.")
            self._keep(*self.last)
            return
        chains = np.array(self.log_densities).T[:, :, None]
        collection = self.session.collection
        collection.r_hat = split_r_hat(chains)
        ess = chain_ess(chains)[0]
        collection.ess_share = min(1.0, float(ess) / chains.size) if np.isfinite(ess) else 1.0
        if 1 < self.number < 4:
            self.session.notes.append("Errors come from the difference between chains. Run at least four.")
