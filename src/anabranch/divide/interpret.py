"""The interpreter: one Python run per execution, for programs that no graph can hold.

It is the recorder with every site given a value at once. All values are then known, everything is computed as the
program goes, and whatever Python does with a value works: `float`, NumPy, pandas, an external simulator. The path is
the addresses met, together with the values of those discrete sites that the program asked about.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves, tree_map
from numpyro.distributions import biject_to

from anabranch.divide.evaluation import Evaluation
from anabranch.divide.graph import Node
from anabranch.divide.internals import PathTracer, as_input
from anabranch.divide.recorder import Recorder, TooManySites
from anabranch.divide.recording import Program, Recording, Site

__all__ = ["Execution", "Interpreted", "interpret", "replay"]

Assign = Callable[[Site, list[np.ndarray]], np.ndarray]


@dataclass(frozen=True, eq=False)
class Execution:
    """One concrete run of a program."""

    recording: Recording
    values: dict[str, np.ndarray]

    @property
    def signature(self) -> tuple[Any, ...]:
        return self.recording.signature


class _Assigning:
    """An oracle for which nothing is open: every site has its value when it is met."""

    def __init__(self, assign: Assign) -> None:
        self._assign = assign
        self.values: dict[str, np.ndarray] = {}

    def assign(self, recording: Recording, site: Site) -> np.ndarray:
        parameters = [np.asarray(as_input(x))[None] for x in tree_leaves(site.distribution)]
        dtype = np.int64 if site.discrete else np.float64
        value = np.asarray(self._assign(site, parameters), dtype)
        self.values[site.name] = value
        return value

    def choose_value(self, recording: Recording, site: Site) -> np.ndarray:
        raise AssertionError("an interpreted run leaves no question open")

    def choose_answer(self, recording: Recording, node: Node) -> np.ndarray:
        raise AssertionError("an interpreted run leaves no question open")


def interpret(program: Program, assign: Assign) -> Execution:
    """Run the program once. `assign(site, parameters)` gives each site its value."""
    oracle = _Assigning(assign)
    recording = Recorder(program, oracle).run()
    for index in recording.asked:
        site = recording.sites[index]
        site.fixed = site.value.known
    return Execution(recording, oracle.values)


def replay(values: Mapping[str, np.ndarray]) -> Assign:
    """Give each site the value it had."""
    return lambda site, _: values[site.name]


class Interpreted:
    """The backend of a path that is run by the interpreter: slow, universal, without a gradient."""

    def __init__(self, program: Program, execution: Execution) -> None:
        self.program, self.execution = program, execution
        self.columns: dict[str, slice] = {}
        for site in execution.recording.free:
            self.columns[site.name] = slice(self.dim, self.dim + int(np.prod(site.unconstrained_shape)))
        self._fixed = {s.name: s.fixed for s in execution.recording.sites if s.fixed is not None}

    @property
    def dim(self) -> int:
        return max((columns.stop for columns in self.columns.values()), default=0)

    def evaluate(self, points: np.ndarray) -> Evaluation:
        rows = np.array([self._evaluate_one(point) for point in points], float).reshape(-1, 4)
        return Evaluation(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3].astype(bool))

    evaluate_on_host = evaluate

    def named(self, points: np.ndarray) -> list[tuple[np.ndarray, dict[str, np.ndarray], dict[str, Any], Any]]:
        out = []
        for i, point in enumerate(points):
            run = self._run(self._at(point))
            if run is not None:
                sites, deterministics, result = concrete(
                    (run.values, run.recording.deterministics, run.recording.result)
                )
                batched = {name: value[None] for name, value in sites.items()}
                out.append((np.array([i]), batched, _with_axis(deterministics), _with_axis(result)))
        return out

    def points(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        n = max((len(v) for v in values.values()), default=1)
        out = np.full((n, self.dim), np.nan)
        for i in range(n):
            row = {name: np.asarray(value)[i if len(value) > 1 else 0] for name, value in values.items()}
            run = interpret(self.program, replay(row))
            for site in run.recording.sites:
                if site.name in self.columns:
                    out[i, self.columns[site.name]] = _coordinates(site)
        return out

    def _at(self, point: np.ndarray, log_jacobians: list[float] | None = None) -> Assign:
        """Give each site its value at a point; the logarithms of the Jacobians on the way are added to the list."""

        def value(site: Site, _: list[np.ndarray]) -> np.ndarray:
            if site.name in self._fixed:
                return self._fixed[site.name]
            columns = self.columns.get(site.name)
            if columns is None or columns.stop - columns.start != int(np.prod(site.unconstrained_shape)):
                raise _LeftPath
            coordinates = point[columns].reshape(site.unconstrained_shape)
            if site.discrete:
                if (coordinates != np.round(coordinates)).any():
                    raise _LeftPath
                return coordinates
            transform = biject_to(site.distribution.support)
            constrained = transform(jnp.asarray(coordinates))
            if log_jacobians is not None:
                log_jacobians.append(_number(jnp.sum(transform.log_abs_det_jacobian(coordinates, constrained))))
            return np.asarray(as_input(constrained))

        return value

    def _run(self, assign: Assign) -> Execution | None:
        """The run with these values, or None if it goes another way."""
        try:
            run = interpret(self.program, assign)
        except (_LeftPath, TooManySites):
            return None
        return run if run.signature == self.execution.signature else None

    def _evaluate_one(self, point: np.ndarray) -> tuple[float, float, float, bool]:
        log_jacobians: list[float] = []
        run = self._run(self._at(point, log_jacobians))
        if run is None:
            return -np.inf, 0.0, 0.0, False
        recording, jacobian = run.recording, sum(log_jacobians)
        prior = sum(_number(recording.log_prob(site)) for site in recording.sites)
        likelihood = sum(_number(recording.log_likelihood(o)) for o in recording.observations)
        return prior + jacobian, likelihood, jacobian, True


class _LeftPath(BaseException):
    """The run met a site that the path does not have. Not an `Exception`: the program must not catch it."""


def concrete(tree: Any) -> Any:
    """A pytree with the traced values of an interpreted run replaced by what they are."""
    return tree_map(lambda x: x.known if isinstance(x, PathTracer) else x, tree, is_leaf=_is_traced)


def _is_traced(x: Any) -> bool:
    return isinstance(x, PathTracer)


def _with_axis(tree: Any) -> Any:
    return tree_map(lambda x: x[None] if isinstance(x, np.ndarray) else x, tree)


def _number(value: Any) -> float:
    return float(np.asarray(as_input(value)))


def _coordinates(site: Site) -> np.ndarray:
    if site.discrete:
        return site.value.known.reshape(-1)
    with site.value._trace.current():
        return np.asarray(as_input(biject_to(site.distribution.support).inv(site.value))).reshape(-1)
