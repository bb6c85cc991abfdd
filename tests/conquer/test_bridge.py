"""Bridge sampling against integrals that are known, and its error against the scatter over seeds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.special import gammaln

from anabranch.conquer.bridge import Side, bridge, crossed, fit_proposal
from anabranch.conquer.student import StudentMixture
from calibration import check_calibrated


def generators(case: int, seeds: int) -> list[np.random.Generator]:
    """Different ones for each case, so that their errors are independent."""
    return [np.random.default_rng([case, seed]) for seed in range(seeds)]


def student(dim: int, df: float = np.inf, width: float = 1.0, mean: float = 0.0) -> StudentMixture:
    return StudentMixture(np.full((1, dim), mean), width * np.eye(dim)[None], np.ones(1), np.array([df]))


class Skewed:
    """A density with log-gamma coordinates: γ integrates to exp(shift)."""

    def __init__(self, dim: int, shift: float = 0.0) -> None:
        self.dim, self.shift = dim, shift

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return np.log(rng.gamma(3.0, size=(n, self.dim)))

    def log_density(self, points: np.ndarray) -> np.ndarray:
        return (3 * points - np.exp(points) - gammaln(3)).sum(axis=1) + self.shift

    def evaluate(self, points: np.ndarray) -> Any:
        return SimpleNamespace(log_density=self.log_density(points))


# The error ------------------------------------------------------------------------------------------------------------


def independent_draws(n, proposals, seeds):
    target, proposal = Skewed(3, shift=7.0), student(3, df=5.0, width=0.8, mean=0.9)
    z = []
    for rng in generators(n, seeds):
        x, y = target.draw(n, rng), proposal.draw(proposals, rng)
        parts = [d.log_density(p) for p in (x, y) for d in (target, proposal)]
        log_z, sd = bridge(*parts, n)
        assert sd < 0.1
        z.append((log_z - 7.0) / sd)
    return z


def proposals_outside_the_path(seeds):
    """A normal cut in half: half of the proposal's draws have no density, and Z is a half."""
    z = []
    for rng in generators(1, seeds):
        proposal = student(1, df=10.0)
        x, y = np.abs(rng.standard_normal((500, 1))), proposal.draw(500, rng)
        normal = student(1)
        at_y = np.where(y[:, 0] > 0, normal.log_density(y), -np.inf)
        log_z, sd = bridge(normal.log_density(x), proposal.log_density(x), at_y, proposal.log_density(y), 500)
        z.append((log_z - np.log(0.5)) / sd)
    return z


def chains_of(target: Any, rng: np.random.Generator, steps: int) -> tuple[np.ndarray, np.ndarray]:
    points = target.draw(4 * steps, rng)
    return points.reshape(4, steps, -1), target.log_density(points).reshape(4, steps)


def cross_fitting(dim, seeds):
    """Few draws for each parameter of the proposal: fitted to the draws it is bridged to, it would be biased."""
    target, z = Skewed(dim), []
    for rng in generators(10 + dim, seeds):
        chains, log_density = chains_of(target, rng, steps=75)
        even, odd = (Side.fitted(half, 0.6 * np.eye(dim)) for half in (chains[0::2], chains[1::2]))
        even, odd = (side.extended(target, 150, rng) for side in (even, odd))
        log_z, sd = crossed(even.bridged(chains[1::2], log_density[1::2]), odd.bridged(chains[::2], log_density[::2]))
        z.append(log_z / sd)
    return np.sqrt(1.5) * np.array(z)  # two halves count as if they were correlated by a half; here they are not


def autocorrelated_draws(seeds):
    """An autoregressive chain, with ρ = 0.9: the error must be that of the draws it is worth, not of all.

    The proposal is narrower than the posterior, so that its own draws do not settle Z.
    """
    rho, target, proposal, z, naive = 0.9, student(1), student(1, width=0.5), [], []
    for rng in generators(2, seeds):
        noise = np.sqrt(1 - rho**2) * rng.standard_normal((1000, 2, 1))
        noise[0] /= np.sqrt(1 - rho**2)
        chains = lfilter([1.0], [1.0, -rho], noise, axis=0).swapaxes(0, 1)
        log_density = target.log_density(chains.reshape(-1, 1)).reshape(2, 1000)
        proposed = proposal.draw(2000, rng)
        side = Side(proposal, target.log_density(proposed), proposal.log_density(proposed))
        log_z, sd = side.bridged(chains, log_density)
        z.append(log_z / sd)
        all_draws = log_density.ravel(), proposal.log_density(chains.reshape(-1, 1))
        naive.append(log_z / bridge(*all_draws, side.log_target, side.log_proposal, 2000)[1])
    assert np.std(naive) > 1.5
    return np.array(z) / 1.1  # of so few independent draws the autocorrelation is known to a tenth or so, and too small


@pytest.mark.parametrize("seeds", [40, pytest.param(120, marks=pytest.mark.slow)])
def test_the_errors_are_calibrated(seeds):
    sizes = [(400, 400), (1000, 200), (200, 1000)]
    check_calibrated(
        {f"{n} draws, {m} proposals": independent_draws(n, m, seeds) for n, m in sizes}
        | {"proposals outside the path": proposals_outside_the_path(seeds)}
        | {f"cross-fitting in {dim} dimensions": cross_fitting(dim, seeds) for dim in (1, 8)}
        | {"autocorrelated draws": autocorrelated_draws(seeds)},
        min_scores=7 * seeds,
    )


# Answers --------------------------------------------------------------------------------------------------------------


def test_the_root_is_the_fixed_point_of_the_iteration():
    rng = np.random.default_rng(0)
    target, proposal = Skewed(2), student(2, mean=1.0)
    x, y = target.draw(300, rng), proposal.draw(500, rng)
    parts = [d.log_density(p) for p in (x, y) for d in (target, proposal)]
    log_z, _ = bridge(*parts, 150.0)
    at_draws, at_proposals = np.exp(parts[0] - parts[1]), np.exp(parts[2] - parts[3])
    s1, s2, z = 150 / 650, 500 / 650, 1.0
    for _ in range(200):
        z = (at_proposals / (s1 * at_proposals + s2 * z)).mean() / (1 / (s1 * at_draws + s2 * z)).mean()
    assert log_z == pytest.approx(np.log(z), abs=1e-9)


def test_thousands_of_nats_are_only_a_shift():
    def answer(shift: float) -> tuple[float, float]:
        rng = np.random.default_rng(1)
        target, proposal = Skewed(2, shift), student(2, mean=1.0)
        x, y = target.draw(300, rng), proposal.draw(300, rng)
        return bridge(*[d.log_density(p) for p in (x, y) for d in (target, proposal)], 300)

    here, there = answer(0.0), answer(-5000.0)
    assert there == (pytest.approx(here[0] - 5000.0, abs=1e-6), pytest.approx(here[1], rel=1e-6))


def test_a_proposal_that_never_meets_the_path_says_nothing():
    log_z, sd = bridge(np.zeros(10), np.zeros(10), np.full(10, -np.inf), np.zeros(10), 10)
    assert (log_z, sd) == (-np.inf, np.inf)


def test_more_draws_of_a_side_keep_those_it_has():
    rng = np.random.default_rng(0)
    target = Skewed(2)
    side = Side.fitted(target.draw(100, rng).reshape(2, 50, 2), np.eye(2)).extended(target, 20, rng)
    more = side.extended(target, 50, rng)
    assert len(side.log_target) == 20
    assert len(more.log_target) == len(more.log_proposal) == 50
    np.testing.assert_array_equal(more.log_target[:20], side.log_target)
    assert more.extended(target, 50, rng) is more


def test_two_answers_that_disagree_say_so():
    assert crossed((1.0, 0.1), (1.1, 0.1)) == (pytest.approx(1.05), pytest.approx(0.05 * np.sqrt(3)))
    assert crossed((1.0, 0.1), (5.0, 0.1)) == (3.0, 2.0)
    assert crossed((1.0, 0.1), (-np.inf, np.inf)) == (1.0, np.inf)


def test_the_tails_of_the_proposal_are_those_of_the_draws():
    rng = np.random.default_rng(0)
    heavy, light = student(4, df=4.0).draw(4000, rng), student(4).draw(4000, rng)
    assert fit_proposal(heavy, np.eye(4)).df[0] == 4.0
    assert fit_proposal(light, np.eye(4)).df[0] >= 30.0


def test_few_draws_keep_to_the_root_that_was_known():
    scale_tril = np.linalg.cholesky(np.full((30, 30), 0.9) + 0.1 * np.eye(30))
    draws = np.random.default_rng(0).standard_normal((20, 30)) @ scale_tril.T
    fit = fit_proposal(draws, scale_tril)
    whitened = np.linalg.solve(scale_tril, fit.scale_trils[0])
    assert np.linalg.cond(whitened) < 10  # of the draws alone it would be infinite
