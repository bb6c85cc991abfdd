"""NumPyro's statements and handlers: each has its exact value here, or is refused with site, line and remedy."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from numpyro import handlers, primitives
from numpyro.infer import reparam
from scipy.stats import multivariate_normal, norm

import anabranch as ab
from anabranch import errors

pytestmark = pytest.mark.one_in(5)

N01 = dist.Normal(0.0, 1.0)
ONE = norm.logpdf(0.7, 0.0, np.sqrt(2.0))
"""log Z of x ~ N(0, 1), y ~ N(x, 1) at y = 0.7."""


def log_evidence(program, *args, **settings):
    posterior = ab.infer(program, *args, budget=60_000, tolerance=0.02, workers=1, **settings)
    return posterior.log_evidence, posterior.log_evidence_sd


def has_evidence(exact, program, *args):
    estimate, sd = log_evidence(program, *args)
    assert abs(estimate - exact) < max(4 * sd, 1e-9)
    assert sd < 0.05


def refused(kind, program, site, *words):
    """The error names the site, a line of this file, and a remedy."""
    with pytest.raises(kind) as raised:
        ab.find_paths(program)
    assert raised.value.site == site
    assert raised.value.where.startswith("test_statements.py:")
    assert raised.value.remedy
    for word in words:
        assert word in str(raised.value)


def observe_seven(x):
    numpyro.sample("y", dist.Normal(x, 1.0), obs=0.7)


# obs_mask -----------------------------------------------------------------------------------------------------------

Y, SEEN = np.array([0.7, 0.1, np.nan, 0.3, 0.2]), np.array([True, True, False, True, True])


def exact_of(seen):
    return multivariate_normal(np.zeros(len(seen)), 1 + np.eye(len(seen))).logpdf(seen)


OBS_MASK = {
    "expanded": lambda x: numpyro.sample("y", dist.Normal(x, 1.0).expand([5]), obs=Y, obs_mask=SEEN),
    "scalar parameters": lambda x: numpyro.sample("y", dist.Normal(x, 1.0), obs=Y, obs_mask=SEEN),
    "vector parameters": lambda x: numpyro.sample("y", dist.Normal(x * np.ones(5), 1.0), obs=Y, obs_mask=SEEN),
    "array of jax": lambda x: numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.array(Y), obs_mask=jnp.array(SEEN)),
    "student": lambda x: numpyro.sample("y", dist.LogNormal(x, 1.0), obs=np.exp(Y), obs_mask=SEEN),
}


@pytest.mark.parametrize("label", OBS_MASK)
def test_missing_values_are_latent_with_their_own_prior(label):
    def program():
        OBS_MASK[label](numpyro.sample("x", N01))

    [path] = ab.find_paths(program).paths
    assert {site.name: site.shape for site in path.sites} == {"x": (), "y_unobserved": (1,)}
    has_evidence(exact_of(Y[SEEN]) - (Y[SEEN].sum() if label == "student" else 0), program)


def test_a_missing_value_that_is_used():
    """y2 is missing and z is drawn around it: together they say what z alone says of x."""

    def program():
        x = numpyro.sample("x", N01)
        with numpyro.plate("data", 2):
            y = numpyro.sample("y", dist.Normal(x, 1.0), obs=np.array([0.7, np.nan]), obs_mask=np.array([True, False]))
        numpyro.sample("z", dist.Normal(y[1], 1.0), obs=2.0)

    has_evidence(multivariate_normal(np.zeros(2), [[2.0, 1.0], [1.0, 3.0]]).logpdf([0.7, 2.0]), program)
    draw = ab.infer(program, budget=20_000).draws(5)
    np.testing.assert_allclose(draw["y"][:, 0], 0.7)
    np.testing.assert_allclose(draw["y"][:, 1], draw["y_unobserved"][:, 0])


def test_missing_events_and_missing_counts():
    def program():
        x = numpyro.sample("x", N01)
        rows = np.array([[0.7, 0.1], [np.nan, np.nan], [0.2, 0.4]])
        numpyro.sample(
            "y", dist.Normal(x * np.ones((3, 2)), 1.0).to_event(1), obs=rows, obs_mask=np.array([True, False, True])
        )
        chances = jnp.array([[0.2, 0.8], [0.5, 0.5]])
        numpyro.sample("k", dist.Categorical(chances), obs=np.array([1, 0]), obs_mask=np.array([True, False]))

    [path] = ab.find_paths(program).paths
    assert {site.name: site.shape for site in path.sites} == {"x": (), "y_unobserved": (1, 2), "k_unobserved": (1,)}
    has_evidence(exact_of([0.7, 0.1, 0.2, 0.4]) + np.log(0.8), program)


@pytest.mark.parametrize(("mask", "exact"), [(True, exact_of([0.7, 0.1])), (False, 0.0)])
def test_all_or_nothing_is_missing(mask, exact):
    def program():
        x = numpyro.sample("x", N01)
        numpyro.sample("y", dist.Normal(x, 1.0), obs=np.array([0.7, 0.1]), obs_mask=mask)

    has_evidence(exact, program)


def test_a_mask_without_data():
    def program(y):
        x = numpyro.sample("x", N01)
        numpyro.sample("y", dist.Normal(x, 1.0).expand([5]), obs=y, obs_mask=SEEN)

    has_evidence(0.0, program, None)


def test_missing_values_of_what_cannot_be_taken_apart():
    def program():
        x = numpyro.sample("x", N01)
        halves = dist.Categorical(np.array([0.5, 0.5]))
        mixture = dist.MixtureSameFamily(halves, dist.Normal(jnp.stack([x, -x]), 1.0))
        numpyro.sample("y", mixture.expand([5]), obs=Y, obs_mask=SEEN)

    refused(errors.UnsupportedStatement, program, "y_unobserved", "MixtureSameFamily", "two statements")


# Handlers and arguments that have their exact value ------------------------------------------------------------------


def with_key():
    observe_seven(numpyro.sample("x", N01, rng_key=jax.random.key(0)))


def with_advice():
    observe_seven(numpyro.sample("x", N01, infer={"enumerate": "parallel"}))


def with_sample_shape():
    observe_seven(numpyro.sample("x", N01, sample_shape=(3,))[0])


def certain_in_a_plate():
    x = numpyro.sample("x", N01)
    with numpyro.plate("p", 3):
        d = numpyro.sample("d", dist.Delta(x))
    observe_seven(d[1])


def certain_vector():
    x = numpyro.sample("x", N01)
    observe_seven(numpyro.sample("d", dist.Delta(jnp.stack([x, -x])).to_event(1))[0])


def certain_repeated():
    x = numpyro.sample("x", N01)
    observe_seven(numpyro.sample("d", dist.Delta(x), sample_shape=(2,))[1])


def seeded():
    with handlers.seed(rng_seed=0):
        observe_seven(numpyro.sample("x", N01))


def traced():
    with handlers.trace() as sites:
        observe_seven(numpyro.sample("x", N01))
    ab.deterministic("again", sites["x"]["value"])


def advised():
    with handlers.infer_config(config_fn=lambda site: {"enumerate": "parallel"}):
        observe_seven(numpyro.sample("x", N01))


def unconditioned():
    with handlers.uncondition():
        numpyro.sample("w", N01, obs=0.3)
    observe_seven(numpyro.sample("x", N01))


def hidden_data():
    with handlers.block():
        numpyro.sample("w", N01, obs=0.3)
    observe_seven(numpyro.sample("x", N01))


def lifted():
    def model():
        observe_seven(numpyro.param("x", 0.5))

    handlers.lift(model, prior={"x": N01})()


def whole_plate():
    x = numpyro.sample("x", N01)
    with numpyro.plate("p", 1, subsample_size=1):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=numpyro.subsample(jnp.array([0.7]), 0))


SAME = [
    with_key, with_advice, with_sample_shape, certain_in_a_plate, certain_vector, certain_repeated, seeded, traced,
    advised, unconditioned, hidden_data, lifted, whole_plate,
]  # fmt: skip


@pytest.mark.parametrize("program", SAME)
def test_what_changes_nothing(program):
    has_evidence(ONE, program)


def fixed_by(handler):
    def program():
        with handler:
            numpyro.sample("w", N01)
        observe_seven(numpyro.sample("x", N01))

    return program


@pytest.mark.parametrize(
    "handler",
    [
        handlers.condition(data={"w": 0.3}),
        handlers.substitute(data={"w": 0.3}),
        handlers.replay(trace={"w": {"type": "sample", "is_observed": False, "value": 0.3, "infer": {}}}),
    ],
)
def test_a_value_that_a_handler_gives_is_observed(handler):
    has_evidence(ONE + norm.logpdf(0.3), fixed_by(handler))


def test_an_intervention_leaves_the_site_its_prior():
    def program():
        with handlers.do(data={"w": 0.3}):
            w = numpyro.sample("w", N01)
        observe_seven(numpyro.sample("x", N01) + w)

    has_evidence(norm.logpdf(0.4, 0.0, np.sqrt(2.0)), program)


@pytest.mark.parametrize("centered", [0, 0.4, 1.0])
def test_location_and_scale_reparametrised(centered):
    def program():
        with handlers.reparam(config={"x": reparam.LocScaleReparam(centered)}):
            x = numpyro.sample("x", dist.Normal(0.5, 2.0))
        observe_seven(x)

    has_evidence(norm.logpdf(0.7, 0.5, np.sqrt(5.0)), program)


def test_a_transform_reparametrised():
    def program():
        with handlers.reparam(config={"x": reparam.TransformReparam()}):
            x = numpyro.sample("x", dist.TransformedDistribution(N01, dist.transforms.AffineTransform(0.5, 2.0)))
        observe_seven(x)

    has_evidence(norm.logpdf(0.7, 0.5, np.sqrt(5.0)), program)


def test_a_factor_in_a_plate_counts_for_each():
    def program():
        x = numpyro.sample("x", N01)
        with numpyro.plate("p", 2):
            numpyro.factor("f", dist.Normal(x, 1.0).log_prob(0.7))

    has_evidence(exact_of([0.7, 0.7]), program)


def test_a_scale_is_a_power():
    def program():
        x = numpyro.sample("x", N01)
        with handlers.scale(scale=2.0):
            observe_seven(x)

    has_evidence(exact_of([0.7, 0.7]), program)


def test_a_certain_value_is_a_deterministic_one():
    def program():
        x = numpyro.sample("x", N01)
        numpyro.sample("d", dist.Delta(2 * x, log_density=0.5))
        numpyro.sample("e", dist.Delta(3 * x))
        observe_seven(x)

    posterior = ab.infer(program, budget=20_000)
    assert abs(posterior.log_evidence - (ONE + 0.5)) < 4 * posterior.log_evidence_sd < 0.1
    draws = posterior.draws(5)
    np.testing.assert_allclose(draws["e"], 3 * draws["x"])
    assert "e" not in posterior.replicate(5)


def test_a_masked_coin_has_its_two_values():
    """The mask takes the probability out of the density; the values stay zero and one."""

    def program():
        with handlers.mask(mask=False):
            z = numpyro.sample("z", dist.Bernoulli(0.3))
        observe_seven(z)

    estimate, sd = log_evidence(program)
    assert estimate == pytest.approx(np.logaddexp(norm.logpdf(0.7), norm.logpdf(-0.3)))
    assert sd == 0


# What is refused ----------------------------------------------------------------------------------------------------


def masked_real():
    with handlers.mask(mask=np.array([True, False])):
        x = numpyro.sample("x", dist.Normal(np.zeros(2), 1.0))
    observe_seven(x[0])


def masked_count():
    observe_seven(numpyro.sample("x", dist.Poisson(2.0).mask(False)))


def masked_at_random():
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    observe_seven(numpyro.sample("x", N01.mask(z == 1)))


@pytest.mark.parametrize("program", [masked_real, masked_count, masked_at_random])
def test_a_mask_that_leaves_a_latent_without_a_prior(program):
    refused(errors.ImproperSite, program, "x", "ImproperUniform", "observations")


def parameter():
    numpyro.sample("z", N01)
    observe_seven(numpyro.param("p", 0.5))


def module():
    x = numpyro.sample("x", N01)
    layer = (lambda key, shape: (shape, jnp.ones(2)), lambda params, inputs: params.sum() * inputs)
    observe_seven(numpyro.module("p", layer, (1,))(x))


def mutable():
    numpyro.sample("z", N01)
    primitives.mutable("p", {"value": 1.0})


def hidden():
    with handlers.block():
        observe_seven(numpyro.sample("p", N01))


def subsampled_by_a_handler():
    x = numpyro.sample("x", N01)
    with handlers.substitute(data={"p": jnp.array([1, 2])}), numpyro.plate("p", 4, subsample_size=2):
        numpyro.sample("y", dist.Normal(x, 1.0), obs=numpyro.subsample(jnp.arange(4.0), 0))


@pytest.mark.parametrize(
    ("program", "site", "words"),
    [
        (parameter, "p", "handlers.lift"),
        (module, "p$params", "nothing is optimised"),
        (mutable, "p", "a variable of the program"),
        (hidden, "p", "out of the block"),
        (subsampled_by_a_handler, "p", "all the data"),
    ],
)
def test_statements_that_would_be_wrong(program, site, words):
    refused(errors.UnsupportedStatement, program, site, words)


# Empty plates -------------------------------------------------------------------------------------------------------


def test_a_plate_of_random_size_may_be_empty():
    """With k = 0, 1, 2 draws around x, all of them seen as 0.7: what is in an empty plate adds nothing."""

    def program():
        k = numpyro.sample("k", dist.DiscreteUniform(0, 2))
        x = numpyro.sample("x", N01)
        with numpyro.plate("p", k):
            w = numpyro.sample("w", dist.Normal(x, 1.0))
            numpyro.sample("y", dist.Normal(w, 1.0), obs=np.full(int(k), 0.7))

    paths = {int(path.sites[0].value): path for path in ab.find_paths(program)}
    assert paths[0].sites[-1].shape == (0,)
    logs = [
        0.0,
        norm.logpdf(0.7, 0.0, np.sqrt(3.0)),
        multivariate_normal(np.zeros(2), 1 + 2 * np.eye(2)).logpdf([0.7, 0.7]),
    ]
    has_evidence(np.logaddexp.reduce(logs) - np.log(3.0), program)
    posterior = ab.infer(program, budget=60_000)
    exact = np.exp(logs) / np.exp(logs).sum()
    assert [posterior.probability("k")[k] for k in range(3)] == pytest.approx(exact, abs=0.02)


def empty():
    numpyro.sample("x", N01)
    with numpyro.plate("p", len([])):
        numpyro.sample("w", N01)


def empty_on_one_path():
    k = numpyro.sample("k", dist.DiscreteUniform(0, 2))
    with numpyro.plate("p", int(k)):
        numpyro.sample("w", N01)


@pytest.mark.parametrize("program", [empty, empty_on_one_path])
def test_a_plate_of_known_size_zero(program):
    refused(errors.UnsupportedStatement, program, "p", "only if its size is positive")


def test_other_assertions_stay_what_they_are():
    def program():
        numpyro.sample("x", N01)
        assert numpyro is None, "of my own"

    with pytest.raises(AssertionError, match="of my own"):
        ab.find_paths(program)


# Outside a program --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [ab.infer, ab.find_paths])
def test_the_model_was_called(run):
    def model(y):
        numpyro.sample("y", N01, obs=y)

    with pytest.raises(errors.OutsideProgram, match=r"function; got NoneType.*ab.infer\(program, data\)") as raised:
        run(model(0.7))
    assert isinstance(raised.value, TypeError)
    assert raised.value.where.startswith("test_statements.py:")


# Parameters ---------------------------------------------------------------------------------------------------------

BAD = np.array([0.5, 0.7])
INVALID = {
    "scale": (lambda x: dist.Normal(x, -1.0), "scale = -1.0 is not positive"),
    "scale of jax": (lambda x: dist.Normal(x, jnp.array(-1.0)), "scale = -1.0 is not positive"),
    "rate": (lambda x: dist.Poisson(float("nan")), "rate = nan is not at least 0.0"),
    "trials": (lambda x: dist.Binomial(-1, 0.5), "total_count = -1 is not a whole number of at least 0"),
    "one of many": (lambda x: dist.Normal(x, jnp.array([1.0, -2.0])), "-2.0"),
    "probabilities": (lambda x: dist.Categorical(BAD), "probs = [0.5, 0.7] is not non-negative with a sum of one"),
    "probabilities of jax": (lambda x: dist.Categorical(jnp.array(BAD)), "sum of one"),
    "negative": (lambda x: dist.Categorical(jnp.array([1.5, -0.5])), "sum of one"),
    "coin": (lambda x: dist.Bernoulli(jnp.array(1.2)), "between 0 and 1"),
    "not a number": (lambda x: dist.Normal(jnp.array(np.nan), 1.0), "loc = nan is not a finite number"),
    "in a mixture": (
        lambda x: dist.MixtureSameFamily(dist.Categorical(jnp.array(BAD)), dist.Normal(jnp.stack([x, x]), 1.0)),
        "sum of one",
    ),
    "in a general mixture": (
        lambda x: dist.MixtureGeneral(
            dist.Categorical(jnp.array([0.5, 0.5])), [dist.Normal(x, 1.0), dist.Normal(0.0, jnp.array(-1.0))]
        ),
        "scale = -1.0",
    ),
    "expanded": (lambda x: dist.Normal(x, jnp.array(-1.0)).expand([3]), "scale = -1.0"),
    "event": (lambda x: dist.Normal(x, jnp.array([-1.0, 1.0])).to_event(1), "-1.0"),
    "truncated": (lambda x: dist.TruncatedNormal(x, jnp.array(-1.0), low=0.0), "scale = -1.0"),
    "interval": (lambda x: dist.Uniform(1.0, 0.0), "low = 1.0 is not below high = 0.0"),
    "whole numbers": (lambda x: dist.DiscreteUniform(5, 1), "low = 5 is not below high = 1"),
}


@pytest.mark.parametrize("label", INVALID)
@pytest.mark.parametrize("observed", [False, True])
def test_an_invalid_parameter(label, observed):
    make, words = INVALID[label]

    def program():
        x = numpyro.sample("x", N01)
        numpyro.sample("bad", make(x), obs=0.0 if observed else None)

    refused(errors.InvalidParameter, program, "bad", words)


def test_a_random_parameter_is_not_checked_nor_one_that_need_not_be():
    def program():
        x = numpyro.sample("x", N01)
        numpyro.sample("y", dist.Normal(0.0, x), obs=0.5)
        numpyro.sample("z", dist.Categorical(jnp.array(BAD), validate_args=False))

    ab.find_paths(program)


def test_single_precision_probabilities_are_valid():
    chances = jax.nn.softmax(jnp.linspace(0.0, 3.0, 1000, dtype=jnp.float32))
    assert chances.dtype == jnp.float32

    def program():
        numpyro.sample("z", dist.Categorical(chances))

    ab.find_paths(program)


def test_validation_that_the_user_has_switched_off():
    def program():
        numpyro.sample("z", dist.Categorical(jnp.array(BAD)))

    with numpyro.validation_enabled(False):
        ab.find_paths(program)


# Data ---------------------------------------------------------------------------------------------------------------

TABLE = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": [0.3, 1.2, 1.9]})
AT_HALF = norm.logpdf(0.5) + norm.logpdf(TABLE["y"], 0.5 * TABLE["x"], 1.0).sum()


def slope_times_column(table):
    slope = ab.sample("slope", N01)
    ab.observe("y", dist.Normal(slope * table["x"], 1.0), table["y"])


def column_times_slope(table):
    slope = ab.sample("slope", N01)
    numpyro.sample("y", dist.Normal(table["x"] * slope, 1.0), obs=table["y"])


def lists(table):
    slope = ab.sample("slope", N01)
    ab.observe("y", dist.Normal(slope * np.array(list(table["x"])), 1.0), list(table["y"]))


def one_by_one(table):
    slope = ab.sample("slope", N01)
    ab.observe("y", dist.Normal(jnp.stack([slope * x for x in table["x"]]), 1.0), tuple(table["y"]))


@pytest.mark.parametrize("program", [slope_times_column, column_times_slope, lists, one_by_one])
def test_columns_and_lists_are_data(program):
    table = TABLE.copy()
    division = ab.find_paths(program, table)
    table["y"] += 100  # the user's own, afterwards
    [path] = division.paths
    assert not path.interpreted
    assert path.evaluate([[0.5]], compile=False).log_density == pytest.approx([AT_HALF])


@pytest.mark.parametrize("operation", ["+", "-", "*", "/", "**", "%", "//"])
def test_arithmetic_with_columns(operation):
    column = pd.Series([1.5, 2.5])
    apply = eval(f"lambda a, b: a {operation} b")

    def program():
        x = ab.sample("x", dist.Uniform(1.0, 2.0))
        return apply(x, column), apply(column, x)

    [path] = ab.find_paths(program).paths
    assert not path.interpreted
    [outcome] = path.outcomes([[0.0]])
    for result, exact in zip(outcome.result, (apply(1.5, column), apply(column, 1.5)), strict=True):
        np.testing.assert_allclose(np.squeeze(result), exact)


@pytest.mark.filterwarnings("ignore:.* requires ndarray or scalar:DeprecationWarning")
def test_parameters_in_a_list():
    def program():
        x = numpyro.sample("x", N01)
        numpyro.sample("y", dist.Normal([0.0, 1.0], 1.0), obs=[0.7, 0.1])
        numpyro.sample("z", dist.Normal(x, 1.0), obs=0.7)

    has_evidence(ONE + norm.logpdf([0.7, 0.1], [0.0, 1.0]).sum(), program)


MASKED = np.ma.masked_array([0.5, 99.0, 0.7], [False, True, False])


@pytest.mark.parametrize(
    "statement",
    [
        lambda x: ab.observe("y", dist.Normal(x, 1.0), MASKED),
        lambda x: numpyro.sample("y", dist.Normal(x, 1.0), obs=MASKED),
        lambda x: ab.observe("y", dist.Normal(MASKED, 1.0), 0.5),
        lambda x: ab.factor("y", MASKED),
    ],
)
def test_a_masked_array_is_refused(statement):
    refused(errors.MaskedData, lambda: statement(numpyro.sample("x", N01)), "y", "obs_mask", "compressed", ".mask(")


def test_what_is_said_of_masked_arrays_works():
    def program(y):
        x = ab.sample("x", N01)
        ab.observe("seen", dist.Normal(x, 1.0), y.compressed())
        ab.observe("masked", dist.Normal(x, 1.0).mask(~y.mask), y.data)
        numpyro.sample("missing", dist.Normal(x, 1.0), obs=y.data, obs_mask=~y.mask)
        ab.observe("whole", dist.Normal(x, 1.0), np.ma.masked_array([0.5]))

    has_evidence(exact_of([0.5, 0.7] * 3 + [0.5]), program, MASKED)


# Densities that are seldom no number ---------------------------------------------------------------------------------


def test_a_point_in_thousands_without_a_density_is_not_worth_a_word(caplog):
    def program():
        x = ab.sample("x", N01)
        ab.factor("f", jnp.log(x + 4.0))

    [path] = ab.find_paths(program).paths
    points = np.zeros((5_000, 1))
    points[0] = -5.0
    with caplog.at_level(logging.WARNING, "anabranch"):
        path.evaluate(points[:50], compile=False)
        path.evaluate(points[50:], compile=False)
        assert (path.invalid, path.evaluated, path.is_often_invalid) == (1, 5_000, False)
        assert not caplog.records
        path.evaluate(np.full((10, 1), -5.0), compile=False)
    assert path.is_often_invalid
    assert "at 11 of 5010 points" in caplog.text
