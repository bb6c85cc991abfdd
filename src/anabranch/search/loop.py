"""The loop of `DCC` (paper, algorithm 1): choose, conquer, discover, combine, stop.

A round has a fixed number of visits, all chosen before any of them runs, and each draws from a generator of its own,
seeded by the path and the visit: the answer does not depend on how many threads there are.
"""

from __future__ import annotations

from anabranch.allocate import Visit
from anabranch.combine import PosteriorWithEvidence
from anabranch.limits import INTERRUPTED, OUT_OF_MEMORY, LimitReached, enforced
from anabranch.progress import Progress
from anabranch.search.state import SearchState
from anabranch.workers import Workers

__all__ = ["infer_paths", "search_paths"]


def infer_paths(state: SearchState, workers: Workers, progress: Progress) -> PosteriorWithEvidence:
    """Run rounds until there is a reason to stop, and combine the paths."""
    stopped, limits, visit_log = search_paths(state, workers, progress), state.limits, state.visit_log
    visit_log.complete(state.table)
    visit_log.end_part(state.status, limits, is_over=not limits.is_over and stopped != OUT_OF_MEMORY)
    state.settings.stopping.check_some_estimate(state)
    return state.settings.combining.posterior(state, stopped or INTERRUPTED)


def search_paths(state: SearchState, workers: Workers, progress: Progress) -> str:
    """Run rounds until there is a reason to stop, as a sentence; empty after an interrupt."""
    settings = state.settings
    try:
        with enforced(state.limits):
            if not state.is_explored:
                settings.discovery.explore(state)
                settings.visiting.make_prior_estimates(state, workers)
                state.is_explored = True
            return _run_rounds(state, workers, progress)
    except LimitReached:
        return state.limits.exceeded(0)
    except KeyboardInterrupt:
        state.limits.cancelled.set()
        return ""
    except MemoryError:
        return OUT_OF_MEMORY


def _run_rounds(state: SearchState, workers: Workers, progress: Progress) -> str:
    """Run rounds until one of the rules says why to stop."""
    settings = state.settings
    while not (reason := settings.stopping.at_limit(state)):
        visits = _next_visits(state)
        if not visits:
            state.is_cut_short = False
            return settings.stopping.without_work(state)
        settings.visiting.conquer(state, visits, workers)
        if state.is_walking:
            settings.walking.accept(state)
        else:
            settings.discovery.discover(state, visits)
        state.rounds += 1
        progress.update(state.status)
        state.visit_log.save(state.status, state.limits)
        if reason := settings.stopping.at_tolerance(state):
            state.is_cut_short = False
            return reason
    return reason


def _next_visits(state: SearchState) -> list[Visit]:
    """The visits of the next round: those of the rules, in turn with those of a walk over paths, once that is due."""
    walking = state.settings.walking
    state.is_walking = walking.is_due(state)
    if not state.is_walking:
        return state.next_visits()
    if state.rounds % 2 and state.walk is not None:
        return state.next_visits() or walking.visits(state)
    visits = walking.visits(state)
    state.is_walking = walking.is_due(state)  # not any more, if the walk was blocked
    return visits or state.next_visits()
