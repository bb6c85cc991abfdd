"""Saving a posterior to a folder, and loading it again.

    posterior.json     the version of the format, the run, the evidence if it was given, the numbers and sites of each
                       path, and the names and fingerprints of the program and its data
    draws-....npz      the draws of each path with their weights, blocks and named values, and the answers to decisions

There is no code in them: nothing is run or unpickled when they are read. The draws are written under a name of their
own, and then the JSON file that names them is replaced at once: a reader, or a power cut, sees the old posterior or the
new one. No other file of the folder is touched. A path of a loaded posterior is rebuilt, by running the program with
its decisions, when a question needs more than the folder holds.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import threading
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path as File
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from anabranch import errors
from anabranch.combine.evidence import Evidence
from anabranch.combine.history import History
from anabranch.combine.saved_path import SavedPath, facts_of, missing_program, read, read_facts, stored_values, written
from anabranch.combine.solution import Run, Solution
from anabranch.conquer.elimination import Elimination
from anabranch.conquer.estimate import Estimate
from anabranch.divide import NamedValues, Path, Program, data_fingerprint, function_fingerprint, remade, source_of
from anabranch.label import Label

if TYPE_CHECKING:
    from anabranch.combine.posterior import Posterior

__all__ = ["check_free", "load", "save"]

FORMAT = 6
"""The version of the files, increased when they change."""
NUMBERS = "posterior.json"
_VISITS = ("visits", "first_visit", "log_possible", "doubt", "terms", "log_multiple", "multiple_sd")
_ARRAYS = ("points", "log_weights", "blocks")
_READS = 3
"""How often a folder is read that another process is saving to at the same time."""
_OURS = re.compile(r"draws-[0-9a-f]{32}\.npz|\.[0-9a-f]{32}\.json|posterior\.json")
"""The names of our own files."""
_one_at_a_time = threading.Lock()


# Saving ---------------------------------------------------------------------------------------------------------------


def save(posterior: Posterior, folder: str | os.PathLike[str]) -> None:
    """Write a posterior to a folder, and replace one that was saved there before."""
    target = check_free(folder)
    arrays, draws = _Arrays(), f"draws-{uuid.uuid4().hex}.npz"
    numbers = {
        "format": FORMAT,
        "program": _program(posterior.program),
        "run": asdict(posterior.run),
        "evidence": _fields(posterior.given_evidence, [each.name for each in fields(Evidence)]),
        "paths": [_numbers(solution, arrays) for solution in posterior.solutions],
        "draws": draws,
    }
    text = json.dumps(numbers, indent=1)
    target.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time:
        _write(target, draws, arrays.kept, text)


def check_free(folder: str | os.PathLike[str]) -> File:
    """The folder, of which a link is followed; raises FileExistsError if something else than a posterior is there."""
    target = File(os.path.realpath(folder))
    is_free = not target.exists() or (target / NUMBERS).is_file()
    if not is_free and not (target.is_dir() and all(_OURS.fullmatch(file.name) for file in target.iterdir())):
        raise FileExistsError(f"{target} exists and holds no posterior: choose another folder, or remove it")
    return target


def _write(target: File, draws: str, arrays: dict[str, Any], text: str) -> None:
    """Write the draws, let the numbers name them, and remove those that the numbers named before."""
    before, made = _draws_named_in(target), target / f".{uuid.uuid4().hex}.json"
    try:
        with (target / draws).open("wb") as file:
            np.savez(file, **arrays)
        made.write_text(text, encoding="utf-8")
        made.replace(target / NUMBERS)
    except BaseException:
        for each in (target / draws, made):
            each.unlink(missing_ok=True)
        raise
    if before is not None:
        (target / before).unlink(missing_ok=True)


def _draws_named_in(target: File) -> str | None:
    """The file of draws of the posterior that is there."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        name = json.loads((target / NUMBERS).read_text(encoding="utf-8"))["draws"]
        if _OURS.fullmatch(name):
            return str(name)
    return None


class _Arrays:
    """Arrays under numbers: names of sites may be anything."""

    def __init__(self) -> None:
        self.kept: dict[str, np.ndarray] = {}

    def __call__(self, array: Any) -> str:
        key = str(len(self.kept))
        self.kept[key] = np.asarray(array)
        return key


def _program(program: Program) -> dict[str, Any]:
    function = program.function
    if (saved := getattr(function, "saved", None)) is not None:  # loaded without the program
        return cast(dict[str, Any], saved)
    return {
        "name": program.name,
        "reference": f"{getattr(function, '__module__', '?')}:{getattr(function, '__qualname__', '?')}",
        "function": function_fingerprint(function),
        "source": source_of(function),
        "data": data_fingerprint(program.args, program.kwargs),
        "settings": {
            "split": dict(program.split), "max_sites": program.max_sites, "is_selecting": program.selecting,
            "interpreted": program.interpreted, "sequential": program.sequential,
        },
    }  # fmt: skip


def _numbers(solution: Solution, arrays: _Arrays) -> dict[str, Any]:
    path, estimate = solution.path, solution.estimate
    numbers = _fields(estimate, [each.name for each in fields(Estimate) if each.name not in _ARRAYS])
    found = {name: getattr(estimate, name, None) for name in _ARRAYS}
    values = stored_values(path, solution.points) if len(solution.points) else []
    return {
        "path": facts_of(path),
        **(_fields(solution, _VISITS) or {}),
        "estimate": numbers,
        "arrays": {name: arrays(value) for name, value in found.items() if value is not None},
        "choices": [
            {n: arrays(x) for n, x in each.items()} if isinstance(each, dict) else [arrays(x) for x in each]
            for each in path.choices
        ],
        "values": [
            {"index": arrays(part.index), "values": {n: arrays(x) for n, x in part.values.items()},
             "deterministics": {n: arrays(x) for n, x in part.deterministics.items() if not isinstance(x, Label)},
             "labels": {n: written(x.value) for n, x in part.deterministics.items() if isinstance(x, Label)},
             "varies": part.varies[0]}
            for part in values
        ],
    }  # fmt: skip


def _fields(value: Any, names: Iterable[str]) -> dict[str, Any] | None:
    """The attributes as plain numbers and lists; None if there is no value."""
    if value is None:
        return None
    found = {name: getattr(value, name) for name in names}
    return {name: v.tolist() if isinstance(v, np.generic | np.ndarray) else v for name, v in found.items()}


# Loading --------------------------------------------------------------------------------------------------------------


def load(
    folder: str | os.PathLike[str], program: Callable[..., Any] | str | None = None, *args: Any, **kwargs: Any
) -> Posterior:
    """A posterior that `Posterior.save` wrote. No code from the folder is run.

    Args:
        folder: where it was saved.
        program: the program, or its name as "module:function", for the answers that run it: predictions, densities,
            the program's return value. Without it there are the evidence, the paths, probabilities, expectations and
            the draws by name.
        args: the arguments of the program, those of the run.
        kwargs: its keyword arguments.

    Example:
        >>> import anabranch as ab, tempfile
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, budget=20_000)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     posterior.save(f"{folder}/run")
        ...     again = ab.load(f"{folder}/run")
        ...     whole = ab.load(f"{folder}/run", programs.branching, 2.0)
        >>> again.log_evidence == posterior.log_evidence, whole.replicate(5)["y"].shape
        (True, (5,))
    """
    from anabranch.combine.with_evidence import posterior_of

    source = File(folder)
    try:
        numbers, arrays = _read(source)
        made = _given(numbers["program"], source, program, args, kwargs)
        solutions = [_solution(saved, made, arrays, program is None) for saved in numbers["paths"]]
        run = _run(**numbers["run"])
        evidence = None if numbers["evidence"] is None else _evidence(**numbers["evidence"])
    except FileNotFoundError as error:
        raise errors.CannotLoad(
            f"{source} holds no saved posterior: {File(error.filename).name} is missing",
            remedy="Give the folder that was passed to save",
        ) from error
    except errors.AnabranchError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise errors.CannotLoad(
            f"the posterior in {source} is damaged ({type(error).__name__}: {error})", remedy="Save it again"
        ) from error
    return posterior_of(made, solutions, run, evidence)


def _read(source: File) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The numbers and the arrays; again, if another process has replaced them meanwhile."""
    for attempt in range(_READS):
        numbers = json.loads((source / NUMBERS).read_text(encoding="utf-8"))
        if (version := numbers["format"]) != FORMAT:
            raise errors.CannotLoad(
                f"the posterior in {source} has format {version}, and this version of Anabranch reads format {FORMAT}",
                remedy="Upgrade Anabranch" if version > FORMAT else "Run the inference again",
            )
        try:
            with (source / numbers["draws"]).open("rb") as file, np.load(file, allow_pickle=False) as kept:
                return numbers, dict(kept)
        except FileNotFoundError:
            if attempt == _READS - 1 or _draws_named_in(source) == numbers["draws"]:
                raise
    raise AssertionError


def _given(
    saved: Mapping[str, Any],
    source: File,
    program: Callable[..., Any] | str | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Program:
    """The program that is given, after a check that it is the one that was saved; or one that says that it is not."""
    if program is None:
        function = missing_program(saved["name"], str(source))
        function.saved = saved
        return remade(function, (), {}, **{**saved["settings"], "is_selecting": False})
    if isinstance(program, str):
        program = _named(program)
    made = remade(program, args, kwargs, **saved["settings"])
    if function_fingerprint(made.function) != saved["function"]:
        raise errors.CannotLoad(
            f"the program {made.name} is not the one of the posterior in {source}: its text differs",
            remedy="Give the program as it was, or load without it",
        )
    if data_fingerprint(made.args, made.kwargs) != saved["data"]:
        raise errors.CannotLoad(
            f"the arguments of {made.name} are not those of the posterior in {source}",
            remedy="Give the arguments of the run, or load without the program and them",
        )
    return made


def _named(reference: str) -> Callable[..., Any]:
    """The function that "module:function" names."""
    module, _, name = reference.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise errors.CannotLoad(
            f"there is no program {reference!r}: {error}", remedy='Give the function, or its name as "module:function"'
        ) from error
    return cast(Callable[..., Any], found)


def _run(
    notes: list[str],
    history: dict[str, Any],
    elimination: dict[str, Any] | None,
    unmet: Sequence[str] = (),
    versions: Mapping[str, str] = MappingProxyType({}),
    **saved: Any,
) -> Run:
    """The run; one that was saved by an earlier version of the library does not say with which versions it ran."""
    summed = None if elimination is None else Elimination(**elimination)
    return Run(notes=tuple(notes), unmet=tuple(unmet), history=History(**history), elimination=summed,
               versions=dict(versions), **saved)  # fmt: skip


def _evidence(weights: list[float], weight_sds: list[float], **saved: Any) -> Evidence:
    return Evidence(weights=np.array(weights), weight_sds=np.array(weight_sds), **saved)


def _solution(
    saved: Mapping[str, Any], program: Program, arrays: Mapping[str, np.ndarray], is_without_program: bool
) -> Solution:
    choices = [
        {n: arrays[key] for n, key in each.items()} if isinstance(each, dict) else [arrays[key] for key in each]
        for each in saved["choices"]
    ]
    estimate, stored = None, None
    if saved["estimate"] is not None:
        parts: dict[str, Any] = {name: arrays[key] for name, key in saved["arrays"].items()}
        parts |= saved["estimate"]
        sentences = {name: tuple(parts.get(name, ())) for name in ("remarks", "notes")}
        estimate = Estimate(**{**parts, **sentences})
        stored = estimate.points, _stored(saved["values"], arrays)
    facts = {**read_facts(saved["path"]), "is_without_program": is_without_program}
    path = cast(Path, SavedPath(program, choices, facts, stored))
    return Solution(path, estimate, **{name: saved[name] for name in _VISITS})


def _stored(saved: Sequence[Mapping[str, Any]], arrays: Mapping[str, np.ndarray]) -> list[NamedValues]:
    return [
        NamedValues(
            arrays[part["index"]],
            {n: arrays[key] for n, key in part["values"].items()},
            {
                **{n: arrays[key] for n, key in part["deterministics"].items()},
                **{n: Label(read(x)) for n, x in part.get("labels", {}).items()},  # earlier versions saved none
            },
            None,
            (part["varies"], False),
        )
        for part in saved
    ]
