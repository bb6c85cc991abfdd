"""The evidence from paths drawn from tables: against the sum over all paths, which is known here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from anabranch.search.table_draws import TableDraws, evidence_of_draws

RNG = np.random.default_rng(5)
PATHS = 60
EVIDENCE = RNG.dirichlet(np.full(PATHS, 0.3))
REPETITIONS = 2_000


@dataclass(eq=False)
class Record:
    """A path of which all that counts is known."""

    number: int

    @property
    def path(self) -> int:
        return self.number

    @property
    def log_evidence(self) -> float:
        return float(np.log(EVIDENCE[self.number]))


@dataclass
class Tables:
    """Draws each path with its probability."""

    probabilities: np.ndarray

    def log_probability(self, path: int) -> float:
        return float(np.log(self.probabilities[path]))


RECORDS = [Record(number) for number in range(PATHS)]


def near(noise: float) -> Tables:
    """Tables like those of a fit: the shares of the mass, each wrong by a factor, and smoothed."""
    wrong = EVIDENCE * np.exp(noise * RNG.standard_normal(PATHS))
    return Tables(0.9 * wrong / wrong.sum() + 0.1 / PATHS)


def estimates(tables: list[Tables], times: int, known: int) -> tuple[np.ndarray, np.ndarray]:
    """Ẑ (of which the truth is 1) and its claimed error, many times."""
    found = []
    for _ in range(REPETITIONS):
        draws = [
            TableDraws(each, 0, set(RNG.choice(PATHS, times, p=each.probabilities).tolist()), times) for each in tables
        ]
        steps = RNG.choice(PATHS, 400, p=EVIDENCE)
        estimate = evidence_of_draws(draws, RECORDS[:known], RECORDS[known:], steps)
        found.append((np.exp(estimate.log_evidence), estimate.sd))
    values, errors = np.array(found).T
    return values, errors


@pytest.mark.parametrize(("noise", "times", "known"), [(0.3, 40, 20), (1.0, 40, 20), (1.0, 10, 0), (2.0, 100, 40)])
def test_it_is_unbiased_and_its_error_is_honest(noise, times, known):
    values, errors = estimates([near(noise), near(noise)], times, known)
    assert abs(values.mean() - 1) < 4 * values.std() / np.sqrt(REPETITIONS)
    assert values.std() < 1.1 * np.sqrt((errors**2).mean())
    assert np.mean(np.abs(np.log(values)) < 2 * errors) > 0.9


def test_paths_that_are_always_drawn_make_it_exact():
    even = Tables(np.full(PATHS, 1 / PATHS))
    draws = [TableDraws(even, 0, set(range(PATHS)), 100 * PATHS)]
    estimate = evidence_of_draws(draws, [], RECORDS, np.arange(PATHS))
    assert estimate.log_evidence == pytest.approx(0.0, abs=1e-12)
    assert estimate.sd < 1e-3


def test_mass_that_is_hardly_ever_drawn_is_in_the_error():
    """The walkers are where the tables never lead to."""
    away = np.where(np.arange(PATHS) == 0, 1e-9, 1.0)
    tables = Tables(away / away.sum())
    draws = [TableDraws(tables, 0, set(range(1, PATHS)), 50 * PATHS)]
    steps = np.zeros(100, int)
    assert evidence_of_draws(draws, [], RECORDS, steps).sd > 1
    assert evidence_of_draws(draws, [RECORDS[0]], RECORDS[1:], steps).sd < 0.1


def test_without_draws_there_is_none():
    assert evidence_of_draws([TableDraws(near(0.3), 0)], RECORDS[:5], RECORDS[5:], np.zeros(4, int)) is None
