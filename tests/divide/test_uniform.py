"""Arrays with equal elements are computed as one number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.conquer import Elimination, PathTarget
from anabranch.conquer.elimination import Eliminated, eliminate
from elimination_cases import Y, mixture, shares_by_covariates, vectors_selected


def sizes(program, primitive: str, points: int) -> list[int]:
    """The sizes of what some primitive computes in the density of a program with so many points."""
    (path,) = ab.find_paths(program, np.resize(Y, points), executions=20).paths
    target = eliminate(PathTarget(path), Elimination(max_enumerated=0), np.random.default_rng(0))
    assert isinstance(target, Eliminated)
    with jax.enable_x64(True):
        equations = jax.make_jaxpr(target._traced)(np.zeros(path.dim)).eqns
    return sorted(eqn.outvars[0].aval.size for eqn in equations if eqn.primitive.name == primitive)


@pytest.mark.parametrize("program", [mixture, vectors_selected])
def test_as_many_elements_are_looked_up_as_there_are_values(program):
    assert sizes(program, "gather", 50) == sizes(program, "gather", 100)
    assert max(sizes(program, "gather", 50)) <= 6


def test_rows_of_points_are_columns_of_their_array():
    """Where every point has shares of its own, those of one value are one slice."""
    assert max(sizes(shares_by_covariates, "gather", 50)) == 150


def test_functions_of_what_is_looked_up_are_computed_once_for_each_value():
    def program(y):
        scale = ab.sample("scale", dist.LogNormal(0.0, 0.5).expand([3]).to_event(1))
        z = ab.sample("z", dist.Categorical(jnp.ones(3) / 3).expand([len(y)]).to_event(1))
        ab.observe("y", dist.Normal(0.0, scale[z]), y)

    assert max(sizes(program, "log", 50)) <= 3
