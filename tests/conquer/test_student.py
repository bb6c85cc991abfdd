"""Mixtures of Student-t distributions: densities, draws and refits."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import multivariate_normal, multivariate_t

from anabranch.conquer.student import StudentMixture, safe_cholesky

SCALE = np.array([[2.0, 0.6], [0.6, 0.5]])


def pair() -> StudentMixture:
    means, scale_trils = np.array([[0.0, 1.0], [3.0, -2.0]]), np.stack([safe_cholesky(SCALE), np.eye(2)])
    return StudentMixture(means, scale_trils, np.array([0.3, 0.7]), np.array([4.0, np.inf]))


def test_the_density_is_that_of_scipy():
    points = np.random.default_rng(0).normal(0.0, 3.0, (50, 2))
    first = multivariate_t([0.0, 1.0], SCALE, df=4.0).pdf(points)
    second = multivariate_normal([3.0, -2.0], np.eye(2)).pdf(points)
    np.testing.assert_allclose(np.exp(pair().log_density(points)), 0.3 * first + 0.7 * second, rtol=1e-10)


def test_the_density_integrates_to_one():
    mixture = StudentMixture(
        np.array([[0.0], [5.0]]), np.array([[[1.0]], [[0.2]]]), np.array([0.4, 0.6]), np.full(2, 3)
    )
    pieces = [(-np.inf, -5.0), (-5.0, 4.0), (4.0, 6.0), (6.0, np.inf)]
    total = sum(quad(lambda x: float(np.exp(mixture.log_density(np.array([[x]])))[0]), *piece)[0] for piece in pieces)
    assert total == pytest.approx(1.0, abs=1e-6)


def test_draws_have_the_density_they_say():
    """The mean of p/q over draws from q is one, for a density p of another shape."""
    points = pair().draw(200_000, np.random.default_rng(1))
    other = multivariate_normal([1.0, -0.5], 0.5 * np.eye(2)).logpdf(points)
    ratio = np.exp(other - pair().log_density(points))
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / np.sqrt(len(ratio))


def test_components_are_drawn_independently():
    """The number from each is binomial: with stratified draws the scatter of the weights would overstate the error."""
    mixture = StudentMixture(
        np.array([[-100.0], [100.0]]), np.ones((2, 1, 1)), np.array([0.25, 0.75]), np.full(2, np.inf)
    )
    counts = np.array([(mixture.draw(400, np.random.default_rng(seed)) < 0).sum() for seed in range(300)])
    assert abs(counts.mean() - 100) < 4 * np.sqrt(75 / 300)
    assert 0.8 < counts.var() / 75 < 1.25


def test_refits_find_the_mean_and_the_scale():
    rng = np.random.default_rng(4)
    points = rng.multivariate_normal([1.0, -1.0], SCALE, 20_000)
    mixture = StudentMixture(np.zeros((1, 2)), np.eye(2)[None] * 3, np.ones(1), np.array([np.inf]))
    for _ in range(3):
        mixture = mixture.refitted(points, np.ones(len(points)))
    np.testing.assert_allclose(mixture.means[0], [1.0, -1.0], atol=0.04)
    np.testing.assert_allclose(mixture.scale_trils[0] @ mixture.scale_trils[0].T, SCALE, atol=0.06)


def test_refits_follow_the_weights_and_drop_what_explains_nothing():
    points = np.concatenate([np.full((500, 1), -4.0), np.full((500, 1), 4.0)])
    points = points + 0.3 * np.random.default_rng(5).standard_normal(points.shape)
    mixture = StudentMixture(np.array([[-4.0], [4.0]]), np.full((2, 1, 1), 0.3), np.full(2, 0.5), np.full(2, 5.0))
    weights = np.where(points[:, 0] < 0, 3.0, 1.0)
    np.testing.assert_allclose(mixture.refitted(points, weights).shares, [0.75, 0.25], atol=0.01)
    alone = mixture.refitted(points, np.where(points[:, 0] < 0, 1.0, 0.0))
    assert len(alone) == 1
    assert alone.means[0, 0] == pytest.approx(-4.0, abs=0.1)


def test_a_component_on_one_point_does_not_collapse():
    mixture = StudentMixture(np.zeros((1, 3)), np.eye(3)[None], np.ones(1), np.array([5.0]))
    for _ in range(10):
        mixture = mixture.refitted(np.ones((1, 3)), np.ones(1))
    assert np.diag(mixture.scale_trils[0]).min() > 1e-3


@pytest.mark.parametrize(
    "joined", [lambda m: m.joined(StudentMixture.single(np.zeros(2), np.eye(2), 3.0), 0.1), lambda m: m.joined(m, 0.2)]
)
def test_shares_still_sum_to_one(joined):
    mixture = joined(pair())
    assert mixture.shares.sum() == pytest.approx(1.0)
    assert len(mixture.df) == len(mixture.scale_trils) == len(mixture)


def test_what_is_joined_takes_its_share():
    points = np.random.default_rng(6).normal(size=(20, 2))
    one, other = pair(), pair().with_df(3.0)
    expected = 0.8 * np.exp(one.log_density(points)) + 0.2 * np.exp(other.log_density(points))
    np.testing.assert_allclose(np.exp(one.joined(other, 0.2).log_density(points)), expected, rtol=1e-10)


def test_a_scale_that_is_not_positive_gets_a_root():
    for scale in (np.zeros((2, 2)), np.array([[1.0, 1.0], [1.0, 1.0]]), np.diag([1.0, -1.0])):
        scale_tril = safe_cholesky(scale)
        assert np.isfinite(scale_tril).all()
        assert (np.diag(scale_tril) > 0).all()
    np.testing.assert_allclose(safe_cholesky(SCALE) @ safe_cholesky(SCALE).T, SCALE)
