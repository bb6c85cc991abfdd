"""Mixtures refitted to the weights of their own draws."""

import numpy as np

from anabranch.conquer.mixture_fit import fit_to_points, fit_to_states, fit_to_weights
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.weights import effective_sample_size

CORNERS = np.stack(np.meshgrid(*[(-1.0, 1.0)] * 6), axis=-1).reshape(-1, 6)
"""The means of 64 components in six dimensions."""


def on_corners(sd: float, shares: np.ndarray, df: float) -> StudentMixture:
    scale_trils = np.tile(sd * np.eye(6), (len(CORNERS), 1, 1))
    return StudentMixture(CORNERS, scale_trils, shares, np.full(len(CORNERS), df))


def test_many_modes_survive_refits_to_few_draws():
    """Sixty-four modes with ten draws each, whose masses differ by factors of hundreds: no refit loses one of them."""
    rng = np.random.default_rng(0)
    shares = np.exp(rng.uniform(-6.0, 0.0, len(CORNERS)))
    target = on_corners(0.03, shares / shares.sum(), np.inf)
    proposal, broad = on_corners(0.033, np.full(64, 1 / 64), 5.0), StudentMixture.single(np.zeros(6), np.eye(6), 5.0)
    efficiencies = []
    for _ in range(6):
        points = proposal.joined(broad, 0.1).draw(640, rng)
        log_weights = target.log_density(points) - proposal.joined(broad, 0.1).log_density(points)
        efficiencies.append(effective_sample_size(log_weights) / len(points))
        proposal = fit_to_weights(
            proposal, broad, points, log_weights, lambda mixture, x=points: mixture.joined(broad, 0.1).log_density(x)
        )
    nearest = np.linalg.norm(proposal.means[:, None] - CORNERS, axis=2).min(axis=0)
    assert (nearest < 0.1).all()
    assert min(efficiencies[1:]) > efficiencies[0]
    assert efficiencies[-1] > 0.55


def test_few_states_in_many_dimensions_are_fitted_better_with_scales_near_their_diagonals():
    """Two clusters in twenty dimensions: the density of 300 points at others of the same distribution."""
    rng = np.random.default_rng(0)
    truth = StudentMixture(
        np.stack([np.zeros(20), np.full(20, 3.0)]), np.tile(np.eye(20), (2, 1, 1)), np.full(2, 0.5), np.full(2, np.inf)
    )
    points, others = truth.draw(300, rng), truth.draw(4_000, rng)
    by_points, by_states = (fit(points, np.random.default_rng(1)) for fit in (fit_to_points, fit_to_states))
    missing = (truth.log_density(others) - by_states.log_density(others)).mean()
    assert missing < 2.5
    assert missing < (truth.log_density(others) - by_points.log_density(others)).mean() - 0.5
