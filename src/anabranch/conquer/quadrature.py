"""Quadrature: the evidence of a path in which all coordinates but one or two are Gaussian given these.

The Gaussian ones are integrated out (`gaussian_marginal`): regressions with unknown noise, hierarchical models.

The range of prior draws is divided into cells. The density is integrated over each by a product Gauss-Legendre rule,

    ∫_c γ(x) dx ≈ Σ_i w_i γ(x_i),

against that over its halves (in two dimensions its quarters): a cell whose two values differ is divided again. So is
one in which the polynomial through log γ at the nodes is so far from it at those of the halves that a mode may hide
there. Where cells at an edge have mass, or would have with the largest likelihood met, the range is extended.

Draws are uniform within cells chosen by their mass, with importance weights by the polynomial through log γ at the
nodes of the cell. At some of them log γ itself is evaluated: the mean of their weights is an unbiased estimate of the
evidence, which must agree. Later visits look for narrow modes: at none of many prior draws may the density be far above
that at the nodes around it.

A density with a jump, or with so narrow a mode that dividing does not come to an end, is left to the other methods.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch import errors
from anabranch.conquer.cells import LOWEST, Cells, Rule, drawn
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.gaussian_marginal import Frame, GaussianMarginal, gaussian_marginal
from anabranch.conquer.target import Target
from anabranch.conquer.weights import log_mean, relative_sd
from anabranch.limits import LimitReached
from anabranch.settings import check, positive, whole

__all__ = ["Quadrature", "QuadratureState"]

_MAX_DISAGREEMENT = 5.0
"""Standard errors by which the evidence by importance weights may differ from that by cells."""
_MARGIN = 5.0
"""Nats by which the likelihood may exceed the largest one met."""
_RISE, _SMOOTH = 4.0, 0.5
"""A mode between nodes may rise above them by so many times the error of the polynomial, in nats; an error below the
second is none of a hidden mode."""
_SURPRISE = 1.0
"""Nats by which the density at a draw may exceed that at the nodes around it."""
_AT_ONCE = 2**18
"""Evaluations of the path for prior draws that are looked at at once; between them the time may end a visit."""
_FEWEST = 1_000
"""Evaluations for which one coordinate is worth trying; five times as many for two."""
_SHARE = 8
"""Evaluations of a visit for each draw: the coordinates integrated out are drawn given it, which takes as long. A path
that was scanned has mass, and a draw for as many evaluations that it may take."""
_MIN_ERROR = 1e-8
"""The least error of log Z, for rounding."""


@dataclass(frozen=True)
class QuadratureState:
    """The frame, the cells, the log evidence with its error, and the draws so far.

    Attributes:
        frame: of the density without the Gaussian coordinates.
        cells: None before they are there, and where they could not be had.
        points: the draws, in the coordinates of the path.
        log_weights: of the draws, log γ − log q.
        scanned: prior draws at which the density was as the cells show it.
    """

    frame: Frame
    cells: Cells | None = None
    log_evidence: float = -np.inf
    error: float = np.inf
    points: np.ndarray = field(default_factory=lambda: np.zeros((0, 1)))
    log_weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    scanned: int = 0

    @property
    def is_solved(self) -> bool:
        """False before the cells are there, and where they could not be had."""
        return self.cells is not None


@dataclass(frozen=True)
class Quadrature:
    """Integration over cells, for a path in which all coordinates but one or two are Gaussian given these.

    Args:
        max_dim: coordinates that are not Gaussian, one or two; two take thousands of evaluations, in vain where the
            density is not smooth.
        max_gaussian: Gaussian coordinates, at most; d of them make an evaluation take 1 + 2d + d(d − 1)/2 of the path.
        tolerance: error of the evidence, relative; less takes more evaluations.
        nodes: nodes of a cell along one coordinate; more make fewer and larger cells.
        prior_draws: prior draws whose range is divided first, and at which the cells must show the density that there
            is; more find narrower modes.
        first_cells: cells along a coordinate with which it begins, half as many for two; more find narrower modes.
        max_evaluations: evaluations for one coordinate, ten times as many for two; a density that takes more is left
            to other methods.
        max_extensions: times that the range is extended; fewer give up heavy tails.
        max_scan: prior draws that look for narrow modes; more find rarer ones.
        max_rows: evaluations of the path that these may take, and the draws as many, but for the first thousand; fewer
            take less time where many coordinates are integrated out.
        checks: draws at which the density is evaluated; more find smaller faults of the cells.
        min_draws: draws of a visit, at least.
        max_draws: draws in all, at most.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def line(x, y):
        ...     slope, sd = ab.sample("slope", dist.Normal(0.0, 1.0)), ab.sample("sd", dist.HalfNormal(1.0))
        ...     ab.observe("y", dist.Normal(slope * x, sd), y)
        >>> x = np.array([-1.0, 0.0, 1.0])
        >>> posterior = ab.infer(line, x, 2 * x + np.array([0.1, -0.2, 0.1]))
        >>> posterior.paths["method"].tolist(), posterior.log_evidence_sd < 1e-5
        (['Quadrature'], True)
    """

    max_dim: int = 1
    max_gaussian: int = 60
    tolerance: float = 1e-6
    nodes: int = 10
    prior_draws: int = 128
    first_cells: int = 6
    max_evaluations: int = 5_000
    max_extensions: int = 12
    max_scan: int = 20_000
    max_rows: int = 2_000_000
    checks: int = 64
    min_draws: int = 100
    max_draws: int = 40_000

    def __post_init__(self) -> None:
        check(self, max_dim=whole(1, 2), max_gaussian=whole(), tolerance=positive(), nodes=whole(2),
              prior_draws=whole(2), first_cells=whole(2), max_evaluations=whole(1), max_extensions=whole(),
              max_scan=whole(), max_rows=whole(), checks=whole(2), min_draws=whole(1), max_draws=whole(1))  # fmt: skip

    def start(self, target: Target, rng: Generator) -> QuadratureState:
        marginal = gaussian_marginal(target, self.max_dim, self.max_gaussian, rng) if target.left >= _FEWEST else None
        if marginal is None or target.left < _FEWEST * 5 ** (marginal.dim - 1):
            raise errors.StrategyCannotRun(
                f"the path ({target.path.description}) has no coordinates that are Gaussian given the others, more "
                f"than {self.max_gaussian} of them, more than {self.max_dim} others, or too few evaluations",
                remedy="Use Auto, which takes Quadrature for the paths that it suits",
            )
        return QuadratureState(marginal.frame, points=np.zeros((0, target.dim)))

    def advance(self, target: Target, state: QuadratureState, rng: Generator, evaluations: int) -> QuadratureState:
        marginal = GaussianMarginal(target, state.frame)
        solver = _Solver(self, marginal)
        if state.cells is None:
            allowed = min(self.max_evaluations * 10 ** (marginal.dim - 1), target.left / 2)  # the rest if it fails
            with target.bounded(allowed), suppress(LimitReached):
                state = self._checked(solver.solved(state, rng), solver, rng)
        elif state.scanned < (wanted := self.scan(marginal)):
            state = solver.scanned(state, min(evaluations, wanted - state.scanned), rng)
        if state.cells is None:
            return state
        rows = self.rows_for(marginal)
        wanted = max(min(rows, evaluations // _SHARE), rows // _SHARE if state.scanned else 0)
        n = int(np.clip(wanted, self.min_draws, max(self.max_draws, self.min_draws))) - len(state.points)
        draws = drawn(state.cells, solver.rule, max(n, 0), rng)
        points = np.concatenate([state.points, marginal.complete(draws.points, rng)])
        log_weights = np.concatenate([state.log_weights, draws.log_density - draws.log_q])
        return replace(state, points=points, log_weights=log_weights)

    def is_scanned(self, target: Target, state: QuadratureState) -> bool:
        """Whether enough prior draws have looked for narrow modes."""
        return state.scanned >= self.scan(GaussianMarginal(target, state.frame))

    def scan(self, marginal: GaussianMarginal) -> int:
        """Prior draws that look for narrow modes, in all."""
        return min(self.rows_for(marginal), self.max_scan)

    def rows_for(self, marginal: GaussianMarginal) -> int:
        """Points for which the evaluations of the path that each of them takes are worth their time."""
        return max(self.max_rows // marginal.terms, 1_000)

    def estimate(self, target: Target, state: QuadratureState) -> Estimate:
        if not state.is_solved:
            return Estimate.nothing(target.dim, target.evaluations, "Quadrature")
        sd = max(state.error, _MIN_ERROR)
        estimate = Estimate.from_draws(
            state.points, state.log_weights, state.log_evidence, sd, target.evaluations, "Quadrature"
        )
        return replace(estimate, is_final=True)

    def _checked(self, state: QuadratureState, solver: _Solver, rng: Generator) -> QuadratureState:
        """The state; without cells if the density at draws contradicts them."""
        if state.cells is None:
            return state
        draws = drawn(state.cells, solver.rule, self.checks, rng)
        checked = solver.marginal.evaluate(draws.points).log_density - draws.log_q
        error = relative_sd(checked) / np.sqrt(self.checks - 1)
        agrees = abs(log_mean(checked) - state.log_evidence) < _MAX_DISAGREEMENT * error + 10 * self.tolerance
        return state if agrees else replace(state, cells=None)


class _Solver:
    """Divides a range into cells until the integral over it is known."""

    def __init__(self, settings: Quadrature, marginal: GaussianMarginal) -> None:
        self.settings, self.marginal, self.rule = settings, marginal, Rule(settings.nodes, marginal.dim)

    def solved(self, state: QuadratureState, rng: Generator) -> QuadratureState:
        """The cells where there is mass; none if there are too many of them, or the density is not as they show it."""
        draws = np.concatenate([self.marginal.prior(self.settings.prior_draws, rng), self.marginal.known])
        draws = draws[np.isfinite(draws).all(axis=1)]
        cells, error = self._extended(draws) if len(draws) else (None, np.inf)
        if cells is None or self._shows_too_little(cells, draws):
            return state
        total = float(logsumexp(cells.log_masses(self.rule.log_weights)))
        return replace(state, cells=cells, log_evidence=total, error=error)

    def _extended(self, draws: np.ndarray) -> tuple[Cells | None, float]:
        """The cells around draws, and beyond the edges of their range as far as there is mass; and their error."""
        low, high = draws.min(axis=0), draws.max(axis=0)
        low, high = low - 0.25 * (high - low) - 1e-3, high + 0.25 * (high - low) + 1e-3
        cells, error = self._divided(self._grid(low, high), -np.inf)
        for _ in range(self.settings.max_extensions):
            if cells is None:
                return None, np.inf
            total = float(logsumexp(cells.log_masses(self.rule.log_weights)))
            beyond = list(self._beyond(cells, low, high, total))
            if not beyond:
                return cells, error
            for axis, sign in beyond:
                width = high[axis] - low[axis]
                strip_low, strip_high = low.copy(), high.copy()
                strip_low[axis] = high[axis] if sign > 0 else low[axis] - width
                strip_high[axis] = strip_low[axis] + width
                more, its_error = self._divided(self._grid(strip_low, strip_high), total)
                if more is None:
                    return None, np.inf
                cells, error = cells.join(more), error + its_error
                low, high = np.minimum(low, strip_low), np.maximum(high, strip_high)
        return None, np.inf

    def _grid(self, low: np.ndarray, high: np.ndarray) -> Cells:
        """A box in equal cells. Those at its edges end there to the last bit: by that they are known (`_beyond`)."""
        number = self.settings.first_cells if len(low) == 1 else self.settings.first_cells // 2
        edges = np.linspace(low, high, number + 1)
        places = np.stack([each.ravel() for each in np.indices([number] * len(low))], axis=1)
        axes = np.arange(len(low))
        return self._evaluated(edges[places, axes], edges[places + 1, axes])

    def scanned(self, state: QuadratureState, n: int, rng: Generator) -> QuadratureState:
        """The state after so many prior draws more; without cells if they show too little."""
        assert state.cells is not None
        draws = self.marginal.prior(n, rng)
        at_once = max(_AT_ONCE // self.marginal.terms, 1)
        for block in range(0, len(draws), at_once):
            if self._shows_too_little(state.cells, draws[block : block + at_once]):
                return replace(state, cells=None)
        return replace(state, scanned=state.scanned + n)

    def _shows_too_little(self, cells: Cells, draws: np.ndarray) -> bool:
        """Whether the density at a draw is far above that at the nodes of its cell, where that matters."""
        logs = self.marginal.evaluate(draws).log_density
        is_inside = np.all((cells.low <= draws[:, None]) & (draws[:, None] <= cells.high), axis=2)
        cell, is_known = is_inside.argmax(axis=1), is_inside.any(axis=1)
        total = logsumexp(cells.log_masses(self.rule.log_weights))
        mass = logs + cells.log_volumes[cell]
        shown = np.where(is_known, cells.logs[cell].max(axis=1), -np.inf)
        return bool(((logs > shown + _SURPRISE) & (mass > total + np.log(self.settings.tolerance))).any())

    def _beyond(self, cells: Cells, low: np.ndarray, high: np.ndarray, total: float) -> Iterator[tuple[int, int]]:
        """The edges of the range, axis and sign, with mass in the cells along them, or prior mass that matters."""
        possible = logsumexp(cells.priors + self.rule.log_weights, axis=1) + cells.log_volumes
        masses = possible + self.marginal.target.best_likelihood + _MARGIN
        for axis in range(len(low)):
            for sign, at_edge in ((-1, cells.low[:, axis] <= low[axis]), (1, cells.high[:, axis] >= high[axis])):
                if logsumexp(masses[at_edge]) > total + np.log(self.settings.tolerance):
                    yield axis, sign

    def _divided(self, waiting: Cells, beside: float) -> tuple[Cells | None, float]:
        """Cells that need no further division, and the error relative to the whole; none if that does not come to an
        end. `beside` is the log of the mass elsewhere."""
        done, error, parts = waiting.take(np.zeros(0, int)), 0.0, 2**self.marginal.dim
        while len(waiting.low):
            halves = self._halves(waiting)
            if halves is None:
                return None, np.inf
            known = float(logsumexp(np.append(done.join(halves).log_masses(self.rule.log_weights), beside)))
            if not known > -np.inf:
                return None, np.inf
            with np.errstate(under="ignore"):
                one = np.exp(waiting.log_masses(self.rule.log_weights) - known)
                two = np.exp(halves.log_masses(self.rule.log_weights) - known).reshape(-1, parts).sum(axis=1)
            difference = np.abs(one - two)
            is_done = difference <= self.settings.tolerance * np.maximum(two, 0.01)
            is_done &= self._possible(waiting, halves) < known + np.log(self.settings.tolerance)
            error += float(difference[is_done].sum())
            kept = np.repeat(is_done, parts)
            done, waiting = done.join(halves.take(kept)), halves.take(~kept)
        return done, error

    def _possible(self, cells: Cells, halves: Cells) -> np.ndarray:
        """For each cell the log of the mass that a mode hidden between the nodes may have.

        It rises above the nodes by some times the error of the polynomial; where that is small, there is none. It
        cannot exceed the prior in the cell times the largest likelihood met, but for a margin.
        """
        parts, nodes = 2**self.marginal.dim, self.rule.nodes
        places = ((self._sides[:, None] + nodes) / 2).reshape(-1, self.marginal.dim)
        number = len(cells.low)
        values = np.repeat(cells.logs, len(places), axis=0)
        guessed = self.rule.interpolated(values, np.tile(places, (number, 1))).reshape(number, -1)
        found = halves.logs.reshape(number, parts * len(nodes))
        top = np.maximum(found.max(axis=1), cells.logs.max(axis=1))
        floor = top[:, None] - LOWEST
        error = np.abs(np.maximum(guessed, floor) - np.maximum(found, floor)).max(axis=1)
        highest = np.maximum(halves.priors.reshape(number, -1).max(axis=1), cells.priors.max(axis=1))
        bound = highest + self.marginal.target.best_likelihood + _MARGIN
        possible = np.where(error > _SMOOTH, np.minimum(top + _RISE * error, bound), -np.inf)
        return np.where(np.isnan(possible), np.inf, possible) + cells.log_volumes

    @cached_property
    def _sides(self) -> np.ndarray:
        """The corner of each part of a divided cell: zero for the lower side, one for the upper, along each axis."""
        dim = self.marginal.dim
        return np.stack(np.meshgrid(*[[0, 1]] * dim, indexing="ij"), axis=-1).reshape(-1, dim)

    def _halves(self, cells: Cells) -> Cells | None:
        """The cells divided in the middle along each coordinate, those of a cell next to each other; None if that takes
        more evaluations than are allowed."""
        middle, dim = (cells.low + cells.high) / 2, self.marginal.dim
        low = np.where(self._sides, middle[:, None], cells.low[:, None]).reshape(-1, dim)
        high = np.where(self._sides, cells.high[:, None], middle[:, None]).reshape(-1, dim)
        if len(low) * len(self.rule.nodes) > self.marginal.target.left:
            return None
        return self._evaluated(low, high)

    def _evaluated(self, low: np.ndarray, high: np.ndarray) -> Cells:
        points = low[:, None] + (high - low)[:, None] * self.rule.nodes
        evaluation = self.marginal.evaluate(points.reshape(-1, low.shape[1]))
        logs, priors = (each.reshape(len(low), -1) for each in (evaluation.log_density, evaluation.log_prior))
        return Cells(low, high, logs, priors)
