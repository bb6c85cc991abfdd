"""Inference end to end, against programs whose evidence and posterior are known exactly."""

import logging

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import norm, poisson

import anabranch as ab
from anabranch import programs
from calibration import check_calibrated, z_scores
from exact import EXACT, named

# log evidence of the paths of function induction that matter, data of seed 0, by quadrature independent of this
# library: `x+sx2` is a·x + b·sin(c·x²). The next ones are below e^-45 of these.
INDUCTION = {
    "x+sx2": -43.84775241419326,
    "sx2+x": -43.84775241419326,
    "sx+sx2": -46.83053547314623,
    "sx2+sx": -46.83053547314623,
    "sx2+sx2": -88.86277340700487,
    "x2+sx2": -89.40145195386559,
    "sx2+x2": -89.40145195386559,
}
# The log likelihood of five components, in closed form; by quadrature, all but K = 5 is below e^-30 of the evidence.
FIVE_COMPONENTS = -129.22253159720069

SLOW = {
    "chinese_restaurant", "chinese_restaurant_in_clumps", "chinese_restaurant_of_six",
    "change_point_split", "compound_sum", "polynomial", "step_function",
}  # fmt: skip
"""Hundreds and thousands of paths; or tens, each with a second opinion."""
SETTINGS = {"leaves_jax": {"tolerance": 0.05, "engine": ab.DCC(evaluations_per_first_visit=5_000)}}
"""Each evaluation of it is a run of the Python."""


@pytest.mark.one_in(6)
@pytest.mark.parametrize(
    "case", [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in SLOW)) for each in EXACT]
)
def test_the_answer_is_the_exact_one(case, caplog):
    caplog.set_level(logging.ERROR, "anabranch")
    posterior = ab.infer(case.program, *case.args, seed=0, **SETTINGS.get(case.name, {}))
    error = abs(posterior.log_evidence - case.log_evidence)
    assert error <= 0.03
    assert error <= 3.5 * posterior.log_evidence_sd + 1e-9
    assert posterior.log_evidence_sd <= SETTINGS.get(case.name, {}).get("tolerance", 0.02)
    for name, exact in case.probabilities.items():
        found = posterior.probability(name)
        assert sum(found.values()) == pytest.approx(1.0, abs=1e-6)
        distance = sum(abs(found.get(value, 0.0) - exact.get(value, 0.0)) for value in found.keys() | exact.keys()) / 2
        assert distance < 0.02, name
    for name, (f, exact) in case.expectations.items():
        mean, sd = posterior.expectation(f)
        assert abs(mean - exact) <= 5 * sd + 1e-6 * (1 + abs(exact)), name
        assert sd <= 0.04 * (1 + abs(exact)), name


@pytest.mark.slow
def test_the_mixture_of_the_paper():
    """With `make test` the README's mixture is compared with its answer, and this one where it is stopped early."""
    posterior = ab.infer(programs.mixture, programs.mixture_data(), seed=0)
    assert posterior.log_evidence == pytest.approx(FIVE_COMPONENTS + poisson.logpmf(4, 9.0), abs=0.02)
    assert posterior.probability("K")[5] > 0.999
    draws = posterior.draws(200)
    centres = np.array([[draw[f"mu{k}"] for k in range(5)] for draw in draws])
    np.testing.assert_allclose(centres.mean(axis=0), [2.1, 5.7, 10.4, 13.2, 18.9], atol=0.1)


@pytest.mark.parametrize("budget", [120_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_function_induction_of_the_paper(budget):
    posterior = ab.infer(programs.function_induction, *programs.function_induction_data(), budget=budget, seed=0)
    error = abs(posterior.log_evidence - logsumexp(list(INDUCTION.values())))
    assert error < 0.03
    assert error < 3.5 * posterior.log_evidence_sd
    heavy = np.sort(posterior.evidence.weights)[::-1][:5]
    exact = np.sort(np.exp(np.array(list(INDUCTION.values())) - logsumexp(list(INDUCTION.values()))))[::-1][:5]
    np.testing.assert_allclose(heavy, exact, atol=0.02)


@pytest.mark.slow
def test_the_errors_are_calibrated():
    case = named("figure_two")
    posteriors = [ab.infer(case.program, *case.args, seed=seed, tolerance=0.02) for seed in range(400)]
    check_calibrated({"figure 2": z_scores(posteriors, case.log_evidence)})


def three_rare(y):
    """The mass is on the path that is three decisions of probability 0.001 away."""
    flips = [int(ab.sample(f"flip{i}", dist.Bernoulli(0.001))) for i in range(3)]
    ab.observe("y", dist.Normal(10.0 if all(flips) else 0.0, 1.0), y)


def test_a_path_several_rare_decisions_away_is_found():
    posterior = ab.infer(three_rare, 12.0)
    together = 3 * np.log(0.001) + norm.logpdf(12.0, 10.0, 1.0)
    apart = np.log1p(-1e-9) + norm.logpdf(12.0, 0.0, 1.0)
    assert posterior.log_evidence == pytest.approx(np.logaddexp(together, apart), abs=1e-6)


def walk_to(y):
    """The prior expects three steps; the data are twenty-five away."""
    position = 0.0
    for i in range(int(ab.sample("steps", dist.Poisson(3.0)))):
        position = position + ab.sample(f"step{i}", dist.Normal(1.0, 1.0))
    ab.observe("y", dist.Normal(position, 0.5), y)


@pytest.mark.slow
def test_the_paths_with_mass_are_far_out_in_the_tail_of_the_prior():
    steps = np.arange(200)
    exact = logsumexp(poisson.logpmf(steps, 3.0) + norm.logpdf(25.0, steps, np.sqrt(steps + 0.25)))
    posterior = ab.infer(walk_to, 25.0)
    assert abs(posterior.log_evidence - exact) < 3.5 * posterior.log_evidence_sd < 0.03


@pytest.mark.slow
def test_the_misspecified_mixture():
    """The prior expects 91 components, the data have five."""
    posterior = ab.infer(programs.misspecified_mixture, programs.mixture_data(), seed=0)
    exact = FIVE_COMPONENTS + poisson.logpmf(4, 90.0)
    assert posterior.probability("K")[5] > 0.999
    assert abs(posterior.log_evidence - exact) < 3.5 * posterior.log_evidence_sd < 0.05


@pytest.mark.slow
def test_a_tenth_of_the_budget_is_less_exact_and_not_wrong() -> None:
    """The modes of 26 paths are narrow: a small first visit of each missed them all."""
    data = programs.function_induction_data()
    posterior = ab.infer(programs.function_induction, *data, budget=100_000, seed=1)
    assert (
        abs(posterior.log_evidence - -43.105195) < 4 * posterior.log_evidence_sd < 0.3
    )  # not confirmed: 0.05 at least
    small = ab.infer(programs.function_induction, *data, budget=20_000, seed=1)
    assert any("only a Laplace estimate of each of 26 paths" in each for each in small.warnings)
    assert any("at least 65,000" in each for each in small.warnings)
