"""The particle filter that carries SMC and particle MCMC (Gordon, Salmond and Smith, 1993; Wood et al., 2014).

Particles are executions that stop at each observation of the program, are weighed by it, and are resampled when their
weights have become unequal:

    w_t^i = w_{t−1}^{a(i)} g_t(y_t | x_{1:t}^i),        Ẑ = the mean of the weights at the end,

an unbiased estimate. R filters run side by side, of N particles each, all in one population: the particles at one place
of the tree of decisions go on together. Executions may have different numbers of observations: one that has come to its
end keeps its weight.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import logsumexp

from anabranch import errors
from anabranch.divide import Division
from anabranch.divide.graph import Node
from anabranch.divide.recording import Site
from anabranch.divide.scoring import AT_ONCE
from anabranch.divide.simulate import Given
from anabranch.divide.tree import Arrival
from anabranch.engines.resampling import effective_sizes, resampled
from anabranch.engines.sampler import recordings_of
from anabranch.engines.traces import Key, Runner, Traces

__all__ = ["Filter", "Swept", "check_observations", "picked"]

_SMALL = 8
"""Numbers of one particle that are kept, since the next observation may need them, too."""


def check_observations(name: str, division: Division) -> None:
    """Refuse a program in which there is nothing to weigh particles by."""
    if not any(recording.observations for recording in recordings_of(division)):
        raise errors.EngineCannotRun(
            f"{name} weighs executions at their observations, and {division.program.name} has none",
            remedy="Add observe or factor statements, or use ImportanceSampling, which for such a program draws from "
            "the prior",
        )


@dataclass(frozen=True)
class Swept:
    """R filters of N particles at the end: row r·N + i of the traces is particle i of filter r.

    `log_weights` (R, N) are such that the mean of the weights of a filter is its Ẑ.
    """

    traces: Traces
    log_weights: np.ndarray

    @property
    def log_evidence(self) -> np.ndarray:
        """log Ẑ of each filter."""
        return logsumexp(self.log_weights, axis=1) - np.log(self.log_weights.shape[1])


def picked(swept: Swept, rng: np.random.Generator) -> np.ndarray:
    """One particle of each filter in proportion to its weight: rows of the traces."""
    r, n = swept.log_weights.shape
    top = swept.log_weights.max(axis=1, keepdims=True)
    noise = rng.gumbel(size=(r, n))
    # Where all weights are zero, any particle is as bad.
    return np.arange(r) * n + (np.where(top > -np.inf, swept.log_weights, 0.0) + noise).argmax(axis=1)


@dataclass(frozen=True)
class Filter:
    """How particles are resampled: by which scheme, and below which effective share of them."""

    particles: int
    resampling: str = "systematic"
    threshold: float = 0.5
    ancestor_sampling: bool = False

    def sweep(self, runner: Runner, filters: int, rng: np.random.Generator, given: Given | None = None) -> Swept:
        """Run filters from the first observation to the last; `given` are values of sites that all particles have."""
        return self._sweep(runner, filters, rng, given or Given(), np.zeros(filters, bool))

    def conditional_sweep(
        self, runner: Runner, references: Traces, rng: np.random.Generator, conditional: np.ndarray | None = None
    ) -> Swept:
        """Filters in each of which the first particle is a given execution, which always survives (Andrieu, 2010).

        `conditional` says for which of them that holds; the others run freely.
        """
        filters = len(references)
        conditional = np.ones(filters, bool) if conditional is None else conditional
        return self._sweep(runner, filters, rng, self._led_by(references, conditional), conditional)

    def _led_by(self, references: Traces, conditional: np.ndarray) -> Given:
        size, first = len(references) * self.particles, np.arange(len(references)) * self.particles
        values, present = {}, {}
        for key, column in references.values.items():
            values[key] = np.zeros((size, *key[1]))
            values[key][first] = column
            present[key] = np.zeros(size, bool)
            present[key][first] = references.present[key] & conditional
        return Given(values, present)

    def _sweep(
        self, runner: Runner, filters: int, rng: np.random.Generator, given: Given, conditional: np.ndarray
    ) -> Swept:
        n = self.particles
        log_weights, log_likelihood = np.zeros((filters, n)), np.zeros(filters * n)
        parts = [runner.division.begin(filters * n, int(rng.integers(2**62)), given)]
        interpreted: list[Arrival] = []
        observed = 0
        while True:
            observed += 1
            arrivals = runner.division.advance(parts, until=observed)
            terms = np.zeros(filters * n)
            going_on = [_weigh(arrival, observed, log_likelihood, terms) for arrival in arrivals]
            arrivals += interpreted
            log_weights += terms.reshape(filters, n)
            log_likelihood += terms
            if not any(going_on):
                return Swept(runner.traces(runner.division.ended(arrivals), filters * n), log_weights)
            poor = effective_sizes(log_weights) < self.threshold * n
            if poor.any():
                ancestors = self._ancestors(log_weights, poor, conditional, rng)
                if self.ancestor_sampling and (poor & conditional).any():
                    ahead = _Ahead(runner, arrivals, observed, given, log_likelihood)
                    ahead.choose(ancestors, log_weights, poor & conditional, rng)
                log_weights = _evened(log_weights, poor)
                log_likelihood = log_likelihood[ancestors]
                arrivals = _copied(arrivals, ancestors, observed)
            # The interpreter has run to the end with its executions: there is nowhere to send them on from.
            interpreted = [arrival for arrival in arrivals if arrival.execution is not None]
            parts = [(arrival.fork, arrival.batch) for arrival in arrivals if arrival.execution is None]

    def _ancestors(
        self, log_weights: np.ndarray, poor: np.ndarray, conditional: np.ndarray, rng: np.random.Generator
    ) -> np.ndarray:
        """The particle that each is to descend from; a reference descends from itself, and filters in order stay."""
        filters, n = log_weights.shape
        chosen = np.tile(np.arange(n), (filters, 1))
        # Given the reference, the others are independent of each other only if they were without it.
        for scheme, rows in ((self.resampling, poor & ~conditional), ("multinomial", poor & conditional)):
            if rows.any():
                chosen[rows] = resampled(log_weights[rows], scheme, rng)
        chosen[conditional, 0] = 0
        return (np.arange(filters)[:, None] * n + chosen).ravel()


def _weigh(arrival: Arrival, observed: int, log_likelihood: np.ndarray, terms: np.ndarray) -> bool:
    """Add what an observation says of the particles at one place; whether they may meet another."""
    members, recording = arrival.batch.members, arrival.recording if arrival.fork.question or arrival.fork.end else None
    if recording is None:  # beyond the bound on sites
        terms[members] = -np.inf
        return False
    if arrival.execution is not None:
        # The interpreter cannot stop on the way: all that was not weighed yet is weighed now.
        known = log_likelihood[members]
        terms[members] = _valid(arrival.scores().log_likelihood) - np.where(known > -np.inf, known, 0.0)
        return False
    if len(recording.observations) < observed:
        return False
    observation = recording.observations[observed - 1]
    # What comes before the observation is drawn now, so that the copies of a particle share it.
    for site in recording.sites[: observation.preceding]:
        arrival.batch.values(recording, site.outputs[0])
    terms[members] = _valid(_in_parts(arrival, recording.log_likelihood(observation)))
    return arrival.fork.question is not None or len(recording.observations) > observed


def _in_parts(arrival: Arrival, term: Any) -> np.ndarray:
    """A term for each member, over some members at a time; what it takes on the way is kept if it is small."""
    batch, values = arrival.batch, []
    known: dict[Node, list[np.ndarray]] = {}
    for start in range(0, len(batch), AT_ONCE):
        part = batch.take(np.arange(start, min(start + AT_ONCE, len(batch))), batch.key)
        values.append(replace(arrival, batch=part).over_members(term))
        for node, value in part.env.items():
            if node not in batch.env and value[0].size <= _SMALL:
                known.setdefault(node, []).append(np.broadcast_to(value, (len(part), *value.shape[1:])))
    batch.env.update({node: np.concatenate(parts) for node, parts in known.items()})
    return np.concatenate(values)


def _valid(log_likelihood: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(log_likelihood) | (log_likelihood == np.inf), -np.inf, log_likelihood)


def _evened(log_weights: np.ndarray, poor: np.ndarray) -> np.ndarray:
    """After resampling all particles of a filter weigh the same, their mean."""
    mean = logsumexp(log_weights, axis=1, keepdims=True) - np.log(log_weights.shape[1])
    return np.where(poor[:, None], mean, log_weights)


def _copied(arrivals: Sequence[Arrival], ancestors: np.ndarray, stream: int) -> list[Arrival]:
    """The next generation, at the places where their ancestors are."""
    copies = []
    for arrival in arrivals:
        members = arrival.batch.members
        position = np.full(len(ancestors), -1)
        position[members] = np.arange(len(members))
        children = np.flatnonzero(position[ancestors] >= 0)
        if len(children):
            batch = arrival.batch.copies(position[ancestors[children]], children, stream)
            copies.append(replace(arrival, batch=batch))
    return copies


def _past(arrival: Arrival, observed: int) -> Iterator[tuple[Site, np.ndarray]]:
    """The sites that came before an observation, or all of an execution that has ended, with their values."""
    recording = arrival.recording
    if arrival.execution is not None:
        values = arrival.values()
        yield from ((site, values[site.name]) for site in recording.sites)
        return
    ended = len(recording.observations) < observed
    for site in recording.sites if ended else recording.sites[: recording.observations[observed - 1].preceding]:
        yield site, arrival.batch.values(recording, site.outputs[0])


class _Ahead:
    """Ancestor sampling (Lindsten, Jordan and Schön, 2014): a reference may go on from any particle of its filter.

    Particle i becomes its past with a probability in proportion to w_t^i γ(x_{1:t}^i, x'_{t+1:T})/γ(x_{1:t}^i), with x'
    the rest of the reference: zero where the program, with that past, does not have the same sites.
    """

    def __init__(
        self, runner: Runner, arrivals: Sequence[Arrival], observed: int, given: Given, log_likelihood: np.ndarray
    ) -> None:
        self.runner, self.given, self.log_likelihood = runner, given, log_likelihood
        self.past = Traces.empty(runner.paths, len(log_likelihood))
        for arrival in arrivals:
            for site, value in _past(arrival, observed):
                self.past.put((site.name, site.shape), arrival.batch.members, value)

    def choose(
        self, ancestors: np.ndarray, log_weights: np.ndarray, filters: np.ndarray, rng: np.random.Generator
    ) -> None:
        """Choose the past of the reference of each of these filters."""
        n = log_weights.shape[1]
        first = np.repeat(np.arange(len(log_weights)) * n, n)
        values, present = dict(self.past.values), dict(self.past.present)
        rest: dict[Key, np.ndarray] = {}
        nowhere = np.zeros(len(first), bool)
        clash = nowhere.copy()
        for key, column in self.given.values.items():
            # A site of the reference's own past is not part of what is to come.
            rest[key] = self.given.present[key][first] & ~self.past.present.get(key, nowhere)[first]
            clash |= rest[key] & self.past.present.get(key, nowhere)
            filled = np.where(rest[key].reshape(-1, *[1] * len(key[1])), column[first], values.get(key, 0.0))
            values[key] = filled
            present[key] = present.get(key, nowhere) | rest[key]
        whole = self.runner.execute(len(first), Given(values, present))
        log_future = _valid(whole.log_likelihood) - self.log_likelihood
        fits = (whole.log_density > -np.inf) & ~clash  # no site may be in the past and in what is to come
        for key in whole.present.keys() | rest.keys():
            there, wanted = whole.present.get(key, nowhere), rest.get(key, nowhere)
            fits &= ~(wanted & ~there)  # a site of the reference that is not met
            fits &= ~(there & ~present.get(key, nowhere))  # one that the reference does not have
            log_future += np.where(there & wanted, whole.log_probs.get(key, 0.0), 0.0)
        log_odds = np.where(fits, log_weights.ravel() + log_future, -np.inf).reshape(log_weights.shape)
        for row in np.flatnonzero(filters):
            if np.isfinite(log_odds[row]).any():
                ancestors[row * n] = row * n + int((log_odds[row] + rng.gumbel(size=n)).argmax())
