"""A program with many paths, all of them solved exactly: what the tests of wide programs work on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpyro.distributions as dist

import anabranch as ab
import solved
from anabranch.combine import Posterior, Solution
from anabranch.conquer.estimate import Estimate

SIZES = np.array([0.1, 1.0, -0.4, 0.7, 0.3, -0.9, 0.05])
PRIOR = 0.3
Y = 1.2


def selection(y: Any) -> None:
    """A sum of some of seven numbers is observed with noise: which ones?"""
    chosen = [i for i in range(len(SIZES)) if ab.sample(f"z{i}", dist.Bernoulli(PRIOR))]
    ab.deterministic("count", len(chosen))
    ab.observe("y", dist.Normal(SIZES[chosen].sum(), 0.5), y)


def posterior() -> Posterior:
    """Every path that was found, with its exact evidence."""
    division = ab.find_paths(selection, Y, executions=1500, seed=1)
    nothing = np.zeros((1, 0))
    solutions = []
    for path in division:
        log_density = float(path.evaluate(nothing, compile=False).log_density[0])
        solutions.append(Solution(path, Estimate.from_draws(nothing, np.zeros(1), log_density, 0.0, 1, "exact"), 1))
    return Posterior(division.program, solutions, solved.run())


def perturbed(posterior: Posterior, sd: float, rng: np.random.Generator) -> Posterior:
    """The same posterior with errors of its evidences."""
    solutions = []
    for each in posterior.solutions:
        assert each.estimate is not None
        log_evidence = each.log_evidence + sd * rng.normal()
        estimate = replace(each.estimate, log_evidence=log_evidence, log_evidence_sd=sd)
        solutions.append(replace(each, estimate=estimate))
    return Posterior(posterior.program, solutions, posterior.run)


def inclusion(posterior: Posterior) -> np.ndarray:
    """The probability that each number is in the sum, given that the path is one of those found."""
    codes = np.array([[int(site.value) for site in each.path.sites] for each in posterior.solutions])  # type: ignore[arg-type]
    log_joint = codes.sum(1) * np.log(PRIOR) + (1 - codes).sum(1) * np.log1p(-PRIOR) - 2 * (Y - codes @ SIZES) ** 2
    weights = np.exp(log_joint - log_joint.max())
    return np.asarray(weights @ codes / weights.sum())
