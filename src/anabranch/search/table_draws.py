"""The evidence of a wide program from the paths that were drawn from tables of their decisions.

Proposals that lead to any path (`divide.decision_tables`) are independent draws with known probabilities q(k). After n
of them, a path has been drawn at least once with the probability

    π_k = 1 − (1 − q(k))ⁿ,

so that with the paths B that were known before, each of the others that were drawn counting once,

    Ẑ = Σ_{k in B} Ẑ_k + Σ_{k drawn, not in B} Ẑ_k / π_k

is unbiased (Horvitz and Thompson), with the variance Σ (Ẑ_k/π_k)² (1 − π_k) by what was drawn; the next draw may be the
first outside B, which adds 1/n² to the relative one. A path stands for 1/π_k
like it: heavy ones for themselves alone, so that their part is exact. The last two fits of the tables have a part each.

What the tables hardly ever draw is missing from that variance. Walkers come to it in proportion to its evidence; with
the probabilities w_k = Z_k/Z, the relative variance is also the mean over their steps of w_k (1 − π_k)/π_k outside B.
The larger of the two counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from anabranch.allocate import PathRecord
from anabranch.divide import DecisionTables

__all__ = ["DrawnEvidence", "TableDraws", "evidence_of_draws"]


@dataclass
class TableDraws:
    """The tables of one fit, the step at which it was made, and what was drawn: the numbers of paths, and how often."""

    tables: DecisionTables
    step: int
    drawn: set[int] = field(default_factory=set)
    times: int = 0


@dataclass(frozen=True)
class DrawnEvidence:
    """log Ẑ, its standard error, and log π_k of the paths that were drawn and not known before."""

    log_evidence: float
    sd: float
    log_drawn: Mapping[PathRecord, float]


def evidence_of_draws(
    draws: Sequence[TableDraws], before: Iterable[PathRecord], others: Sequence[PathRecord], steps: np.ndarray
) -> DrawnEvidence | None:
    """The evidence from the draws of some fits, the paths known before them, the other paths, and the numbers of the
    paths at which walkers were; None if nothing was drawn."""
    drawn: set[int] = set().union(*(each.drawn for each in draws))
    if not drawn:
        return None
    log_pi = {record: _log_drawn(record, draws) for record in others}
    log_drawn = {record: log_pi[record] for record in others if record.number in drawn and log_pi[record] > -np.inf}
    parts = [record.log_evidence for record in before]
    parts += [record.log_evidence - log for record, log in log_drawn.items()]
    top = max(parts, default=-np.inf)
    if not np.isfinite(top):
        return None
    total = top + float(np.log(np.exp(np.array(parts) - top).sum()))
    times = sum(each.times for each in draws)
    weights = {record: np.exp(record.log_evidence - log - total) for record, log in log_drawn.items()}
    by_draws = times**-2 + sum(weights[record] ** 2 * -np.expm1(log) for record, log in log_drawn.items())
    excess = {
        record.number: np.exp(min(record.log_evidence - total - log, 700.0)) * -np.expm1(log)
        for record, log in log_pi.items()
    }
    numbers, counts = np.unique(steps, return_counts=True)
    by_steps = sum(excess.get(int(k), 0.0) * n for k, n in zip(numbers, counts, strict=True)) / max(steps.size, 1)
    return DrawnEvidence(total, float(np.sqrt(max(by_draws, by_steps))), log_drawn)


def _log_drawn(record: PathRecord, draws: Sequence[TableDraws]) -> float:
    """log π_k."""
    q = np.exp([each.tables.log_probability(record.path) for each in draws])
    never = float(np.dot([each.times for each in draws], np.log1p(-np.minimum(q, 1 - 1e-15))))
    return float(np.log(-np.expm1(never))) if never < 0 else -np.inf
