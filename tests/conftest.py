"""What jax compiles for one test is not compiled again for another one, nor by the other worker of pytest-xdist."""

from __future__ import annotations

import shutil
import tempfile

import pytest

COMPILED = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Let jax keep what it compiles in a folder of this session: the key is the whole program that XLA is given.

    It is a setting of this process, not an environment variable: the processes that tests start compile for themselves.
    """
    given = getattr(config, "workerinput", None)
    if given is not None:
        _use(given["compiled"])
        return
    config.stash[COMPILED] = tempfile.mkdtemp(prefix="anabranch-compiled-")
    config.add_cleanup(lambda: shutil.rmtree(config.stash[COMPILED], ignore_errors=True))
    if not config.getoption("numprocesses", None):
        _use(config.stash[COMPILED])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Tell a worker the folder, before it starts."""
    node.workerinput["compiled"] = node.config.stash[COMPILED]  # type: ignore[attr-defined]


def _use(folder: str) -> None:
    import jax

    if jax.__version_info__ < (0, 10):  # it logs an error, of no consequence, for each program that it takes from there
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
