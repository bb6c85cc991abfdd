"""A run keeps nothing of itself once its posterior is gone."""

import gc
import weakref

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer import HMC
from anabranch.divide.division import Division
from anabranch.divide.path import Path
from anabranch.divide.recording import Recording


def coin(heads):
    fair = ab.sample("fair", dist.Bernoulli(0.5))
    p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
    ab.observe("heads", dist.Binomial(10, p), heads)


def outside_jax(heads):
    p = float(ab.sample("p", dist.Beta(1.0, 1.0)))
    if ab.sample("fair", dist.Bernoulli(0.5)):
        p = 0.5
    ab.observe("heads", dist.Binomial(10, p), heads)


@pytest.fixture
def made(monkeypatch):
    """Weak references to every division, path and recording that is made."""
    references = []
    for kind in (Division, Path, Recording):
        make = kind.__init__

        def init(self, *args, make=make, **kwargs):
            references.append(weakref.ref(self))
            make(self, *args, **kwargs)

        monkeypatch.setattr(kind, "__init__", init)
    return references


@pytest.mark.parametrize(
    "settings",
    [{}, pytest.param({"engine": ab.engines.SMC(), "budget": 5_000}, marks=pytest.mark.slow)],
    ids=["DCC", "SMC"],
)
def test_repeated_runs_retain_nothing(made, settings):
    ab.infer(coin, 9, seed=0, tolerance=0.05, **settings)
    # jax keeps, with a function that it has compiled, the recording during which it first met it; but none after that.
    first = len(made)
    for seed in range(1, 3):
        ab.infer(coin, 9, seed=seed, tolerance=0.05, **settings)
        gc.collect()
        assert not [type(each()).__name__ for each in made[first:] if each() is not None]
    assert len(made) - first >= 4


@pytest.mark.slow
def test_runs_with_discrete_variables_retain_nothing(made):
    """Neither what was compiled into chains, nor the conditional probabilities."""

    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        z = ab.sample("z", dist.Bernoulli(0.3).expand([3]).to_event(1))
        ab.observe("y", dist.Normal(x + z, 1.0), np.zeros(3))

    first = 0
    for _ in range(2):
        first = len(made)
        posterior = ab.infer(program, budget=3_000, engine=ab.DCC(strategy=HMC(warmup=100)))
        assert sum(posterior.probability("z[1]").values()) == pytest.approx(1.0)
        del posterior
    gc.collect()
    assert len(made) > first
    assert not [type(each()).__name__ for each in made[first:] if each() is not None]


def test_paths_in_the_interpreter_are_let_go(made):
    division = ab.find_paths(outside_jax, 9, executions=20)
    for path in division:
        path.evaluate(path.prior(3).points)
    del division, path
    gc.collect()
    assert len(made) > 20
    assert not {"Division", "Path"} & {type(each()).__name__ for each in made if each() is not None}


def test_a_run_that_failed_retains_nothing(made):
    def fails():
        if ab.sample("z", dist.Bernoulli(0.5)):
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        ab.infer(fails)
    gc.collect()
    assert made
    assert not {"Division", "Path"} & {type(each()).__name__ for each in made if each() is not None}
