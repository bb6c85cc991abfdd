"""The distributions of the variables summed out, given points of the other coordinates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from anabranch.conquer.elimination.sums import log_sum_by_numpy, marginals
from anabranch.conquer.elimination.tables import Logs, Tables
from anabranch.limits import checkpoint

__all__ = ["NUMBERS_AT_ONCE", "Conditionals", "batches", "conditionals", "log_total"]

NUMBERS_AT_ONCE = 2**23
"""Numbers that NumPy evaluates at once: 64 MiB."""


class Conditionals(NamedTuple):
    """At points x: log Σ_z γ(x, z), and for each of some coordinates the probabilities of its values given x.

    A point of zero density has no probabilities: zeros.
    """

    log_totals: np.ndarray
    probabilities: list[np.ndarray]


def conditionals(
    tables: Sequence[Tables], rows: np.ndarray, columns: Sequence[int], *, of_prior: bool = False
) -> Conditionals:
    """The conditional distributions of these columns at rows of all coordinates; with the prior for γ, if it is asked.

    Args:
        tables: those of every decision sequence.
        rows: points, with any values of the coordinates summed out.
        columns: some of the coordinates summed out.
        of_prior: whether the data are left out.
    """
    found: list[list[np.ndarray]] = []
    for block in batches(len(rows), sum(each.numbers for each in tables)):
        logs = [each.by_numpy(rows[block]) for each in tables]
        n = len(rows[block])
        totals = np.stack(
            [np.broadcast_to(log_total(t, log, of_prior), n) for t, log in zip(tables, logs, strict=True)]
        )
        log_sum = logsumexp(totals, axis=0)
        with np.errstate(invalid="ignore"):
            shares = np.exp(totals - log_sum)
        of_each = [marginals(t.plan, log.prior if of_prior else log.density, n)
                   for t, log in zip(tables, logs, strict=True)]  # fmt: skip
        parts = zip(shares, of_each, strict=True)
        mixed = [[share[:, None] * each[column] for column in columns] for share, each in parts]
        found.append([log_sum, *(np.nansum(each, axis=0) for each in zip(*mixed, strict=True))])
    log_totals, *probabilities = (np.concatenate(each) for each in zip(*found, strict=True))
    return Conditionals(log_totals, probabilities)


def log_total(tables: Tables, logs: Logs, of_prior: bool = False) -> np.ndarray:
    """log Σ_z γ of one decision sequence, or of its prior; minus infinity where its conditions fail."""
    likelihood = 0.0 if of_prior else logs.free_likelihood
    found = logs.free_prior + likelihood + log_sum_by_numpy(tables.plan, logs.prior if of_prior else logs.density)
    return np.where(logs.holds, found, -np.inf)


def batches(n: int, numbers: int) -> Iterator[slice]:
    """Batches of n points, each of which has so many numbers."""
    at_once = max(NUMBERS_AT_ONCE // max(numbers, 1), 1)
    for start in range(0, n, at_once):
        checkpoint()
        yield slice(start, min(start + at_once, n))
