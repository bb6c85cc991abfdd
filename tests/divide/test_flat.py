"""Calls that are written out once and repeated, against calls that are written out every time."""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch.divide import Density, Factors, finite_values, flat
from anabranch.divide.graph import Node
from elimination_cases import CASES, SPLIT


def content(factors: Factors) -> list:
    """Everything that the factors say: the equations with their constants, and the summands with their scopes."""
    equations = [
        None
        if equation is None
        else (
            equation.primitive.name,
            [int(x) if isinstance(x, Node) else np.asarray(x).tolist() for x in equation.inputs],
        )
        for equation in factors.graph.producers
    ]
    members = factors.scopes.members
    summands = [
        (int(s.node), s.part, s.name, s.coefficient, [members[n] for n in s.scopes.ravel()]) for s in factors.summands
    ]
    return [equations, summands, factors.constants]


@pytest.mark.parametrize("program", CASES)
def test_repeated_calls_are_those_written_out(program, monkeypatch):
    path = ab.find_paths(program, executions=20, split=SPLIT.get(program, {})).paths[0]
    columns = np.array([column for column, values in enumerate(finite_values(path)) if values is not None])
    for recording in path.recordings:
        density = recording.once(Density)
        repeated = content(Factors(density, columns))
        with monkeypatch.context() as changed:
            changed.setattr(flat, "_MAX_COMPARED", -1)
            np.testing.assert_equal(content(Factors(density, columns)), repeated)
