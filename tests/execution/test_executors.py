"""The same answer from every executor; and a worker that ends is replaced, a path that ends workers given up."""

import os
import re
import resource
import signal
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import errors
from anabranch.conquer import HMC
from anabranch.execution import processes
from anabranch.execution.remote import Channels
from bits import bits
from exact import named
from small_runs import SMALL, coins, counts


@pytest.fixture(scope="module")
def two_processes(request):
    """Two processes for all tests of this file: each takes seconds to start."""
    with pytest.MonkeyPatch.context() as patch:
        request.getfixturevalue("session_compiles_quickly")(patch)
        with ab.Processes(2) as executor:
            yield executor


@pytest.fixture(scope="module")
def session_compiles_quickly():
    from conftest import OPTIMISED, QUICK_TO_COMPILE

    def set_up(patch):
        if not OPTIMISED:
            patch.setenv("XLA_FLAGS", f"{QUICK_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')}".strip())
            patch.setenv("NPROC", "1")

    return set_up


def by_python(y):
    """Run by the interpreter."""
    x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
    ab.observe("y", dist.Normal(round(x, 3), 1.0), y)


RUNS = {
    "coins": (coins, (np.array([7.0, 9.0]),), {"budget": 8_000, "engine": SMALL}),
    "counts": (counts, (np.array([1.2, 0.1]),), {"budget": 4_000, "engine": SMALL}),
    "chains": (coins, (np.array([7.0]),), {"budget": 4_000, "engine": ab.DCC(strategy=HMC(warmup=20), executions=200)}),
    "interpreter": (by_python, (0.5,), {"budget": 300, "engine": SMALL}),
    "barrier": (named("barrier").program, named("barrier").args, {"budget": 8_000, "engine": SMALL}),
}


def infer(name, **settings):
    program, data, own = RUNS[name]
    return ab.infer(program, *data, **{"tolerance": None, **own, **settings})


@pytest.mark.parametrize("name", RUNS)
def test_the_same_answer_from_threads_and_processes(name, two_processes):
    one = bits(infer(name, executor=ab.Threads(1)))
    assert bits(infer(name, executor=ab.Threads(2))) == one
    assert bits(infer(name, executor=two_processes)) == one


@pytest.mark.parametrize("name", ["coins", "counts"])
def test_the_same_answer_from_ray(name, ray_cluster):
    assert bits(infer(name, executor=ray_cluster)) == bits(infer(name, workers=1))


@pytest.fixture(scope="module")
def ray_cluster(request):
    pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        request.getfixturevalue("session_compiles_quickly")(patch)
        with ab.Ray(workers=2) as executor:
            yield executor


def test_three_steps_to_a_ray_cluster(ray_cluster, tmp_path, monkeypatch):
    """The example of the docs, with the local cluster that is there already."""
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    (block,) = re.findall(r"```python\n(import anabranch.*?)```", page, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    ray_cluster.end_actors()  # which hold its cores
    names = {}
    exec(compile(block, "scale.md", "exec"), names)
    alone = ab.infer(names["coins"], np.array([7.0, 9.0]), budget=20_000)
    assert names["posterior"].log_evidence == alone.log_evidence


def test_an_actor_that_is_killed_is_replaced(ray_cluster):
    import ray

    whole = bits(infer("coins", workers=1))
    channel = ray_cluster._channels.take("")
    os.kill(ray.get(channel._actor.pid.remote()), signal.SIGKILL)
    ray_cluster._channels.give_back(channel)
    assert bits(infer("coins", executor=ray_cluster)) == whole


def test_a_checkpoint_and_processes_go_together(two_processes, tmp_path):
    whole = bits(infer("coins", workers=1))
    assert bits(infer("coins", executor=two_processes, checkpoint=tmp_path / "run")) == whole
    assert bits(infer("coins", checkpoint=tmp_path / "run")) == whole


def test_a_run_goes_on_where_it_ran(two_processes):
    one, other = infer("coins", workers=1), infer("coins", executor=two_processes)
    more = {"budget": 2_000, "tolerance": None}
    assert bits(one.more(**more)) == bits(other.more(**more))


def test_engines_take_an_executor(two_processes):
    engine = ab.engines.ImportanceSampling()
    answers = [infer("coins", engine=engine, budget=500, executor=each) for each in (two_processes, ab.Threads(1))]
    assert answers[0].log_evidence == answers[1].log_evidence


# Faults ---------------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_replaced(two_processes, monkeypatch):
    """While it makes its third visit."""
    whole, sent, send = bits(infer("coins", workers=1)), [], processes._Process._send

    def killing(self, *parts):
        send(self, *parts)
        if parts[0] == "visit":
            sent.append(self.pid)
            if len(sent) == 3:
                os.kill(self.pid, signal.SIGKILL)

    monkeypatch.setattr(processes._Process, "_send", killing)
    assert bits(infer("coins", executor=two_processes)) == whole
    assert len(set(sent)) >= 2


MAIN = os.getpid()


def deadly(how, main):
    """Ends every process but the first, in one of its paths."""
    bad = ab.sample("bad", dist.Bernoulli(0.5))
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    if bad:
        ab.observe("y", dist.Normal(ab.sample("z", dist.Normal(float(x), 1.0)), 1.0), 0.5)
        if os.getpid() != main:
            how()
    else:
        ab.observe("y", dist.Normal(x, 1.0), 0.5)


def be_killed():
    os.kill(os.getpid(), signal.SIGSEGV)


def exhaust_memory():
    """As a system without memory for a request: native code that gets none aborts."""
    resource.setrlimit(resource.RLIMIT_AS, (2**20, resource.RLIM_INFINITY))
    try:
        np.ones(2**28)
    finally:
        os.abort()


@pytest.mark.parametrize(
    ("how", "word"), [pytest.param(be_killed, "SIGSEGV", marks=pytest.mark.slow), (exhaust_memory, "SIGABRT")]
)
def test_a_path_that_ends_its_workers_is_given_up_and_no_other(how, word, two_processes):
    posterior = ab.infer(deadly, how, MAIN, executor=two_processes, budget=1_000, tolerance=None, engine=SMALL)
    (warning,) = [each for each in posterior.warnings if "ended its worker" in each]
    assert "bad = 1" in warning
    assert f"2 times (killed by {word})" in warning
    truth = np.log(0.5) + dist.Normal(0.0, np.sqrt(2)).log_prob(0.5)  # of the path that is left
    (left,) = [each for each in posterior.solutions if "bad = 0" in each.path.description]
    assert abs(left.estimate.log_evidence - truth) < 4 * left.estimate.log_evidence_sd + 1e-6


def raises_on_one_path(main):
    p = 0.5
    if ab.sample("bad", dist.Bernoulli(0.5)):
        p = ab.sample("p", dist.Beta(1.0, 1.0))
        if os.getpid() != main:
            raise ZeroDivisionError("by nothing")
    ab.observe("y", dist.Bernoulli(p), 1)


def test_an_error_on_one_path_in_a_worker_gives_up_that_path(two_processes):
    posterior = ab.infer(raises_on_one_path, MAIN, executor=two_processes, budget=1_000, tolerance=None, engine=SMALL)
    assert any("bad = 1" in each and "by nothing" in each for each in posterior.warnings)
    assert posterior.solutions[0].path.description == "bad = 0"


def test_the_time_limit_holds_in_workers(two_processes):
    posterior = infer("coins", executor=two_processes, budget=10**9, seconds=1.0)
    assert "seconds are over" in posterior.run.stopped
    assert np.isfinite(posterior.log_evidence)


def test_an_interrupt_ends_the_visits_of_workers(two_processes, monkeypatch):
    sent, send = [], processes._Process._send

    def interrupting(self, *parts):
        send(self, *parts)
        sent.append(parts[0])
        if sent.count("visit") >= 5 and "interrupt" not in sent:  # two threads count
            sent.append("interrupt")
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(processes._Process, "_send", interrupting)
    # A test that runs in the background does not get interrupts.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        posterior = infer("coins", executor=two_processes, budget=2_000_000)
    finally:
        signal.signal(signal.SIGINT, before)
    assert "interrupted" in posterior.run.stopped
    assert np.isfinite(posterior.log_evidence)


def test_workers_forget_what_a_run_is_done_with(two_processes):
    infer("coins", executor=two_processes)
    assert not any(two_processes._channels.held.values())


def test_a_worker_that_cannot_be_started_is_an_error_and_not_a_deadlock():
    def broken():
        raise OSError("no processes left")

    channels = Channels(1, broken)
    for _ in range(2):
        with pytest.raises(OSError, match="no processes left"):
            channels.take("")


@pytest.mark.parametrize("wrong", [3, "processes", ab.Processes])
def test_another_executor_is_refused(wrong):
    with pytest.raises(errors.BadSetting, match="executor must be"):
        infer("coins", executor=wrong)
