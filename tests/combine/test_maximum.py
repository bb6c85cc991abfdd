"""The best point of a path, against closed forms."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import errors


def coin(heads):
    fair = ab.sample("fair", dist.Bernoulli(0.5))
    p = 0.5 if fair else ab.sample("p", dist.Beta(2.0, 1.0))
    ab.observe("heads", dist.Binomial(10, p), heads)
    return p


def line(x, y):
    slope = ab.sample("slope", dist.Normal(0.0, 2.0))
    level = ab.sample("level", dist.Normal(1.0, 1.0))
    ab.observe("y", dist.Normal(slope * x + level, 0.5), y)


@pytest.fixture(scope="module")
def posterior():
    return ab.infer(coin, 8, budget=20_000, tolerance=0.05)


def test_the_maximum_is_that_of_the_named_values(posterior):
    """The posterior is Beta(10, 3): its mode is 9/11, that of its logit 10/13."""
    best = posterior.map()
    assert best["p"] == pytest.approx(9 / 11, abs=1e-4)
    assert best["fair"] == 0
    assert best.result == best["p"]


def test_a_path_is_chosen_by_its_description(posterior):
    assert dict(posterior.map("fair = 1")) == {"fair": 1}
    with pytest.raises(errors.UnknownName, match="no path with draws is described as 'heads'"):
        posterior.map("heads")


def test_the_maximum_of_a_normal_posterior_is_its_mean():
    x = np.linspace(-1, 1, 7)
    y = 0.7 * x + 0.2
    design = np.column_stack([x, np.ones(7)])
    precision = np.diag([1 / 4, 1.0]) + design.T @ design / 0.25
    mean = np.linalg.solve(precision, np.array([0.0, 1.0]) + design.T @ y / 0.25)
    best = ab.infer(line, x, y, budget=20_000, tolerance=0.05).map()
    assert [best["slope"], best["level"]] == pytest.approx(mean, abs=1e-4)


def test_discrete_variables_are_those_of_the_best_draw():
    def program(y):
        k = ab.sample("k", dist.Poisson(3.0))
        x = ab.sample("x", dist.Normal(k.astype(float), 0.1))
        ab.observe("y", dist.Normal(x, 0.1), y)

    best = ab.infer(program, 4.1, budget=20_000, tolerance=0.05).map()
    assert best["k"] == 4
    assert best["x"] == pytest.approx(4.05, abs=1e-3)


def test_an_interpreted_path_has_the_best_of_its_draws():
    def outside(y):
        x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
        ab.observe("y", dist.Normal(jnp.asarray(x), 1.0), y)

    best = ab.infer(outside, 1.0, budget=300, tolerance=None).map()
    assert best["x"] == pytest.approx(0.5, abs=0.2)
