"""The files of a checkpoint: whatever is damaged, what is read is one of the last two rounds, or nothing."""

import json
from dataclasses import fields

import numpy as np
import pytest

from anabranch import errors
from anabranch.checkpoint.folder import INDEX, PREVIOUS, Folder, packed, read_part
from anabranch.checkpoint.plain import NotPlain, from_plain, to_plain
from anabranch.conquer.per_path import PerPath
from anabranch.conquer.smc_sweep import Sweep

ROUNDS = [{"run": {}, "round": number} for number in range(3)]


@pytest.fixture
def folder(tmp_path):
    """A folder to which three rounds were written, each with a part of its own."""
    out = Folder(tmp_path / "run")
    with out.locked():
        for index in ROUNDS:
            out.write(index, [], [packed(index["round"], [np.arange(index["round"])])])
    return out.path


def read(path):
    """The round of the newest index, after a check that its part is its own."""
    with Folder(path).locked():
        found = Folder(path).newest()
    if found is None:
        return None
    index, ((tree, (array,)),) = found
    assert index["round"] == tree == len(array)
    return index["round"]


def test_the_newest_round_is_read_and_older_parts_are_removed(folder):
    assert read(folder) == 2
    assert len(list(folder.glob("part-*"))) == 2


def test_an_index_cut_off_at_any_byte_gives_the_round_before(folder):
    whole, previous = (folder / INDEX).read_bytes(), (folder / PREVIOUS).read_bytes()
    for length in range(len(whole)):
        (folder / INDEX).write_bytes(whole[:length])
        (folder / PREVIOUS).write_bytes(previous)
        assert read(folder) == 1
        assert (folder / INDEX).read_bytes() == previous  # so that the damaged one does not become the one before


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_changed_byte_is_found(folder, position):
    part = folder / json.loads((folder / INDEX).read_text())["parts"][0]["file"]
    content = bytearray(part.read_bytes())
    content[int(position * len(content))] ^= 1
    part.write_bytes(content)
    assert read(folder) == 1


def test_a_changed_number_in_the_index_is_found(folder):
    (folder / INDEX).write_text((folder / INDEX).read_text().replace('"round": 2', '"round": 3'))
    assert read(folder) == 1


def test_between_the_two_renames_the_round_before_is_there(folder):
    (folder / INDEX).unlink()
    assert read(folder) == 1


def test_two_damaged_rounds_are_refused(folder):
    for name in (INDEX, PREVIOUS):
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    with pytest.raises(errors.CannotLoad, match=r"index\.json is damaged .*index\.previous\.json is damaged"):
        read(folder)


def test_a_missing_part_is_refused_or_the_round_before_is_read(folder):
    for index in (INDEX, PREVIOUS):
        (folder / json.loads((folder / index).read_text())["parts"][0]["file"]).unlink()
    with pytest.raises(errors.CannotLoad, match="which is missing"):
        read(folder)


def test_another_format_is_refused(folder, monkeypatch):
    monkeypatch.setattr("anabranch.checkpoint.folder.FORMAT", 99)
    with pytest.raises(errors.CannotLoad, match="has format 2"):
        read(folder)


def test_an_empty_folder_is_a_new_checkpoint(tmp_path):
    assert read(tmp_path / "new") is None


# Values ---------------------------------------------------------------------------------------------------------------


def through_a_file(value, tmp_path, modules=()):
    folder, arrays = Folder(tmp_path / "values"), []
    tree = to_plain(value, arrays)
    with folder.locked():
        (part,) = folder.write({}, [], [packed(tree, arrays)])
    return from_plain(*read_part(folder.path, part), modules)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -0.0, np.inf, "a site", (1, (2.5, None)), [1, [2]], {"a": 1, 2: (3,)}, range(3, 9, 2),
        np.float64(0.1), np.int32(7), np.bool_(True),
    ],
    ids=repr,
)  # fmt: skip
def test_values_come_back_as_they_were(value, tmp_path):
    again = through_a_file(value, tmp_path)
    assert type(again) is type(value)
    assert repr(again) == repr(value)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)), np.arange(6.0).reshape(2, 3).T, np.array([np.nan, -np.inf, 5e-324]), np.array(2.5),
        np.array([[True, False]]), np.arange(5)[::2], np.array(["a", "bc"]),
    ],
    ids=repr,
)  # fmt: skip
def test_arrays_come_back_bit_for_bit_and_can_be_changed(array, tmp_path):
    again, other = through_a_file((array, np.ones(3, np.float32)), tmp_path)
    assert (again.dtype, again.shape, again.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert array.ndim < 2 or again.flags.f_contiguous == array.flags.f_contiguous
    assert again.flags.writeable
    assert again.flags.aligned
    assert other.sum() == 3


def test_states_come_back(tmp_path):
    sweep = Sweep(2, -1.5, 0.1, np.ones((2, 3)), 1.5, np.arange(2), 2, np.zeros((1, 3)))
    again = through_a_file(sweep, tmp_path)
    assert all(np.array_equal(getattr(again, each.name), getattr(sweep, each.name)) for each in fields(Sweep))


@pytest.mark.parametrize("value", [object(), {1, 2}, np.array([None]), b"bytes", lambda x: x], ids=type)
def test_other_values_are_refused(value):
    with pytest.raises(NotPlain):
        to_plain((1, value), [])


@pytest.mark.parametrize("name", ["os:system", "builtins:eval", "anabranch.language:sample", "subprocess:Popen"])
def test_nothing_is_called_that_is_not_a_state(name):
    with pytest.raises(NotPlain):
        from_plain({"class": name, "fields": {}}, [])
    with pytest.raises(NotPlain):
        from_plain({"class": name, "fields": {}}, [], modules={"os", "builtins", "subprocess"})


def test_classes_of_a_strategy_s_own_module_are_made_again():
    tree = to_plain(PerPath({}), [])
    assert from_plain({**tree, "fields": {}} | {"fields": {"choice": {"dict": []}}}, []) == PerPath({})
