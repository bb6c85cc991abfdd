"""Diagnostics of chains, against sizes that are known and values that ArviZ 0.23 gave for the same chains."""

import numpy as np
import pytest

from anabranch.conquer.chains import chain_ess, split_r_hat


def autoregressive(coefficients, steps=401, chains=4, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((chains, steps, len(coefficients)))
    out = np.zeros_like(noise)
    for t in range(1, steps):
        out[:, t] = np.asarray(coefficients) * out[:, t - 1] + noise[:, t]
    return out


def test_r_hat_is_that_of_arviz():
    chains = autoregressive([0.0, 0.8, -0.4])
    chains[..., 1] = chains[..., 1].round()
    shifted = chains**3 + np.arange(4)[:, None, None]
    for of, expected in (
        (chains, [1.003424021639173, 1.02848236953688, 1.0069898152184682]),
        (shifted, [1.2489365329422208, 1.0784258699848133, 1.1545286527339853]),
    ):
        each = [split_r_hat(of[:, :, [j]]) for j in range(3)]
        np.testing.assert_allclose(each, expected, rtol=1e-10)
        assert split_r_hat(of) == max(each)


def test_r_hat_sees_a_difference_in_scale_alone():
    chains = np.random.default_rng(1).standard_normal((4, 500, 1)) * np.array([1.0, 1.0, 1.0, 3.0])[:, None, None]
    assert split_r_hat(chains) > 1.05


def test_r_hat_sees_a_drift_that_all_chains_share():
    chains = np.random.default_rng(2).standard_normal((4, 500, 1)) + np.linspace(0, 3, 500)[:, None]
    assert split_r_hat(chains) > 1.2


@pytest.mark.parametrize("coefficient", [0.0, 0.5, 0.9])
def test_effective_size_of_autoregressive_chains(coefficient):
    """An autoregressive chain has τ = (1 + φ)/(1 − φ)."""
    chains = autoregressive([coefficient] * 8, steps=4000)
    expected = 4 * 4000 * (1 - coefficient) / (1 + coefficient)
    np.testing.assert_allclose(chain_ess(chains).mean(), expected, rtol=0.06)


def test_antithetic_chains_are_worth_more_than_independent_draws():
    assert chain_ess(autoregressive([-0.5], steps=2000))[0] > 2 * 4 * 2000


def test_ranks_do_not_mind_heavy_tails():
    chains = np.random.default_rng(3).standard_cauchy((4, 1000, 1))
    assert split_r_hat(chains) < 1.01
    assert chain_ess(chains)[0] > 3000


def test_coordinates_that_stand_still():
    still = np.ones((4, 10, 1))
    assert np.isnan(split_r_hat(still))
    assert chain_ess(still)[0] == 40
    apart = still * np.arange(4)[:, None, None]
    assert split_r_hat(apart) == np.inf
    assert chain_ess(apart)[0] < 10
    moving = np.random.default_rng(4).standard_normal((4, 500, 1))
    assert split_r_hat(np.concatenate([moving, np.ones_like(moving)], axis=2)) == split_r_hat(moving)


def test_too_little_to_tell():
    assert np.isnan(split_r_hat(np.zeros((4, 3, 2))))
    assert np.isnan(split_r_hat(np.zeros((4, 100, 0))))
    assert np.isnan(chain_ess(np.zeros((4, 3, 2)))).all()
    with pytest.raises(ValueError, match=r"shape \(chains, steps, coordinates\)"):
        split_r_hat(np.zeros((4, 3)))
