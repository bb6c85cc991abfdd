"""Different paths used from different threads at once compute what they compute one after the other, to the bit.

What keeps the threads apart is tested by itself, with threads that would meet if nothing kept them apart: answers alone
are seldom wrong.
"""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, TimeoutError

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.divide import Density, Path
from anabranch.divide.dispatch import Jitted, one_call
from anabranch.divide.internals import inside
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program
from anabranch.divide.replay import rerun
from corpus import CASES

THREADS = 4


@pytest.fixture(autouse=True)
def _threads_take_turns_often():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


# Recordings -----------------------------------------------------------------------------------------------------------


def test_recordings_wait_for_each_other():
    """NumPyro has one stack of handlers for the process: a recording would see the sites of the other."""
    running, begun, entered = threading.Event(), threading.Event(), threading.Event()

    def first():
        ab.sample("a", dist.Normal(0.0, 1.0))
        running.set()
        begun.wait(60)
        met = entered.wait(0.3)
        ab.sample("b", dist.Normal(0.0, 1.0))
        return met

    def second():
        entered.set()
        ab.sample("c", dist.Normal(0.0, 1.0))

    def other():
        running.wait(60)
        begun.set()
        return rerun(Program(second), [])

    with ThreadPoolExecutor(2) as pool:
        one, two = pool.submit(rerun, Program(first), []), pool.submit(other)
    assert [site.name for site in one.result().sites] == ["a", "b"]
    assert [site.name for site in two.result().sites] == ["c"]
    assert one.result().result is False


def test_validation_that_the_user_asked_for_holds_while_another_thread_records():
    """NumPyro has one switch for the process, which a recording turns off while it runs."""
    running = threading.Event()

    def slow():
        ab.sample("x", dist.Normal(0.0, 1.0))
        running.set()
        time.sleep(0.2)

    def wrong():
        ab.sample("x", dist.Normal(0.0, -1.0))

    with numpyro.validation_enabled(True), ThreadPoolExecutor(1) as pool:
        other = pool.submit(ab.find_paths, slow, executions=2)
        assert running.wait(60)
        with pytest.raises(ValueError, match="scale"):
            rerun(Program(wrong), [])
        assert len(other.result()) == 1


# Compiled code --------------------------------------------------------------------------------------------------------


def test_compiled_calls_wait_for_each_other():
    """Each call comes back to Python in the middle, and says how many are there."""
    inside_now, most, counting = 0, 0, threading.Lock()

    def count(x):
        nonlocal inside_now, most
        with counting:
            inside_now += 1
            most = max(most, inside_now)
        time.sleep(0.05)
        with counting:
            inside_now -= 1
        return x

    def function(x):
        return (jax.pure_callback(count, jax.ShapeDtypeStruct(x.shape, x.dtype), x),)

    functions = [Jitted(function) for _ in range(THREADS)]
    for each in functions:
        each.compiled_for(np.ones(3))
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda each: each(np.ones(3)), functions))
    assert [result[0].tolist() for result in results] == [[1.0, 1.0, 1.0]] * THREADS
    assert most == 1


def test_what_several_threads_ask_for_is_compiled_once():
    compiled, begun = Jitted(lambda x: (2 * x,)), []

    class Slow:
        """The function under `jax.jit`, and how often its compilation is begun."""

        function = compiled._function.jitted

        def trace(self, *arrays):
            begun.append(arrays)
            time.sleep(0.05)
            return self.function.trace(*arrays)

    compiled._function.jitted = Slow()
    with ThreadPoolExecutor(THREADS) as pool:
        results = list(pool.map(lambda _: compiled(np.ones(3)), range(THREADS)))
    assert len(begun) == compiled.compilations == 1
    assert all((result[0] == 2).all() for result in results)


def with_keys():
    """`jax.random` has no form in NumPy: recording runs it with jax."""
    ab.sample("x", dist.Normal(jax.random.normal(jax.random.key(0)), 1.0))


def without_rules():
    """A sampler and an operation that only jax has."""
    x = ab.sample("x", dist.TruncatedDistribution(dist.Laplace(0.0, 1.0), low=2.0))
    ab.factor("data", -jnp.abs(jnp.fft.fft(jnp.stack([x, 2 * x]))).sum())


def _uses_of_jax(name):
    path = ab.find_paths(without_rules, executions=2).paths[0]
    points = np.ones((2, 1))

    def use_inside():
        with inside():
            return jnp.zeros(())

    return {
        "compiled": lambda: path.evaluate(points),
        "NumPy backend": lambda: path.evaluate(points, compile=False),
        "sampler": lambda: path.prior(2, seed=0),
        "recorder": lambda: rerun(Program(with_keys), []),
        "inside": use_inside,
    }[name]


@pytest.mark.parametrize("name", ["compiled", "NumPy backend", "sampler", "recorder", "inside"])
def test_whatever_computes_with_jax_waits_for_compiled_code(name):
    use = _uses_of_jax(name)
    use()  # what it compiles, which is allowed, it compiles now
    with ThreadPoolExecutor(1) as pool:
        with one_call():
            other = pool.submit(use)
            with pytest.raises(TimeoutError):
                other.result(0.3)
        other.result(60)


# Answers --------------------------------------------------------------------------------------------------------------


def mixture_paths(largest):
    y = programs.mixture_data()[:20]
    return [rebuild(Program(programs.mixture, (y,)), [[np.array(K - 1)]]) for K in range(1, largest + 1)]


def corpus_paths():
    """A path or two of every program of the corpus: guards, selects, interpreted ones, samplers of jax."""
    return [path for case in CASES for path in ab.find_paths(case.program, *case.args, executions=20).paths[:2]]


def everything(path: Path, compiled: bool, gradient: bool) -> list[np.ndarray]:
    draws = path.prior(5, seed=path.dim)
    points = np.concatenate([draws.points, np.random.default_rng(path.dim).normal(size=(5, path.dim))])
    evaluations = [path.evaluate(points, compile=False)]
    out = [draws.points, draws.log_weights, np.array(draws.log_probability)]
    if compiled:
        evaluations.append(path.evaluate(points))
    if gradient:
        evaluation, slopes = path.differentiate(points, 0.5)
        evaluations.append(evaluation)
        out.append(slopes)
    for e in evaluations:
        out += [e.log_prior, e.log_likelihood, e.log_jacobian, e.guard]
    return [*out, *path.values(draws.points).values()]


def compare(make_paths, *, compiled=lambda path: False, gradient=lambda path: False):
    def work(path):
        return everything(path, compiled(path), gradient(path))

    started = threading.Barrier(THREADS)
    paths = make_paths()
    with ThreadPoolExecutor(THREADS, initializer=started.wait) as pool:
        at_once = list(pool.map(work, paths))
    one_by_one = [work(path) for path in make_paths()]
    for path, ours, expected in zip(paths, at_once, one_by_one, strict=True):
        for a, b in zip(ours, expected, strict=True):
            assert a.tobytes() == b.tobytes(), path


@pytest.mark.slow
def test_twenty_cold_paths_from_four_threads():
    compare(lambda: mixture_paths(20), compiled=lambda path: path.dim % 3 == 0, gradient=lambda path: path.dim % 8 == 0)


def test_a_few_cold_paths_from_four_threads():
    compare(lambda: mixture_paths(THREADS), compiled=lambda path: path.dim == 1, gradient=lambda path: path.dim == 2)


@pytest.mark.slow
def test_paths_of_every_kind_from_four_threads():
    compare(corpus_paths)


def test_a_density_is_the_same_while_another_thread_records_a_program():
    """NumPyro checks values by a setting of the whole process, which is off while a program is recorded."""
    started, released = threading.Event(), threading.Event()

    def slow():
        if not started.is_set():
            started.set()
            released.wait(0.5)
        ab.sample("x", dist.Normal(0.0, 1.0))

    def mixture():
        means = jnp.stack([ab.sample(f"mean{k}", dist.Normal(0.0, 2.5)) for k in range(2)])
        ab.observe("y", dist.MixtureSameFamily(dist.Categorical(np.ones(2) / 2), dist.Normal(means, 1.0)), np.ones(3))

    def steps(path):
        return len(path.recording.once(Density).evaluator.steps)

    (path,) = ab.find_paths(mixture).paths
    alone, beside = (rebuild(path.program, path.choices) for _ in range(2))
    expected = steps(alone)
    other = threading.Thread(target=ab.find_paths, args=(slow,))
    other.start()
    started.wait(10)
    assert steps(beside) == expected
    released.set()
    other.join()
