"""BLAS has one thread while the library works, and the workers are as many as was said."""

import os
import threading

import numpyro.distributions as dist
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import anabranch as ab
from anabranch.cores import available_cores, one_blas_thread
from anabranch.limits import Limits
from anabranch.workers import Workers


def blas_threads():
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


@pytest.fixture
def two_threads():
    """Outside the library BLAS has two threads."""
    with threadpool_limits(limits=2, user_api="blas"):
        yield
        assert set(blas_threads()) == {2}


@pytest.mark.usefixtures("two_threads")
def test_blas_has_one_thread_meanwhile_and_as_many_as_before_afterwards():
    with one_blas_thread():
        with one_blas_thread():
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {1}


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("engine", [None, ab.engines.ImportanceSampling()], ids=["DCC", "ImportanceSampling"])
def test_blas_has_one_thread_while_a_program_is_inferred(engine):
    met = []

    def program(y):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        met.append(set(blas_threads()))
        ab.observe("y", dist.Normal(x, 1.0), y)

    ab.infer(program, 0.5, engine=engine, budget=2_000, progress=False)
    assert met
    assert set.union(*met) == {1}
    met.clear()
    ab.find_paths(program, 0.5)
    assert set.union(*met) == {1}


def test_as_many_workers_work_at_once_as_was_said():
    together = threading.Barrier(3)
    with Workers(3, Limits()) as workers:
        assert workers.map(lambda _: together.wait(timeout=30) >= 0, range(3)) == [True] * 3
        one_too_many = threading.Barrier(4)
        with pytest.raises(threading.BrokenBarrierError):
            workers.map(lambda _: one_too_many.wait(timeout=0.3), range(4))


def test_a_run_has_as_many_threads_as_it_was_given_workers():
    numbers = set()

    class Watching(ab.DCC):
        def run(self, division, limits, seed, executor, *others):
            numbers.add(executor.workers)
            return super().run(division, limits, seed, executor, *others)

    def program(y):
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), y)

    ab.infer(program, 0.5, engine=Watching(), budget=2_000, progress=False)
    ab.infer(program, 0.5, engine=Watching(), budget=2_000, progress=False, workers=3)
    assert numbers == {available_cores(), 3}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system does not bind processes to cores")
def test_cores_that_the_process_may_not_use_do_not_count():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert available_cores() == len(allowed)
