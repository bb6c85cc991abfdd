"""Prior draws within a path, and its prior probability.

The fixed sites are held at their values, the others drawn from the prior. A draw counts if the guards hold, with the
probability of the fixed values as its weight; the mean weight is the prior probability of the path. Where the guards
are hardly ever met, both come from `splitting`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import logsumexp

from anabranch.divide.batch import Batch, Constraints, stable_hash
from anabranch.divide.distributions import why_not_drawn
from anabranch.divide.forms import Together
from anabranch.divide.guarded_prior import whole_path
from anabranch.divide.interpret import BLOCK, interpret, put_coordinates
from anabranch.divide.recorder import TooManySites
from anabranch.divide.recording import Choices, Recording, Site
from anabranch.divide.sharing import Held, shared
from anabranch.divide.splitting import Splitting, pooled
from anabranch.limits import checkpoint

if TYPE_CHECKING:
    from anabranch.divide.path import Path

__all__ = ["PriorDraws", "draw_within", "more_draws"]

_ATTEMPTS_PER_DRAW = 100
_PROBE, _RARE = 1_000, 1 / 200
"""Attempts after which guards that are met by less than this share are led to by splitting."""
_RUNS = 4
"""Independent runs of splitting, which show its error."""
_MIN_ATTEMPTS = {False: 100, True: 10}  # if interpreted, each costs a run of the Python
# Not the stream of exploration: the executions that found a path must not also say how probable it is.
_STREAM = 1


@dataclass(frozen=True)
class Pool:
    """Points to which splitting has led, and their log weights: of each run, the probability that it found."""

    points: np.ndarray
    log_weights: np.ndarray


@dataclass(frozen=True)
class PriorDraws:
    """Draws from the prior within a path.

    Attributes:
        points: the draws, at most as many as were asked for; fewer if the guards are rarely met.
        log_weights: their weights; all the same unless the probability of a fixed value depends on the draw.
        log_probability: log prior probability of the path, as estimated from these draws.
        log_probability_sd: its Monte Carlo error; zero where the probability is exact.
        attempts: executions drawn, inside the path or not, by splitting the steps of all particles.
        pool: where splitting has led to, from which `more_draws` come.
    """

    points: np.ndarray
    log_weights: np.ndarray
    log_probability: float
    log_probability_sd: float
    attempts: int
    pool: Pool | None = None


def draw_within(
    path: Path, n: int, seed: int, max_attempts: int | None = None, columns: np.ndarray | None = None
) -> PriorDraws:
    """Draw until `n` draws lie in the path, or `max_attempts` attempts were made.

    With `columns`, only these are drawn, and what they depend on; the others are zero, or drawn.
    """
    batches: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    found, attempts, size = 0, 0, max(n, _MIN_ATTEMPTS[path.interpreted])
    max_attempts = _ATTEMPTS_PER_DRAW * size if max_attempts is None else max_attempts
    size = min(size, max_attempts)
    while found < n and attempts < max_attempts:
        checkpoint()
        batches.append(_batch(path, size, seed, attempts, columns))
        found += len(batches[-1][0])
        attempts += size
        if attempts >= _PROBE and found < _RARE * attempts and _can_split(path):
            return _by_splitting(path, n, seed)
        size = min(size if path.interpreted else min(2 * size, 20_000), max_attempts - attempts)
    points, log_weights, every = (np.concatenate(part) for part in zip(*batches, strict=True))
    log_mean = logsumexp(every) - np.log(attempts)
    # Relative to the mean, so that a probability too small for a float still has an error.
    relative = np.exp(every - log_mean) if np.isfinite(log_mean) else np.full(attempts, np.inf)
    error = relative.std() / np.sqrt(attempts) if np.isfinite(log_mean) else np.inf
    if path.interpreted or any(d.node is not None for recording in path.recordings for d in recording.decisions):
        error = max(error, 1 / attempts)  # guards that never failed may still do
    return PriorDraws(points[:n], log_weights[:n], float(log_mean), float(error), attempts)


def _can_split(path: Path) -> bool:
    """Whether the path has one decision sequence with guards, and draws that follow its density."""
    recording = path.recording
    if path.interpreted or path.sequences > 1 or not any(d.node is not None for d in recording.decisions):
        return False
    return not any(why_not_drawn(site) for site in recording.sites)


def _by_splitting(path: Path, n: int, seed: int) -> PriorDraws:
    """Draws that are led to where the guards hold; each run has the weight of the probability that it found."""
    prior = path.recording.once(whole_path)
    splits = Splitting().run(prior, stable_hash("split", seed) >> 2, number=_RUNS)
    log_probability, sd = pooled(splits)
    points = np.concatenate([split.points for split in splits])
    weights = np.concatenate([np.full(len(split.points), split.log_probability) for split in splits])
    chosen = np.random.default_rng((seed, 4)).permutation(len(points))[:n]
    drawn = prior.completed(points[chosen], seed) if len(chosen) else points[:0]
    evaluations = sum(split.evaluations for split in splits)
    return PriorDraws(drawn, weights[chosen], log_probability, sd, evaluations, Pool(points, weights))


def more_draws(path: Path, draws: PriorDraws, n: int, seed: int) -> PriorDraws:
    """Other draws from where splitting has led to, moved on from there; their probability is the same estimate."""
    assert draws.pool is not None
    prior, rng = path.recording.once(whole_path), np.random.default_rng((seed, 5))
    chosen = rng.permutation(len(draws.pool.points))[:n]
    if not len(chosen):
        return draws
    settings = Splitting()
    points = prior.completed(settings.moved(prior, draws.pool.points[chosen], rng), seed)
    attempts = settings.steps * len(chosen)
    return replace(draws, points=points, log_weights=draws.pool.log_weights[chosen], attempts=attempts)


def _batch(
    path: Path, size: int, seed: int, offset: int, columns: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A batch of attempts: the points inside the path with their log weights, and the log weight of every attempt.

    Each decision sequence tries the same executions, and an execution belongs to one of them at most.
    """
    every = np.full(size, -np.inf)
    inside = np.zeros((size, path.dim))
    for recording in path.recordings:
        if recording.concrete:
            log_weights, points = _interpreted(path, recording, size, seed, offset)
        else:
            # Which of several decision sequences holds is found out by evaluating whole points.
            wanted = _sites(recording, columns if path.sequences == 1 else None)
            log_weights, values = _attempt(recording, wanted, size, seed, offset)
            points = path.points_of(values) if (log_weights > -np.inf).any() else inside[:0]
        taken = log_weights > -np.inf
        inside[taken] = points
        every[taken] = log_weights[taken]
    taken = every > -np.inf
    return inside[taken], every[taken], every


def _sites(recording: Recording, columns: np.ndarray | None) -> list[Site]:
    """The sites that have some of these columns; all of them, if there are none."""
    if columns is None:
        return list(recording.sites)
    own = set(columns.tolist())
    spans = recording.columns
    return [site for site in recording.free if not own.isdisjoint(range(spans[site.name].start, spans[site.name].stop))]


def _attempt(
    recording: Recording, wanted: Sequence[Site], size: int, seed: int, offset: int
) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
    """The log weight of each attempt (minus infinity if outside the path), and the values of those inside: of the sites
    wanted, and of those that they, guards or fixed sites depend on."""
    batch = Batch(seed, Constraints(), np.arange(size), key=offset, stream=_STREAM)
    batch.env = {site.outputs[0]: site.fixed[None] for site in recording.sites if site.fixed is not None}
    for site in wanted:
        batch.values(recording, site.outputs[0])
    log_weights = np.zeros(size)
    for decision in recording.decisions:
        if decision.node is not None:
            answers = batch.values(recording, decision.node)
            holds = (answers == decision.answer).reshape(len(answers), -1).all(axis=1)
            log_weights = np.where(holds, log_weights, -np.inf)
    for site in recording.sites:
        if site.fixed is None:
            continue
        constant = recording.log_mass(site, site.fixed)
        if constant is None:
            node, result = recording.mass_function(site)
            batch.env[node] = site.fixed[None]
            constant = batch.values(recording, result)
        log_weights = log_weights + constant
    taken = log_weights > -np.inf
    drawn = ((site, batch.env.get(site.outputs[0])) for site in recording.sites)
    return log_weights, {
        site.name: np.broadcast_to(value, (size, *site.shape))[taken] for site, value in drawn if value is not None
    }


def _interpreted(path: Path, recording: Recording, size: int, seed: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """The log weight of each attempt, one run of the program, and the points of those inside the path."""

    def order(rows: slice) -> InterpretedAttempts:
        return InterpretedAttempts(path.choices, rows.stop - rows.start, seed, offset + rows.start)

    parts = shared(
        path.program, size, BLOCK, path.program.pace.seconds_for(size), order=order,
        here=lambda rows: _attempted(path, recording, rows.stop - rows.start, seed, offset + rows.start),
    )  # fmt: skip
    log_weights, points = map(np.concatenate, zip(*parts, strict=True))
    return log_weights, path.checked_inside(points)


@dataclass(frozen=True)
class InterpretedAttempts:
    """The order to attempt prior draws within a path that the interpreter runs."""

    choices: Sequence[Choices]
    size: int
    seed: int
    offset: int

    def done(self, held: Held) -> tuple[np.ndarray, np.ndarray]:
        path = held.path(self.choices)
        return _attempted(path, path.recording, self.size, self.seed, self.offset)


def _attempted(path: Path, recording: Recording, size: int, seed: int, offset: int) -> tuple[np.ndarray, np.ndarray]:
    """The same in this process, in blocks."""
    blocks = [
        _attempted_block(path, recording, min(BLOCK, size - start), seed, offset + start)
        for start in range(0, max(size, 1), BLOCK)
    ]
    log_weights, points = map(np.concatenate, zip(*blocks, strict=True))
    return log_weights, points


def _attempted_block(
    path: Path, recording: Recording, size: int, seed: int, offset: int
) -> tuple[np.ndarray, np.ndarray]:
    """The log masses of all attempts of a block are computed together."""
    fixed = recording.fixed
    log_weights, together = np.full(size, -np.inf), Together()
    met: list[tuple[int, np.ndarray, np.ndarray]] = []
    for i in range(size):
        checkpoint()
        batch = Batch(seed, Constraints(), np.arange(1), key=offset + i, stream=_STREAM)

        def assign(site: Site, parameters: list[np.ndarray], batch: Batch = batch) -> np.ndarray:
            value = fixed.get(site.name)
            return batch.draw(site, parameters)[0] if value is None else value

        try:
            run = interpret(path.program, assign)
        except TooManySites:
            continue
        if run.signature == recording.signature:
            point = np.zeros(path.dim)
            for site in run.free:
                put_coordinates(site, point, recording.columns[site.name], together)
            met.append((i, run.drawn_log_masses(together), point))
    together.finish()
    for i, log_masses, _ in met:
        log_weights[i] = log_masses.sum()
    inside = [point for i, _, point in met if log_weights[i] > -np.inf]
    return log_weights, np.array(inside, float).reshape(-1, path.dim)
