"""Rules for settings and arguments.

A rule returns the value in its plain form (an `int`, a `float`, a `bool`), or raises `BadSetting` with one sentence:
the allowed values, and the given one.
"""

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from anabranch.errors import BadSetting

__all__ = [
    "Rule", "check", "finite", "flag", "function", "functions", "instance", "names", "numeric", "one_of", "positive",
    "seconds", "seed", "several", "share", "site_choice", "site_values", "whole",
]  # fmt: skip

_LARGEST = 2**63 - 1
_EXTREME = 1e100
"""Larger numbers are replaced by it, and positive ones below its inverse by the inverse: squares stay finite."""
_SHOWN = 80
"""Characters of a refused value in the message."""


class _Refused(Exception):
    """A value outside a rule."""


@dataclass(frozen=True)
class Rule:
    """The allowed values in words, and a function that returns the plain form of a value or raises `_Refused`."""

    words: str
    plain: Callable[[Any], Any]

    def __call__(self, name: str, value: Any) -> Any:
        try:
            return self.plain(value)
        except _Refused:
            raise BadSetting(f"{name} must be {self.words}; got {_shown(value)}") from None

    def or_none(self) -> Self:
        """The same rule, which also allows None."""
        plain = self.plain
        return replace(self, words=f"{self.words}, or None", plain=lambda x: None if x is None else plain(x))


def check(settings: Any, **rules: Rule) -> None:
    """Check fields of a frozen dataclass by these rules, and replace the values by their plain forms."""
    for name, rule in rules.items():
        object.__setattr__(settings, name, rule(name, getattr(settings, name)))


def whole(minimum: int = 0, maximum: float = _LARGEST) -> Rule:
    """A whole number, not a boolean; by default one that 64 bits can hold."""

    def plain(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not minimum <= int(value) <= maximum:
            raise _Refused
        return int(value)

    bound = f" and at most {maximum}" if maximum != _LARGEST else ""
    return Rule(f"a whole number, at least {minimum}{bound}", plain)


def seed() -> Rule:
    """A whole number of any size, not negative."""
    return replace(whole(0, math.inf), words="a whole number, at least 0")


def finite(minimum: float = -math.inf) -> Rule:
    """A number that is neither infinite nor NaN."""
    words = "a finite number" + (f", at least {minimum:g}" if minimum > -math.inf else "")
    return _real(words, lambda x: math.isfinite(x) and x >= minimum, lambda x: min(max(x, -_EXTREME), _EXTREME))


def positive() -> Rule:
    """A number above zero."""
    return _real("a positive number", lambda x: 0 < x < math.inf, lambda x: min(max(x, 1 / _EXTREME), _EXTREME))


def seconds() -> Rule:
    """A time, or None; an infinite time becomes None."""
    rule = positive().or_none()
    return replace(rule, plain=lambda x: rule.plain(None if isinstance(x, numbers.Real) and x == math.inf else x))


def share(*, zero: bool = True, one: bool = True) -> Rule:
    """A number between 0 and 1, with or without the end points."""
    words = f"a share, {'from' if zero else 'above'} 0 {'to 1' if one else 'and below 1'}"
    return _real(words, lambda x: 0 <= x <= 1 and (zero or x > 0) and (one or x < 1), lambda x: x)


def _real(words: str, fits: Callable[[float], bool], plain: Callable[[float], float]) -> Rule:
    def checked(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise _Refused
        try:
            number = float(value)
        except OverflowError:
            raise _Refused from None
        if not fits(number):
            raise _Refused
        return plain(number)

    return Rule(words, checked)


def flag() -> Rule:
    """True or False."""
    rule = instance((bool, np.bool_), "True or False")
    return replace(rule, plain=lambda value: bool(rule.plain(value)))


def one_of(*choices: str) -> Rule:
    """One of some words."""
    return _that(f"one of {', '.join(choices)}", lambda value: isinstance(value, str) and value in choices)


def function(of: str = "", *, or_name: bool = False) -> Rule:
    """A callable, or maybe a name."""
    return _that(f"a function {of}".rstrip(), lambda value: callable(value) or (or_name and isinstance(value, str)))


def functions(*needed: str, example: str) -> Rule:
    """An object with these methods; not its class."""

    def fits(value: Any) -> bool:
        return not isinstance(value, type) and all(callable(getattr(value, each, None)) for each in needed)

    return _that(f"an object with {', '.join(needed)}, such as {example}", fits)


def instance(kind: type | tuple[type, ...], words: str) -> Rule:
    """An instance of a class."""
    return _that(words, lambda value: isinstance(value, kind))


def numeric() -> Rule:
    """An array of finite numbers, or anything that NumPy converts to one."""

    def plain(value: Any) -> np.ndarray:
        try:
            array = np.asarray(value)
        except Exception:
            raise _Refused from None
        if array.dtype.kind not in "iuf" or not array.ndim or not np.isfinite(array).all():
            raise _Refused
        return array.astype(np.float64)

    return Rule("an array of finite numbers", plain)


def names() -> Rule:
    """Several names of sites."""
    rule = _that("a list of names", lambda given: all(isinstance(each, str) for each in given))
    return replace(rule, plain=lambda value: rule.plain(_items(value)))


def several(kind: type, words: str) -> Rule:
    """One or several instances of a class."""
    rule = _that(words, lambda given: given and all(isinstance(x, kind) and not isinstance(x, type) for x in given))
    return replace(rule, plain=lambda value: rule.plain((value,) if isinstance(value, kind) else _items(value)))


def site_choice() -> Rule:
    """Names of sites, each with True or False; a name alone means True."""

    def plain(value: Any) -> dict[str, bool]:
        if isinstance(value, Mapping):
            return {each: flag().plain(value[each]) for each in names().plain(tuple(value))}
        return dict.fromkeys((value,) if isinstance(value, str) else names().plain(value), True)

    return Rule("a list of names of sites, or a mapping from such names to True or False", plain)


def site_values() -> Rule:
    """One or several mappings from names of sites to values: numbers, or lists of numbers."""

    def number(value: Any) -> Any:
        try:
            array = np.asarray(value)
        except Exception:
            raise _Refused from None
        if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
            raise _Refused
        return array.tolist()

    def values(given: Any) -> dict[str, Any]:
        if not isinstance(given, Mapping) or not given:
            raise _Refused
        return {name: number(given[name]) for name in names().plain(tuple(given))}

    def plain(value: Any) -> tuple[dict[str, Any], ...]:
        return tuple(map(values, (value,) if isinstance(value, Mapping) else _items(value)))

    return Rule('a mapping from names of sites to their values, such as {"K": 5}, or several', plain)


def _items(value: Any) -> tuple[Any, ...]:
    """The items of a collection; a string or a mapping is refused."""
    if isinstance(value, str | bytes | Mapping):
        raise _Refused
    try:
        return tuple(value)
    except TypeError:
        raise _Refused from None


def _that(words: str, fits: Callable[[Any], bool]) -> Rule:
    def plain(value: Any) -> Any:
        if not fits(value):
            raise _Refused
        return value

    return Rule(words, plain)


def _shown(value: Any) -> str:
    """The given value, in at most `_SHOWN` characters."""
    if isinstance(value, type):
        return f"the class {value.__name__}: write {value.__name__}()"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a number of thousands of digits, an object of the user's
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
