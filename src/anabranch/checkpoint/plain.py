"""States and estimates as JSON and arrays, and back: nothing is unpickled, and no code is run.

    number, text, None      themselves
    array, NumPy number     {"array": number of the array}, {"number": [dtype, value]}
    tuple, dict, range      {"tuple": [...]}, {"dict": [[key, value], ...]}, {"range": [start, stop, step]}
    dataclass, NamedTuple   {"class": "module:name", "fields": {...}}

Only classes of Anabranch, and of the modules that are named, are made again, and only dataclasses and named tuples.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

__all__ = ["NotPlain", "from_plain", "to_plain"]


class NotPlain(TypeError):
    """Raised for a value that is none of the above."""


def to_plain(value: Any, arrays: list[np.ndarray]) -> Any:
    """The value as JSON; its arrays are appended to the list.

    Example:
        >>> arrays = []
        >>> tree = to_plain((1, np.zeros(2), None), arrays)
        >>> tree, from_plain(tree, arrays)
        ({'tuple': [1, {'array': 0}, None]}, (1, array([0., 0.]), None))
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        return {"number": [value.dtype.str, value.item()]}
    if type(value) is np.ndarray and not value.dtype.hasobject:
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if is_dataclass(value) and not isinstance(value, type):
        return _object(type(value), {each.name: getattr(value, each.name) for each in fields(value)}, arrays)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return _object(type(value), value._asdict(), arrays)
    if type(value) is tuple:
        return {"tuple": [to_plain(each, arrays) for each in value]}
    if type(value) is list:
        return [to_plain(each, arrays) for each in value]
    if type(value) is dict:
        return {"dict": [[to_plain(key, arrays), to_plain(each, arrays)] for key, each in value.items()]}
    if type(value) is range:
        return {"range": [value.start, value.stop, value.step]}
    raise NotPlain(type(value).__qualname__)


def _object(kind: type, parts: dict[str, Any], arrays: list[np.ndarray]) -> dict[str, Any]:
    name = f"{kind.__module__}:{kind.__qualname__}"
    return {"class": name, "fields": {key: to_plain(each, arrays) for key, each in parts.items()}}


def from_plain(tree: Any, arrays: Sequence[np.ndarray], modules: Collection[str] = ()) -> Any:
    """The value of JSON and arrays; classes are those of Anabranch, and of these modules."""
    if isinstance(tree, list):
        return [from_plain(each, arrays, modules) for each in tree]
    if not isinstance(tree, dict):
        return tree
    if "class" in tree:
        parts = {key: from_plain(each, arrays, modules) for key, each in tree["fields"].items()}
        return _class(tree["class"], modules)(**parts)
    ((kind, value),) = tree.items()
    if kind == "array":
        return np.array(arrays[value], order="K")
    if kind == "number":
        return np.dtype(value[0]).type(value[1])
    if kind == "tuple":
        return tuple(from_plain(each, arrays, modules) for each in value)
    if kind == "dict":
        return {from_plain(key, arrays, modules): from_plain(each, arrays, modules) for key, each in value}
    if kind == "range":
        return range(*value)
    raise NotPlain(kind)


def _class(name: str, modules: Collection[str]) -> Any:
    """A dataclass or named tuple by its name; its module was imported before, by the settings of the run."""
    module, _, path = name.partition(":")
    if module.split(".")[0] != "anabranch" and module not in modules:
        raise NotPlain(name)
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, type) or not (is_dataclass(found) or hasattr(found, "_fields")):
        raise NotPlain(name)
    return found
