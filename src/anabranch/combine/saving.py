"""Saving a posterior to a folder, and loading it again.

    posterior.json   the version of the format, the run, the evidence if it was given, and the numbers of each path
    draws.npz        the draws of each path, their weights and their blocks
    program.pkl      the program with its data, and the decisions of each path

The folder is written under another name and renamed when complete. A path of a loaded posterior is rebuilt, by running
the program with its decisions, when a question needs more than the folder holds.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
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
from anabranch.conquer.elimination import Elimination
from anabranch.conquer.estimate import Estimate
from anabranch.divide import Path, Program, rebuild

if TYPE_CHECKING:
    from anabranch.combine.posterior import Posterior

__all__ = ["SavedPath", "load", "save"]

FORMAT = 5
"""The version of the files, increased when they change."""
NUMBERS, DRAWS, PROGRAM = "posterior.json", "draws.npz", "program.pkl"
_VISITS = ("visits", "first_visit", "log_possible", "doubt", "terms")
_FACTS = ("description", "dim", "prior_probability", "log_prior_probability", "interpreted")
_ARRAYS = ("points", "log_weights", "blocks")


class SavedPath:
    """A saved path: some of its attributes; it is rebuilt for the others."""

    def __init__(self, program: Program, choices: Sequence[Any], facts: dict[str, Any]) -> None:
        self.program, self.choices = program, choices
        vars(self).update(facts)

    @cached_property
    def _rebuilt(self) -> Path:
        return rebuild(self.program, self.choices)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "choices" not in vars(self):  # pickle and copy ask for these
            raise AttributeError(name)
        return getattr(self._rebuilt, name)

    def __repr__(self) -> str:
        return f"SavedPath({vars(self).get('description')!r})"


def save(posterior: Posterior, folder: str | os.PathLike[str]) -> None:
    """Write a posterior to a folder, and replace one that was saved there before."""
    target = File(folder)
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not (target / NUMBERS).is_file() and not is_empty:
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
    """Rename a folder to the target; a folder there before comes back if that fails."""
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
        "evidence": _fields(posterior.given_evidence, [each.name for each in fields(Evidence)]),
        "paths": [_numbers(solution) for solution in solutions],
    }
    (folder / NUMBERS).write_text(json.dumps(numbers, indent=1), encoding="utf-8")
    with (folder / DRAWS).open("wb") as file:
        np.savez(file, **arrays)
    choices = [solution.path.choices for solution in solutions]
    (folder / PROGRAM).write_bytes(cloudpickle.dumps((posterior.program, choices)))


def _numbers(solution: Solution) -> dict[str, Any]:
    path = {name: getattr(solution.path, name) for name in _FACTS}
    estimate = _fields(solution.estimate, [each.name for each in fields(Estimate) if each.name not in _ARRAYS])
    return {"path": path, **(_fields(solution, _VISITS) or {}), "estimate": estimate}


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any] | None:
    """The attributes as plain numbers and lists; None if there is no value."""
    if value is None:
        return None
    found = {name: getattr(value, name) for name in names}
    return {name: v.tolist() if isinstance(v, np.generic | np.ndarray) else v for name, v in found.items()}


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
    from anabranch.combine.with_evidence import posterior_of

    source = File(folder)
    try:
        numbers = json.loads((source / NUMBERS).read_text(encoding="utf-8"))
        if (version := numbers["format"]) != FORMAT:
            raise errors.CannotLoad(
                f"the posterior in {source} has format {version}, and this version of Anabranch reads format {FORMAT}",
                remedy="Upgrade Anabranch" if version > FORMAT else "Run the inference again",
            )
        with (source / DRAWS).open("rb") as file, np.load(file) as kept:
            arrays = dict(kept)
        program, choices = cloudpickle.loads((source / PROGRAM).read_bytes())
        rows = zip(range(len(choices)), numbers["paths"], choices, strict=True)
        solutions = [_solution(k, saved, program, each, arrays) for k, saved, each in rows]
        run = _run(**numbers["run"])
        evidence = None if numbers["evidence"] is None else _evidence(**numbers["evidence"])
    except FileNotFoundError as error:
        raise errors.CannotLoad(
            f"{source} holds no saved posterior: {File(error.filename).name} is missing",
            remedy="Give the folder that was passed to save",
        ) from error
    except (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, cloudpickle.pickle.PickleError) as error:
        raise errors.CannotLoad(
            f"the posterior in {source} is damaged ({type(error).__name__}: {error})", remedy="Save it again"
        ) from error
    return posterior_of(program, solutions, run, evidence)


def _run(notes: list[str], history: dict[str, Any], elimination: dict[str, Any] | None, **saved: Any) -> Run:
    limits = None if elimination is None else Elimination(**elimination)
    return Run(notes=tuple(notes), history=History(**history), elimination=limits, **saved)


def _evidence(weights: list[float], weight_sds: list[float], **saved: Any) -> Evidence:
    return Evidence(weights=np.array(weights), weight_sds=np.array(weight_sds), **saved)


def _solution(
    k: int, saved: dict[str, Any], program: Program, choices: Sequence[Any], arrays: dict[str, np.ndarray]
) -> Solution:
    path = cast(Path, SavedPath(program, choices, saved["path"]))
    estimate = None
    if saved["estimate"] is not None:
        parts: dict[str, Any] = {name: arrays[f"{name}{k}"] for name in ("points", "log_weights")}
        parts |= {"blocks": arrays.get(f"blocks{k}"), **saved["estimate"]}
        sentences = {name: tuple(parts.get(name, ())) for name in ("remarks", "notes")}
        estimate = Estimate(**{**parts, **sentences})
    return Solution(path, estimate, **{name: saved[name] for name in _VISITS})
