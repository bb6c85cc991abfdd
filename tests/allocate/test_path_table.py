"""The path table: what is added, replaced and summed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.allocate import PathTable
from anabranch.allocate.path_table import total_evidence
from anabranch.conquer.estimate import Estimate


def path(signature):
    return SimpleNamespace(signature=signature, revision=0, dim=1, discrete=np.zeros(1, bool), has_gradient=True)


def division(*paths):
    return SimpleNamespace(by_signature={each.signature: each for each in paths})


def known(log_evidence, sd=0.1, **more):
    return replace(Estimate.nothing(1, 10, "test"), log_evidence=log_evidence, log_evidence_sd=sd, **more)


def unconfirmed(log_evidence, sd):
    return known(log_evidence, sd, is_confirmed=False)


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
    a.revision += 1
    table.update(division(a, path("b")))
    again = table.records["a"]
    assert again is not record
    assert (again.number, again.estimate, again.parent, again.visits) == (0, None, 0.4, 0)
    assert table.evaluations == table.written_off == 70


def test_a_path_whose_evidence_is_known_to_several_nats_is_doubtful():
    """Sweeps of tempering may scatter so much, while their particles are many."""
    table = PathTable()
    table.update(division(path("a")))
    record = table.records["a"]
    record.estimate = known(-60.0, 0.4, ess=640.0)
    assert not record.is_doubtful
    record.estimate = known(-60.0, 14.5, ess=640.0)
    assert record.is_doubtful


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
    assert list(table.weights().values()) == pytest.approx([0.25, 0.75, 0.0, 0.0])
    assert list(table.weights()) == list(table)
    assert len(table.solved) == 3


def test_without_mass_the_weights_are_zero():
    table = PathTable()
    table.update(division(path("a")))
    table.records["a"].estimate = Estimate.nothing(1, 5, "test")
    assert table.log_evidence == -np.inf
    assert list(table.weights().values()) == [0.0]


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


# The error of the sum -------------------------------------------------------------------------------------------------

HALF = np.log(0.5)


def test_independent_errors_add_up_in_quadrature():
    total = total_evidence([known(HALF, 0.06), known(HALF, 0.08)])
    assert total.log_evidence == pytest.approx(0.0)
    assert total.weights == pytest.approx([0.5, 0.5])
    assert total.path_sds == pytest.approx([0.06, 0.08])
    assert total.log_evidence_sd == pytest.approx(0.05)


def test_errors_that_nobody_has_confirmed_add_up_as_they_are():
    total = total_evidence([unconfirmed(HALF, 0.06), unconfirmed(HALF, 0.08)])
    assert total.path_sds == pytest.approx([0.06, 0.08])
    assert total.log_evidence_sd == pytest.approx(0.07)
    quarters = [known(np.log(0.25), sd) for sd in (0.3, 0.4)]
    mixed = total_evidence([*quarters, *(unconfirmed(np.log(0.25), sd) for sd in (0.2, 0.28))])
    assert mixed.log_evidence_sd == pytest.approx(0.25 * np.hypot(0.5, 0.48))


def test_many_small_unconfirmed_paths_are_no_more_certain_than_one():
    number = 400
    total = total_evidence([unconfirmed(-np.log(number), 0.05)] * number)
    assert total.log_evidence_sd == pytest.approx(0.05)
    assert total_evidence([known(-np.log(number), 0.05)] * number).log_evidence_sd == pytest.approx(0.05 / 20)


def test_corrections_of_other_paths_raise_errors_that_nobody_has_confirmed():
    corrected = [known(np.log(0.25), 0.01, correction=by) for by in (0.3, -0.4)]
    total = total_evidence([*corrected, unconfirmed(HALF, 0.05)])
    root_mean_square = np.sqrt((0.3**2 + 0.4**2) / 2)
    assert total.path_sds == pytest.approx([0.01, 0.01, root_mean_square])
    expected = np.hypot(0.25 * 0.01 * np.sqrt(2), 0.5 * root_mean_square)
    assert total.log_evidence_sd == pytest.approx(expected)
    large = total_evidence([*corrected, unconfirmed(HALF, 2.0)])
    assert large.path_sds == pytest.approx([0.01, 0.01, 2.0])


def test_what_was_never_corrected_raises_nothing():
    never = [known(HALF, 0.01, correction=by) for by in (np.nan, np.inf)]
    total = total_evidence([*never, unconfirmed(-1.0, 0.05)])
    assert total.path_sds == pytest.approx([0.01, 0.01, 0.05])


def test_paths_without_an_estimate_or_without_mass_add_no_error():
    nothing = Estimate.nothing(1, 5, "test")
    total = total_evidence([None, known(0.0, 0.1), nothing, replace(nothing, is_confirmed=False)])
    assert total.weights == pytest.approx([0.0, 1.0, 0.0, 0.0])
    assert total.log_evidence_sd == pytest.approx(0.1)
    assert total_evidence([]).log_evidence == total_evidence([None]).log_evidence == -np.inf
    assert total_evidence([nothing]).log_evidence_sd == np.inf
