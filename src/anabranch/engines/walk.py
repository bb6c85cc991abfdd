"""Many steps of single-site Metropolis-Hastings, those within a path in a compiled loop.

A chain chooses each of its |x| sites with the same probability. If r of them can be moved within the path, the number
of such steps before another site is chosen is geometric, each followed by another with probability r/|x|. For the other
sites the program is executed. Chains may be ahead of each other until the last step.
"""

from collections import defaultdict
from typing import ClassVar

import numpy as np

from anabranch.divide import Path
from anabranch.engines.markov import ChainSteps
from anabranch.engines.path_loop import PathLoop, PathSteps, ProposedSteps, sites_within
from anabranch.engines.sampler import Session
from anabranch.engines.single_site import LocalMoves, single_site_step
from anabranch.engines.traces import Key, Traces
from anabranch.limits import LONGEST_PIECE, checkpoint, enforced, time_limit

__all__ = ["Walk"]


class Walk:
    """Chains of single-site Metropolis-Hastings."""

    min_visits: ClassVar[int] = 50
    """Steps on a path, each of any number of chains, before its loop is compiled: fewer compile more paths."""
    min_steps: ClassVar[int] = 500
    """Steps that each chain must have left for that to pay."""
    min_seconds: ClassVar[float] = 10.0
    """Seconds that must be left for that to pay."""

    def __init__(self, session: Session, start: Traces, local_share: float) -> None:
        self.session, self.runner, self.rng = session, session.runner, session.rng
        self.state, self.local = start, LocalMoves(local_share)
        self._tried: dict[int, int] = defaultdict(int)
        self._loops: dict[int, PathLoop | None] = {}
        # Chains per call: an eighth of all of them, as they are spread over the paths.
        self._block = min(max(1 << (len(start) // 8).bit_length() >> 1, 1), 64)
        # A call of the loop cannot be interrupted, so that a step of its chains must be short.
        while self._block > 1 and self._block > session.rate * LONGEST_PIECE:
            self._block //= 2

    def advance(self, chain_steps: ChainSteps) -> None:
        """Make these steps. After a limit or an interrupt the state and the steps made so far are valid."""
        try:
            while chain_steps.on_the_way.any():
                checkpoint()
                left_out = self._move_within_paths(chain_steps)
                rows = np.flatnonzero(chain_steps.on_the_way)
                if len(rows):
                    self._execute(rows, {key: mask[rows] for key, mask in left_out.items()}, chain_steps)
        finally:
            with enforced(None):
                for number, parts in chain_steps.points.items():
                    points, steps, chains = map(np.concatenate, zip(*parts, strict=True))
                    rows = np.flatnonzero(steps < chain_steps.whole)
                    if len(rows):
                        chain_steps.kept.append((self._traces(number, points[rows]), steps[rows], chains[rows]))

    def _execute(self, rows: np.ndarray, left_out: dict[Key, np.ndarray], chain_steps: ChainSteps) -> None:
        """One step of some of the chains, which do not choose the sites `left_out`."""
        here = single_site_step(self.runner, self.state.take(rows), self.local, self.rng, left_out)
        self.state = self.state.with_rows(rows, here)
        at = chain_steps.clock[rows]
        kept = np.flatnonzero(chain_steps.note(at, rows, here.path, here.log_density))
        if len(kept):
            chain_steps.kept.append((here.take(kept), at[kept], rows[kept]))
        chain_steps.clock[rows] += 1

    def _move_within_paths(self, chain_steps: ChainSteps) -> dict[Key, np.ndarray]:
        """Move the chains on paths with a loop; returns the sites that they do not choose in their next step."""
        left_out: dict[Key, np.ndarray] = {}
        active = chain_steps.on_the_way
        for number in np.unique(self.state.path[active]):
            loop = self._loop(int(number))
            if loop is None:
                continue
            rows = np.flatnonzero((self.state.path == number) & active)
            usable = self._move_within(loop, rows, chain_steps)
            for site in loop.moved:
                left_out.setdefault((site.name, site.shape), np.zeros(len(active), bool))[rows] = usable
        return left_out

    def _loop(self, number: int) -> PathLoop | None:
        """The compiled loop of a path; None where there is none, or not yet."""
        if number not in self._loops:
            self._tried[number] += 1
            limits = time_limit()
            in_time = limits is None or limits.left >= self.min_seconds
            enough = in_time and self.session.left >= self.min_steps * len(self.state)
            if self._tried[number] <= self.min_visits or not enough:
                return None
            path = self.runner.paths[number]
            sites = sites_within(path)
            self._loops[number] = PathLoop(path, sites, self._block) if sites else None
        return self._loops[number]

    def _move_within(self, loop: PathLoop, rows: np.ndarray, chain_steps: ChainSteps) -> np.ndarray:
        """Move chains until each chooses another site or has made its steps; False for those without coordinates."""
        others = 1 - len(loop.moved) / len(loop.path.sites)
        left = chain_steps.steps - chain_steps.clock[rows]
        if others > 0:
            left = np.minimum(left, self.rng.geometric(others, len(rows)) - 1)
        usable = np.ones(len(rows), bool)
        while (left > 0).any():
            checkpoint()
            these = np.flatnonzero(left > 0)
            lengths = np.minimum(left[these], loop.pace.size(loop.max_steps))
            path_steps = self._advance_within(loop, rows[these], lengths)
            usable[these] = path_steps.usable
            lengths = np.where(path_steps.usable, lengths, 0)
            left[these] = np.where(path_steps.usable, left[these] - lengths, 0)
            self._follow(loop.path, rows[these], lengths, path_steps, chain_steps)
        return usable

    def _advance_within(self, loop: PathLoop, rows: np.ndarray, lengths: np.ndarray) -> PathSteps:
        """Draw the proposals of some steps, and run the loop with them."""
        shape = int(lengths.max()), len(rows)
        chosen = self.rng.integers(len(loop.moved), size=shape)
        from_prior = self.rng.random(shape) >= self.local.share
        numbers = loop.from_prior(shape[0] * shape[1], self.rng).reshape(*shape, -1)
        for position, site in enumerate(loop.moved):
            assert site.columns is not None
            mine = (chosen == position) & ~from_prior
            key, size = (site.name, site.shape), site.columns.stop - site.columns.start
            numbers[mine, site.columns] = self.local.steps(int(mine.sum()), key, size, self.rng)
        free = [(site.name, site.shape) for site in loop.path.sites if site.columns is not None]
        values = np.column_stack([self.state.values[key][rows].reshape(len(rows), -1) for key in free])
        moves = ProposedSteps(chosen, from_prior, numbers, np.log(self.rng.random(shape)))
        loop.compile(values, moves)
        with loop.pace.measured(shape[0]):
            return loop.advance(values, lengths, moves)

    def _follow(
        self, path: Path, rows: np.ndarray, lengths: np.ndarray, path_steps: PathSteps, chain_steps: ChainSteps
    ) -> None:
        steps, chains = np.nonzero(np.arange(len(path_steps.points))[:, None] < lengths)
        number = self.runner.number(path)
        at = chain_steps.clock[rows[chains]] + steps
        kept = chain_steps.note(at, rows[chains], number, path_steps.log_density[steps, chains])
        if kept.any():
            points = path_steps.points[steps[kept], chains[kept]]
            chain_steps.points[number].append((points, at[kept], rows[chains[kept]]))
        usable = np.flatnonzero(path_steps.usable)
        sites, start = {}, 0
        for position, site in enumerate(path.sites):
            key, size = (site.name, site.shape), int(np.prod(site.shape))
            values = self.state.values[key][rows[usable]]
            if site.columns is not None:
                values = path_steps.values[usable, start : start + size].reshape(-1, *site.shape)
                start += size
            sites[key] = values, path_steps.log_probs[usable, position]
        # A copy: an interrupt must not leave a state of which only a part is new.
        state = self.state.take(np.arange(len(self.state)))
        state.fill(rows[usable], number, path_steps.log_likelihood[usable], sites)
        self.state = state
        chain_steps.clock[rows] += lengths
        self.runner.evaluations += int(lengths.sum())

    def _traces(self, number: int, points: np.ndarray) -> Traces:
        """Points of a path as executions with values alone, without densities."""
        path = self.runner.paths[number]
        out = Traces.empty(self.runner.paths, len(points))
        out.path[:] = number
        for outcome in path.outcomes(points):
            for site in path.sites:
                out.put((site.name, site.shape), outcome.index, outcome.values[site.name])
        return out
