"""The posterior probabilities of decisions: the values of sites that are fixed in paths, and deterministics of them.

A path has one value of each, so that the probability of a value v is a sum of path weights, and takes no draws:

    P(v) = Σ_k w_k f_k,    f_k = 1 if path k has the value, else 0.

To first order, with relative errors s_k of the evidences (see `evidence.py` for those that add up as they are),

    sd(P)² = (1 − P)² Σ_{k: f_k = 1} w_k² s_k² + P² Σ_{k: f_k = 0} w_k² s_k².

Paths that may have more evidence than was estimated add what P may be off by. For an engine that samples whole
executions, the error comes from its blocks of draws (`blocks.py`).
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from anabranch.allocate.path_table import total_evidence
from anabranch.combine.blocks import blocks_of, standard_error
from anabranch.combine.evidence import Evidence
from anabranch.combine.probability import key_of
from anabranch.combine.solution import Solution

__all__ = ["ValueProbability", "probabilities_of_decisions", "with_alternatives"]


class ValueProbability(NamedTuple):
    """The probability of one value of a decision, with its error; the value None stands for executions without it."""

    name: str
    value: Any
    probability: float
    probability_sd: float


def probabilities_of_decisions(solutions: Sequence[Solution], evidence: Evidence) -> list[ValueProbability]:
    """Each value of each decision, in the order in which the paths have them, the most probable value first."""
    error = _ErrorByPaths(solutions, evidence) if blocks_of(solutions) is None else _ErrorByBlocks(solutions, evidence)
    out = []
    for name, members in _by_value(solutions, evidence.weights).items():
        rows = []
        for value, numbers in members.items():
            probability = min(float(evidence.weights[numbers].sum()), 1.0)
            rows.append(ValueProbability(name, value, probability, error.of(np.array(numbers), probability)))
        out += sorted(rows, key=lambda row: -row.probability)
    return out


def _by_value(solutions: Sequence[Solution], weights: np.ndarray) -> dict[str, dict[Any, list[int]]]:
    """For each name that is constant on every path that has it, the paths with each value."""
    found: dict[str, dict[Any, list[int]]] = {}
    varying: set[str] = set()
    with_mass = [k for k, weight in enumerate(weights) if weight > 0]
    for k in with_mass:
        path = solutions[k].path
        constants = path.constants
        varying.update(set(path.names) - constants.keys())
        for name, value in constants.items():
            found.setdefault(name, {}).setdefault(key_of(value), []).append(k)
    for members in found.values():
        having = {k for numbers in members.values() for k in numbers}
        if len(having) < len(with_mass):
            members[None] = [k for k in with_mass if k not in having]
    return {name: members for name, members in found.items() if name not in varying}


class _ErrorByPaths:
    """The error of a sum of path weights, if each path has an estimate of its own."""

    def __init__(self, solutions: Sequence[Solution], evidence: Evidence) -> None:
        estimates = [solution.estimate for solution in solutions]
        total, weights, sds, self.sd = total_evidence(estimates)
        self.errors = weights * np.where(weights > 0, sds, 0.0)
        self.together = np.array([each is not None and not each.is_confirmed for each in estimates])
        possible = np.exp(np.minimum([solution.log_possible - total for solution in solutions], 700.0))
        self.doubt = np.maximum(possible - weights, 0.0)
        self.whole = 1 / (1 - evidence.doubtful_share) if evidence.doubtful_share < 1 else np.inf

    def of(self, numbers: np.ndarray, probability: float) -> float:
        if not np.isfinite(self.sd) or not np.isfinite(self.whole):
            return np.inf if 0 < probability < 1 else 0.0
        mine = np.zeros(len(self.errors), bool)
        mine[numbers] = True
        sampled = np.hypot((1 - probability) * self._sum(mine), probability * self._sum(~mine))
        shift = (probability + self.doubt[numbers].sum()) / self.whole - probability
        return float(np.hypot(sampled, shift))

    def _sum(self, some: np.ndarray) -> float:
        """The error of the evidence of some paths: of those that no second method has confirmed, errors add up."""
        independent = self.errors[some & ~self.together]
        return float(np.hypot(np.sqrt(independent @ independent), self.errors[some & self.together].sum()))


class _ErrorByBlocks:
    """The error of a sum of path weights, if all paths come from the same executions."""

    def __init__(self, solutions: Sequence[Solution], evidence: Evidence) -> None:
        blocks = blocks_of(solutions)
        assert blocks is not None
        self.count = blocks.count
        self.shares = [w * s.weights for s, w in zip(solutions, evidence.weights, strict=True)]
        self.blocks = blocks.of_draws
        self.total = self._sums(np.arange(len(solutions)))

    def _sums(self, numbers: np.ndarray) -> np.ndarray:
        sums = np.zeros(self.count)
        for k in numbers:
            np.add.at(sums, self.blocks[k], self.shares[k])
        return sums

    def of(self, numbers: np.ndarray, probability: float) -> float:
        sums = self._sums(numbers) - probability * self.total
        return float(standard_error(np.asarray(sums @ sums), self.count))


def with_alternatives(rows: Sequence[ValueProbability]) -> Iterator[list[ValueProbability]]:
    """The rows of each decision of which more than one value was found."""
    by_name: dict[str, list[ValueProbability]] = {}
    for row in rows:
        by_name.setdefault(row.name, []).append(row)
    return (each for each in by_name.values() if len(each) > 1)
