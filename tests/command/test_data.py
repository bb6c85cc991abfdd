"""How data in files become the arguments of a program."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from anabranch.command import data
from anabranch.command.data import Data, arguments_of, read
from anabranch.command.status import WrongUsage

X, Y = np.array([1.0, 2.0, 3.0]), np.array([4, 5, 6])


def line(x: Any, y: Any, degree: Any = 1) -> None: ...
def only(values: Any) -> None: ...
def keywords(x: Any, **others: Any) -> None: ...
def strict(x: Any, /, *, y: Any) -> None: ...
def setting(seed: Any, budget: Any) -> None: ...


def written(folder: Path, kind: str) -> Path:
    file = folder / f"data.{kind}"
    if kind == "csv":
        file.write_text("x, y\n1.0, 4\n2.0, 5\n3.0, 6\n")
    elif kind == "tsv":
        file.write_text("x\ty\n1.0\t4\n2.0\t5\n3.0\t6\n")
    elif kind == "json":
        file.write_text(json.dumps({"x": X.tolist(), "y": Y.tolist()}))
    else:
        np.savez(file, x=X, y=Y)
    return file


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "npz"])
def test_columns_become_the_parameters_of_their_names(kind: str, tmp_path: Path) -> None:
    bound = arguments_of(line, read(written(tmp_path, kind)), [("degree", 2)])
    assert bound.kwargs == {}
    x, y, degree = bound.args
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    assert y.dtype.kind == "i"
    assert degree == 2


def test_json_may_have_rows_scalars_or_no_names(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text('[{"x": 1, "y": 4}, {"x": 2, "y": null}]')
    x, y = arguments_of(line, read(file), []).args
    np.testing.assert_array_equal(x, [1, 2])
    np.testing.assert_array_equal(y, [4.0, np.nan])
    file.write_text('{"x": [[1, 2], [3, 4]], "y": 2.5, "degree": "high"}')
    x, y, degree = arguments_of(line, read(file), []).args
    assert (x.shape, y, degree) == ((2, 2), 2.5, "high")
    file.write_text("[1.5, 2.5]")
    np.testing.assert_array_equal(arguments_of(only, read(file), []).args[0], [1.5, 2.5])
    file.write_text('{"values": [[1], [2, 3]]}')  # ragged: a list, as it is
    assert arguments_of(only, read(file), []).args == ([[1], [2, 3]],)


def test_a_single_parameter_gets_the_only_array_or_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments_of(only, Data("d", {"height": X}), []).args[0] is X
    assert capsys.readouterr().err == "values is height of d\n"
    assert arguments_of(only, Data("d", {"x": X, "y": Y}), []).args[0] == {"x": X, "y": Y}
    assert arguments_of(only, Data("d", {"values": X, "y": Y}), []).args[0] is X  # by its name
    assert capsys.readouterr().err.endswith("not used: y of d\n")
    assert arguments_of(line, Data("d", {"": X}), [("y", [1, 2, 3])]).args[0] is X


def test_parameters_of_every_kind() -> None:
    bound = arguments_of(keywords, Data("d", {"x": X, "y": Y}), [("z", 1)])
    assert bound.args[0] is X
    assert bound.kwargs.keys() == {"y", "z"}
    bound = arguments_of(strict, Data("d", {"x": X, "y": Y}), [])
    assert bound.args[0] is X
    assert bound.kwargs["y"] is Y
    assert arguments_of(setting, Data("d", {"seed": 1, "budget": 2}), []).args == (1, 2)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"x": X, "z": Y}, "line(x, y, degree) needs y, and d has x, z: rename a column or key, or give it by --set"),
        ({"": X}, "line(x, y, degree) needs x, y, and d has one array without a name"),
        ({}, "line(x, y, degree) needs x, y, and d has nothing: give the data by --data or --set"),
    ],
)
def test_what_is_missing_is_said_with_what_there_is(values: dict[str, Any], words: str) -> None:
    with pytest.raises(WrongUsage) as error:
        arguments_of(line, Data("d", values), [])
    assert words in str(error.value)


def test_tables_hold_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "data.csv"
    file.write_text("x,y,name\n1,2,a\n3,four,b\n")
    with pytest.raises(WrongUsage, match=r"y of data.csv has text, such as '2' in line 2|such as 'four' in line 3"):
        arguments_of(line, read(file), [])
    file.write_text("x,y,name\n1,2,a\n3,,b\n")  # the text is not asked for
    assert len(arguments_of(line, read(file), []).args) == 2
    assert "y of data.csv has 1 missing values, which are NaN" in capsys.readouterr().err
    file.write_text("1,2\n3,4\n")
    with pytest.raises(WrongUsage, match="add a line with the names of the columns above it"):
        read(file)


@pytest.mark.parametrize(("name", "content"), [("a.json", "{1"), ("a.npz", "no"), ("a.csv", ""), ("a.npy", "no")])
def test_damaged_files_are_named(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(WrongUsage, match=f"{name} cannot be read as {name[2:]}"):
        read(tmp_path / name)


def test_parquet_needs_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_text("")
    monkeypatch.setattr(data, "find_spec", lambda _: None)
    with pytest.raises(WrongUsage, match=r"pip install 'anabranch\[parquet\]'"):
        read(tmp_path / "a.parquet")


@pytest.mark.skipif(find_spec("pyarrow") is None, reason="pyarrow is not installed")
def test_parquet_is_read(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": [1.0, 2.5, 4.0], "n": [1, 2, 3], "is_new": [True, False, True]})
    table.to_parquet(tmp_path / "a.parquet")
    found = read(tmp_path / "a.parquet").values
    assert list(found) == ["x", "n", "is_new"]
    for name, column in found.items():
        np.testing.assert_array_equal(column, table[name].to_numpy())
