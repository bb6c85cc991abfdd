"""Every engine against exact answers: within four of its own standard errors at every seed, and without a bias.

Over n seeds the mean of the errors, in standard errors, scatters by 1/√n: with 20, a bias of one of them is seen.
"""

from __future__ import annotations

import numpy as np
import pytest

import anabranch as ab
from anabranch import engines
from engine_cases import CASES, scores
from exact import Exact

PEAK = -0.5 * np.log(2 * np.pi)  # of the log density of a standard normal
BOUNDS = {
    "normal_mean": 3 * (PEAK - np.log(1.5)),
    "kalman": 6 * (PEAK - np.log(0.8)),
    "hidden_markov": 6 * PEAK,
    "hidden_branches": 4 * PEAK,
    # Four deaths in one group and two in the other: no rates make these data more likely than those that suit them.
    "survival": 4 * (np.log(4 / 7.2) - 1) + 2 * (np.log(2 / 13.1) - 1),
}
"""What the log likelihood of a program never exceeds; zero for the others."""
ENGINES = {
    "ImportanceSampling": (engines.ImportanceSampling(), 4_000),
    "Rejection": (engines.Rejection(log_bound=0.0), 25_000),
    "SMC": (engines.SMC(particles=100), 8_000),
    "SMC, stratified, always": (engines.SMC(particles=100, resampling="stratified", threshold=1.0), 8_000),
    "SMC, multinomial": (engines.SMC(particles=100, resampling="multinomial"), 8_000),
    "ParticleGibbs": (engines.ParticleGibbs(particles=10, chains=50), 20_000),
    "ParticleGibbs, ancestors": (engines.ParticleGibbs(particles=10, chains=50, ancestor_sampling=True), 20_000),
    "PIMH": (engines.PIMH(particles=10, chains=50), 20_000),
    "PMMH": (engines.PMMH(particles=5, chains=50), 20_000),
    "IPMCMC": (engines.IPMCMC(particles=10, chains=50, nodes=4, conditional=2), 24_000),
    "LightweightMH": (engines.LightweightMH(chains=50), 30_000),
    "RandomWalkMH": (engines.RandomWalkMH(chains=50), 30_000),
}


def errors(name: str, case: Exact, seeds: int) -> dict[str, np.ndarray]:
    """The errors of an engine in its own standard errors, by what it was asked, one for each seed."""
    engine, budget = ENGINES[name]
    if name == "Rejection":
        engine = engines.Rejection(log_bound=BOUNDS.get(case.name, 0.0))
    z = [
        scores(case, ab.infer(case.program, *case.args, engine=engine, budget=budget, seed=seed, tolerance=None))
        for seed in range(seeds)
    ]
    return {quantity: np.array([each[quantity] for each in z]) for quantity in z[0]}


def check(name: str, case: Exact, seeds: int) -> None:
    for quantity, z in errors(name, case, seeds).items():
        assert np.abs(z).max() < 4, (quantity, z.round(1))
        assert abs(z.mean()) < 4 / np.sqrt(seeds), (quantity, z.mean())


# Chains over many paths take long; where these are left out, test_kernels.py still has them.
QUICK = [
    pytest.param(name, case, id=f"{name}-{case.name}")
    for name in ENGINES
    for case in CASES
    if not (name.endswith("MH") and case.name in ("kalman", "hidden_markov", "hidden_branches", "barrier"))
]


@pytest.mark.parametrize(("name", "case"), QUICK)
def test_engine_agrees_with_the_exact_answer(name: str, case: Exact) -> None:
    check(name, case, seeds=3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("name", ENGINES)
def test_engine_agrees_over_twenty_seeds(name: str, case: Exact) -> None:
    check(name, case, seeds=20)


@pytest.mark.parametrize("name", ["normal_mean", "kalman", "coin", "figure_two", "survival"])
def test_importance_samples_around_the_chains_give_the_evidence(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    engine = engines.RandomWalkMH(importance_samples=0.5)
    for seed in range(4):
        posterior = ab.infer(case.program, *case.args, engine=engine, budget=20_000, seed=seed)
        assert abs(posterior.log_evidence - case.log_evidence) < 4 * posterior.log_evidence_sd
        assert posterior.log_evidence_sd < 0.1
