"""The ledger: what is entered, replaced and added up."""

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
    ledger, a, b, c = PathTable(), path("a"), path("b"), path("c")
    ledger.update(division(a, b))
    ledger.update(division(a, b, c))
    assert [(entry.path.signature, entry.number) for entry in ledger] == [("a", 0), ("b", 1), ("c", 2)]
    assert len(ledger) == 3
    assert ledger.solved == []
    assert ledger.log_evidence == -np.inf


def test_what_is_known_stays_when_nothing_changed():
    ledger, a = PathTable(), path("a")
    ledger.update(division(a))
    entry = ledger.entries["a"]
    entry.estimate, entry.visits = known(-1.0), 3
    ledger.update(division(a, path("b")))
    assert ledger.entries["a"] is entry


def test_a_path_of_another_form_starts_again_under_its_number():
    """Another path, or one more decision sequence that leads to it: its density is not what it was."""
    ledger, a = PathTable(), path("a")
    ledger.update(division(a, path("b")))
    entry = ledger.entries["a"]
    entry.estimate, entry.parent, entry.target.evaluations = known(-1.0), 0.4, 70
    a.recordings.append(None)
    ledger.update(division(a, path("b")))
    again = ledger.entries["a"]
    assert again is not entry
    assert (again.number, again.estimate, again.parent, again.visits) == (0, None, 0.4, 0)
    assert ledger.evaluations == ledger.written_off == 70


def test_a_path_that_is_gone_leaves_its_evaluations_behind():
    ledger = PathTable()
    ledger.update(division(path("a"), path("b")))
    ledger.entries["a"].target.evaluations = 30
    ledger.entries["b"].target.evaluations = 12
    ledger.update(division(path("c")))
    assert list(ledger.entries) == ["c"]
    assert ledger.evaluations == 42
    assert ledger.entries["c"].number == 2  # numbers seed the generators, so none is given twice


def test_evidence_and_weights_add_up():
    ledger = PathTable()
    ledger.update(division(path("a"), path("b"), path("c"), path("d")))
    for name, log_evidence in (("a", -1000.0), ("b", -1000.0 + np.log(3.0)), ("c", -np.inf)):
        ledger.entries[name].estimate = known(log_evidence)
    assert ledger.log_evidence == pytest.approx(-1000.0 + np.log(4.0))
    assert ledger.weights() == pytest.approx({"a": 0.25, "b": 0.75, "c": 0.0, "d": 0.0})
    assert len(ledger.solved) == 3


def test_without_mass_the_weights_are_zero():
    ledger = PathTable()
    ledger.update(division(path("a")))
    ledger.entries["a"].estimate = Estimate.nothing(1, 5, "test")
    assert ledger.log_evidence == -np.inf
    assert ledger.weights() == {"a": 0.0}


def test_executions_that_found_a_path_are_points_to_start_from():
    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if x > 1:
            ab.sample("z", dist.Normal(0.0, 1.0))

    found = ab.find_paths(program, executions=10)
    arrivals = found.explore(500, seed=1)
    ledger = PathTable()
    ledger.update(found, arrivals)
    for entry in ledger:
        points = entry.target.known
        assert len(points) > 0
        assert points.shape[1] == entry.path.dim
        assert entry.path.evaluate(points, compile=False).guard.all()
