"""A path of a loaded posterior: what was saved of it, and the rest from the program, if that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.combine.outcomes import outcomes_at
from anabranch.divide import NamedValues, Path, Program, SiteInfo, rebuild
from anabranch.label import Label

__all__ = ["SavedPath", "facts_of", "missing_program", "read", "read_facts", "stored_values", "written"]


class _NotSaved:
    """Stands for the program's return value, which is not saved."""


NOT_SAVED = _NotSaved()


def missing_program(name: str, folder: str) -> Any:
    """A function with the program's name that says how to load the program."""

    def program(*args: Any, **kwargs: Any) -> Any:
        raise errors.NeedsProgram(
            f"this answer runs the program, and {name} was not given when the posterior in {folder} was loaded",
            remedy=f'Load it with the program and its data: ab.load("{folder}", {name}, data)',
        )

    program.__name__ = name
    return program


class SavedPath:
    """A saved path: its facts and the values at its draws; it is rebuilt for anything else."""

    def __init__(
        self,
        program: Program,
        choices: Sequence[Any],
        facts: Mapping[str, Any],
        stored: tuple[np.ndarray, Sequence[NamedValues]] | None,
    ) -> None:
        self.program, self.choices, self._stored = program, choices, stored
        vars(self).update(facts)

    @cached_property
    def _rebuilt(self) -> Path:
        return rebuild(self.program, self.choices)

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        """The number of each draw by its coordinates."""
        return {} if self._stored is None else {row.tobytes(): k for k, row in enumerate(self._stored[0])}

    def outcomes(self, points: Any) -> list[NamedValues]:
        """What `Path.outcomes` gives: of saved draws without the program, but for its return value."""
        found = self._lookup(np.ascontiguousarray(points, np.float64))
        if found is None or not self.is_without_program:
            return self._rebuilt.outcomes(points)
        assert self._stored is not None
        out = []
        for part in self._stored[1]:
            place = np.full(len(self._stored[0]), -1)
            place[part.index] = np.arange(len(part.index))
            mine = np.flatnonzero(place[found] >= 0)
            rows = place[found][mine]
            varies = part.varies[0]
            deterministics = {n: x[rows] if varies[n] else x for n, x in part.deterministics.items()}
            values = {n: x[rows] for n, x in part.values.items()}
            if len(mine):
                out.append(NamedValues(mine, values, deterministics, NOT_SAVED, (varies, False)))
        return out

    def values(self, points: Any) -> dict[str, np.ndarray]:
        """What `Path.values` gives."""
        if self._lookup(np.ascontiguousarray(points, np.float64)) is None or not self.is_without_program:
            return self._rebuilt.values(points)
        out: dict[str, np.ndarray] = {}
        for part in self.outcomes(points):
            for name, value in part.values.items():
                out.setdefault(name, np.zeros((len(points), *value.shape[1:]), value.dtype))[part.index] = value
        return out

    def _lookup(self, points: np.ndarray) -> np.ndarray | None:
        """The numbers of draws with these coordinates; None if one of them is no saved draw."""
        numbers = [self._rows.get(row.tobytes(), -1) for row in points]
        return None if -1 in numbers else np.array(numbers, int)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "choices" not in vars(self):  # pickle and copy ask for these
            raise AttributeError(name)
        return getattr(self._rebuilt, name)

    def __repr__(self) -> str:
        return f"SavedPath({vars(self).get('description')!r})"


def facts_of(path: Path) -> dict[str, Any]:
    """What is saved of a path, as plain numbers and text."""
    plain = (
        "description", "dim", "prior_probability", "log_prior_probability", "interpreted", "apart", "decisions",
    )  # fmt: skip
    sites = [
        {"name": s.name, "shape": list(s.shape), "support": s.support, "discrete": bool(s.discrete), "where": s.where,
         "columns": None if s.columns is None else [s.columns.start, s.columns.stop],
         "value": None if s.value is None else s.value.tolist()}
        for s in path.sites
    ]  # fmt: skip
    constants = {name: written(value) for name, value in path.constants.items()}
    return {
        **{name: getattr(path, name) for name in plain},
        "constants": constants,
        "names": path.names,
        "sites": sites,
    }


def read_facts(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a path from what was saved."""
    sites = tuple(
        SiteInfo(s["name"], tuple(s["shape"]), s["support"], s["discrete"], s["where"],
                 None if s["columns"] is None else slice(*s["columns"]),
                 None if s["value"] is None else np.array(s["value"], np.int64 if s["discrete"] else np.float64))
        for s in saved["sites"]
    )  # fmt: skip
    discrete = np.zeros(saved["dim"], bool)
    for site in sites:
        if site.discrete and site.columns is not None:
            discrete[site.columns] = True
    constants = {name: read(value) for name, value in saved["constants"].items()}
    addresses = tuple(site.name for site in sites)
    return {**saved, "sites": sites, "discrete": discrete, "addresses": addresses, "constants": constants}


def written(value: Any) -> Any:
    """A constant of a path for JSON, which has no tuples."""
    return {"tuple": list(map(written, value))} if isinstance(value, tuple) else value


def read(value: Any) -> Any:
    """What `written` has written."""
    return tuple(map(read, value["tuple"])) if isinstance(value, dict) else value


def stored_values(path: Path, points: np.ndarray) -> list[NamedValues]:
    """The numbers and labels at the draws, those with the same names, shapes and labels together."""
    together: dict[Any, list[NamedValues]] = {}
    for part in outcomes_at(path, points):
        labels = {n: x for n, x in part.deterministics.items() if isinstance(x, Label)}
        kept = {n: np.asarray(x) for n, x in part.deterministics.items() if _is_numeric(x)}
        varies = {n: bool(part.varies[0][n]) for n in kept} | dict.fromkeys(labels, False)
        shapes = [(n, x.shape[1:], x.dtype.str) for n, x in part.values.items()]
        constants = [
            (n, x.shape[1:] if varies[n] else x.shape, x.dtype.str, varies[n], None if varies[n] else x.tobytes())
            for n, x in kept.items()
        ]
        key = (tuple(shapes), tuple(constants), tuple((n, repr(x)) for n, x in labels.items()))
        same = replace(part, deterministics={**kept, **labels}, result=None, varies=(varies, False))
        together.setdefault(key, []).append(same)
    return [_joined(parts) for parts in together.values()]


def _is_numeric(value: Any) -> bool:
    return np.asarray(value).dtype.kind in "biuf" if not isinstance(value, dict | list | tuple) else False


def _joined(parts: Sequence[NamedValues]) -> NamedValues:
    """Several parts with the same names as one."""
    first = parts[0]
    values = {n: np.concatenate([part.values[n] for part in parts]) for n in first.values}
    varies = first.varies[0]
    deterministics = {
        n: np.concatenate([part.deterministics[n] for part in parts]) if varies[n] else x
        for n, x in first.deterministics.items()
    }
    return NamedValues(np.concatenate([part.index for part in parts]), values, deterministics, None, first.varies)
