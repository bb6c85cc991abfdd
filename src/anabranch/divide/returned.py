"""Functions that a program returns, as functions of one execution.

Such a function reads random values of the run that made it. Where many executions share a run, these are traced: no
number is known. So the program runs once more, with the values of one execution, and the function is called under the
trace of that run, in which every value is known.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jax.tree_util import tree_leaves, tree_map

from anabranch import errors
from anabranch.divide.interpret import concrete, interpret, replay
from anabranch.divide.recording import Program, Recording

__all__ = ["ReturnedFunction", "has_functions", "returned"]


class ReturnedFunction:
    """A function that the program returned in one execution; its results are NumPy arrays, in double precision."""

    def __init__(self, run: Recording, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self._run, self._function = run, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._run.trace.current():
            return concrete(self._function(*args, **kwargs))

    def __repr__(self) -> str:
        return f"<{getattr(self, '__qualname__', 'function')} of one execution>"


def has_functions(tree: Any) -> bool:
    """Whether a pytree has a function among its leaves."""
    return any(map(callable, tree_leaves(tree)))


def returned(program: Program, values: Mapping[str, np.ndarray], where: str) -> Any:
    """What the program returns in the execution with these values, with functions that can be called."""
    try:
        run = interpret(program, replay(values))
    except KeyError as error:
        raise errors.NotAFunction(
            f"{program.name} met the site {error} when it ran again with the values of a draw of the path ({where})",
            remedy="Make it depend on its arguments and random variables alone, or return values in place of functions",
        ) from error

    def callable_leaf(leaf: Any) -> Any:
        return ReturnedFunction(run, leaf) if callable(leaf) else leaf

    return tree_map(callable_leaf, concrete(run.result))
