"""Addresses of sites without a name.

An address identifies a random choice by the place of its call and the number of visits to that place: in

    while position > 0:
        step = ab.sample(dist.Uniform(-1.0, 1.0))

the sites are "step", "step[1]", "step[2]" and so on. Lines are counted from the start of the function, so that an edit
of one function does not change the addresses in others.
"""

import dis
import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from numpyro.primitives import Messenger

from anabranch.errors import UnnamedSite

__all__ = ["derive", "execution", "instruction_at", "is_running", "line_of"]

_CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW"}
# The fused instructions of Python 3.13 carry two names: that of the store comes first.
_STORES = {"STORE_FAST", "STORE_NAME", "STORE_DEREF", "STORE_GLOBAL", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"}
# Comprehensions are functions of their own before Python 3.12.
_COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>"}
_ANONYMOUS = _COMPREHENSIONS | {"<lambda>", "<genexpr>"}


@dataclass
class _Execution:
    """One run of a program: its code, the ids of that and of the anonymous functions in it, and the visit counts."""

    code: CodeType | None
    own: frozenset[int]
    visits: Counter[str] = field(default_factory=Counter)


_current: ContextVar[_Execution | None] = ContextVar("anabranch_execution", default=None)


@contextmanager
def execution(program: Callable[..., Any]) -> Iterator[None]:
    """Count visits from zero during one run of `program`; a nested execution has counts of its own."""
    code = _innermost_code(program)
    # By identity: equal code objects may belong to different functions.
    codes = [c for c in (code, getattr(program, "__anabranch_code__", None)) if c is not None]
    own = frozenset(id(part) for each in codes for part in (each, *_nameless_within(each)))
    token = _current.set(_Execution(code, own))
    try:
        yield
    finally:
        _current.reset(token)


def is_running() -> bool:
    """True while a program is executed."""
    return _current.get() is not None


def derive(kind: str, frame: FrameType) -> str:
    """The address of the statement that `frame` is calling; each call counts as a visit.

    `kind` is the statement ("sample", "observe", ...), and the name if the value is not assigned to a variable.
    """
    current = _current.get()
    if current is None:
        raise UnnamedSite(
            f"this {kind} statement has no name, and Anabranch is not executing the program",
            where=line_of(frame),
            remedy=f"Name the site, as in {kind}('name', ...), or run the program with Anabranch.",
        )
    label = _label(kind, frame, current)
    visit = current.visits[label]
    current.visits[label] += 1
    return f"{label}[{visit}]" if visit else label


def line_of(frame: FrameType) -> str:
    """`model.py:12`."""
    return f"{_basename(frame.f_code.co_filename)}:{frame.f_lineno}"


_basename = functools.lru_cache(maxsize=1024)(os.path.basename)


def instruction_at(code: CodeType, offset: int) -> tuple[list[dis.Instruction], int | None]:
    """The instructions of some code, and the number of the one at this offset."""
    instructions = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    # While a call is under way, the offset may be that of the inline cache that follows the instruction.
    return instructions, max((i for i, step in enumerate(instructions) if step.offset <= offset), default=None)


def _label(kind: str, frame: FrameType, current: _Execution) -> str:
    name, line, column = _place(frame.f_code, frame.f_lasti)
    # A comprehension belongs to the function around it in every version of Python.
    home = frame
    while home.f_code.co_name in _COMPREHENSIONS and home.f_back is not None:
        home = home.f_back
    if current.code is not None and id(home.f_code) in current.own:
        prefix, first_line = "", current.code.co_firstlineno
    else:
        prefix, first_line = home.f_code.co_qualname.replace("<locals>.", "") + ".", home.f_code.co_firstlineno
    return prefix + (name or f"{kind}@{line - first_line}:{column}")


@functools.lru_cache(maxsize=4096)
def _place(code: CodeType, last: int) -> tuple[str | None, int, int]:
    """The variable that the result of a call is assigned to, or None, and the line and column of the call."""
    instructions, found = instruction_at(code, last)
    here = found or 0
    place = _position(instructions[here], code)
    name = _stored_name(instructions, here)
    if name is None:
        return None, *place
    # The compiler copies some code, such as that of `finally`: copies share a position and are one call.
    namesakes = [_position(step, code) for i, step in enumerate(instructions) if _stored_name(instructions, i) == name]
    number = list(dict.fromkeys(namesakes)).index(place) + 1
    return name if number == 1 else f"{name}#{number}", *place


def _stored_name(instructions: list[dis.Instruction], index: int) -> str | None:
    """The variable that the result of the call at `index` is assigned to, or None."""
    if instructions[index].opname not in _CALLS or index + 1 == len(instructions):
        return None
    store = instructions[index + 1]
    if store.opname not in _STORES:
        return None
    return store.argval[0] if isinstance(store.argval, tuple) else store.argval


def _position(instruction: dis.Instruction, code: CodeType) -> tuple[int, int]:
    positions = instruction.positions
    line = positions.lineno if positions else None
    column = positions.col_offset if positions else None
    # Without columns (-X no_debug_ranges) the offset distinguishes the calls of a line.
    return code.co_firstlineno if line is None else line, instruction.offset if column is None else column


def _nameless_within(code: CodeType) -> Iterator[CodeType]:
    """The comprehensions and lambdas in `code`, also nested ones, but none inside a named function."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and constant.co_name in _ANONYMOUS:
            yield constant
            yield from _nameless_within(constant)


def _innermost_code(program: Any) -> CodeType | None:
    """The code of the innermost wrapped function; None if it is not written in Python."""
    seen: set[int] = set()
    while id(program) not in seen:
        seen.add(id(program))
        if hasattr(program, "__wrapped__"):
            program = program.__wrapped__
        elif isinstance(program, functools.partial):
            program = program.func
        elif isinstance(program, Messenger) and program.fn is not None:
            program = program.fn
        elif hasattr(program, "__func__"):
            program = program.__func__
        elif isinstance(code := getattr(program, "__code__", None), CodeType):
            return code
        else:
            program = type(program).__call__
    return None
