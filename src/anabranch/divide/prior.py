"""Prior draws within a path, and its prior probability.

The fixed sites are held at their values, the others drawn from the prior. A draw counts if the guards hold, with the
probability of the fixed values as its weight; the mean weight is the prior probability of the path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from anabranch.divide.graph import Node
from anabranch.divide.internals import as_input
from anabranch.divide.interpret import Execution, interpret
from anabranch.divide.recorder import TooManySites
from anabranch.divide.recording import Program, Recording, Site
from anabranch.divide.simulate import Batch, Given

if TYPE_CHECKING:
    from anabranch.divide.path import Path

__all__ = ["PriorDraws", "draw_within"]

_ATTEMPTS_PER_DRAW = 100
# Not the stream of exploration: the executions that found a path must not also say how probable it is.
_STREAM = 1


@dataclass(frozen=True)
class PriorDraws:
    """Draws from the prior within a path.

    Attributes:
        points: the draws, at most as many as were asked for; fewer if the guards are rarely met.
        log_weights: their weights; all the same unless the probability of a fixed value depends on the draw.
        log_probability: log prior probability of the path, as estimated from these draws.
        log_probability_sd: its Monte Carlo error; zero where the probability is exact.
        attempts: executions drawn, inside the path or not.
    """

    points: np.ndarray
    log_weights: np.ndarray
    log_probability: float
    log_probability_sd: float
    attempts: int


def draw_within(path: Path, n: int, seed: int) -> PriorDraws:
    """Draw until `n` draws lie in the path, or until it is clear that few do."""
    points, weights, attempts = [], [], 0
    found, size = 0, max(n, 1)
    while found < n and attempts < _ATTEMPTS_PER_DRAW * max(n, 1):
        batch = [_attempt(path, end, size, seed, attempts) for end in path.ends]
        # One execution is in one decision sequence at most: an attempt of each together is one attempt.
        weights.append(np.sum([w for w, _ in batch], axis=0))
        order, drawn = [], []
        for weight, values in batch:
            if (weight > 0).any():
                order.append(np.flatnonzero(weight > 0))
                drawn.append((path.points(values), np.log(weight[weight > 0])))
                found += len(order[-1])
        if drawn:
            # In the order of the attempts, not of the sequences: what is cut off at the end must be cut off of all.
            by_attempt = np.argsort(np.concatenate(order), kind="stable")
            inside, logs = (np.concatenate(part)[by_attempt] for part in zip(*drawn, strict=True))
            points.append((inside, logs))
        attempts += size
        size = min(2 * size, 20_000 if not path.interpreted else size)
    every = np.concatenate(weights)
    mean = every.mean()
    error = every.std() / np.sqrt(len(every)) / mean if mean > 0 else np.inf
    kept = np.concatenate([p for p, _ in points])[:n] if points else np.zeros((0, path.dim))
    logs = np.concatenate([w for _, w in points])[:n] if points else np.zeros(0)
    with np.errstate(divide="ignore"):
        return PriorDraws(kept, logs, float(np.log(mean)), float(error), attempts)


def _attempt(
    path: Path, end: Recording | Execution, size: int, seed: int, offset: int
) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
    """The weight of each attempt (zero if outside the path), and the values of those inside."""
    if isinstance(end, Execution):
        return _interpreted(path.program, end, size, seed, offset)
    batch = Batch(seed, Given(), np.arange(size), key=offset, stream=_STREAM)
    batch.env = {site.outputs[0]: site.fixed[None] for site in end.sites if site.fixed is not None}
    values = batch.site_values(end)
    holds = np.ones(size, bool)
    for decision in end.decisions:
        if decision.node is not None:
            answers = batch.values(end, decision.node)
            holds &= (answers == decision.answer).reshape(len(answers), -1).all(axis=1)
    log_weight = np.zeros(size)
    for site in _fixed(end):
        term = as_input(end.log_prob(site))
        log_weight = log_weight + (batch.values(end, term) if isinstance(term, Node) else term)
    weight = np.where(holds, np.exp(log_weight), 0.0)
    return weight, {k: v[weight > 0] for k, v in values.items()}


def _interpreted(
    program: Program, end: Execution, size: int, seed: int, offset: int
) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
    fixed = {site.name: site.fixed for site in _fixed(end.recording)}
    weights, inside = np.zeros(size), []
    for i in range(size):
        batch = Batch(seed, Given(), np.arange(1), key=offset + i, stream=_STREAM)

        def assign(site: Site, parameters: list[np.ndarray], batch: Batch = batch) -> np.ndarray:
            value = fixed.get(site.name)
            return batch.draw(site, parameters)[0] if value is None else value

        try:
            run = interpret(program, assign)
        except TooManySites:
            continue
        if run.signature == end.signature:
            terms = [float(np.asarray(as_input(run.recording.log_prob(s)))) for s in _fixed(run.recording)]
            weights[i] = np.exp(sum(terms))
            if weights[i] > 0:
                inside.append(run.values)
    return weights, {name: np.stack([values[name] for values in inside]) for name in end.values} if inside else {}


def _fixed(recording: Recording) -> Sequence[Site]:
    return [site for site in recording.sites if site.fixed is not None]
