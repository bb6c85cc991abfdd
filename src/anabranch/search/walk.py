"""A Metropolis walk over paths, for programs with more paths than can be visited.

Many walkers move from path to path, each accepting a move from k to k' with the probability

    min(1, Z_k' q(k | k') / (Z_k q(k' | k))),

so that in the long run they are at each path in proportion to its evidence. A move leads to a path nearby
(`divide.path_moves`), or to any path, drawn from tables that are fitted to the walk so far (`divide.decision_tables`):
the more often, the more of these are accepted. The tables change ever more seldom. A path that is proposed for the
first time is visited, which gives Z_k. Let A be the paths known at a third of the steps, and f the share of the second
half of the steps in which walkers are in A. Then

    Ẑ = Σ_{k in A} Ẑ_k / f,

which needs no list of the other paths. A path in A has the weight Ẑ_k/Ẑ; one outside A the share of the steps spent
there, and stands for paths that no walker came to. The scatter of f between walkers is its error. Where the values of
the deciding sites are nearly independent, the moves to any path give a better estimate by themselves (`table_draws`):
the one with the smaller error is taken.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, softmax

from anabranch.allocate import FirstVisits, PathRecord, Visit
from anabranch.divide import (
    PathMove,
    can_walk,
    fit_decision_tables,
    label_names,
    move_between_paths,
    move_to_any_path,
)
from anabranch.search.climbs import Climbs, starts_of
from anabranch.search.effective_steps import effective_steps, features_of
from anabranch.search.hills import Hills
from anabranch.search.state import SearchState
from anabranch.search.table_draws import TableDraws, evidence_of_draws
from anabranch.settings import check, finite, positive, share, whole

__all__ = ["Multiple", "Walk", "WalkEstimate", "Walking"]

_FITS = 2
"""Fits of the tables whose draws count: the last one may have few."""


class Multiple(NamedTuple):
    """The log of the mass that a path stands for over its own, and the error of that."""

    log: float
    sd: float


@dataclass(frozen=True)
class WalkEstimate:
    """What a walk says of the paths that were not visited.

    Attributes:
        known_share: the share of the mass that the paths have that stand for themselves, f, or for others by their
            draws, and its standard error.
        multiples: of the paths that do not stand for themselves alone; none of the mass where others stand for it.
    """

    known_share: tuple[float, float]
    multiples: dict[PathRecord, Multiple]


@dataclass
class Walk:
    """Walkers and where they have been.

    Attributes:
        at: the path at which each walker is.
        labels: the sites that are labels of a partition.
        steps: for each step the number of the path at which each walker was after it.
        known_since: the step at which a path got its estimate, by its number.
        proposed: the moves that wait for their visits.
        goes_anywhere: whether each of them leads to any path, and not to one nearby.
        fits: the tables from which those are drawn, the last of them, and what was drawn from each.
        next_fit: the step at which the tables are fitted again.
        any_share: the share of moves that lead to any path.
        made, accepted: such moves since the last fit.
        hills: those that climbs have found, if there were any.
        jumps: for each step, which walkers went to any path.
        is_blocked: True once the probability of a move was not known: the walk does not come to all paths.
    """

    at: list[PathRecord]
    labels: frozenset[str]
    steps: list[np.ndarray] = field(default_factory=list)
    known_since: dict[int, int] = field(default_factory=dict)
    proposed: list[PathMove] = field(default_factory=list)
    goes_anywhere: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    fits: list[TableDraws] = field(default_factory=list)
    next_fit: int = 0
    any_share: float = 0.5
    made: int = 0
    accepted: int = 0
    hills: Hills | None = None
    jumps: list[np.ndarray] = field(default_factory=list)
    is_blocked: bool = False


@dataclass(frozen=True)
class Walking:
    """When to walk, with how many walkers, and for how long.

    Args:
        walkers: more take more visits for a step, and make the error more certain.
        max_mass_found: prior mass of the paths found from which on there is no walk: all can be visited.
        min_mass_found: prior mass of the paths found below which climbs take the place of the search for neighbours,
            and the walk begins at once; more do so in programs whose paths can be visited.
        climbs: climbs at most; more find the highest of more hills, and leave less time to the walk.
        visits_in_vain: first visits that hardly raised the evidence after which the walk begins; fewer begin it sooner.
        max_gain: by how many nats they may have raised it; less begins it later.
        min_steps: steps from which on its estimate is used; fewer may not have left the paths of the start.
        min_effective: effective steps from which on it is; with fewer, walkers may be on their way from the start.
        max_steps: steps at most, where all paths that are proposed are known.
        min_any_share: the least share of moves that lead to any path, where few of them are accepted; less never learns
            that more of them would be.
        max_any_share: the largest one; more mixes better where the values of the deciding sites are nearly independent,
            and leaves less to the moves nearby.
        first_fit: the step at which the tables of such moves are fitted again for the first time, then after twice as
            many; a later one knows more of the walk.
        smoothing: weight of all known paths alike in a table; more of it proposes light paths more often.
    """

    walkers: int = 48
    max_mass_found: float = 0.999
    min_mass_found: float = 0.2
    climbs: int = 96
    visits_in_vain: int = 64
    max_gain: float = 0.5
    min_steps: int = 48
    min_effective: float = 10.0
    max_steps: int = 20_000
    min_any_share: float = 0.05
    max_any_share: float = 0.8
    first_fit: int = 12
    smoothing: float = 0.05

    def __post_init__(self) -> None:
        check(self, walkers=whole(2), max_mass_found=share(), min_mass_found=share(), climbs=whole(1),
              visits_in_vain=whole(1), max_gain=positive(), min_steps=whole(6), min_effective=finite(0),
              max_steps=whole(6), min_any_share=share(), max_any_share=share(), first_fit=whole(1),
              smoothing=share())  # fmt: skip

    def is_due(self, state: SearchState) -> bool:
        """Whether the paths are too many to visit all, and the last first visits found little."""
        if state.walk is not None:
            return not state.walk.is_blocked
        if not state.has_many_paths or not state.settings.prune_negligible:
            return False
        gains = state.gains[-self.visits_in_vain :]
        if len(gains) < self.visits_in_vain or not (sum(gains) < self.max_gain or self.is_too_wide(state)):
            return False
        return state.division.prior_mass_found < self.max_mass_found and len(self._starts(state)[0]) > 1

    def is_too_wide(self, state: SearchState) -> bool:
        """Whether the prior finds so few of the paths that a climb is to find the heavy ones."""
        if not state.has_many_paths or state.division.prior_mass_found > self.min_mass_found:
            return False
        heaviest = max(state.table, key=lambda record: record.log_evidence)
        return can_walk(heaviest.path)

    def _starts(self, state: SearchState) -> tuple[list[PathRecord], np.ndarray]:
        """The paths at which walkers may begin, and their probabilities; none if there is a path to which they cannot
        come, since the interpreter runs it or it has guards."""
        if not all(can_walk(record.path) for record in state.table):
            return [], np.zeros(0)
        weights = {record: weight for record, weight in state.table.weights().items() if weight > 0 and record.visits}
        mass = np.array(list(weights.values()))
        return list(weights), mass / mass.sum()

    def begin(self, state: SearchState) -> Walk:
        """Walkers at known paths, drawn by their weights."""
        records, weights = self._starts(state)
        rng = np.random.default_rng((state.seed, 0, 6))
        at = [records[i] for i in rng.choice(len(records), self.walkers, p=weights)]
        known = {record.number: -1 for record in state.table if record.visits}
        hills = Hills.of(state.climbs.tops) if state.climbs is not None and state.climbs.tops else None
        return Walk(at, label_names(record.path for record in records), known_since=known, hills=hills)

    def visits(self, state: SearchState) -> list[Visit]:
        """Walk until walkers propose paths without an estimate, which are to be visited; none once it is over."""
        if state.walk is None and (fresh := self._climbed(state)):
            return self._first_visits(fresh, state)
        state.walk = walk = state.walk or self.begin(state)
        while not self.is_over(state):
            state.limits.check()
            if not walk.proposed:
                walk.proposed = self._propose(state, walk)
            fresh = self._fresh(state, walk)
            if fresh:
                return self._first_visits(fresh, state)
            self.accept(state)
        return []

    def _first_visits(self, fresh: list[PathRecord], state: SearchState) -> list[Visit]:
        rule = next((rule for rule in state.settings.schedule if isinstance(rule, FirstVisits)), FirstVisits())
        return rule.visits_of(fresh, state)

    def _climbed(self, state: SearchState) -> list[PathRecord]:
        """The paths to visit for the next step of a climb; none once all are over."""
        if state.climbs is None:
            records, _ = self._starts(state)
            labels = label_names(record.path for record in records)
            starts = starts_of(records, self.climbs, np.random.default_rng((state.seed, 0, 10)))
            state.climbs = Climbs(starts, labels)
        return state.climbs.fresh(state)

    def _propose(self, state: SearchState, walk: Walk) -> list[PathMove]:
        if len(walk.steps) >= walk.next_fit:
            self._fit(state, walk)
        rng = np.random.default_rng((state.seed, 0, 7, len(walk.steps)))
        walk.goes_anywhere = rng.random(len(walk.at)) < walk.any_share
        near = [record.path for record, far in zip(walk.at, walk.goes_anywhere, strict=True) if not far]
        far = [record.path for record, far in zip(walk.at, walk.goes_anywhere, strict=True) if far]
        nearby = iter(move_between_paths(state.division, near, walk.labels, rng))
        anywhere = iter(move_to_any_path(state.division, far, walk.fits[-1].tables, rng))
        moves = [next(anywhere) if far else next(nearby) for far in walk.goes_anywhere]
        state.executions += len(moves)
        walk.is_blocked = walk.is_blocked or not all(move.is_known for move in moves)
        state.table.update(state.division)
        return moves

    def _fit(self, state: SearchState, walk: Walk) -> None:
        """Fit the tables to the known paths, half by their evidence and half by how often walkers were there."""
        known = [record for record in state.table if record.visits]
        by_evidence = softmax([record.log_evidence for record in known])
        weights = (1 - self.smoothing) * by_evidence + self.smoothing / len(known)
        if walk.steps:
            times = Counter(np.concatenate(walk.steps[len(walk.steps) // 2 :]).tolist())
            weights += np.array([times[record.number] for record in known]) / sum(times.values())
        groups = None if walk.hills is None else [walk.hills.nearest(record) for record in known]
        tables = fit_decision_tables([record.path for record in known], weights.tolist(), groups)
        walk.fits = [*walk.fits, TableDraws(tables, len(walk.steps))][-_FITS:]
        if walk.made:
            walk.any_share = float(np.clip(walk.accepted / walk.made, self.min_any_share, self.max_any_share))
        walk.made = walk.accepted = 0
        walk.next_fit = max(self.first_fit, 2 * len(walk.steps))

    def _fresh(self, state: SearchState, walk: Walk) -> list[PathRecord]:
        """The paths of moves that may be made and have no estimate."""
        able = (move.path for move in walk.proposed if move.path is not None and move.log_ratio > -np.inf)
        records = dict.fromkeys(state.table.records[path.signature] for path in able if not walk.is_blocked)
        return [record for record in records if not record.visits and not record.gave_up]

    def accept(self, state: SearchState) -> None:
        """Make the moves proposed, each with its probability, if there are any."""
        walk = state.walk
        if walk is None or not walk.proposed:
            return
        rng = np.random.default_rng((state.seed, 0, 8, len(walk.steps)))
        thresholds, jumped = np.log(rng.random(len(walk.at))), np.zeros(len(walk.at), bool)
        walk.made += int(walk.goes_anywhere.sum())
        walk.fits[-1].times += int(walk.goes_anywhere.sum())
        for i, (here, move) in enumerate(zip(walk.at, walk.proposed, strict=True)):
            there = None if move.path is None else state.table.records.get(move.path.signature)
            if there is not None and there.visits:
                if walk.goes_anywhere[i]:
                    walk.fits[-1].drawn.add(there.number)
                walk.known_since.setdefault(there.number, len(walk.steps))
                if thresholds[i] < there.log_evidence - here.log_evidence + move.log_ratio:
                    walk.at[i] = there
                    jumped[i] = walk.goes_anywhere[i]
        walk.accepted += int(jumped.sum())
        walk.jumps.append(jumped)
        walk.steps.append(np.array([record.number for record in walk.at]))
        walk.proposed = []

    def is_over(self, state: SearchState) -> bool:
        """Whether the error of the walk is below the tolerance, it has taken all its steps, or it is blocked."""
        walk = state.walk
        if walk is not None and walk.is_blocked:
            return True
        if walk is None or (len(walk.steps) < self.max_steps and len(walk.steps) % self.min_steps):
            return False  # asked now and then: it takes a while to find out
        if len(walk.steps) >= self.max_steps:
            return True
        found = self._sampled(state)
        return found is not None and found.known_share[1] < state.tolerance * found.known_share[0]

    def estimate(self, state: SearchState) -> WalkEstimate | None:
        """What the walk says of the paths that were not visited, with the hills that no climb found in its error; None
        where it is too short, blocked, or has not settled."""
        found, walk = self._sampled(state), state.walk
        if found is None or walk is None or walk.hills is None:
            return found
        records, half = {record.number: record for record in state.table}, len(walk.steps) // 2
        steps = [[records[number] for number in step.tolist()] for step in walk.steps[half:]]
        missing = walk.hills.missing_share(steps, np.stack(walk.jumps[half:]), 1 - state.division.prior_mass_found)
        share, sd = found.known_share
        return WalkEstimate((share, float(np.hypot(sd, share * missing))), found.multiples)

    def _sampled(self, state: SearchState) -> WalkEstimate | None:
        """The same with the error of the sampling alone."""
        walk = state.walk
        if walk is None or walk.is_blocked or len(walk.steps) < self.min_steps or not self.has_settled(state):
            return None
        by_steps, by_draws = self._by_steps(state, walk), self._by_draws(state, walk)
        found = [each for each in (by_steps, by_draws) if each is not None]
        return min(found, key=lambda each: each.known_share[1] / each.known_share[0], default=None)

    def has_settled(self, state: SearchState) -> bool:
        """Whether the walkers are no longer on their way from where they began."""
        return self._effective(state) >= self.min_effective

    def _effective(self, state: SearchState) -> float:
        """The effective number of the steps that count, by features of their paths, and by which were known before."""
        walk = state.walk
        if walk is None or len(walk.steps) < 4:
            return 0.0
        records = {record.number: record for record in state.table}
        counted = np.stack(walk.steps[len(walk.steps) // 2 :])
        is_inside = np.isin(counted, np.fromiter(_known_before(walk), int))
        return effective_steps([*features_of(records, counted), is_inside])

    def _by_draws(self, state: SearchState, walk: Walk) -> WalkEstimate | None:
        """The estimate from the moves to any path since the last fits but one."""
        start = walk.fits[0].step
        since = {record: walk.known_since.get(record.number, np.inf) for record in state.table}
        before = [record for record, step in since.items() if step < start]
        others = [record for record, step in since.items() if start <= step < np.inf]
        found = evidence_of_draws(walk.fits, before, others, np.stack(walk.steps[start:]))
        if found is None:
            return None
        multiples = {record: Multiple(-np.inf, 0.0) for record, step in since.items() if step >= start}
        for record, log in found.log_drawn.items():
            multiples[record] = Multiple(-log, float(np.sqrt(-np.expm1(log))))
        known = logsumexp([record.log_evidence for record in (*before, *found.log_drawn)])
        share = float(np.exp(known - found.log_evidence))
        # What the tables hardly ever draw, walkers come to, if they have had the time.
        by_walkers = np.sqrt(max(1 - share, 0.0) / share / self._effective(state))
        return WalkEstimate((share, share * float(np.hypot(found.sd, by_walkers))), multiples)

    def _by_steps(self, state: SearchState, walk: Walk) -> WalkEstimate | None:
        """The estimate from the share of the steps in the paths that were known before."""
        inside, counted = _known_before(walk), np.stack(walk.steps[len(walk.steps) // 2 :])
        is_inside = np.isin(counted, np.fromiter(inside, int))
        known, stay = float(is_inside.mean()), _mean_stay(counted)
        if known == 0:
            return None
        share_sd = _share_error(is_inside, stay)
        # As many independent steps as the scatter of the share says, and no more than stays at a path.
        variance = max(known * (1 - known), 1e-9)
        share_sd = max(share_sd, float(np.sqrt(variance / self._effective(state))))
        effective = min(counted.size / stay, variance / share_sd**2)
        core = [record for record in state.table if record.number in inside]
        total = float(logsumexp([record.log_evidence for record in core])) - np.log(known)
        times = Counter(counted[~is_inside].tolist())
        multiples = {record: Multiple(-np.inf, 0.0) for record in state.table if record.number not in inside}
        for record in multiples:
            if weight := times[record.number] / counted.size:
                log_multiple = np.log(weight) + total - record.log_evidence
                multiples[record] = Multiple(float(log_multiple), float(1 / np.sqrt(effective * weight)))
        return WalkEstimate((known, share_sd), multiples)


def _known_before(walk: Walk) -> set[int]:
    """The paths known at a third of the steps: A."""
    return {each for each, since in walk.known_since.items() if since <= len(walk.steps) // 3}


def _mean_stay(counted: np.ndarray) -> float:
    """Steps for which walkers stay at a path, on average."""
    changes = (counted[1:] != counted[:-1]).sum()
    return counted.size / (changes + counted.shape[1])


def _share_error(is_inside: np.ndarray, stay: float) -> float:
    """The standard error of the share of steps inside: by its scatter between walkers, or by the number of excursions,
    which may be too few to scatter."""
    shares = is_inside.mean(axis=0)
    outside = ~is_inside
    excursions = (outside[1:] & ~outside[:-1]).sum() + outside[0].sum()
    length = max(stay, outside.sum() / max(excursions, 1))
    by_excursions = length * np.sqrt(excursions + 1) / is_inside.size
    return float(max(shares.std(ddof=1) / np.sqrt(len(shares)), by_excursions))
