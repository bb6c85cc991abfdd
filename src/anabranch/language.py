"""The four statements of a program: NumPyro's, with optional names and checked arguments.

A site without a name gets its address from its place in the program (see `anabranch.addresses`). Programs may mix these
statements with NumPyro's own.
"""

import contextlib
import numbers
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.typing import ArrayLike
from numpyro.distributions import Distribution

from anabranch import addresses
from anabranch.errors import OutsideProgram
from anabranch.label import Label, is_label
from anabranch.numpyro_internals import is_handled

__all__ = ["deterministic", "drawing_what_is_not_observed", "factor", "observe", "sample"]

_draws_none: ContextVar[bool] = ContextVar("anabranch_draws_none", default=False)


@contextlib.contextmanager
def drawing_what_is_not_observed() -> Iterator[None]:
    """Within this, `observe` with None for its value draws one: prediction (`combine.prediction`)."""
    token = _draws_none.set(True)
    try:
        yield
    finally:
        _draws_none.reset(token)


@overload
def sample(distribution: Distribution, /) -> Any: ...
@overload
def sample(name: str, distribution: Distribution, /) -> Any: ...
def sample(*arguments: Any) -> Any:
    """Draw a random value: `sample(distribution)` or `sample(name, distribution)`.

    >>> import numpyro.distributions as dist
    >>> from numpyro.handlers import seed, trace
    >>> def program():
    ...     return 0.5 if sample("fair", dist.Bernoulli(0.5)) else sample("bias", dist.Beta(2.0, 2.0))
    >>> sites = trace(seed(program, 0)).get_trace()
    >>> "bias" in sites or bool(sites["fair"]["value"])
    True
    """
    name, (distribution,) = _split("sample", arguments, "distribution")
    _check_distribution("sample", distribution)
    return numpyro.sample(_address("sample", name, sys._getframe(1)), distribution)


@overload
def observe(distribution: Distribution, value: ArrayLike, /) -> None: ...
@overload
def observe(name: str, distribution: Distribution, value: ArrayLike, /) -> None: ...
def observe(*arguments: Any) -> None:
    """Condition on a value having come from a distribution: `observe(distribution, value)`, with or without a name.

    >>> import numpyro.distributions as dist
    >>> from numpyro.handlers import seed, trace
    >>> def program(heads):
    ...     bias = sample("bias", dist.Beta(2.0, 2.0))
    ...     observe("heads", dist.Binomial(10, bias), heads)
    >>> trace(seed(program, 0)).get_trace(7)["heads"]["is_observed"]
    True
    """
    name, (distribution, value) = _split("observe", arguments, "distribution", "value")
    _check_distribution("observe", distribution)
    if value is not None or not _draws_none.get():
        # NumPyro would make the site latent if the value were None.
        value = _numbers("observe", "value", value)
    numpyro.sample(_address("observe", name, sys._getframe(1)), distribution, obs=value)


@overload
def factor(log_weight: ArrayLike, /) -> None: ...
@overload
def factor(name: str, log_weight: ArrayLike, /) -> None: ...
def factor(*arguments: Any) -> None:
    """Multiply the density of the execution by exp(log_weight): `factor(log_weight)`, with or without a name.

    >>> import numpyro.distributions as dist
    >>> from numpyro.handlers import seed, trace
    >>> def program():
    ...     x = sample("x", dist.Normal(0.0, 1.0))
    ...     factor("near one", -10.0 * (x - 1.0) ** 2)
    >>> list(trace(seed(program, 0)).get_trace())
    ['x', 'near one']
    """
    name, (log_weight,) = _split("factor", arguments, "log_weight")
    log_weight = _numbers("factor", "log_weight", log_weight)
    numpyro.factor(_address("factor", name, sys._getframe(1)), log_weight)


@overload
def deterministic(value: ArrayLike, /) -> Any: ...
@overload
def deterministic(name: str, value: ArrayLike | str | tuple[Any, ...] | None, /) -> Any: ...
def deterministic(*arguments: Any) -> Any:
    """Record a computed value next to the random ones and return it: `deterministic(value)`, with or without a name.

    The value is a number, an array, or a label: text, None, or a tuple of these with plain numbers between them. Text
    needs a name.

    >>> import numpyro.distributions as dist
    >>> from numpyro.handlers import seed, trace
    >>> def program():
    ...     x = sample("x", dist.Normal(0.0, 1.0))
    ...     return deterministic("square", x**2)
    >>> sites = trace(seed(program, 0)).get_trace()
    >>> bool(sites["square"]["value"] == sites["x"]["value"] ** 2)
    True
    >>> import anabranch as ab
    >>> def curve(y):
    ...     k = ab.sample("k", dist.Bernoulli(0.5))
    ...     ab.deterministic("formula", "x" if k else "x*sqrt(x)")
    ...     ab.observe("y", dist.Normal(4.0 if k else 8.0, 1.0), y)
    >>> ab.infer(curve, 6.2).probability("formula")
    {'x*sqrt(x)': 0.69 ± 0, 'x': 0.31 ± 0}
    """
    name, (value,) = _split("deterministic", arguments, "value")
    if not is_label(value):
        value = _numbers("deterministic", "value", value, or_label=True)
    # To NumPyro, a value of None is one that is still to be computed.
    given = Label(None) if value is None else value
    kept = numpyro.deterministic(_address("deterministic", name, sys._getframe(1)), given)
    return None if isinstance(kept, Label) else kept


def _split(statement: str, arguments: tuple[Any, ...], *expected: str) -> tuple[str | None, tuple[Any, ...]]:
    """The name, or None, and the other arguments, whose number is checked."""
    name, rest = None, arguments
    if arguments and isinstance(arguments[0], str):
        name, rest = arguments[0], arguments[1:]
    if len(rest) != len(expected):
        given = ", ".join(map(_described, arguments)) or "nothing"
        raise TypeError(f"{statement}([name,] {', '.join(expected)}) was given {given}")
    return name, rest


def _address(statement: str, name: str | None, frame: FrameType) -> str:
    # Without a handler NumPyro returns observations and factors without an error.
    if not is_handled():
        raise OutsideProgram(
            f"ab.{statement} was called outside a program",
            where=addresses.line_of(frame),
            remedy="Pass the function itself: ab.infer(program, data)",
        )
    return addresses.derive(statement, frame) if name is None else name


def _check_distribution(statement: str, given: Any) -> None:
    if isinstance(given, Distribution):
        return
    hint = ""
    if isinstance(given, type) and issubclass(given, Distribution):
        hint = f": write {given.__name__}(...) with its parameters"
    raise TypeError(
        f"{statement} expects a distribution of numpyro.distributions, such as Normal(0.0, 1.0), "
        f"and was given {_described(given)}{hint}"
    )


def _numbers(statement: str, role: str, given: Any, or_label: bool = False) -> Any:
    """A number or an array as it is; a list or a column of numbers as an array."""
    if isinstance(given, (numbers.Number, np.generic, np.ndarray, jax.Array)) or hasattr(given, "__jax_array__"):
        return given
    if isinstance(given, list | tuple) or (hasattr(given, "__array__") and not isinstance(given, type)):
        with contextlib.suppress(TypeError, ValueError):  # lists of unequal length, among others
            return _array(given)
    expected = (
        "a number, an array or text, or a tuple of text and plain numbers" if or_label else "a number or an array"
    )
    raise TypeError(f"{statement} expects {expected} as its {role} and was given {_described(given)}")


def _array(given: Any) -> Any:
    if any(isinstance(each, jax.Array) for each in jax.tree_util.tree_leaves(given)):
        return jnp.asarray(given)
    array = np.asarray(given)
    if array.dtype == object and hasattr(given, "to_numpy"):  # nullable integers of pandas
        array = given.to_numpy(float)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise TypeError
    return array


def _described(given: Any) -> str:
    """The type of the given value, and the value itself if it is short."""
    if given is None:
        return "None"
    if isinstance(given, type):
        return f"the class {given.__name__}"
    kind = type(given).__name__
    article = "an" if kind[0] in "aeiouAEIOU" else "a"
    return f"{article} {kind}" + (f" ({given!r})" if isinstance(given, (str, int, float)) else "")
