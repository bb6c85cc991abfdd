"""What the engines that run Markov chains have in common: starting points, kept states, and convergence."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import ClassVar, Self

import numpy as np

from anabranch import errors
from anabranch.conquer.chains import chain_ess, split_r_hat
from anabranch.engines.sampler import Sampler, Session
from anabranch.engines.traces import Traces
from anabranch.settings import check, share, whole

__all__ = ["ChainEngine", "ChainSteps", "Chains", "accepted"]


class ChainEngine(Sampler):
    """An engine that runs Markov chains on executions, side by side."""

    chains: int
    warmup: float

    has_evidence: ClassVar[bool] = False
    carries_values: ClassVar[bool] = True
    saving: ClassVar[str] = ", or use fewer chains"
    max_attempts: ClassVar[int] = 50
    """How often chains without a starting point draw from the prior again: more attempts find rarer ones."""
    min_steps: ClassVar[int] = 10
    """Steps of each chain that the budget should allow for: more steps leave fewer chains."""

    def __post_init__(self) -> None:
        check(self, chains=whole(1), warmup=share(one=False))

    def start(self, session: Session) -> Traces:
        """Executions from the prior, all of positive density, one per chain: fewer chains if the budget is small."""
        n = min(self.chains, max(session.allowed() // self.min_steps, 1))
        traces, tried = session.runner.execute(n), n
        for _ in range(self.max_attempts):
            missing = np.flatnonzero(traces.log_density == -np.inf)
            size = min(n, session.limits.budget - session.runner.evaluations)
            if not len(missing) or size < 1:
                break
            more = session.runner.execute(size)
            tried += size
            found = np.flatnonzero(more.log_density > -np.inf)
            traces = traces.with_rows(missing[: len(found)], more.take(found[: len(missing)]))
        possible = np.flatnonzero(traces.log_density > -np.inf)
        if not len(possible):
            raise errors.EngineCannotRun(
                f"none of {tried:,} executions from the prior can have produced the data, so that "
                f"{type(self).__name__} has nowhere to start",
                remedy="Use ab.DCC(), the default, which climbs from outside; or check the data against the program",
            )
        return traces.take(np.where(traces.log_density > -np.inf, np.arange(n), np.resize(possible, n)))


def accepted(log_ratio: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Which proposals Metropolis-Hastings accepts; none whose log ratio is NaN."""
    return np.log(rng.random(len(log_ratio))) < log_ratio


@dataclass
class ChainSteps:
    """The states of chains after each of some steps, the first of which has the number `first`.

    `moving` (chains,) are the chains that make these steps, `clock` (chains,) how many each has made. `path` (steps,
    chains) is a number among the runner's paths, -1 where the step was not made. The executions of one in `every` steps
    are `kept`, with the numbers of their steps and chains; `points` are the same as points of a path, by its number.
    """

    first: int
    every: int
    moving: np.ndarray
    path: np.ndarray
    log_density: np.ndarray
    clock: np.ndarray
    kept: list[tuple[Traces, np.ndarray, np.ndarray]] = field(default_factory=list)
    points: dict[int, list[tuple[np.ndarray, ...]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def begun(cls, steps: int, moving: np.ndarray, every: int, first: int = 0) -> Self:
        """Steps that no chain has made yet."""
        n = len(moving)
        return cls(first, every, moving, np.full((steps, n), -1), np.full((steps, n), -np.inf), np.zeros(n, int))

    @property
    def steps(self) -> int:
        return len(self.path)

    @property
    def on_the_way(self) -> np.ndarray:
        """The chains that have steps left to make."""
        return self.moving & (self.clock < self.steps)

    @property
    def whole(self) -> int:
        """Steps that all moving chains have made; further steps, before a limit, of some chains alone do not count."""
        return int(self.clock[self.moving].min(initial=self.steps))

    def note(self, at: np.ndarray, chains: np.ndarray, path: np.ndarray | int, log_density: np.ndarray) -> np.ndarray:
        """Record the states of chains after some steps; returns which of them to keep."""
        self.path[at, chains], self.log_density[at, chains] = path, log_density
        return (self.first + at) % self.every == 0


class Chains:
    """Keeps the states of chains, each chain a block of its own, once the warm-up is over.

    With `start_counts`, the starting points count as draws if the chains could make no step.
    """

    max_kept: ClassVar[int] = 40_000
    """States kept as draws; more take more memory. It is below what a `Collection` keeps, which thins at random."""
    max_history: ClassVar[int] = 4_000
    """Visits of paths that the history of the run records; more show more detail and take more memory."""

    def __init__(self, session: Session, start: Traces, warmup: float, cost: int, start_counts: bool = False) -> None:
        self.session, self.warmup, self.number = session, warmup, len(start)
        states = session.expected / max(cost, 1)
        self.every = max(1, int(np.ceil(states * (1 - warmup) / self.max_kept)))
        self.steps = self.made = 0
        self.last: tuple[Traces, np.ndarray] | None = (start, np.arange(self.number)) if start_counts else None
        self.log_densities: list[np.ndarray] = []
        self._visited = {-1}
        session.at_end.append(self._finish)

    @property
    def warming_up(self) -> bool:
        return self.session.progressed < self.warmup

    def add(self, state: Traces, blocks: np.ndarray | None = None, moved: int | None = None) -> None:
        """Add the chains after a step. Chains that depend on each other share a block.

        `moved` is how many of them, the first ones, made the step, where the budget was too small for all.
        """
        blocks = np.arange(self.number) if blocks is None else blocks
        self.last = state, blocks
        if not self.warming_up:
            self._keep(state, blocks, self.number if moved is None else moved)

    def add_steps(self, chain_steps: ChainSteps, state: Traces) -> None:
        """Add many steps, after which the chains are in this state."""
        whole = chain_steps.whole
        if not whole:
            return
        self._note(chain_steps, state)
        if self.warming_up:
            self.last = state, np.arange(self.number)
            return
        made, chains = np.nonzero(chain_steps.path[:whole] >= 0)
        kept = []
        for traces, at, of_chains in chain_steps.kept:
            rows = np.flatnonzero(at < whole)
            kept.append((traces.take(rows), np.zeros(len(rows)), of_chains[rows]))
        nothing = np.zeros(len(chains))
        self.session.collection.add_all(state.paths, chain_steps.path[made, chains], nothing, chains, chains, kept)
        if chain_steps.moving.all():
            self.log_densities.extend(chain_steps.log_density[:whole])
        self.steps += whole

    def _note(self, chain_steps: ChainSteps, state: Traces) -> None:
        """Record in the history which paths chains were on, and when a path was visited first."""
        every = max(1, self.session.limits.budget // self.max_history)
        before = self.session.runner.evaluations - int(chain_steps.clock.sum())
        path = chain_steps.path[: chain_steps.whole]
        regular = (self.made + np.arange(len(path))) % every == 0
        numbers, first = np.unique(path, return_index=True)
        first_visits = np.zeros(path.shape, bool)
        first_visits.flat[first[[number not in self._visited for number in numbers]]] = True
        self._visited.update(numbers.tolist())
        noted = (regular[:, None] | first_visits) & (path >= 0)
        for step, chain in np.argwhere(noted).tolist():
            name = state.paths[path[step, chain]].description
            self.session.history.add(before + (step + 1) * self.number, path=name, chain=chain)
        self.made += len(path)

    def _keep(self, state: Traces, blocks: np.ndarray, moved: int) -> None:
        if moved == self.number:
            self.log_densities.append(state.log_density)
        else:
            state, blocks = state.take(np.arange(moved)), blocks[:moved]
        self.session.collection.add(state, np.zeros(moved), blocks, keep=self.steps % self.every == 0)
        self.steps += 1

    def _finish(self) -> None:
        """Compute R-hat and the effective sample size of the chains from their log density."""
        if not self.steps:
            if self.last is not None:
                self.session.notes.append("The run ended before the warm-up did. Give it more budget or time.")
                self._keep(*self.last, self.number)
            return
        if not self.log_densities:
            return
        chains = np.array(self.log_densities).T[:, :, None]
        collection = self.session.collection
        collection.r_hat = split_r_hat(chains)
        ess = chain_ess(chains)[0]
        collection.ess_share = min(1.0, float(ess) / chains.size) if np.isfinite(ess) else 1.0
        if 1 < self.number < 4:
            self.session.notes.append("Errors come from the difference between chains. Run at least four.")
