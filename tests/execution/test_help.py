"""Idle workers do a share of a visit, and of the executions of engines; the answer does not depend on it."""

import os
import signal
import time

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.divide import sharing
from anabranch.execution import processes
from anabranch.execution.crew import Crew
from anabranch.execution.remote import Channels, RemoteWorkers
from anabranch.limits import Limits
from bits import bits
from small_runs import SMALL


def by_python(y, seconds):
    """Two paths, run by the interpreter, which waits as a simulator does."""
    two = bool(ab.sample("two", dist.Bernoulli(0.5)))
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    s = float(ab.sample("s", dist.HalfNormal(1.0))) if two else 1.0
    time.sleep(seconds)
    ab.observe("y", dist.Normal(round(x, 3), 0.5 + s), y)


def straight(y, seconds):
    """One path alone."""
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    time.sleep(seconds)
    ab.observe("y", dist.Normal(round(x, 3), 1.0), y)


@pytest.fixture(scope="module")
def crew():
    """Two processes that have answered: those that still start do not help."""
    with ab.Processes(2) as executor:
        ab.infer(by_python, 0.5, 0.0, executor=executor, budget=100, engine=SMALL)
        yield executor


@pytest.fixture
def helps(monkeypatch):
    """The orders that processes were given."""
    given, send = [], processes._Process._send
    monkeypatch.setattr(sharing, "WORTH_SHARING", 0.0)  # in this process; in the others it takes 0.05 seconds

    def counting(self, *parts):
        send(self, *parts)
        if parts[0] == "help" and parts[2] is not None:
            given.append(self.pid)

    monkeypatch.setattr(processes._Process, "_send", counting)
    return given


ENGINES = [
    ab.engines.ImportanceSampling(),
    ab.engines.RandomWalkMH(chains=20),
    ab.engines.ParticleGibbs(particles=10, chains=4),
    ab.engines.SMC(),
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
def test_executions_of_an_engine_have_the_same_answer_by_several(engine, crew, helps):
    settings = {"engine": engine, "budget": 200, "tolerance": None}
    alone = bits(ab.infer(by_python, 0.5, 0.0, **settings))
    assert not helps
    assert bits(ab.infer(by_python, 0.5, 0.0, **settings, executor=crew)) == alone
    assert helps


@pytest.fixture
def requests(monkeypatch):
    """What workers ask for, by its kind."""
    kinds, answered = [], Crew.answered

    def counting(self, program, kind, request):
        kinds.append(kind)
        return answered(self, program, kind, request)

    monkeypatch.setattr(Crew, "answered", counting)
    return kinds


def test_one_large_path_has_the_same_answer_by_several(crew, requests):
    settings = {"engine": SMALL, "budget": 600, "tolerance": None}
    alone = bits(ab.infer(straight, 0.5, 0.0, **settings))
    assert bits(ab.infer(straight, 0.5, 0.002, **settings, executor=crew)) == alone
    assert "begin" in requests  # which comes from a worker


def test_actors_of_ray_help_each_other(monkeypatch, requests):
    pytest.importorskip("ray")
    settings = {"engine": SMALL, "budget": 600, "tolerance": None}
    alone = bits(ab.infer(straight, 0.5, 0.0, **settings))
    with ab.Ray(workers=2) as cluster:
        ab.infer(by_python, 0.5, 0.0, executor=cluster, budget=100, engine=SMALL)  # both have started then
        assert bits(ab.infer(straight, 0.5, 0.002, **settings, executor=cluster)) == alone
        monkeypatch.setattr(sharing, "WORTH_SHARING", 0.0)
        settings["engine"] = ab.engines.ImportanceSampling()
        alone = bits(ab.infer(by_python, 0.5, 0.0, **settings))
        assert bits(ab.infer(by_python, 0.5, 0.0, **settings, executor=cluster)) == alone
    assert "begin" in requests


def test_a_helper_that_is_killed_leaves_its_share(crew, helps, monkeypatch):
    send = processes._Process._send

    def killing(self, *parts):
        send(self, *parts)
        if parts[0] == "help" and len(helps) == 1:
            os.kill(self.pid, signal.SIGKILL)

    settings = {"engine": ab.engines.ImportanceSampling(), "budget": 200, "tolerance": None}
    alone = bits(ab.infer(by_python, 0.5, 0.0, **settings))
    monkeypatch.setattr(processes._Process, "_send", killing)
    assert bits(ab.infer(by_python, 0.5, 0.002, **settings, executor=crew)) == alone
    assert helps


class Worker:
    """The way to a worker that does nothing."""

    closed = False

    def close(self):
        self.closed = True


def test_who_was_reserved_is_free_again_where_nothing_came_of_it():
    workers = RemoteWorkers(Channels(3, Worker), Limits(), bytes)
    taken = [workers.channels.take("") for _ in range(2)]
    for each in taken:
        workers.channels.give_back(each)
    for _ in range(2):
        with Crew(workers, 2) as crew:
            assert crew.reserve_for("program") == 2
            assert not workers.channels.reserve(2)
    assert workers.channels.reserve(2) == taken


def test_a_worker_that_is_busy_when_all_are_closed_ends():
    channels = Channels(2, Worker)
    busy = channels.take("")
    channels.close()
    channels.give_back(busy)
    assert busy.closed
    assert channels.take("") is not busy


MAIN = os.getpid()


def fails_elsewhere(main):
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    if os.getpid() != main:
        raise ZeroDivisionError("by nothing")
    ab.observe("y", dist.Normal(round(x, 3), 1.0), 0.5)


def test_a_program_that_does_not_run_elsewhere_runs_here(crew, helps):
    settings = {"engine": ab.engines.ImportanceSampling(), "budget": 200, "tolerance": None}
    posterior = ab.infer(fails_elsewhere, MAIN, **settings, executor=crew)
    assert np.isfinite(posterior.log_evidence)
    assert len(helps) == 2  # after which nobody is asked


def test_the_time_limit_holds_where_others_help(crew, helps):
    began = time.monotonic()
    engine = ab.engines.ImportanceSampling()
    posterior = ab.infer(by_python, 0.5, 0.01, engine=engine, executor=crew, seconds=2.0, budget=10**6)
    assert "seconds are over" in posterior.run.stopped
    assert time.monotonic() - began < 60  # not for ever
