"""How points are evaluated is decided by counting: on the host until the compilation would have paid."""

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.conquer import PathTarget
from anabranch.conquer.target import TargetSettings, Way, Ways
from anabranch.conquer.target_state import restored, state_of_target
from anabranch.divide import HostCost, dispatch
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program
from bits import bits

COST = HostCost(calls=100, numbers=2_000, operations=50)


@pytest.fixture(autouse=True)
def nothing_is_compiled(monkeypatch):
    """What other tests have compiled is not there: compilations are counted."""
    monkeypatch.setattr(dispatch, "_functions", dispatch._Functions())


def mixture_path(K):
    return rebuild(Program(programs.mixture, (programs.mixture_data(),)), [[np.array(K - 1)]])


def test_a_gradient_is_compiled_once_the_host_has_spent_as_much():
    ways = Ways(TargetSettings())
    calls = COST.compilation // COST.of(64)
    assert calls > 10
    assert not any(ways.compiles_gradient(64, COST) for _ in range(calls))
    assert all(ways.compiles_gradient(64, COST) for _ in range(3))
    assert ways.compiles_gradient(1, COST)


@pytest.mark.parametrize(("above", "compiles"), [(0.0, True), (100.0, False)])
def test_the_share_of_the_host_is_a_setting(above, compiles):
    ways = Ways(TargetSettings(compile_gradient_above=above))
    assert ways.compiles_gradient(10 * COST.compilation // COST.of(1), COST) == compiles


def test_what_numpy_cannot_compute_is_compiled_at_once():
    ways = Ways(TargetSettings())
    assert ways.compiles_gradient(1, None)


def test_a_call_takes_time_however_few_its_points():
    assert COST.of(1) > 100_000
    assert COST.of(COST.block + 1) - COST.of(COST.block) > 100_000
    assert COST.of(0) == 0


def test_the_density_itself_is_compiled_when_more_points_came_to_the_gradient():
    ways = Ways(TargetSettings(compile_plain_above=1_000))
    ways.is_differentiated = True
    assert [ways.next(400) for _ in range(3)] == [Way.GRADIENT, Way.GRADIENT, Way.PLAIN]


def test_nothing_is_compiled_for_few_gradients_and_one_function_for_many():
    path = mixture_path(6)
    target, points = (
        PathTarget(path, settings=TargetSettings(compile_gradient_above=0.05)),
        path.prior(50, seed=0).points,
    )
    gradients = []
    backend = path._backend
    while not backend._gradient.compilations:
        gradients.append(target.differentiate(points)[1])
        target.evaluate(points)
    assert 5 < len(gradients) < 200
    np.testing.assert_allclose(gradients[-1], gradients[0], rtol=1e-10)
    assert backend._function.compilations == 0


def test_the_counts_travel_with_the_state_of_a_target():
    path = mixture_path(3)
    points = path.prior(60, seed=0).points
    settings = TargetSettings(compile_gradient_above=0.02)
    one = PathTarget(path, settings=settings)
    for _ in range(3):
        one.differentiate(points)
    other = restored(PathTarget(mixture_path(3), settings=settings), state_of_target(one), None)
    assert other.ways.counts == one.ways.counts
    for _ in range(40):
        assert (one.differentiate(points)[1] == other.differentiate(points)[1]).all()
    assert path._backend._gradient.compilations == 1


def several(y):
    k = int(ab.sample("k", dist.Categorical(np.ones(3) / 3)))
    x = [ab.sample(f"x{i}", dist.StudentT(3.0, 0.0, 1.0)) for i in range(k + 1)]
    ab.observe("y", dist.StudentT(4.0, sum(x), 0.5), y)


def test_what_the_process_has_compiled_before_changes_no_bit():
    """The second run finds the gradients compiled that the first one compiled late."""
    answers = [bits(ab.infer(several, 1.0, budget=30_000, workers=workers)) for workers in (1, 1, 3)]
    assert answers[0] == answers[1] == answers[2]
