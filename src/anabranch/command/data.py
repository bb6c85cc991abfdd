"""Data from a file, and the arguments of a program that they become.

A parameter of the program gets the column, or the key, of its own name. A program with one parameter that no name
matches gets the only array that there is, or all of them as a dictionary.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anabranch.command.status import WrongUsage

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Data", "arguments_of", "read"]

UNNAMED = ""
"""The name of an array that has none."""
_FORMATS = ".csv, .tsv, .json, .npz, .npy or .parquet"


@dataclass(frozen=True)
class Data:
    """Values by name, and where they come from."""

    source: str
    values: Mapping[str, Any]

    @property
    def in_words(self) -> str:
        """What there is, for a message."""
        names = [name for name in self.values if name != UNNAMED]
        if not self.values:
            return f"{self.source} has nothing"
        return f"{self.source} has {', '.join(names)}" if names else f"{self.source} has one array without a name"


# Reading --------------------------------------------------------------------------------------------------------------


def read(file: Path | None) -> Data:
    """The data in a file; none without a file."""
    if file is None:
        return Data("the command", {})
    if not file.is_file():
        raise WrongUsage(f"there is no file {file}")
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise WrongUsage(f"{file} has no known format: give {_FORMATS}")
    try:
        values = reader(file)
    except WrongUsage:
        raise
    except (ValueError, OSError, KeyError) as error:
        raise WrongUsage(f"{file} cannot be read as {file.suffix[1:]}: {error}") from error
    return Data(file.name, values)


def _json(file: Path) -> dict[str, Any]:
    content = json.loads(file.read_text(encoding="utf-8"))
    if isinstance(content, list) and content and all(isinstance(row, dict) for row in content):
        names = dict.fromkeys(name for row in content for name in row)
        content = {name: [row.get(name) for row in content] for name in names}
    if not isinstance(content, dict):
        return {UNNAMED: as_array(content)}
    return {name: as_array(value) for name, value in content.items()}


def as_array(value: Any) -> Any:
    """A list of numbers, or of lists of the same length, as an array; missing numbers are NaN. Anything else stays."""
    if not isinstance(value, list):
        return value
    try:
        array = np.asarray(value)
        if array.dtype == object:
            array = np.asarray(value, float)  # None becomes NaN
    except (ValueError, TypeError):
        return value
    return array if array.dtype.kind in "biuf" else value


def _npz(file: Path) -> dict[str, Any]:
    with np.load(file, allow_pickle=False) as kept:
        return dict(kept)


def _npy(file: Path) -> dict[str, Any]:
    return {UNNAMED: np.load(file, allow_pickle=False)}


def _csv(file: Path) -> dict[str, Any]:
    import pandas as pd

    table = pd.read_csv(file, sep="\t" if file.suffix.lower() == ".tsv" else ",", skipinitialspace=True)
    if len(table.columns) and all(_is_number(str(name)) for name in table.columns):
        raise WrongUsage(f"the first line of {file} has numbers: add a line with the names of the columns above it")
    return _columns(table)


def _parquet(file: Path) -> dict[str, Any]:
    if find_spec("pyarrow") is None and find_spec("fastparquet") is None:
        raise WrongUsage(f"{file} needs the extra parquet: pip install 'anabranch[parquet]', or write the data as CSV")
    import pandas as pd

    return _columns(pd.read_parquet(file))


_READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    ".csv": _csv, ".tsv": _csv, ".json": _json, ".npz": _npz, ".npy": _npy, ".parquet": _parquet,
}  # fmt: skip


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _columns(table: pd.DataFrame) -> dict[str, Any]:
    """The columns as arrays; one with text stays a list, which `arguments_of` refuses if the program asks for it."""
    out: dict[str, Any] = {}
    for name in table.columns:
        array = table[name].to_numpy()
        out[str(name)] = array if array.dtype.kind in "biuf" else _Text(table[name].tolist())
    return out


class _Text(list[Any]):
    """A column that is not all numbers."""


# Arguments ------------------------------------------------------------------------------------------------------------


def arguments_of(
    program: Callable[..., Any], data: Data, constants: Sequence[tuple[str, Any]]
) -> inspect.BoundArguments:
    """The arguments of the program, by the rule above."""
    signature = inspect.signature(program)
    values = {**data.values, **{name: as_array(value) for name, value in constants}}
    taken = _named_parameters(signature)
    missing = [name for name, each in taken.items() if each.default is each.empty and name not in values]
    chosen = {name: value for name, value in values.items() if name in taken or (_others(signature) and name)}
    unused = {name: value for name, value in data.values.items() if name not in chosen}
    if len(missing) == 1 and unused and len(unused) == len(data.values):
        chosen[missing[0]] = next(iter(unused.values())) if len(unused) == 1 else unused
        _say(f"{missing.pop()} is {_listed(unused)} of {data.source}")
    elif unused:
        _say(f"not used: {_listed(unused)} of {data.source}")
    unknown = [name for name, _ in constants if name not in chosen]
    _check(_call(program, signature), data, missing, unknown)
    _check_numbers(chosen, data)
    return _bound(signature, taken, chosen)


def _bound(signature: inspect.Signature, taken: Mapping[str, Any], chosen: Mapping[str, Any]) -> inspect.BoundArguments:
    """By position where that is possible: a parameter may have the name of a setting of `infer`."""
    bound = inspect.BoundArguments(signature, OrderedDict((name, chosen[name]) for name in taken if name in chosen))
    if others := _others(signature):
        bound.arguments[others] = {name: value for name, value in chosen.items() if name not in taken}
    return bound


def _named_parameters(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: each for name, each in signature.parameters.items() if each.kind not in several}


def _others(signature: inspect.Signature) -> str:
    """The parameter that takes arguments of any other name, as `**data` does; empty without one."""
    return next((n for n, each in signature.parameters.items() if each.kind is inspect.Parameter.VAR_KEYWORD), "")


def _call(program: Callable[..., Any], signature: inspect.Signature) -> str:
    return f"{getattr(program, '__name__', 'the program')}({', '.join(signature.parameters)})"


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(name or "the array" for name in values)


def _say(words: str) -> None:
    print(words, file=sys.stderr)


def _check(call: str, data: Data, missing: Sequence[str], unknown: Sequence[str]) -> None:
    if unknown:
        raise WrongUsage(f"{call} takes no argument {', '.join(unknown)}, which --set gives")
    if missing:
        remedy = "rename a column or key, or give it by --set" if data.values else "give the data by --data or --set"
        raise WrongUsage(f"{call} needs {', '.join(missing)}, and {data.in_words}: {remedy}")


def _check_numbers(chosen: Mapping[str, Any], data: Data) -> None:
    """Refuse text in columns that the program gets, and say where numbers are missing."""
    columns = {name: value for given in chosen.values() if isinstance(given, dict) for name, value in given.items()}
    for name, value in {**chosen, **columns}.items():
        if isinstance(value, _Text):
            row, example = next((row, each) for row, each in enumerate(value, 2) if not isinstance(each, int | float))
            raise WrongUsage(
                f"{name} of {data.source} has text, such as {example!r} in line {row}: write it as numbers"
            )
        if isinstance(value, np.ndarray) and value.dtype.kind == "f" and (absent := int(np.isnan(value).sum())):
            _say(f"{name} of {data.source} has {absent:,} missing values, which are NaN")
