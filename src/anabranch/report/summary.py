"""A posterior as text, and for a notebook: the evidence, the paths that matter, how the run went, what is in doubt."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import numpy as np

from anabranch.report.table import html_table, number, text_table, with_error
from anabranch.report.words import shortened, without_repeats

if TYPE_CHECKING:
    from anabranch.combine.posterior import Posterior

__all__ = ["evidence_in_words", "html_summary", "text_summary"]

MOST_PATHS = 10
MOST_WARNINGS = 5
LONGEST_DESCRIPTION = 48

HEADER = ["path", "weight", "log evidence", "ess", "Pareto k", "dim", "evaluations"]


def text_summary(posterior: Posterior) -> str:
    """For a terminal."""
    lines = [_title(posterior), "", text_table(HEADER, _rows(posterior)), *_rest(posterior), "", *_how(posterior)]
    warnings = _warnings(posterior)
    return "\n".join([*lines, *(["", "Warnings:", *(f"- {text}" for text in warnings)] if warnings else [])])


def html_summary(posterior: Posterior) -> str:
    """For a notebook."""
    parts = [f"<p><b>{html.escape(_title(posterior))}</b></p>", html_table(HEADER, _rows(posterior))]
    parts += [f"<p>{'<br>'.join(html.escape(line) for line in [*_rest(posterior), *_how(posterior)])}</p>"]
    if warnings := _warnings(posterior):
        parts.append(f"<p>Warnings:</p><ul>{''.join(f'<li>{html.escape(text)}</li>' for text in warnings)}</ul>")
    return f"<div>{''.join(parts)}</div>"


def evidence_in_words(posterior: Posterior) -> str:
    """The log evidence with its error, or by which method there is none."""
    value, error = posterior.log_evidence, posterior.log_evidence_sd
    if value is None or error is None:
        methods = [solution.estimate.method for solution in posterior.solutions if solution.estimate is not None]
        return f"log evidence not given{f' by {methods[0]}' if methods else ''}"
    return f"log evidence {with_error(value, error)}"


def _title(posterior: Posterior) -> str:
    return f"Posterior of {posterior.program.name}: {evidence_in_words(posterior)}"


def _rows(posterior: Posterior) -> list[list[str]]:
    out = []
    evidence = posterior.evidence
    for k, solution in enumerate(posterior.solutions[:MOST_PATHS]):
        estimate = solution.estimate
        description = shortened(without_repeats(solution.path.description), LONGEST_DESCRIPTION)
        if estimate is None:
            out.append([description, "-", "-", "-", "-", str(solution.path.dim), "0"])
            continue
        out.append(
            [
                description,
                with_error(evidence.weights[k], evidence.weight_sds[k]),
                "-" if evidence.log_evidence is None else with_error(estimate.log_evidence, estimate.log_evidence_sd),
                "exact" if solution.is_exact else f"{estimate.ess:,.0f}",
                "-" if np.isnan(estimate.pareto_k) else f"{estimate.pareto_k:.2f}",
                str(solution.path.dim),
                f"{estimate.evaluations:,}",
            ]
        )
    return out


def _rest(posterior: Posterior) -> list[str]:
    others = posterior.solutions[MOST_PATHS:]
    if not others:
        return []
    weight = posterior.evidence.weights[MOST_PATHS:].sum()
    without = sum(solution.estimate is None for solution in others)
    never = f"; {without:,} never given budget" if without else ""
    return [f"and {len(others):,} more, weight {number(float(weight), 2)} together{never}"]


def _how(posterior: Posterior) -> list[str]:
    run = posterior.run
    found = run.prior_mass_found
    of_prior = "" if found is None else f"; {number(100 * found)} % of the prior mass found"
    return [
        run.stopped,
        f"{run.evaluations:,} evaluations of densities, {run.executions:,} executions, {run.seconds:.1f} s, "
        f"seed {run.seed}{of_prior}.",
    ]


def _warnings(posterior: Posterior) -> list[str]:
    warnings = posterior.warnings
    more = len(warnings) - MOST_WARNINGS
    return [*warnings[:MOST_WARNINGS], *([f"and {more} more, in posterior.warnings"] if more > 0 else [])]
