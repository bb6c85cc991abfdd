"""What importance weights say of themselves."""

import numpy as np
import pytest

from anabranch.conquer.weights import effective_sample_size, log_mean, pareto_k, relative_sd, systematic


def test_the_mean_counts_weights_of_zero():
    assert log_mean(np.log([1.0, 3.0])) == pytest.approx(np.log(2.0))
    assert log_mean(np.array([0.0, -np.inf, -np.inf, -np.inf])) == pytest.approx(np.log(0.25))
    assert log_mean(np.array([-5000.0, -5000.0])) == pytest.approx(-5000.0)
    assert log_mean(np.zeros(0)) == -np.inf
    assert log_mean(np.full(3, -np.inf)) == -np.inf


def test_the_spread_is_relative_to_the_mean():
    weights = np.array([1.0, 2.0, 3.0, 0.0])
    with np.errstate(divide="ignore"):
        logs = np.log(weights)
    assert relative_sd(logs) == pytest.approx(weights.std() / weights.mean())
    assert relative_sd(logs + 900.0) == pytest.approx(relative_sd(logs))
    assert relative_sd(np.full(3, -np.inf)) == np.inf


def test_the_effective_size():
    assert effective_sample_size(np.full(7, -3.0)) == pytest.approx(7.0)
    assert effective_sample_size(np.array([0.0, -np.inf, -800.0])) == pytest.approx(1.0)
    assert effective_sample_size(np.log([1.0, 2.0])) == pytest.approx(9 / 5)
    assert effective_sample_size(np.full(4, -np.inf)) == 0.0
    assert effective_sample_size(np.zeros(0)) == 0.0


def test_systematic_resampling_takes_each_entry_as_often_as_its_weight_says():
    weights = np.array([0.0, 3.0, 0.4, 0.0, 6.6, 0.0])
    chosen = systematic(weights, 25, np.random.default_rng(0))
    assert list(chosen) == sorted(chosen)
    counts = np.bincount(chosen, minlength=len(weights))
    assert (np.abs(counts - 25 * weights / weights.sum()) < 1).all()
    assert not counts[weights == 0].any()


def test_rounding_takes_no_entry_without_weight():
    class Last:
        def uniform(self):
            return np.nextafter(1.0, 0.0)  # so that the last position is the sum of all weights

    assert list(systematic(np.array([1.0, 2.0, 0.0]), 3, Last())) == [1, 1, 1]


@pytest.mark.parametrize("k", [0.2, 0.5, 0.9])
def test_the_shape_of_a_tail_is_found(k):
    """Of weights with a Pareto tail, averaged over seeds; the prior of the fit pulls a little towards a half."""
    found = [pareto_k(np.log(np.random.default_rng(seed).uniform(size=10_000) ** -k)) for seed in range(20)]
    assert np.mean(found) == pytest.approx(k, abs=0.06)


def test_light_tails_have_a_small_shape():
    assert pareto_k(np.random.default_rng(0).uniform(-0.5, 0.5, 5000)) < 0.3


def test_where_there_is_no_tail():
    assert np.isnan(pareto_k(np.zeros(10)))
    assert np.isnan(pareto_k(np.full(100, -np.inf)))
    assert pareto_k(np.zeros(1000)) == -np.inf
    mostly_zero = np.full(1000, -np.inf)
    mostly_zero[:3] = 0.0
    assert pareto_k(mostly_zero) == np.inf


def test_a_shift_changes_nothing():
    logs = np.random.default_rng(1).normal(0.0, 1.5, 2000)
    assert pareto_k(logs - 4000.0) == pytest.approx(pareto_k(logs), abs=1e-6)
