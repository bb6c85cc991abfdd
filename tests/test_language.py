"""The statements pass on to NumPyro, with addresses for unnamed sites and plain refusals of wrong arguments."""

import inspect

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats
from numpyro.handlers import seed, trace

from anabranch.addresses import execution
from anabranch.errors import OutsideProgram, UnnamedSite
from anabranch.language import deterministic, factor, observe, sample


def sites(program, *args):
    with execution(program):
        return trace(seed(program, 0)).get_trace(*args)


def test_named_sites_are_those_of_numpyro():
    def program():
        x = sample("x", dist.Normal(0.0, 1.0))
        observe("y", dist.Normal(x, 1.0), 0.3)
        factor("f", -(x**2))
        return deterministic("d", 2 * x)

    def numpyro_program():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(x, 1.0), obs=0.3)
        numpyro.factor("f", -(x**2))
        return numpyro.deterministic("d", 2 * x)

    ours = trace(seed(program, 0)).get_trace()
    theirs = trace(seed(numpyro_program, 0)).get_trace()
    assert list(ours) == list(theirs)
    for name in ours:
        assert ours[name]["type"] == theirs[name]["type"]
        assert ours[name].get("is_observed") == theirs[name].get("is_observed")
        np.testing.assert_array_equal(ours[name]["value"], theirs[name]["value"])
    assert ours["f"]["fn"].log_factor == theirs["f"]["fn"].log_factor


def test_unnamed_sites_get_addresses():
    def program():
        x = sample(dist.Normal(0.0, 1.0))
        for _ in range(2):
            step = sample(dist.Normal(x, 1.0))
            x = x + step
        y = deterministic(2 * x)
        observe(dist.Normal(y, 1.0), 0.3)
        factor(-1.0)

    assert list(sites(program)) == ["x", "step", "step[1]", "y", "observe@6:8", "factor@7:8"]


def test_unnamed_sites_need_an_execution():
    with pytest.raises(UnnamedSite, match="test_language"), seed(rng_seed=0):
        sample(dist.Normal(0.0, 1.0))


@pytest.mark.parametrize("name", [(), ("x",)], ids=["unnamed", "named"])
@pytest.mark.parametrize(
    ("statement", "arguments"),
    [
        (sample, (dist.Normal(0.0, 1.0),)),
        (observe, (dist.Normal(0.0, 1.0), 0.5)),
        (factor, (0.5,)),
        (deterministic, (0.5,)),
    ],
)
def test_statements_need_a_program(statement, arguments, name):
    message = (
        rf"^test_language.py:\d+: ab.{statement.__name__} was called outside a program\. "
        r"Pass the function itself: ab.infer\(program, data\)\.$"
    )
    with pytest.raises(OutsideProgram, match=message):
        statement(*name, *arguments)


def test_values_are_returned():
    with seed(rng_seed=0):
        assert sample("x", dist.Normal(jnp.zeros(3), 1.0)).shape == (3,)
        assert deterministic("y", 2.0) == 2.0
        assert observe("z", dist.Normal(0.0, 1.0), 0.5) is None
        assert factor("w", 0.5) is None


@pytest.mark.parametrize("value", [1, 1.5, True, np.float32(1.0), np.ones(2), jnp.ones(2)])
def test_numbers_and_arrays_are_values(value):
    with seed(rng_seed=0):
        observe("y", dist.Normal(0.0, 1.0), value)
        factor("w", value)
        assert deterministic("d", value) is value


@pytest.mark.parametrize(
    ("given", "description"),
    [
        (scipy.stats.norm(0.0, 1.0), "an? rv_\\w*frozen"),
        (1.5, r"a float \(1\.5\)"),
        (dist.Normal, r"the class Normal: write Normal\(\.\.\.\)"),
        (None, "None"),
        (dict, "the class dict$"),
        ("y", r"a str \('y'\)"),
    ],
)
@pytest.mark.parametrize("statement", [sample, observe])
def test_what_is_not_a_distribution(statement, given, description):
    value = () if statement is sample else (1.0,)
    expected = f"{statement.__name__} expects a distribution of numpyro.distributions.* was given {description}"
    with pytest.raises(TypeError, match=expected):
        statement("x", given, *value)


@pytest.mark.parametrize(
    "given", [None, "1.0", ["a"], [[1.0], [1.0, 2.0]], pd.Series(["a"]), dist.Normal(0.0, 1.0), float]
)
@pytest.mark.parametrize("statement", [observe, factor])
def test_what_is_not_a_number(statement, given):
    first = (dist.Normal(0.0, 1.0),) if statement is observe else ()
    with pytest.raises(TypeError, match=f"{statement.__name__} expects a number or an array as its .* was given"):
        statement("x", *first, given)


@pytest.mark.parametrize("given", [["a"], [[1.0], [1.0, 2.0]], pd.Series(["a"]), dist.Normal(0.0, 1.0), float])
def test_what_is_neither_a_number_nor_a_label(given):
    with pytest.raises(
        TypeError, match=r"deterministic expects a number, an array or text, or a tuple of .* was given"
    ):
        deterministic("x", given)


@pytest.mark.parametrize(
    "given", [[1.0, 2.0], (1, 2), pd.Series([1.0, 2.0]), pd.Series([1, 2], dtype="Int64"), [jnp.array(1.0), 2.0]]
)
def test_lists_and_columns_are_arrays(given):
    with seed(rng_seed=0):
        observe("y", dist.Normal(0.0, 1.0), given)
        factor("w", given)
        np.testing.assert_array_equal(deterministic("d", given), [1.0, 2.0])


@pytest.mark.parametrize(
    ("statement", "arguments", "message"),
    [
        (sample, (), r"sample\(\[name,\] distribution\) was given nothing"),
        (sample, ("x",), r"sample\(\[name,\] distribution\) was given a str \('x'\)"),
        (observe, (dist.Normal(),), r"observe\(\[name,\] distribution, value\) was given a Normal"),
        (observe, ("y", 1.0), r"observe\(\[name,\] distribution, value\) was given a str \('y'\), a float \(1.0\)"),
        (factor, ("w", 1.0, 2.0), r"factor\(\[name,\] log_weight\) was given"),
        (deterministic, ("d",), r"deterministic\(\[name,\] value\) was given a str \('d'\)"),
    ],
)
def test_wrong_number_of_arguments(statement, arguments, message):
    with pytest.raises(TypeError, match=message):
        statement(*arguments)


@pytest.mark.parametrize("statement", [sample, observe, factor, deterministic])
def test_every_statement_has_an_example(statement):
    assert ">>>" in inspect.getdoc(statement)
