"""The path table: what is added, replaced and summed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.allocate import PathTable
from anabranch.conquer.estimate import Estimate


def path(signature, sequences=1):
    return SimpleNamespace(
        signature=signature, recordings=[None] * sequences, dim=1, discrete=np.zeros(1, bool), has_gradient=True
    )


def division(*paths):
    return SimpleNamespace(by_signature={each.signature: each for each in paths})


def known(log_evidence, sd=0.1):
    return replace(Estimate.nothing(1, 10, "test"), log_evidence=log_evidence, log_evidence_sd=sd)


def test_paths_are_numbered_in_the_order_of_discovery():
    table, a, b, c = PathTable(), path("a"), path("b"), path("c")
    table.update(division(a, b))
    table.update(division(a, b, c))
    assert [(record.path.signature, record.number) for record in table] == [("a", 0), ("b", 1), ("c", 2)]
    assert len(table) == 3
    assert table.solved == []
    assert table.log_evidence == -np.inf


def test_what_is_known_stays_when_nothing_changed():
    table, a = PathTable(), path("a")
    table.update(division(a))
    record = table.records["a"]
    record.estimate, record.visits = known(-1.0), 3
    table.update(division(a, path("b")))
    assert table.records["a"] is record


def test_a_path_of_another_form_starts_again_under_its_number():
    """Another path, or one more decision sequence that leads to it: its density is not what it was."""
    table, a = PathTable(), path("a")
    table.update(division(a, path("b")))
    record = table.records["a"]
    record.estimate, record.parent = known(-1.0), 0.4
    record.target.charge(70)
    a.recordings.append(None)
    table.update(division(a, path("b")))
    again = table.records["a"]
    assert again is not record
    assert (again.number, again.estimate, again.parent, again.visits) == (0, None, 0.4, 0)
    assert table.evaluations == table.written_off == 70


def test_a_path_that_is_gone_leaves_its_evaluations_behind():
    table = PathTable()
    table.update(division(path("a"), path("b")))
    table.records["a"].target.charge(30)
    table.records["b"].target.charge(12)
    table.update(division(path("c")))
    assert list(table.records) == ["c"]
    assert table.evaluations == 42
    assert table.records["c"].number == 2  # numbers seed the generators, so none is given twice


def test_evidence_and_weights_add_up():
    table = PathTable()
    table.update(division(path("a"), path("b"), path("c"), path("d")))
    for name, log_evidence in (("a", -1000.0), ("b", -1000.0 + np.log(3.0)), ("c", -np.inf)):
        table.records[name].estimate = known(log_evidence)
    assert table.log_evidence == pytest.approx(-1000.0 + np.log(4.0))
    assert table.weights() == pytest.approx({"a": 0.25, "b": 0.75, "c": 0.0, "d": 0.0})
    assert len(table.solved) == 3


def test_without_mass_the_weights_are_zero():
    table = PathTable()
    table.update(division(path("a")))
    table.records["a"].estimate = Estimate.nothing(1, 5, "test")
    assert table.log_evidence == -np.inf
    assert table.weights() == {"a": 0.0}


def test_executions_that_found_a_path_are_points_to_start_from():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if x > 1:
            ab.sample("z", dist.Normal(0.0, 1.0))

    found = ab.find_paths(program, executions=10)
    arrivals = found.explore(500, seed=1)
    table = PathTable()
    table.update(found, arrivals)
    for record in table:
        points = record.target.known
        assert len(points) > 0
        assert points.shape[1] == record.path.dim
        assert record.path.evaluate(points, compile=False).guard.all()
