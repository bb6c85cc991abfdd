"""A function of a draw that reads only what all executions of a path share is called once for the path.

Of a program with thousands of paths one asks which predictors are in, or how many clusters there are: questions that
the path itself answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from anabranch.divide import Path
from anabranch.label import Label

__all__ = ["Varies", "at_path"]


class Varies(BaseException):
    """The function reads what differs between executions. Not an `Exception`: the function must not catch it."""


class _ConstantDraw(Mapping[str, Any]):
    """What all executions of a path share, by name."""

    def __init__(self, path: Path) -> None:
        self._path, self._constants = path, path.constant_arrays

    def __getitem__(self, name: str) -> Any:
        if name not in self._constants:
            raise Varies
        value = self._constants[name]
        return value.value if isinstance(value, Label) else value[()]

    def __contains__(self, name: object) -> bool:
        return name in self._path.names

    def __iter__(self) -> Iterator[str]:
        return iter(self._path.names)

    def __len__(self) -> int:
        return len(self._path.names)

    @property
    def path(self) -> str:
        return self._path.description

    @property
    def result(self) -> Any:
        raise Varies


def at_path(f: Callable[[Any], Any], path: Any) -> Any:
    """The value of a function of a draw for all draws of a path; raises `Varies` where they may have different ones."""
    if not isinstance(path, Path) or path.interpreted or path.sequences > 1:
        raise Varies
    return f(_ConstantDraw(path))
