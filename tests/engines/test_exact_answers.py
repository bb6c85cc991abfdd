"""Every engine against exact answers: within four of its own standard errors at every seed, and without a bias.

The standard errors themselves are bounded, by about twice the largest of each engine. Over n seeds the mean of the
errors, in standard errors, scatters by 1/√n: with 20, a bias of one of them is seen.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import anabranch as ab
from anabranch import engines
from engine_cases import BOUNDS, CASES, scores
from exact import Exact


class Tried(NamedTuple):
    """An engine, its budget, and what its standard errors never exceed: that of log Z is None where it has none."""

    engine: Any
    budget: int
    log_evidence_sd: float | None
    probability_sd: float
    expectation_sd: float


ENGINES = {
    "ImportanceSampling": Tried(engines.ImportanceSampling(), 4_000, 0.1, 0.055, 0.08),
    "Rejection": Tried(engines.Rejection(log_bound=0.0), 25_000, 0.15, 0.055, 0.1),
    "SMC": Tried(engines.SMC(particles=100), 8_000, 0.055, 0.02, 0.055),
    "SMC, stratified, always": Tried(
        engines.SMC(particles=100, resampling="stratified", threshold=1.0), 8_000, 0.055, 0.02, 0.055
    ),
    "SMC, multinomial": Tried(engines.SMC(particles=100, resampling="multinomial"), 8_000, 0.055, 0.02, 0.055),
    "SMC, resample-move": Tried(engines.SMC(particles=100, threshold=1.0, rejuvenation=1), 30_000, 0.055, 0.02, 0.055),
    "SMC2": Tried(engines.SMC2(particles=10, thetas=20, threshold=0.9), 60_000, 0.2, 0.1, 0.1),
    "ParticleGibbs": Tried(engines.ParticleGibbs(particles=10, chains=50), 20_000, None, 0.035, 0.09),
    "ParticleGibbs, ancestors": Tried(
        engines.ParticleGibbs(particles=10, chains=50, ancestor_sampling=True), 20_000, None, 0.06, 0.09
    ),
    "PIMH": Tried(engines.PIMH(particles=10, chains=50), 20_000, 0.035, 0.04, 0.09),
    "PMMH": Tried(engines.PMMH(particles=5, chains=50), 20_000, None, 0.075, 0.23),
    "IPMCMC": Tried(engines.IPMCMC(particles=10, chains=50, nodes=4, conditional=2), 24_000, 0.045, 0.035, 0.11),
    "LightweightMH": Tried(engines.LightweightMH(chains=50), 30_000, None, 0.025, 0.07),
    "RandomWalkMH": Tried(engines.RandomWalkMH(chains=50), 30_000, None, 0.03, 0.09),
}


def found(name: str, case: Exact, seeds: int, share: float, chains: int) -> dict[str, np.ndarray]:
    """By what an engine was asked: for each seed, its error in its own standard errors, and its standard error."""
    tried = ENGINES[name]
    engine = engines.Rejection(log_bound=BOUNDS.get(case.name, 0.0)) if name == "Rejection" else tried.engine
    if chains > 1:
        engine = replace(engine, chains=chains * engine.chains)
    budget = int(share * tried.budget)
    answers = [
        scores(case, ab.infer(case.program, *case.args, engine=engine, budget=budget, seed=seed, tolerance=None))
        for seed in range(seeds)
    ]
    return {quantity: np.array([each[quantity] for each in answers]) for quantity in answers[0]}


def check(name: str, case: Exact, seeds: int, share: float = 1.0, chains: int = 1) -> None:
    """With a share of the budget, at which the standard errors are larger by its root, and so many times the chains."""
    tried, answers = ENGINES[name], found(name, case, seeds, share, chains)
    assert ("log Z" in answers) == (tried.log_evidence_sd is not None)
    for quantity, pairs in answers.items():
        z, sd = pairs.T
        assert np.abs(z).max() < 4, (quantity, z.round(1))
        assert abs(z.mean()) < 4 / np.sqrt(seeds), (quantity, z.mean())
        if quantity == "log Z":
            most = tried.log_evidence_sd
        else:
            most = tried.expectation_sd if quantity in case.expectations else tried.probability_sd
        assert sd.max() < most / np.sqrt(share), (quantity, sd)


# Chains of single sites over many paths take long; where these are left out, test_kernels.py still has them. Ways to
# resample differ where there is more than one observation.
LEFT_OUT = {
    "LightweightMH": ("kalman", "hidden_markov", "hidden_branches", "barrier"),
    "RandomWalkMH": ("kalman", "hidden_markov", "hidden_branches", "barrier"),
    "SMC, stratified, always": ("normal_mean", "hidden_markov", "coin", "figure_two", "barrier", "survival"),
    "SMC, resample-move": ("hidden_markov", "coin", "figure_two", "barrier"),
    "SMC, multinomial": ("normal_mean", "hidden_markov", "coin", "figure_two", "barrier", "survival"),
}
# With half of its budget PMMH still depends on where it started. Chains of single sites compile their loops where there
# are many steps to make.
WITH_LOOPS = {("LightweightMH", "normal_mean"), ("RandomWalkMH", "coin")}
QUICK = [
    pytest.param(name, case, id=f"{name}-{case.name}")
    for name in ENGINES
    for case in CASES
    if case.name not in LEFT_OUT.get(name, ())
]


@pytest.mark.one_in(8)
@pytest.mark.parametrize(("name", "case"), QUICK)
def test_engine_agrees_with_the_exact_answer(name: str, case: Exact) -> None:
    share = 1.0 if name == "PMMH" or (name, case.name) in WITH_LOOPS else 0.5
    if hasattr(ENGINES[name].engine, "chains"):  # twice as many of the same length take as long as half of them
        check(name, case, seeds=1, share=2 * share, chains=2)
    else:
        check(name, case, seeds=2, share=share)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ENGINES)
def test_engine_agrees_over_twenty_seeds(name: str, case: Exact) -> None:
    check(name, case, seeds=20)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", ["normal_mean", "kalman", "coin", "figure_two", "survival"])
def test_importance_samples_around_the_chains_give_the_evidence(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    engine = engines.RandomWalkMH(importance_samples=0.5)
    for seed in range(2):
        posterior = ab.infer(case.program, *case.args, engine=engine, budget=20_000, seed=seed)
        assert abs(posterior.log_evidence - case.log_evidence) < 4 * posterior.log_evidence_sd
        assert posterior.log_evidence_sd < 0.1
