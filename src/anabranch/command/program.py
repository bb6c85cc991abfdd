"""The program that "FILE.py:function" or "module:function" names."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from anabranch.command.status import WrongUsage

__all__ = ["absolute", "program_of"]


def program_of(reference: str) -> Callable[..., Any]:
    """The function; its file or module is run. Files beside it can be imported, as when Python runs it."""
    place, _, name = reference.rpartition(":")
    if not place or ("." not in place and "/" in name):  # no function is named, as in C:/model.py
        place, name = reference, ""
    module = _from_file(Path(place)) if place.endswith(".py") else _by_name(place)
    found: Any = module
    for part in name.split(".") if name else ():
        found = getattr(found, part, None)
    if not name or not callable(found):
        said = f"{place} has no function {name!r}." if name else f"which function of {place} is the program?"
        known = ", ".join(_functions(module)) or "none"
        raise WrongUsage(f"{said} Its functions: {known}. Name one, as in {place}:{(_functions(module) or ['f'])[0]}")
    return cast(Callable[..., Any], found)


def absolute(reference: str) -> str:
    """The reference with the whole path of its file, so that it means the same in every folder."""
    place, _, name = reference.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else reference


def _from_file(file: Path) -> ModuleType:
    if not file.is_file():
        raise WrongUsage(f"there is no file {file}")
    file = file.resolve()
    known = sys.modules.get(file.stem)
    is_free = known is None or getattr(known, "__file__", None) == str(file)
    name = file.stem if is_free else f"{file.stem}_program"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _search_first(str(file.parent))
    sys.modules[name] = module  # dataclasses and pickle look a module up by its name
    spec.loader.exec_module(module)
    return module


def _by_name(name: str) -> ModuleType:
    _search_first(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise WrongUsage(f"there is no module {error.name}; a file is named as in model.py:function") from None
        raise


def _search_first(folder: str) -> None:
    if folder not in sys.path:
        sys.path.insert(0, folder)


def _functions(module: ModuleType) -> list[str]:
    """The functions that a module defines itself."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
