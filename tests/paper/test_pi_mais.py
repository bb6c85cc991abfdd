"""PI-MAIS: the mean weight of a step has the evidence as its expectation, wherever the chains are."""

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer import Estimate, PathTarget
from anabranch.paper.pi_mais import Centred, PiMais


def line(y):
    """x is normal: log Z = log N(y; 0, √2), in two dimensions with a count that no data bear on."""
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.sample("count", dist.Poisson(3.0))
    ab.observe("y", dist.Normal(x, 1.0), y)


PATH = ab.find_paths(line, 1.0, executions=10).paths[0]
TRUTH = float(dist.Normal(0.0, np.sqrt(2.0)).log_prob(1.0))


def weighed(centres: np.ndarray, narrow: float, steps: int, seed: int = 0) -> tuple[PathTarget, PiMais]:
    target, rng, weights = PathTarget(PATH), np.random.default_rng(seed), PiMais()
    proposal = Centred(np.array([1.0, 2.0]), narrow * np.array([1.0, 2.0]))
    for _ in range(steps):
        weights.add(proposal.draw(target, centres, 8, rng)[1])
    return target, weights


@pytest.mark.parametrize("centres", [[[0.5, 3.0]], [[-2.0, 1.0], [2.0, 6.0]]], ids=["one chain", "two chains far off"])
@pytest.mark.parametrize("narrow", [0.05, 0.5])
def test_the_mean_weight_is_the_evidence(centres, narrow):
    target, weights = weighed(np.array(centres), narrow, 400)
    estimate = weights.summary(target)
    assert abs(estimate.log_evidence - TRUTH) < 4 * estimate.log_evidence_sd < 0.4


def test_the_error_is_the_scatter_of_independent_estimates():
    found = [weighed(np.array([[0.0, 3.0], [1.0, 2.0]]), 0.7, 25, seed)[1] for seed in range(40)]
    target = PathTarget(PATH)
    estimates = [weights.summary(target) for weights in found]
    z = [(each.log_evidence - TRUTH) / each.log_evidence_sd for each in estimates]
    assert 0.7 < np.sqrt(np.mean(np.square(z))) < 1.3
    assert abs(np.mean(z)) < 4 / np.sqrt(40)


def test_the_running_sums_are_those_of_all_weights():
    target, weights = weighed(np.array([[0.0, 3.0], [1.0, 2.0]]), 0.7, 30)
    logs = np.concatenate(weights.log_weights).ravel()
    whole, running = Estimate.from_weights(np.zeros((len(logs), 2)), logs, 0, "all"), weights.summary(target)
    for name in ("log_evidence", "weight_sd", "log_weight_mean", "log_weight_sd", "log_weight_max"):
        assert getattr(running, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    assert running.log_evidence_sd == pytest.approx(whole.log_evidence_sd, rel=0.4)


def test_steps_without_mass_count():
    target, weights = weighed(np.array([[0.5, 3.0]]), 0.5, 100)
    before = weights.summary(target).log_evidence
    for _ in range(100):
        weights.add(np.full((1, 8), -np.inf))
    assert weights.summary(target).log_evidence == pytest.approx(before - np.log(2))


def test_the_scale_is_that_of_the_chains_once_they_have_moved():
    rng, proposal = np.random.default_rng(0), Centred.of_prior(np.array([1.0, 2.0]))
    assert proposal.narrow.tolist() == [0.01, 0.02]
    states = [rng.normal(0.0, [0.3, 0.0], (10, 2)) for _ in range(200)]
    proposal.learn(states[:9])
    assert proposal.narrow.tolist() == [0.01, 0.02]
    proposal.learn(states)
    assert proposal.narrow[0] == pytest.approx(1.2 * 0.3, rel=0.1)
    assert proposal.narrow[1] == 0.02  # a coordinate that has not moved keeps it
