"""Unsupported versions of jax and NumPyro are refused, and supported ones have what the library relies on."""

import gc
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import pytest
from jax.extend.core import Primitive

from anabranch import errors, versions
from anabranch.divide import numpy_backend
from anabranch.divide.internals import without_reverse_mode
from anabranch.divide.numpy_backend import primitives

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"

IMPORT_WITH = """
from importlib import metadata
real = metadata.version
metadata.version = lambda package: {version!r} if package == {package!r} else real(package)
import anabranch
"""


@pytest.mark.parametrize(("package", "version"), [("jax", "0.8.3"), ("jax", "0.11.0"), ("numpyro", "0.19.0")])
def test_an_import_with_another_version_ends_in_one_sentence(package, version):
    run = subprocess.run(
        [sys.executable, "-c", IMPORT_WITH.format(package=package, version=version)], capture_output=True, text=True
    )
    first, end = versions.SUPPORTED[package]
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1] == (
        f"anabranch.errors.UnsupportedVersion: Anabranch works with {package} from {first} to below {end}, and "
        f'{package} {version} is installed. Run: pip install "{package}>={first},<{end}".'
    )
    assert "site-packages" not in run.stderr


@pytest.mark.parametrize("version", ["0.9.0", "0.9.0.1", "0.10.2", "0.10.3.dev20260101+abc", "0.10.0rc1"])
def test_a_version_in_the_range_passes(monkeypatch, version):
    monkeypatch.setattr(versions.metadata, "version", lambda package: version if package == "jax" else "0.21.0")
    versions.check()


def test_a_package_without_metadata_passes(monkeypatch):
    def missing(package):
        raise versions.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(versions.metadata, "version", missing)
    versions.check()


def test_an_unsupported_version_is_an_import_error(monkeypatch):
    monkeypatch.setattr(versions.metadata, "version", lambda package: "1.0")
    with pytest.raises(ImportError, match=r"jax 1\.0 is installed") as raised:
        versions.check()
    assert isinstance(raised.value, errors.UnsupportedVersion)


def test_the_ranges_are_those_of_the_package():
    dependencies = tomllib.loads(PYPROJECT.read_text())["project"]["dependencies"]
    for package, (first, end) in versions.SUPPORTED.items():
        assert f"{package}>={first},<{end}" in dependencies


def test_the_installed_jax_has_every_primitive_that_is_known_by_name():
    """A rule for a primitive that jax has renamed would never be used, and nothing but the time would tell."""
    jax.make_jaxpr(jax.checkpoint(jnp.sin))(1.0)  # some primitives are made when first used
    existing = {each.name for each in gc.get_objects() if isinstance(each, Primitive)}
    named = {*numpy_backend.RULES, *primitives.NOT_PACKED}
    expected = {name for name in named if primitives.SINCE.get(name, (0,)) <= jax.__version_info__}
    assert sorted(expected - existing) == []


def test_jax_says_in_these_words_that_a_loop_has_no_gradient():
    def loop(x):
        return jax.lax.while_loop(lambda y: y < 10, lambda y: 2 * y, x)

    with pytest.raises(ValueError, match="while_loop") as raised:
        jax.grad(loop)(1.0)
    assert without_reverse_mode(raised.value)
    assert not without_reverse_mode(ValueError("something else"))
