"""Where in the user's program something happened, and the words that stand there."""

import ast
import functools
import linecache
import sys
import types
from typing import Any

from anabranch.addresses import instruction_at, line_of

__all__ = [
    "belongs_to_program", "frame_of", "negated", "program_frame", "question", "source_line", "user_frame",
    "user_location", "where",
]  # fmt: skip

_MACHINERY = {
    "anabranch", "jax", "jaxlib", "numpyro", "numpy", "contextlib", "functools", "opt_einsum",
    "scipy", "pandas", "sklearn", "statsmodels", "sympy",
}  # fmt: skip
_OPPOSITE: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.GtE(), ast.GtE: ast.Lt(), ast.Gt: ast.LtE(), ast.LtE: ast.Gt(), ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(), ast.In: ast.NotIn(), ast.NotIn: ast.In(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
}  # fmt: skip


def user_frame() -> types.FrameType | None:
    """The innermost frame that belongs to the program, not to the machinery that runs it."""
    return program_frame(sys._getframe(1))


def program_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The innermost frame of the program, from this frame outwards."""
    while frame is not None and not belongs_to_program(frame):
        frame = frame.f_back
    return frame


def belongs_to_program(frame: types.FrameType) -> bool:
    """Whether a frame runs the user's code."""
    return _is_users(frame.f_globals.get("__name__", ""))


@functools.cache
def _is_users(module: str) -> bool:
    root = module.partition(".")[0]
    if root in _MACHINERY:
        return module.startswith("anabranch.programs")
    return root == "__main__" or root not in sys.stdlib_module_names


def where(frame: types.FrameType | None) -> str:
    """`model.py:12`."""
    return "<unknown>" if frame is None else line_of(frame)


def user_location() -> str:
    """The line of the program that runs: `model.py:12`."""
    return where(user_frame())


def question(frame: types.FrameType | None) -> str:
    """The source of the expression that is being evaluated in `frame`: `position > 0`."""
    return "?" if frame is None else _segment(frame.f_code, frame.f_lasti)


def source_line(frame: types.FrameType | None) -> str:
    """The line of source that is being run in `frame`; empty if it is not known."""
    return "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()


@functools.lru_cache(maxsize=4096)
def _segment(code: types.CodeType, offset: int) -> str:
    line, end_line, column, end_column = _position(code, offset)
    if line is None or end_line is None or column is None or end_column is None:
        return "?"
    lines = [linecache.getline(code.co_filename, i) for i in range(line, end_line + 1)]
    if not any(lines):
        return f"question at line {line}"
    # Columns count bytes of the UTF-8 source.
    encoded = [text.encode() for text in lines]
    encoded[-1] = encoded[-1][:end_column]
    encoded[0] = encoded[0][column:]
    return " ".join(b"".join(encoded).decode(errors="replace").split())


def _position(code: types.CodeType, offset: int) -> Any:
    """The lines and columns of the expression whose value is asked for.

    A jump carries the position of its whole statement; what it jumps on is the value of the instruction before it.
    """
    steps, here = instruction_at(code, offset)
    if here is None:
        return (None,) * 4
    name = steps[here].opname
    jumps = ("JUMP" in name and "_IF_" in name) or name in ("TO_BOOL", "UNARY_NOT")
    asking = steps[here - 1] if jumps and here else steps[here]
    return asking.positions or (None,) * 4


@functools.lru_cache(maxsize=4096)
def negated(text: str) -> str:
    """The source of the opposite of a condition: `position > 0` becomes `position <= 0`."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError:
        return f"not ({text})"
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
        return ast.unparse(ast.Compare(tree.left, [_OPPOSITE.get(type(tree.ops[0]), tree.ops[0])], tree.comparators))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return ast.unparse(tree.operand)
    return f"not {text}" if isinstance(tree, ast.Name | ast.Call | ast.Subscript | ast.Attribute) else f"not ({text})"


def frame_of(error: BaseException) -> types.FrameType | None:
    """The innermost frame of the user's program in a traceback."""
    frame, trace = None, error.__traceback__
    while trace is not None:
        if belongs_to_program(trace.tb_frame):
            frame = trace.tb_frame
        trace = trace.tb_next
    return frame
