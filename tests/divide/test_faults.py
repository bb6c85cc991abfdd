"""What a faulty program gets: an error of ours that names the site, the line and a remedy; never a wrong answer.

A comment `# here` in a program marks the line that the error must name.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import logging
import math
import os
import pickle
import signal
import statistics

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax import lax
from numpyro import handlers
from numpyro.contrib import control_flow
from numpyro.distributions import constraints

import anabranch as ab
from anabranch import errors
from anabranch.language import deterministic, factor, observe, sample
from helpers import agrees_with_numpyro, interpreted, named_log_density

pytestmark = pytest.mark.one_in(4)

N01 = dist.Normal(0.0, 1.0)


@contextlib.contextmanager
def within(seconds):
    """Fail instead of hanging."""

    def stop(*_):
        raise TimeoutError("the program was not stopped")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def here(program):
    """The line of the program that is marked, as an error names it."""
    program = inspect.unwrap(program)
    lines, first = inspect.getsourcelines(program)
    [offset] = [i for i, line in enumerate(lines) if "# here" in line]
    return f"{os.path.basename(inspect.getsourcefile(program))}:{first + offset}"


def run(program, *args, **settings):
    """Everything that a user does with a program: divide it, and evaluate its paths."""
    division = ab.find_paths(program, *args, **{"executions": 60} | settings)
    for path in division:
        path.evaluate(path.prior(3).points, compile=False)
    return division


def fault(error, program, *args, site=None, **settings):
    """The error that the program ends in, after a look at what it says."""
    with within(120), pytest.raises(errors.AnabranchError) as raised:
        run(program, *args, **settings)
    given = raised.value
    assert type(given) is error
    assert given.site == site
    assert given.where == here(program)
    assert given.remedy
    assert given.where in str(given)
    assert site is None or repr(site) in str(given)
    assert given.remedy in str(given)
    again = pickle.loads(pickle.dumps(given))
    assert (type(again), str(again), vars(again)) == (type(given), str(given), vars(given))
    return given


# The same address twice ---------------------------------------------------------------------------------------------


def twice_in_a_row():
    sample("x", N01)
    sample("x", N01)  # here


def twice_in_a_loop():
    for _ in range(2):
        sample("x", N01)  # here


def twice_on_one_path():
    z = sample("z", N01)
    if z > 0:
        sample("x", N01)
    sample("x", N01)  # here


def sampled_and_observed():
    x = sample("x", N01)
    observe("x", dist.Normal(x, 1.0), 0.5)  # here


def observed_and_sampled():
    observe("x", N01, 0.5)
    sample("x", N01)  # here


def computed_and_sampled():
    z = sample("z", N01)
    deterministic("x", 2 * z)
    sample("x", N01)  # here


def sampled_and_computed():
    x = sample("x", N01)
    deterministic("x", 2 * x)  # here


def weighted_twice():
    x = sample("z", N01)
    factor("x", x)
    numpyro.factor("x", x)  # here


def unnamed_and_named():
    x = sample(N01)
    sample("x", dist.Normal(x, 1.0))  # here


@pytest.mark.parametrize(
    "program",
    [
        twice_in_a_row,
        twice_in_a_loop,
        twice_on_one_path,
        sampled_and_observed,
        observed_and_sampled,
        computed_and_sampled,
        sampled_and_computed,
        weighted_twice,
        unnamed_and_named,
    ],
)
def test_same_address_twice(program):
    given = fault(errors.DuplicateAddress, program, site="x")
    assert "test_faults.py:" in given.what


def test_same_address_twice_by_scope():
    def program():
        for _ in range(2):
            with handlers.scope(prefix="part"):
                numpyro.sample("x", N01)  # here

    fault(errors.DuplicateAddress, program, site="part/x")


# Not a function of the random values --------------------------------------------------------------------------------

RNG = np.random.default_rng(0)


def random_address():
    sample(f"x{RNG.integers(10**9)}", N01)  # here


def random_data():
    x = sample("x", N01)
    observe("y", dist.Normal(x, 1.0), RNG.normal())  # here


def random_parameter():
    x = sample("x", N01)
    observe("y", dist.Normal(x + RNG.normal(), 1.0), 0.5)  # here


def random_prior():
    sample("x", dist.Normal(RNG.normal(), 1.0))  # here


def random_weight():
    sample("x", N01)
    factor("weight", -RNG.exponential())  # here


@pytest.mark.parametrize(
    ("program", "site"),
    [
        (random_data, "y"),
        (random_parameter, "y"),
        (random_prior, "x"),
        (random_weight, "weight"),
    ],
)
def test_other_randomness(program, site):
    fault(errors.NotAFunction, program, site=site)


def test_random_address():
    with pytest.raises(errors.NotAFunction, match=r"x[0-9]+") as raised:
        run(random_address)
    assert raised.value.where == here(random_address)


def test_random_number_of_sites():
    rng = np.random.default_rng(0)

    def program():
        for i in range(rng.integers(1, 50)):
            sample(f"x{i}", N01)  # here

    with pytest.raises(errors.NotAFunction) as raised:
        run(program)
    assert raised.value.where == here(program)


def test_random_distribution():
    families = itertools.cycle([dist.Normal, dist.Laplace])

    def program():
        sample("x", next(families)(0.0, 1.0))  # here

    fault(errors.NotAFunction, program, site="x")


def test_counter_in_the_data():
    calls = []

    def program():
        x = sample("x", N01)
        calls.append(1)
        observe("y", dist.Normal(x, 1.0), float(len(calls)))  # here

    fault(errors.NotAFunction, program, site="y")


def test_counter_in_a_decision():
    calls = []

    def program():
        x = sample("x", N01)
        calls.append(1)
        if x > len(calls):
            sample("z", N01)

    with pytest.raises(errors.NotAFunction, match=r"len\(calls\)"):
        run(program)


@pytest.mark.parametrize("seldom", [0.02, 0.98])
def test_randomness_on_one_path_only(seldom):
    """Whether it is on the path that is found first or not."""
    rng = np.random.default_rng(0)

    def program():
        if sample("z", dist.Bernoulli(seldom)):
            observe("y", N01, rng.normal())  # here
        sample("x", N01)

    fault(errors.NotAFunction, program, site="y", executions=500)


def test_randomness_in_the_interpreter():
    rng = np.random.default_rng(0)

    def program():
        x = float(sample("x", N01))
        observe("y", dist.Normal(x, 1.0), rng.normal())

    with pytest.raises(errors.NotAFunction):
        run(program)


def test_a_value_kept_in_a_list():
    kept = []

    def program():
        kept.append(sample("x", N01))
        if sample("z", dist.Bernoulli(0.5)):
            sample("w", N01)
        observe("y", dist.Normal(2 * kept[0], 1.0), 0.5)  # here

    fault(errors.NotAFunction, program, site=None)


def test_a_value_kept_in_a_list_and_used_as_a_parameter():
    kept = []

    def program():
        kept.append(sample("x", N01))
        if sample("z", dist.Bernoulli(0.5)):
            sample("w", N01)
        observe("y", dist.Normal(kept[0], 1.0), 0.5)

    with pytest.raises(errors.NotAFunction):
        run(program)


def test_a_decision_on_a_value_kept_in_a_list():
    kept = []

    def program():
        x = sample("x", N01)
        kept.append(x > 0)
        if kept[0]:
            sample("w", N01)

    with pytest.raises(errors.NotAFunction):
        run(program)


def test_a_fixed_value_kept_in_a_list():
    """The second run would silently use the value of the first."""
    kept = []

    def program():
        z = sample("z", dist.Bernoulli(0.5))
        if z:
            sample("w", N01)
        kept.append(z)
        observe("y", dist.Normal(2.0 * kept[0], 1.0), 0.5)

    with pytest.raises(errors.NotAFunction):
        run(program)


def test_a_site_in_a_memoised_function():
    @functools.lru_cache
    def level():
        return sample("x", N01)

    def program():
        observe("y", dist.Normal(2 * level(), 1.0), 0.5)

    with pytest.raises(errors.NotAFunction):
        run(program)


def test_memoised_function_of_a_fixed_value_works():
    calls = []

    @functools.lru_cache
    def mean(k):
        calls.append(k)
        return 1.5 * int(k)

    def program():
        k = int(sample("K", dist.DiscreteUniform(0, 2)))
        observe("y", dist.Normal(mean(k), 1.0), 0.5)

    agrees_with_numpyro(run(program))
    assert len(calls) == 3


# Exceptions ---------------------------------------------------------------------------------------------------------


class OfTheProgram(Exception):
    """With arguments that a plain copy would not have."""

    def __init__(self, value, *, reason):
        super().__init__(value)
        self.reason = reason


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("k"), OfTheProgram(3, reason="none"), SystemExit(3)])
def test_exception_of_the_program(error):
    def program():
        k = sample("K", dist.DiscreteUniform(0, 2))
        x = sample("x", N01)
        if k == 1 and x > 0:
            raise error
        observe("y", dist.Normal(x, 1.0), 0.5)

    with pytest.raises(type(error)) as raised:
        run(program)
    assert raised.value is error
    if isinstance(error, Exception):
        [note] = error.__notes__
        assert "K = 1" in note
        assert "x > 0" in note


def test_the_note_of_an_exception_is_short_on_a_path_of_many_decisions():
    def program():
        for i in range(100):
            if sample(f"site {i}", dist.Bernoulli(0.5)) > 1:
                return
        raise ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        run(program)
    [note] = raised.value.__notes__
    start, description = note.split("on the path: ")
    assert start == "anabranch: raised by the program "
    assert description.startswith("site 0 = ")
    assert description.endswith("…")
    assert len(description) == 200


def test_exception_in_the_interpreter():
    def program():
        k = sample("K", dist.DiscreteUniform(0, 2))
        x = float(sample("x", N01))
        if k == 1 and x > 0:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no") as raised:
        run(program)
    assert "K = 1" in raised.value.__notes__[0]


def test_exception_of_numpyro():
    def program():
        with numpyro.plate("data", 3):
            numpyro.sample("x", dist.Normal(np.zeros(2), 1.0))

    with pytest.raises(ValueError, match="Incompatible shapes") as raised:
        run(program)
    assert type(raised.value) is ValueError
    assert raised.value.__notes__


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_exceptions_that_the_program_catches(caught):
    """Nothing that the recorder does inside the program may fall into the program's own hands."""

    def program():
        try:
            x = sample("x", N01)
            k = sample("K", dist.DiscreteUniform(0, 1))
            size = 2.0 if x > 0 else 1.0
            y = [0.0, size][k]
            z = sample("z", dist.Normal(jnp.zeros(k + 1), 1.0).to_event(1)).sum()
        except caught:
            y, z = 50.0, 0.0
        observe("y", dist.Normal(y + z, 1.0), 0.5)

    division = run(program)
    assert len(division) == 2
    agrees_with_numpyro(division)


@pytest.mark.parametrize("caught", [Exception, BaseException])
def test_leaving_jax_where_the_program_catches_exceptions(caught):
    def program():
        x = sample("x", N01)
        try:
            y = float(x)
        except caught:
            y = 50.0
        observe("y", dist.Normal(y, 1.0), 0.5)

    agrees_with_numpyro(run(program), of_each=3)


def test_too_many_sites_where_the_program_catches_exceptions():
    def program():
        total, n = 0.0, 0
        with contextlib.suppress(BaseException):
            while total < 3:
                total = total + sample(f"x{n}", dist.Exponential(1.0))
                n += 1
        observe("y", dist.Normal(total, 1.0), 0.5)

    division = run(program, max_sites=3)
    assert division.prior_mass_truncated > 0.1
    assert all(len(path.sites) <= 3 for path in division)
    assert division.prior_mass_found + division.prior_mass_truncated <= 1 + 1e-9
    agrees_with_numpyro(division)


def test_finally_and_context_managers():
    entered = []

    @contextlib.contextmanager
    def manager():
        entered.append(1)
        try:
            yield
        finally:
            entered.pop()

    def program():
        with manager():
            x = sample("x", N01)
            try:
                if x > 0:
                    sample("w", N01)
            finally:
                observe("y", dist.Normal(float(x), 1.0), 0.5)

    division = run(program)
    assert len(division) == 2
    assert not entered
    agrees_with_numpyro(division)


# Distributions ------------------------------------------------------------------------------------------------------


class Custom(dist.Distribution):
    """A Normal, with whatever a subclass leaves out."""

    support = constraints.real

    def __init__(self, loc=0.0):
        self.loc = jnp.asarray(loc)
        super().__init__(jnp.shape(loc), ())

    def sample(self, key, sample_shape=()):
        return self.loc + jax.random.normal(key, sample_shape + self.batch_shape)

    def tree_flatten(self):
        return (self.loc,), (self.batch_shape, self.event_shape)

    @classmethod
    def tree_unflatten(cls, aux, leaves):
        made = object.__new__(cls)
        made.loc = leaves[0]
        dist.Distribution.__init__(made, *aux)
        return made


class WithDensity(Custom):
    def log_prob(self, value):
        return dist.Normal(self.loc, 1.0).log_prob(value)


class WithoutSupport(WithDensity):
    support = None


class UnknownConstraint(constraints.ParameterFreeConstraint):
    event_dim = 0

    def __call__(self, x):
        return x > -100.0


class WithUnknownSupport(WithDensity):
    support = UnknownConstraint()


def no_density():
    sample("x", Custom())  # here


def no_density_of_an_observation():
    sample("z", N01)
    observe("x", Custom(), 0.5)  # here


def no_density_on_one_path():
    if sample("z", N01) > 0:
        sample("x", Custom())  # here


@pytest.mark.parametrize("program", [no_density, no_density_of_an_observation, no_density_on_one_path])
def test_no_density(program):
    fault(errors.NoDensity, program, site="x")


def test_no_support():
    def program():
        sample("x", WithoutSupport())  # here

    fault(errors.NoTransform, program, site="x")


def test_no_known_transform():
    def program():
        sample("x", WithUnknownSupport())  # here

    given = fault(errors.NoTransform, program, site="x")
    assert "unknown_constraint" in given.what


def test_no_known_transform_in_numpyro():
    def program():
        sample("x", dist.ProjectedNormal(jnp.ones(2)))  # here

    fault(errors.NoTransform, program, site="x")


def test_observation_needs_no_transform():
    def program():
        x = sample("x", WithDensity())
        observe("a", WithUnknownSupport(x), 0.5)
        observe("b", WithoutSupport(x), 0.5)

    agrees_with_numpyro(run(program))


# Observed values ----------------------------------------------------------------------------------------------------

WRONG_SHAPES = {
    "batch": (dist.Normal(np.zeros(3), 1.0), np.zeros(2)),
    "event": (dist.Dirichlet(np.ones(3)), np.array([0.5, 0.5])),
    "scalar for a vector": (dist.MultivariateNormal(np.zeros(2), np.eye(2)), 0.5),
    "vector for a matrix": (dist.LKJCholesky(2), np.ones(2)),
    "batch with event": (dist.Normal(np.zeros((4, 3)), 1.0).to_event(1), np.zeros((5, 3))),
    "last axis": (dist.Normal(np.zeros((2, 3)), 1.0), np.zeros((2, 3, 1, 2))),
    "none at all": (dist.Normal(np.zeros(3), 1.0), np.zeros(0)),
}


@pytest.mark.parametrize("label", WRONG_SHAPES)
def test_observed_value_of_the_wrong_shape(label):
    distribution, value = WRONG_SHAPES[label]

    def program():
        sample("x", N01)
        observe("y", distribution, value)  # here

    given = fault(errors.ObservedShape, program, site="y")
    assert str(np.shape(value)) in given.what
    assert str(distribution.batch_shape) in given.what
    assert str(distribution.event_shape) in given.what


@pytest.mark.parametrize("value", [np.array(["a", "b"]), np.array([1, None])], ids=["text", "objects"])
def test_observed_values_that_are_no_numbers(value):
    def program():
        sample("x", N01)
        observe("y", N01, value)  # here

    given = fault(errors.ObservedShape, program, site="y")
    assert str(value.dtype) in given.what
    assert "It must hold numbers" in given.remedy
    assert "asarray" not in given.remedy


OUTSIDE = {
    "negative count": (dist.Poisson(2.0), -1),
    "half a count": (dist.Poisson(2.0), 1.5),
    "too many successes": (dist.Binomial(3, 0.5), 4),
    "no such category": (dist.Categorical(np.ones(3) / 3), 3),
    "two for a coin": (dist.Bernoulli(0.5), 2),
    "NaN": (N01, np.nan),
    "NaN among numbers": (N01, np.array([0.1, np.nan, 0.2])),
    "infinite": (N01, np.inf),
    "NaN for a positive": (dist.Gamma(2.0, 1.0), np.nan),
    "not positive": (dist.Exponential(1.0), -0.5),
    "outside an interval": (dist.Uniform(0.0, 1.0), 1.5),
    "not a simplex": (dist.Dirichlet(np.ones(2)), np.array([0.5, 0.6])),
    "NaN in an event": (dist.MultivariateNormal(np.zeros(2), np.eye(2)), np.array([0.1, np.nan])),
    "one of a mixture": (dist.MixtureSameFamily(dist.Categorical(np.ones(2) / 2), dist.Gamma(np.ones(2), 1.0)), -1.0),
}


@pytest.mark.parametrize("label", OUTSIDE)
def test_observed_value_outside_the_support(label):
    distribution, value = OUTSIDE[label]

    def program():
        sample("x", N01)
        observe("y", distribution, value)  # here

    given = fault(errors.ObservedOutsideSupport, program, site="y")
    if np.ndim(value) == 0:
        assert str(value) in given.what


def test_observed_value_outside_the_support_on_every_path():
    def program():
        if sample("z", dist.Bernoulli(0.5)):
            sample("x", N01)
        observe("y", dist.Poisson(2.0), -1)  # here

    fault(errors.ObservedOutsideSupport, program, site="y")


def test_which_of_the_observed_values():
    def program():
        sample("x", N01)
        observe("y", dist.Poisson(2.0), np.array([3.0, 1.0, -4.0]))  # here

    given = fault(errors.ObservedOutsideSupport, program, site="y")
    assert "-4.0" in given.what
    assert "index 2" in given.what


DATA, SEEN = np.array([0.1, np.nan, 0.2]), np.array([True, False, True])

MISSING = {
    "mask": lambda x: observe("y", dist.Normal(x, 1.0).mask(SEEN), DATA),
    "expanded": lambda x: observe("y", dist.Normal(x, 1.0).expand([3]).mask(SEEN), DATA),
    "event": lambda x: observe("y", dist.Normal(x, 1.0).expand([3]).mask(SEEN).to_event(1), DATA),
    "expanded mask": lambda x: observe("y", dist.Normal(x, 1.0).mask(SEEN).expand([2, 3]), DATA),
    "count": lambda x: observe("y", dist.Poisson(jnp.exp(x)).mask(SEEN), np.array([3.0, -1.0, 2.0])),
    "no data": lambda x: observe("y", dist.Normal(x, 1.0).mask(False), np.nan),
}


@pytest.mark.parametrize("label", MISSING)
def test_missing_values_are_masked(label):
    def program():
        x = sample("x", N01)
        MISSING[label](x)

    division = run(program)
    agrees_with_numpyro(division)
    _, gradient = division.paths[0].differentiate(np.zeros((1, 1)))
    assert np.isfinite(gradient).all()


def test_missing_values_are_masked_by_a_handler():
    def program():
        x = sample("x", N01)
        with handlers.mask(mask=SEEN), numpyro.plate("data", 3):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=DATA)

    agrees_with_numpyro(run(program))


# (the likelihood, where it is possible, where it is not) for x in (0, 3)
RANDOM_SUPPORT = {
    "uniform": (lambda x: dist.Uniform(0.0, x), 2.0, 2.5, 1.5),
    "uniform from": (lambda x: dist.Uniform(x, 5.0), 2.0, 1.5, 2.5),
    "one of several": (lambda x: dist.Uniform(0.0, x), np.array([0.5, 2.0]), 2.5, 1.5),
    "truncated": (lambda x: dist.TruncatedNormal(0.0, 1.0, high=x), 2.0, 2.5, 1.5),
    "Pareto": (lambda x: dist.Pareto(x, 2.0), 2.0, 1.5, 2.5),
    "binomial": (lambda x: dist.Binomial(jnp.floor(2 * x).astype(int), 0.5), 3, 2.1, 1.1),
    "discrete uniform": (lambda x: dist.DiscreteUniform(0, jnp.floor(2 * x).astype(int)), 3, 2.1, 1.1),
    "shifted": (
        lambda x: dist.TransformedDistribution(dist.Exponential(1.0), dist.transforms.AffineTransform(x, 1.0)),
        2.0,
        1.5,
        2.5,
    ),
    "event": (lambda x: dist.Uniform(jnp.zeros(2), x).to_event(1), np.array([0.5, 2.0]), 2.5, 1.5),
    "masked": (lambda x: dist.Uniform(0.0, x).mask(np.array([True, False])), np.array([2.0, 9.0]), 2.5, 1.5),
}


@pytest.mark.parametrize("leaves", [False, True], ids=["recorded", "interpreted"])
@pytest.mark.parametrize("label", RANDOM_SUPPORT)
def test_random_support_that_excludes_the_data(label, leaves, caplog):
    """NumPyro's density would be any number there; it is zero, which is no fault of the program."""
    likelihood, data, possible, impossible = RANDOM_SUPPORT[label]

    def program():
        x = sample("x", dist.Uniform(0.0, 3.0))
        if leaves:
            assert float(x) >= 0
        observe("y", likelihood(x), data)

    division = ab.find_paths(program, executions=20)
    [path] = division.paths
    assert path.interpreted == leaves
    evaluation = path.evaluate(path.points({"x": np.array([possible, impossible])}), compile=False)
    assert np.isfinite(evaluation.log_likelihood[0])
    assert evaluation.log_likelihood[1] == -np.inf
    assert evaluation.guard.all()
    assert path.invalid == 0
    assert not [record for record in caplog.records if "NaN" in record.message]


def test_fixed_value_that_excludes_the_data():
    """Five tosses cannot give eight heads, eight and more can: one path of density zero, and others."""

    def program():
        n = int(sample("n", dist.DiscreteUniform(5, 10)))
        x = sample("x", dist.Beta(2.0, 2.0).expand([n]).to_event(1))
        observe("heads", dist.Binomial(n, x.mean()), 8)

    division = run(program)
    assert len(division) == 6
    for path in division:
        n = path.sites[0].value
        likelihood = path.evaluate(np.zeros((1, path.dim)), compile=False).log_likelihood[0]
        assert np.isfinite(likelihood) if n >= 8 else likelihood == -np.inf


# Densities that are no numbers --------------------------------------------------------------------------------------

NO_NUMBERS = {
    "logarithm of a negative": lambda x: factor("f", jnp.log(x)),
    "infinite weight": lambda x: factor("f", jnp.where(x < 0, jnp.inf, 0.0)),
    "negative scale": lambda x: observe("y", dist.Normal(0.0, x), 0.5),
    "NaN parameter": lambda x: observe("y", dist.Normal(jnp.sqrt(x), 1.0), 0.5),
    "latent with a negative scale": lambda x: sample("y", dist.Normal(0.0, x)),
    "latent with a NaN parameter": lambda x: sample("y", dist.Normal(jnp.sqrt(x), 1.0)),
    "latent coin with no probability": lambda x: sample("y", dist.Bernoulli(jnp.sqrt(x) / 9)),
}


# Compiling takes its time: two are enough.
@pytest.mark.parametrize(
    ("label", "compile"),
    [(label, False) for label in NO_NUMBERS] + [("infinite weight", True), ("latent with a negative scale", True)],
)
def test_density_that_is_no_number(label, compile, caplog):
    def program():
        x = sample("x", N01)
        NO_NUMBERS[label](x)

    with caplog.at_level(logging.WARNING, "anabranch"):
        [path] = ab.find_paths(program, executions=50).paths
        points = np.zeros((4, path.dim))
        points[:, 0] = [-1.0, 1.0, -2.0, 2.0]
        for _ in range(2):
            evaluation = path.evaluate(points, compile=compile)
            assert evaluation.invalid.tolist() == [True, False, True, False]
            assert evaluation.inside.tolist() == [False, True, False, True]
            assert np.isneginf(evaluation.log_density[[0, 2]]).all()
            assert np.isfinite(evaluation.log_density[[1, 3]]).all()
    assert path.invalid == 4
    said = [record.getMessage() for record in caplog.records if record.name == "anabranch"]
    assert len(said) == 1
    assert "NaN or infinite" in said[0]


def test_weight_that_is_infinite_everywhere():
    def program():
        sample("x", N01)
        factor("f", jnp.inf)

    [path] = ab.find_paths(program, executions=5).paths
    assert path.evaluate([[0.5]], compile=False).invalid.all()
    assert path.invalid == 1


def test_weight_of_minus_infinity_is_no_fault():
    def program():
        x = sample("x", N01)
        factor("f", jnp.where(x < 0, -jnp.inf, 0.0))

    [path] = ab.find_paths(program, executions=5).paths
    evaluation = path.evaluate([[-1.0], [1.0]], compile=False)
    assert evaluation.inside.all()
    assert np.isneginf(evaluation.log_density).tolist() == [True, False]
    assert path.invalid == 0


# No random variables ------------------------------------------------------------------------------------------------


def only_observed():
    observe("y", N01, 0.5)


def only_computed():
    deterministic("x", 1.0)
    factor("f", -1.0)


def only_a_point():
    numpyro.sample("x", dist.Delta(1.0))


def nothing():
    return 3


@pytest.mark.parametrize("program", [nothing, only_observed, only_computed, only_a_point])
def test_no_random_variables(program):
    with pytest.raises(errors.NoRandomVariables, match=program.__name__) as raised:
        ab.find_paths(program)
    assert raised.value.remedy


def test_hidden_sites():
    def program():
        with handlers.block(), handlers.seed(rng_seed=0):
            numpyro.sample("x", N01)

    with pytest.raises(errors.NoRandomVariables):
        ab.find_paths(program)


# Inside transformations ---------------------------------------------------------------------------------------------


def decides_in_jit():
    x = sample("x", N01)

    def inner(t):
        return t if t > 0 else -t  # here

    return jax.jit(inner)(x)


def decides_in_jit_about_a_closure():
    x = sample("x", N01)

    def inner(t):
        return t if x > 0 else -t  # here

    return jax.jit(inner)(1.0)


def decides_in_jit_about_an_outer_answer():
    positive = sample("x", N01) > 0

    def inner(t):
        return t if positive else -t  # here

    return jax.jit(inner)(1.0)


def counts_in_jit():
    k = sample("K", dist.DiscreteUniform(1, 3))

    def inner(t):
        return sum(t for _ in range(k))  # here

    return jax.jit(inner)(1.0)


def decides_in_vmap():
    v = sample("v", dist.Normal(jnp.zeros(3), 1.0).to_event(1))

    def inner(t):
        return t if t > 0 else -t  # here

    return jax.vmap(inner)(v)


def decides_in_grad():
    x = sample("x", N01)

    def inner(t):
        return t if t > 0 else -t  # here

    return jax.grad(inner)(x)


def decides_in_scan():
    x = sample("x", N01)

    def inner(carry, t):
        return (carry + t if carry > 0 else carry), None  # here

    return lax.scan(inner, x, jnp.ones(3))[0]


def decides_in_cond():
    x = sample("x", N01)

    def inner(t):
        return t if t > 1 else -t  # here

    return lax.cond(x > 0, inner, lambda t: t, x)


@pytest.mark.parametrize(
    "program",
    [
        decides_in_jit,
        decides_in_jit_about_a_closure,
        decides_in_jit_about_an_outer_answer,
        counts_in_jit,
        decides_in_vmap,
        decides_in_grad,
        decides_in_scan,
        decides_in_cond,
    ],
)
def test_decision_inside_a_transformation(program):
    fault(errors.DecisionInsideTransformation, program)


def masks_in_jit():
    v = sample("v", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    return jax.jit(lambda t: t[t > 0].sum())(v)  # here


def sets_by_a_mask():
    v = sample("v", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    return jnp.zeros(3).at[v > 0].set(1.0)  # here


@pytest.mark.parametrize("program", [masks_in_jit, sets_by_a_mask])
def test_a_random_mask_that_jax_has_to_know(program):
    assert "indexed by a random boolean mask" in str(fault(errors.DecisionInsideTransformation, program))


def test_a_known_value_inside_a_transformation_is_no_decision():
    def program():
        k = sample("K", dist.DiscreteUniform(1, 3))
        x = sample("x", dist.Normal(jnp.zeros(k), 1.0).to_event(1))
        total = jax.jit(lambda t: sum(t * i for i in range(k)))(x.sum())
        observe("y", dist.Normal(total, 1.0), 0.5)

    agrees_with_numpyro(run(program))


def samples_in_jit():
    def inner(t):
        return sample("x", dist.Normal(t, 1.0))  # here

    return jax.jit(inner)(1.0)


def samples_in_vmap():
    def inner(t):
        return numpyro.sample("x", dist.Normal(t, 1.0))  # here

    return jax.vmap(inner)(jnp.zeros(3))


def samples_in_grad():
    def inner(t):
        return sample("x", dist.Normal(t, 1.0))  # here

    return jax.grad(inner)(1.0)


def samples_in_scan():
    def inner(carry, t):
        return carry + sample("x", N01), None  # here

    return lax.scan(inner, 0.0, jnp.ones(3))[0]


def samples_in_cond():
    z = sample("z", N01)

    def inner():
        return sample("x", N01)  # here

    return lax.cond(z > 0, inner, lambda: jnp.zeros(()))


def observes_in_vmap():
    z = sample("z", N01)

    def inner(t):
        observe("x", dist.Normal(z, 1.0), t)  # here
        return t

    return jax.vmap(inner)(jnp.ones(3))


def weighs_in_jit():
    z = sample("z", N01)

    def inner(t):
        factor("x", -t)  # here
        return t

    return jax.jit(inner)(z)


def computes_in_vmap():
    z = sample("z", N01)

    def inner(t):
        return deterministic("x", t * z)  # here

    return jax.vmap(inner)(jnp.ones(3))


@pytest.mark.parametrize(
    "program",
    [
        samples_in_jit,
        samples_in_vmap,
        samples_in_grad,
        samples_in_scan,
        samples_in_cond,
        observes_in_vmap,
        weighs_in_jit,
        computes_in_vmap,
    ],
)
def test_site_inside_a_transformation(program):
    fault(errors.SiteInsideTransformation, program, site="x")


# Statements without a meaning ---------------------------------------------------------------------------------------


def key_of_numpyro():
    sample("x", N01)
    return jax.random.normal(numpyro.prng_key())  # here


def subsample():
    x = sample("x", N01)
    with numpyro.plate("data", 10, subsample_size=3):  # here
        numpyro.sample("y", dist.Normal(x, 1.0), obs=np.zeros(3))


def scan_of_numpyro_with_values():
    def step(carry, t):
        carry = numpyro.sample("x", dist.Normal(carry, 1.0))
        return carry, carry

    with handlers.substitute(data={"x": jnp.zeros(3)}):
        return control_flow.scan(step, 0.0, jnp.arange(3))  # here


@pytest.mark.parametrize("program", [key_of_numpyro, subsample, scan_of_numpyro_with_values])
def test_statement_without_a_meaning(program):
    with pytest.raises(errors.UnsupportedStatement) as raised:
        run(program)
    assert raised.value.where == here(program)
    assert raised.value.remedy


def test_plate_of_the_whole_data_is_fine():
    def program():
        x = sample("x", N01)
        with numpyro.plate("data", 3, subsample_size=3) as index:
            numpyro.sample("y", dist.Normal(x, 1.0), obs=np.arange(3.0)[np.asarray(index)])

    agrees_with_numpyro(run(program))


# Programs that do not end -------------------------------------------------------------------------------------------


def test_program_that_never_ends_if_it_goes_one_way():
    def program():
        n = 0
        while sample("ends", dist.Bernoulli(0.25)) == 0 if n == 0 else True:
            sample(f"x{n}", N01)
            n += 1

    with within(20):
        division = ab.find_paths(program, executions=50, max_sites=40)
    assert len(division) == 1
    assert division.prior_mass_truncated == pytest.approx(0.75)
    assert division.prior_mass_found == 0.25
    assert "40 sites" in repr(division)
    assert "not followed" in division.tree()
    assert {group.path for group in division.explore(50, seed=1)} == {None, division.paths[0]}


def test_walk_that_drifts_away():
    def program():
        position, n = 1.0, 0
        while position > 0:
            position = position + sample(f"x{n}", dist.Normal(0.3, 1.0))
            n += 1

    division = ab.find_paths(program, executions=300, max_sites=25)
    assert 0.1 < division.prior_mass_truncated < 0.9
    assert 0.1 < division.prior_mass_found < 0.9
    assert division.prior_mass_found + division.prior_mass_truncated <= 1 + 1e-9
    assert max(len(path.sites) for path in division) <= 25


def test_sites_up_to_the_bound_are_followed():
    def program():
        n = 0
        while sample(f"x{n}", dist.Bernoulli(0.5)):
            n += 1

    division = ab.find_paths(program, executions=2000, max_sites=4)
    assert sorted(len(path.sites) for path in division) == [1, 2, 3, 4]
    assert division.prior_mass_found == pytest.approx(15 / 16)
    assert division.prior_mass_truncated == pytest.approx(1 / 16)


def test_walk_that_never_ends_in_the_interpreter():
    def program():
        n, x = 0, 1.0
        while x > 0.5:
            x = float(sample(f"x{n}", dist.Uniform(0.0, 1.0)))
            n += 1

    with within(20):
        division = ab.find_paths(program, executions=60, max_sites=3)
    assert division.prior_mass_truncated > 0
    assert division.prior_mass_found + division.prior_mass_truncated <= 1 + 1e-9


def endless_about_a_real():
    x = sample("x", dist.Uniform(1.0, 2.0))
    while x > 0:  # here
        x = x + 1


def endless_about_a_count():
    k = sample("K", dist.DiscreteUniform(1, 2))
    while k > 0:  # here
        k = k + 1


def endless_about_a_constant():
    x = sample("x", N01)
    done = x > x + 1
    while not done:  # here
        pass


def endless_in_the_interpreter():
    x = sample("x", dist.Uniform(1.0, 2.0))
    float(x)
    while x > 0:  # here
        x = x + 1


@pytest.mark.parametrize(
    "program",
    [endless_about_a_real, endless_about_a_count, endless_about_a_constant, endless_in_the_interpreter],
)
def test_decisions_without_end(program):
    fault(errors.EndlessProgram, program, max_sites=5, executions=3)


# Arguments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "match", "program", "settings"),
    [
        (TypeError, "function; got int", 3, {}),
        (TypeError, "function; got None", None, {}),
        (ValueError, "executions.*0", random_prior, {"executions": 0}),
        (ValueError, "executions.*-1", random_prior, {"executions": -1}),
        (ValueError, "max_sites.*0", random_prior, {"max_sites": 0}),
        (TypeError, "seed must be a whole number, at least 0; got 1.5", random_prior, {"seed": 1.5}),
    ],
)
def test_arguments(error, match, program, settings):
    with pytest.raises(error, match=match):
        ab.find_paths(program, **settings)


def latent_and_real():
    x = sample("x", N01)  # here
    z = sample("z", dist.Bernoulli(0.5))
    observe("y", dist.Normal(x + z, 1.0), 0.5)


@pytest.mark.parametrize("split", ["x", ["x"], {"x": True}, ["x", "z"]])
def test_split_on_a_real(split):
    with pytest.raises(ValueError, match=r"'x'.*continuous") as raised:
        ab.find_paths(latent_and_real, split=split)
    assert here(latent_and_real) in str(raised.value)


@pytest.mark.parametrize("split", ["z", ["z"], ("z",), {"z": True}, {"z": True, "x": False}])
def test_split_on_a_discrete_site(split):
    division = ab.find_paths(latent_and_real, split=split)
    assert len(division) == 2
    agrees_with_numpyro(division)


def test_values_of_the_wrong_kind():
    [path] = ab.find_paths(latent_and_real).paths
    for points in ([0.0, 1.0], np.zeros((2, 3)), np.zeros((2, 1, 2))):
        with pytest.raises(ValueError, match="points must have shape"):
            path.evaluate(points)
    with pytest.raises(ValueError, match=r"'z'.*missing"):
        path.points({"x": np.zeros(2)})
    with pytest.raises(ValueError, match="'x' must have shape"):
        path.points({"x": np.zeros((2, 2)), "z": np.zeros(2)})


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"x": 0.0}, "'x' must be an array with one row per execution; got a scalar"),
        ({"x": np.zeros(2), "z": np.zeros(3)}, r"same number for each site; got \[2, 3\]"),
        ({"x": np.zeros((2, 2))}, "'x' must have shape"),
        ({"z": np.array([0.0, 0.5])}, r"'z' .*is discrete; got a number that is not whole"),
    ],
)
def test_values_that_no_execution_can_have(values, match):
    division = ab.find_paths(latent_and_real, split="z")
    with pytest.raises(ValueError, match=match):
        division.route(values)


def test_unnamed_site_outside_an_execution():
    def program():
        return sample(N01)  # here

    with pytest.raises(errors.UnnamedSite) as raised:
        handlers.seed(program, 0)()
    assert raised.value.where == here(program)
    assert raised.value.remedy


def test_statements_with_bad_arguments():
    def run_with(statement):
        def program():
            sample("x", N01)
            statement()

        return program

    for statement in (
        lambda: observe("y", N01, None),
        lambda: observe(N01, None),
        lambda: sample("y", 3.0),
        lambda: sample("y", dist.Normal),
        lambda: factor("y", None),
    ):
        with pytest.raises(TypeError) as raised:
            ab.find_paths(run_with(statement))
        assert raised.value.__notes__


# Outside JAX --------------------------------------------------------------------------------------------------------


def external(x):
    """As a simulator in another language would do."""
    return statistics.fmean([math.tanh(x), 1.0])


def by_bins(x):
    return float(np.histogram(np.asarray(x), bins=3, range=(-3.0, 3.0))[0] @ np.arange(3.0))


LEAVES_JAX = {
    "float": lambda x: float(x) * 2,
    "math": lambda x: math.exp(x),
    "np.asarray": lambda x: np.asarray(x) * 2,
    "np.array": lambda x: np.array([x, 1.0]).sum(),
    "item": lambda x: x.item() * 2,
    "tolist": lambda x: x.tolist() * 2,
    "str": lambda x: float(str(x)),
    "f-string": lambda x: len(f"{x:.3f}") + x,
    "percent": lambda x: float("%.3f" % x),  # noqa: UP031
    "round": lambda x: round(float(x), 2),
    "external": external,
    "NumPy function": by_bins,
    "scipy": lambda x: __import__("scipy.special").special.expit(x),
    "complex": lambda x: abs(complex(x, 1.0)),
    "statistics": lambda x: statistics.NormalDist().cdf(x),
}


@pytest.mark.parametrize("label", LEAVES_JAX)
def test_leaving_jax(label, caplog):
    function = LEAVES_JAX[label]

    def program():
        x = sample("x", N01)
        if sample("z", dist.Bernoulli(0.5)):
            sample("w", N01)
        observe("y", dist.Normal(function(x), 1.0), 0.5)

    with caplog.at_level(logging.INFO, "anabranch"):
        division = ab.find_paths(program, executions=20)
        agrees_with_numpyro(division, executions=6)
    assert len(division) == 2
    assert all(path.interpreted for path in division)
    [said] = [record.getMessage() for record in caplog.records]
    line = inspect.getsourcelines(function)[1]
    assert "program runs in the interpreter" in said
    assert any(f"test_faults.py:{line + offset} " in said for offset in range(4))
    for path in division:
        assert not path.has_gradient
        with pytest.raises(errors.NoGradient) as raised:
            path.differentiate(path.prior(1).points)
        assert raised.value.remedy
        assert "test_faults.py:" in raised.value.where


def test_sorting_reals_stays_in_jax(caplog):
    def program():
        v = sample("v", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        observe("y", dist.Normal(sorted(v)[0] + max(v), 1.0), 0.5)

    with caplog.at_level(logging.WARNING, "anabranch"):
        division = run(program)
    assert not any(path.interpreted for path in division)
    assert not caplog.records
    agrees_with_numpyro(division)


def test_many_decision_sequences_of_one_path(caplog):
    """A loop over the data with a decision on a real at each: the paths stay few, and right."""
    ys = np.linspace(-1.0, 1.0, 12)

    def program():
        x = sample("x", N01)
        means = []
        for y in ys:
            if jnp.sin(10 * x * y) > 0:
                means.append(x)
            else:
                means.append(-x)
        observe("y", dist.Normal(jnp.stack(means), 1.0), ys)

    with caplog.at_level(logging.WARNING, "anabranch"):
        division = ab.find_paths(program, executions=1000)
    assert len(division) == 1
    agrees_with_numpyro(division, of_each=3)


def test_only_one_part_of_a_program_leaves_jax():
    def program():
        x = sample("x", N01)
        if sample("outside", dist.Bernoulli(0.5)):
            x = float(x)
        observe("y", dist.Normal(x, 1.0), 0.5)

    division = run(program)
    assert sorted(path.interpreted for path in division) == [False, True]
    assert division.prior_mass_found == pytest.approx(1.0)
    agrees_with_numpyro(division)


def test_interpreted_as_recorded():
    """The interpreter finds the paths and the densities that the recorder finds."""

    def program():
        k = sample("K", dist.DiscreteUniform(0, 2))
        x = sample("x", dist.Gamma(2.0, jnp.ones(k)).to_event(1))
        z = sample("z", dist.Bernoulli(0.4))
        if x.sum() > 2:
            x = x * sample("w", dist.Dirichlet(jnp.ones(2)))[0]
        observe("y", dist.Normal(x.sum() + z, 1.0), 0.5)

    one, other = ab.find_paths(program, executions=100), interpreted(program)
    other.explore(100)
    assert {path.signature for path in one} == {path.signature for path in other}
    recorded = {path.signature: path for path in one}
    for path in other:
        assert path.interpreted
        twin = recorded[path.signature]
        points = twin.prior(2).points
        np.testing.assert_allclose(named_log_density(path, points), named_log_density(twin, points), rtol=1e-9)
        assert path.dim == twin.dim
