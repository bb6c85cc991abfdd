"""Points (x, a) of traces and auxiliary variables together, one in each row of a population."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from anabranch.divide import Constraints
from anabranch.engines.traces import Key, Traces

__all__ = ["TRACE", "Columns", "bare", "lacking", "of_trace", "replaced"]

TRACE = "trace: "
"""The prefix of the model's sites, so that an auxiliary variable may have the name of a site."""


def of_trace(name: str) -> bool:
    """Whether a value belongs to the trace, and not to the auxiliary variables."""
    return name.startswith(TRACE)


def bare(name: str) -> str:
    """The name as the user wrote it."""
    return name.removeprefix(TRACE)


class Columns:
    """Values by name and shape, each in some of n rows, and zero in the others."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.values: dict[Key, np.ndarray] = {}
        self.present: dict[Key, np.ndarray] = {}

    @classmethod
    def of(cls, traces: Traces) -> Columns:
        """The values of traces, as part of a point."""
        out = cls(len(traces))
        out.values = {(TRACE + name, shape): values for (name, shape), values in traces.values.items()}
        out.present = {(TRACE + name, shape): rows for (name, shape), rows in traces.present.items()}
        return out

    def put(self, key: Key, rows: np.ndarray, values: np.ndarray) -> None:
        if key not in self.values:
            self.values[key], self.present[key] = np.zeros((self.n, *key[1])), np.zeros(self.n, bool)
        self.values[key][rows], self.present[key][rows] = values, True

    def part(self, *, trace: bool) -> Columns:
        """The trace, or the auxiliary variables, under the user's names."""
        out = Columns(self.n)
        for name, shape in self.values:
            if of_trace(name) is trace:
                out.values[bare(name), shape] = self.values[name, shape]
                out.present[bare(name), shape] = self.present[name, shape]
        return out

    def given(self, *, redraw_outside: bool = False) -> Constraints:
        return Constraints(self.values, self.present, redraw_outside=redraw_outside)

    def largest(self) -> np.ndarray:
        out = np.zeros(self.n)
        for key, values in self.values.items():
            absolute = np.abs(values).reshape(self.n, -1).max(axis=1, initial=0.0)
            out = np.maximum(out, np.where(self.present[key], absolute, 0.0))
        return out


def replaced(given: Columns, met: Columns | Traces) -> np.ndarray:
    """The rows in which a given value is outside the support, so that another was drawn instead."""
    out = np.zeros(given.n, bool)
    for key in given.values.keys() & met.values.keys():
        differs = (given.values[key] != met.values[key]).reshape(given.n, -1).any(axis=1)
        out |= differs & given.present[key] & met.present[key]
    return out


def lacking(one: Columns | Traces, other: Columns | Traces, rows: np.ndarray) -> Iterator[tuple[Key, int]]:
    """Values that one has and the other has not in some of the rows, each with the first such row."""
    for key, present in one.present.items():
        alone = present & rows
        if key in other.present:
            alone = alone & ~other.present[key]
        if alone.any():
            yield key, int(alone.argmax())
