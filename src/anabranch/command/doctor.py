"""`anabranch doctor`: what this machine has, and whether the library gives a right answer on it.

The self-check is a coin that shows 7 heads of 10. It is fair, or its probability of heads is Beta(2, 3):

    Z = ½ Binomial(7; 10, ½) + ½ BetaBinomial(7; 10, 2, 3)
"""

import argparse
import json
import math
import os
import platform
import time
from importlib import metadata
from typing import Any

import numpyro.distributions as dist

from anabranch.command.arguments import Subparsers, add_json, new_parser
from anabranch.command.status import FAILED, FINE
from anabranch.command.summary import plain
from anabranch.cores import available_cores
from anabranch.inference import infer
from anabranch.language import observe, sample
from anabranch.versions import installed

__all__ = ["EXACT", "add", "coin"]

FLIPS, HEADS, A, B = 10, 7, 2.0, 3.0
BUDGET, MAX_ERROR, ERRORS, ROUNDING = 50_000, 0.05, 5, 1e-9
"""Evaluations of the self-check, the largest error that it may claim, how many of these it may be off by, and how much
where it claims none."""
_OPTIONAL = ("pandas", "matplotlib", "arviz", "blackjax", "pyarrow", "zarr")
_MORE = """\
The self-check takes about ten seconds. If it does not pass, the exit status
is 1.

examples:
  anabranch doctor
  anabranch doctor --json"""


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)


EXACT = math.log(math.comb(FLIPS, HEADS) / 2) + math.log(
    0.5**FLIPS + math.exp(_log_beta(A + HEADS, B + FLIPS - HEADS) - _log_beta(A, B))
)
"""The log evidence of the coin."""


def coin() -> None:
    """A coin that is fair, or not."""
    p = 0.5 if sample("fair", dist.Bernoulli(0.5)) else sample("p", dist.Beta(A, B))
    observe("heads", dist.Binomial(FLIPS, p), HEADS)


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = new_parser(commands, "doctor", perform, what="show versions and the machine, and run a self-check",
                        more=_MORE)  # fmt: skip
    add_json(parser)


def perform(given: argparse.Namespace) -> int:
    """Print what there is, and whether the self-check passed."""
    found = {"versions": _versions(), "machine": _machine(), "self_check": _self_check()}
    print(json.dumps(plain(found), indent=1) if given.json else _in_words(found))
    return FINE if found["self_check"]["passed"] else FAILED


def _versions() -> dict[str, str]:
    found = dict(installed())
    for package in _OPTIONAL:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def _machine() -> dict[str, Any]:
    import jax

    return {
        "system": platform.platform(),
        "cores": available_cores(),
        "memory_gib": _memory("SC_PHYS_PAGES"),
        "memory_free_gib": _memory("SC_AVPHYS_PAGES"),
        "jax_platform": jax.default_backend(),
        "jax_devices": [str(device) for device in jax.devices()],
    }


def _memory(pages: str) -> float | None:
    """Gibibytes; None where the system does not say."""
    try:
        return round(os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None


def _self_check() -> dict[str, Any]:
    started = time.monotonic()
    try:
        posterior = infer(coin, budget=BUDGET, progress=False)
    except Exception as error:  # whatever is wrong with the installation
        return {"passed": False, "error": f"{type(error).__name__}: {error}", "exact": EXACT}
    value, sd = posterior.log_evidence, posterior.log_evidence_sd
    return {
        "passed": abs(value - EXACT) <= max(ERRORS * sd, ROUNDING) and sd < MAX_ERROR,
        "log_evidence": value,
        "log_evidence_sd": sd,
        "exact": EXACT,
        "seconds": time.monotonic() - started,
    }


def _in_words(found: dict[str, Any]) -> str:
    check = found["self_check"]
    answer = check.get("error") or f"{check['log_evidence']:.4f} ± {check['log_evidence_sd']:.4f}"
    rows = {
        **found["versions"],
        **{name.replace("_gib", " (GiB)").replace("_", " "): _words(value) for name, value in found["machine"].items()},
        "self-check": f"{'passed' if check['passed'] else 'FAILED'}: log evidence {answer}, exact {check['exact']:.4f}",
    }
    width = max(map(len, rows))
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items())


def _words(value: Any) -> str:
    if value is None:
        return "not known"
    return ", ".join(value) if isinstance(value, list) else str(value)
