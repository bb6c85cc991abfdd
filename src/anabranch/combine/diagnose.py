"""The warnings of a posterior: which diagnostics fail, on which paths, and the remedy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anabranch.combine.blocks import blocks_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.conquer.estimate import MAX_PARETO_K, MIN_ESS

__all__ = ["notes_of", "warnings_of"]

MIN_WEIGHT = 1e-3
"""Smallest posterior weight or prior mass that is worth a warning."""
MIN_CONFIRMED = 0.01
"""Smallest posterior weight of a path that a second method should have confirmed."""
MAX_NAMED = 5
"""Doubtful paths that are named."""
MAX_R_HAT = 1.01
MAX_ERROR = 0.1
"""Largest error of the log evidence or of a path weight without a warning."""
MAX_MASS_NOT_FOUND = 0.01


def warnings_of(solutions: Sequence[Solution], evidence: Evidence, run: Run) -> list[str]:
    """The warnings about the whole program, then those about single paths."""
    limit = "seconds" if "seconds are over" in run.stopped else "budget"
    of_paths = [*_of_unconfirmed(solutions, evidence, limit), *_of_doubt(solutions, evidence)]
    out = [*_of_program(solutions, evidence, run, limit), *of_paths, *run.notes]
    for solution, weight in zip(solutions, evidence.weights, strict=True):
        if weight > MIN_WEIGHT:
            out += [
                f"Path ({solution.path.description}), weight {weight:.3g}: {text}" for text in _of_path(solution, limit)
            ]
    return out


def notes_of(solutions: Sequence[Solution], evidence: Evidence) -> list[str]:
    """What is worth knowing of the estimates of single paths, and no reason to doubt them."""
    return [
        f"Path ({solution.path.description}), weight {weight:.3g}: {text}"
        for solution, weight in zip(solutions, evidence.weights, strict=True)
        if weight > MIN_WEIGHT and solution.estimate is not None
        for text in solution.estimate.notes
    ]


def _of_program(solutions: Sequence[Solution], evidence: Evidence, run: Run, limit: str) -> Iterator[str]:
    yield from _of_errors(solutions, evidence, limit)
    without = [solution for solution in solutions if solution.estimate is None]
    yield from _of_unsolved([each for each in without if each.visits], "given up", "Choose another strategy for it")
    unvisited = [each for each in without if not each.visits]
    if run.known_share is not None:  # by a walk, which says how much mass they have
        return
    yield from _of_unsolved(unvisited, "found and never visited", "Give the run more budget or time")
    not_found = 0.0 if run.prior_mass_found is None else 1 - run.prior_mass_found
    if not_found > MAX_MASS_NOT_FOUND:
        truncated = run.prior_mass_truncated
        beyond = f", {100 * truncated:.3g} % beyond max_sites" if truncated > MIN_WEIGHT else ""
        in_time = run.log_possible_not_found is None
        more = "Raise the number of prior executions, DCC(executions=...) or DCC.paper(T_0=...)"
        remedy = more if in_time else "Give the run more seconds"
        yield f"{100 * not_found:.3g} % of the prior mass is on paths that were not found{beyond}. {remedy}."


def _of_unconfirmed(solutions: Sequence[Solution], evidence: Evidence, limit: str) -> Iterator[str]:
    """The paths with mass whose estimates no second method has confirmed."""
    named = [
        solution.path.description
        for solution, weight in zip(solutions, evidence.weights, strict=True)
        if weight > MIN_CONFIRMED and solution.estimate is not None and not solution.estimate.is_confirmed
    ]
    if named:
        paths = f"the path ({named[0]})" if len(named) == 1 else f"{len(named)} paths, the first ({named[0]})"
        ended = "time" if limit == "seconds" else "budget"
        yield f"The {ended} did not suffice for a second method to check {paths}: modes may be missing. Give it more."


def _of_doubt(solutions: Sequence[Solution], evidence: Evidence) -> Iterator[str]:
    """The paths that may have more mass than their estimate, those that may have the most first."""
    if evidence.log_evidence is None or not np.isfinite(evidence.log_evidence):
        return
    doubted = sorted((each for each in solutions if each.doubt), key=lambda each: -each.log_possible)
    possible = np.exp(np.minimum([each.log_possible - evidence.log_evidence for each in doubted], 700.0))
    weights = np.exp([each.log_evidence - evidence.log_evidence for each in doubted])
    bounds = possible / (1 + np.maximum(possible - weights, 0.0))
    named = [
        (each, bound) for each, bound, now in zip(doubted, bounds, weights, strict=True) if bound - now > MIN_WEIGHT
    ]
    for solution, bound in named[:MAX_NAMED]:
        yield (
            f"Path ({solution.path.description}) may have up to {bound:.2g} of the posterior mass: {solution.doubt}. "
            "Give the run more budget or time."
        )
    if len(named) > MAX_NAMED:
        yield f"{len(named) - MAX_NAMED} other paths may have more mass than their estimates, too."


def _of_unsolved(solutions: Sequence[Solution], what: str, remedy: str) -> Iterator[str]:
    mass = sum(solution.path.prior_probability for solution in solutions)
    if mass > MIN_WEIGHT:
        paths = "1 path was" if len(solutions) == 1 else f"{len(solutions)} paths were"
        yield f"{paths} {what}, with {100 * mass:.3g} % of the prior mass. {remedy}."


def _of_errors(solutions: Sequence[Solution], evidence: Evidence, limit: str) -> Iterator[str]:
    blocks = blocks_of(solutions)
    if blocks is not None and blocks.count == 1:
        yield "All draws come from one chain or run, so their errors cannot be estimated. Run several."
    elif evidence.log_evidence_sd is None:
        largest = np.max(evidence.weight_sds, initial=0.0)
        if largest > MAX_ERROR:
            yield f"The path weights have errors of up to {largest:.2g}. Give the run more {limit}."
    elif evidence.log_evidence_sd > MAX_ERROR:
        yield f"The log evidence has an error of {evidence.log_evidence_sd:.2g}. Give the run more {limit}."


def _of_path(solution: Solution, limit: str) -> Iterator[str]:
    estimate = solution.estimate
    assert estimate is not None
    if not solution.is_exact and estimate.ess < MIN_ESS:
        yield f"its effective sample size is {estimate.ess:.1f}, too small. Give the run more {limit}."
    if estimate.pareto_k > MAX_PARETO_K:
        other = "another strategy for it" if estimate.blocks is None else "another engine"
        yield (
            f"the Pareto k of its weights is {estimate.pareto_k:.2f}, so its error is not reliable. Raise the "
            f"budget, or choose {other}."
        )
    if estimate.r_hat > MAX_R_HAT:
        yield f"its chains disagree: R-hat is {estimate.r_hat:.3f}. Run them for longer."
    yield from estimate.remarks
