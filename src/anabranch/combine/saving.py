"""Saving a posterior to a folder, and loading it again.

    posterior.json     the version of the format, the run, the evidence if it was given, the numbers and sites of each
                       path, and the names and fingerprints of the program and its data
    draws-....npz      the draws of each path with their weights, blocks and named values, and the answers to decisions
    visits-....npz     what the visits of the run found out, by which it goes on (`checkpoint.continuing`)

There is no code in them: nothing is run or unpickled when they are read. Draws and visits are written under names of
their own, and then the JSON file that names them is replaced at once: a reader, or a power cut, sees the old posterior
or the new one. No other file of the folder is touched. A path of a loaded posterior is rebuilt, by running the program
with its decisions, when a question needs more than the folder holds.
"""

from __future__ import annotations

import contextlib
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
from anabranch.combine.continuation import NOT_SAVED, Refusal, without_program
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
_OURS = re.compile(r"(draws|visits)-[0-9a-f]{32}\.npz|\.[0-9a-f]{32}\.json|posterior\.json")
"""The names of our own files."""
_one_at_a_time = threading.Lock()


# Saving ---------------------------------------------------------------------------------------------------------------


def save(posterior: Posterior, folder: str | os.PathLike[str]) -> None:
    """Write a posterior to a folder, and replace one that was saved there before."""
    target = check_free(folder)
    arrays, name = _Arrays(), f"{uuid.uuid4().hex}.npz"
    visits = posterior.resume.saved()
    numbers = {
        "format": FORMAT,
        "program": _program(posterior.program),
        "run": asdict(posterior.run),
        "evidence": _fields(posterior.given_evidence, [each.name for each in fields(Evidence)]),
        "paths": [_numbers(solution, arrays) for solution in posterior.solutions],
        "draws": f"draws-{name}",
        **_how_to_go_on(visits, f"visits-{name}"),
    }
    text = json.dumps(numbers, indent=1)
    target.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time:
        _write(target, name, arrays.kept, visits, text)


def _how_to_go_on(visits: bytes | Refusal, name: str) -> dict[str, Any]:
    """The file of the visits, or why there is none."""
    if isinstance(visits, Refusal):
        return {"visits": None, "cannot_continue": [visits.reason, visits.remedy]}
    return {"visits": name, "cannot_continue": None}


def check_free(folder: str | os.PathLike[str]) -> File:
    """The folder, of which a link is followed; raises FileExistsError if something else than a posterior is there."""
    target = File(os.path.realpath(folder))
    is_free = not target.exists() or (target / NUMBERS).is_file()
    if not is_free and not (target.is_dir() and all(_OURS.fullmatch(file.name) for file in target.iterdir())):
        raise FileExistsError(f"{target} exists and holds no posterior: choose another folder, or remove it")
    return target


def _write(target: File, name: str, arrays: dict[str, Any], visits: bytes | Refusal, text: str) -> None:
    """Write draws and visits, let the numbers name them, and remove those that the numbers named before."""
    before, made = _named_in(target), target / f".{uuid.uuid4().hex}.json"
    draws, of_visits = target / f"draws-{name}", target / f"visits-{name}"
    try:
        with draws.open("wb") as file:
            np.savez(file, **arrays)
        if isinstance(visits, bytes):
            of_visits.write_bytes(visits)
        made.write_text(text, encoding="utf-8")
        made.replace(target / NUMBERS)
    except BaseException:
        for each in (draws, of_visits, made):
            each.unlink(missing_ok=True)
        raise
    for old in before:
        (target / old).unlink(missing_ok=True)


def _named_in(target: File) -> list[str]:
    """The files of draws and visits of the posterior that is there."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        numbers = json.loads((target / NUMBERS).read_text(encoding="utf-8"))
        names = [numbers["draws"], numbers.get("visits")]
        return [name for name in names if isinstance(name, str) and _OURS.fullmatch(name)]
    return []


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
    folder: str | os.PathLike[str], program: Callable[..., Any] | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Posterior:
    """A posterior that `save` wrote, with its program or without it; its run goes on only by `anabranch.load`."""
    from anabranch.combine.with_evidence import posterior_of

    source = File(folder)
    try:
        numbers, arrays, visits = _read(source)
        made = _given(numbers["program"], source, program, args, kwargs)
        solutions = [_solution(saved, made, arrays, program is None) for saved in numbers["paths"]]
        run = _run(**numbers["run"])
        evidence = None if numbers["evidence"] is None else _evidence(**numbers["evidence"])
    except FileNotFoundError as error:
        raise _missing(source, File(error.filename).name) from error
    except errors.AnabranchError:
        raise
    except (ValueError, KeyError, TypeError, EOFError, AttributeError, zipfile.BadZipFile) as error:
        raise errors.CannotLoad(
            f"the posterior in {source} is damaged ({type(error).__name__}: {error})", remedy="Save it again"
        ) from error
    posterior = posterior_of(made, solutions, run, evidence)
    posterior.resume = _continuation(numbers, visits, source)
    return posterior


def _missing(source: File, name: str) -> errors.CannotLoad:
    if (source / "index.json").is_file():
        return errors.CannotLoad(
            f"{source} holds the checkpoint of a run, and no saved posterior",
            remedy=f'Call infer as before, with checkpoint="{source}": it returns the posterior, once the run is over, '
            "and goes on with it until then",
        )
    return errors.CannotLoad(
        f"{source} holds no saved posterior: {name} is missing", remedy="Give the folder that was passed to save"
    )


def _continuation(numbers: Mapping[str, Any], visits: bytes | None, source: File) -> Refusal:
    """What continues the run once it has its program (`anabranch.load`)."""
    if visits is not None:
        return without_program(numbers["program"]["name"], str(source), visits)
    return Refusal(*numbers["cannot_continue"]) if "cannot_continue" in numbers else NOT_SAVED


def _read(source: File) -> tuple[dict[str, Any], dict[str, np.ndarray], bytes | None]:
    """The numbers, the arrays and the visits; again, if another process has replaced them meanwhile."""
    for attempt in range(_READS):
        numbers = json.loads((source / NUMBERS).read_text(encoding="utf-8"))
        if (version := numbers["format"]) != FORMAT:
            raise errors.CannotLoad(
                f"the posterior in {source} has format {version}, and this version of Anabranch reads format {FORMAT}",
                remedy="Upgrade Anabranch" if version > FORMAT else "Run the inference again",
            )
        try:
            visits = (source / numbers["visits"]).read_bytes() if numbers.get("visits") else None
            with (source / numbers["draws"]).open("rb") as file, np.load(file, allow_pickle=False) as kept:
                return numbers, dict(kept), visits
        except FileNotFoundError:
            if attempt == _READS - 1 or numbers["draws"] in _named_in(source):
                raise
    raise AssertionError


def _given(
    saved: Mapping[str, Any],
    source: File,
    program: Callable[..., Any] | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Program:
    """The program that is given, after a check that it is the one that was saved; or one that says that it is not."""
    if program is None:
        function = missing_program(saved["name"], str(source))
        function.saved = saved
        return remade(function, (), {}, **{**saved["settings"], "is_selecting": False})
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
