"""Populations of whole executions, made by a `Runner`.

The trace of an execution has the value of every site, with its term of the log density,

    log γ(x) = Σ_s log f_s(x_s | sites before) + Σ_o log g_o(y_o | sites before)        (paper, equation 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anabranch.divide import Constraints, Path

__all__ = ["Key", "Traces", "valid"]

Key = tuple[str, tuple[int, ...]]
"""The name and the shape of a site; the shape may differ from path to path."""


@dataclass
class Traces:
    """Executions, one row each.

    Attributes:
        paths: the paths that `path` numbers.
        path: the path that each execution took; -1 for one that ran beyond the bound on sites.
        values: of each site, (n, *shape); zero in rows without it.
        log_probs: of each site, its log density (n,); zero in rows without it.
        present: of each site, the rows that have it (n,).
        log_likelihood: Σ_o log g_o of each execution (n,).
        points: the point of the path of each execution that the interpreter ran, which would have to run it again to
            compute it later; None for all others (n,).
    """

    paths: list[Path]
    path: np.ndarray
    log_likelihood: np.ndarray
    values: dict[Key, np.ndarray] = field(default_factory=dict)
    log_probs: dict[Key, np.ndarray] = field(default_factory=dict)
    present: dict[Key, np.ndarray] = field(default_factory=dict)
    points: np.ndarray | None = field(default=None, kw_only=True)

    @classmethod
    def empty(cls, paths: list[Path], n: int) -> Traces:
        """Rows to be filled, which stand for executions beyond the bound on sites."""
        return cls(paths, np.full(n, -1), np.full(n, -np.inf))

    def __len__(self) -> int:
        return len(self.path)

    @property
    def log_prior(self) -> np.ndarray:
        """Σ_s log f_s."""
        return sum(self.log_probs.values(), np.zeros(len(self)))

    @property
    def log_density(self) -> np.ndarray:
        """log γ; minus infinity beyond the bound on sites, and where it is NaN or plus infinity."""
        return valid(self.log_prior + self.log_likelihood)

    @property
    def valid_log_likelihood(self) -> np.ndarray:
        """The log likelihood; minus infinity beyond the bound on sites, and where it is NaN or plus infinity."""
        return np.where(self.path >= 0, valid(self.log_likelihood), -np.inf)

    @property
    def sites(self) -> np.ndarray:
        """How many sites each execution has."""
        return sum((mask.astype(int) for mask in self.present.values()), np.zeros(len(self), int))

    def fill(self, rows: np.ndarray, path: int, log_likelihood: np.ndarray, sites: Mapping[Key, Any]) -> None:
        """Put executions of one path, with values and log densities of each site, into some of the rows."""
        self.path[rows], self.log_likelihood[rows] = path, log_likelihood
        for key, (values, log_probs) in sites.items():
            self.put(key, rows, values, log_probs)

    def put(self, key: Key, rows: np.ndarray, values: np.ndarray, log_probs: np.ndarray | float = 0.0) -> None:
        """Give a site its values in some of the rows."""
        self._column(key)
        self.values[key][rows], self.log_probs[key][rows], self.present[key][rows] = values, log_probs, True

    def _column(self, key: Key) -> None:
        if key not in self.values:
            n = len(self)
            self.values[key] = np.zeros((n, *key[1]))
            self.log_probs[key], self.present[key] = np.zeros(n), np.zeros(n, bool)

    @property
    def _columns(self) -> list[dict[Key, np.ndarray]]:
        return [self.values, self.log_probs, self.present]

    def with_sites(self, keys: Iterable[Key]) -> Traces:
        """The same executions with some of their sites alone."""
        kept = list(keys)
        columns = [{key: column[key] for key in kept} for column in self._columns]
        return Traces(self.paths, self.path, self.log_likelihood, *columns)

    def take(self, index: np.ndarray) -> Traces:
        """The executions at `index`, in that order."""
        kept = [key for key, mask in self.present.items() if mask[index].any()]
        columns = [{key: column[key][index] for key in kept} for column in self._columns]
        points = None if self.points is None else self.points[index]
        return Traces(self.paths, self.path[index], self.log_likelihood[index], *columns, points=points)

    def replaced(self, chosen: np.ndarray, by: Traces) -> Traces:
        """The same with the executions of another population in the chosen rows."""
        return Traces.joined([self, by]).take(np.arange(len(self)) + len(self) * chosen)

    def with_rows(self, rows: np.ndarray, new: Traces) -> Traces:
        """The same with the executions in some rows, in ascending order, replaced by new ones, one for each row."""
        if len(rows) in (0, len(self)):
            return new if len(rows) else self
        index = np.arange(len(self))
        index[rows] = len(self) + np.arange(len(rows))
        return Traces.joined([self, new]).take(index)

    @classmethod
    def joined(cls, parts: Sequence[Traces]) -> Traces:
        """All executions of several populations of one runner."""
        out = cls.empty(parts[0].paths, sum(map(len, parts)))
        if any(part.points is not None for part in parts):
            out.points = np.concatenate([part._points for part in parts])
        for key in sorted(set().union(*(part.values for part in parts))):
            out._column(key)
        ends = np.cumsum([len(part) for part in parts])
        for end, part in zip(ends, parts, strict=True):
            rows = slice(end - len(part), end)
            out.path[rows], out.log_likelihood[rows] = part.path, part.log_likelihood
            for column, of_part in zip(out._columns, part._columns, strict=True):
                for key, values in of_part.items():
                    column[key][rows] = values
        return out

    @property
    def _points(self) -> np.ndarray:
        return np.full(len(self), None) if self.points is None else self.points

    def coordinates(self, path: Path, rows: np.ndarray) -> np.ndarray:
        """The executions in some rows as points of their path; NaN where there is none."""
        known = np.array([point is not None for point in self._points[rows]], bool)
        out = np.full((len(rows), path.dim), np.nan)
        if known.any():
            out[known] = np.stack(list(self._points[rows[known]]))
        if not known.all():
            out[~known] = path.coordinates(self.named(path, rows[~known]))
        return out

    def given(self, *, redraw_outside: bool = False) -> Constraints:
        """The constraints of an execution with these values."""
        return Constraints(dict(self.values), dict(self.present), redraw_outside=redraw_outside)

    def by_path(self) -> Iterator[tuple[Path, np.ndarray]]:
        for number in np.unique(self.path[self.path >= 0]):
            yield self.paths[number], np.flatnonzero(self.path == number)

    def named(self, path: Path, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The values of the sites of a path in some rows, by name."""
        out = {}
        for site in path.sites:
            values = self.values[site.name, site.shape][rows]
            out[site.name] = values.astype(np.int64) if site.discrete else values
        return out


def valid(log_density: np.ndarray) -> np.ndarray:
    """The same with minus infinity where it is NaN or plus infinity: such an execution counts as impossible."""
    return np.where(log_density < np.inf, log_density, -np.inf)  # which NaN is not
