"""Combine: from the table of paths to their evidence and to the posterior."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from anabranch.allocate import PathRecord
from anabranch.allocate.refinement import under_explored
from anabranch.combine import PosteriorWithEvidence, Run, Solution
from anabranch.combine.evidence import Evidence, join
from anabranch.conquer import Estimate, PerPath
from anabranch.conquer.estimate import MAX_SD
from anabranch.conquer.strategy import cheapest_visit
from anabranch.search.state import SearchState
from anabranch.search.walk import WalkEstimate
from anabranch.settings import check, share, whole

__all__ = ["Combining", "evidence_of", "solution_of"]


def evidence_of(state: SearchState) -> Evidence:
    """The evidence and the weights so far."""
    walked = state.settings.walking.estimate(state)
    solutions = [solution_of(record, record.estimate, {}, walked) for record in state.table]
    return join(solutions, state.division.prior_mass_found, known_share=None if walked is None else walked.known_share)


@dataclass(frozen=True)
class Combining:
    """How the posterior is made of the table.

    Args:
        max_notes: paths that are named in the notes of each kind.
        max_draws: draws of a path for which the variables summed out are drawn, too; more take longer.
        min_visited: paths visited from which on the largest likelihood bounds that of the others; fewer trust it
            sooner.
        max_visited: paths visited from which on their own evidence says what the others may have
            (`combine.evidence.missing`), and not the bound.
        min_mass_found: prior mass of the paths found below which they say too little of how the others vary, and the
            largest likelihood is the bound; more makes the error larger where time ended the search.
    """

    max_notes: int = 5
    max_draws: int = 4_000
    min_visited: int = 5
    max_visited: int = 30
    min_mass_found: float = 0.5

    def __post_init__(self) -> None:
        check(self, max_notes=whole(), max_draws=whole(1), min_visited=whole(), max_visited=whole(),
              min_mass_found=share())  # fmt: skip

    def posterior(self, state: SearchState, stopped: str) -> PosteriorWithEvidence:
        """The posterior of the paths in the table."""
        few = sum(record.visits > 0 for record in state.table) < self.max_visited
        waiting = state.waiting() if state.is_cut_short and few else []
        best = self._best_mean_likelihood(state)
        walked = state.settings.walking.estimate(state)
        # A walk says how much mass the paths have that were not visited.
        unvisited = {} if walked is not None else self._possible_of_unvisited(state, set(waiting), best)
        run = self._run(state, stopped, best)  # before variables are drawn, which is no part of the inference
        run = replace(run, known_share=None if walked is None else walked.known_share)
        estimates = ((record, self.with_all_variables(state, record)) for record in state.table)
        solutions = [solution_of(record, estimate, unvisited, walked) for record, estimate in estimates]
        return PosteriorWithEvidence(state.division.program, solutions, run)

    def _run(self, state: SearchState, stopped: str, best: float) -> Run:
        not_found = 1 - state.division.prior_mass_found
        is_cut = state.is_exploration_cut and not_found > 0 and np.isfinite(best)
        return Run(
            stopped=stopped,
            evaluations=state.table.evaluations,
            executions=state.executions,
            seconds=state.seconds + state.limits.elapsed,
            seed=state.seed,
            prior_mass_found=state.division.prior_mass_found,
            prior_mass_truncated=state.division.prior_mass_truncated,
            log_possible_not_found=float(np.log(not_found) + best) if is_cut else None,
            elimination=state.settings.elimination,
            unmet=tuple(state.division.unmet),
            notes=tuple(self._notes(state)),
            settings=repr(state.settings),
            limits=state.limits.as_arguments,
            history=state.history.copy(),  # which goes on with the run
        )

    def _best_mean_likelihood(self, state: SearchState) -> float:
        """log E[g | k] that a path may have that was not visited, or not found.

        Z_k = p_k E[g | k], and only p_k is known. The mean likelihoods of the other paths say how they vary: this one
        may be as far above the best of them as that is above the median, or as far as one of them may be by its own
        diagnostics; but once a few paths were visited, no more than a margin above the largest likelihood. That it may
        have where most of the prior mass was not found.
        """
        records, margin = list(state.table), state.settings.thresholds.likelihood_margin
        means = np.array([record.log_mean_likelihood for record in records])
        means, largest = means[np.isfinite(means)], max(record.target.best_likelihood for record in records) + margin
        best = float(2 * means.max() - np.median(means)) if len(means) > 1 else largest
        priors = ((record.log_possible, record.path.log_prior_probability) for record in records if not record.visits)
        best = max([best, *(possible - prior for possible, prior in priors if np.isfinite(possible + prior))])
        if state.division.prior_mass_found < self.min_mass_found:
            return max(best, largest)
        return min(best, largest) if sum(record.visits > 0 for record in records) >= self.min_visited else best

    def _possible_of_unvisited(
        self, state: SearchState, waiting: Collection[PathRecord], best: float
    ) -> dict[PathRecord, float]:
        """The log evidence that each unvisited path may have, if it waits for its visit or has a prior estimate; by the
        likelihood where executions were led to it, if that is all that is known."""
        out = {}
        for record in state.table:
            likelihood = record.target.best_likelihood
            if not record.visits and record.estimate is None and record not in waiting and likelihood > -np.inf:
                out[record] = record.path.log_prior_probability + likelihood
            elif not record.visits and (record.estimate is not None or record in waiting):
                prior = record.path.log_prior_probability
                bound = prior + best if prior > -np.inf else state.table.log_evidence
                prior_estimate = max(min(bound, record.log_possible), record.log_evidence)
                out[record] = bound if record.estimate is None else prior_estimate
        return out

    def _notes(self, state: SearchState) -> Iterator[str]:
        """What the user asked for and did not get, and what went wrong on single paths."""
        table = state.table
        if state.visit_log.failure:
            yield state.visit_log.failure
        for name in sorted(state.division.unmet_split):
            yield f"split names the site {name!r}, which no execution has met. Check its spelling."
        yield from state.start_notes
        if isinstance(strategy := state.settings.strategy, PerPath):
            for name in strategy.unmet(record.path for record in table):
                yield f"strategy names the path ({name}), which was not found. Take a description of posterior.paths."
        if (evaluations := _reliable_budget(state)) > state.limits.budget:
            yield (
                f"The budget allows only a Laplace estimate of each of {len(table)} paths, which may miss where the "
                f"mass is. Give a budget of at least {evaluations:,}."
            )
        is_late = state.is_cut_short and state.limits.time_is_over
        for record in under_explored(state)[: self.max_notes if is_late else 0]:
            yield (
                f"The path ({record.path.description}) has had {record.evaluations:,} evaluations, which may "
                "be too few to find all its modes. Give the run more seconds."
            )
        for record in itertools.islice((each for each in table if each.gave_up), self.max_notes):
            yield f"The path ({record.path.description}): {record.gave_up}"
        for record in itertools.islice((each for each in table if each.path.is_often_invalid), self.max_notes):
            yield (
                f"The density of the path ({record.path.description}) is NaN or infinite at {record.path.invalid} of "
                f"{record.path.evaluated} points, which count as outside it. Mass there, as at the very edge of a "
                "support, is missing from log Z: write that site on another scale."
            )

    def with_all_variables(self, state: SearchState, record: PathRecord) -> Estimate | None:
        """The estimate with the variables drawn that were summed out."""
        estimate = record.estimate
        if estimate is None or estimate.points.shape[1] == record.path.dim:
            return estimate
        rng = state.rng(record, 3)
        n = min(len(estimate.points), self.max_draws)
        if n == 0:
            return replace(estimate, points=np.zeros((0, record.path.dim)))
        weights = np.exp(estimate.log_weights)
        chosen = rng.choice(len(weights), n, p=weights / weights.sum())
        points = record.executions(estimate.points[chosen], rng)
        return replace(estimate, points=points, log_weights=np.full(n, -np.log(n)), ess=min(estimate.ess, n))


def solution_of(
    record: PathRecord,
    estimate: Estimate | None,
    unvisited: Mapping[PathRecord, float],
    walked: WalkEstimate | None = None,
) -> Solution:
    """A path with this estimate, and the log evidence that it may have beyond it, with the reason."""
    possible, doubt = -np.inf, ""
    if record in unvisited:
        possible, doubt = unvisited[record], "it was found, and a limit came before its first visit"
    elif record.is_doubtful and record.estimate is not None:
        possible, doubt = record.log_possible, _doubt(record.estimate)
    if record.gave_up and record.log_evidence == -np.inf:
        estimate = None
    multiple = (0.0, 0.0)
    if walked is not None and record in walked.multiples:  # by a walk, which needs no bound
        multiple, possible, doubt = walked.multiples[record], -np.inf, ""
    counts = record.visits, record.first_visit
    return Solution(record.path, estimate, *counts, possible, doubt, record.target.terms, *multiple)


def _doubt(estimate: Estimate) -> str:
    """The diagnostics of an estimate that is doubted, as the end of a sentence."""
    parts = [f"{estimate.ess:.1f} effective draws"]
    if not np.isnan(estimate.pareto_k):
        parts.append(f"a Pareto k of {estimate.pareto_k:.2g}")
    if estimate.log_evidence_sd > MAX_SD:
        parts.append(f"an error of {estimate.log_evidence_sd:.2g} in its log evidence")
    return f"its estimate has {' and '.join(parts)}"


def _reliable_budget(state: SearchState) -> int:
    """The budget below which first visits are rough estimates; zero if the paths are many or it is asked for."""
    settings, table = state.settings, state.table
    is_asked_for = not settings.prune_negligible or settings.evaluations_per_first_visit is not None
    if is_asked_for or len(table) <= 1 or state.has_many_paths:
        return 0
    sampled = [record for record in table.solved if record.path.dim and not record.path.interpreted]
    costs = [cheapest_visit(settings.local_strategy, record.path.dim) for record in sampled]
    return max(costs) * len(table) if len(costs) > 1 else 0
