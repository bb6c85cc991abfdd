"""Discover: executions from the prior find the first paths, proposals from the paths with mass find more.

The algorithm is that of the paper's section 6.2 and appendix E; the proposals themselves are in `divide.discover`. What
neither of them finds, for it is too rare a priori, is solved for (`divide.solve`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.allocate import PathRecord, Visit
from anabranch.allocate.first_visits import that_may_matter
from anabranch.divide import (
    Executions,
    Proposals,
    Solving,
    can_walk,
    check_start_names,
    counts_of,
    hours_warning,
    lead_to,
    neighbours,
    propose,
    sites_not_met,
    stable_hash,
    that_have,
)
from anabranch.limits import LimitReached, enforced
from anabranch.search.state import SearchState
from anabranch.settings import check, instance, share, whole

if TYPE_CHECKING:
    from anabranch.dcc import DCC

__all__ = ["Discovery"]

logger = logging.getLogger("anabranch")

_FIRST_EXECUTIONS, _MORE_EXECUTIONS = 4, 28
"""Executions that are led to values that the user names: at once, and in a part of the time."""


@dataclass(frozen=True)
class Discovery:
    """How long to explore the prior, and to search on before a run stops.

    Args:
        time_share: the part of the time that executions from the prior may take; more find more paths, and leave less
            time to estimate them.
        max_python_runs: runs of the program's Python, about one for each path, after which the prior is no longer
            explored; more take longer before the first visit.
        final_searches: rounds of proposals from the paths that matter before the run may stop; more find more paths.
        solving: how answers and values that no execution has met are solved for; None: they are not.
    """

    time_share: float = 0.3
    max_python_runs: int = 1_000
    final_searches: int = 10
    solving: Solving | None = field(default_factory=Solving)

    def __post_init__(self) -> None:
        check(self, time_share=share(zero=False), max_python_runs=whole(), final_searches=whole(),
              solving=instance(Solving, "a Solving()").or_none())  # fmt: skip

    # From the prior ---------------------------------------------------------------------------------------------

    def explore(self, state: SearchState) -> None:
        """Execute the program from its prior, and go on while few executions make its Python run."""
        settings, division = state.settings, state.division
        arrivals, asked = self._executed(state, settings.executions, state.seed), settings.executions
        # Fewer arrive where nearly each of them runs the Python.
        while asked <= state.executions < settings.max_executions and self._is_cheap(state):
            more = min(state.executions, settings.max_executions - state.executions)
            arrivals, asked = arrivals + self._executed(state, more), asked + more
        division.check_some_end()
        state.settle_budget()
        state.table.update(division, arrivals)
        state.active = state.active.proposed(counts_of(arrivals))
        self._solve(state)
        self._start(state)
        if settings.prune_negligible:
            _activate(state, state.table.records)
        _warn_of_hours(state)

    def _executed(self, state: SearchState, executions: int, seed: int | None = None) -> list[Executions]:
        """Executions from the prior, in a part of the time; in all of it, until they find a path."""
        try:
            with enforced(state.limits.within(self.time_share)):
                arrived = state.division.explore(executions, seed)
        except LimitReached:
            state.is_exploration_cut = True
            if len(state.division):
                state.executions += executions
                return []
            arrived = state.division.explore(executions, seed)
        state.executions += sum(len(each.members) for each in arrived)
        return arrived

    def _is_cheap(self, state: SearchState) -> bool:
        """Whether few executions make the program's Python run."""
        interpreted = any(path.interpreted for path in state.division.by_signature.values())
        in_time = not state.limits.within(self.time_share).time_is_over
        return in_time and not interpreted and state.division.python_runs < self.max_python_runs

    # What chance does not find ----------------------------------------------------------------------------------

    def _solve(self, state: SearchState) -> None:
        """Lead executions to what none has met, and add the paths that this finds, with the likelihood there."""
        if self.solving is None:
            return
        known, arrivals = set(state.table.records), list[Executions]()
        try:
            with enforced(state.limits.within(self.time_share)):
                for found in self.solving.answers(state.division, state.solved, state.seed):
                    arrivals += found
                if not state.has_many_paths:
                    arrivals += self.solving.values(state.division, state.solved, state.seed)
        except LimitReached:
            state.limits.check()
        state.table.update(state.division, arrivals)
        state.executions += sum(counts_of(arrivals).values())
        new = [record for key, record in state.table.records.items() if key not in known]
        _activate(state, [record.path.signature for record in new])
        with suppress(LimitReached), enforced(state.limits.within(self.time_share)):
            for record in new:
                _look_behind(record)
        state.limits.check()

    # What the user names ----------------------------------------------------------------------------------------

    def _start(self, state: SearchState) -> None:
        """Lead executions to the paths that the user names, and let these have a visit; once for each form of the
        program, since a division that begins again does not have them."""
        division, starts = state.division, state.settings.starts
        if not starts or state.started_from is division.root:
            return
        state.started_from, state.start_notes = division.root, []
        for number, values in enumerate(starts):
            arrivals = self._led(state, values, stable_hash("start", state.seed, number) >> 2)
            state.table.update(division, arrivals)
            state.executions += sum(counts_of(arrivals).values())
            _name(state, counts_of(list(that_have(arrivals, values))))
            state.start_notes += _not_met(arrivals, values)
        check_start_names(division, [name for values in starts for name in values])
        for note in state.start_notes:
            logger.warning("%s", note)

    def _led(self, state: SearchState, values: Mapping[str, Any], seed: int) -> list[Executions]:
        """A few executions with these values, and more in a part of the time."""
        arrivals = lead_to(state.division, values, _FIRST_EXECUTIONS, seed)
        with suppress(LimitReached), enforced(state.limits.within(self.time_share)):
            arrivals += lead_to(state.division, values, _MORE_EXECUTIONS, seed + 1)
        state.limits.check()
        return arrivals

    # From the paths with mass -----------------------------------------------------------------------------------

    def discover(self, state: SearchState, visits: Sequence[Visit]) -> None:
        """Propose from the paths just visited, and the neighbours of each path with mass, once."""
        settings, weights = state.settings, state.table.weights()
        # Of many paths, a walk finds what is near the lighter ones, if they matter, and makes up for proposals.
        thresholds = settings.thresholds
        with_mass = thresholds.weight_that_matters if state.has_many_paths else thresholds.weight_with_mass
        least = min(with_mass, max(weights.values(), default=0.0)) if settings.prune_negligible else 0.0
        visited = [visit.record for visit in visits]
        heavy = [each for each in visited if _is_current(state, each) and weights[each] >= least]
        if settings.systematic and state.has_many_paths:
            heavy = [each for each in heavy if not can_walk(each.path)]
        for record in sorted(heavy, key=lambda record: -record.log_evidence)[: settings.allocations]:
            rng = state.rng(record, 1)
            points = _states(state, record, rng)
            if settings.proposals and len(points):
                found = propose(state.division, record.path, points, rng)
                _remember(state, record, weights[record], found)
        if settings.systematic and not settings.walking.is_too_wide(state):
            weights = state.table.weights()
            self._propose_neighbours(state, [record for record, weight in weights.items() if weight >= with_mass])
        state.settle_budget()

    def finds_more(self, state: SearchState) -> bool:
        """Whether many more proposals find paths, or decision sequences of known ones, that are to be visited."""
        settings, table = state.settings, state.table
        weights, known = table.weights(), set(table)
        self._start(state)
        if settings.systematic and not state.has_many_paths:
            self._propose_neighbours(state, that_may_matter(table.solved, state, by_mean=True))
            if not known.issuperset(table):
                return bool(state.waiting())
        least = settings.thresholds.weight_that_matters
        heavy = [record for record, weight in weights.items() if weight > least]
        for search in range(self.final_searches if settings.proposals else 0):
            for record in heavy:
                rng = np.random.default_rng((state.seed, 1 + record.number, state.rounds, 4, search))
                found = propose(state.division, record.path, _states(state, record, rng), rng)
                _remember(state, record, weights[record], found)
            if not known.issuperset(table):
                return bool(state.waiting())
        self._solve(state)
        return not known.issuperset(table) and bool(state.waiting())

    def _propose_neighbours(self, state: SearchState, records: Sequence[PathRecord]) -> None:
        """Find the neighbours of each of these paths, once."""
        weights = state.table.weights()
        for record in records:
            if record.expanded or not _is_current(state, record):
                continue
            record.expanded = True
            rng = state.rng(record, 2)
            found = neighbours(state.division, record.path, _states(state, record, rng), rng)
            _remember(state, record, weights[record], found)
            _activate(state, found.counts)


def _name(state: SearchState, signatures: Iterable[Any]) -> None:
    """Let paths have a visit because the user has named them."""
    records = [state.table.records[each] for each in signatures if each in state.table.records]
    for record in records:
        record.is_named = True
    _activate(state, [record.path.signature for record in records])


def _not_met(arrivals: Sequence[Executions], values: Mapping[str, Any]) -> list[str]:
    """A sentence for each named site that executions with the other values do not come to."""
    given = ", ".join(f"{name} = {value}" for name, value in values.items())
    return [
        f"start: no execution led to {given} has met the site {name!r}. Name the decisions that lead to it, too."
        for name in sites_not_met(arrivals, values)
    ]


def _look_behind(record: PathRecord) -> None:
    """Evaluate the likelihood of a path where executions were led to it: it may be larger than any before."""
    points = record.target.known
    if len(points):
        record.target.allow(np.inf)
        # What goes wrong here goes wrong at the visit, which tells the user.
        with suppress(Exception), np.errstate(all="ignore"):
            record.target.evaluate(points)


def _is_current(state: SearchState, record: PathRecord) -> bool:
    """Whether the path is one of the program in its present form."""
    return record.path is state.division.by_signature.get(record.path.signature)


def _states(state: SearchState, record: PathRecord, rng: np.random.Generator) -> np.ndarray:
    """Some draws of a path, from which to propose, in its own coordinates."""
    draw = partial(_draw, state.settings, record)
    return state.visit_log.journal.draws(record.path, record.visits, rng, draw)


def _draw(settings: DCC, record: PathRecord, rng: np.random.Generator) -> np.ndarray:
    estimate = record.estimate
    if estimate is None or not len(estimate.points):
        return np.zeros((0, record.path.dim))
    weights = np.exp(estimate.log_weights)
    n = max(min(settings.proposals or 20, settings.evaluations_per_visit // 10), 1)
    return record.executions(estimate.points[rng.choice(len(weights), n, p=weights / weights.sum())], rng)


def _activate(state: SearchState, signatures: Iterable[Any]) -> None:
    """Let paths become active at the next round: those that the prior finds, and neighbours of a path with mass."""
    state.active = state.active.proposed({each: int(np.ceil(state.active.required)) for each in signatures})


def _remember(state: SearchState, record: PathRecord, weight: float, proposals: Proposals) -> None:
    """Count the proposals into each path, C_k, and add the new paths to the table."""
    state.executions += sum(proposals.counts.values())
    state.active = state.active.proposed(proposals.counts)
    state.table.update(state.division, proposals.arrivals)
    for signature in proposals.counts:
        found = state.table.records.get(signature)
        if found is not None and found is not record and weight > found.parent:
            found.parent, found.parent_likelihood = weight, record.log_mean_likelihood


def _warn_of_hours(state: SearchState) -> None:
    """Warn of a run that will take hours at the speed of the interpreter."""
    departure, rate, limits = state.division.interpreted_at, state.division.seconds_per_run, state.limits
    if departure is None or rate is None:
        return
    if text := hours_warning(rate, limits.budget, limits.seconds, departure.where, departure.remedy):
        logger.warning("%s.", text)
