"""A function of what all executions of a path share is called once for the path, and gives what the draws would."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.combine.constant_draw import Varies, at_path
from anabranch.combine.draws import drawn_at


def program():
    kind = ab.sample("kind", dist.Categorical(np.array([0.3, 0.7])))
    ab.deterministic("name", "wide" if kind == 1 else "narrow")
    ab.deterministic("double", 2 * kind)
    ab.deterministic("pair", jnp.array([1.0, 2.0]) * kind)
    x = ab.sample("x", dist.Normal(0.0, 1.0 if kind == 1 else 0.1))
    ab.deterministic("shifted", x + kind)
    if kind == 1:
        ab.sample("more", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(x, 1.0), 0.5)
    return kind


PATHS = list(ab.find_paths(program))
CONSTANT = [
    lambda draw: draw["kind"],
    lambda draw: draw["name"],
    lambda draw: draw["double"] + 1,
    lambda draw: draw["pair"].sum(),
    lambda draw: "more" in draw,
    lambda draw: draw.get("kind", 7),
    lambda draw: len(draw),
    lambda draw: sorted(draw),
    lambda draw: draw.path,
]
VARYING = [
    lambda draw: draw["x"],
    lambda draw: draw["shifted"],
    lambda draw: draw.get("more", 0.0),
    lambda draw: dict(draw),
    lambda draw: draw.result,
]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.description)
@pytest.mark.parametrize("f", CONSTANT)
def test_it_is_what_each_draw_gives(f, path):
    value = at_path(f, path)
    for _, draw in drawn_at(path, np.zeros((2, path.dim))):
        assert np.array_equal(value, f(draw))


@pytest.mark.parametrize("f", VARYING)
def test_what_varies_is_refused(f):
    [path] = [each for each in PATHS if "more" in each.names]
    with pytest.raises(Varies):
        at_path(f, path)


def caught(draw: Any) -> float:
    try:
        return float(draw["more"])
    except Exception:
        return -1.0


def test_functions_that_catch_errors_see_the_draws():
    posterior = ab.infer(program, seed=0)
    mean, sd = posterior.expectation(caught)
    exact, _ = posterior.expectation(lambda draw: float(draw["more"]) if "more" in draw else -1.0)
    assert mean == pytest.approx(exact)
    assert sd > 0


def test_it_is_called_once_for_a_path():
    calls = []
    posterior = ab.infer(program, seed=0)
    mean, _ = posterior.expectation(lambda draw: calls.append(1) or float(draw["kind"]))
    assert mean == pytest.approx(posterior.probability("kind")[1])
    assert len(calls) == 2
