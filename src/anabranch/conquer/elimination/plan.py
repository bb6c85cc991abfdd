"""The steps of an elimination, batched and rolled up.

A step sums one variable out: it adds the factors that have it, over the variable and its neighbours, and takes the log
of the sum of exponentials over the variable; the result, a message, is a factor over the neighbours. Steps of the same
form that do not wait for each other are one batch, as for the points of a plate. Where the same batches follow each
other, each on the messages of the one before, as along a chain, they are one loop. So the number of operations is that
of the forms, not of the variables.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.conquer.elimination.order import Order

__all__ = ["Batch", "Link", "Loop", "Plan", "make_plan"]

_MAX_PERIOD, _MIN_TURNS = 8, 4
"""Batches of one turn of a loop, at most, and turns from which on there is one."""

Source = tuple[str, int]
"""A group of factors of the same sizes, ("factors", number), or the messages of a batch, ("messages", number)."""


@dataclass(frozen=True)
class Link:
    """Factors that are added in the steps of a batch.

    Attributes:
        source: where they are.
        axes: for each of their axes the position of its variable in the scope of the step.
        rows: which of the source they are.
        steps: the steps to which they belong.
    """

    source: Source
    axes: tuple[int, ...]
    rows: np.ndarray
    steps: np.ndarray


@dataclass(frozen=True)
class Batch:
    """Steps of the same form.

    Attributes:
        variables: the variable that each step sums out.
        neighbours: the others of its scope, which its message is over; a row for each step.
        sizes: the numbers of values, of the variable first.
        links: the factors.
    """

    variables: np.ndarray
    neighbours: np.ndarray
    sizes: tuple[int, ...]
    links: tuple[Link, ...]

    @property
    def numbers(self) -> int:
        """Numbers in the factors from which variables are summed out."""
        return len(self.variables) * int(np.prod(self.sizes))


@dataclass(frozen=True)
class Loop:
    """The batches from `start` on, `period` of them in each of several turns."""

    start: int
    period: int
    turns: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.turns


@dataclass(frozen=True)
class Plan:
    """The batches in an order in which they can be made, the loops among them, and the order of the variables."""

    batches: tuple[Batch, ...]
    loops: tuple[Loop, ...]
    order: Order

    @property
    def operations(self) -> int:
        """Batches that are written out: of a loop, those of one turn."""
        return len(self.batches) - sum(loop.period * (loop.turns - 1) for loop in self.loops)


@dataclass
class _Factor:
    source: Source
    row: int
    scope: tuple[int, ...]
    level: int


def make_plan(
    groups: Sequence[Sequence[tuple[int, ...]]],
    order: Order,
    sizes: Mapping[int, int],
    rows: Sequence[np.ndarray] | None = None,
) -> Plan:
    """The plan for groups of scopes; the scopes of a group have the same sizes in the same order.

    Scopes are sets of variables that the order sums out. `rows` has for each group the row of each scope in its tables,
    which scopes with equal factors share; without it every scope has its own.
    """
    having: dict[int, list[_Factor]] = defaultdict(list)
    for number, scopes in enumerate(groups):
        for row, scope in zip(range(len(scopes)) if rows is None else rows[number].tolist(), scopes, strict=True):
            factor = _Factor(("factors", number), row, scope, 0)
            for variable in scope:
                having[variable].append(factor)
    by_form: dict[Hashable, list[tuple[int, int, tuple[int, ...], list[_Factor]]]] = defaultdict(list)
    messages: list[_Factor] = []
    gone: set[int] = set()
    for step, (variable, others) in enumerate(zip(order.variables, order.neighbours, strict=True)):
        factors = [factor for factor in having.pop(variable, []) if id(factor) not in gone]
        gone.update(map(id, factors))
        level = 1 + max((factor.level for factor in factors), default=0)
        scope = (variable, *others)
        message = _Factor(("messages", -1), step, others, level)
        messages.append(message)
        for other in others:
            having[other].append(message)
        patterns = frozenset(tuple(map(scope.index, factor.scope)) for factor in factors)
        by_form[level, tuple(sizes[v] for v in scope), patterns].append((step, variable, others, factors))
    batches = []
    for number, (form, steps) in enumerate(sorted(by_form.items(), key=lambda item: item[0][0])):  # type: ignore[index]
        for row, (step, _, _, _) in enumerate(steps):
            messages[step].source, messages[step].row = ("messages", number), row
        batches.append(_batch(form[1], steps))  # type: ignore[index]
    return Plan(tuple(batches), tuple(_loops(batches)), order)


def _batch(sizes: tuple[int, ...], steps: list[tuple[int, int, tuple[int, ...], list[_Factor]]]) -> Batch:
    links: dict[tuple[Source, tuple[int, ...]], tuple[list[int], list[int]]] = {}
    for number, (_, variable, others, factors) in enumerate(steps):
        scope = (variable, *others)
        for factor in factors:
            rows, to = links.setdefault((factor.source, tuple(map(scope.index, factor.scope))), ([], []))
            rows.append(factor.row)
            to.append(number)
    neighbours = np.array([others for _, _, others, _ in steps], int).reshape(len(steps), -1)
    made = (Link(source, axes, np.array(rows), np.array(to)) for (source, axes), (rows, to) in links.items())
    return Batch(np.array([variable for _, variable, _, _ in steps]), neighbours, sizes, tuple(made))


# Loops ----------------------------------------------------------------------------------------------------------------


def _loops(batches: Sequence[Batch]) -> list[Loop]:
    """The runs of batches that repeat, from the first on the longest."""
    loops, start = [], 1
    while start < len(batches):
        possible = [_loop(batches, start, period) for period in range(1, _MAX_PERIOD + 1)]
        found = max(possible, key=lambda loop: (loop.period * loop.turns * (loop.turns >= _MIN_TURNS), -loop.period))
        if found.turns >= _MIN_TURNS:
            loops.append(found)
            start = found.stop
        else:
            start += 1
    return loops


def _loop(batches: Sequence[Batch], start: int, period: int) -> Loop:
    """The loop of this period that starts here. Its first turn reads the messages of the batches before it."""
    if start < period:
        return Loop(start, period, 0)
    turns = 0
    while start + (turns + 1) * period <= len(batches):
        here = start + turns * period
        alike = all(_form(batches, here + j, j, period) == _form(batches, start + j, j, period) for j in range(period))
        if not alike:
            break
        turns += 1
    return Loop(start, period, turns)


def _form(batches: Sequence[Batch], number: int, position: int, period: int) -> Hashable:
    """What must be the same for a batch at this position of every turn.

    Messages of this turn and the one before are told by how far back they are; other factors by their source.
    """
    batch = batches[number]
    links: list[Hashable] = []
    for link in batch.links:
        kind, source = link.source
        back = number - source
        if kind == "messages" and back <= position + period:
            links.append((back, link.axes, link.rows.tobytes(), link.steps.tobytes()))
        else:
            links.append((link.source, link.axes, len(link.rows), link.steps.tobytes()))
    return batch.sizes, len(batch.variables), tuple(links)
