"""The interpreter: one Python run per execution, for programs that no graph can hold.

It is the recorder with every site given a value at once. All values are then known, everything is computed as the
program goes, and whatever Python does with a value works: `float`, NumPy, pandas, an external simulator. The path is
the addresses met, together with the values of those discrete sites that the program asked about.

What the library adds to a run is kept small: the transforms, and the log densities of all statements of all points,
are functions of the form of a distribution (`forms.py`), traced once and evaluated with NumPy.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_leaves, tree_map
from numpyro.distributions import biject_to

from anabranch.divide import distributions
from anabranch.divide.evaluation import Evaluation, NamedValues
from anabranch.divide.forms import Form, Together
from anabranch.divide.internals import PathTracer, as_input
from anabranch.divide.recorder import Recorder, TooManySites
from anabranch.divide.recording import Choices, Program, Recording, Site
from anabranch.divide.sharing import Held, shared
from anabranch.divide.terms import Terms
from anabranch.limits import checkpoint

__all__ = ["BLOCK", "Interpreted", "interpret", "put_coordinates", "replay"]

BLOCK = 32
"""Runs whose densities are computed together, and between which work may be divided; more cost less by themselves."""
Assign = Callable[[Site, list[np.ndarray]], np.ndarray]


class _Assigning:
    """An oracle that gives every site its value when it is met."""

    def __init__(self, assign: Assign) -> None:
        self._assign = assign

    def assign(self, recording: Recording, site: Site) -> np.ndarray:
        known = site.described
        if known is not None:
            parameters = [x[None] for x in known.parameters]
        else:
            parameters = [np.asarray(as_input(x))[None] for x in tree_leaves(site.distribution)]
        dtype = np.int64 if site.discrete else np.float64
        return np.asarray(self._assign(site, parameters), dtype)

    def choose_value(self, recording: Recording, site: Site) -> np.ndarray:
        raise AssertionError("an interpreted run leaves no question open")

    choose_answer: Any = choose_value


def interpret(program: Program, assign: Assign) -> Recording:
    """Run the program once. `assign(site, parameters)` gives each site its value."""
    recorder = Recorder(program, _Assigning(assign))
    recorder.recording.concrete = True
    started = time.perf_counter()
    recording = recorder.run()
    program.pace.add(time.perf_counter() - started)
    for index in recording.asked:
        site = recording.sites[index]
        site.fixed = site.value.known
    return recording


def replay(values: Mapping[str, np.ndarray]) -> Assign:
    """Give each site the value that it has here."""
    return lambda site, _: values[site.name]


class Interpreted:
    """The backend of a path that the interpreter runs, once for each point: slow, and without a gradient."""

    def __init__(self, program: Program, recording: Recording) -> None:
        self.program, self.recording = program, recording
        self.samplers: dict[Any, Callable[..., Any]] = {}
        self.columns, self._fixed = recording.columns, recording.fixed

    def evaluate(self, points: np.ndarray) -> Evaluation:
        """The program runs once for each point."""
        seconds, choices = self.program.pace.seconds_for(len(points)), self.recording.choices
        return Evaluation.joined(
            shared(
                self.program, len(points), BLOCK, seconds,
                here=lambda rows: self.evaluate_here(points[rows]),
                order=lambda rows: InterpretedPoints(choices, points[rows]),
            )
        )  # fmt: skip

    def evaluate_here(self, points: np.ndarray) -> Evaluation:
        """The same, all of it in this process."""
        starts = range(0, max(len(points), 1), BLOCK)
        return Evaluation.joined([self._evaluate_block(points[start : start + BLOCK]) for start in starts])

    def _evaluate_block(self, points: np.ndarray) -> Evaluation:
        """The log densities of all runs of a block are computed together."""
        together, parts = Together(), []
        for jacobians, run in self._runs(points, together):
            parts.append(None if run is None else (jacobians, *run.once(Terms).densities(together)))
        started = time.perf_counter()
        together.finish()
        self.program.pace.add_to_last(time.perf_counter() - started)
        rows = np.array([_total(part) for part in parts], float).reshape(-1, 4)
        return Evaluation(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3].astype(bool))

    evaluate_on_host = evaluate

    def named(
        self, points: np.ndarray, traced: Callable[[Recording], Any] | None = None, at_once: int | None = None
    ) -> list[NamedValues]:
        """What `Path.outcomes` says of each point."""
        out = []
        for i, (_, run) in enumerate(self._runs(points)):
            if run is not None:
                wanted = concrete((run.deterministics, run.result) if traced is None else ({}, traced(run)))
                deterministics, result = tree_map(lambda x: x[None] if isinstance(x, np.ndarray) else x, wanted)
                varies = tree_map(lambda x: isinstance(x, np.ndarray), wanted)
                values = {name: value[None] for name, value in run.values.items()}
                out.append(NamedValues(np.array([i]), values, deterministics, result, varies))
        return out

    def points(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        n, choices = max((len(v) for v in values.values()), default=1), self.recording.choices
        arrays = {name: np.asarray(value) for name, value in values.items()}
        return np.concatenate(
            shared(
                self.program, n, BLOCK, self.program.pace.seconds_for(n),
                here=lambda rows: self.points_here(_some(arrays, rows), rows.stop - rows.start),
                order=lambda rows: InterpretedValues(choices, _some(arrays, rows), rows.stop - rows.start),
            )
        )  # fmt: skip

    def points_here(self, values: Mapping[str, np.ndarray], n: int) -> np.ndarray:
        """The same for n points, all of it in this process."""
        blocks = [slice(start, min(start + BLOCK, n)) for start in range(0, max(n, 1), BLOCK)]
        return np.concatenate([self._points_of_block(_some(values, rows), rows.stop - rows.start) for rows in blocks])

    def _points_of_block(self, values: Mapping[str, np.ndarray], n: int) -> np.ndarray:
        """The coordinates of all runs of a block are computed together."""
        out, together = np.full((n, self.recording.dim), np.nan), Together()
        for i in range(n):
            checkpoint()
            row = {name: value[i if len(value) > 1 else 0] for name, value in values.items()}
            run = interpret(self.program, replay(row))
            for site in run.sites:
                if site.name in self.columns:
                    put_coordinates(site, out[i], self.columns[site.name], together)
        together.finish()
        return out

    def _placed_at_once(self, points: np.ndarray) -> dict[str, tuple[Form, np.ndarray]]:
        """The values at all points of sites whose transform has no parameters, with the form for which they hold."""
        out = {}
        for site in self.recording.free:
            if site.described is None or site.discrete or not len(points):
                continue
            form, shape = site.described.form, site.unconstrained_shape
            function = form.function(distributions.placed, (shape, np.dtype(np.float64), False))
            if function is not None and not any(function.depends_on[1:]):
                # A copy: NumPy may compute with another rounding where the numbers are not side by side.
                coordinates = points[:, self.columns[site.name]].reshape(len(points), *shape).copy()
                parameters = [parameter[None] for parameter in site.described.parameters]
                out[site.name] = form, function([coordinates, *parameters])
        return out

    def _runs(
        self, points: np.ndarray, together: Together | None = None
    ) -> Iterator[tuple[list[np.ndarray], Recording | None]]:
        """For each point the run, or None if it takes another path, and the log Jacobians on the way to its values.

        Most of these have their values once `together` is finished.
        """
        ready = self._placed_at_once(points)
        for i, point in enumerate(points):
            checkpoint()
            jacobians: list[np.ndarray] = []
            here = {name: (form, values[i]) for name, (form, values) in ready.items()}
            try:
                run = interpret(self.program, self._at(point, here, together, jacobians))
            except (_LeftPath, TooManySites):
                yield jacobians, None
            else:
                yield jacobians, run if run.signature == self.recording.signature else None

    def _at(
        self,
        point: np.ndarray,
        ready: Mapping[str, tuple[Form, np.ndarray]],
        together: Together | None,
        jacobians: list[np.ndarray],
    ) -> Assign:
        """Give each site its value at a point, one of those that are `ready` if it has the form for it."""

        def value(site: Site, _: list[np.ndarray]) -> np.ndarray:
            if site.name in self._fixed:
                return self._fixed[site.name]
            columns = self.columns.get(site.name)
            if columns is None or columns.stop - columns.start != math.prod(site.unconstrained_shape):
                raise _LeftPath
            coordinates = point[columns].reshape(site.unconstrained_shape)
            if site.discrete:
                if (coordinates != np.round(coordinates)).any():
                    raise _LeftPath
                return coordinates
            known = site.described
            waiting = None if known is None else known.deferred(distributions.log_jacobian, coordinates)
            form, placed = ready.get(site.name, (None, None))
            if known is not None and form is not known.form:
                placed = known.of(distributions.placed, coordinates)
            if placed is None or waiting is None:
                transform = biject_to(site.support)
                traced = transform(jnp.asarray(coordinates))
                log_jacobian = jnp.sum(transform.log_abs_det_jacobian(coordinates, traced))
                placed = np.asarray(as_input(traced))
                jacobians.append(np.asarray(as_input(log_jacobian)).reshape(1))
            elif together is not None:
                jacobians.append(np.zeros(1))
                together.add(jacobians[-1], 0, *waiting)
            return placed

        return value


@dataclass(frozen=True)
class InterpretedPoints:
    """The order to evaluate points of a path that the interpreter runs."""

    choices: Choices
    points: np.ndarray

    def done(self, held: Held) -> Evaluation:
        backend = held.path([self.choices])._backend
        assert isinstance(backend, Interpreted)
        return backend.evaluate_here(self.points)


@dataclass(frozen=True)
class InterpretedValues:
    """The order to find the points of a path at which its sites have these values, each of n or of one for all."""

    choices: Choices
    values: dict[str, np.ndarray]
    n: int

    def done(self, held: Held) -> np.ndarray:
        backend = held.path([self.choices])._backend
        assert isinstance(backend, Interpreted)
        return backend.points_here(self.values, self.n)


class _LeftPath(BaseException):
    """The run met a site that the path does not have. Not an `Exception`: the program must not catch it."""


def _some(values: Mapping[str, np.ndarray], rows: slice) -> dict[str, np.ndarray]:
    """The values in some rows; what has one row has it for all."""
    return {name: value[rows] if len(value) > 1 else value for name, value in values.items()}


def _total(part: tuple[list[np.ndarray], np.ndarray, np.ndarray] | None) -> tuple[float, float, float, bool]:
    """Log prior with the Jacobian, log likelihood, log Jacobian, and whether the run stayed on the path."""
    if part is None:
        return -np.inf, 0.0, 0.0, False
    jacobians, log_priors, log_likelihoods = part
    jacobian = sum(float(log_jacobian[0]) for log_jacobian in jacobians)
    return sum(log_priors.tolist()) + jacobian, sum(log_likelihoods.tolist()), jacobian, True


def concrete(tree: Any) -> Any:
    """A pytree with the traced values of a concrete run replaced by their values."""
    return tree_map(
        lambda x: x.known if isinstance(x, PathTracer) else x, tree, is_leaf=lambda x: isinstance(x, PathTracer)
    )


def put_coordinates(site: Site, point: np.ndarray, columns: slice, together: Together) -> None:
    """Put the coordinates of a site of an interpreted run into a point; most are there once `together` is finished."""
    if site.discrete:
        point[columns] = site.value.known.reshape(-1)
        return
    waiting = None if site.described is None else site.described.deferred(distributions.coordinates, site.value.known)
    if waiting is not None:
        together.add(point, columns, *waiting)
        return
    with site.value._trace.current():
        point[columns] = np.asarray(as_input(biject_to(site.support).inv(site.value))).reshape(-1)
