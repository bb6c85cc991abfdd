"""What to write instead of the line at which a program leaves JAX, and how long a run without it will take.

Pure functions of the source: the expression that asked for a random real, the line that it stands in, and the names
that are visible there. What cannot be told from these gets the general advice.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import jax.numpy as jnp

from anabranch.divide.source_location import question, source_line, where

__all__ = ["GENERAL", "Departure", "departure", "hours_warning", "interpreter_message", "remedy", "remedy_of_branch"]

GENERAL = "Write it with jax.numpy to have it compiled"

_LONG = 3600.0
"""Seconds from which on a run is announced to be long."""

_ALIASES = {"np": "numpy", "sp": "scipy", "special": "scipy.special", "stats": "scipy.stats", "pd": "pandas"}
"""What short names stand for where the program's own names are not known."""

_OTHERWISE = {
    "float": "Drop float() and keep the value as it is: it is an array of jax.numpy, and takes part in its arithmetic",
    "complex": "Use x + 1j * y, which keeps an array, instead of complex(x, y)",
    "int": "Use jnp.floor(x), which stays a random real, instead of int(x)",
    "round": "Use jnp.round instead of round",
    "sorted": "Use jnp.sort of an array (jnp.stack makes one of a list) instead of sorted",
    "min": "Use jnp.minimum for two values, or jnp.min of an array, instead of min",
    "max": "Use jnp.maximum for two values, or jnp.max of an array, instead of max",
    "abs": "Use jnp.abs instead of abs",
    "sum": "Use jnp.sum of an array instead of sum",
    "str": "Do not make a text of a random real in the program: show it with jax.debug.print, or from the posterior",
    "math.lgamma": "Use jax.scipy.special.gammaln instead of math.lgamma",
    "math.gamma": "Use jax.scipy.special.gamma instead of math.gamma",
    "math.erf": "Use jax.scipy.special.erf instead of math.erf",
    "math.erfc": "Use jax.scipy.special.erfc instead of math.erfc",
    "math.fsum": "Use jnp.sum of an array instead of math.fsum",
    "math.fabs": "Use jnp.abs instead of math.fabs",
    "math.comb": "Use jax.scipy.special.gammaln for the logarithm of a binomial coefficient instead of math.comb",
    "math.dist": "Use jnp.linalg.norm of the difference instead of math.dist",
    "cmath.phase": "Use jnp.angle instead of cmath.phase",
    "statistics.fmean": "Use jnp.mean instead of statistics.fmean",
    "statistics.stdev": "Use jnp.std(x, ddof=1) instead of statistics.stdev",
    "statistics.pstdev": "Use jnp.std instead of statistics.pstdev",
    "statistics.variance": "Use jnp.var(x, ddof=1) instead of statistics.variance",
    "statistics.pvariance": "Use jnp.var instead of statistics.pvariance",
    "bisect.bisect": "Use jnp.searchsorted instead of bisect.bisect",
    "bisect.bisect_left": "Use jnp.searchsorted instead of bisect.bisect_left",
    "bisect.bisect_right": "Use jnp.searchsorted(..., side='right') instead of bisect.bisect_right",
    "numpy.float64": "Drop np.float64() and keep the value as it is: it is an array of jax.numpy",
    "numpy.array": "Use jnp.asarray, or jnp.stack for a list of random values, instead of np.array",
    "numpy.asarray": "Use jnp.asarray, or jnp.stack for a list of random values, instead of np.asarray",
}
for _text in ("repr", "format", "print"):
    _OTHERWISE[_text] = _OTHERWISE["str"]

_METHODS = {
    "item": "Drop .item() and keep the array",
    "tolist": "Drop .tolist() and keep the array: its entries are x[0], x[1], and so on",
    "sort": "Use jnp.sort of an array (jnp.stack makes one of a list) instead of .sort()",
    "format": _OTHERWISE["str"],
}


@dataclass(frozen=True)
class Departure:
    """Where a program left JAX: the line, `model.py:12`; what happens there, as a clause; and what to write instead."""

    where: str
    reason: str
    remedy: str


def departure(frame: FrameType | None) -> Departure:
    """Where a program leaves JAX, from the frame of the program that asks for a random real."""
    what = question(frame)
    names = {} if frame is None else {**frame.f_globals, **frame.f_locals}
    return Departure(where(frame), f"uses a random real outside JAX ({what})", remedy(what, source_line(frame), names))


def remedy(expression: str, line: str = "", names: Mapping[str, Any] | None = None) -> str:
    """What to write instead of an expression that needs the value of a random real, as a sentence without a full stop.

    Args:
        expression: the part of the line that asks, as far as Python says which it is.
        line: the line that it stands in, which is looked at if the expression says nothing.
        names: the values of the names that are visible there.

    Example:
        >>> remedy("math.exp(x)")
        'Use jnp.exp instead of math.exp'
        >>> remedy("?", "    total += float(x)")[:12]
        'Drop float()'
    """
    outermost = _outermost(expression)
    if isinstance(outermost, _TELLING):
        return _of_node(outermost, names) or GENERAL
    tree = _parsed(line)
    nodes = () if tree is None else ast.walk(tree)
    return next(filter(None, (_of_node(node, names) for node in nodes)), GENERAL)


def remedy_of_branch(expression: str, line: str = "") -> str:
    """What to write instead of a branch on a random real that gives too many decision sequences."""
    outermost = _outermost(expression)
    found = _of_node(outermost, None) if isinstance(outermost, _TELLING) else None
    return found or f"Write that branch with jnp.where{f': {line}' if line else ''}"


_TELLING = ast.Call | ast.JoinedStr | ast.Compare | ast.BinOp


def _outermost(expression: str) -> ast.AST | None:
    """The operation of an expression that is done last, which is the one that Python was at."""
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _parsed(source: str) -> ast.AST | None:
    """The source as a tree, also of a line that only begins a block."""
    text = source.strip()
    for attempt in (
        text,
        f"{text} pass",
        f"if True: pass\n{text}",
        f"if True: pass\n{text} pass",
        text.rstrip(":"),
        f"{text})",
    ):
        try:
            return ast.parse(attempt)
        except (SyntaxError, ValueError):
            continue
    return None


def _of_node(node: ast.AST, names: Mapping[str, Any] | None) -> str | None:
    if isinstance(node, ast.JoinedStr):
        return _OTHERWISE["str"]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and _is_text(node.left):
        return _OTHERWISE["str"]
    if isinstance(node, ast.Compare) and any(isinstance(op, ast.In | ast.NotIn) for op in node.ops):
        return "Use jnp.isin(x, values) instead of asking whether a random real is in a list"
    if isinstance(node, ast.Call):
        return _of_call(node, names)
    return None


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _of_call(call: ast.Call, names: Mapping[str, Any] | None) -> str | None:
    written = _dotted(call.func)
    name = None if written is None else _full_name(written, names)
    if written is not None and name is not None:
        found = _of_function(written, name)
        if found is not None:
            return found
    if isinstance(call.func, ast.Attribute) and not _is_module(name):
        return _METHODS.get(call.func.attr)
    return None


def _dotted(node: ast.AST) -> str | None:
    """`math.exp` of the tree of `math.exp`."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


def _full_name(written: str, names: Mapping[str, Any] | None) -> str | None:
    """The name with the module that it comes from: `numpy.exp` for `np.exp`; None for a name of the program's own."""
    first, _, rest = written.partition(".")
    if names is None or first not in names:
        return ".".join(filter(None, [_ALIASES.get(first, first), rest]))
    value = names[first]
    if isinstance(value, ModuleType):
        return ".".join(filter(None, [value.__name__, rest]))
    module = getattr(value, "__module__", None)
    if isinstance(module, str) and module.partition(".")[0] in (
        "math",
        "cmath",
        "numpy",
        "scipy",
        "statistics",
        "random",
    ):
        return ".".join(filter(None, [module, getattr(value, "__name__", first), rest]))
    return None


def _is_module(name: str | None) -> bool:
    return name is not None and name.partition(".")[0] in ("math", "cmath", "numpy", "scipy", "random", "bisect")


def _of_function(written: str, name: str) -> str | None:
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    root, _, rest = name.partition(".")
    if root == "random" or name.startswith("numpy.random."):
        return "Draw with a sample statement, as in ab.sample('u', dist.Uniform(0, x)), instead of " + written
    if root in ("math", "cmath", "statistics", "numpy") and rest:
        return f"Use jnp.{rest} instead of {written}" if _has(jnp, rest) else None
    if root == "scipy" and rest:
        return _of_scipy(written, rest)
    return None


def _of_scipy(written: str, rest: str) -> str:
    *modules, last = rest.split(".")
    for split in range(len(modules), 0, -1):
        # Where SciPy itself keeps its functions has an underscore: scipy.special._ufuncs.expit.
        path = [part for part in modules[:split] if not part.startswith("_")]
        try:
            module = importlib.import_module(".".join(["jax.scipy", *path]))
        except ImportError:
            continue
        inside = ".".join([*modules[split:], last])
        if _has(module, inside):
            return f"Use {module.__name__}.{inside} instead of {written}"
    return f"{written} has no counterpart in jax.scipy: write what it computes with jax.numpy to have it compiled"


def _has(module: Any, dotted: str) -> bool:
    for part in dotted.split("."):
        module = getattr(module, part, None)
        if module is None:
            return False
    return True


# What is said ---------------------------------------------------------------------------------------------------------


def interpreter_message(program: str, left: Departure, seconds_per_run: float | None) -> str:
    """What the log says of a program that is run by the interpreter."""
    pace = "" if seconds_per_run is None else f" One execution takes {duration(seconds_per_run)}."
    return (
        f"{program} runs in the interpreter, one Python run per point: {left.where} {left.reason}. {left.remedy}.{pace}"
    )


def hours_warning(
    seconds_per_run: float, evaluations: int, seconds_limit: float | None, where: str, remedy: str
) -> str | None:
    """What to say before a run of the interpreter that will take hours by its own rate; None if it will not.

    Example:
        >>> hours_warning(0.001, 1_000, None, "model.py:12", "Drop float()")
        >>> hours_warning(0.014, 1_000_000, None, "model.py:12", "Drop float()")[:60]
        'At 14 ms for one execution, 1,000,000 evaluations take 3.9 h'
    """
    total = seconds_per_run * evaluations
    if min(total, total if seconds_limit is None else seconds_limit) < _LONG:
        return None
    allowed = ""
    if seconds_limit is not None and seconds_limit < total:
        allowed = f" (the limit of {duration(seconds_limit)} allows {int(seconds_limit / seconds_per_run):,} of them)"
    return (
        f"At {duration(seconds_per_run)} for one execution, {evaluations:,} evaluations take {duration(total)}{allowed}"
        f", because the interpreter runs the program's Python for each of them: see {where}. {remedy}, or set a "
        "smaller budget or a limit in seconds"
    )


_UNITS = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("s", 1.0))


def duration(seconds: float) -> str:
    """A time in a unit that suits it: `14 ms`, `2.5 s`, `3.9 hours`."""
    for word, unit in _UNITS:
        if seconds >= 1.5 * unit:
            return f"{seconds / unit:.{0 if seconds >= 9.95 * unit else 1}f} {word}"
    return f"{1e3 * seconds:.2g} ms" if seconds < 0.0995 else f"{1e3 * seconds:.0f} ms"
