"""What the user of a posterior should know: which path is in doubt, why, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from anabranch.combine.blocks import blocks_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.conquer.estimate import FEWEST_DRAWS, LARGEST_PARETO_K

__all__ = ["warnings_of"]

MATTERS = 1e-3
"""Weight of a path above which its diagnostics are worth a warning."""
MOST_NAMED = 5
"""Paths in doubt that are named."""
LARGEST_R_HAT = 1.01
LARGEST_ERROR = 0.1
LARGEST_UNEXPLORED = 0.01


def warnings_of(solutions: Sequence[Solution], evidence: Evidence, run: Run) -> list[str]:
    """Sentences that name the path and the remedy, those about the whole program first."""
    out = [*_of_program(solutions, evidence, run), *_of_doubt(solutions, evidence), *run.notes]
    for solution, weight in zip(solutions, evidence.weights, strict=True):
        if weight > MATTERS:
            out += [f"Path ({solution.path.description}), weight {weight:.3g}: {text}" for text in _of_path(solution)]
    return out


def _of_program(solutions: Sequence[Solution], evidence: Evidence, run: Run) -> Iterator[str]:
    yield from _of_errors(solutions, evidence)
    without = [solution for solution in solutions if solution.estimate is None]
    yield from _of_unsolved([each for each in without if each.visits], "given up", "Choose another strategy for it")
    never = [each for each in without if not each.visits]
    yield from _of_unsolved(never, "found and never given budget", "Give the run more budget or time")
    found, truncated = run.prior_mass_found, run.prior_mass_truncated
    if found is not None and 1 - found > LARGEST_UNEXPLORED:
        beyond = f", {truncated:.2g} of it beyond max_sites" if truncated > MATTERS else ""
        yield (
            f"Prior probability {1 - found:.2g} is on paths that were never found{beyond}. Raise the number of "
            "executions that explore."
        )


def _of_doubt(solutions: Sequence[Solution], evidence: Evidence) -> Iterator[str]:
    """Of the paths that may have mass which no estimate shows, those that may have the most by name."""
    if evidence.log_evidence is None or not np.isfinite(evidence.log_evidence):
        return
    doubted = sorted((each for each in solutions if each.doubt), key=lambda each: -each.log_possible)
    more = np.exp(np.minimum([each.log_possible - evidence.log_evidence for each in doubted], 700.0))
    now = np.exp([each.log_evidence - evidence.log_evidence for each in doubted])
    shares = more / (1 + np.maximum(more - now, 0.0))
    matter = [
        (each, share) for each, share, before in zip(doubted, shares, now, strict=True) if share - before > MATTERS
    ]
    for solution, share in matter[:MOST_NAMED]:
        yield (
            f"Path ({solution.path.description}) may have up to {share:.2g} of the posterior: {solution.doubt}. "
            "Give the run more budget or time."
        )
    if len(matter) > MOST_NAMED:
        yield f"So may {len(matter) - MOST_NAMED} other paths."


def _of_unsolved(solutions: Sequence[Solution], what: str, remedy: str) -> Iterator[str]:
    mass = sum(solution.path.prior_probability for solution in solutions)
    if mass > MATTERS:
        paths = "1 path was" if len(solutions) == 1 else f"{len(solutions)} paths were"
        yield f"{paths} {what}, with prior probability {mass:.2g} together. {remedy}."


def _of_errors(solutions: Sequence[Solution], evidence: Evidence) -> Iterator[str]:
    blocks = blocks_of(solutions)
    if blocks is not None and blocks.count == 1:
        yield "All draws come from one chain or run, so that their errors are not known. Run several."
    elif evidence.log_evidence_sd is None:
        largest = np.max(evidence.weight_sds, initial=0.0)
        if largest > LARGEST_ERROR:
            yield f"The weights of paths have errors of up to {largest:.2g}. Give the run more budget."
    elif evidence.log_evidence_sd > LARGEST_ERROR:
        yield (
            f"The error of the log evidence is {evidence.log_evidence_sd:.2g}, and the weights of paths are no better "
            "known. Give the run more budget."
        )


def _of_path(solution: Solution) -> Iterator[str]:
    estimate = solution.estimate
    assert estimate is not None
    if not solution.is_exact and estimate.ess < FEWEST_DRAWS:
        yield f"its draws are worth {estimate.ess:.1f} independent ones, too few. Give the run more budget."
    if estimate.pareto_k > LARGEST_PARETO_K:
        other = "another strategy for it" if estimate.blocks is None else "another engine"
        yield (
            f"the Pareto k of its weights is {estimate.pareto_k:.2f}, so its error bar cannot be trusted. Raise the "
            f"budget, or choose {other}."
        )
    if estimate.r_hat > LARGEST_R_HAT:
        yield f"its chains disagree, with an R-hat of {estimate.r_hat:.3f}. Run them for longer."
    yield from estimate.remarks
