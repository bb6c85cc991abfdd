"""Draws of a posterior: executions of the program by name.

Draws come by systematic resampling with the joint weights w_k v_ki of path k and point i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jax.tree_util import tree_map

from anabranch import errors, settings
from anabranch.combine.outcomes import outcomes_at
from anabranch.combine.saved_path import NOT_SAVED
from anabranch.combine.solution import Solution
from anabranch.conquer.weights import systematic
from anabranch.divide import NamedValues, Path, Program, has_functions, returned
from anabranch.label import Label, is_label

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Draw", "Draws", "Picked", "by_observation", "checked_number", "drawn_at", "draws_of", "gathered", "pick",
    "with_draws",
]  # fmt: skip


class Draw(Mapping[str, Any]):
    """One execution of the program: its sites and deterministics by name, `path`, and `result`, what it returned."""

    __slots__ = ("_named", "_program", "_row", "path")

    def __init__(self, path: str, named: NamedValues, row: int, program: Program | None = None) -> None:
        """`program` is that of an execution whose result has functions."""
        self.path, self._named, self._row, self._program = path, named, row, program

    @property
    def result(self) -> Any:
        """What the program returned. A function can be called; each use of `result` runs the program for it."""
        if self._named.result is NOT_SAVED:
            raise errors.NeedsProgram(
                "the program's return value is not saved", remedy="Load the posterior with the program and its data"
            )
        if self._program is None:
            return self._at(self._named.result, self._named.varies[1])
        return returned(self._program, {name: x[self._row] for name, x in self._named.values.items()}, self.path)

    def __getitem__(self, name: str) -> Any:
        if name in self._named.deterministics:
            value = self._named.deterministics[name]
            return value.value if isinstance(value, Label) else self._at(value, self._named.varies[0][name])
        if name not in self._named.values:
            error = errors.UnknownName(
                f"this draw, of the path ({self.path}), has no {name!r}", remedy=f"It has: {', '.join(self)}"
            )
            error.name = name
            raise error
        return self._named.values[name][self._row]

    def _at(self, tree: Any, varies: Any) -> Any:
        return tree_map(lambda leaf, varying: leaf[self._row] if varying else leaf, tree, varies)

    def __contains__(self, name: object) -> bool:
        return name in self._named.values or name in self._named.deterministics

    def __iter__(self) -> Iterator[str]:
        return iter({**self._named.values, **self._named.deterministics})

    def __len__(self) -> int:
        return len({**self._named.values, **self._named.deterministics})

    def __repr__(self) -> str:
        return f"Draw({self.path!r}: {', '.join(f'{name}={_in_words(value)}' for name, value in self.items())})"


def _in_words(value: Any) -> str:
    return repr(value) if is_label(value) else np.array2string(np.asarray(value), precision=4)


def drawn_at(path: Path, points: np.ndarray) -> Iterator[tuple[int, Draw]]:
    """The execution at each point, with the number of the point."""
    for named in outcomes_at(path, points):
        program = path.program if has_functions(named.result) else None
        for row, i in enumerate(named.index):
            yield int(i), Draw(path.description, named, row, program)


@dataclass(frozen=True)
class Picked:
    """Draws of one path: their points, and their positions among the draws of all paths."""

    solution: Solution
    points: np.ndarray
    positions: np.ndarray


def pick(solutions: Sequence[Solution], weights: np.ndarray, n: int, seed: int) -> list[Picked]:
    """n equally weighted draws, in random order, grouped by path."""
    n, seed = checked_number(n, seed)
    rng = np.random.default_rng(seed)
    drawable = with_draws(solutions, weights)
    shares = [weight * solution.weights for solution, weight in drawable]
    chosen = systematic(np.concatenate(shares), n, rng)
    order = rng.permutation(n)
    ends = np.cumsum([len(share) for share in shares])
    owner = np.searchsorted(ends, chosen, side="right")
    out = []
    for k in np.unique(owner):
        solution = drawable[k][0]
        mine = owner == k
        first = ends[k] - len(shares[k])
        out.append(Picked(solution, solution.points[chosen[mine] - first], order[mine]))
    return out


def draws_of(picked: Sequence[Picked], n: int) -> Draws:
    """The executions at n picked points, in the order of their positions."""
    out: list[Any] = [None] * n
    for each in picked:
        for i, draw in drawn_at(each.solution.path, each.points):
            out[each.positions[i]] = draw
    return Draws(out)


def by_observation(
    picked: Sequence[Picked], n: int, compute: Callable[[Path, np.ndarray], list[NamedValues]]
) -> dict[str, Any]:
    """An array for each observation with the value of `compute` at n picked points, as `gathered` joins them."""
    out: dict[str, list[Any]] = {}
    for each in picked:
        for part in compute(each.solution.path, each.points):
            for name, values in part.values.items():
                column = out.setdefault(name, [None] * n)
                for position, value in zip(each.positions[part.index], values, strict=True):
                    column[position] = value
    return {name: gathered(column) for name, column in out.items()}


def with_draws(solutions: Sequence[Solution], weights: np.ndarray) -> list[tuple[Solution, float]]:
    """The solutions with a positive weight and draws, each with its weight; raises `NoDraws` if there are none."""
    # An engine may give a path a weight and keep no draw of it.
    out = [(solution, w) for solution, w in zip(solutions, weights, strict=True) if w > 0 and len(solution.points)]
    if not out:
        raise errors.NoDraws(
            "the posterior has no draws: no point of positive density was found on any path",
            remedy="Give the run more budget, or check that the program can produce the data",
        )
    return out


def checked_number(n: int, seed: int) -> tuple[int, int]:
    """The number of draws and the seed, or `BadSetting`."""
    return settings.whole(1)("n", n), settings.seed()("seed", seed)


def gathered(values: Sequence[Any]) -> Any:
    """One array for all draws, masked where a value is None; a list if the shapes differ, and of tuples with text."""
    present = [np.asarray(value) for value in values if value is not None]
    if len({(value.shape, value.dtype.kind == "U") for value in present}) != 1:
        return list(values)
    if any(value.dtype == object or (value.dtype.kind == "U" and value.ndim) for value in present):
        return list(values)
    if len(present) == len(values):
        return np.stack(present)
    out = np.ma.masked_all((len(values), *present[0].shape), np.result_type(*present))
    out[[value is not None for value in values]] = np.stack(present)
    return out


class Draws(Sequence[Draw]):
    """Equally weighted executions, in random order.

    `draws[3]` is one execution. `draws["mu"]` is a site or deterministic in all of them: an array with the draws as its
    first axis, masked where a draw lacks the name, or a list (with None there) if the shapes differ. `draws.items()`
    has all names with theirs, as a dictionary of samples does; iterating gives the executions.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> draws = ab.infer(programs.branching, 2.0).draws(1000, seed=1)
        >>> sorted(draws.names), "z1" in draws
        (['z0', 'z1', 'z2', 'z3'], True)
        >>> bool((draws["z1"].mask == (draws["z0"] >= 0)).all())
        True
    """

    def __init__(self, draws: Sequence[Draw]) -> None:
        self._draws = list(draws)

    @overload
    def __getitem__(self, key: int) -> Draw: ...
    @overload
    def __getitem__(self, key: slice) -> Draws: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: int | slice | str) -> Any:
        if isinstance(key, slice):
            return Draws(self._draws[key])
        if not isinstance(key, str):
            return self._draws[key]
        if not any(key in draw for draw in self._draws):
            raise errors.UnknownName(f"none of the draws has {key!r}", remedy=f"There are: {', '.join(self.names)}")
        return gathered([draw.get(key) for draw in self._draws])

    def __len__(self) -> int:
        return len(self._draws)

    def __contains__(self, key: object) -> bool:
        """Whether some draw has this name; or whether this is one of the draws."""
        if isinstance(key, str):
            return any(key in draw for draw in self._draws)
        return any(key is draw for draw in self._draws)

    def keys(self) -> list[str]:
        """The names that some draw has; with it, `dict(draws)` is a dictionary of samples."""
        return self.names

    def items(self) -> Iterator[tuple[str, Any]]:
        """Each name with its values in all draws."""
        return ((name, self[name]) for name in self.names)

    @property
    def names(self) -> list[str]:
        """The names that some draw has."""
        return list(dict.fromkeys(name for draw in self._draws for name in draw))

    @property
    def paths(self) -> list[str]:
        """The path of each draw."""
        return [draw.path for draw in self._draws]

    @property
    def results(self) -> list[Any]:
        """The program's return value in each draw."""
        return [draw.result for draw in self._draws]

    def to_dataframe(self) -> pd.DataFrame:
        """A row for each draw, a column for each number: `mu[0]` is the first of a vector; NaN where it is absent."""
        # Imported where they are used: pandas, rich, matplotlib and ArviZ take longer than the rest of the library.
        import pandas as pd

        return pd.DataFrame([{"path": draw.path, **_columns(draw)} for draw in self._draws])

    def __repr__(self) -> str:
        return f"Draws({len(self)} of {len(set(self.paths))} paths: {', '.join(self.names)})"


def _columns(draw: Draw) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, value in draw.items():
        if is_label(value):
            out[name] = value
            continue
        array = np.asarray(value)
        for index in np.ndindex(array.shape):
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            out[label] = array[index].item()
    return out
