"""Points (x, a) of traces and auxiliary variables together, one in each row of a population."""

from collections.abc import Iterator

import numpy as np

from anabranch.engines.traces import Key, Traces

__all__ = ["TRACE", "bare", "lacking", "largest", "of_trace", "part", "point_of", "replaced"]

TRACE = "trace: "
"""The prefix of the model's sites, so that an auxiliary variable may have the name of a site."""


def of_trace(name: str) -> bool:
    """Whether a value belongs to the trace, and not to the auxiliary variables."""
    return name.startswith(TRACE)


def bare(name: str) -> str:
    """The name as the user wrote it."""
    return name.removeprefix(TRACE)


def point_of(traces: Traces) -> Traces:
    """The values of traces, as part of a point."""
    out = Traces.empty(traces.paths, len(traces))
    out.values = {(TRACE + name, shape): values for (name, shape), values in traces.values.items()}
    out.present = {(TRACE + name, shape): rows for (name, shape), rows in traces.present.items()}
    return out


def part(point: Traces, *, trace: bool) -> Traces:
    """The trace, or the auxiliary variables, under the user's names."""
    out = Traces.empty(point.paths, len(point))
    for name, shape in point.values:
        if of_trace(name) is trace:
            out.values[bare(name), shape] = point.values[name, shape]
            out.present[bare(name), shape] = point.present[name, shape]
    return out


def largest(point: Traces) -> np.ndarray:
    """The largest absolute value in each row."""
    out = np.zeros(len(point))
    for key, values in point.values.items():
        absolute = np.abs(values).reshape(len(out), -1).max(axis=1, initial=0.0)
        out = np.maximum(out, np.where(point.present[key], absolute, 0.0))
    return out


def replaced(given: Traces, met: Traces) -> np.ndarray:
    """The rows in which a given value is outside the support, so that another was drawn instead."""
    out = np.zeros(len(given), bool)
    for key in given.values.keys() & met.values.keys():
        differs = (given.values[key] != met.values[key]).reshape(len(out), -1).any(axis=1)
        out |= differs & given.present[key] & met.present[key]
    return out


def lacking(one: Traces, other: Traces, rows: np.ndarray) -> Iterator[tuple[Key, int]]:
    """Values that one has and the other has not in some of the rows, each with the first such row."""
    for key, present in one.present.items():
        alone = present & rows
        if key in other.present:
            alone = alone & ~other.present[key]
        if alone.any():
            yield key, int(alone.argmax())
