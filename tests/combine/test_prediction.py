"""Prior draws, prior predictive, and prediction with other arguments, against closed forms."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.stats import kstest, norm

import anabranch as ab
import solved
from anabranch import errors


def polynomial(x, y):
    """A constant, or a line: conjugate given the model."""
    line = ab.sample("line", dist.Bernoulli(0.5))
    mean = ab.sample("a", dist.Normal(0.0, 1.0)) * jnp.ones(len(x))
    if line:
        mean = mean + ab.sample("b", dist.Normal(0.0, 1.0)) * jnp.asarray(x)
    ab.deterministic("mean", mean)
    ab.observe("y", dist.Normal(mean, 0.5), y)
    return mean.sum()


X, Y = np.array([-1.0, 0.0, 2.0]), np.array([-0.7, 0.4, 2.1])


def exact(x_new):
    """The weight of the line, and mean and variance of new data under each model."""
    logs, moments = [], []
    for columns in ([0], [0, 1]):
        design, new = np.stack([np.ones(3), X], 1)[:, columns], np.array([1.0, x_new])[columns]
        covariance = np.linalg.inv(np.eye(len(columns)) + design.T @ design / 0.25)
        mean = covariance @ design.T @ Y / 0.25
        total = 0.25 * np.eye(3) + design @ design.T
        logs.append(-0.5 * (Y @ np.linalg.solve(total, Y) + np.linalg.slogdet(total)[1]))
        moments.append((new @ mean, 0.25 + new @ covariance @ new))
    return np.exp(logs[1]) / np.exp(logs).sum(), moments


@pytest.fixture(scope="module")
def posterior():
    return ab.infer(polynomial, X, Y, budget=40_000)


def test_prediction_at_new_inputs_has_the_predictive_distribution(posterior):
    draws = posterior.predictive(np.array([1.0, 5.0]), n=4000, seed=1)
    new = draws["y"]
    assert new.shape == (4000, 2)
    for k, x_new in enumerate((1.0, 5.0)):
        weight, moments = exact(x_new)
        cdf = lambda y, w=weight, m=moments: sum(  # noqa: E731
            p * norm.cdf(y, mean, np.sqrt(variance)) for p, (mean, variance) in zip((1 - w, w), m, strict=True)
        )
        assert kstest(new[:, k], cdf).pvalue > 0.001
    assert draws["mean"].shape == (4000, 2)
    assert np.asarray(draws["b"]).shape == (4000,)
    assert (draws["b"].mask == (draws["line"] == 0)).all()
    np.testing.assert_allclose(draws.results, draws["mean"].sum(axis=1))


def test_the_draws_are_those_of_the_posterior(posterior):
    known, new = posterior.draws(200, seed=3), posterior.predictive(np.array([1.0]), n=200, seed=3)
    np.testing.assert_allclose(new["a"], known["a"], rtol=1e-12)
    assert new.paths == known.paths


def test_replicates_are_predictions_with_the_data_of_the_run(posterior):
    new, draws = posterior.replicate(300, seed=5), posterior.predictive(n=300, seed=5)
    assert set(new) == {"y"}
    np.testing.assert_array_equal(new["y"], draws["y"])
    assert new["y"].shape == (300, 3)


def test_a_value_that_is_given_sets_the_shape_alone(posterior):
    draws = posterior.predictive(np.array([1.0, 5.0]), np.zeros(2), n=50, seed=1)
    np.testing.assert_array_equal(
        draws["y"], posterior.predictive(x=np.array([1.0, 5.0]), y=np.ones(2), n=50, seed=1)["y"]
    )


def test_new_arguments_may_change_where_an_execution_goes():
    """The program has a site for each datum, and a branch on its argument: new ones are drawn from the prior."""

    def program(m, y):
        mu = ab.sample("mu", dist.Normal(0.0, 1.0))
        local = ab.sample("local", dist.Normal(mu * jnp.ones(m), 1.0))
        if m > 2:
            ab.sample("extra", dist.Normal(10.0, 1.0))
        ab.observe("y", dist.Normal(local, 0.1), y)

    posterior = ab.infer(program, 2, np.array([1.0, 3.0]), budget=40_000)
    mean, _ = posterior.expectation("mu")
    draws = posterior.predictive(4, n=4000)
    assert draws["y"].shape == (4000, 4)
    assert abs(draws["extra"].mean() - 10) < 4 / np.sqrt(4000)
    assert abs(draws["y"][:, 3].mean() - mean) < 4 * draws["y"][:, 3].std() / np.sqrt(2000)
    same = posterior.predictive(2, n=500, seed=2)
    np.testing.assert_allclose(same["local"], posterior.draws(500, seed=2)["local"], rtol=1e-10)


def test_a_numpyro_model_and_a_program_of_the_interpreter_predict():
    def model(x, y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("data", len(x)):
            numpyro.sample("y", dist.Normal(mu * x, 0.1), obs=y)

    posterior = ab.infer(model, np.array([1.0, 2.0]), np.array([2.0, 4.0]), budget=20_000)
    new = posterior.predictive(np.array([3.0, 4.0, 5.0]), n=2000)["y"]
    np.testing.assert_allclose(new.mean(axis=0), 2 * np.array([3.0, 4.0, 5.0]), rtol=0.02)

    def simulator(scale, y):
        mu = ab.sample("mu", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(scale * float(mu), 0.1), y)

    posterior = ab.infer(simulator, 1.0, 0.5, budget=200)
    draws = posterior.predictive(10.0, n=100)
    assert abs(np.mean(draws["y"] - 10 * draws["mu"])) < 4 * 0.1 / np.sqrt(100)


def test_a_program_that_computes_with_its_data_is_told_to_get_an_array():
    def program(y):
        mu = ab.sample("mu", dist.Normal(0.0, 1.0))
        for i in range(len(y)):
            ab.observe(f"y{i}", dist.Normal(mu, 1.0), y[i])

    posterior = ab.infer(program, np.array([1.0, 2.0]), budget=20_000)
    with pytest.raises(TypeError) as caught:
        posterior.predictive(None)
    assert any("give an array of the right shape" in note for note in caught.value.__notes__)
    assert posterior.predictive(np.zeros(3), n=10)["y2"].shape == (10,)


def test_none_is_no_datum_of_an_inference():
    with pytest.raises(TypeError, match="observe expects a number or an array"):
        ab.infer(polynomial, X, None)


def test_prior_draws_have_the_prior_and_new_data_its_predictive_distribution():
    draws = ab.prior(polynomial, X, n=4000, seed=1)
    assert len(draws) == 4000
    assert abs(draws["line"].mean() - 0.5) < 4 * 0.5 / np.sqrt(4000)
    assert kstest(draws["a"], norm.cdf).pvalue > 0.001
    assert kstest(draws["b"].compressed(), norm.cdf).pvalue > 0.001
    line = draws["line"] == 1
    assert kstest(draws["y"][line, 2], norm(0, np.sqrt(1 + 4 + 0.25)).cdf).pvalue > 0.001
    assert kstest(draws["y"][~line, 2], norm(0, np.sqrt(1.25)).cdf).pvalue > 0.001
    given = ab.prior(polynomial, X, Y, n=100)
    assert given["y"].shape == (100, 3)
    assert draws["y"].shape == (4000, 3)


def test_prior_draws_run_the_python_once_for_each_path():
    runs = []

    def program(y):
        runs.append(1)
        solved.choice(y)

    ab.prior(program, solved.Y, n=3000)
    assert len(runs) < 10
    first, again = ab.prior(solved.choice, solved.Y, n=50, seed=4), ab.prior(solved.choice, solved.Y, n=50, seed=4)
    np.testing.assert_array_equal(first["y"], again["y"])
    assert not np.array_equal(first["y"], ab.prior(solved.choice, solved.Y, n=50, seed=5)["y"])


def test_faults_of_prior():
    def improper(y):
        mu = ab.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        ab.observe("y", dist.Normal(mu, 1.0), y)

    with pytest.raises(errors.ImproperSite, match="Give it a proper prior"):
        ab.prior(improper, 1.0)
    with pytest.raises(TypeError, match="cannot be called with these arguments"):
        ab.prior(polynomial, X, Y, 3)
    with pytest.raises(errors.BadSetting, match="n must be a whole number"):
        ab.prior(polynomial, X, Y, n=0)
    posterior = ab.infer(improper, 1.0, budget=20_000)
    new = posterior.predictive(n=2000)["y"]  # its draws are known
    assert abs(new.mean() - 1.0) < 4 * np.sqrt(2 / 2000)


def test_executions_with_too_many_sites_are_left_out(caplog):
    def geometric():
        n = 0
        while ab.sample(f"again{n}", dist.Bernoulli(0.5)):
            n += 1

    draws = ab.prior(geometric, n=400, max_sites=3)
    assert 300 < len(draws) < 400
    assert "executions were left out" in caplog.text
