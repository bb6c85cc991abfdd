"""Everything that relies on NumPyro's private names, or on how its functions are written; no other file does.

- `primitives._PYRO_STACK`: whether a handler is active, without which a statement has no effect.
- `biject_to._registry`: whether a support has a bijection; asking `biject_to` itself fails without saying why.
- `_mask`, `_batch_shape`, `_validate_args`: attributes of distributions without a public name that can be set.
- The log probability of an impossible value, which is not the same number in all versions.
- The message that `contrib.control_flow` sends, and the form of its answer.
- The code of functions, and the names of their local variables: a message does not say which function sent it.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import jax.numpy as jnp
import numpyro
from jax.tree_util import tree_leaves, tree_map
from numpyro import handlers, primitives
from numpyro.contrib.control_flow.cond import cond_wrapper
from numpyro.distributions import Independent, biject_to
from numpyro.ops.pytree import PytreeTrace
from numpyro.primitives import Messenger

__all__ = [
    "BATCH_SHAPE", "ONE_AT_A_TIME", "VALIDATE_ARGS", "caller_of_prng_key", "control_flow", "empty_plate",
    "has_bijection", "is_handled", "locals_of_obs_mask", "log_prob_of", "mask_of",
]  # fmt: skip

BATCH_SHAPE, VALIDATE_ARGS = "_batch_shape", "_validate_args"
"""The attributes of a distribution that hold its batch shape, and whether its values are checked."""

ONE_AT_A_TIME = threading.RLock()
"""Held by a thread that records a program, and by one that records a density.

NumPyro keeps its handlers in one stack for the whole process: two recordings at once would see each other's sites. And
it checks values or not, by a setting of the whole process: not while a program is recorded, and in densities unless the
user has turned it off."""

_ZERO_IS_FINITE = tuple(map(int, numpyro.__version__.split(".")[:2])) < (0, 22)
"""Before 0.22, a category of probability zero has the lowest float for its logarithm; since then, minus infinity."""

_PLATE, _PRNG_KEY = primitives.plate.__init__.__code__, numpyro.prng_key.__code__
_UNCONDITION, _BLOCK = handlers.uncondition.process_message.__code__, handlers.block.process_message.__code__
_OBS_MASK = primitives._masked_observe.__code__


def is_handled() -> bool:
    """Whether a handler is active."""
    return bool(primitives._PYRO_STACK)


def has_bijection(support: Any) -> bool:
    """Whether NumPyro has a bijection from the real numbers to a support."""
    return type(support) in biject_to._registry


def mask_of(distribution: Any) -> Any:
    """The mask of a `MaskedDistribution`."""
    return distribution._mask


def log_prob_of(distribution: Any, value: Any) -> Any:
    """The log density at a value as the distribution gives it; minus infinity where a probability is zero."""
    if _ZERO_IS_FINITE and isinstance(distribution, Independent):  # before the sum, which can then be taken apart
        parts = log_prob_of(distribution.base_dist, value)
        return jnp.sum(parts, axis=tuple(range(-distribution.reinterpreted_batch_ndims, 0)))
    terms = distribution.log_prob(value)
    if _ZERO_IS_FINITE and getattr(distribution.support, "is_discrete", False):
        terms = jnp.where(terms <= 0.5 * jnp.finfo(jnp.result_type(terms, float)).min, -jnp.inf, terms)
    return terms


def empty_plate(frame: FrameType | None) -> str | None:
    """The name of the plate that this frame makes, if it is empty: NumPyro asserts that it is not."""
    if frame is None or frame.f_code is not _PLATE or int(frame.f_locals["size"]) != 0:
        return None
    return str(frame.f_locals["name"])


def caller_of_prng_key() -> tuple[str, str | None]:
    """Who asks for a key, from within the message: "uncondition", "block" or "program"; and for `block`, the site."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _PRNG_KEY:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    if caller is not None and caller.f_code is _UNCONDITION:
        return "uncondition", None
    if caller is not None and caller.f_code is _BLOCK:
        return "block", caller.f_locals["msg"].get("name")
    return "program", None


class _Indexed(Messenger):
    """Gives the statements in one turn of a loop names of their own: `z[3]`."""

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn = turn

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] in ("sample", "deterministic"):
            msg["name"] = f"{msg['name']}[{self.turn}]"


def control_flow(msg: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What runs a `scan` or `cond` of NumPyro as a Python loop or branch, with its arguments; None if it has values
    given from outside, by the names of whole loops."""
    if msg["kwargs"].get("substitute_stack"):
        return None
    return _branch if msg["fn"] is cond_wrapper else _loop


def _branch(pred: Any, true_fun: Any, false_fun: Any, operand: Any, **_: Any) -> tuple[Any, Any]:
    return (true_fun if pred else false_fun)(operand), PytreeTrace({})


def _loop(f: Any, init: Any, xs: Any, length: int | None = None, reverse: bool = False, **_: Any) -> tuple[Any, Any]:
    length = len(tree_leaves(xs)[0]) if length is None else length
    carry, ys = init, {}
    for turn in reversed(range(length)) if reverse else range(length):
        with _Indexed(turn):
            carry, ys[turn] = f(carry, tree_map(lambda x, turn=turn: x[turn], xs))
    stacked = tree_map(lambda *each: jnp.stack(list(map(jnp.asarray, each))), *(ys[turn] for turn in range(length)))
    return (length, None, carry), (PytreeTrace({}), stacked)


def locals_of_obs_mask(ends_at: Callable[[FrameType], bool]) -> Mapping[str, Any] | None:
    """The local variables of the call that makes two sites of a statement with `obs_mask`, if one is under way.

    They are `fn`, `obs` and `obs_mask`, and `observed` once the observed site is made. The search goes outwards to the
    first frame at which it ends.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not ends_at(frame):
        if frame.f_code is _OBS_MASK:
            return frame.f_locals
        frame = frame.f_back
    return None
