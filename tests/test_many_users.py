"""Runs at the same time in one process, in threads or an asynchronous server, do not disturb each other."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpyro
import numpyro.distributions as dist

import anabranch as ab
from bits import bits

SMALL = ab.DCC(executions=200, max_executions=200, evaluations_per_visit=500, evaluations_per_first_visit=500)


def coins(heads):
    p = 0.5
    if ab.sample("biased", dist.Bernoulli(0.5)):
        p = ab.sample("p", dist.Beta(1.0, 1.0))
    ab.observe("heads", dist.Binomial(10, p), heads)


def slopes(y):
    """A NumPyro model, whose handlers NumPyro keeps in one stack for the process."""
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0)) if numpyro.sample("in", dist.Bernoulli(0.5)) else 0.0
    numpyro.sample("y", dist.StudentT(4.0, slope * np.arange(3.0), 1.0), obs=y)


USERS = [(coins, np.array([7.0, 9.0]), 0), (slopes, np.array([0.1, 1.2, 1.9]), 0), (coins, np.array([2.0]), 1)]


def answer(user):
    program, data, seed = user
    return bits(ab.infer(program, data, seed=seed, budget=3_000, tolerance=None, engine=SMALL, workers=2))


def test_in_threads():
    alone = [answer(user) for user in USERS]
    with ThreadPoolExecutor(3) as threads:
        assert list(threads.map(answer, USERS)) == alone


def test_in_an_asynchronous_server():
    async def served():
        return await asyncio.gather(*(asyncio.to_thread(answer, user) for user in USERS))

    assert asyncio.run(served()) == [answer(user) for user in USERS]
