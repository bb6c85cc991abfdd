"""What a program is, for a run of it to go on as the same."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from anabranch.divide import Program, data_fingerprint, program_fingerprint

__all__ = ["difference", "of_program"]

_WORDS = {
    "function": "the program", "data": "the data", "seed": "seed", "budget": "budget", "tolerance": "tolerance",
    "engine": "the settings of the engine", "split": "split", "max_sites": "max_sites", "program": "the program's name",
}  # fmt: skip


def of_program(program: Program) -> dict[str, Any]:
    """The program, its data, and the versions with which it runs, as plain text and numbers."""
    versions = {name: importlib.metadata.version(name) for name in ("anabranch", "jax", "numpyro", "numpy")}
    return {
        "program": program.name, "function": program_fingerprint(program.function),
        "data": data_fingerprint(program.args, program.kwargs), "split": dict(program.split),
        "max_sites": program.max_sites, **versions,
    }  # fmt: skip


def difference(saved: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """In what a run differs from one that was saved, in words; empty if in nothing."""
    names = [name for name in run if saved.get(name) != run[name]]
    return " and ".join(_WORDS.get(name, f"version of {name} ({run[name]} now)") for name in names)
