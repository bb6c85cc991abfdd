"""Climbing and polishing on densities whose modes and curvatures are known."""

from types import SimpleNamespace

import numpy as np
import pytest

from anabranch.conquer.ascent import climb, distinct, newton_step, polish, positive, race, race_cost, widths

PRECISION = np.array([[4.0, 1.0], [1.0, 0.5]])
CENTRE = np.array([1.0, -2.0])


class Normal:
    """A normal density of known height; with `wall`, only where the first coordinate is below it."""

    def __init__(self, wall: float = np.inf, height: float = 3.0) -> None:
        self.wall, self.height, self.evaluations = wall, height, 0

    def differentiate(self, points, inverse_temperature=1.0):
        self.evaluations += len(points)
        offset = points - CENTRE
        value = self.height - 0.5 * np.einsum("ni,ij,nj->n", offset, PRECISION, offset)
        inside = points[:, 0] < self.wall
        gradient = np.where(inside[:, None], -offset @ PRECISION, np.nan)
        return SimpleNamespace(log_density=np.where(inside, value, -np.inf), inside=inside), gradient


class TwoModes:
    """Equal normal modes of width 0.1 at -3 and 3."""

    def differentiate(self, points, inverse_temperature=1.0):
        near = np.where(points > 0, 3.0, -3.0)
        value = -0.5 * (((points - near) / 0.1) ** 2).sum(axis=1)
        return SimpleNamespace(log_density=value, inside=np.ones(len(points), bool)), -(points - near) / 0.01


SPREAD = np.array([2.0, 2.0])


def starts(n=32, seed=0):
    return 3.0 * np.random.default_rng(seed).standard_normal((n, 2))


def test_climbing_gets_near_the_mode():
    points, heights = climb(Normal(), starts(), SPREAD, 60)
    assert len(points) == 32
    assert (heights > 3.0 - 0.5).mean() > 0.5  # polishing does the rest
    np.testing.assert_allclose(points[np.argmax(heights)], CENTRE, atol=0.1)


def test_the_best_point_is_never_lost():
    target = Normal()
    begin = starts()
    _, heights = climb(target, begin, SPREAD, 8)
    assert heights.max() >= target.differentiate(begin)[0].log_density.max()


def test_climbers_stay_in_the_path():
    """The mode lies beyond the wall: what is returned is inside, and close to the wall."""
    begin = starts(64)
    begin[:, 0] = -np.abs(begin[:, 0])
    target = Normal(wall=0.0)
    points, heights = climb(target, begin, SPREAD, 60)
    assert np.isfinite(points).all()
    assert np.isfinite(heights).all()
    assert (points[:, 0] < 0).all()
    best = 3.0 - 0.5 * (4.0 - 1.0 / 0.5)  # on the wall: the Schur complement of the precision
    assert heights.max() == pytest.approx(best, abs=0.05)


def test_polishing_is_exact_on_a_normal():
    modes = polish(Normal(), starts(3), SPREAD)
    np.testing.assert_allclose(modes.points, np.tile(CENTRE, (3, 1)), atol=1e-4)
    np.testing.assert_allclose(modes.log_density, 3.0, atol=1e-6)
    np.testing.assert_allclose(modes.precision, np.tile(PRECISION, (3, 1, 1)), rtol=1e-6)
    exact = 3.0 + np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(PRECISION)[1]
    np.testing.assert_allclose(modes.log_mass, exact, atol=1e-6)


def test_both_of_two_modes_are_found():
    begin = 4 * np.random.default_rng(0).standard_normal((40, 1))
    points, heights = climb(TwoModes(), begin, np.ones(1), 60)
    modes = polish(TwoModes(), points[distinct(points, heights, np.ones(1), 10)], np.ones(1))
    assert {-3.0, 3.0} <= {round(float(x), 3) for x in modes.points[:, 0]}
    np.testing.assert_allclose(modes.precision[:2, 0, 0], 100.0, rtol=1e-4)


def test_distinct_points_are_the_best_of_those_that_are_close():
    points = np.array([[0.0], [0.01], [1.0], [5.0], [9.0]])
    heights = np.array([1.0, 2.0, 0.0, 3.0, -np.inf])
    assert distinct(points, heights, np.ones(1), 10).tolist() == [3, 1, 2]
    assert distinct(points, heights, np.ones(1), 2).tolist() == [3, 1]
    assert distinct(points, np.full(5, -np.inf), np.ones(1), 2).tolist() == []


def test_a_step_goes_uphill_where_the_curvature_has_the_wrong_sign():
    rng = np.random.default_rng(0)
    hessian = rng.standard_normal((20, 3, 3))
    hessian = hessian + hessian.transpose(0, 2, 1)
    gradient = rng.standard_normal((20, 3))
    step = newton_step(gradient, hessian, np.full(20, 1e-3), np.array([1.0, 10.0, 0.1]))
    assert (np.einsum("ni,ni->n", step, gradient) > 0).all()


def test_curvatures_are_made_positive_and_no_flatter_than_the_prior():
    spread = np.array([2.0, 0.5])
    [fixed] = positive(np.diag([-3.0, 1e-9])[None], spread)
    np.testing.assert_allclose(fixed, np.diag([3.0, 0.25 / 0.25]), atol=1e-9)
    np.testing.assert_allclose(positive(PRECISION[None], np.full(2, 10.0))[0], PRECISION)
    np.testing.assert_allclose(widths(np.diag([100.0, 1e-9])[None], spread), [[0.1, 0.5]])


# Races


class Comb:
    """Modes at the whole numbers from -20 to 20, the higher the nearer to 7."""

    def __init__(self) -> None:
        self.evaluations = 0

    def differentiate(self, points, inverse_temperature=1.0):
        self.evaluations += len(points)
        tooth = np.clip(np.round(points), -20, 20)
        value = -np.abs(tooth - 7.0) - 50 * (points - tooth) ** 2
        return SimpleNamespace(log_density=value[:, 0], inside=np.ones(len(points), bool)), -100 * (points - tooth)


@pytest.mark.parametrize("n", [10, 64, 100, 500])
def test_a_race_costs_what_it_says(n):
    target = Comb()
    begin = np.random.default_rng(0).normal(0.0, 8.0, (n, 1))
    race(target, begin, np.array([8.0]), 40)
    assert target.evaluations == race_cost(n, 40)


def test_the_lowest_drop_out_of_a_race():
    """As many evaluations as climbs of equal length, and more of them are spent near the highest modes."""
    rng, spread = np.random.default_rng(0), np.array([0.3])
    raced, equal = Comb(), Comb()
    _, heights = race(raced, rng.normal(0.0, 8.0, (600, 1)), spread, 40)
    _, others = climb(equal, rng.normal(0.0, 8.0, (raced.evaluations // 41, 1)), spread, 40)
    assert equal.evaluations <= raced.evaluations
    assert len(heights) == 64
    assert (heights > -1.5).sum() > 2 * (others > -1.5).sum()


def test_a_race_keeps_equal_modes():
    points, _ = race(TwoModes(), np.random.default_rng(0).normal(0.0, 4.0, (600, 1)), np.ones(1), 40)
    assert 0.2 < (points > 0).mean() < 0.8
