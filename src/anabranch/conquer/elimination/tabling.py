"""The tables of a path for any values of its discrete coordinates, as long as they are not too large."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from typing import Any

import numpy as np

from anabranch.conquer.elimination.order import Order, elimination_order
from anabranch.conquer.elimination.tables import Tables
from anabranch.divide import Factors

__all__ = ["Tabling"]


class Tabling:
    """The tables of all decision sequences, and how large they may be.

    Args:
        factors: the factors of each sequence.
        max_factor: numbers in one factor from which a coordinate is summed out, at most.
        max_numbers: numbers in the tables of one point, at most.
        wanted: coordinates that are kept last.
    """

    def __init__(self, factors: list[Factors], max_factor: int, max_numbers: int, wanted: Container[int] = ()) -> None:
        self.factors, self.max_factor, self.max_numbers, self.wanted = factors, max_factor, max_numbers, wanted
        self._last: tuple[Any, list[Tables] | None] | None = None
        self._scopes = [
            [each.scopes.members[n] for n in {n for s in each.summands for n in np.unique(s.scopes).tolist()}]
            for each in factors
        ]

    def kept(self, values: Mapping[int, range]) -> set[int]:
        """The coordinates that would make a factor too large."""
        return {column for order in self._orders(values) for column in order.kept}

    def costly(self, values: Mapping[int, range], max_members: int, max_numbers: float) -> set[int]:
        """The coordinates in small groups with common factors, of two to `max_members`, whose tables have more than so
        many numbers: samplers draw them in less time than a sum over them takes."""
        return {
            column
            for factors, scopes in zip(self.factors, self._scopes, strict=True)
            for group in _connected(scopes)
            if 2 <= len(group) <= max_members
            and _elements(factors, group) * math.prod(len(values[column]) for column in group) > max_numbers
            for column in group
        }

    def tables(self, values: Mapping[int, range]) -> list[Tables] | None:
        """The tables of coordinates with these values; None if they are too large."""
        key = tuple(values.items())
        if self._last is None or self._last[0] != key:
            self._last = key, self._made(values)
        return self._last[1]

    def _made(self, values: Mapping[int, range]) -> list[Tables] | None:
        orders = self._orders(values)
        if any(order.kept for order in orders):
            return None
        tables = [Tables(each, values, order) for each, order in zip(self.factors, orders, strict=True)]
        return tables if all(each.numbers <= self.max_numbers for each in tables) else None

    def _orders(self, values: Mapping[int, range]) -> list[Order]:
        sizes = {column: len(each) for column, each in values.items()}
        return [elimination_order(scopes, sizes, self.max_factor, self.wanted) for scopes in self._scopes]


def _elements(factors: Factors, group: set[int]) -> int:
    """Elements of summands that depend on coordinates of a group."""
    depends = np.array([not group.isdisjoint(members) for members in factors.scopes.members])
    return sum(int(depends[summand.scopes].sum()) for summand in factors.summands)


def _connected(scopes: Iterable[tuple[int, ...]]) -> list[set[int]]:
    """The coordinates in groups, such that no scope has coordinates of two.

    Example:
        >>> _connected([(0, 1), (2,), (1, 3)])
        [{2}, {0, 1, 3}]
    """
    groups: list[set[int]] = []
    for scope in scopes:
        met = [group for group in groups if not group.isdisjoint(scope)]
        groups = [group for group in groups if group.isdisjoint(scope)] + [set(scope).union(*met)]
    return [group for group in groups if group]
