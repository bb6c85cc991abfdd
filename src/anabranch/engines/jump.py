"""One step of reversible jump, for a population of executions.

The move is applied, the program executed with x', and the move applied once more from there, which gives γ(x'),
q(a' | x') and h(h(x, a)), which must be (x, a). Values outside a support have no density, and the move is refused; any
other mismatch is an error that names the move.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from anabranch import errors
from anabranch.divide import Constraints, Executions
from anabranch.engines.jacobian import TRACE, Branch, bare, of_trace
from anabranch.engines.markov import accepted
from anabranch.engines.moves import Move, PathMove
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Key, Traces

__all__ = ["Jump"]

_TOLERANCE = 1e-6
"""Relative difference up to which two numbers count as the same."""
_ROUNDING = 1e3 * np.finfo(float).eps
"""Relative rounding error of a number that a move computes."""


@dataclass
class _Application:
    """A move applied to points (x, a), one in each row: log q(a | x) and the image (x', a') = h(x, a).

    `branch` is the number among the `branches`, decision sequences of the move, of each row; -1 for rows without one.
    """

    point: Traces
    log_q: np.ndarray
    image: Traces
    branches: list[Branch]
    branch: np.ndarray

    def add(self, branch: Branch, arrival: Executions) -> None:
        members = arrival.members
        self.branch[members] = len(self.branches)
        self.branches.append(branch)
        for key, (values, log_probs) in arrival.scores().sites.items():
            if not of_trace(key[0]):
                self.point.put(key, members, values)
                self.log_q[members] += log_probs
        for name, term in branch.outputs.items():
            values = arrival.over_members(term)
            self.image.put((name, values.shape[1:]), members, values)


class Jump:
    """A move, with its programs on each path; `step` applies it to a population."""

    def __init__(self, move: Move, runner: Runner) -> None:
        self.move, self.runner = move, runner
        self.tried = self.accepted = 0
        self._by_path: dict[Any, PathMove] = {}

    def step(self, state: Traces, rng: np.random.Generator) -> Traces:
        """The executions after one step of each chain."""
        n = len(state)
        there = self._apply(state, _point_of(state).given(), np.ones(n, bool), rng)
        given = _part(there.image, trace=True)
        new = self.runner.execute(n, given.given(redraw_outside=True))
        possible = self._has_the_trace(state, new, given) & (new.log_density > -np.inf)
        back = self._apply(new, there.image.given(redraw_outside=True), possible, rng)
        possible &= self._has_the_draws(new, there, back, possible)
        log_ratio = np.full(n, -np.inf)
        rows = np.flatnonzero(possible)
        if len(rows):
            log_jacobian = self._log_jacobian(state, there, back, rows)
            log_ratio[rows] = (new.log_density + back.log_q - state.log_density - there.log_q)[rows] + log_jacobian
        taken = accepted(log_ratio, rng)
        self.tried, self.accepted = self.tried + n, self.accepted + int(taken.sum())
        return state.replaced(taken, new)

    def _apply(self, traces: Traces, given: Constraints, wanted: np.ndarray, rng: np.random.Generator) -> _Application:
        """Apply the move to the wanted traces; auxiliary variables that are not given are drawn."""
        n = len(traces)
        out = _Application(_point_of(traces), np.zeros(n), Traces.empty([], n), [], np.full(n, -1))
        for path, rows in traces.by_path():
            rows = rows[wanted[rows]]
            if len(rows):
                if path.signature not in self._by_path:
                    self._by_path[path.signature] = PathMove(self.move, path, self.runner.program)
                # Each path has its own seed: with one for all, chains on two paths would have the same draws.
                for branch, arrival in self._by_path[path.signature].send(given, rows, int(rng.integers(2**62))):
                    out.add(branch, arrival)
        return out

    def _has_the_trace(self, state: Traces, new: Traces, given: Traces) -> np.ndarray:
        """The rows in which the program was executed with x', of which no value was drawn instead."""
        for path, rows in new.by_path():
            for site in path.sites:
                if site.discrete:
                    self._check_whole((site.name, site.shape), given, rows)
        possible = (new.path >= 0) & ~_replaced(given, new)
        fault, remedy = "leads from the path ({}) to ({}), ", "Return a trace with {} that the program meets"
        missing = fault + "and returns no value of the shape {} for it"
        extra = fault + "which has no such site of the shape {}"
        self._check_same(new, given, possible, missing, remedy.format("every site"), state, new)
        self._check_same(given, new, possible, extra, remedy.format("only the sites"), state, new)
        return possible

    def _has_the_draws(self, new: Traces, there: _Application, back: _Application, possible: np.ndarray) -> np.ndarray:
        """The rows in which the proposal from x' can draw a'."""
        given, drawn = _part(there.image, trace=False), _part(back.point, trace=False)
        for number, branch in enumerate(back.branches):
            for site in branch.recording.sites:
                if site.discrete and not of_trace(site.name):
                    self._check_whole((site.name, site.shape), given, np.flatnonzero(back.branch == number))
        possible = possible & ~_replaced(given, drawn)
        fault, drawn_there = "cannot be undone from the path ({}): ", "auxiliary variables drawn given the new trace"
        missing = "its proposal draws the auxiliary variable there, of the shape {}, and the involution returns no "
        extra = "the involution returns the auxiliary variable, of the shape {}, and the proposal does not draw it "
        self._check_same(drawn, given, possible, f"{fault}{missing}value for it", f"Return all {drawn_there}", new)
        self._check_same(given, drawn, possible, f"{fault}{extra}there", f"Return only {drawn_there}", new)
        return possible

    def _check_same(
        self, one: Traces, other: Traces, rows: np.ndarray, fault: str, remedy: str, *traces: Traces
    ) -> None:
        """Refuse values that one has and the other has not; the fault names the paths of the traces, and the shape."""
        for key, row in _lacking(one, other, rows):
            what = fault.format(*(_path(each, row) for each in traces), key[1])
            raise errors.EngineCannotRun(f"the move {self.move.name!r} {what}", site=bare(key[0]), remedy=remedy)

    def _check_whole(self, key: Key, given: Traces, rows: np.ndarray) -> None:
        if key not in given.values:
            return
        values = given.values[key][rows][given.present[key][rows]]
        broken = values != np.round(values)
        if broken.any():
            raise errors.EngineCannotRun(
                f"the move {self.move.name!r} gives it the value {values[broken][0]:g}, and it is discrete",
                site=bare(key[0]),
                remedy="Return an integer",
            )

    @np.errstate(all="ignore")  # at the edge of a support, slopes are infinite
    def _log_jacobian(self, state: Traces, there: _Application, back: _Application, rows: np.ndarray) -> np.ndarray:
        """log |det ∂h| in the rows, after all checks of the involution."""
        log_there, log_back, amplified = np.zeros((3, len(state)))
        pairs = np.stack([there.branch, back.branch], axis=1)
        for pair in np.unique(pairs[rows], axis=0):
            members = rows[(pairs[rows] == pair).all(axis=1)]
            start, goal = there.branches[pair[0]], back.branches[pair[1]]
            if start.size != goal.size:
                raise errors.EngineCannotRun(
                    f"the move {self.move.name!r} from the path ({_path(state, members[0])}): an involution must keep "
                    f"the number of continuous values: {start.size} went in, {goal.size} came out",
                    remedy="Draw one auxiliary number for each that is added, and return one for each that is taken "
                    "away",
                )
            forwards, backwards = start.jacobian(goal, there.point, members), goal.jacobian(start, back.point, members)
            log_there[members], log_back[members] = (np.linalg.slogdet(each)[1] for each in (forwards, backwards))
            amplified[members] = np.abs(backwards).sum(axis=2).max(axis=1, initial=0.0)
        # The way back amplifies the rounding of the values that it starts from.
        rounding = _ROUNDING * amplified * _largest(back.point)
        # The move is refused where all digits are lost, as at the edge of a support, and the Jacobian is zero.
        checked = rows[(log_there[rows] != -np.inf) | np.isfinite(rounding[rows])]
        self._check_return(state, there.point, back.image, checked, np.nan_to_num(rounding, posinf=np.inf))
        self._check_product(state, log_there + log_back, checked[~(rounding[checked] >= _TOLERANCE)])
        return log_there[rows]

    def _check_product(self, state: Traces, log_product: np.ndarray, rows: np.ndarray) -> None:
        product = np.exp(log_product[rows])
        broken = ~(np.abs(product - 1) < 1e-4)
        if broken.any():
            raise errors.EngineCannotRun(
                f"the Jacobians of the move {self.move.name!r} there and back, from the path "
                f"({_path(state, rows[broken][0])}), multiply to {product[broken][0]:.3g} instead of 1",
                remedy="Compute the new values with jax.numpy, from what has a derivative there: no stop_gradient, no "
                "rounding, no square root of zero",
            )

    def _check_return(
        self, state: Traces, point: Traces, returned: Traces, rows: np.ndarray, rounding: np.ndarray
    ) -> None:
        asked = np.isin(np.arange(len(state)), rows)
        for one, other, what in ((point, returned, "lacks it"), (returned, point, "has it, and (x, a) has not")):
            for key, row in _lacking(one, other, asked):
                raise self._not_an_involution(f"h(h(x, a)) {what}", key, _path(state, row))
        for key in returned.values:
            ours = rows[returned.present[key][rows]]
            before, after = point.values[key][ours], returned.values[key][ours]
            slack = rounding[ours].reshape(-1, *[1] * len(key[1]))
            broken = ~(np.abs(after - before) <= _TOLERANCE * (1 + np.abs(before)) + slack)
            if broken.any():
                text = f"h(h(x, a)) differs from (x, a) by {np.abs(after - before)[broken][0]:.2g}"
                raise self._not_an_involution(text, key, _path(state, ours[np.argwhere(broken)[0, 0]]))

    def _not_an_involution(self, what: str, key: Key, path: str) -> errors.EngineCannotRun:
        return errors.EngineCannotRun(
            f"{what}: the move {self.move.name!r}, from the path ({path}), is not an involution",
            site=bare(key[0]),
            remedy="Applied twice, it must give back the trace and the auxiliary variables that it was given",
        )


def _path(traces: Traces, row: int) -> str:
    return traces.paths[traces.path[row]].description


def _point_of(traces: Traces) -> Traces:
    """The values of traces, as part of a point."""
    out = Traces.empty(traces.paths, len(traces))
    out.values = {(TRACE + name, shape): values for (name, shape), values in traces.values.items()}
    out.present = {(TRACE + name, shape): rows for (name, shape), rows in traces.present.items()}
    return out


def _part(point: Traces, *, trace: bool) -> Traces:
    """The trace, or the auxiliary variables, under the user's names."""
    out = Traces.empty(point.paths, len(point))
    for name, shape in point.values:
        if of_trace(name) is trace:
            out.values[bare(name), shape] = point.values[name, shape]
            out.present[bare(name), shape] = point.present[name, shape]
    return out


def _largest(point: Traces) -> np.ndarray:
    """The largest absolute value in each row."""
    out = np.zeros(len(point))
    for key, values in point.values.items():
        absolute = np.abs(values).reshape(len(out), -1).max(axis=1, initial=0.0)
        out = np.maximum(out, np.where(point.present[key], absolute, 0.0))
    return out


def _replaced(given: Traces, met: Traces) -> np.ndarray:
    """The rows in which a given value is outside the support, so that another was drawn instead."""
    out = np.zeros(len(given), bool)
    for key in given.values.keys() & met.values.keys():
        differs = (given.values[key] != met.values[key]).reshape(len(out), -1).any(axis=1)
        out |= differs & given.present[key] & met.present[key]
    return out


def _lacking(one: Traces, other: Traces, rows: np.ndarray) -> Iterator[tuple[Key, int]]:
    """Values that one has and the other has not in some of the rows, each with the first such row."""
    for key, present in one.present.items():
        alone = present & rows
        if key in other.present:
            alone = alone & ~other.present[key]
        if alone.any():
            yield key, int(alone.argmax())
