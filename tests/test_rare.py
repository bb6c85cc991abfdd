"""Programs with a region that prior draws never meet (benchmarks/rare.py): it is found, and the evidence is right."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
from anabranch.search import Discovery


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


rare = _load("rare")
QUICK = ["deep", "deep, nothing behind", "count", "corner"]
"""Those that take little time."""


def check(name, seed, budget, max_sd):
    program = rare.RARE[name]
    posterior = ab.infer(program.program, program.log_factor, seed=seed, budget=budget)
    assert rare.is_met(posterior, program)
    assert abs(posterior.log_evidence - program.log_evidence) < 4 * posterior.log_evidence_sd + 1e-12
    assert posterior.log_evidence_sd < max_sd
    return posterior


@pytest.mark.parametrize("name", QUICK)
def test_what_is_behind_one_condition_is_in_the_evidence(name):
    check(name, seed=0, budget=40_000, max_sd=0.1)


def test_what_is_behind_five_conditions_is_in_the_evidence():
    posterior = check("vector", seed=0, budget=40_000, max_sd=0.3)
    assert posterior.unmet == []
    draws = posterior.draws(100, seed=0)["x"]
    assert (np.asarray(draws).min(axis=1) > 2.5).mean() > 0.9  # 0.99 of the mass


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", rare.RARE)
def test_the_evidence_is_right_in_every_seed(name, seed):
    check(name, seed=seed, budget=200_000, max_sd=0.3)


@pytest.mark.parametrize("name", rare.RARE)
def test_prior_draws_do_not_meet_the_region(name):
    program = rare.RARE[name]
    assert -15.5 < program.log_mass / np.log(10) < -5.5
    division = ab.find_paths(program.program, program.log_factor)
    assert all(path.log_prior_probability > program.log_mass / 2 for path in division)


def test_what_is_not_solved_for_is_listed():
    engine = ab.DCC(discovery=Discovery(solving=None))
    posterior = ab.infer(rare.vector, 30.0, seed=0, budget=10_000, engine=engine)
    (sentence,) = posterior.unmet
    assert sentence.startswith("`jnp.all(x > 2.5)` (rare.py:")
    assert sentence.endswith(") was never true")
    assert f"Not met: {sentence}." in str(posterior)


def test_the_same_seed_gives_the_same_answer():
    one, other = (ab.infer(rare.deep, 25.0, seed=1, budget=20_000) for _ in range(2))
    assert one.log_evidence == other.log_evidence
    priors = [[solution.path.log_prior_probability for solution in each.solutions] for each in (one, other)]
    assert priors[0] == priors[1]


def test_a_rare_path_without_gradient_or_likelihood_has_its_prior_mass():
    def program():
        if ab.sample("x", dist.Normal(0.0, 1.0)) > 6:
            ab.sample("y", dist.Normal(0.0, 1.0))

    posterior = ab.infer(program, seed=0, budget=20_000)
    (path,) = [solution for solution in posterior.solutions if "y" in solution.path.addresses]
    assert abs(path.log_evidence - norm.logsf(6)) < 4 * path.estimate.log_evidence_sd < 1.5
