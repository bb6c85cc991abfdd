"""What was checked, with which result, in words; the warnings, and what no execution has met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from anabranch.combine.blocks import blocks_of
from anabranch.combine.diagnose import MAX_ERROR, MAX_MASS_NOT_FOUND, MAX_R_HAT, MIN_CONFIRMED, MIN_WEIGHT, notes_of
from anabranch.combine.evidence import Evidence
from anabranch.combine.solution import Run, Solution
from anabranch.conquer.estimate import MAX_PARETO_K, MIN_ESS, Estimate
from anabranch.report.page.elements import Cell, Column, items, paragraph, table
from anabranch.report.table import number, percent, shortened

__all__ = ["checks", "described"]

MAX_SENTENCES, MAX_SHOWN, MAX_CHARACTERS = 50, 5, 1000
"""Sentences of a kind, those that are shown at first, and characters of each."""


class Check(NamedTuple):
    """A diagnostic: whether it passed (None: there is nothing to check), and the result in words."""

    name: str
    passed: bool | None
    result: str


def described(solutions: Sequence[Solution], evidence: Evidence, run: Run, warnings: Sequence[str]) -> str:
    """The warnings, the checks as a table, notes, and conditions that were not met."""
    said = {True: "✓ passed", False: "✗ failed", None: "– not computed"}
    rows = [[Cell(each.name), Cell(said[each.passed]), Cell(each.result)] for each in checks(solutions, evidence, run)]
    columns = [Column(title, is_number=False) for title in ("diagnostic", "state", "result")]
    warned = f'<div class="warnings"><h3>Warnings</h3>{_sentences(warnings)}</div>'
    notes = notes_of(solutions, evidence)
    return "\n".join([
        warned if warnings else paragraph("No diagnostic gives a warning."),
        table("Diagnostics", columns, rows, "checks"),
        f"<h3>Not met by any execution</h3>{_sentences(run.unmet)}" if run.unmet else "",
        f"<h3>Notes</h3>{_sentences(notes)}" if notes else "",
    ])  # fmt: skip


def _sentences(sentences: Sequence[str]) -> str:
    """The first sentences, and the others in a list that opens."""
    words = [shortened(each, MAX_CHARACTERS) for each in sentences[:MAX_SENTENCES]]
    if len(sentences) > MAX_SENTENCES:
        words.append(f"and {len(sentences) - MAX_SENTENCES:,} more")
    rest = f"<details><summary>{len(sentences) - MAX_SHOWN:,} more</summary>{items(words[MAX_SHOWN:])}</details>"
    return items(words[:MAX_SHOWN]) + (rest if len(sentences) > MAX_SHOWN else "")


def checks(solutions: Sequence[Solution], evidence: Evidence, run: Run) -> Iterator[Check]:
    """The diagnostics of `posterior.warnings`, also those that pass."""
    heavy = [
        (solution, solution.estimate)
        for solution, weight in zip(solutions, evidence.weights, strict=True)
        if weight > MIN_WEIGHT and solution.estimate is not None
    ]
    yield _error(evidence)
    yield _second_method(solutions, evidence)
    drawn = [each for each in heavy if not each[0].is_exact]
    yield _worst("effective draws of a path", drawn, lambda e: -e.ess, lambda v: -v >= MIN_ESS, f"at least {MIN_ESS:g}")
    yield _worst("Pareto k of the weights of a path", heavy, lambda e: e.pareto_k, lambda v: v <= MAX_PARETO_K,
                 f"at most {MAX_PARETO_K:g}")  # fmt: skip
    yield _worst("R-hat of the chains of a path", heavy, lambda e: e.r_hat, lambda v: v <= MAX_R_HAT,
                 f"at most {MAX_R_HAT:g}")  # fmt: skip
    yield _found(run)
    yield _without_estimate(solutions, run)


def _error(evidence: Evidence) -> Check:
    sd = evidence.log_evidence_sd
    if sd is None:
        largest = float(np.max(evidence.weight_sds, initial=0.0))
        return Check("error of the path weights", largest <= MAX_ERROR, f"{number(largest, 2)}; at most {MAX_ERROR:g}")
    return Check("error of the log evidence", sd <= MAX_ERROR, f"{number(sd, 2)}; at most {MAX_ERROR:g}")


def _second_method(solutions: Sequence[Solution], evidence: Evidence) -> Check:
    name = "a second method confirms the estimate of a path"
    asked = [
        each.estimate.is_confirmed
        for each, weight in zip(solutions, evidence.weights, strict=True)
        if weight > MIN_CONFIRMED and each.estimate is not None
    ]
    if not asked or blocks_of(solutions) is not None:
        return Check(name, None, "the engine draws whole executions" if asked else "no path has mass")
    result = f"{sum(asked):,} of {len(asked):,} paths with more than {percent(MIN_CONFIRMED)} of the mass"
    return Check(name, all(asked), f"{result} are confirmed, or need no second method")


def _worst(
    name: str,
    heavy: Sequence[tuple[Solution, Estimate]],
    badness: Callable[[Estimate], float],
    fits: Callable[[float], bool],
    limit: str,
) -> Check:
    """The path with the worst value of a diagnostic, among those with mass."""
    known = [(badness(estimate), solution) for solution, estimate in heavy if not np.isnan(badness(estimate))]
    if not known:
        return Check(name, None, "no path needs it")
    value, solution = max(known, key=lambda each: each[0])
    shown = value if value >= 0 or name.startswith("Pareto") else -value
    path = shortened(solution.path.description, 120)
    return Check(name, bool(fits(value)), f"{number(shown, 3)} on the worst path, {path}; {limit}")


def _found(run: Run) -> Check:
    name = "prior mass of the paths found"
    if run.prior_mass_found is None:
        return Check(name, None, "the engine draws whole executions")
    passed = 1 - run.prior_mass_found <= MAX_MASS_NOT_FOUND or run.known_share is not None
    by_walk = "" if run.known_share is None else f"; by a walk, {percent(run.known_share[0])} of the posterior mass"
    return Check(name, passed, percent(run.prior_mass_found) + by_walk)


def _without_estimate(solutions: Sequence[Solution], run: Run) -> Check:
    without = [solution for solution in solutions if solution.estimate is None]
    mass = float(sum(solution.path.prior_probability for solution in without))
    passed = mass <= MIN_WEIGHT or run.known_share is not None
    words = f"{len(without):,}, with {percent(mass)} of the prior mass" if without else "none"
    return Check("paths without an estimate", passed, words)
