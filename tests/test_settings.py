"""Using the library leaves JAX as it was."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab

TIMES = np.linspace(0.0, 1.0, 8)


def oscillation(times, y):
    frequency = ab.sample("frequency", dist.Gamma(2.0, 2.0))
    shift = ab.sample("shift", dist.Normal(jnp.zeros(8), times + 1.0).to_event(1))
    if frequency > 1:
        frequency = frequency * ab.sample("more", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(jnp.sin(frequency * times + TIMES) + shift * TIMES, times + 0.1), y)
    return frequency * times


@pytest.mark.parametrize("how", ["found", "evaluated", "differentiated"])
def test_the_users_arrays_mean_the_same_to_jax_as_before(how):
    """jax keeps what a NumPy array became under double precision for as long as somebody holds on to it."""
    times, y = np.linspace(0.0, 2.0, 8), np.ones(8)
    division = ab.find_paths(oscillation, times, y, executions=50)
    points = [path.prior(2).points for path in division]
    if how == "evaluated":
        [path.evaluate(z) for path, z in zip(division, points, strict=True)]
    if how == "differentiated":
        [path.differentiate(z) for path, z in zip(division, points, strict=True)]
    for array in (times, y, TIMES):
        assert jnp.asarray(array).dtype == jnp.float32
        assert (jnp.float32(1.5) * array).dtype == jnp.float32
        assert jax.jit(jnp.sin)(array).dtype == jnp.float32
    assert not jax.config.jax_enable_x64


def test_an_array_that_jax_has_made_single_is_double_in_a_program():
    times, y = np.linspace(0.0, 2.0, 8) + 1e-12, np.ones(8)
    single = jax.make_jaxpr(lambda x: x * times)(1.0)  # holds on to what the array became
    division = ab.find_paths(oscillation, times, y, executions=50)
    path = division.paths[0]
    points = path.prior(5).points
    [outcome] = path.outcomes(points)
    frequency = outcome.values["frequency"] * outcome.values.get("more", 1.0)
    np.testing.assert_allclose(outcome.result, frequency[:, None] * times, rtol=1e-14)
    del single


def test_importing_changes_no_setting():
    code = (
        "import jax, numpyro; before = dict(jax.config.values); import anabranch; "
        "assert dict(jax.config.values) == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
