"""Questions about draws of a program that the interpreter runs: each draw is run once, and the log says why once."""

import logging

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.combine import outcomes as module
from anabranch.combine.outcomes import outcomes_at

runs = []


def simulator(y):
    runs.append(1)
    rate = float(ab.sample("rate", dist.LogNormal(0.0, 0.5)))
    drift = float(ab.sample("drift", dist.Normal(0.0, 1.0))) if ab.sample("drifts", dist.Bernoulli(0.5)) else 0.0
    ab.deterministic("end", drift + 2.0 * rate)
    ab.observe("y", dist.Normal(rate + drift, 0.5), y)


@pytest.fixture(scope="module")
def posterior():
    return ab.infer(simulator, 1.2, budget=600)


def test_the_program_runs_once_at_each_draw_whatever_is_asked(posterior):
    runs.clear()
    first = posterior.summary()
    asked = len(runs)
    assert asked >= 100
    assert posterior.summary().equals(first)
    mean, sd = posterior.expectation("end")
    assert abs(mean - first.loc["end", "mean"]) < 1e-9
    assert sd > 0
    posterior.expectation(lambda draw: draw["rate"] > 1)
    assert len(runs) == asked
    for solution in posterior.solutions:
        np.testing.assert_array_equal(
            [part.values["rate"][0] for part in outcomes_at(solution.path, solution.points)],
            solution.path.values(solution.points)["rate"],
        )


def test_more_draws_than_are_kept_are_run_again(posterior, monkeypatch):
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    [path] = [solution.path for solution in posterior.solutions if "drifts = 0" in solution.path.description]
    points = np.array([[0.1], [0.2], [0.1], [0.3], [0.4]])
    found = outcomes_at(path, points)
    assert [int(part.index[0]) for part in found] == [0, 1, 2, 3, 4]
    assert found[0].values["rate"] == found[2].values["rate"] == np.exp(0.1)


def test_predictions_do_not_say_again_why_the_program_is_interpreted(caplog):
    with caplog.at_level(logging.WARNING, "anabranch"):
        posterior = ab.infer(simulator, 1.2, budget=600)
        posterior.predictive(None, n=50)
        posterior.replicate(50)
        posterior.log_likelihood(50)
    assert sum("runs in the interpreter" in each for each in caplog.messages) == 1
