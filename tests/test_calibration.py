"""The check of standard errors itself: how often it is wrong, and what it sees."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from calibration import FALSE_ALARMS, MAX_POOLS, MIN_SCORES, SLACK, bounds, check_calibrated

LEVEL = FALSE_ALARMS / MAX_POOLS / 2


def test_the_pools_are_no_more_than_share_the_false_alarms():
    here = Path(__file__)
    texts = [path.read_text() for path in here.parent.rglob("test_*.py") if path != here]
    pools = sum(len(re.findall(r"^ +check_calibrated\(", text, re.MULTILINE)) for text in texts)
    assert 0 < pools <= MAX_POOLS
    assert FALSE_ALARMS < 1e-3


@pytest.mark.parametrize("n", [10, MIN_SCORES])
def test_right_standard_errors_exceed_the_bounds_as_seldom_as_stated(n):
    low, high, mean = bounds(n, 0.04)
    z = np.random.default_rng(n).standard_normal((10_000, n))
    for wrong_by in (1 / SLACK, 1.0, SLACK):
        square, average = ((wrong_by * z) ** 2).mean(axis=1), wrong_by * z.mean(axis=1)
        for outside, share in ((square < low, 0.01), (square > high, 0.01), (np.abs(average) > mean, 0.02)):
            assert outside.mean() < share + 5 * np.sqrt(share / 10_000)


def test_a_pool_sees_a_wrong_standard_error_and_a_bias():
    """In closed form, of the smallest pool: the power of each bound."""
    n = MIN_SCORES
    low, high, mean = bounds(n, LEVEL)
    assert stats.chi2(n).sf(n * high / 1.3**2) > 0.9  # z too large by 30 %: the standard error is too small
    assert stats.chi2(n).cdf(n * low * 1.3**2) > 0.9  # the standard error is too large by 30 %
    assert stats.norm.sf((mean - 0.5) * np.sqrt(n)) > 0.99


@pytest.mark.parametrize("fault", [lambda z: 1.3 * z, lambda z: z / 1.3, lambda z: z + 0.5, lambda z: z - 0.5])
def test_planted_faults_are_seen(fault):
    z = np.random.default_rng(0).standard_normal((4, MIN_SCORES // 4))
    check_calibrated(dict(zip("abcd", z, strict=True)))
    with pytest.raises(AssertionError, match="all: of 400 z-scores"):
        check_calibrated(dict(zip("abcd", fault(z), strict=True)))


def test_a_part_that_is_wrong_is_named():
    z = np.random.default_rng(0).standard_normal((8, 50))
    z[3] += 1.0
    with pytest.raises(AssertionError, match=r"^d: of 50"):
        check_calibrated(dict(zip("abcdefgh", z, strict=True)))


def test_few_scores_are_no_pool():
    with pytest.raises(AssertionError):
        check_calibrated({"few": np.zeros(MIN_SCORES - 1)})


@pytest.mark.parametrize("z", [np.nan, np.inf])
def test_an_error_that_is_no_number_is_seen(z):
    with pytest.raises(AssertionError):
        check_calibrated({"some": np.r_[np.random.default_rng(0).standard_normal(MIN_SCORES), z]})


def test_standard_errors_that_are_infinite_are_seen():
    with pytest.raises(AssertionError):
        check_calibrated({"all": np.zeros(MIN_SCORES)})
