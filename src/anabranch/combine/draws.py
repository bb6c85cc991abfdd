"""Draws of a posterior: executions of the program by name.

Draws are resampled systematically: with one uniform number u, draw i is the one in whose share of the joint weight
w_k v_ki the position (u + i)/n falls, so a path gets n w_k draws, up to rounding, and a point of it n w_k v_ki.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from jax.tree_util import tree_map

from anabranch import errors, settings
from anabranch.combine.solution import Solution
from anabranch.conquer.weights import systematic
from anabranch.divide import NamedValues, Path

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Draw", "Draws", "Picked", "checked_number", "drawn_at", "gathered", "pick", "with_draws"]


class Draw(Mapping[str, Any]):
    """One execution of the program: its sites and deterministics by name, `path`, and `result`, what it returned."""

    __slots__ = ("_named", "_row", "path")

    def __init__(self, path: str, named: NamedValues, row: int) -> None:
        self.path, self._named, self._row = path, named, row

    @property
    def result(self) -> Any:
        """What the program returned."""
        return self._at(self._named.result, self._named.varies[1])

    def __getitem__(self, name: str) -> Any:
        if name in self._named.deterministics:
            return self._at(self._named.deterministics[name], self._named.varies[0][name])
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
        values = ", ".join(f"{name}={np.array2string(np.asarray(self[name]), precision=4)}" for name in self)
        return f"Draw({self.path!r}: {values})"


def drawn_at(path: Path, points: np.ndarray) -> Iterator[tuple[int, Draw]]:
    """The execution at each point, with the number of the point."""
    for named in path.outcomes(points):
        for row, i in enumerate(named.index):
            yield int(i), Draw(path.description, named, row)


# Resampling -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Picked:
    """Draws of one path: their points, and their positions among all."""

    solution: Solution
    points: np.ndarray
    positions: np.ndarray


def pick(solutions: Sequence[Solution], weights: np.ndarray, n: int, seed: int) -> list[Picked]:
    """n equally weighted draws, in random order, as a group for each path that has some."""
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


def with_draws(solutions: Sequence[Solution], weights: np.ndarray) -> list[tuple[Solution, float]]:
    """The solutions that a draw can come from, each with its weight; there must be one."""
    # An engine may give a path a weight and have kept no draw of it.
    out = [(solution, w) for solution, w in zip(solutions, weights, strict=True) if w > 0 and len(solution.points)]
    if not out:
        raise errors.NoDraws(
            "the posterior has no draws: no point of positive density was found on any path",
            remedy="Give the run more budget, or check that the program can produce the data",
        )
    return out


def checked_number(n: int, seed: int) -> tuple[int, int]:
    """A number of draws, and a seed, that are some."""
    return settings.whole(1)("n", n), settings.seed()("seed", seed)


def gathered(values: Sequence[Any]) -> Any:
    """One array for all draws; masked where a draw has None; a list where the shapes differ."""
    present = [np.asarray(value) for value in values if value is not None]
    if len({value.shape for value in present}) != 1 or any(value.dtype == object for value in present):
        return list(values)
    if len(present) == len(values):
        return np.stack(present)
    out = np.ma.masked_all((len(values), *present[0].shape), np.result_type(*present))
    out[[value is not None for value in values]] = np.stack(present)
    return out


class Draws(Sequence[Draw]):
    """Equally weighted executions, in random order.

    `draws[3]` is one of them, `draws["mu"]` the value of a site or deterministic in all: an array with the draws as its
    first axis, masked where a draw lacks the name, and a list (with None there) where the shapes differ.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def coin(heads):
        ...     fair = ab.sample("fair", dist.Bernoulli(0.5))
        ...     p = 0.5 if fair else ab.sample("p", dist.Beta(1.0, 1.0))
        ...     ab.observe("heads", dist.Binomial(10, p), heads)
        >>> draws = ab.infer(coin, 9).draws(1000, seed=1)
        >>> draws.names
        ['fair', 'p']
        >>> bool((draws["p"].mask == (draws["fair"] == 1)).all())
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
        """What the program returned in each draw."""
        return [draw.result for draw in self._draws]

    def to_dataframe(self) -> pd.DataFrame:
        """A row for each draw, a column for each number: `mu[0]` is the first of a vector, NaN what is absent."""
        # Imported where it is used, as are rich, matplotlib and ArviZ: they take longer than all else together.
        import pandas as pd

        return pd.DataFrame([{"path": draw.path, **_columns(draw)} for draw in self._draws])

    def __repr__(self) -> str:
        return f"Draws({len(self)} of {len(set(self.paths))} paths: {', '.join(self.names)})"


def _columns(draw: Draw) -> dict[str, Any]:
    out = {}
    for name, value in draw.items():
        array = np.asarray(value)
        for index in np.ndindex(array.shape):
            label = f"{name}[{','.join(map(str, index))}]" if index else name
            out[label] = array[index].item()
    return out
