"""The cores of the machine: how many a run may use, and that BLAS uses one of them.

The threads of BLAS wait for each other. Where other threads or processes have the cores, they wait long: a Cholesky
factorisation of a 130 by 130 matrix was seen to take a thousand times as long as by one thread.
"""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from threadpoolctl import ThreadpoolController

__all__ = ["available_cores", "one_blas_thread"]


def available_cores() -> int:
    """The cores on which this process may run."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_blas_lock = threading.Lock()
_blas_users = 0
_blas_limits: Any = None
_libraries: tuple[int, ThreadpoolController] | None = None


def _controller() -> ThreadpoolController:
    """The libraries that are loaded; the search takes milliseconds, and is made again after an import."""
    global _libraries
    if _libraries is None or _libraries[0] != len(sys.modules):
        _libraries = len(sys.modules), ThreadpoolController()
    return _libraries[1]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Within this BLAS uses one thread; several runs may be within it at once, and the last one undoes it."""
    global _blas_users, _blas_limits
    with _blas_lock:
        if _blas_users == 0:
            _blas_limits = _controller().limit(limits=1, user_api="blas")
        _blas_users += 1
    try:
        yield
    finally:
        with _blas_lock:
            _blas_users -= 1
            if _blas_users == 0:
                _blas_limits.restore_original_limits()
