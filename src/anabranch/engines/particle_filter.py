"""The particle filter that carries SMC and particle MCMC (Gordon, Salmond and Smith, 1993; Wood et al., 2014).

Particles are executions that stop at each observation, which weights them, and are resampled once weights are unequal:

    w_t^i = w_{t−1}^{a(i)} g_t(y_t | x_{1:t}^i),        Ẑ = the mean of the weights at the end,

an unbiased estimate. R filters of N particles each run side by side in one population: the particles at one place of
the tree of decisions go on together. An execution that has ended before the others keeps its weight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.divide import AT_ONCE, Constraints, Executions, Node, Site, Terms
from anabranch.engines.rejuvenation import Rejuvenation
from anabranch.engines.runner import Runner
from anabranch.engines.sampler import Session
from anabranch.engines.traces import Key, Traces, valid
from anabranch.settings import one_of, share

__all__ = ["SCHEME", "SCHEMES", "Filter", "Sweep", "Swept", "effective_sizes", "resampled"]

SCHEMES = ("multinomial", "stratified", "systematic")
SCHEME = {"resampling": one_of(*SCHEMES), "threshold": share()}
"""The rules for the settings of resampling."""
_SMALL = 8
"""Intermediate values up to this size, per particle, are kept for the next observation, which may need them, too."""


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
        return _log_means(self.log_weights)

    def picked(self, rng: Generator) -> Traces:
        """One particle of each filter, in proportion to its weight."""
        return self.traces.take(self.picked_rows(rng))

    def picked_rows(self, rng: Generator) -> np.ndarray:
        r, n = self.log_weights.shape
        top = self.log_weights.max(axis=1, keepdims=True)
        noise = rng.gumbel(size=(r, n))
        # Where all weights are zero, the choice is uniform.
        return np.arange(r) * n + (np.where(top > -np.inf, self.log_weights, 0.0) + noise).argmax(axis=1)


@dataclass(frozen=True)
class Filter:
    """A particle filter: its particles, the scheme of resampling, and the effective share below which they resample."""

    particles: int
    resampling: str = "systematic"
    threshold: float = 0.5
    ancestor_sampling: bool = False
    rejuvenation: Rejuvenation | None = None

    def allowed(self, session: Session) -> int:
        """Executions for which there is budget and, by trial filters, time."""
        return session.allowed(lambda n: replace(self, particles=n).sweep(session.runner, 1, session.rng))

    def sweep(self, runner: Runner, filters: int, rng: Generator, given: Constraints | None = None) -> Swept:
        """Run filters from the first observation to the last; `given` are values of sites of all particles."""
        return self._sweep(runner, filters, rng, given or Constraints(), np.zeros(filters, bool))

    def conditional_sweep(
        self, runner: Runner, references: Traces, rng: Generator, conditional: np.ndarray | None = None
    ) -> Swept:
        """Run filters in which the first particle is a reference execution, which always survives (Andrieu, 2010).

        Where `conditional` is False, a filter runs freely.
        """
        filters = len(references)
        conditional = np.ones(filters, bool) if conditional is None else conditional
        return self._sweep(runner, filters, rng, self._led_by(references, conditional), conditional)

    def _led_by(self, references: Traces, conditional: np.ndarray) -> Constraints:
        size, first = len(references) * self.particles, np.arange(len(references)) * self.particles
        values, present = {}, {}
        for key, column in references.values.items():
            values[key] = np.zeros((size, *key[1]))
            values[key][first] = column
            present[key] = np.zeros(size, bool)
            present[key][first] = references.present[key] & conditional
        return Constraints(values, present)

    def _sweep(
        self, runner: Runner, filters: int, rng: Generator, given: Constraints, conditional: np.ndarray
    ) -> Swept:
        sweep = Sweep(self, runner, rng, given, conditional)
        while sweep.observe():
            sweep.resample()
        return sweep.swept()

    def _ancestors(self, log_weights: np.ndarray, poor: np.ndarray, led: np.ndarray, rng: Generator) -> np.ndarray:
        """The ancestor of each particle; references, and particles that are not resampled, are their own."""
        filters, n = log_weights.shape
        chosen = np.tile(np.arange(n), (filters, 1))
        # With a reference, the others must be resampled independently of each other.
        for scheme, rows in ((self.resampling, poor & ~led), ("multinomial", poor & led)):
            if rows.any():
                chosen[rows] = resampled(log_weights[rows], scheme, rng)
        chosen[led, 0] = 0
        return (np.arange(filters)[:, None] * n + chosen).ravel()


class Sweep:
    """Filters on their way from one observation to the next.

    Attributes:
        arrivals: the particles, by their place in the tree of decisions.
        observed: the observations so far.
        log_weights: of the particles (R, N); the mean of the weights of a filter is its Ẑ so far.
        log_likelihood: of the particles (R N,), up to the last observation.
    """

    def __init__(
        self, settings: Filter, runner: Runner, rng: Generator, given: Constraints, conditional: np.ndarray
    ) -> None:
        self.settings, self.runner, self.rng, self.given, self.conditional = settings, runner, rng, given, conditional
        self.log_weights = np.zeros((len(conditional), settings.particles))
        self.log_likelihood, self.observed = np.zeros(self.log_weights.size), 0
        self.arrivals = [runner.division.begin(self.log_weights.size, int(rng.integers(2**62)), given)]

    def observe(self) -> bool:
        """Execute the particles up to the next observation, and weigh them; whether some may meet another."""
        self.observed += 1
        # The interpreter has run its executions to their end.
        interpreted = [arrival for arrival in self.arrivals if arrival.run is not None]
        on_the_way = [arrival for arrival in self.arrivals if arrival.run is None]
        self.arrivals = self.runner.division.advance(on_the_way, until=self.observed)
        terms = np.zeros(self.log_weights.size)
        going_on = [_weigh(arrival, self.observed, self.log_likelihood, terms) for arrival in self.arrivals]
        self.arrivals += interpreted
        self.log_weights = self.log_weights + terms.reshape(self.log_weights.shape)
        self.log_likelihood = self.log_likelihood + terms
        return any(going_on)

    def resample(self) -> None:
        """Resample the filters whose weights are unequal, and move their particles if they are to be."""
        settings, n = self.settings, self.settings.particles
        poor = effective_sizes(self.log_weights) < settings.threshold * n
        if not poor.any():
            return
        ancestors = settings._ancestors(self.log_weights, poor, self.conditional, self.rng)
        if settings.ancestor_sampling and (poor & self.conditional).any():
            past = _Past(self.runner, self.arrivals, self.observed, self.log_likelihood)
            past.choose(ancestors, self.given, self.log_weights, poor & self.conditional, self.rng)
        # After resampling, all particles of a filter have the mean of its weights.
        self.log_weights = np.where(poor[:, None], self.log_evidence[:, None], self.log_weights)
        self.take(ancestors)
        if settings.rejuvenation is not None:
            moved = settings.rejuvenation.moved(self.runner, self.arrivals, self.observed, np.repeat(poor, n), self.rng)
            self.arrivals, self.log_likelihood = moved

    def take(self, ancestors: np.ndarray) -> None:
        """Replace each particle by a copy of its ancestor."""
        self.log_likelihood = self.log_likelihood[ancestors]
        self.arrivals = _copied(self.arrivals, ancestors, self.observed)

    @property
    def log_evidence(self) -> np.ndarray:
        """log Ẑ of each filter so far."""
        return _log_means(self.log_weights)

    def swept(self) -> Swept:
        """The filters at the end."""
        return Swept(self.runner.traces(self.arrivals, self.log_weights.size), self.log_weights)


class _Past:
    """The particles of filters up to an observation, for ancestor sampling (Lindsten et al., 2014).

    In a conditional filter the reference may continue the past of any particle, so that the beginning of a long
    execution, of which few particles differ at the end, can change.

    Particle i becomes the past of a reference x' with a probability in proportion to w_t^i γ(x_{1:t}^i, x'_{t+1:T}) /
    γ(x_{1:t}^i), which is zero where the program, with that past, does not have the remaining sites of x'.
    """

    def __init__(self, runner: Runner, groups: Sequence[Executions], observed: int, log_likelihood: np.ndarray) -> None:
        self.runner, self.log_likelihood = runner, log_likelihood
        self.traces = Traces.empty(runner.paths, len(log_likelihood))
        for arrival in groups:
            for site, value in _sites_before(arrival, observed):
                self.traces.put((site.name, site.shape), arrival.members, value)

    def choose(
        self, ancestors: np.ndarray, references: Constraints, log_weights: np.ndarray, rows: np.ndarray, rng: Generator
    ) -> None:
        """Choose the past of the reference, the first particle, of each of the filters in these rows."""
        n = log_weights.shape[1]
        first = np.repeat(np.arange(len(log_weights)) * n, n)
        values, present = dict(self.traces.values), dict(self.traces.present)
        rest: dict[Key, np.ndarray] = {}
        nowhere = np.zeros(len(first), bool)
        clash = nowhere.copy()
        for key, column in references.values.items():
            # A site of the reference's own past is not part of its future.
            rest[key] = references.present[key][first] & ~self.traces.present.get(key, nowhere)[first]
            clash |= rest[key] & self.traces.present.get(key, nowhere)
            values[key] = np.where(rest[key].reshape(-1, *[1] * len(key[1])), column[first], values.get(key, 0.0))
            present[key] = present.get(key, nowhere) | rest[key]
        whole = self.runner.execute(len(first), Constraints(values, present))
        log_future = valid(whole.log_likelihood) - self.log_likelihood
        fits = (whole.log_density > -np.inf) & ~clash  # no site may be in the past and in the future
        for key in sorted(whole.present.keys() | rest.keys()):
            there, wanted = whole.present.get(key, nowhere), rest.get(key, nowhere)
            fits &= ~(wanted & ~there)  # a site of the reference that is not met
            fits &= ~(there & ~present.get(key, nowhere))  # one that the reference does not have
            log_future += np.where(there & wanted, whole.log_probs.get(key, 0.0), 0.0)
        log_odds = np.where(fits, log_weights.ravel() + log_future, -np.inf).reshape(log_weights.shape)
        for row in np.flatnonzero(rows):
            if np.isfinite(log_odds[row]).any():
                ancestors[row * n] = row * n + int((log_odds[row] + rng.gumbel(size=n)).argmax())


def _sites_before(arrival: Executions, observed: int) -> Iterator[tuple[Site, np.ndarray]]:
    """The sites before an observation, or all sites of an execution that has ended, with their values."""
    if arrival.node.truncated:
        return
    recording = arrival.recording
    if arrival.run is not None:
        values = arrival.values()
        yield from ((site, values[site.name]) for site in recording.sites)
        return
    ended = len(recording.observations) < observed
    for site in recording.sites if ended else recording.sites[: recording.observations[observed - 1].preceding]:
        yield site, arrival.batch.values(recording, site.outputs[0])


def _weigh(arrival: Executions, observed: int, log_likelihood: np.ndarray, terms: np.ndarray) -> bool:
    """Add the log likelihood of an observation to the terms of the particles at one place.

    Returns whether they may meet another observation.
    """
    members = arrival.members
    if arrival.node.truncated:  # beyond the bound on sites
        terms[members] = -np.inf
        return False
    if arrival.run is not None:
        # The interpreter cannot stop at an observation: all that remain are added now.
        known = log_likelihood[members]
        terms[members] = valid(arrival.scores().log_likelihood) - np.where(known > -np.inf, known, 0.0)
        return False
    recording = arrival.recording
    if len(recording.observations) < observed:
        return False
    observation = recording.observations[observed - 1]
    is_all = len(recording.observations) == 1 and observation.preceding == len(recording.sites)
    if is_all and arrival.node.question is None:
        # The only observation comes last: the compiled density of the execution has it, and is needed later anyway.
        terms[members] = valid(arrival.scores().log_likelihood)
        return False
    # Sites before the observation are drawn now, so that the copies of a particle share their values.
    for site in recording.sites[: observation.preceding]:
        arrival.batch.values(recording, site.outputs[0])
    terms[members] = valid(_in_parts(arrival, recording.once(Terms).of(observation).value))
    return arrival.node.question is not None or len(recording.observations) > observed


def _in_parts(arrival: Executions, term: Any) -> np.ndarray:
    """A term for each member, computed for some members at a time; small intermediate values are kept."""
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


def resampled(log_weights: np.ndarray, scheme: str, rng: np.random.Generator) -> np.ndarray:
    """For each row of weights (R, N) the numbers of N ancestors, chosen in proportion to their weights.

    A row of zero weights keeps its particles (Douc, Cappé and Moulines, 2005).
    """
    rows, n = log_weights.shape
    top = log_weights.max(axis=1, keepdims=True)
    weights = np.where(top > -np.inf, np.exp(log_weights - np.where(top > -np.inf, top, 0.0)), 1.0)
    ends = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)
    ends[:, -1] = 1.0
    if scheme == "multinomial":
        places = rng.random((rows, n))  # not sorted, since one of them may be replaced by a reference
    else:
        shift = rng.random((rows, n if scheme == "stratified" else 1))
        places = (np.arange(n) + shift) / n
    # All rows at once: the cumulative weights of row r are between r and r + 1.
    offset = np.arange(rows)[:, None]
    found = np.searchsorted((ends + offset).ravel(), (places + offset).ravel(), side="right").reshape(rows, n)
    return np.minimum(found - offset * n, n - 1)


def effective_sizes(log_weights: np.ndarray) -> np.ndarray:
    """(Σ w)²/Σ w² of each row; zero for a row of zero weights."""
    top = log_weights.max(axis=1, keepdims=True)
    weights = np.where(top > -np.inf, np.exp(log_weights - np.where(top > -np.inf, top, 0.0)), 0.0)
    squares = (weights**2).sum(axis=1)
    return np.where(squares > 0, weights.sum(axis=1) ** 2 / np.where(squares > 0, squares, 1.0), 0.0)


def _log_means(log_weights: np.ndarray) -> np.ndarray:
    return logsumexp(log_weights, axis=1) - np.log(log_weights.shape[1])


def _copied(arrivals: Sequence[Executions], ancestors: np.ndarray, stream: int) -> list[Executions]:
    """The next generation, each at the place of its ancestor."""
    copies = []
    for arrival in arrivals:
        members = arrival.members
        position = np.full(len(ancestors), -1)
        position[members] = np.arange(len(members))
        children = np.flatnonzero(position[ancestors] >= 0)
        if len(children):
            batch = arrival.batch.copies(position[ancestors[children]], children, stream)
            copies.append(replace(arrival, batch=batch))
    return copies
