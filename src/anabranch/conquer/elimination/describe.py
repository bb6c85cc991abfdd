"""Which discrete variables of a path are summed out, in which order and at what cost, as text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from anabranch.conquer.elimination.eliminate import eliminate
from anabranch.conquer.elimination.settings import Elimination
from anabranch.conquer.elimination.tables import Tables
from anabranch.conquer.elimination.target import Eliminated
from anabranch.conquer.target import PathTarget
from anabranch.divide import Path, finite_values, is_prior_alone

__all__ = ["describe"]

_DEFAULT = Elimination()
_MAX_NAMES = 8
"""Names, or ranges of names, of one line."""


def describe(path: Path, elimination: Elimination | None = _DEFAULT) -> str:
    """How the discrete variables of a path are summed out, as text.

    It has the variables in the order in which they are summed out, with those of a plate or a chain as one range; the
    largest factor from which one is; the terms of a point, which are the evaluations of the program's graph that one
    evaluation of the density takes at most; the numbers in the tables of a point; and the variables that are kept, with
    the reason. `elimination` has the limits, as in `DCC(elimination=...)`; None: nothing is summed out. The windows of
    variables with infinitely many values start from prior draws, with a seed of their own.

    Example:
        >>> import anabranch as ab, jax.numpy as jnp, numpyro.distributions as dist
        >>> def hidden_markov(y):
        ...     means = ab.sample("means", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
        ...     z = 0
        ...     for t in range(len(y)):
        ...         z = ab.sample(f"z{t}", dist.Categorical(jnp.array([[0.9, 0.1], [0.2, 0.8]])[z]))
        ...         ab.observe(f"y{t}", dist.Normal(means[z], 1.0), y[t])
        >>> division = ab.find_paths(hidden_markov, [0.1, 2.0, 1.7, 0.3, 0.2])
        >>> print(ab.describe(division.paths[0]))
        always: 5 of 5 discrete variables summed out, in this order:
          z0 … z4, along a chain: 2 values each
          largest factor: 2 variables, 4 numbers
          terms of a point: at most 4 evaluations of the program's graph
          tables of a point: 39 numbers, 0.305 KiB
          kept: none
    """
    discrete = np.flatnonzero(path.discrete).tolist()
    if not discrete:
        return f"{path.description}: there are no discrete variables."
    nothing = f"{path.description}: none of {len(discrete)} discrete variables summed out"
    if elimination is None:
        return f"{nothing}."
    if path.interpreted:
        return f"{nothing}: the interpreter runs the path."
    target = eliminate(PathTarget(path), elimination, np.random.default_rng(0))
    if not isinstance(target, Eliminated):
        values = [len(each) for each in finite_values(path) if each is not None]
        if len(values) == path.dim and math.prod(values) <= elimination.max_enumerated:
            return f"{nothing}: the path has {math.prod(values):,} values, evaluated one by one."
        return "\n".join([f"{nothing}.", *_kept(path, discrete, elimination)])
    names = _names(path)
    kept = [column for column in discrete if column not in target.values]
    title = f"{path.description}: {len(target.values)} of {len(discrete)} discrete variables summed out, in this order"
    return "\n".join([f"{title}:", *_order(target, names), *_costs(target), *_kept(path, kept, elimination)])


def _names(path: Path) -> dict[int, str]:
    """Of each coordinate of a discrete site the name with which `posterior.probability` asks for it."""
    out: dict[int, str] = {}
    for site in path.sites:
        if site.discrete and site.columns is not None:
            for column, place in zip(range(path.dim)[site.columns], np.ndindex(site.shape), strict=True):
                out[column] = f"{site.name}[{', '.join(map(str, place))}]" if place else site.name
    return out


def _stem(name: str) -> str:
    return re.sub(r"\d+", "#", name)


def _shown(columns: Iterable[int], names: Mapping[int, str]) -> str:
    """The names of coordinates; those that differ in their numbers alone as a range, which goes back if they do.

    >>> _shown([2, 1, 0, 5, 3, 4], dict(enumerate(["z0", "z1", "z2", "b[0]", "b[1]", "a"])))
    'z2 … z0, a, b[0], b[1]'
    """
    by_stem: dict[str, list[int]] = {}
    for column in columns:
        by_stem.setdefault(_stem(names[column]), []).append(column)
    parts = []
    for own in by_stem.values():
        goes_back = own == sorted(own, reverse=True)
        first, *_, last = [names[column] for column in (own if goes_back else sorted(own))] * 2
        parts.append(f"{first} … {last}" if len(own) > 2 else ", ".join(names[column] for column in own))
    more = [f"and {len(parts) - _MAX_NAMES + 1} more"] * (len(parts) > _MAX_NAMES)
    return ", ".join([*parts[: _MAX_NAMES - len(more)], *more])


# The order ------------------------------------------------------------------------------------------------------------


class _Component(NamedTuple):
    """Variables that interact, in the order in which they are summed out, and how."""

    variables: list[int]
    form: str


def _order(target: Eliminated, names: dict[int, str]) -> Iterator[str]:
    """A line for each group of variables, of each decision sequence."""
    for number, tables in enumerate(target.tables):
        where = f"decision sequence {number + 1} of {len(target.tables)}: " if len(target.tables) > 1 else ""
        alike: dict[tuple[str, frozenset[str]], list[_Component]] = {}
        for component in _components(tables):
            stems = frozenset(_stem(names[v]) for v in component.variables)
            alike.setdefault((component.form, stems), []).append(component)
        for (form, _), components in alike.items():
            variables = [v for component in components for v in component.variables]
            sizes = sorted({len(target.values[v]) for v in variables})
            values = f"{' or '.join(map(str, sizes))} values{' each' * (len(variables) > 1)}"
            values += ", as many as have nearly all mass" * any(v in target.cut for v in variables)
            yield f"  {where}{_shown(variables, names)}, {_in_words(form, len(components))}: {values}"


def _components(tables: Tables) -> Iterator[_Component]:
    """The connected parts of the factor graph, by their first variable."""
    order = tables.order
    part = {variable: [variable] for variable in order.variables}
    for variable, others in zip(order.variables, order.neighbours, strict=True):
        for other in others:
            small, large = sorted((part[variable], part[other]), key=len)
            if small is not large:
                large.extend(small)
                part.update(dict.fromkeys(small, large))
    position = {variable: i for i, variable in enumerate(order.variables)}
    neighbours = dict(zip(order.variables, order.neighbours, strict=True))
    for variables in {id(own): own for own in part.values()}.values():
        variables.sort(key=position.__getitem__)
        yield _Component(variables, _form(variables, neighbours))


def _form(variables: Sequence[int], neighbours: dict[int, tuple[int, ...]]) -> str:
    """What the variables of a component form."""
    width = max(len(neighbours[v]) for v in variables)
    if width > 1:
        return f"factors of up to {width + 1} variables"
    degrees = Counter(v for variable in variables for other in neighbours[variable] for v in (variable, other))
    return (
        ("alone", "pair")[len(variables) - 1]
        if len(variables) < 3
        else "tree"
        if max(degrees.values()) > 2
        else "chain"
    )


def _in_words(form: str, count: int) -> str:
    if form == "alone":
        return "each alone" if count > 1 else "alone"
    if form == "pair":
        return f"in {count} pairs" if count > 1 else "as a pair"
    if form in ("chain", "tree"):
        return f"along {count} {form}s" if count > 1 else f"along a {form}"
    return f"in {count} groups, with {form}" if count > 1 else f"with {form}"


# The costs ------------------------------------------------------------------------------------------------------------


def _costs(target: Eliminated) -> Iterator[str]:
    sizes = {column: len(values) for column, values in target.values.items()}
    orders = [tables.order for tables in target.tables]
    cliques = [(v, *others) for order in orders for v, others in zip(order.variables, order.neighbours, strict=True)]
    largest = max(cliques, key=lambda clique: math.prod(map(sizes.__getitem__, clique)))
    variables = f"{len(largest)} variable{'s' * (len(largest) > 1)}"
    yield f"  largest factor: {variables}, {math.prod(map(sizes.__getitem__, largest)):,} numbers"
    yield f"  terms of a point: at most {target.terms:,} evaluations of the program's graph"
    numbers = sum(tables.numbers for tables in target.tables)
    yield f"  tables of a point: {numbers:,} numbers, {_memory(8 * numbers)}"


def _memory(size: int) -> str:
    """
    >>> _memory(560), _memory(3 * 2**20)
    ('0.547 KiB', '3 MiB')
    """
    return f"{size / 2**20:.3g} MiB" if size >= 2**20 else f"{size / 2**10:.3g} KiB"


def _kept(path: Path, columns: Sequence[int], elimination: Elimination) -> Iterator[str]:
    """The variables that are kept, and why."""
    if not columns:
        yield "  kept: none"
    names, finite = _names(path), finite_values(path)
    unbounded, wide = ([c for c in columns if (finite[c] is None) == is_open] for is_open in (True, False))
    if unbounded and is_prior_alone(path):
        yield f"  kept, since nothing is observed, and prior draws are exact: {_shown(unbounded, names)}"
    elif unbounded:
        limits = f"{elimination.max_values:,} values, or the tables too large"
        yield f"  kept, since a window with nearly all mass would be too wide ({limits}): {_shown(unbounded, names)}"
    if wide:
        limits = (
            f"{elimination.max_factor:,} numbers in a factor, {elimination.max_numbers:,} in all tables, "
            f"or {elimination.max_group_numbers:,} in those of {elimination.max_group} variables or fewer"
        )
        yield f"  kept, since too many interact (more than {limits}): {_shown(wide, names)}"
