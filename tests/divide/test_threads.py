"""Different paths used from different threads at once compute what they compute one after the other, to the bit."""

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import programs
from anabranch.divide import Path
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
    compare(lambda: mixture_paths(4), compiled=lambda path: path.dim < 3, gradient=lambda path: path.dim == 4)


@pytest.mark.slow
def test_paths_of_every_kind_from_four_threads():
    compare(corpus_paths)


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
