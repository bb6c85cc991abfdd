"""Ranks against those of SciPy."""

import numpy as np
import pytest
from scipy.stats import rankdata

from anabranch.conquer.ranks import average_ranks


@pytest.mark.parametrize("shape", [(50,), (40, 3), (1,), (7, 1)])
def test_ranks_are_those_of_scipy_with_and_without_ties(shape):
    rng = np.random.default_rng(0)
    for values in (rng.normal(size=shape), rng.integers(0, 5, shape).astype(float), np.zeros(shape)):
        np.testing.assert_array_equal(average_ranks(values), rankdata(values, axis=0))
    values = rng.normal(size=shape)
    values[0] = np.nan
    np.testing.assert_array_equal(average_ranks(values), rankdata(values, axis=0))
    values[0] = -np.inf
    np.testing.assert_array_equal(average_ranks(values), rankdata(values, axis=0))
