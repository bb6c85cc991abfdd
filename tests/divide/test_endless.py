"""Programs that do not end by themselves are ended, with the line and the remedy."""

import contextlib
import gc
import inspect
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import errors
from anabranch.divide import recorder, tree, watchdog
from anabranch.divide.watchdog import Watch
from anabranch.limits import LimitReached, Limits, enforced

N01 = dist.Normal(0.0, 1.0)


def line(function, mark="# here"):
    """Where a function has its mark."""
    lines, first = inspect.getsourcelines(function)
    return f"test_endless.py:{next(first + i for i, text in enumerate(lines) if mark in text)}"


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(watchdog, "ENDLESS", 0.3)
    monkeypatch.setattr(watchdog, "_EVERY", 0.05)


# By counting ----------------------------------------------------------------------------------------------------------


def draws_for_ever():
    for i in count():
        ab.sample(f"x{i}", N01)  # here


def draws_for_ever_on_a_decision():
    for i in count():
        if ab.sample(f"b{i}", dist.Bernoulli(1.0)):  # here
            continue


def draws_for_ever_outside_jax():
    for i in count():
        float(ab.sample(f"x{i}", N01))  # here


@pytest.mark.parametrize("program", [draws_for_ever, draws_for_ever_on_a_decision, draws_for_ever_outside_jax])
def test_sampling_for_ever(program):
    with pytest.raises(errors.EndlessProgram) as caught:
        ab.find_paths(program, max_sites=50, executions=50)
    assert caught.value.where == line(program)
    assert caught.value.site.endswith("50")
    assert "50 sites" in str(caught.value)
    assert "raise max_sites" in caught.value.remedy


def test_sampling_for_ever_with_default_settings():
    with pytest.raises(errors.EndlessProgram, match=r"10,000 sites"):
        ab.infer(draws_for_ever)


def test_not_every_execution_is_tried_where_none_ends(monkeypatch):
    monkeypatch.setattr(tree, "_IN_VAIN", 200)
    drawn = []

    def program():
        for i in count():
            drawn.append(float(ab.sample(f"x{i}", N01)))

    with pytest.raises(errors.EndlessProgram):
        ab.find_paths(program, max_sites=20, executions=1_000)
    assert len(drawn) == 200


def test_some_executions_that_end_are_enough():
    def program():
        if ab.sample("endless", dist.Bernoulli(0.5)):
            draws_for_ever()
        ab.sample("x", N01)

    division = ab.find_paths(program, max_sites=20)
    assert len(division) == 1
    assert division.prior_mass_truncated == pytest.approx(0.5)


def asks_for_ever():
    x = ab.sample("x", N01)
    while x > -1e9:  # here
        x = x + 0 * x


def asks_a_fixed_site_for_ever():
    k = ab.sample("k", dist.DiscreteUniform(1, 3))
    while k + 1 < 10:  # here
        pass


def asks_for_ever_and_catches():
    x = ab.sample("x", N01)
    try:
        while x > -1e9:  # here
            pass
    except Exception:
        return


@pytest.mark.parametrize("program", [asks_for_ever, asks_a_fixed_site_for_ever, asks_for_ever_and_catches])
def test_asking_for_ever(program):
    with pytest.raises(errors.EndlessProgram, match="questions were asked") as caught:
        ab.find_paths(program, executions=100, max_sites=2_000)
    assert caught.value.where == line(program)
    assert "max_sites" in caught.value.remedy


def test_questions_that_become_guards_are_fewer_than_those_with_known_answers():
    """By default, the former take as long as seconds and the latter are hundreds of thousands."""
    bounds = [share * 10_000 for share, _ in (recorder._OPEN, recorder._KNOWN)]
    assert bounds[0] <= 5_000
    assert bounds[1] >= 300_000


def test_a_simulator_may_ask_much():
    """In the interpreter every value is known, and a question takes microseconds."""
    asked = []

    def simulator():
        k = ab.sample("k", dist.DiscreteUniform(1, 3))
        float(ab.sample("x", N01))
        asked.append(sum(1 for _ in range(100_000) if k > 0))

    assert len(ab.find_paths(simulator, executions=1)) == 1
    assert asked[-1] == 100_000


# By Python's limit on recursion ---------------------------------------------------------------------------------------


def recurses_for_ever():
    recurses_for_ever()  # here


def draws_by_recursion(i=0):
    ab.sample(f"x{i}", N01)
    draws_by_recursion(i + 1)  # here


def draws_by_recursion_outside_jax(i=0):
    if float(ab.sample(f"x{i}", N01)) < 1e9:
        draws_by_recursion_outside_jax(i + 1)  # here


@pytest.mark.parametrize("program", [recurses_for_ever, draws_by_recursion, draws_by_recursion_outside_jax])
def test_recursion_deeper_than_python_allows(program):
    with pytest.raises(errors.EndlessProgram, match="recursion is deeper than Python allows") as caught:
        ab.find_paths(program, executions=2)
    file, number = caught.value.where.split(":")
    lines, first = inspect.getsourcelines(program)
    assert file == "test_endless.py"
    assert first <= int(number) < first + len(lines)
    assert "loop" in caught.value.remedy
    assert "sys.setrecursionlimit" in caught.value.remedy


def test_a_recursion_error_that_the_program_catches_is_its_own_matter():
    def program():
        with contextlib.suppress(RecursionError):
            recurses_for_ever()
        ab.sample("x", N01)

    assert len(ab.find_paths(program, executions=2)) == 1


# From outside ---------------------------------------------------------------------------------------------------------


def neither():
    ab.sample("x", N01)
    while True:  # here
        pass


def neither_and_catches():
    ab.sample("x", N01)
    try:
        while True:  # here
            pass
    except BaseException:
        return


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("program", [neither, neither_and_catches])
def test_a_loop_that_neither_draws_nor_asks(program):
    with pytest.raises(errors.EndlessProgram, match="no statement and no branch") as caught:
        ab.find_paths(program)
    first = int(line(program).partition(":")[2])
    assert caught.value.where in (line(program), f"test_endless.py:{first + 1}")


@pytest.mark.usefixtures("impatient")
def test_it_works_in_threads():
    """One of them records at a time."""
    with ThreadPoolExecutor(2) as pool:
        for error in pool.map(lambda _: _error_of(neither), range(2)):
            assert isinstance(error, errors.EndlessProgram)


def _error_of(program):
    try:
        ab.find_paths(program)
    except BaseException as error:
        return error


def test_the_time_of_the_run_ends_a_program():
    with enforced(Limits(seconds=0.3)), pytest.raises(LimitReached):
        ab.find_paths(neither)


@pytest.mark.usefixtures("impatient")
def test_a_run_with_a_time_may_compute_for_longer_than_a_minute():
    def slow():
        ab.sample("x", N01)
        time.sleep(1.0)

    with enforced(Limits(seconds=100.0)):
        assert len(ab.find_paths(slow, executions=5)) == 1


@pytest.mark.usefixtures("impatient")
def test_statements_and_questions_are_progress(monkeypatch):
    monkeypatch.setattr(watchdog, "ENDLESS", 1.0)  # a busy machine may stand still for half a second

    def slow():
        k = ab.sample("k", dist.DiscreteUniform(1, 2))
        for i in range(8):
            time.sleep(0.2)
            if k < 0 or i % 2:
                ab.sample(f"x{i}", N01)

    assert len(ab.find_paths(slow, executions=2)) == 2


def test_cancelling_ends_a_program():
    limits = Limits()
    threading.Timer(0.2, limits.cancelled.set).start()
    with enforced(limits), pytest.raises(LimitReached):
        ab.find_paths(neither)


def test_waiting_for_another_recording_ends_with_the_run():
    running, release = threading.Event(), threading.Event()

    def waits():
        ab.sample("x", N01)
        running.set()
        release.wait(60)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(ab.find_paths, waits, executions=1)
        assert running.wait(60)
        with enforced(Limits(seconds=0.3)), pytest.raises(LimitReached):
            ab.find_paths(lambda: ab.sample("y", N01))
        release.set()
        assert len(other.result()) == 1


@pytest.fixture
def _threads_take_turns_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_threads_take_turns_often")
# It may arrive in a function that Python calls between two others, jax's after a collection of garbage, and is lost.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_exception_never_arrives_when_the_program_has_ended(monkeypatch):
    """Programs that end just when they are to be ended: each gives its result or the error, and nothing comes later."""
    monkeypatch.setattr(watchdog, "ENDLESS", 0.0)
    monkeypatch.setattr(watchdog, "_EVERY", 1e-4)
    ended = returned = 0
    for i in range(20_000):
        try:
            assert Watch().run(spin, i % 100) == i % 100
            returned += 1
        except errors.EndlessProgram:
            ended += 1
        assert spin(20) == 20  # nothing arrives here
        if min(ended, returned) >= 200:
            break
    assert min(ended, returned) >= 20
    assert not watchdog._running


def spin(steps):
    for _ in range(steps * 10):
        pass
    return steps


def test_the_library_is_not_disturbed(monkeypatch):
    monkeypatch.setattr(watchdog, "ENDLESS", 0.0)
    monkeypatch.setattr(watchdog, "_EVERY", 1e-3)
    undisturbed = []

    def program(watch):
        with watch:
            time.sleep(0.05)
            undisturbed.append(spin(2_000))
        time.sleep(0.05)
        spin(10**9)

    watch = Watch()
    with pytest.raises(errors.EndlessProgram):
        watch.run(program, watch)
    assert undisturbed in ([2_000], [])


def test_a_program_inside_another_has_its_own_watch(monkeypatch):
    monkeypatch.setattr(watchdog, "ENDLESS", 0.3)
    monkeypatch.setattr(watchdog, "_EVERY", 0.05)

    def inner():
        time.sleep(0.2)
        return 1

    def outer():
        return sum(Watch().run(inner) for _ in range(4))

    assert Watch().run(outer) == 4
    assert not watchdog._running


def test_an_exception_of_the_program_is_its_own():
    def program():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        Watch().run(program)
    assert not watchdog._running


def test_watching_takes_next_to_nothing():
    """Counted by its calls: one registration for a run, and no thread for each."""
    before = threading.active_count()
    for _ in range(1_000):
        Watch().run(int)
    assert threading.active_count() <= before + 1


# Inference inside a program -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [ab.infer, ab.find_paths])
def test_inference_inside_a_program_is_refused(run):
    def outer():
        x = ab.sample("x", N01)
        run(lambda: ab.sample("y", N01))  # here
        return x

    with pytest.raises(errors.UnsupportedStatement, match="inside a program") as caught:
        ab.infer(outer)
    assert caught.value.where == line(outer)
    assert "give its answer" in caught.value.remedy


# In processes of their own --------------------------------------------------------------------------------------------


def in_a_process(code, timeout=100):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout, check=False
    )


def test_infer_inside_infer_does_not_hang_and_an_interrupt_ends_an_endless_program():
    result = in_a_process(
        """
        import os, signal, threading
        import anabranch as ab, numpyro.distributions as dist

        def inner():
            ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)

        def outer():
            ab.observe("z", dist.Normal(ab.sample("w", dist.Normal(0.0, 1.0)), 1.0), ab.infer(inner).log_evidence)

        try:
            ab.infer(outer)
        except ab.errors.UnsupportedStatement as error:
            print("refused", repr(error))

        signal.signal(signal.SIGINT, signal.default_int_handler)  # which is not so where a test runs in the background

        def program():
            ab.sample("x", dist.Normal(0.0, 1.0))
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
            while True:
                pass

        try:
            ab.find_paths(program)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    refused, interrupted = result.stdout.splitlines()
    assert refused.startswith("refused"), result.stderr
    assert interrupted == "interrupted", result.stderr


def test_a_forked_process_watches_by_itself():
    result = in_a_process(
        """
        import os, sys, warnings
        import anabranch as ab, numpyro.distributions as dist
        from anabranch.divide import watchdog
        from anabranch.divide.watchdog import Watch

        def endless():
            while True:
                pass

        Watch().run(int)
        warnings.simplefilter("ignore")
        watchdog.ENDLESS = 0.3
        child = os.fork()
        if not child:
            try:
                Watch().run(endless)
            except ab.errors.EndlessProgram:
                os._exit(7)
            os._exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """
    )
    assert result.stdout == "7\n", result.stderr


def test_arrays_of_a_program_that_was_ended_are_let_go():
    """What watches keeps nothing of a program that was ended."""

    class Data(np.ndarray):
        pass

    data = np.zeros(3).view(Data)
    gone = weakref.ref(data)
    with enforced(Limits(seconds=0.1)), pytest.raises(LimitReached):
        Watch().run(lambda array: neither_with(array), data)
    del data
    gc.collect()
    assert gone() is None


def neither_with(array):
    while len(array):
        pass
