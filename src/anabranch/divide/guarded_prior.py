"""The prior of the sites on which some decisions of a recording depend, and how far an execution is from each of them.

With x the values of these sites in unconstrained coordinates, m the values to which other sites are fixed, and
a_1, a_2, … the conditions of the decisions in the order of the program,

    log f(x) + log P(m | x),    and the score (k, margin of a_k),

where a_k is the first of the conditions that does not hold: an execution with a larger score, in the order of
dictionaries, is nearer to meeting them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from anabranch.divide.batch import Batch, Constraints
from anabranch.divide.density import Density
from anabranch.divide.graph import Node
from anabranch.divide.margins import Margins, signed
from anabranch.divide.recording import Recording, Site
from anabranch.divide.terms import Evaluator, Terms

__all__ = ["Guard", "GuardedPrior", "Particles", "joined", "whole_path"]

_STREAM = 2
"""Not that of exploration, nor that of prior draws by rejection."""


class Guard(NamedTuple):
    """A condition: a node of the graph must have this value."""

    node: Node
    answer: np.ndarray


@dataclass(frozen=True)
class Particles:
    """Executions as points, with the log density of their sites, the log probability of the fixed values, and their
    score: how many of the conditions hold before the first that does not, and the margin of that one."""

    points: np.ndarray
    log_prior: np.ndarray
    log_mass: np.ndarray
    met: np.ndarray
    margin: np.ndarray

    def __len__(self) -> int:
        return len(self.points)

    def take(self, index: np.ndarray) -> Particles:
        return Particles(*(getattr(self, name)[index] for name in self.__dataclass_fields__))

    def where(self, chosen: np.ndarray, other: Particles) -> Particles:
        """These particles, with the chosen ones replaced by another's."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__dataclass_fields__)
        return Particles(*(np.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in pairs))

    @property
    def log_density(self) -> np.ndarray:
        return self.log_prior + self.log_mass


def joined(parts: Sequence[Particles]) -> Particles:
    """The particles of several runs."""
    names = Particles.__dataclass_fields__
    return Particles(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class GuardedPrior:
    """The prior behind the conditions `guards` of a recording, in which the sites `fixed` have their values."""

    def __init__(self, recording: Recording, guards: Sequence[Guard], fixed: Sequence[Site]) -> None:
        self.recording, self.guards, self.fixed = recording, list(guards), list(fixed)
        self.density, terms = recording.once(Density), recording.once(Terms)
        self.sites = self._behind(terms)
        jacobians = {term.name: term for term in self.density.jacobian}
        names = {site.name for site in self.sites}
        self._prior = [*map(terms.of, self.sites), *(jacobians[name] for name in sorted(names & jacobians.keys()))]
        self._mass = [terms.of(site) for site in self.fixed]
        nodes = [*(guard.node for guard in guards), *(site.value.node for site in self.sites)]
        inputs, graph, sources = self.density.coordinates.values(), recording.trace.graph, self.density.sources
        self._evaluator = Evaluator(graph, [*self._prior, *self._mass], inputs, sources, nodes)
        self._margins = Margins(graph, Evaluator(graph, [], inputs, sources, [guard.node for guard in guards]).steps)
        self.columns = np.concatenate(
            [np.r_[recording.columns[site.name]] for site in self.sites] or [np.zeros(0, int)]
        )
        self.discrete = np.isin(self.columns, self.density.whole)

    def _behind(self, terms: Terms) -> list[Site]:
        """The free sites behind the conditions and behind the probabilities of the fixed values, in order."""
        sites = self.recording.sites
        waiting = terms.reads([guard.node for guard in self.guards])
        waiting |= terms.reads([x for site in self.fixed for x in site.inputs])
        found: set[int] = set()
        while waiting:
            found |= waiting
            waiting = terms.reads([x for index in waiting for x in sites[index].inputs]) - found
        return [sites[index] for index in sorted(found)]

    def draw(self, n: int, seed: int, known: Mapping[str, np.ndarray] | None = None) -> Particles:
        """Draws of the sites from the prior, given what is known of some of them, whatever the conditions are."""
        batch = Batch(seed, Constraints(known or {}), np.arange(n), stream=_STREAM)
        batch.env = self._fixed_values(self.recording.sites)
        values = {
            site.name: np.broadcast_to(batch.values(self.recording, site.outputs[0]), (n, *site.shape))
            for site in self.sites
        }
        if not values:
            return self.at(np.zeros((n, self.recording.dim)))
        return self.at(self.density.points(values))

    def at(self, points: np.ndarray) -> Particles:
        """Points, of which only the coordinates of `sites` count, as particles."""
        n = len(points)
        env = self.density.env(points)
        computed = self._evaluator.by_numpy(env, n)
        whole = (points[:, self.density.whole] == np.round(points[:, self.density.whole])).all(axis=1)
        log_prior, log_mass = computed.total(self._prior), computed.total(self._mass)
        log_prior, log_mass = (np.where(np.isnan(each), -np.inf, each) for each in (log_prior, log_mass))
        margins = self._margins.at(env)
        met, margin, is_open = np.zeros(n, int), np.zeros(n), np.ones(n, bool)
        for guard in self.guards:
            holds, distance = signed(env[guard.node], guard.answer, margins.get(guard.node))
            met += is_open & holds
            margin = np.where(is_open & ~holds, distance, margin)
            is_open &= holds
        return Particles(points, np.where(whole, log_prior, -np.inf), log_mass, met, margin)

    def values(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """The values of these sites and of the fixed ones, by name."""
        env, n = self.density.env(points), len(points)
        self._evaluator.by_numpy(env, n)
        values = {site.name: env[site.value.node] for site in self.sites}
        values |= {site.name: site.fixed[None] for site in self.fixed if site.fixed is not None}
        return {name: np.broadcast_to(value, (n, *value.shape[1:])) for name, value in values.items()}

    def completed(self, points: np.ndarray, seed: int) -> np.ndarray:
        """The points, with the other free sites of the recording drawn from the prior given these."""
        env, n = self.density.env(points), len(points)
        self._evaluator.by_numpy(env, n)
        batch = Batch(seed, Constraints(), np.arange(n), key=1, stream=_STREAM)
        batch.env = self._fixed_values(self.recording.sites)
        batch.env.update({site.outputs[0]: env[site.value.node] for site in self.sites})
        return self.density.points(batch.site_values(self.recording))

    def _fixed_values(self, sites: Sequence[Site]) -> dict[Node, np.ndarray]:
        return {site.outputs[0]: site.fixed[None] for site in sites if site.fixed is not None}


def whole_path(recording: Recording) -> GuardedPrior:
    """The prior behind all decisions of a recording."""
    guards = [Guard(decision.node, decision.answer) for decision in recording.decisions if decision.node is not None]
    return GuardedPrior(recording, guards, [site for site in recording.sites if site.fixed is not None])
