"""The factors of a density as tables over the values of their scopes.

The graph is not evaluated for one factor at a time. Coordinates get colours such that those of one scope differ, and
the whole graph is evaluated once for every combination of a value for each colour, which all its coordinates have: each
factor then has had every combination of values of its own scope (as a sparse Jacobian is found by few products). Along
a chain two colours suffice, in a plate one, however many coordinates there are. Factors that are always equal, such as
the transitions of a chain, have one table.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from anabranch.conquer.elimination.order import Order
from anabranch.conquer.elimination.plan import Plan, make_plan
from anabranch.divide import Factors, SummandEvaluator, why_not_drawn

__all__ = ["Logs", "Tables"]

_FREE, _REPEATED = -1, -2
"""In place of the number of a group: of elements that depend on no coordinate, and of those equal to others."""

_MIN_ALIKE = 4
"""Coordinates with a factor of their own from which on like ones without are given one."""


class Logs(NamedTuple):
    """At points: the tables of each group of scopes, and the sum of the summands that depend on no variable."""

    prior: list[Any]
    density: list[Any]
    free_prior: Any
    free_likelihood: Any
    free_jacobian: Any
    holds: Any


class Tables:
    """The tables of one decision sequence.

    Args:
        factors: its summands.
        values: the values of each coordinate that is summed out.
        order: in which they are.
    """

    def __init__(self, factors: Factors, values: Mapping[int, range], order: Order) -> None:
        self.factors, self.values, self.order = factors, values, order
        self._sizes = {column: len(each) for column, each in values.items()}
        scopes = sorted({int(n) for s in factors.summands for n in np.unique(s.scopes)} - {0})
        self._colours, self._widths = self._coloured(scopes)
        alike = {column: (colour, values[column]) for column, colour in self._colours.items()}
        self._evaluator = SummandEvaluator(factors, alike)
        self._groups = self._grouped(scopes)
        self._used = [i for i, (groups, _) in enumerate(self._places) if (groups != _REPEATED).any()]
        members = factors.scopes.members
        of_groups = [[members[n] for n in group.scopes] + [(v,) for v in group.without] for group in self._groups]
        rows = [np.append(group.rows, np.full(len(group.without), group.count - 1)) for group in self._groups]
        self.plan: Plan = make_plan(of_groups, order, self._sizes, rows)

    def _coloured(self, scopes: Sequence[int]) -> tuple[dict[int, int], list[int]]:
        """The colour of each coordinate, and the number of values of each colour."""
        members = self.factors.scopes.members
        adjacent: dict[int, set[int]] = {column: set() for column in self.values}
        for number in scopes:
            for column in members[number]:
                adjacent[column].update(members[number])
        colours: dict[int, int] = {}
        for column in reversed(self.order.variables):
            taken = {colours[other] for other in adjacent[column] if other in colours}
            colours[column] = next(colour for colour in range(len(taken) + 1) if colour not in taken)
        widths = [0] * (max(colours.values(), default=-1) + 1)
        for column, colour in colours.items():
            widths[colour] = max(widths[colour], self._sizes[column])
        return {column: colours[column] for column in self.values}, widths

    def _grouped(self, scopes: Sequence[int]) -> list[_Group]:
        """The scopes by the sizes and the colours of their coordinates; those whose factors are equal share a row."""
        by_form: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for number in scopes:
            own = self.factors.scopes.members[number]
            form = tuple(self._sizes[column] for column in own), tuple(self._colours[column] for column in own)
            by_form.setdefault(form, []).append(number)
        contents = self._contents(scopes)
        out = []
        for (sizes, colours), numbers in by_form.items():
            rows: dict[Hashable, int] = {}
            own_rows = [rows.setdefault(contents[number], len(rows)) for number in numbers]
            out.append(_Group(sizes, colours, numbers, np.array(own_rows), self._without(sizes, colours, numbers)))
        return out

    def _without(self, sizes: tuple[int, ...], colours: tuple[int, ...], numbers: Sequence[int]) -> tuple[int, ...]:
        """Like coordinates with no factor of their own, where others have one: the steps of a chain without data."""
        if len(sizes) > 1 or len(numbers) < _MIN_ALIKE:
            return ()
        having = {self.factors.scopes.members[number][0] for number in numbers}
        alike = (v for v, colour in self._colours.items() if colour == colours[0] and self._sizes[v] == sizes[0])
        return tuple(v for v in alike if v not in having)

    def _contents(self, scopes: Sequence[int]) -> dict[int, Hashable]:
        """For each scope what its factor is the sum of: the same for scopes whose factors are always equal."""
        out: dict[int, Any] = {number: [] for number in (0, *scopes)}
        for node, summand in zip(self._evaluator.nodes, self.factors.summands, strict=True):
            if summand.scopes.size == 1:
                out[int(summand.scopes.item())].append((summand.part, summand.coefficient, int(node)))
            else:  # its elements differ, as a rule: by the data
                for number in np.unique(summand.scopes).tolist():
                    out[number].append((number, int(node)))
        return {number: tuple(sorted(map(repr, parts))) for number, parts in out.items()}

    @property
    def configurations(self) -> int:
        """Evaluations of the graph for one point."""
        return math.prod(self._widths)

    @property
    def numbers(self) -> int:
        """Numbers in the tables of one point, and in those from which variables are summed out."""
        elements = sum(
            math.prod(self._widths[colour] for colour in colours)
            * sum(self.factors.summands[i].scopes.size for i in own)
            for colours, own in self._by_colours(self._used)
        )
        return elements + sum(batch.numbers for batch in self.plan.batches)

    def _by_colours(self, chosen: Sequence[int]) -> list[tuple[frozenset[int], list[int]]]:
        """Some summands by the colours with which they vary."""
        out: dict[frozenset[int], list[int]] = {}
        for number in chosen:
            out.setdefault(self._varies_with[number], []).append(number)
        return list(out.items())

    @cached_property
    def _varies_with(self) -> list[frozenset[int]]:
        return self._evaluator.colours(self._colours)

    @cached_property
    def _places(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each summand, of each element the group of its scope and its row there."""
        groups, rows = (np.zeros(len(self.factors.scopes.members), int) for _ in range(2))
        groups[0] = _FREE
        for number, group in enumerate(self._groups):
            _, first = np.unique(group.rows, return_index=True)
            groups[group.scopes], rows[group.scopes] = _REPEATED, group.rows
            groups[np.array(group.scopes)[first]] = number
        return [(groups[summand.scopes.ravel()], rows[summand.scopes.ravel()]) for summand in self.factors.summands]

    @cached_property
    def prior_is_normalised(self) -> bool:
        """Whether the prior of the coordinates summed out has a sum of one, whatever the others are."""
        recording = self.factors.density.recording
        columns = recording.columns
        if any(why_not_drawn(site) for site in recording.free if site.discrete):
            return False  # a mask or a scale

        def is_own(name: str) -> bool:
            own = columns.get(name)
            return own is not None and self.values.keys() >= set(range(own.start, own.stop))

        scoped = [s for s in self.factors.summands if s.part != "likelihood" and s.scopes.any()]
        return all(is_own(summand.name) and summand.part != "jacobian" for summand in scoped)

    # By NumPy -----------------------------------------------------------------------------------------------------

    def _configurations(self, colours: frozenset[int]) -> np.ndarray:
        """The values of the coordinates summed out for every combination of values of some colours, the others having
        their first: (combinations, coordinates)."""
        widths = [width if colour in colours else 1 for colour, width in enumerate(self._widths)]
        digits = np.indices(widths).reshape(len(widths), -1)
        columns = [
            each[0] + np.minimum(digits[self._colours[column]], len(each) - 1) for column, each in self.values.items()
        ]
        return np.stack(columns, axis=1).astype(float)

    def by_numpy(self, points: np.ndarray) -> Logs:
        """At points with any values of the coordinates summed out."""
        return _logs(self._parts_by_numpy(points, self._used), self._groups, self.factors, np)

    def _parts_by_numpy(self, points: np.ndarray, chosen: Sequence[int]) -> dict[tuple[str, int], np.ndarray]:
        """By part and group, the sums over some summands: (points, scopes, *sizes); numbers of failed conditions."""
        out: dict[tuple[str, int], np.ndarray] = {}
        for colours, own_numbers in self._by_colours(chosen):
            configurations = self._configurations(colours)
            n, c = len(points), len(configurations)
            rows = np.repeat(points, c, axis=0)
            rows[:, list(self.values)] = np.tile(configurations, (n, 1))
            for numbers, array in self._evaluator.by_numpy(rows, own_numbers):
                part, coefficients, groups, places = self._elements(numbers)
                values = array.reshape(n, c, -1)
                values = ~values.astype(bool) if part == "condition" else values * coefficients
                for group in _met(groups):
                    own = np.flatnonzero(groups == group)
                    table = self._table(group, values[:, :, own], places[own], sorted(colours))
                    out[part, group] = out[part, group] + table if (part, group) in out else table
        return out

    def _elements(self, numbers: Sequence[int]) -> tuple[str, np.ndarray, np.ndarray, np.ndarray]:
        """Of summands of one part, that part, and of each element the coefficient, the group, and the row there."""
        summands = [self.factors.summands[number] for number in numbers]
        coefficients = np.concatenate([np.full(summand.scopes.size, summand.coefficient) for summand in summands])
        groups, places = (np.concatenate([self._places[number][i] for number in numbers]) for i in (0, 1))
        return summands[0].part, coefficients, groups, places

    def _table(self, group: int, values: np.ndarray, places: np.ndarray, colours: Sequence[int]) -> np.ndarray:
        """The sums by scope of elements of a group, from the combinations of some colours (points, those, elements)."""
        if group == _FREE:
            return values[:, 0].sum(axis=1)
        own = self._groups[group]
        n = len(values)
        index = tuple(slice(None) if colour in own.colours else 0 for colour in colours)
        kept = values.reshape(n, *(self._widths[colour] for colour in colours), -1)[(slice(None), *index)]
        inner = [1 + sorted(own.colours).index(colour) for colour in own.colours]
        sizes: tuple[Any, ...] = (..., *(slice(size) for size in own.sizes))
        ordered = kept.transpose(0, kept.ndim - 1, *inner)[sizes]
        if np.array_equal(places, np.arange(own.count)):
            return ordered.astype(float)
        out = np.zeros((own.count, n, *own.sizes))
        np.add.at(out, places, np.moveaxis(ordered, 1, 0))
        return np.moveaxis(out, 0, 1)

    # By JAX -------------------------------------------------------------------------------------------------------

    @cached_property
    def _static(self) -> dict[tuple[str, int], np.ndarray]:
        """The sums over the summands that are the same at all points."""
        chosen = [number for number in self._used if self._evaluator.static[number]]
        found = self._parts_by_numpy(np.zeros((1, self.factors.density.recording.dim)), chosen)
        return {key: array[0] for key, array in found.items()}

    def by_jax(self, point: jax.Array) -> Logs:
        """At one point, to be compiled."""
        chosen = [number for number in self._used if not self._evaluator.static[number]]
        colours: list[list[int]] = [[] for _ in self._widths]
        for column, colour in self._colours.items():
            colours[colour].append(column)
        places = {column: (colour, i) for colour, own in enumerate(colours) for i, column in enumerate(own)}
        axes = self._axes(chosen)

        def at(*values: jax.Array) -> list[Any]:
            elements = self._evaluator.by_jax(chosen, point, values, places)
            return [self._sum_by_jax(part, group, elements) for part, group in axes]

        # One axis for each colour: what depends on one of them alone is computed for its values alone.
        for colour in reversed(range(len(colours))):
            given = [0 if each == colour else None for each in range(len(colours))]
            at = jax.vmap(at, in_axes=given, out_axes=[0 if colour in own else None for own in axes.values()])
        found = at(*(self._choices(own, width) for own, width in zip(colours, self._widths, strict=True)))
        parts = {key: jnp.asarray(array) for key, array in self._static.items()}
        for key, array in zip(axes, found, strict=True):
            table = self._ordered(key[1], axes[key], array)
            parts[key] = parts[key] + table if key in parts else table
        return _logs(parts, self._groups, self.factors, jnp)

    def _choices(self, columns: Sequence[int], width: int) -> jax.Array:
        """The values of the coordinates of one colour: (values of the colour, coordinates)."""
        low, sizes = (np.array([f(self.values[column]) for column in columns]) for f in (min, len))
        return jnp.asarray(low + np.minimum(np.arange(width)[:, None], sizes - 1), float)

    def _axes(self, chosen: Sequence[int]) -> dict[tuple[str, int], list[int]]:
        """By part and group, the colours with which its summands vary, those of other groups included."""
        out: dict[tuple[str, int], set[int]] = {}
        for number in chosen:
            for group in _met(self._places[number][0]):
                out.setdefault((self.factors.summands[number].part, group), set()).update(self._varies_with[number])
        return {key: sorted(own) for key, own in out.items()}

    def _sum_by_jax(self, part: str, group: int, elements: Sequence[tuple[list[int], Any]]) -> jax.Array:
        """The sums by scope of the elements of a part and group."""
        values, places = [], []
        for numbers, array in elements:
            own_part, coefficients, groups, rows = self._elements(numbers)
            of_group = groups == group
            if own_part != part or not of_group.any():
                continue
            flat = (~array.ravel()).astype(float) if part == "condition" else array.ravel()
            if not (coefficients == 1).all():
                flat = flat * coefficients
            values.append(flat if of_group.all() else flat[np.flatnonzero(of_group)])
            places.append(rows[of_group])
        joined = jnp.concatenate(values) if len(values) > 1 else values[0]
        if group == _FREE:
            return jnp.sum(joined)
        return _by_place(joined, np.concatenate(places), self._groups[group].count)

    def _ordered(self, group: int, axes: Sequence[int], array: jax.Array) -> jax.Array:
        """The tables of a group (scopes, *sizes), from an array with an axis for each of some colours."""
        of_group = () if group == _FREE else self._groups[group].colours
        kept = array[tuple(slice(None) if colour in of_group else 0 for colour in axes)]
        if group == _FREE:
            return kept
        own = self._groups[group]
        inner = [sorted(own.colours).index(colour) for colour in own.colours]
        return kept.transpose(len(inner), *inner)[(..., *(slice(size) for size in own.sizes))]


@dataclass(frozen=True)
class _Group:
    """Scopes whose coordinates have the same sizes and the same colours, and the row of each in the tables.

    The coordinates in `without` have no such factor, and are given a row of zeros, the last one: all steps of a chain
    then have the same form.
    """

    sizes: tuple[int, ...]
    colours: tuple[int, ...]
    scopes: list[int]
    rows: np.ndarray
    without: tuple[int, ...]

    @property
    def count(self) -> int:
        """The number of rows."""
        return int(self.rows.max()) + 1 + bool(self.without)


def _met(groups: np.ndarray) -> list[int]:
    """The groups of some elements, without repeated ones."""
    return [group for group in np.unique(groups).tolist() if group != _REPEATED]


def _logs(parts: Mapping[tuple[str, int], Any], groups: Sequence[_Group], factors: Factors, numpy: Any) -> Logs:
    """The tables from the sums by part and group."""
    constants = factors.constants

    def total(names: Sequence[str], group: int) -> Any:
        found = [parts[name, group] for name in names if (name, group) in parts]
        nothing = np.zeros(()) if group == _FREE else np.zeros((groups[group].count, *groups[group].sizes))
        return sum(found, nothing)

    def limited(value: Any, group: int) -> Any:
        fails = parts.get(("condition", group))
        return value if fails is None else numpy.where(fails == 0, value, -np.inf)

    names = ("prior", "jacobian"), ("prior", "jacobian", "likelihood")
    prior, density = ([limited(total(each, group), group) for group in range(len(groups))] for each in names)
    free = {name: total([name], _FREE) + constants[name] for name in ("prior", "jacobian", "likelihood")}
    return Logs(prior, density, free["prior"] + free["jacobian"], free["likelihood"], free["jacobian"],
                (total(["condition"], _FREE) == 0) & (not factors.never))  # fmt: skip


def _by_place(values: jax.Array, places: np.ndarray, count: int) -> jax.Array:
    """The sums of values by place: in layers of which each has a place once at most, where these are few."""
    if np.array_equal(places, np.arange(count)):
        return values
    order = np.argsort(places, kind="stable")
    found, starts, counts = np.unique(places[order], return_index=True, return_counts=True)
    if len(found) == count and (counts == counts[0]).all():  # as the parts of a vector are, point by point
        rows = values if np.array_equal(order, np.arange(len(order))) else values[order]
        return rows.reshape(count, -1).sum(axis=1)
    if counts.max() > 8:
        return jax.ops.segment_sum(values, places, count)
    padded, total = jnp.append(values, 0.0), jnp.zeros(count)
    for layer in range(counts.max()):
        index = np.full(count, len(values))
        has = counts > layer
        index[found[has]] = order[starts[has] + layer]
        total = total + padded[index]
    return total
