"""Stop: at a limit, at the tolerance, or when nothing is left to do."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch import errors
from anabranch.search.combining import evidence_of
from anabranch.search.state import SearchState
from anabranch.settings import check, share

__all__ = ["Stopping"]


@dataclass(frozen=True)
class Stopping:
    """Why a run stops, as a sentence; an empty one if it goes on.

    Args:
        unspent_share: the part of the budget, of what was given when the run began or went on, that is not worth
            another round; a smaller one makes rounds with few evaluations at the end.
    """

    unspent_share: float = 0.01

    def __post_init__(self) -> None:
        check(self, unspent_share=share())

    def at_limit(self, state: SearchState) -> str:
        """Stop if the budget or the time does not allow another round."""
        budget, evaluations, least = state.limits.budget, state.table.evaluations, state.settings.thresholds.min_visit
        unspent = max(self.unspent_share * (budget - state.begun_at), state.idle_rounds * least)
        is_spent = state.rounds and budget - evaluations < unspent
        return state.limits.exceeded(budget if is_spent else evaluations)

    def at_tolerance(self, state: SearchState) -> str:
        """Stop if the sampling errors are below the tolerance, no path waits for a visit, and no more are found."""
        tolerance, settings = state.limits.tolerance, state.settings
        if state.limits.target is not None:
            return self._at_error_of_expectation(state)
        if self.at_limit(state) or tolerance is None or state.table.total.log_evidence_sd > tolerance:
            return ""
        if state.waiting() or (state.is_walking and not settings.walking.is_over(state)):
            return ""
        # The error of the sampling alone: more evaluations would not reduce that of paths not found or not solved.
        evidence, found = evidence_of(state), len(state.table)
        finds_more = not state.is_walking and settings.discovery.finds_more(state)
        if evidence.max_sampled_sd > tolerance or finds_more:
            return ""
        evidence = evidence if len(state.table) == found else evidence_of(state)
        if evidence.log_evidence_sd is not None and evidence.log_evidence_sd > tolerance:
            return (
                f"The sampling errors are below {tolerance:g}; the rest of the error of log Z is that of paths not "
                "solved or not found."
            )
        return state.limits.met

    def _at_error_of_expectation(self, state: SearchState) -> str:
        """The same for the expectation that is asked for."""
        tolerance, settings, error = state.limits.tolerance, state.settings, state.expectation_error()
        if self.at_limit(state) or tolerance is None or error is None or error.sampling > tolerance:
            return ""
        if state.waiting() or (state.is_walking and not settings.walking.is_over(state)):
            return ""
        if not state.is_walking and settings.discovery.finds_more(state):
            return ""
        error = state.expectation_error()
        if error is None or error.total > tolerance:
            return (
                f"The sampling error of the expectation is below {tolerance:g}; the rest of its error is that of paths "
                "not solved or not found."
            )
        return f"The error of the expectation is below {tolerance:g}."

    def without_work(self, state: SearchState) -> str:
        """Stop because no path is to be visited."""
        error, tolerance = state.expectation_error(), state.limits.tolerance
        if error is not None and tolerance is not None and error.sampling > tolerance:
            return (
                f"The error of the expectation is {error.sampling:.2g}: it comes from the draws of paths whose "
                "evidence is exact, and their method draws no more. Give them another, as in "
                "DCC(strategy=anabranch.conquer.SMC())."
            )
        given_up = ", was given up" if any(record.gave_up for record in state.table) else ""
        return f"No path is left to visit: each was solved exactly{given_up} or has no mass."

    def check_some_estimate(self, state: SearchState) -> None:
        """Raise the error for a run that was ended before any path had an estimate."""
        if not state.limits.is_over or any(record.is_informative for record in state.table):
            return
        if state.limits.cancelled.is_set():
            raise KeyboardInterrupt
        found = f"{len(state.table)} paths were found, and none of them" if len(state.table) else "no path"
        raise errors.LimitTooSmall(
            f"the {state.limits.seconds:g} seconds were over when {found} had an estimate",
            where=state.division.where,
            remedy="Give the run more seconds, or make an execution of the program cheaper: less data, a shorter loop, "
            "jax.numpy in place of Python numbers",
        )
