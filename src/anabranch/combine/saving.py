"""Saving a posterior to a folder, and loading it again.

    posterior.json   the version of the format, the run, the evidence if it was given, and the numbers of each path
    draws.npz        the draws of each path, their weights, and their blocks if they have some
    program.pkl      the program with its data, and the decisions that lead to each path

The folder is written under another name and renamed when it is complete. A path of a loaded posterior is rebuilt, by
running the program along its decisions, when something is asked of it that the folder does not hold.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path as File
from typing import TYPE_CHECKING, Any, cast

import cloudpickle
import numpy as np

from anabranch import errors
from anabranch.combine.evidence import Evidence
from anabranch.combine.history import History
from anabranch.combine.solution import Run, Solution
from anabranch.conquer.estimate import Estimate
from anabranch.divide import Path
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program

if TYPE_CHECKING:
    from anabranch.combine.posterior import Posterior

__all__ = ["SavedPath", "load", "save"]

FORMAT = 4
"""Raised when what is written changes."""
NUMBERS, DRAWS, PROGRAM = "posterior.json", "draws.npz", "program.pkl"
_VISITS = ("visits", "look", "log_possible", "doubt")
_FACTS = ("description", "dim", "prior_probability", "log_prior_probability", "interpreted")
_ARRAYS = ("points", "log_weights", "blocks")


class SavedPath:
    """A path as it was saved: some facts about it, and the way to rebuild it for everything else."""

    def __init__(self, program: Program, ends: Sequence[Any], facts: dict[str, Any]) -> None:
        self.program, self.choices = program, ends
        vars(self).update(facts)

    @cached_property
    def _rebuilt(self) -> Path:
        return rebuild(self.program, self.choices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "choices" not in vars(self):  # asked by pickle and copy
            raise AttributeError(name)
        return getattr(self._rebuilt, name)

    def __repr__(self) -> str:
        return f"SavedPath({vars(self).get('description')!r})"


# Saving ---------------------------------------------------------------------------------------------------------------


def save(posterior: Posterior, folder: str | os.PathLike[str]) -> None:
    """Write a posterior to a folder, in place of one that was saved there before."""
    target = File(folder)
    if target.exists() and not (target / NUMBERS).is_file() and not _is_empty(target):
        raise FileExistsError(f"{target} exists and holds no posterior: choose another folder, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    made = File(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        _write(posterior, made)
        made.chmod(0o755)
        _replace(target, made)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def _replace(target: File, made: File) -> None:
    """Put a folder in the place of another, which comes back if that fails."""
    if not target.exists():
        made.rename(target)
        return
    old = target.rename(made.with_name(made.name + "-old"))
    try:
        made.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old)


def _is_empty(target: File) -> bool:
    return target.is_dir() and not any(target.iterdir())


def _write(posterior: Posterior, folder: File) -> None:
    solutions = posterior.solutions
    arrays = {
        f"{name}{k}": getattr(solution.estimate, name)
        for k, solution in enumerate(solutions)
        for name in _ARRAYS
        if getattr(solution.estimate, name, None) is not None
    }
    numbers = {
        "format": FORMAT,
        "run": asdict(posterior.run),
        "evidence": _evidence_numbers(posterior.given_evidence),
        "paths": [_numbers(solution) for solution in solutions],
    }
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    with (folder / DRAWS).open("wb") as file:
        np.savez(file, **arrays)
    ends = [solution.path.choices for solution in solutions]
    (folder / PROGRAM).write_bytes(cloudpickle.dumps((posterior.program, ends)))


def _evidence_numbers(evidence: Evidence | None) -> dict[str, Any] | None:
    if evidence is None:
        return None
    return {field.name: _plain(getattr(evidence, field.name)) for field in fields(Evidence)}


def _numbers(solution: Solution) -> dict[str, Any]:
    path = {name: getattr(solution.path, name) for name in _FACTS}
    facts = {"path": path, **{name: _plain(getattr(solution, name)) for name in _VISITS}}
    if solution.estimate is None:
        return {**facts, "estimate": None}
    names = [field.name for field in fields(Estimate) if field.name not in _ARRAYS]
    estimate = {name: _plain(getattr(solution.estimate, name)) for name in names}
    return {**facts, "estimate": estimate}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


# Loading --------------------------------------------------------------------------------------------------------------


def load(folder: str | os.PathLike[str]) -> Posterior:
    """A posterior that `Posterior.save` wrote. Loading runs code from the folder: load only what you trust.

    Example:
        >>> import anabranch as ab, tempfile
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     posterior.save(f"{folder}/run")
        ...     ab.load(f"{folder}/run").log_evidence == posterior.log_evidence
        True
    """
    from anabranch.combine.posterior import Posterior

    source = File(folder)
    try:
        numbers = json.loads((source / NUMBERS).read_text(encoding="utf-8"))
        _check_format(numbers["format"], source)
        with (source / DRAWS).open("rb") as file, np.load(file) as kept:
            arrays = dict(kept)
        program, ends = cloudpickle.loads((source / PROGRAM).read_bytes())
        rows = zip(range(len(ends)), numbers["paths"], ends, strict=True)
        solutions = [_solution(k, saved, program, each, arrays) for k, saved, each in rows]
        run = _run(numbers["run"])
        evidence = _evidence(numbers.get("evidence"))
    except FileNotFoundError as error:
        raise errors.CannotLoad(
            f"{source} holds no saved posterior: {File(error.filename).name} is missing",
            remedy="Give the folder that was given to save",
        ) from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, cloudpickle.pickle.PickleError) as error:
        raise errors.CannotLoad(
            f"the posterior in {source} is damaged ({type(error).__name__}: {error})", remedy="Save it again"
        ) from error
    return Posterior(program, solutions, run, evidence)


def _check_format(version: int, source: File) -> None:
    if version > FORMAT:
        raise errors.CannotLoad(
            f"the posterior in {source} has format {version}, and this version of Anabranch reads up to {FORMAT}",
            remedy="Upgrade Anabranch",
        )


def _run(saved: dict[str, Any]) -> Run:
    history = History(**saved.get("history", {}))  # which folders of older versions lack
    return Run(**{**saved, "notes": tuple(saved["notes"]), "history": history})


def _evidence(saved: dict[str, Any] | None) -> Evidence | None:
    if saved is None:
        return None
    return Evidence(**{**saved, "weights": np.array(saved["weights"]), "weight_sds": np.array(saved["weight_sds"])})


def _solution(
    k: int, saved: dict[str, Any], program: Program, ends: Sequence[Any], arrays: dict[str, np.ndarray]
) -> Solution:
    path = cast(Path, SavedPath(program, ends, saved["path"]))
    if saved["estimate"] is None:
        return Solution(path, None, **{name: saved[name] for name in _VISITS})
    parts: dict[str, Any] = {name: arrays[f"{name}{k}"] for name in _ARRAYS if name != "blocks"}
    parts["blocks"] = arrays.get(f"blocks{k}")
    parts |= {**saved["estimate"], "remarks": tuple(saved["estimate"]["remarks"])}
    return Solution(path, Estimate(**parts), **{name: saved[name] for name in _VISITS})
