"""Compiled densities run where jax computes, in larger blocks on an accelerator; tested on processors alone."""

import subprocess
import sys

import numpy as np
import numpyro.distributions as dist

import anabranch as ab
from anabranch.divide import compiled

SECOND_DEVICE = """
import jax, numpy as np
jax.config.update("jax_default_device", jax.devices()[1])
import anabranch as ab
from anabranch import programs
path = max(ab.find_paths(programs.branching, 2.0).paths, key=lambda path: path.dim)
points = np.zeros((3, path.dim))
found = path.evaluate(points).log_density
function = path._backend._function
arguments = jax.tree.leaves(function._on_device)
block = np.zeros((path._backend.block, path.dim))
with jax.enable_x64(True):
    results = function.compiled_for(block)(block, *function._on_device)
devices = {device.id for each in (*arguments, *results) for device in each.devices()}
assert devices == {1}, devices
assert ab.infer(programs.branching, 2.0, budget=5_000).log_evidence_sd < 0.1
np.testing.assert_allclose(found, path.evaluate(points, compile=False).log_density, rtol=1e-12)
"""


def test_densities_run_on_the_device_that_the_user_chose(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    done = subprocess.run([sys.executable, "-c", SECOND_DEVICE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def line(x, y):
    a, b = ab.sample("a", dist.Normal(0.0, 1.0)), ab.sample("b", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(a + b * x, 1.0), y)


def test_blocks_are_larger_on_an_accelerator(monkeypatch):
    x = np.linspace(0.0, 1.0, 10)
    (here,) = ab.find_paths(line, x, 2 * x, executions=10).paths
    (there,) = ab.find_paths(line, x, 2 * x, executions=10).paths
    points = np.random.default_rng(0).standard_normal((20_000, 2))
    one = here.evaluate(points)
    monkeypatch.setattr(compiled, "platform", lambda: "gpu")
    assert there._backend.block == compiled.ACCELERATOR_BLOCK > here._backend.block
    other = there.evaluate(points)
    np.testing.assert_allclose(other.log_density, one.log_density, rtol=1e-12)
    assert here._backend.block == compiled.MAX_BLOCK
