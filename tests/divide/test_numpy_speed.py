"""What the NumPy evaluator does for speed changes no result: short rows, vanishing exponentials, known arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anabranch.divide import numpy_backend
from anabranch.divide.numpy_backend import elementwise, shapes

ROWS = np.random.default_rng(0).normal(size=(40, 30, 7))


def jaxpr_of(function, *args):
    with jax.enable_x64(True):
        return jax.make_jaxpr(function)(*args)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("array", [ROWS, ROWS.transpose(0, 2, 1), ROWS.astype(np.float32), ROWS[:, :, :1]])
def test_many_short_rows_are_reduced_as_any_others(array, axis):
    tolerance = 1e-5 if array.dtype == np.float32 else 1e-12
    total = shapes.total(array, (axis,))
    assert total.dtype == array.dtype
    np.testing.assert_allclose(total, array.sum(axis=axis + 1), rtol=tolerance, atol=tolerance)
    largest = shapes.extremum(np.maximum, array, (axis,), empty_is_highest=False)
    np.testing.assert_array_equal(largest, array.max(axis=axis + 1))


def test_short_rows_keep_what_is_no_number():
    array = ROWS.copy()
    array[3, 4, 5], array[6, 7, 1] = np.nan, np.inf
    assert np.isnan(shapes.total(array, (1,))[3, 4])
    assert np.isnan(shapes.extremum(np.maximum, array, (1,), empty_is_highest=False)[3, 4])
    assert shapes.extremum(np.maximum, array, (1,), empty_is_highest=False)[6, 7] == np.inf


@pytest.mark.parametrize("n", [10, 5_000])
def test_exponentials_below_the_least_normal_number_vanish(n):
    values = np.linspace(-1_500, 700, n)
    values[[0, -1]] = -np.inf, np.inf
    with np.errstate(over="ignore", under="ignore"):
        got, want = elementwise.exp(values), np.exp(values)
    normal = values >= np.log(np.finfo(float).tiny)
    np.testing.assert_array_equal(got[normal], want[normal])
    assert (got[~normal] < 1e-300).all()


def test_many_exponentials_keep_what_is_no_number():
    values = np.full(5_000, -1e4)
    values[7] = np.nan
    with np.errstate(under="ignore"):
        assert np.flatnonzero(np.isnan(elementwise.exp(values))).tolist() == [7]


def density(x, scale, shift, is_in):
    terms = jnp.where(is_in, -0.5 * ((x - jnp.sum(shift)) / scale) ** 2 - jnp.log(scale), -jnp.inf)
    return jnp.sum(terms), 1.0 * x, jnp.exp(-x)


@pytest.mark.parametrize("is_in", [[True, True], [True, False]])
def test_known_arguments_are_looked_at_once(is_in):
    known = [np.array([[1.0, 2.0]]), np.array([[0.5, 0.25, 0.125]]), np.array([is_in])]
    jaxpr = jaxpr_of(density, np.zeros(2), *[each[0] for each in known])
    evaluate = numpy_backend.prepared(jaxpr, known)
    for n in (1, 6, 3):
        points = np.random.default_rng(n).normal(size=(n, 2))
        for got, want in zip(evaluate([points]), numpy_backend.evaluate_jaxpr(jaxpr, [points, *known]), strict=True):
            np.testing.assert_array_equal(np.broadcast_to(got, want.shape), want)


def test_only_the_first_results_are_computed_if_no_more_are_asked_for():
    known = [np.array([[1.0, 2.0]]), np.array([[0.5, 0.25, 0.125]]), np.array([[True, True]])]
    jaxpr = jaxpr_of(density, np.zeros(2), *[each[0] for each in known])
    points = np.ones((4, 2))
    some, every = (numpy_backend.prepared(jaxpr, known, results)([points]) for results in (2, None))
    assert (len(some), len(every)) == (2, 3)
    for got, want in zip(some, every, strict=False):
        np.testing.assert_array_equal(got, want)


def test_the_results_of_a_jaxpr_may_be_its_arguments_or_constants():
    jaxpr = jaxpr_of(lambda x, y: (x, y, jnp.zeros(2), 1.0 * y), np.zeros(2), np.zeros(3))
    x, y = np.ones((5, 2)), np.full((1, 3), 2.0)
    for results in (numpy_backend.evaluate_jaxpr(jaxpr, [x, y]), numpy_backend.prepared(jaxpr, [y])([x])):
        for got, want in zip(results, (x, y, np.zeros((1, 2)), y), strict=True):
            np.testing.assert_array_equal(got, want)
