"""The files of a checkpoint.

    index.json             the version of the format, what the run is (`fingerprint`), how far it has come, the names of
                           the files with their checksums, and a checksum of its own
    index.previous.json    the one before
    part-....npz           JSON and arrays (`plain`)
    lock                   held by the process that writes

Parts never change. A new one is written under a name of its own and synchronised with the disk, then a new index takes
the place of the old one: whenever the process or the power ends, the index that is there, or the one before it, names
whole files. What neither of them names is removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import math
import os
import re
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path as File
from typing import Any

import numpy as np

from anabranch import errors

__all__ = ["FORMAT", "INDEX", "PREVIOUS", "Folder", "packed", "read_index", "read_part", "unpacked"]

FORMAT = 2
"""The version of the files, increased when they change."""
INDEX, PREVIOUS = "index.json", "index.previous.json"
_PART = re.compile(r"part-[0-9a-f]{32}\.npz|\.index-[0-9a-f]{32}\.json")
"""The names of our own files, but the indices."""


class Folder:
    """A folder that one process at a time writes a checkpoint to."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = File(os.path.realpath(folder))
        if self.path.exists() and not _is_ours(self.path):
            raise errors.CannotLoad(
                f"{self.path} exists and holds no checkpoint", remedy="Choose another folder, or remove it"
            )
        self._named: list[set[str]] = [set(), set()]  # the files that the index names, and the one before it

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within this no other run writes to the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise errors.CannotLoad(
                f"another run is writing its checkpoint to {self.path}",
                remedy="Wait until it has ended, or choose another folder",
            ) from None
        finally:
            os.close(lock)

    def newest(self) -> tuple[dict[str, Any], list[Any]] | None:
        """The newest index that is whole, with the contents of its parts; None if there is no index at all.

        An index, or a part that it names, which is damaged leads to the one before; two of them are an error.
        """
        reasons = []
        for name in (INDEX, PREVIOUS):
            try:
                index = read_index(self.path, name)
                contents = [read_part(self.path, part) for part in index["parts"]]
            except FileNotFoundError as error:
                if File(error.filename).name != name:
                    reasons.append(f"{name} names {File(error.filename).name}, which is missing")
                continue
            except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
                reasons.append(f"{name} is damaged ({error})")
                continue
            if name == PREVIOUS:  # before the damaged one takes its place
                (self.path / PREVIOUS).replace(self.path / INDEX)
            self._named = [{part["file"] for part in index["parts"]}, set()]
            return index, contents
        if reasons:
            raise errors.CannotLoad(
                f"the checkpoint in {self.path} cannot be read: {'; '.join(reasons)}",
                remedy="Remove the folder and run again from the start, or restore it from a backup",
            )
        return None

    def write(
        self, index: dict[str, Any], kept: Sequence[dict[str, Any]], new: Sequence[bytes]
    ) -> list[dict[str, Any]]:
        """Replace the index by one that names these parts, and new ones with these contents; all parts that it names.

        OSError leaves the checkpoint as it was.
        """
        made: list[File] = []
        try:
            parts = list(kept)
            for content in new:
                made.append(self.path / f"part-{uuid.uuid4().hex}.npz")
                _write(made[-1], content)
                parts.append({"file": made[-1].name, "bytes": len(content), "sha256": _digest(content)})
            made.append(self.path / f".index-{uuid.uuid4().hex}.json")
            _write(made[-1], _sealed({"format": FORMAT, **index, "parts": parts}))
            current = self.path / INDEX
            if current.exists():
                current.replace(self.path / PREVIOUS)
            made[-1].replace(current)
            _synchronise(self.path)
        except OSError:
            for file in made:
                file.unlink(missing_ok=True)
            raise
        self._named = [{part["file"] for part in parts}, self._named[0]]
        self._remove_others()
        return parts

    def _remove_others(self) -> None:
        for file in self.path.iterdir():
            if _PART.fullmatch(file.name) and not any(file.name in named for named in self._named):
                file.unlink(missing_ok=True)


def read_index(folder: File, name: str = INDEX) -> dict[str, Any]:
    """An index after a check of its checksum and its format."""
    index = json.loads((folder / name).read_text(encoding="utf-8"))
    checksum = index.pop("sha256")
    if checksum != _digest(_text(index)):
        raise ValueError("its checksum does not match")
    if index["format"] != FORMAT:
        raise errors.CannotLoad(
            f"the checkpoint in {folder} has format {index['format']}, and this version of Anabranch reads {FORMAT}",
            remedy="Go on with the version that wrote it, or remove the folder",
        )
    found: dict[str, Any] = index
    return found


def read_part(folder: File, part: dict[str, Any]) -> Any:
    """The contents of a part after a check of its checksum: what `packed` was given, as JSON and arrays."""
    content = (folder / part["file"]).read_bytes()
    if len(content) != part["bytes"] or _digest(content) != part["sha256"]:
        raise ValueError(f"the checksum of {part['file']} does not match")
    return unpacked(content)


def unpacked(content: bytes) -> tuple[Any, list[np.ndarray]]:
    """What `packed` was given, as JSON and arrays."""
    with np.load(io.BytesIO(content), allow_pickle=False) as kept:
        tree, data = json.loads(kept["tree"].tobytes()), kept["data"]
    shapes = [(np.dtype(dtype), tuple(shape), order) for dtype, shape, order in tree["arrays"]]
    ends = np.cumsum([0, *(dtype.itemsize * math.prod(shape) for dtype, shape, _ in shapes)])
    arrays = [
        data[start:end].view(dtype).reshape(shape, order=order)
        for (dtype, shape, order), start, end in zip(shapes, ends[:-1], ends[1:], strict=True)
    ]
    return tree["tree"], arrays


def packed(tree: Any, arrays: Sequence[np.ndarray]) -> bytes:
    """JSON and arrays as the contents of a part: all arrays one after the other, since there may be very many."""
    orders = ["F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C" for array in arrays]
    kept = zip(arrays, orders, strict=True)
    text = {"tree": tree, "arrays": [(array.dtype.str, array.shape, order) for array, order in kept]}
    data = b"".join(array.tobytes(order="A") for array in arrays)
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, tree=np.frombuffer(json.dumps(text).encode(), np.uint8),
             data=np.frombuffer(data, np.uint8))  # fmt: skip
    return file.getvalue()


def _is_ours(path: File) -> bool:
    known = (INDEX, PREVIOUS, "lock")
    return path.is_dir() and all(file.name in known or _PART.fullmatch(file.name) for file in path.iterdir())


def _sealed(index: dict[str, Any]) -> bytes:
    return _text({**index, "sha256": _digest(_text(index))})


def _text(index: dict[str, Any]) -> bytes:
    return json.dumps(index, indent=1, sort_keys=True).encode()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write(file: File, content: bytes) -> None:
    with file.open("wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())


def _synchronise(folder: File) -> None:
    """Let the names of files be on the disk, too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
