"""What jax compiles for one test is not compiled again for another one, nor by the other worker of pytest-xdist.

Most of what the tests take is compilation, of programs that are evaluated a few times: XLA is told to optimise little,
except in tests marked optimised, which evaluate long enough that optimising pays. XLA and BLAS have one thread each, as
every core has a worker: more of them wait for each other.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

COMPILED = pytest.StashKey[str]()

OPTIMISED = bool(os.environ.get("ANABRANCH_OPTIMISED"))
# XLA then makes loops by the older of its two ways, which compiles in half of the time, and evaluates as quickly.
QUICK_TO_COMPILE = "--xla_cpu_use_fusion_emitters=false"


def pytest_configure(config: pytest.Config) -> None:
    """Let jax keep what it compiles in a folder of this session: the key is the whole program that XLA is given.

    These are settings of this process, not environment variables: the processes that tests start compile for
    themselves, and as XLA does by default. So does everything with ANABRANCH_OPTIMISED=1.
    """
    given = getattr(config, "workerinput", None)
    if given is not None:
        _use(given["compiled"])
        return
    config.stash[COMPILED] = tempfile.mkdtemp(prefix="anabranch-compiled-")
    config.add_cleanup(lambda: shutil.rmtree(config.stash[COMPILED], ignore_errors=True))
    if not config.getoption("numprocesses", None):
        _use(config.stash[COMPILED])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Mark cases of tests, or of files of tests, with one_in(n) as slow: all but one in n, others for each test."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("one_in")
        test, _, case = item.nodeid.partition("[")
        if marker is not None and case and item.get_closest_marker("slow") is None:
            if (zlib.crc32(test.encode()) + seen[test]) % marker.args[0]:
                item.add_marker(pytest.mark.slow)
            seen[test] += 1


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Tell a worker the folder, before it starts."""
    node.workerinput["compiled"] = node.config.stash[COMPILED]  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def _optimise(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compile as for use where a test evaluates much."""
    if request.node.get_closest_marker("optimised") is None or OPTIMISED:
        yield
        return
    import jax

    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def processes_compile_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a test that starts processes which compile much."""
    if OPTIMISED:
        return
    monkeypatch.setenv("XLA_FLAGS", f"{QUICK_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')}".strip())
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")


def _compile_quickly() -> None:
    """Set what there is a setting for; the rest XLA reads from the environment, when it compiles for the first time."""
    import jax

    flags = f"{QUICK_TO_COMPILE} {os.environ.get('XLA_FLAGS', '')}".strip()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XLA_FLAGS", flags)
        patch.setenv("NPROC", "1")  # threads of XLA
        jax.jit(lambda x: x + 1)(1)
    jax.config.update("jax_disable_most_optimizations", True)


def _use_one_blas_thread() -> None:
    """As within a run; tests call much that a run calls, and would have a thread for each core."""
    import scipy.linalg  # noqa: F401  (brings a BLAS of its own)
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1, user_api="blas")


def _collect_garbage_seldom() -> None:
    """A full collection goes through all that jax has traced: one for every few tests takes a twentieth of the time."""
    gc.set_threshold(50_000, 20, 50)


def _use(folder: str) -> None:
    import jax

    _collect_garbage_seldom()

    if not OPTIMISED:
        _compile_quickly()
        _use_one_blas_thread()
    if jax.__version_info__ < (0, 10):  # it logs an error, of no consequence, for each program that it takes from there
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
