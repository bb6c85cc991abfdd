"""What to write instead of the line at which a program leaves JAX, and how long a run without it will take.

Pure functions of the source: the expression that asked for a random real, the line that it stands in, and the names
that are visible there. What cannot be told from these gets the general advice.
"""

import ast
import contextlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import FrameType, ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np

from anabranch.divide.source_location import question, source_line, where

__all__ = ["GENERAL", "Departure", "departure", "hours_warning", "interpreter_message", "remedy", "remedy_of_branch"]

GENERAL = "Write it with jax.numpy to have it compiled"

_LONG = 3600.0
"""Seconds from which on a run is announced to be long."""

_ALIASES = {"np": "numpy", "sp": "scipy", "special": "scipy.special", "stats": "scipy.stats", "pd": "pandas"}
"""What short names stand for where the program's own names are not known."""

_COUNTERPARTS = {
    "round": "jnp.round", "abs": "jnp.abs", "sum": "jnp.sum of an array",
    "sorted": "jnp.sort of an array (jnp.stack makes one of a list)",
    "min": "jnp.minimum for two values, or jnp.min of an array,",
    "max": "jnp.maximum for two values, or jnp.max of an array,",
    "math.lgamma": "jax.scipy.special.gammaln", "math.gamma": "jax.scipy.special.gamma",
    "math.erf": "jax.scipy.special.erf", "math.erfc": "jax.scipy.special.erfc",
    "math.fsum": "jnp.sum of an array", "math.fabs": "jnp.abs", "math.dist": "jnp.linalg.norm of the difference",
    "math.comb": "jax.scipy.special.gammaln for the logarithm of a binomial coefficient", "cmath.phase": "jnp.angle",
    "statistics.fmean": "jnp.mean", "statistics.stdev": "jnp.std(x, ddof=1)", "statistics.pstdev": "jnp.std",
    "statistics.variance": "jnp.var(x, ddof=1)", "statistics.pvariance": "jnp.var",
    "bisect.bisect": "jnp.searchsorted", "bisect.bisect_left": "jnp.searchsorted",
    "bisect.bisect_right": "jnp.searchsorted(..., side='right')",
}  # fmt: skip
"""What to use instead of functions that have another name, or no namesake, in jax.numpy."""
_NO_TEXT = "Do not make a text of a random real in the program: show it with jax.debug.print, or from the posterior"
_OTHERWISE = {name: f"Use {counterpart} instead of {name}" for name, counterpart in _COUNTERPARTS.items()} | {
    "float": "Drop float() and keep the value as it is: it is an array of jax.numpy, and takes part in its arithmetic",
    "complex": "Use x + 1j * y, which keeps an array, instead of complex(x, y)",
    "int": "Use jnp.floor(x), which stays a random real, instead of int(x)",
    **dict.fromkeys(("str", "repr", "format", "print"), _NO_TEXT),
    "numpy.float64": "Drop np.float64() and keep the value as it is: it is an array of jax.numpy",
    "numpy.array": "Use jnp.asarray, or jnp.stack for a list of random values, instead of np.array",
    "numpy.asarray": "Use jnp.asarray, or jnp.stack for a list of random values, instead of np.asarray",
}
_MODULES = ("math", "cmath", "numpy", "scipy", "random")
_METHODS = {
    "item": "Drop .item() and keep the array",
    "tolist": "Drop .tolist() and keep the array: its entries are x[0], x[1], and so on",
    "sort": "Use jnp.sort of an array (jnp.stack makes one of a list) instead of .sort()",
    "format": _NO_TEXT,
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

    The line that it stands in is looked at if the expression says nothing; `names` are visible there.
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
    text, before = source.strip(), "if True: pass\n"
    for attempt in (text, f"{text} pass", before + text, f"{before}{text} pass", text.rstrip(":"), f"{text})"):
        with contextlib.suppress(SyntaxError, ValueError):
            return ast.parse(attempt)
    return None


def _of_node(node: ast.AST, names: Mapping[str, Any] | None) -> str | None:
    match node:
        case ast.JoinedStr() | ast.BinOp(op=ast.Mod(), left=ast.Constant(value=str())):
            return _NO_TEXT
        case ast.Compare(ops=ops) if any(isinstance(op, ast.In | ast.NotIn) for op in ops):
            return "Use jnp.isin(x, values) instead of asking whether a random real is in a list"
        case ast.Call(func=func):
            written = _dotted(func)
            name = _full_name(written, names) if written else ""
            if found := _of_function(written, name):
                return found
            if isinstance(func, ast.Attribute) and name.partition(".")[0] not in (*_MODULES, "bisect"):
                return _METHODS.get(func.attr)
    return None


def _dotted(node: ast.AST) -> str:
    """`math.exp` of the tree of `math.exp`; empty where there is something else in it than names."""
    if isinstance(node, ast.Name):
        return node.id
    before = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before else ""  # type: ignore[attr-defined]


def _full_name(written: str, names: Mapping[str, Any] | None) -> str:
    """The name with the module that it comes from: `numpy.exp` for `np.exp`; empty for one of the program's own."""
    first, _, rest = written.partition(".")
    if names is None or first not in names:
        return ".".join(filter(None, [_ALIASES.get(first, first), rest]))
    value = names[first]
    if isinstance(value, ModuleType):
        return ".".join(filter(None, [value.__name__, rest]))
    module = getattr(value, "__module__", None)
    if module is None and getattr(np, getattr(value, "__name__", ""), None) is value:
        module = "numpy"  # which its functions do not say in older versions
    if isinstance(module, str) and module.partition(".")[0] in (*_MODULES, "statistics"):
        return ".".join(filter(None, [module, getattr(value, "__name__", first), rest]))
    return ""


def _of_function(written: str, name: str) -> str | None:
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    root, _, rest = name.partition(".")
    if root == "random" or name.startswith("numpy.random."):
        return "Draw with a sample statement, as in ab.sample('u', dist.Uniform(0, x)), instead of " + written
    if root in ("math", "cmath", "statistics", "numpy") and rest:
        return f"Use jnp.{rest} instead of {written}" if _has(jnp, rest) else None
    return _of_scipy(written, rest) if root == "scipy" and rest else None


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


def interpreter_message(program: str, at: Departure, seconds_per_run: float | None) -> str:
    """What the log says of a program that is run by the interpreter."""
    pace = "" if seconds_per_run is None else f" One execution takes {duration(seconds_per_run)}."
    return f"{program} runs in the interpreter, one Python run per point: {at.where} {at.reason}. {at.remedy}.{pace}"


def hours_warning(
    seconds_per_run: float, evaluations: int, seconds_limit: float | None, where: str, remedy: str
) -> str | None:
    """What to say before a run of the interpreter that will take hours by its own rate; None if it will not."""
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
