"""The turns of a loop as one `lax.scan`.

A program that computes each step of a time series from the one before it records every turn of its loop, and XLA's time
to compile grows with the number of operations. Three things are done with the steps of such a density:

    slices of one array at different places become one operation with the place as an argument, so that they are packed;
    what the turns compute for themselves, such as the log density of an observation, is packed over the turns: these
    steps have the same distance to the end of the graph, as the steps of the recurrence do not;
    what is left of the recurrence is a sequence in which equations of the same form come again after a period.

A turn reads what earlier turns have computed (the carry of the scan), what was computed before the loop (the same value
in every turn, or another one in each, which are stacked), and constants. Whatever is read later is stacked again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from anabranch.divide.graph import Equation, Graph, Node
from anabranch.divide.packing import MIN_LANES, Argument, Forms, Lanes, Pack, packed, plan

__all__ = ["Roll", "rolled_plan"]

_MIN_SAVED, _MIN_TURNS, _MAX_PERIOD = 64, 8, 400
"""Operations that rolling must save, turns that a loop must have, and operations that a turn may have at most."""


class _Carried(NamedTuple):
    """An output of a turn, by its position, that a later turn reads, and what the first turns read instead."""

    position: int
    initial: tuple[Any, ...]  # in the turns -1, -2, …: as many as turns lie between


class _Read(NamedTuple):
    """Where an input of a turn comes from: an own output, a carried one, a stacked or a common value."""

    kind: str
    number: int


@dataclass(eq=False)
class Roll:
    """Equations of the same form, turn by turn; `wanted` are the nodes that are read outside."""

    turns: list[list[Equation]]
    wanted: Collection[Node]

    @property
    def outputs(self) -> list[list[Node]]:
        """The nodes that each turn computes."""
        return [[node for equation in turn for node in equation.outputs] for turn in self.turns]

    def run_in(self, lanes: Lanes) -> None:
        """Compute the turns by a scan."""
        outputs, parts = self.outputs, _Parts(self)
        wanted = [p for p in range(len(outputs[0])) if any(turn[p] in self.wanted for turn in outputs)]
        only_last = {p for p in wanted if not any(turn[p] in self.wanted for turn in outputs[:-1])}
        final = {carried.position: number for number, carried in reversed(list(enumerate(parts.carried)))}
        stacked = [p for p in wanted if p not in only_last or p not in final]
        common = [lanes[x] for x in parts.common]

        def turn(carry: Any, own: Sequence[Any]) -> tuple[Any, list[Any]]:
            values: list[Any] = []
            sources = {"common": common, "carried": [each[-1] for each in carry], "stacked": own, "own": values}
            for equation, reads in zip(self.turns[-1], parts.reads, strict=True):
                inputs = [sources[kind][number] for kind, number in reads]
                results = equation.primitive.bind(*inputs, **equation.params)
                values.extend(results if equation.primitive.multiple_results else [results])
            carry = [[_strong(values[c.position]), *old[:-1]] for c, old in zip(parts.carried, carry, strict=True)]
            return carry, [values[position] for position in stacked]

        initial = [[_strong(lanes[x]) for x in carried.initial] for carried in parts.carried]
        own = [_together(lanes, column) for column in parts.stacked]
        carry, arrays = lax.scan(turn, initial, own, length=len(self.turns))
        for position, array in zip(stacked, arrays, strict=True):
            lanes.packed.update({nodes[position]: (array, t) for t, nodes in enumerate(outputs)})
        for position in only_last & final.keys():
            lanes.values[outputs[-1][position]] = carry[final[position]][0]


def _strong(value: Any) -> Any:
    """A value whose dtype is no suggestion: what a scan carries keeps its type."""
    value = jnp.asarray(value)
    return lax.convert_element_type(value, value.dtype)


def _together(lanes: Lanes, column: Sequence[Any]) -> Any:
    """An input that differs between the turns, as one array."""
    if isinstance(column[0], Argument):
        return lanes.arguments[column[0].number]
    return lanes.together(column)


class _Parts:
    """What the turns of a loop read, as the last of them shows."""

    def __init__(self, roll: Roll) -> None:
        self.carried: list[_Carried] = []
        self.stacked: list[Sequence[Any]] = []
        self.common: list[Any] = []
        self._turns = roll.turns
        self._places = _places(roll.turns)
        self.reads = [
            [self._read(place, position, x) for position, x in enumerate(equation.inputs)]
            for place, equation in enumerate(roll.turns[-1])
        ]

    def _read(self, place: int, position: int, x: Any) -> _Read:
        column = [turn[place].inputs[position] for turn in self._turns]
        turn, output = self._places.get(x, (-1, 0)) if isinstance(x, Node) else (-1, 0)
        if turn == len(self._turns) - 1:
            return _Read("own", output)
        if turn >= 0:
            lag = len(self._turns) - 1 - turn
            return _added("carried", self.carried, _Carried(output, tuple(reversed(column[:lag]))))
        if all(each is x or (isinstance(x, Node | Argument) and each == x) for each in column):
            return _added("common", self.common, x)
        if not isinstance(x, Node | Argument):  # numbers that are the same to the bit
            return _added("common", self.common, x)
        return _added("stacked", self.stacked, column)


def _added(kind: str, known: list[Any], new: Any) -> _Read:
    known.append(new)
    return _Read(kind, len(known) - 1)


def _places(turns: Sequence[Sequence[Equation]]) -> dict[Node, tuple[int, int]]:
    """For each node that is computed in a loop, the turn, and its position among the outputs of the turn."""
    out = {}
    for t, turn in enumerate(turns):
        nodes = [node for equation in turn for node in equation.outputs]
        out.update({node: (t, position) for position, node in enumerate(nodes)})
    return out


def rolled_plan(graph: Graph, steps: Sequence[Equation], ends: Collection[Node]) -> list[Equation | Pack | Roll]:
    """The steps packed and, where that saves many operations, rolled; `ends` are the nodes that are asked for."""
    forms = Forms(graph)
    planned = plan(forms, steps)
    if sum(not isinstance(step, list) for step in planned) < _MIN_SAVED:
        return list(planned)
    early, late = _parted(forms, list(_with_places(steps)))
    first = plan(forms, early)
    later = [step for group in late for step in packed(group)]
    read = {x for step in [*first, *later] for x in _inputs(step) if isinstance(x, Node)} if late else set()
    rolled = list(_rolled(forms, first, {*ends, *read}))
    out: list[Equation | Pack | Roll] = [*rolled, *later]
    return out if _operations(out) <= len(planned) - _MIN_SAVED else list(planned)


def _operations(steps: Sequence[Equation | Pack | Roll]) -> int:
    """How many operations XLA is given."""
    return sum(len(step.turns[0]) if isinstance(step, Roll) else 1 for step in steps)


def _inputs(step: Equation | Pack) -> Iterator[Any]:
    for equation in step if isinstance(step, list) else [step]:
        yield from equation.inputs


def _with_places(steps: Sequence[Equation]) -> Iterator[Equation]:
    """The steps, of which slices of one array at many places have the place as an argument."""

    def sizes(step: Equation) -> Hashable:
        ends = zip(step.params["start_indices"], step.params["limit_indices"], strict=True)
        return step.inputs[0], tuple(stop - start for start, stop in ends)

    slices = [s for s in steps if s.primitive is lax.slice_p and s.params["strides"] is None and _reads_node(s)]
    many = Counter(map(sizes, slices))
    chosen = {id(step) for step in slices if many[sizes(step)] >= MIN_LANES}
    for step in steps:
        if id(step) not in chosen:
            yield step
            continue
        starts = [np.asarray(start, np.int64) for start in step.params["start_indices"]]
        params = {"slice_sizes": sizes(step)[1]}  # type: ignore[index]
        yield Equation(lax.dynamic_slice_p, params, [step.inputs[0], *starts], step.outputs)


def _reads_node(step: Equation) -> bool:
    return isinstance(step.inputs[0], Node)


def _parted(forms: Forms, steps: Sequence[Equation]) -> tuple[list[Equation], list[Pack]]:
    """The steps of the recurrence and all before it; and the others, by their distance to the end, in groups."""
    height: dict[Node, int] = defaultdict(int)
    levels: dict[int, Hashable] = {}
    for step in reversed(steps):
        level = 1 + max(height[node] for node in step.outputs)
        levels[id(step)] = level, forms(step)
        for x in step.inputs:
            if isinstance(x, Node):
                height[x] = max(height[x], level)
    sizes = Counter(levels.values())
    early: set[Node] = set()  # nodes that an early step reads
    groups: dict[Hashable, Pack] = defaultdict(list)
    before: list[Equation] = []
    for step in reversed(steps):
        if sizes[levels[id(step)]] >= MIN_LANES and early.isdisjoint(step.outputs):
            groups[levels[id(step)]].append(step)
        else:
            before.append(step)
            early.update(x for x in step.inputs if isinstance(x, Node))
    ordered = sorted(groups.items(), key=lambda item: -item[0][0])  # type: ignore[index]
    return before[::-1], [group[::-1] for _, group in ordered]


def _rolled(
    forms: Forms, steps: Sequence[Equation | Pack], wanted: Collection[Node]
) -> Iterator[Equation | Pack | Roll]:
    """The steps with their loops rolled, the longest first."""
    found = _loop(forms, steps)
    if found is None:
        yield from steps
        return
    start, turns = found
    stop = start + len(turns) * len(turns[0])
    after = {x for step in steps[stop:] for x in _inputs(step) if isinstance(x, Node)}
    yield from _rolled(forms, steps[:start], wanted)
    yield Roll(turns, {*wanted, *after})
    yield from _rolled(forms, steps[stop:], wanted)


def _loop(forms: Forms, steps: Sequence[Equation | Pack]) -> tuple[int, list[list[Equation]]] | None:
    """Where the loop begins that saves most operations, and its turns; None if none saves enough."""
    # A pack is never a part of a loop: it has a number of its own.
    keys = np.array([-1 - i if isinstance(step, list) else forms(step) for i, step in enumerate(steps)], int)
    best = None
    for period in range(1, min(_MAX_PERIOD, len(keys) // _MIN_TURNS) + 1):
        start, length = _longest(keys[:-period] == keys[period:])
        saved = (length // period) * period
        if saved >= _MIN_SAVED and (best is None or saved > best[0]):
            best = saved, start, period, length // period + 1
    if best is None:
        return None
    _, start, period, n = best
    turns = [list(steps[start + t * period : start + (t + 1) * period]) for t in range(n)]
    first, last = _consistent(turns)  # type: ignore[arg-type]
    if last - first < _MIN_TURNS or (last - first - 1) * period < _MIN_SAVED:
        return None
    return start + first * period, turns[first:last]  # type: ignore[return-value]


def _longest(holds: np.ndarray) -> tuple[int, int]:
    """The start and the length of the longest stretch in which something holds."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], holds, [False]]).astype(int)))
    lengths = edges[1::2] - edges[::2]
    if not len(lengths):
        return 0, 0
    longest = int(np.argmax(lengths))
    return int(edges[::2][longest]), int(lengths[longest])


def _consistent(turns: Sequence[Sequence[Equation]]) -> tuple[int, int]:
    """The longest stretch of turns that read the same outputs of the turns before them."""
    first, last = 0, len(turns)
    while last - first >= _MIN_TURNS:
        alike = _alike(turns[first:last])
        if alike == (0, last - first):
            return first, last
        first, last = first + alike[0], first + alike[1]
    return 0, 0


def _alike(turns: Sequence[Sequence[Equation]]) -> tuple[int, int]:
    """The stretch of turns around the middle one that read the same as it, as far as it goes on one of its sides."""
    places = _places(turns)
    last, middle = len(turns) - 1, len(turns) // 2

    def lags(t: int) -> list[tuple[int, int] | None]:
        out = []
        for equation in turns[t]:
            for x in equation.inputs:
                turn, position = places.get(x, (-1, 0)) if isinstance(x, Node) else (-1, 0)
                out.append((t - turn, position) if turn >= 0 else None)
        return out

    expected = lags(middle)
    for t in range(middle, last + 1):
        if lags(t) != expected:
            return 0, t
    for t in range(middle - 1, -1, -1):
        # The first turns read from before the loop what the others read from earlier turns.
        allowed = [None if lag is not None and lag[0] > t else lag for lag in expected]
        if lags(t) != allowed:
            return t + 1, len(turns)
    return 0, len(turns)
