"""The error of the expectation that a run is asked for, and the part of each path in it (paper, section 6).

In the terms of `combine.expectation`, the part of path k in the error of μ = E[f] and its importance for μ are

    e_k = w_k √(c_k Σ_i v_ki² (g_ki − ḡ_k)² + ḡ_k² s_k²),    i_k = w_k √(Σ_i v_ki g_ki²) / Σ_j w_j √(Σ_i v_ji g_ji²).

The allocation of evaluations takes e_k where that for the evidence takes w_k s_k, and i_k where it takes w_k: a path on
which f is close to μ, or that lacks what f reads, gets few, however heavy it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.allocate import PathRecord
from anabranch.combine.expectation import mean_and_error, sampling_error
from anabranch.combine.parts import Part, all_draws, called, numbers
from anabranch.combine.solution import Solution
from anabranch.conquer import Estimate

if TYPE_CHECKING:
    from anabranch.search.state import SearchState

__all__ = ["ExpectationError", "ExpectationErrors"]


@dataclass(frozen=True)
class ExpectationError:
    """μ with its sampling error and that error with the mass that may be elsewhere; e_k and i_k of each path."""

    mean: Any
    sampling: float
    total: float
    of_paths: dict[PathRecord, float]
    importance: dict[PathRecord, float]


@dataclass
class ExpectationErrors:
    """Computes the error after each round; f is called once at each draw of an estimate."""

    function: Callable[[Any], Any]
    _values: dict[PathRecord, tuple[Estimate, Estimate, list[Any]]] = field(default_factory=dict)
    _last: tuple[list[Estimate | None], ExpectationError | None] | None = None

    def of(self, state: SearchState) -> ExpectationError | None:
        """The error so far; None while no draw has what f reads."""
        estimates = [record.estimate for record in state.table]
        if (
            self._last is None
            or len(self._last[0]) != len(estimates)
            or any(one is not other for one, other in zip(self._last[0], estimates, strict=True))
        ):
            self._last = estimates, self._computed(state)
        return self._last[1]

    def _computed(self, state: SearchState) -> ExpectationError | None:
        from anabranch.search.combining import evidence_of, solution_of

        evidence, walked = evidence_of(state), state.settings.walking.estimate(state)
        weighted = zip(state.table, evidence.weights, strict=True)
        with_draws = [(k, *each) for k, each in enumerate(weighted) if each[1] > 0 and _has_draws(each[0])]
        values = {record: self._values_on(state, record) for _, record, _ in with_draws}
        shape = next((np.shape(value) for _, found in values.values() for value in found if value is not None), None)
        if shape is None:
            return None
        parts = {}
        for k, record, weight in with_draws:
            estimate, found = values[record]
            solution = solution_of(record, estimate, {}, walked)
            filled = np.array([np.zeros(shape) if value is None else value for value in found])
            present = np.array([value is not None for value in found])
            parts[record] = Part(k, solution, float(weight), *all_draws(solution), present, filled)
        return _error(parts, evidence.doubtful_share)

    def _values_on(self, state: SearchState, record: PathRecord) -> tuple[Estimate, list[Any]]:
        """The estimate of a path with all its variables, and f at its draws."""
        known = self._values.get(record)
        if known is None or known[0] is not record.estimate:
            assert record.estimate is not None
            whole = state.settings.combining.with_all_variables(state, record)
            assert whole is not None
            values = called(self.function, Solution(record.path, whole), whole.points, {}, numbers)
            self._values[record] = known = record.estimate, whole, values
        return known[1], known[2]


def _has_draws(record: PathRecord) -> bool:
    return record.estimate is not None and len(record.estimate.points) > 0


def _error(parts: dict[PathRecord, Part], doubtful_share: float) -> ExpectationError:
    listed = list(parts.values())
    mean, sampling = mean_and_error(listed, None, 0.0)
    _, total = mean_and_error(listed, None, doubtful_share)
    having = sum(part.weight * part.weights[part.present].sum() for part in listed)
    errors, sizes = {}, {}
    for record, part in parts.items():
        present = part.present.reshape(-1, *[1] * np.ndim(mean))
        influence = np.where(present, part.values - mean, 0.0) / having
        errors[record] = float(np.max(sampling_error([part], [influence], None)))
        sizes[record] = part.weight * float(np.sqrt(np.max(np.tensordot(part.weights, influence**2, 1))))
    whole = sum(sizes.values())
    importance = {record: size / whole if whole > 0 else 0.0 for record, size in sizes.items()}
    return ExpectationError(mean, float(np.max(sampling)), float(np.max(total)), errors, importance)
