"""Programs that once gave a wrong number, or could: each against the value computed by hand."""

import functools
import pickle

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from scipy.stats import norm

import anabranch as ab
from anabranch.divide.internals import PathTrace

pytestmark = pytest.mark.one_in(4)


def log_likelihood(division, **values):
    """Of one execution with these values, on the path that it takes."""
    [executions] = division.route({name: np.array([value]) for name, value in values.items()})
    path = executions.path
    return path.evaluate(path.points(executions.values()), compile=False).log_likelihood[0]


# Data that changes afterwards


def test_an_array_that_the_program_changes_after_use():
    def program():
        x = ab.sample("x", dist.Normal(0.3, 1.0))
        weights = np.array([1.0, 2.0])
        mean = (x * weights).sum()
        weights += 10
        ab.observe("y", dist.Normal(mean, 1.0), 0.7)

    assert log_likelihood(ab.find_paths(program), x=0.4) == pytest.approx(norm.logpdf(0.7, 1.2, 1.0))


def test_parameters_that_the_program_changes_after_use():
    def program():
        p = np.array([0.9, 0.1])
        z = ab.sample("z", dist.Categorical(probs=p))
        p[:] = 0.5
        if z:
            ab.sample("w", dist.Normal(0.0, 1.0))

    assert [path.prior_probability for path in ab.find_paths(program)] == pytest.approx([0.9, 0.1])


def test_data_that_the_user_changes_afterwards():
    def program(y):
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), y)

    y = np.array([0.5, -0.5])
    division = ab.find_paths(program, y)
    y += 100
    assert log_likelihood(division, x=0.2) == pytest.approx(norm.logpdf([0.5, -0.5], 0.2, 1.0).sum())


# Selects


def test_a_select_does_not_join_lists():
    def program(y):
        tau = ab.sample("tau", dist.Uniform(0.0, 20.0))
        left, right = [], []
        for t in range(20):
            side = left if t < tau else right
            side.append(y[t])
        ab.observe("n", dist.Normal(float(len(left)), 1.0), 3.0)

    division = ab.find_paths(program, np.arange(20.0), executions=60)
    assert log_likelihood(division, tau=7.5) == pytest.approx(norm.logpdf(3.0, 8.0, 1.0))


def doubled(program):
    @functools.wraps(program)
    def wrapper(y):
        ab.observe("extra", dist.Normal(100.0, 1.0), 3.0)
        return program(2 * y)

    return wrapper


@doubled
def decorated(y):
    tau = ab.sample("tau", dist.Uniform(0.0, 20.0))
    for t in range(20):
        mean = 0.0 if t < tau else 1.0
        ab.observe(f"y{t}", dist.Normal(mean, 1.0), y[t])


def test_a_decorator_is_not_lost():
    division = ab.find_paths(decorated, np.arange(20.0), executions=60)
    mean = np.where(np.arange(20) < 5.5, 0.0, 1.0)
    expected = norm.logpdf(3.0, 100.0, 1.0) + norm.logpdf(2 * np.arange(20.0), mean, 1.0).sum()
    assert log_likelihood(division, tau=5.5) == pytest.approx(expected)


def test_integers_stay_those_of_python():
    def program():
        a, total = ab.sample("a", dist.Normal(0.0, 1.0)), 0.0
        for c in np.linspace(-1, 1, 12):
            n = 70 if a > c else -1
            total += 2.0**n / 2.0**70
        ab.observe("y", dist.Normal(total, 1.0), 0.5)

    above = np.linspace(-1, 1, 12) < 0.3
    assert log_likelihood(ab.find_paths(program), a=0.3) == pytest.approx(norm.logpdf(0.5, above.sum(), 1.0))


def test_a_side_without_a_derivative_does_not_spoil_the_gradient():
    def program(y):
        a = ab.sample("a", dist.Normal(0.0, 1.0))
        for t in range(12):
            z = a - (t - 6) / 4
            mean = jnp.sqrt(z) if z > 0 else 0.0
            ab.observe(f"y{t}", dist.Normal(mean, 1.0), y[t])

    [path] = ab.find_paths(program, np.arange(12.0)).paths
    _, gradient = path.differentiate([[0.3]])
    z = 0.3 - (np.arange(12) - 6) / 4
    roots = np.sqrt(z[z > 0])
    expected = -0.3 + ((np.arange(12.0)[z > 0] - roots) / (2 * roots)).sum()
    assert gradient[0, 0] == pytest.approx(expected, rel=1e-6)


def test_what_stands_before_an_and_guards_what_stands_after():
    def program():
        table, total = [1.0, 2.0, 3.0], 0.0
        a = ab.sample("a", dist.Normal(0.0, 3.0))
        for c in np.linspace(-2, 2.5, 12):
            mean = 0.0
            if a < c and a >= 0 and table[int(a)] > 1.5:
                mean = 1.0
            total = total + mean
        ab.observe("y", dist.Normal(total, 1.0), 0.5)

    expected = norm.logpdf(0.5, (np.linspace(-2, 2.5, 12) > 1.3).sum(), 1.0)
    assert log_likelihood(ab.find_paths(program), a=1.3) == pytest.approx(expected)


# Paths of several kinds of sequences


def test_a_path_of_which_one_sequence_leaves_jax():
    def program():
        x = ab.sample("x", dist.Normal(0.3, 1.0))
        mean = float(x) * 2 if x > 1.0 else x
        ab.observe("y", dist.Normal(mean, 1.0), 0.7)

    [path] = ab.find_paths(program).paths
    expected = norm.logpdf([1.3, 0.5], 0.3, 1.0) + norm.logpdf(0.7, [2.6, 0.5], 1.0)
    np.testing.assert_allclose(path.evaluate([[1.3], [0.5]]).log_density, expected)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(path)).evaluate([[1.3], [0.5]]).log_density, expected)
    assert path.prior(20).log_probability == pytest.approx(0.0)


def test_an_observation_that_one_sequence_of_a_path_cannot_make():
    def program():
        if ab.sample("x", dist.Normal(0.0, 1.0)) > 0:
            ab.observe("y", dist.Exponential(1.0), -1.0)
        else:
            ab.observe("y", dist.Normal(0.0, 1.0), -1.0)

    [path] = ab.find_paths(program).paths
    np.testing.assert_allclose(path.evaluate([[0.5], [-0.5]]).log_density, [-np.inf, 2 * norm.logpdf(0.5) - 0.375])


# Prior probabilities


def chance():
    p = ab.sample("p", dist.Uniform(0.0, 1.0))
    if ab.sample("z", dist.Bernoulli(p)):
        ab.sample("w", dist.Normal(0.0, 1.0))


def test_more_executions_make_probabilities_better():
    division = ab.find_paths(chance, executions=4)
    division.explore(100_000, seed=1)
    assert [path.prior_probability for path in division] == pytest.approx([0.5, 0.5], abs=0.005)


def test_executions_one_at_a_time():
    division = ab.find_paths(chance, executions=1)
    for seed in range(1, 100):
        division.explore(1, seed=seed)
    assert division.prior_mass_found == pytest.approx(1.0)


def test_values_that_were_given_say_nothing_of_the_prior():
    division = ab.find_paths(chance, executions=500)
    before = {path.addresses: path.prior_probability for path in division}
    division.route({"p": np.full(10, 0.999)})
    assert {path.addresses: path.prior_probability for path in division} == before


@pytest.mark.parametrize("handler", [handlers.mask(mask=False), handlers.scale(scale=2.0)])
def test_a_mask_or_scale_is_of_the_density_not_of_the_draws(handler):
    def program():
        with handler:
            z = numpyro.sample("z", dist.Bernoulli(0.3))
        if z:
            numpyro.sample("w", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program)
    assert [path.prior_probability for path in division] == pytest.approx([0.7, 0.3])
    assert [np.exp(path.prior(100).log_probability) for path in division] == pytest.approx([0.7, 0.3])


def test_addresses_with_the_same_checksum_have_draws_of_their_own():
    def program():
        a, b = ab.sample("plumless", dist.Normal(0.0, 1.0)), ab.sample("buckeroo", dist.Normal(0.0, 1.0))
        if a > b + 0.5:
            ab.sample("w", dist.Normal(0.0, 1.0))

    no, _ = ab.find_paths(program, executions=4000).paths
    expected = norm.cdf(0.5 / np.sqrt(2))
    assert no.prior_probability == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 4000))


def test_the_next_executions_are_not_those_of_the_next_seed():
    def program():
        ab.sample("x", dist.Normal(0.0, 1.0))

    def drawn(seed):
        division = ab.find_paths(program, executions=100, seed=seed)
        groups = [*division.explore(100), *division.explore(100)]
        return np.concatenate([group.values()["x"] for group in groups])

    assert not np.isin(drawn(0), drawn(1)).any()
    division = ab.find_paths(program, executions=100, seed=1)
    [group] = division.explore(100, seed=1)
    assert not np.isin(group.values()["x"], drawn(0)).any()


def test_the_same_executions_again_explore_nothing():
    def program():
        n = int(ab.sample("x", dist.Cauchy(0.0, 20.0)))
        ab.sample(f"y{n}", dist.Normal(0.0, 1.0))

    division = ab.find_paths(program, executions=200, seed=3)
    before = division.prior_mass_found
    division.explore(200, seed=3)
    assert division.prior_mass_found == before
    division.explore(200)
    assert before < division.prior_mass_found < 1


# Small print of numbers


def test_the_sign_of_a_zero_in_packed_constants():
    def program():
        xs = [ab.sample(f"x{i}", dist.Normal(0.0, 1.0)) for i in range(4)]
        zeros = [0.0, -0.0, 0.0, 0.0]
        ab.factor("angles", sum(jnp.arctan2(np.array(s), x) for s, x in zip(zeros, xs, strict=True)))

    [path] = ab.find_paths(program).paths
    assert path.evaluate(-np.ones((1, 4))).log_likelihood[0] == pytest.approx(2 * np.pi)


def test_a_known_truth_value_and_a_number():
    def program():
        k = ab.sample("k", dist.DiscreteUniform(1, 2))
        for _ in range(k):
            pass
        ab.observe("y", dist.Normal(((k >= 1) & 2) + 10 * ((k >= 1) | 2), 1.0), 0.7)

    path = ab.find_paths(program).paths[0]
    assert path.evaluate(np.zeros((1, 0))).log_likelihood[0] == pytest.approx(norm.logpdf(0.7, 30.0, 1.0))


def test_the_interpreter_far_out():
    def program():
        float(ab.sample("u", dist.Uniform(0.0, 1.0)))

    [path] = ab.find_paths(program, executions=5).paths
    np.testing.assert_allclose(path.evaluate([[30.0], [-800.0]]).log_density, [-30.0, -800.0], rtol=1e-10)


def test_only_whole_numbers_are_points_of_a_discrete_site():
    def program():
        k = ab.sample("k", dist.Poisson(3.0))
        ab.observe("y", dist.Normal(k, 1.0), 2.0)

    [path] = ab.find_paths(program).paths
    assert path.evaluate([[2.0], [2.5]]).guard.tolist() == [True, False]
    assert path.evaluate([[2.0], [2.5]], compile=False).guard.tolist() == [True, False]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"k": [7], "x": [1.0]}, "'k' is fixed to"),
        ({"x": [-1.0], "k": [1]}, "'x' .* outside its support"),
        ({"x": [1.0], "other": [1.0]}, "no site 'other'"),
        ({"x": 1.0}, "'x' must have shape"),
    ],
)
def test_values_that_are_no_execution_of_the_path(values, words):
    def program():
        k = ab.sample("k", dist.DiscreteUniform(1, 1))
        for _ in range(k):
            ab.sample("x", dist.Exponential(1.0))

    [path] = ab.find_paths(program).paths
    assert path.points({"x": [1.0]}).tolist() == [[0.0]]
    with pytest.raises(ValueError, match=words):
        path.points(values)


def test_decisions_stay_forbidden_until_all_is_left_that_forbids_them():
    trace = PathTrace(None)
    with trace.undecided():
        with trace.undecided():
            pass
        assert not trace._may_decide
    assert trace._may_decide
