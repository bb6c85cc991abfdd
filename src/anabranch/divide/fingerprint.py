"""A program and its data in a few characters, to tell whether two of them are the same; and a program made again."""

from __future__ import annotations

import functools
import hashlib
import inspect
import textwrap
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from anabranch.divide.recording import Program, copied, mapped
from anabranch.divide.select import selecting

__all__ = ["data_fingerprint", "function_fingerprint", "program_fingerprint", "remade", "source_of"]


def function_fingerprint(function: Callable[..., Any]) -> str:
    """Of the text of a function, or of its code where there is none; not of what it calls or captures."""
    return _digest(_text_of(function))


def source_of(function: Any) -> str:
    """The text of a function; empty where it is not to be had, as of what was typed into a shell."""
    while isinstance(function, functools.partial):
        function = function.func
    if (saved := getattr(function, "saved", None)) is not None:  # it stands for the program of a loaded posterior
        return str(saved.get("source", ""))
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        return ""


def program_fingerprint(function: Callable[..., Any]) -> str:
    """Of the text of a function, of the values that it captures, and of the functions and values of its own module that
    it names; and so on for these functions."""
    parts: list[str] = []
    _collect(function, parts, set())
    return _digest(repr(parts))


def _collect(function: Any, parts: list[str], seen: set[int]) -> None:
    function = inspect.unwrap(function)
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, functools.partial):
        parts.append(data_fingerprint(function.args, function.keywords))
        _collect(function.func, parts, seen)
        return
    parts.append(_text_of(function))
    if (code := getattr(function, "__code__", None)) is None:
        return
    known = {key: function.__globals__[key] for key in sorted(_names(code)) if key in function.__globals__}
    captured = zip(code.co_freevars, function.__closure__ or (), strict=True)
    own = {key: cell.cell_contents for key, cell in captured if cell != types.CellType()}
    for key, value in {**known, **own}.items():
        if isinstance(value, types.FunctionType | functools.partial):
            if key in own or getattr(value, "__module__", None) == function.__module__:
                _collect(value, parts, seen)
        elif not isinstance(value, types.ModuleType | type):
            parts.append(f"{key} {data_fingerprint((value,), {})}")


def _names(code: types.CodeType) -> set[str]:
    """The global names in a code, and in the functions that it makes."""
    inner = [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return set(code.co_names).union(*map(_names, inner))


def data_fingerprint(args: Any, kwargs: Mapping[str, Any]) -> str:
    """Of the arguments of a program: numbers, text and arrays; of anything else, the type alone."""
    return _digest(repr(mapped((tuple(args), dict(sorted(kwargs.items()))), _value_of)))


def remade(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    is_selecting: bool,
    **settings: Any,
) -> Program:
    """A program from its function and arguments, in the form that it had: with selects, or for the interpreter."""
    rewritten = selecting(function) if is_selecting else None
    return Program(
        rewritten or function, mapped(args, copied), mapped(kwargs, copied), selecting=is_selecting, **settings
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _text_of(function: Any) -> str:
    if isinstance(function, functools.partial):
        return f"{_text_of(function.func)} {data_fingerprint(function.args, function.keywords)}"
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        code = getattr(function, "__code__", None)
        return type(function).__qualname__ if code is None else repr(_code(code))


def _code(code: types.CodeType) -> tuple[Any, ...]:
    """What a code does, without where it stands."""
    constants = [_code(each) if isinstance(each, types.CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, constants


def _value_of(value: Any) -> Any:
    """A value in plain form: an array as its dtype, shape and bytes."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return value
    try:
        array = np.asarray(value)
    except Exception:
        return type(value).__qualname__
    if array.dtype == object:
        return type(value).__qualname__
    return array.dtype.str, array.shape, hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
