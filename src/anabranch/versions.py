"""The versions of jax and NumPyro that the tests pass with; `import anabranch` refuses any other.

A newer version is refused as well, not merely warned of: the recorder uses jax's internals, and a rule that overlooks
a new parameter of a primitive would give a wrong number without an error.
"""

import contextlib
import functools
import platform
import re
from importlib import metadata

from anabranch.errors import UnsupportedVersion

__all__ = ["SUPPORTED", "check", "installed"]

SUPPORTED = {"jax": ("0.9", "0.11"), "numpyro": ("0.20", "0.23")}
"""For each package, the first version that is supported, and the first that no longer is."""


def check() -> None:
    """Raise `UnsupportedVersion` if jax or NumPyro is installed in another version than those supported."""
    for package, (first, end) in SUPPORTED.items():
        try:
            installed = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue  # installed without metadata, or not at all, which its import will say
        if not _release(first) <= _release(installed) < _release(end):
            raise UnsupportedVersion(
                f"Anabranch works with {package} from {first} to below {end}, and {package} {installed} is installed",
                remedy=f'Run: pip install "{package}>={first},<{end}"',
            )


@functools.cache
def installed() -> dict[str, str]:
    """The versions that an answer may depend on: of the library, of Python, and of the packages that compute."""
    from anabranch import __version__

    found = {"anabranch": __version__, "python": platform.python_version()}
    for package in ("jax", "jaxlib", "numpyro", "numpy", "scipy"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


check()
