"""Work on many rows of which others may do a share: points of a path, or executions by the interpreter.

What a row gives does not depend on who computes it, nor on the rows beside it, so that the clock may decide who does.
Compiled code gives other last bits for another size of its blocks; such work is divided between whole blocks only. Who
helps comes from the context (`helped`), as the limits of a run do: whoever asks computes one share, the helpers the
others, and what a helper does not return is computed by whoever asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from anabranch.divide.path import Path
    from anabranch.divide.recording import Choices, Program

__all__ = ["WORTH_SHARING", "Held", "Helpers", "Order", "Speed", "helped", "is_helped", "shared"]

WORTH_SHARING = 0.05
"""Seconds of work from which on others are asked, which takes some milliseconds."""
R = TypeVar("R", covariant=True)


class Held(Protocol):
    """What a helper keeps from order to order: the program, and paths of it."""

    @property
    def program(self) -> Program: ...

    def path(self, choices: Sequence[Choices]) -> Path:
        """The path with these decisions, made once."""


class Order(Protocol[R]):
    """A share of some work as plain data, which travels to a helper."""

    def done(self, held: Held) -> R:
        """Do it there."""


class Helpers(Protocol):
    """Those who may do a share of the work."""

    def reserve(self, program: Program) -> int:
        """How many can help at this moment; they wait for `begin`, if there are any."""

    def begin(self, program: Program, orders: Sequence[Order[Any]]) -> Callable[[], list[Any]]:
        """Let those reserved fill the orders, one each; the result waits for what they found, None for what failed."""


_helpers: ContextVar[Helpers | None] = ContextVar("anabranch_helpers", default=None)


@contextmanager
def helped(helpers: Helpers | None) -> Iterator[None]:
    """Within this, these do a share of large work; None: nobody does."""
    token = _helpers.set(helpers)
    try:
        yield
    finally:
        _helpers.reset(token)


def is_helped() -> bool:
    """Whether others may do a share."""
    return _helpers.get() is not None


class Speed:
    """How long a row takes, measured over those computed in this process; it decides nothing but who helps."""

    def __init__(self, least: float = 0.0) -> None:
        self._seconds, self._rows, self._least = 0.0, 0, least

    def seconds(self, rows: int) -> float:
        """What so many rows take; zero before enough were computed for a helper to begin, as where it must compile."""
        return rows * self._seconds / self._rows if self._rows and self._seconds >= self._least else 0.0

    @contextmanager
    def measured(self, rows: int) -> Iterator[None]:
        """Within this, so many rows are computed."""
        began = time.perf_counter()
        yield
        self._seconds, self._rows = self._seconds + time.perf_counter() - began, self._rows + rows


def shared(
    program: Program,
    rows: int,
    unit: int,
    seconds: float,
    here: Callable[[slice], R],
    order: Callable[[slice], Order[R]],
) -> list[R]:
    """The results for all rows, in parts that follow each other.

    Args:
        program: what is run.
        rows: how many there are.
        unit: rows that belong together.
        seconds: that all of them take in one process.
        here: computes some rows in this process.
        order: lets a helper compute them.
    """
    helpers, everything = _helpers.get(), slice(0, rows)
    if helpers is None or rows <= unit or seconds < WORTH_SHARING:
        return [here(everything)]
    units = -(-rows // unit)
    parts = min(1 + helpers.reserve(program), units)
    if parts == 1:
        return [here(everything)]
    ends = [min(unit * (units * k // parts), rows) for k in range(parts + 1)]
    own, *others = [slice(*each) for each in pairwise(ends)]
    collect = helpers.begin(program, [order(each) for each in others])
    with helped(None):
        first = here(own)
    found = collect()
    return [first, *(here(each) if part is None else part for each, part in zip(others, found, strict=True))]
