"""A run that stops at the error of an expectation: the error is met, it is true, and the evaluations serve it."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats
from scipy.integrate import quad

import anabranch as ab
from anabranch.conquer import SMC
from anabranch.errors import BadSetting, CannotLoad

Y = np.array([0.9, -0.4, 1.3, 0.2])


def two(y):
    """Two paths of about the same weight, each a product of four one-dimensional densities."""
    if ab.sample("bent", dist.Bernoulli(0.5)):
        x = ab.sample("x", dist.Normal(jnp.zeros(4), 1.0).to_event(1))
        mean = jnp.tanh(x)
    else:
        a = ab.sample("a", dist.StudentT(3.0, jnp.zeros(4), 1.0).to_event(1))
        mean = jnp.sin(2 * a)
    ab.observe("y", dist.Normal(mean, 0.5), y)


def above(draw):
    return draw["x"][0] > 1.0


def exact():
    """P(x[0] > 1 | bent, y)."""

    def density(x):
        return stats.norm.pdf(x) * stats.norm.pdf(Y[0], np.tanh(x), 0.5)

    return quad(density, 1, np.inf)[0] / quad(density, -np.inf, np.inf)[0]


def evidence(prior, f):
    """The evidence of a path."""

    def of_datum(y):
        return quad(lambda x: prior.pdf(x) * stats.norm.pdf(y, f(x), 0.5), -30, 30, limit=300)[0]

    return np.prod([of_datum(y) for y in Y])


@pytest.fixture(scope="module")
def runs():
    engine = ab.DCC(strategy=SMC())
    return [
        ab.infer(two, Y, engine=engine, budget=400_000, tolerance=tolerance)
        for tolerance in (0.01, ab.Tolerance(0.01, of=above))
    ]


def test_the_error_is_met_and_true(runs):
    posterior = runs[1]
    mean, sd = posterior.expectation(above, max_draws=1_000_000)
    assert posterior.run.stopped == "The error of the expectation is below 0.01."
    assert abs(mean - exact()) < 4 * sd
    assert 0.001 < sd < 0.01
    assert "tolerance=ab.Tolerance(0.01, of=above)" in posterior.run.limits


def test_evaluations_go_where_the_expectation_needs_them(runs):
    """The path without x matters for log Z, and not for the expectation."""
    without, served = (dict(zip(run.paths.path, run.paths.evaluations, strict=True)) for run in runs)
    assert served["bent = 0"] < without["bent = 0"] / 2
    assert served["bent = 1"] > served["bent = 0"]


def test_the_error_of_a_weight_is_an_expectation():
    def bent(draw):
        return draw["bent"] == 1

    posterior = ab.infer(two, Y, budget=400_000, tolerance=ab.Tolerance(0.01, of=bent))
    mean, sd = posterior.expectation(bent, max_draws=1_000_000)
    evidences = [evidence(stats.norm(), np.tanh), evidence(stats.t(3), lambda a: np.sin(2 * a))]
    assert abs(mean - evidences[0] / sum(evidences)) < 4 * sd < 0.04


def test_what_has_no_more_draws_says_so():
    def one(y):
        x, z = (ab.sample(name, dist.Normal(0.0, 1.0)) for name in "xz")
        ab.observe("y", dist.Normal(x + jnp.tanh(z), 1.0), y)

    posterior = ab.infer(one, 0.9, tolerance=ab.Tolerance(1e-4, of=lambda draw: draw["x"] > 1.0), budget=100_000)
    assert posterior.run.stopped.startswith("The error of the expectation is 0.0")
    assert "their method draws no more" in posterior.run.stopped


def test_only_dcc_serves_an_expectation():
    with pytest.raises(BadSetting, match="PaperDCC does not stop at the error of an expectation: only DCC"):
        ab.infer(two, Y, engine=ab.DCC.paper(), tolerance=ab.Tolerance(0.01, of=above))
    with pytest.raises(BadSetting, match="of must be a function of a draw; got 'x'"):
        ab.Tolerance(0.01, of="x")
    with pytest.raises(BadSetting, match="bound must be"):
        ab.Tolerance(0.0, of=above)


def test_another_expectation_is_another_run(tmp_path):
    ab.infer(two, Y, budget=5_000, tolerance=ab.Tolerance(0.01, of=above), checkpoint=tmp_path / "run")
    with pytest.raises(CannotLoad, match="other tolerance"):
        ab.infer(two, Y, budget=5_000, tolerance=ab.Tolerance(0.01, of=lambda draw: draw["x"][1] > 0),
                 checkpoint=tmp_path / "run")  # fmt: skip
