"""In which order the variables of a factor graph are summed out, and which of them are not.

Summing a variable out of the factors that have it leaves one factor over its neighbours (Zhang and Poole, 1994), so
the order decides how large the factors become. The variable whose factor is smallest comes first, of several the first
one: a chain is summed from its beginning, a tree from its leaves. Where even the smallest is too large, the variable
with the most neighbours is kept, and the rest is summed given its value.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

__all__ = ["Order", "elimination_order"]


@dataclass(frozen=True)
class Order:
    """The variables in the order in which they are summed out, the neighbours of each at that time, and those kept."""

    variables: tuple[int, ...]
    neighbours: tuple[tuple[int, ...], ...]
    kept: tuple[int, ...]

    def numbers(self, sizes: Mapping[int, int]) -> int:
        """Numbers in all factors from which a variable is summed out."""
        cliques = zip(self.variables, self.neighbours, strict=True)
        return sum(sizes[v] * math.prod(sizes[u] for u in others) for v, others in cliques)

    def width(self) -> int:
        """Neighbours of a variable when it is summed out, at most."""
        return max(map(len, self.neighbours), default=0)


def elimination_order(
    scopes: Iterable[tuple[int, ...]], sizes: Mapping[int, int], max_numbers: int, wanted: Container[int] = ()
) -> Order:
    """An order for factors with these scopes over variables of these sizes.

    No factor from which a variable is summed out has more than `max_numbers` numbers. Variables that are wanted in the
    order are kept only where keeping others does not help.

    Example:
        >>> chain = [(0, 1), (1, 2), (2, 3)]
        >>> elimination_order(chain, dict.fromkeys(range(4), 2), 100)
        Order(variables=(0, 1, 2, 3), neighbours=((1,), (2,), (3,), ()), kept=())
    """
    adjacent: dict[int, set[int]] = {variable: set() for variable in sizes}
    for scope in scopes:
        for variable in scope:
            adjacent[variable].update(scope)
    for variable, others in adjacent.items():
        others.discard(variable)

    def cost(variable: int) -> int:
        return sizes[variable] * math.prod(sizes[other] for other in adjacent[variable])

    def to_be_kept(variable: int) -> tuple[bool, bool, int, int]:
        """The one with the largest is kept first: it is too large alone, it is not wanted, it has many neighbours."""
        number = len(adjacent[variable])
        return sizes[variable] > max_numbers, number > 0 and variable not in wanted, number, -variable

    waiting = [(cost(variable), variable) for variable in adjacent]
    heapq.heapify(waiting)
    order: list[int] = []
    neighbours: list[tuple[int, ...]] = []
    kept: list[int] = []
    while adjacent:
        least, variable = heapq.heappop(waiting)
        if variable not in adjacent or least != cost(variable):
            continue  # it has other neighbours by now, and is in the heap once more
        if least > max_numbers:
            heapq.heappush(waiting, (least, variable))
            variable = max(adjacent, key=to_be_kept)
            kept.append(variable)
            others = adjacent.pop(variable)
            for other in others:
                adjacent[other].discard(variable)
        else:
            order.append(variable)
            others = adjacent.pop(variable)
            neighbours.append(tuple(others))
            for other in others:
                adjacent[other].discard(variable)
                adjacent[other] |= others - {other}
        for other in others:
            heapq.heappush(waiting, (cost(other), other))
    position = {variable: i for i, variable in enumerate(order)}
    ordered = tuple(tuple(sorted((u for u in each if u in position), key=position.__getitem__)) for each in neighbours)
    return Order(tuple(order), ordered, tuple(sorted(kept)))
