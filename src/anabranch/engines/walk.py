"""Many steps of single-site Metropolis-Hastings, those within a path in a compiled loop.

A chain chooses any of its |x| sites with the same probability. If r of them can be moved within the path, it makes
a number of such steps that is geometric, with r/|x| for each to be followed by another, and then chooses one of the
other sites, for which the program is executed. Chains are ahead of each other meanwhile, and meet again at the end.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from anabranch.divide import Path
from anabranch.engines.markov import Walked
from anabranch.engines.sampler import Session
from anabranch.engines.single_site import Scales, local_moves, single_site_step
from anabranch.engines.traces import Key, Traces
from anabranch.engines.within import LONGEST, Moves, Stretch, Within, sites_within
from anabranch.limits import checkpoint, enforced, time_limit
from anabranch.pace import LONGEST_PIECE

__all__ = ["Walk"]

_TRIED = 50
"""Executions of the program for a path, of any number of chains at once, before its loop is compiled."""
_WORTH, _WORTH_SECONDS = 500, 10.0
"""Steps that must be left of each chain for that to pay, and seconds, where these are limited."""


class Walk:
    """Chains that are on their way."""

    def __init__(self, session: Session, start: Traces, local_share: float) -> None:
        self.session, self.runner, self.rng = session, session.runner, session.rng
        self.state, self.local_share, self.scales = start, local_share, Scales()
        self._tried: dict[int, int] = defaultdict(int)
        self._loops: dict[int, Within | None] = {}
        # Chains of one path per call: of all of them an eighth, as they are spread over the paths.
        self._block = min(max(1 << (len(start) // 8).bit_length() >> 1, 1), 64)
        # A call of the loop cannot be ended: a step of its chains must be short.
        while self._block > 1 and self._block > session.rate * LONGEST_PIECE:
            self._block //= 2

    def advance(self, walked: Walked) -> None:
        """Each chain by the steps that it is to make. What ends this on the way leaves a state of all chains, and what
        they did up to there."""
        try:
            while walked.on_the_way.any():
                checkpoint()
                left_out = self._move_within_paths(walked)
                rows = np.flatnonzero(walked.on_the_way)
                if len(rows):
                    self._execute(rows, {key: mask[rows] for key, mask in left_out.items()}, walked)
        finally:
            with enforced(None):
                self._keep_points(walked)

    def _keep_points(self, walked: Walked) -> None:
        for number, parts in walked.points.items():
            points, steps, chains = map(np.concatenate, zip(*parts, strict=True))
            rows = np.flatnonzero(steps < walked.whole)
            if len(rows):
                walked.kept.append((self._traces(number, points[rows]), steps[rows], chains[rows]))

    # Steps for which the program is executed ---------------------------------------------------------------------

    def _execute(self, rows: np.ndarray, left_out: dict[Key, np.ndarray], walked: Walked) -> None:
        """One step of some of the chains, which do not choose the sites that are left out."""
        here = single_site_step(self.runner, self.state.take(rows), self.scales, self.local_share, self.rng, left_out)
        index = np.zeros(len(self.state), int)
        index[rows] = np.arange(len(rows))
        chosen = np.isin(np.arange(len(self.state)), rows)
        self.state = here if chosen.all() else self.state.replaced(chosen, here.take(index))
        at = walked.clock[rows]
        kept = np.flatnonzero(walked.note(at, rows, here.path, here.log_density))
        if len(kept):
            walked.kept.append((here.take(kept), at[kept], rows[kept]))
        walked.clock[rows] += 1

    # Steps within paths ------------------------------------------------------------------------------------------

    def _move_within_paths(self, walked: Walked) -> dict[Key, np.ndarray]:
        """Move the chains on the paths that have a loop; the sites that they leave out in the step to come."""
        left_out: dict[Key, np.ndarray] = {}
        active = walked.on_the_way
        for number in np.unique(self.state.path[active]):
            loop = self._loop(int(number))
            if loop is None:
                continue
            rows = np.flatnonzero((self.state.path == number) & active)
            usable = self._move_within(loop, rows, walked)
            for site in loop.moved:
                left_out.setdefault((site.name, site.shape), np.zeros(len(active), bool))[rows] = usable
        return left_out

    def _loop(self, number: int) -> Within | None:
        """The compiled loop of a path; None where there is none, or not yet."""
        if number not in self._loops:
            self._tried[number] += 1
            if self._tried[number] <= _TRIED or self.session.left < _WORTH * len(self.state) or self._is_late:
                return None
            path = self.runner.paths[number]
            sites = sites_within(path)
            self._loops[number] = Within(path, sites, self._block) if sites else None
        return self._loops[number]

    @property
    def _is_late(self) -> bool:
        """Whether the time is too short for another compilation."""
        limits = time_limit()
        return limits is not None and limits.seconds is not None and limits.seconds - limits.elapsed < _WORTH_SECONDS

    def _move_within(self, loop: Within, rows: np.ndarray, walked: Walked) -> np.ndarray:
        """Move chains until each would choose another site, or is done; False for those without coordinates."""
        others = 1 - len(loop.moved) / len(loop.path.sites)
        left = walked.steps - walked.clock[rows]
        if others > 0:
            left = np.minimum(left, self.rng.geometric(others, len(rows)) - 1)
        usable = np.ones(len(rows), bool)
        while (left > 0).any():
            checkpoint()
            these = np.flatnonzero(left > 0)
            lengths = np.minimum(left[these], loop.pace.size(LONGEST))
            stretch = self._stretch(loop, rows[these], lengths)
            usable[these] = stretch.usable
            lengths = np.where(stretch.usable, lengths, 0)
            left[these] = np.where(stretch.usable, left[these] - lengths, 0)
            self._follow(loop.path, rows[these], lengths, stretch, walked)
        return usable

    def _stretch(self, loop: Within, rows: np.ndarray, lengths: np.ndarray) -> Stretch:
        """Propose, and let the loop choose."""
        shape = int(lengths.max()), len(rows)
        chosen = self.rng.integers(len(loop.moved), size=shape)
        from_prior = self.rng.random(shape) >= self.local_share
        numbers = loop.from_prior(shape[0] * shape[1], self.rng).reshape(*shape, -1)
        for position, site in enumerate(loop.moved):
            assert site.columns is not None
            mine = (chosen == position) & ~from_prior
            spread = self.scales.of((site.name, site.shape), site.columns.stop - site.columns.start)
            numbers[mine, site.columns] = local_moves(int(mine.sum()), spread, self.rng)
        free = [site for site in loop.path.sites if site.columns is not None]
        values = [self.state.values[site.name, site.shape][rows].reshape(len(rows), -1) for site in free]
        moves = Moves(chosen, from_prior, numbers, np.log(self.rng.random(shape)))
        loop.compile(np.concatenate(values, axis=1), moves)
        with loop.pace.measured(shape[0]):
            return loop.advance(np.concatenate(values, axis=1), lengths, moves)

    def _follow(self, path: Path, rows: np.ndarray, lengths: np.ndarray, stretch: Stretch, walked: Walked) -> None:
        """Note where the chains were, and put them where they are now."""
        steps, chains = np.nonzero(np.arange(len(stretch.points))[:, None] < lengths)
        number = self.runner.number(path)
        at = walked.clock[rows[chains]] + steps
        kept = walked.note(at, rows[chains], number, stretch.log_density[steps, chains])
        if kept.any():
            walked.points[number].append((stretch.points[steps[kept], chains[kept]], at[kept], rows[chains[kept]]))
        usable = np.flatnonzero(stretch.usable)
        sites, start = {}, 0
        for position, site in enumerate(path.sites):
            key, size = (site.name, site.shape), int(np.prod(site.shape))
            values = self.state.values[key][rows[usable]]
            if site.columns is not None:
                values = stretch.values[usable, start : start + size].reshape(-1, *site.shape)
                start += size
            sites[key] = values, stretch.log_probs[usable, position]
        # A copy: who holds the state as it was must not find it changed by half.
        state = self.state.take(np.arange(len(self.state)))
        state.fill(rows[usable], number, stretch.log_likelihood[usable], sites)
        self.state = state
        walked.clock[rows] += lengths
        self.runner.evaluations += int(lengths.sum())

    def _traces(self, number: int, points: np.ndarray) -> Traces:
        """Points of a path as executions, of which nothing but the values is known."""
        path = self.runner.paths[number]
        out = Traces.empty(self.runner.paths, len(points))
        out.path[:] = number
        for outcome in path.outcomes(points):
            for site in path.sites:
                out.put((site.name, site.shape), outcome.index, outcome.values[site.name])
        return out
