"""The programs of the corpus: their paths are as many as there should be, and have NumPyro's density."""

import functools

import numpy as np
import pytest

import anabranch as ab
from corpus import CASES
from helpers import (
    batch,
    indicator,
    interpreted,
    named_log_density,
    numpyro_coordinates,
    numpyro_log_density,
    numpyro_unconstrained_log_density,
    some_rows,
)

pytestmark = pytest.mark.one_in(12)

EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@functools.cache
def explored(name):
    """A division and some executions, the same for every test that looks at them."""
    case = next(case for case in CASES if case.name == name)
    division = ab.find_paths(case.program, *case.args, executions=1000, seed=0)
    return division, division.explore(40, seed=1)


@EACH
def test_number_of_paths(case):
    division, _ = explored(case.name)
    assert case.paths is None or len(division) == case.paths
    assert not any(path.interpreted for path in division)
    assert 0.8 < division.prior_mass_found < 1 + 1e-9
    assert division.prior_mass_truncated == 0


@EACH
def test_python_runs_once_per_decision_sequence(case):
    division, _ = explored(case.name)
    assert division.python_runs == sum(len(path.recordings) for path in division)


@EACH
def test_known_executions_run_no_python(case):
    division, executions = explored(case.name)
    runs, paths = division.python_runs, len(division)
    for group in executions:
        values = group.values()
        [again] = division.route(values)
        assert again.path is group.path
        assert np.array_equal(np.sort(again.members), np.arange(len(group.members)))
        for name, value in again.values().items():
            assert np.array_equal(value, values[name][again.members])
    assert (division.python_runs, len(division)) == (runs, paths)


@EACH
def test_values_and_points_and_back(case):
    _, executions = explored(case.name)
    assert sum(len(group.members) for group in executions) == 40
    for group in executions:
        values = group.values()
        points = group.path.points(values)
        assert points.shape == (len(group.members), group.path.dim)
        assert group.path.evaluate(points, compile=False).guard.all()
        again = group.path.values(points)
        assert again.keys() == values.keys() == set(group.path.addresses)
        for name, value in values.items():
            assert again[name].dtype == value.dtype
            np.testing.assert_allclose(again[name], value, rtol=1e-9, atol=1e-9)


@EACH
@pytest.mark.parametrize(("of_each", "at_most"), [(1, 3), pytest.param(2, 6, marks=pytest.mark.slow)])
def test_density_is_numpyro_s(case, of_each, at_most):
    _, executions = explored(case.name)
    for path, values in some_rows(executions, of_each, at_most):
        points = path.points(batch(values))
        values = {name: value[0] for name, value in path.values(points).items()}
        expected = numpyro_log_density(case.program, case.args, values)
        assert named_log_density(path, points)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@EACH
def test_coordinates_and_their_density_are_numpyro_s(case):
    _, executions = explored(case.name)
    for path, values in some_rows(executions, of_each=1, at_most=2):
        [point] = path.points(batch(values))
        coordinates = numpyro_coordinates(case.program, case.args, values)
        for site in path.sites:
            if site.columns is not None:
                expected = values[site.name] if site.discrete else coordinates[site.name]
                np.testing.assert_allclose(point[site.columns], np.ravel(expected), rtol=1e-9, atol=1e-9)
        expected = numpyro_unconstrained_log_density(case.program, case.args, values, coordinates)
        evaluation = path.evaluate(point[None], compile=False)
        assert evaluation.log_density[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@EACH
def test_compiled_density_is_the_host_s(case):
    _, executions = explored(case.name)
    group = max(executions, key=lambda group: len(group.members))
    points = group.path.points(group.values())
    compiled, host = group.path.evaluate(points), group.path.evaluate(points, compile=False)
    assert compiled.guard.all()
    assert host.guard.all()
    for part in ("log_prior", "log_likelihood", "log_jacobian", "log_density"):
        np.testing.assert_allclose(getattr(compiled, part), getattr(host, part), rtol=1e-10, atol=1e-10)


@EACH
def test_every_execution_is_in_one_path(case):
    division, executions = explored(case.name)
    for path, values in some_rows(executions, of_each=1, at_most=4):
        assert [other for other in division if indicator(other, values)] == [path]


@EACH
def test_interpreted_path_is_the_same(case):
    """The interpreter finds the same path for an execution, with the same density."""
    _, executions = explored(case.name)
    slowly = interpreted(case.program, *case.args)
    for path, values in some_rows(executions, of_each=1, at_most=3):
        [execution] = slowly.route(batch(values))
        assert execution.path.signature == path.signature
        points = path.points(batch(values))
        np.testing.assert_allclose(execution.path.points(batch(values)), points, rtol=1e-10, atol=1e-10)
        expected = execution.path.evaluate(points)
        assert expected.guard.all()
        found = path.evaluate(points, compile=False)
        for part in ("log_prior", "log_likelihood", "log_jacobian"):
            np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-10, atol=1e-10)
