"""The warning for paths that no second method has checked."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
import solved
from anabranch.combine import Posterior, Solution
from anabranch.combine.evidence import join
from anabranch.conquer.estimate import Estimate
from helpers import disguised


@pytest.fixture(scope="module")
def division():
    return solved.divided()


def with_unconfirmed(division, *dims, **changes):
    """The posterior of which the paths with these dimensions have not been checked."""
    posterior = solved.posterior(division, n=2_000)
    solutions = [
        replace(each, estimate=replace(each.estimate, is_confirmed=False, **changes)) if each.path.dim in dims else each
        for each in posterior.solutions
    ]
    return Posterior(division.program, solutions, solved.run())


def unchecked(posterior):
    return [warning for warning in posterior.warnings if "second method" in warning]


def description(posterior, dim):
    return next(each.path.description for each in posterior.solutions if each.path.dim == dim)


def test_nothing_is_said_where_all_is_confirmed(division):
    assert solved.posterior(division, n=2_000).warnings == []


def test_the_path_that_nobody_has_checked_is_named(division):
    posterior = with_unconfirmed(division, 1)
    (warning,) = posterior.warnings
    assert f"the path ({description(posterior, 1)})" in warning
    assert warning.startswith("The budget did not suffice for a second method to check")
    assert description(posterior, 2) not in warning


def test_where_the_time_was_over_more_seconds_are_asked_for(division):
    posterior = with_unconfirmed(division, 2, ess=3.0, log_evidence_sd=0.9)
    ended = Posterior(division.program, posterior.solutions, replace(posterior.run, stopped="The 60 seconds are over."))
    for text, limit in (
        ("has an error of", "budget"),
        ("effective sample size", "budget"),
        ("second method", "budget did"),
    ):
        [before] = [each for each in posterior.warnings if text in each]
        [after] = [each for each in ended.warnings if text in each]
        assert limit in before
        assert after == before.replace("The budget", "The time").replace("more budget", "more seconds")


def test_of_several_the_heaviest_is_named(division):
    posterior = with_unconfirmed(division, 1, 2)
    (warning,) = unchecked(posterior)
    heaviest = posterior.solutions[int(np.argmax(posterior.evidence.weights))]
    assert "2 paths, the first" in warning
    assert f"({heaviest.path.description})" in warning


def test_a_path_with_little_mass_needs_no_check(division):
    assert min(solved.weights()[1:]) > 0.01
    posterior = with_unconfirmed(division, 1, log_evidence=solved.log_evidence() - 6.0)
    assert 0.001 < posterior.evidence.weights.min() < 0.01
    assert not unchecked(posterior)


def test_a_posterior_takes_unconfirmed_errors_as_they_are(division):
    confirmed, not_confirmed = solved.posterior(division, n=2_000), with_unconfirmed(division, 1, 2)
    weights, errors = not_confirmed.evidence.weights, [s.estimate.log_evidence_sd for s in not_confirmed.solutions]
    assert not_confirmed.log_evidence_sd == pytest.approx(np.sum(weights * errors))
    assert confirmed.log_evidence_sd == pytest.approx(np.sqrt(np.sum((weights * errors) ** 2)))


def test_a_bound_beyond_all_floating_point_numbers_is_the_error():
    """Sixteen prior draws far from the mass, say: by what may be there, the evidence is low by thousands of nats."""
    path = ab.find_paths(lambda: ab.sample("x", dist.Normal(0.0, 1.0)), executions=10).paths[0]
    estimate = Estimate.from_weights(np.zeros((16, 1)), np.full(16, -9_000.0), 16, "test")
    for possible in (-8_990.0, -8_000.0, -10.0):
        solution = Solution(path, estimate, log_possible=possible, doubt="few draws")
        assert join([solution], 1.0).log_evidence_sd == pytest.approx(possible + 9_000.0, abs=1e-3)


def test_a_run_that_ends_before_the_second_opinion_says_so():
    def program():
        ab.observe("y", dist.Normal(disguised(ab.sample("x", dist.Normal(0.0, 1.0))), 1.0), 1.0)

    short, long = (ab.infer(program, budget=budget, seed=0) for budget in (4_000, 60_000))
    assert unchecked(short)
    assert short.log_evidence_sd >= 0.05
    assert not unchecked(long)
    assert long.log_evidence_sd < 0.01
