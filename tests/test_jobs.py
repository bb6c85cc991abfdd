"""The nine jobs of benchmarks/jobs.py are done at the first try, with a small budget, within their errors."""

import importlib.util
import sys
from pathlib import Path

import pytest

import anabranch as ab

BUDGETS = dict.fromkeys(["change points", "polynomial", "kernels", "hidden Markov", "compare", "pooling"], 50_000)
BUDGETS |= {"selection": 400_000, "mixture": 200_000, "simulator": 1_000}
FILE = Path(__file__).parent.parent / "benchmarks" / "jobs.py"


@pytest.fixture(scope="module")
def jobs():
    spec = importlib.util.spec_from_file_location("jobs", FILE)
    module = importlib.util.module_from_spec(spec)
    path = list(sys.path)
    sys.modules["jobs"] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = path
    del sys.modules["jobs"]


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETS)
def test_a_job(jobs, name):
    """The evidence is within four errors of the reference, which is known to 0.002."""

    def infer(program, *data, budget=BUDGETS[name]):
        return ab.infer(program, *data, seed=0, budget=min(budget, BUDGETS[name]))

    what, ours, error, truth = next(jobs.JOBS[name].run(infer))
    assert abs(ours - truth) < 4 * error + 0.005, what
    assert error < 0.5


def test_all_jobs_are_tested(jobs):
    assert set(jobs.JOBS) == set(BUDGETS)
