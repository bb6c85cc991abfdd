"""A guide that is made by itself, and grows with the sites that executions meet.

The sites are independent of each other, q(x) = Π_s q_s(x_s), and there is a factor for each site by its name and shape:

    continuous      u ~ Normal(m, s²) for each of the unconstrained coordinates u, and x = T(u) in the support that the
                    site has in this execution, so that q_s(x) = Normal(u; m, s²) / |dx/du|
    discrete        probabilities of the values that are known, restricted to those that are possible in this execution;
                    known are all values where they are few, else those that were met

A site that has no factor is drawn from the prior. It gets one, fitted to those draws, once there are enough of them. A
discrete site whose numbers bind each other (a multinomial), or that has too many values, stays with the prior.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import logsumexp

from anabranch.divide.batch import Constraints
from anabranch.divide.distributions import base_support
from anabranch.divide.executions import Executions
from anabranch.divide.graph import Node, with_batch_axis
from anabranch.divide.recording import Site
from anabranch.divide.site_transforms import coordinates_of, log_jacobian, placed, possible_values
from anabranch.divide.support import values_of
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Traces
from anabranch.engines.variational import Adam, bounded, centred, spread

__all__ = ["Categories", "MeanField", "Met", "Normals", "Population"]

ENOUGH = 10
"""Draws from the prior that a factor starts from, and executions that a step needs."""
_FEW, _MANY = 50, 200
"""How many values of a discrete site are all in its factor, met or not; and how many there are in a factor at most."""
_UNSEEN = 0.5
"""What a value that was not met counts as."""
_KEPT = 1_000
"""Sites of which it is remembered which values they can have."""

Kind = tuple[str, tuple[int, ...], bool, tuple[int, ...]]
"""A site as the guide knows it, `Site.space`."""


@dataclass(frozen=True)
class Met:
    """A site in executions that met it, those of one decision sequence.

    Attributes:
        rows: their numbers.
        coordinates: of a continuous site the unconstrained coordinates, of a discrete one the values.
        log_prior: its log density by the program.
        log_jacobian: log |dx/du| of a continuous site, else zero.
        possible: of a discrete site with a factor, which of the factor's values it can have (n or 1, v, *shape).
    """

    rows: np.ndarray
    coordinates: np.ndarray
    log_prior: np.ndarray
    log_jacobian: np.ndarray
    possible: np.ndarray | None = None

    def take(self, index: np.ndarray) -> Met:
        """Some of the executions."""
        possible = self.possible if self.possible is None or len(self.possible) == 1 else self.possible[index]
        return Met(self.rows[index], self.coordinates[index], self.log_prior[index], self.log_jacobian[index], possible)


class Factor(Protocol):
    """The distribution of one site."""

    adam: Adam

    def noise(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """What the draws of n executions are made from."""

    def draw(self, site: Site, parameters: list[np.ndarray], noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The value of each execution, and whether it has one."""

    def possible(self, site: Site, parameters: list[np.ndarray]) -> np.ndarray | None:
        """Which of the values that it knows the site can have, if there are such."""

    def log_density(self, met: Met) -> np.ndarray:
        """log q_s of each execution."""

    def gradient(self, met: Met, signal: np.ndarray) -> np.ndarray:
        """Σ_i signal_i ∇ log q_s(x_i), in the units in which `move` takes its steps."""

    def move(self, step: np.ndarray) -> None:
        """Change the parameters."""

    def learn(self, draws: np.ndarray) -> None:
        """Take in what draws from the prior show."""


class Normals:
    """Independent normal distributions of the coordinates; they start with the median and the spread of the draws.

    Steps of the mean are in units of s, those of s are in its logarithm, so that no step depends on the scale of the
    coordinates. In these units ∇ log q = (z, z² − 1) with z = (u − m)/s.
    """

    def __init__(self, draws: np.ndarray) -> None:
        low, self.mean, high = np.quantile(draws, [0.16, 0.5, 0.84], axis=0)
        self.log_scale = np.log(np.maximum((high - low) / 2, 1e-300))
        self.adam = Adam((2, *self.mean.shape))

    def noise(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.standard_normal((n, *self.mean.shape))

    def draw(self, site: Site, parameters: list[np.ndarray], noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        coordinates = self.mean + np.exp(self.log_scale) * noise
        return placed(site, parameters, coordinates), np.ones(len(noise), bool)

    def possible(self, site: Site, parameters: list[np.ndarray]) -> None:
        return None

    def log_density(self, met: Met) -> np.ndarray:
        with np.errstate(invalid="ignore"):  # the very edge of a support has infinite coordinates
            terms = -0.5 * self._standard(met) ** 2 - self.log_scale - 0.5 * np.log(2 * np.pi)
            total = terms.reshape(len(terms), -1).sum(axis=1) - met.log_jacobian
        return np.where(np.isnan(total), -np.inf, total)

    def gradient(self, met: Met, signal: np.ndarray) -> np.ndarray:
        z = self._standard(met)
        return np.stack([np.tensordot(signal, z, 1), np.tensordot(signal, z**2 - 1, 1)])

    def move(self, step: np.ndarray) -> None:
        self.mean = self.mean + np.exp(self.log_scale) * step[0]
        self.log_scale = self.log_scale + step[1]

    def learn(self, draws: np.ndarray) -> None:
        pass

    def _standard(self, met: Met) -> np.ndarray:
        return (met.coordinates - self.mean) * np.exp(-self.log_scale)


class Categories:
    """Probabilities of known values, for each number of the site; they start with the shares of the draws.

    `values` (v,) are in order, and `logits` (v, *shape) the parameters. With P the possible values of an execution,
    q(x) = exp(logit_x) / Σ_{v in P} exp(logit_v), and ∇ log q = 1[x = v] − q(v).
    """

    def __init__(self, draws: np.ndarray, values: Sequence[int] = ()) -> None:
        self.values = np.union1d(values, np.unique(draws)).astype(np.int64)
        self.logits = np.log(_counts(draws, self.values) + _UNSEEN)
        self.adam = Adam(self.logits.shape)
        self._constant: dict[Site, np.ndarray] = {}

    def noise(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.random((n, *self.logits.shape[1:]))

    def draw(self, site: Site, parameters: list[np.ndarray], noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        possible = self.possible(site, parameters)
        below = np.cumsum(np.exp(self._log_probabilities(possible)), axis=1)
        with np.errstate(invalid="ignore"):
            below = below / below[:, -1:]
        place = sum((noise > below[:, v] for v in range(len(self.values) - 1)), np.zeros(noise.shape, int))
        return self.values[place], np.broadcast_to(_is_any(possible), len(noise)).copy()

    def possible(self, site: Site, parameters: list[np.ndarray]) -> np.ndarray:
        if not _is_constant(site):
            return possible_values(site, parameters, self.values)
        if site not in self._constant:
            if len(self._constant) >= _KEPT:
                self._constant.clear()
            self._constant[site] = possible_values(site, [with_batch_axis(x) for x in site.inputs], self.values)
        return self._constant[site]

    def log_density(self, met: Met) -> np.ndarray:
        place, known = self._places(met)
        terms = np.take_along_axis(self._log_probabilities(met.possible), place[:, None], axis=1)[:, 0]
        total = np.where(known, terms, -np.inf).reshape(len(place), -1).sum(axis=1)
        return np.where(_is_any(met.possible), total, met.log_prior)

    def gradient(self, met: Met, signal: np.ndarray) -> np.ndarray:
        signal = np.where(_is_any(met.possible), signal, 0.0)
        place, known = self._places(met)
        each = signal.reshape(-1, *[1] * (known.ndim - 1)) * known
        out = np.stack([np.where(place == v, each, 0.0).sum(axis=0) for v in range(len(self.values))])
        probabilities = np.nan_to_num(np.exp(self._log_probabilities(met.possible)))
        one = len(probabilities) == 1
        return out - (signal.sum() * probabilities[0] if one else np.tensordot(signal, probabilities, 1))

    def move(self, step: np.ndarray) -> None:
        self.logits = self.logits + step

    def learn(self, draws: np.ndarray) -> None:
        new = np.setdiff1d(draws, self.values)[: max(_MANY - len(self.values), 0)].astype(np.int64)
        if not len(new):
            return
        share = (_counts(draws, new) + _UNSEEN) / (len(draws) + 1)
        logits = logsumexp(self.logits, axis=0, keepdims=True) + np.log(share)
        places = np.searchsorted(self.values, new)
        self.values = np.insert(self.values, places, new)
        self.logits = np.insert(self.logits, places, logits, axis=0)
        self.adam.first = np.insert(self.adam.first, places, 0.0, axis=0)
        self.adam.second = np.insert(self.adam.second, places, 0.0, axis=0)
        self._constant.clear()

    def _log_probabilities(self, possible: np.ndarray | None) -> np.ndarray:
        """log q(v) of each value (n or 1, v, *shape); not a number where none is possible."""
        assert possible is not None
        logits = np.where(possible, self.logits, -np.inf)
        # In place of SciPy's logsumexp, which takes ten times as long for a few numbers.
        with np.errstate(invalid="ignore", divide="ignore"):
            logits = logits - logits.max(axis=1, keepdims=True)
            return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def _places(self, met: Met) -> tuple[np.ndarray, np.ndarray]:
        """For each number its place among the values, and whether it is one of them."""
        place = np.minimum(np.searchsorted(self.values, met.coordinates), len(self.values) - 1)
        return place, self.values[place] == met.coordinates


def _counts(draws: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How often each number of a site had each of the values (v, *shape)."""
    return np.stack([(draws == value).sum(axis=0) for value in values])


def _is_any(possible: np.ndarray | None) -> np.ndarray:
    """Whether every number of a site has a possible value (n or 1,)."""
    assert possible is not None
    return np.all(possible.any(axis=1).reshape(len(possible), -1), axis=1)


@dataclass(frozen=True)
class Population:
    """Executions of which some, those `guided`, are from the guide, and the others from the prior.

    `log_guide` is log q of each, from wherever it is.
    """

    traces: Traces
    sites: dict[Kind, list[Met]]
    guided: np.ndarray
    log_guide: np.ndarray


class MeanField:
    """The guide: a factor for each site that was met often enough."""

    def __init__(self) -> None:
        self.factors: dict[Kind, Factor] = {}
        self._waiting: dict[Kind, list[np.ndarray]] = {}

    # Executions -------------------------------------------------------------------------------------------------

    def execute(self, runner: Runner, n: int, from_prior: float, rng: np.random.Generator) -> Population:
        """Execute the program n times, each with probability `from_prior` from the prior, else from the guide."""
        guided = rng.random(n) >= from_prior
        proposals = {kind[:2]: _Proposal(kind, factor, factor.noise(n, rng)) for kind, factor in self.factors.items()}
        arrivals = runner.send(n, Constraints(present=dict.fromkeys(proposals, guided), proposals=proposals))
        traces = runner.traces(arrivals, n)
        sites, log_guide = self._sites(arrivals, traces), np.zeros(n)
        for kind, parts in sites.items():
            factor = self.factors.get(kind)
            for met in parts:
                log_guide[met.rows] += met.log_prior if factor is None else factor.log_density(met)
        return Population(traces, sites, guided, log_guide)

    def _sites(self, arrivals: Sequence[Executions], traces: Traces) -> dict[Kind, list[Met]]:
        """Every site that the executions met."""
        sites: dict[Kind, list[Met]] = {}
        for executions in arrivals:
            if executions.path is not None:
                for site in executions.recording.sites:
                    sites.setdefault(site.space, []).append(self._met(executions, site, traces))
        return {kind: _joined(parts) for kind, parts in sites.items()}

    def _met(self, executions: Executions, site: Site, traces: Traces) -> Met:
        rows, factor = executions.members, self.factors.get(site.space)
        values, log_prior = (column[site.name, site.shape][rows] for column in (traces.values, traces.log_probs))
        constant = site.discrete and _is_constant(site)
        parameters = [] if constant else executions.parameters(site.name)[1]
        if site.discrete:
            possible = None if factor is None else factor.possible(site, parameters)
            return Met(rows, values.astype(np.int64), log_prior, np.zeros(len(rows)), possible)
        with np.errstate(all="ignore"):
            coordinates = coordinates_of(site, parameters, values)
            return Met(rows, coordinates, log_prior, log_jacobian(site, parameters, values))

    # Fitting ----------------------------------------------------------------------------------------------------

    def climb(self, population: Population, rate: float) -> None:
        """A step along the gradient of the bound, estimated from the executions of the guide."""
        log_density, log_guide, guided = population.traces.log_density, population.log_guide, population.guided
        f = np.full(len(log_density), -np.inf)
        possible = guided & (log_density > -np.inf) & (log_guide > -np.inf)
        f[possible] = log_density[possible] - log_guide[possible]
        reward = bounded(f[guided])
        if reward is None:
            return
        f[guided], scale = reward, guided.sum() * spread(reward)
        for kind, factor in self.factors.items():
            parts = [met.take(guided[met.rows] & _are_finite(met)) for met in population.sites.get(kind, ())]
            rows = np.concatenate([met.rows for met in parts]) if parts else np.zeros(0, int)
            if len(rows) < ENOUGH:
                continue
            signal = np.zeros(len(f))
            signal[rows] = centred(f[rows]) / scale
            gradient = sum(factor.gradient(met, signal[met.rows]) for met in parts)
            factor.move(rate * factor.adam.step(np.asarray(gradient)))

    def learn(self, population: Population, runner: Runner) -> None:
        """Take in what the draws from the prior show: values, and sites that are new."""
        for kind, parts in population.sites.items():
            if runner.site(kind[:2]).space != kind:
                continue  # a site of another kind had this name and shape before
            factor = self.factors.get(kind)
            drawn = [met.take(_are_finite(met) & (~population.guided[met.rows] | (factor is None))) for met in parts]
            draws = np.concatenate([met.coordinates for met in drawn])
            if factor is not None:
                factor.learn(draws)
                continue
            waiting = self._waiting.setdefault(kind, [])
            waiting.append(draws)
            if sum(map(len, waiting)) >= ENOUGH:
                self._start(kind, runner.site(kind[:2]), np.concatenate(self._waiting.pop(kind)))

    def _start(self, kind: Kind, site: Site, draws: np.ndarray) -> None:
        if not site.discrete:
            self.factors[kind] = Normals(draws)
        elif _is_number_by_number(site) and len(np.unique(draws)) <= _MANY:
            ranges = [r or () for r in values_of(site)]
            few = all(len(r) <= _FEW for r in ranges)
            self.factors[kind] = Categories(draws, sorted(set().union(*ranges)) if few else ())


def _joined(parts: list[Met]) -> list[Met]:
    """The same with those in one that have the same possible values: it is quicker to compute with few."""
    groups: dict[bytes | None, list[Met]] = {}
    for met in parts:
        possible = met.possible if met.possible is None or len(met.possible) == 1 else None
        groups.setdefault(None if possible is None else possible.tobytes(), []).append(met)
    return [_concatenated(group) for group in groups.values()]


def _concatenated(parts: list[Met]) -> Met:
    possible = parts[0].possible
    if possible is not None and len(possible) > 1:
        possible = np.concatenate([met.possible for met in parts if met.possible is not None])
    return Met(
        np.concatenate([met.rows for met in parts]),
        np.concatenate([met.coordinates for met in parts]),
        np.concatenate([met.log_prior for met in parts]),
        np.concatenate([met.log_jacobian for met in parts]),
        possible,
    )


@dataclass(frozen=True)
class _Proposal:
    """The draws of a factor, where an execution comes to a site of its kind."""

    kind: Kind
    factor: Factor
    noise: np.ndarray

    def __call__(
        self, site: Site, parameters: list[np.ndarray], members: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray]:
        if site.space != self.kind:
            return None, np.zeros(len(members), bool)
        return self.factor.draw(site, parameters, self.noise[members])


def _is_constant(site: Site) -> bool:
    """Whether the distribution of the site does not depend on anything random."""
    return not any(isinstance(x, Node) for x in site.inputs)


def _are_finite(met: Met) -> np.ndarray:
    return np.isfinite(met.coordinates.reshape(len(met.rows), -1)).all(axis=1)


def _is_number_by_number(site: Site) -> bool:
    """Whether the numbers of a discrete site do not bind each other, as the counts of a multinomial do."""
    return bool(base_support(site.distribution.support).event_dim == 0)
