"""Programs that return functions: each draw has one that can be called."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import errors, programs
from anabranch.divide import divide, returned


def wave(x, y):
    """A function with its coefficients, by a path for each number of terms."""
    terms = ab.sample("terms", dist.DiscreteUniform(1, 2))
    a = [ab.sample(f"a{i}", dist.Normal(0.0, 1.0)) for i in range(terms)]

    def f(x, scale=1.0):
        return scale * sum(a[i] * jnp.sin((i + 1) * x) for i in range(terms))

    ab.observe("y", dist.Normal(f(x), 0.1), y)
    return f


X = np.linspace(-1.0, 1.0, 8)


def at(draw, x):
    return sum(draw[f"a{i}"] * np.sin((i + 1) * x) for i in range(int(draw["terms"])))


@pytest.fixture(scope="module")
def posterior():
    return ab.infer(wave, X, np.sin(X), budget=20_000, tolerance=0.05)


def test_the_function_of_a_draw_has_the_values_of_the_draw(posterior):
    for draw in posterior.draws(20, seed=1):
        f = draw.result
        assert f(X) == pytest.approx(at(draw, X), rel=1e-12)
        assert f(0.3, scale=2.0) == pytest.approx(2 * at(draw, 0.3), rel=1e-12)
        assert isinstance(f(X), np.ndarray)
        assert f(X).dtype == np.float64
        assert f.__name__ == "f"


def test_functions_are_usable_in_every_question(posterior):
    mean, sd = posterior.expectation(lambda draw: draw.result(0.5), max_draws=50)
    assert abs(mean - np.sin(0.5)) < 0.1
    assert 0 < sd < 0.1
    curves = posterior.predict(lambda draw: draw.result(X), n=10)
    assert curves.shape == (10, len(X))
    functions = posterior.predict(lambda draw: draw.result, n=3)
    assert [np.shape(f(X)) for f in functions] == [X.shape] * 3
    assert posterior.map().result(X) == pytest.approx(np.sin(X), abs=0.1)


def test_a_saved_posterior_has_the_functions_too(posterior, tmp_path):
    posterior.save(tmp_path / "run")
    loaded = ab.load(tmp_path / "run", wave, X, np.sin(X))
    first, again = posterior.draws(1)[0], loaded.draws(1)[0]
    assert again.result(0.5) == first.result(0.5)


def test_functions_inside_a_container():
    def program(y):
        a = ab.sample("a", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(a, 1.0), y)
        return {"f": partial(jnp.multiply, a), "a": a}

    result = ab.infer(program, 1.0, budget=5_000, tolerance=0.1).draws(1)[0].result
    assert result["f"](2.0) == pytest.approx(2 * result["a"])


def test_the_function_of_the_papers_grammar():
    def induction(x, y):
        f = programs.induction.expression(1, None)
        ab.observe("y", dist.Normal(f(x), 0.5), y)
        return f

    x, y = programs.function_induction_data()
    by_values = ab.infer(programs.function_induction, x, y, budget=5_000, seed=2, tolerance=None)
    by_function = ab.infer(induction, x, y, budget=5_000, seed=2, tolerance=None)
    for values, function in zip(by_values.draws(5), by_function.draws(5), strict=True):
        assert function.result(x) == pytest.approx(values.result, rel=1e-9)


def test_a_function_that_leaves_jax_runs_by_the_interpreter():
    def program(y):
        a = float(ab.sample("a", dist.Normal(0.0, 1.0)))
        ab.observe("y", dist.Normal(a, 1.0), y)
        return lambda x: a * x if x > 0 else 0.0

    draw = ab.infer(program, 1.0, budget=200, tolerance=None).draws(1)[0]
    assert draw.result(2.0) == pytest.approx(2 * draw["a"])
    assert draw.result(-2.0) == 0.0


def test_a_function_that_draws_says_that_it_is_outside_the_program():
    def program(y):
        a = ab.sample("a", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(a, 1.0), y)
        return lambda: ab.sample("b", dist.Normal(a, 1.0))

    draw = ab.infer(program, 1.0, budget=2_000, tolerance=0.2).draws(1)[0]
    with pytest.raises(errors.OutsideProgram):
        draw.result()


def test_a_program_that_meets_another_site_than_before_is_refused():
    program = divide(wave, (X, np.sin(X)), {}).program
    with pytest.raises(errors.NotAFunction, match=r"wave met the site 'a0' .* path \(terms = 1\)"):
        returned(program, {"terms": np.array(1)}, "terms = 1")
