"""A mean-field guide made automatically, which grows with the sites that executions meet.

The sites are independent of each other, q(x) = Π_s q_s(x_s), with a factor for each site by its name and shape:

    continuous      u ~ Normal(m, s²) for each of the unconstrained coordinates u, and x = T(u) in the support that the
                    site has in this execution, so that q_s(x) = Normal(u; m, s²) / |dx/du|
    discrete        probabilities of a table of values, restricted to those that are possible in this execution; the
                    table has all values where they are few, else those that were met

A site without a factor is drawn from the prior. It gets a factor, fitted to those draws, once there are enough of them.
A discrete site whose numbers constrain each other (a multinomial), or with too many values, stays with the prior.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import logsumexp

from anabranch.divide import Constraints, Executions, Node, Site, base_support, site_transforms, values_of
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Traces
from anabranch.engines.variational import MIN_BATCH, Adam, bounded, centred, gradient_scale

__all__ = ["Categories", "MeanField", "Normals", "Population", "SiteDraws"]

_FEW_VALUES, _MAX_VALUES = 50, 200
"""The size up to which a table has all values of a discrete site, met or not, and the largest size of a table."""
_PSEUDOCOUNT = 0.5
"""Added to the count of each value: a larger one explores values that were not met."""
_MAX_CACHED = 1_000
"""Sites whose possible values are cached."""

Kind = tuple[str, tuple[int, ...], bool, tuple[int, ...]]
"""What tells the sites of a guide apart, `Site.space`."""


@dataclass(frozen=True)
class SiteDraws:
    """The draws of one site in some executions, whose numbers are `rows`.

    `coordinates` are the unconstrained ones of a continuous site, and the values of a discrete one. `log_jacobian` is
    log |dx/du| of a continuous site, else zero; `possible` (n or 1, v, *shape), which values of its table one can have.
    """

    rows: np.ndarray
    coordinates: np.ndarray
    log_prior: np.ndarray
    log_jacobian: np.ndarray
    possible: np.ndarray | None = None

    def take(self, index: np.ndarray) -> SiteDraws:
        possible = self.possible if self.possible is None or len(self.possible) == 1 else self.possible[index]
        rows, coordinates, log_prior, log_jacobian = (column[index] for column in self._columns)
        return SiteDraws(rows, coordinates, log_prior, log_jacobian, possible)

    @property
    def _columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        return self.rows, self.coordinates, self.log_prior, self.log_jacobian

    @property
    def are_finite(self) -> np.ndarray:
        return np.isfinite(self.coordinates.reshape(len(self.rows), -1)).all(axis=1)

    @classmethod
    def joined(cls, parts: Sequence[SiteDraws]) -> list[SiteDraws]:
        """The same, with parts of the same possible values joined: few large parts are faster to compute with."""
        groups: dict[bytes | None, list[SiteDraws]] = {}
        for part in parts:
            shared = part.possible if part.possible is not None and len(part.possible) == 1 else None
            groups.setdefault(None if shared is None else shared.tobytes(), []).append(part)
        out = []
        for group in groups.values():
            possible = group[0].possible
            if possible is not None and len(possible) > 1:
                possible = np.concatenate([part.possible for part in group if part.possible is not None])
            rows, coordinates, *logs = map(np.concatenate, zip(*(part._columns for part in group), strict=True))
            out.append(cls(rows, coordinates, logs[0], logs[1], possible))
        return out


class Normals:
    """Independent normal distributions of the coordinates, which start with quantiles of the prior draws.

    Steps of the mean are in units of s, those of s are in its logarithm, so that no step depends on the scale of the
    coordinates. In these units ∇ log q = (z, z² − 1) with z = (u − m)/s.
    """

    def __init__(self, draws: np.ndarray) -> None:
        low, self.mean, high = np.quantile(draws, [0.16, 0.5, 0.84], axis=0)
        self.log_scale = np.log(np.maximum((high - low) / 2, 1e-300))
        self.adam = Adam((2, *self.mean.shape))

    def noise(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Standard random numbers that `draw` transforms, for n executions."""
        return rng.standard_normal((n, *self.mean.shape))

    def draw(self, site: Site, parameters: list[np.ndarray], noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The value of each execution, and whether it has one."""
        coordinates = self.mean + np.exp(self.log_scale) * noise
        return site_transforms.placed(site, parameters, coordinates), np.ones(len(noise), bool)

    def log_density(self, met: SiteDraws) -> np.ndarray:
        """log q_s of each execution."""
        with np.errstate(invalid="ignore"):  # coordinates are infinite at the edge of a support
            terms = -0.5 * self._standard(met) ** 2 - self.log_scale - 0.5 * np.log(2 * np.pi)
            total = terms.reshape(len(terms), -1).sum(axis=1) - met.log_jacobian
        return np.where(np.isnan(total), -np.inf, total)

    def gradient(self, met: SiteDraws, signal: np.ndarray) -> np.ndarray:
        """Σ_i signal_i ∇ log q_s(x_i), in the units of the steps of `move`."""
        z = self._standard(met)
        return np.stack([np.tensordot(signal, z, 1), np.tensordot(signal, z**2 - 1, 1)])

    def move(self, step: np.ndarray) -> None:
        self.mean = self.mean + np.exp(self.log_scale) * step[0]
        self.log_scale = self.log_scale + step[1]

    def _standard(self, met: SiteDraws) -> np.ndarray:
        return (met.coordinates - self.mean) * np.exp(-self.log_scale)


class Categories:
    """Probabilities of a table of values, for each number of the site, which start with the shares of prior draws.

    `values` (v,) are in order, and `logits` (v, *shape) the parameters. With P the possible values of an execution,
    q(x) = exp(logit_x) / Σ_{v in P} exp(logit_v), and ∇ log q = 1[x = v] − q(v).
    """

    def __init__(self, draws: np.ndarray, values: Sequence[int] = ()) -> None:
        self.values = np.union1d(values, np.unique(draws)).astype(np.int64)
        self.logits = np.log(_counts(draws, self.values) + _PSEUDOCOUNT)
        self.adam = Adam(self.logits.shape)
        self._of_constant = lru_cache(_MAX_CACHED)(
            lambda site: site_transforms.possible_values(site, [np.asarray(x)[None] for x in site.inputs], self.values)
        )

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
        """Which values of the table the site can have (n or 1, v, *shape)."""
        if _is_constant(site):
            return self._of_constant(site)
        return site_transforms.possible_values(site, parameters, self.values)

    def log_density(self, met: SiteDraws) -> np.ndarray:
        place, known = self._places(met)
        terms = np.take_along_axis(self._log_probabilities(met.possible), place[:, None], axis=1)[:, 0]
        total = np.where(known, terms, -np.inf).reshape(len(place), -1).sum(axis=1)
        return np.where(_is_any(met.possible), total, met.log_prior)

    def gradient(self, met: SiteDraws, signal: np.ndarray) -> np.ndarray:
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
        """Add the values of draws from the prior to the table."""
        new = np.setdiff1d(draws, self.values)[: max(_MAX_VALUES - len(self.values), 0)].astype(np.int64)
        if not len(new):
            return
        share = (_counts(draws, new) + _PSEUDOCOUNT) / (len(draws) + 1)
        logits = logsumexp(self.logits, axis=0, keepdims=True) + np.log(share)
        places = np.searchsorted(self.values, new)
        self.values = np.insert(self.values, places, new)
        self.logits = np.insert(self.logits, places, logits, axis=0)
        self.adam.first = np.insert(self.adam.first, places, 0.0, axis=0)
        self.adam.second = np.insert(self.adam.second, places, 0.0, axis=0)
        self._of_constant.cache_clear()

    def _log_probabilities(self, possible: np.ndarray | None) -> np.ndarray:
        """log q(v) of each value (n or 1, v, *shape); NaN where none is possible."""
        assert possible is not None
        logits = np.where(possible, self.logits, -np.inf)
        # SciPy's logsumexp takes ten times as long for a few numbers.
        with np.errstate(invalid="ignore", divide="ignore"):
            logits = logits - logits.max(axis=1, keepdims=True)
            return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def _places(self, met: SiteDraws) -> tuple[np.ndarray, np.ndarray]:
        """The place of each number in the table, and whether it is in the table."""
        place = np.minimum(np.searchsorted(self.values, met.coordinates), len(self.values) - 1)
        return place, self.values[place] == met.coordinates


def _counts(draws: np.ndarray, values: np.ndarray) -> np.ndarray:
    """How often each number of a site has each of the values (v, *shape)."""
    return np.stack([(draws == value).sum(axis=0) for value in values])


def _is_any(possible: np.ndarray | None) -> np.ndarray:
    """Whether every number of a site has a possible value (n or 1,)."""
    assert possible is not None
    return np.all(possible.any(axis=1).reshape(len(possible), -1), axis=1)


Factor = Normals | Categories
"""The distribution of one site."""


@dataclass(frozen=True)
class Population:
    """Executions, those `guided` from the guide and the others from the prior; `log_guide` is log q of each."""

    traces: Traces
    sites: dict[Kind, list[SiteDraws]]
    guided: np.ndarray
    log_guide: np.ndarray


class MeanField:
    """The guide: a factor for each site that was met often enough."""

    def __init__(self) -> None:
        self.factors: dict[Kind, Factor] = {}
        self._waiting: dict[Kind, list[np.ndarray]] = {}

    def execute(self, runner: Runner, n: int, from_prior: float, rng: np.random.Generator) -> Population:
        """Execute the program n times, from the prior with probability `from_prior`, else from the guide."""
        guided = rng.random(n) >= from_prior
        proposals = {kind[:2]: _proposal(kind, each, each.noise(n, rng)) for kind, each in self.factors.items()}
        arrivals = runner.send(n, Constraints(present=dict.fromkeys(proposals, guided), proposals=proposals))
        traces = runner.traces(arrivals, n)
        sites, log_guide = self._sites(arrivals, traces), np.zeros(n)
        for kind, parts in sites.items():
            factor = self.factors.get(kind)
            for met in parts:
                log_guide[met.rows] += met.log_prior if factor is None else factor.log_density(met)
        return Population(traces, sites, guided, log_guide)

    def _sites(self, arrivals: Sequence[Executions], traces: Traces) -> dict[Kind, list[SiteDraws]]:
        sites: dict[Kind, list[SiteDraws]] = {}
        for executions in arrivals:
            if executions.path is not None:
                for site in executions.recording.sites:
                    sites.setdefault(site.space, []).append(self._met(executions, site, traces))
        return {kind: SiteDraws.joined(parts) for kind, parts in sites.items()}

    def _met(self, executions: Executions, site: Site, traces: Traces) -> SiteDraws:
        rows, factor = executions.members, self.factors.get(site.space)
        values, log_prior = (column[site.name, site.shape][rows] for column in (traces.values, traces.log_probs))
        constant = site.discrete and _is_constant(site)
        parameters = [] if constant else executions.parameters(site.name)[1]
        if site.discrete:
            possible = factor.possible(site, parameters) if isinstance(factor, Categories) else None
            return SiteDraws(rows, values.astype(np.int64), log_prior, np.zeros(len(rows)), possible)
        with np.errstate(all="ignore"):
            coordinates = site_transforms.coordinates_of(site, parameters, values)
            return SiteDraws(rows, coordinates, log_prior, site_transforms.log_jacobian(site, parameters, values))

    def climb(self, population: Population, rate: float) -> None:
        """A step along the gradient of the bound, estimated from the executions of the guide."""
        log_density, log_guide, guided = population.traces.log_density, population.log_guide, population.guided
        f = np.full(len(log_density), -np.inf)
        possible = guided & (log_density > -np.inf) & (log_guide > -np.inf)
        f[possible] = log_density[possible] - log_guide[possible]
        reward = bounded(f[guided])
        if reward is None:
            return
        f[guided], scale = reward, guided.sum() * gradient_scale(reward)
        for kind, factor in self.factors.items():
            parts = [met.take(guided[met.rows] & met.are_finite) for met in population.sites.get(kind, ())]
            rows = np.concatenate([met.rows for met in parts]) if parts else np.zeros(0, int)
            if len(rows) < MIN_BATCH:
                continue
            signal = np.zeros(len(f))
            signal[rows] = centred(f[rows]) / scale
            gradient = sum(factor.gradient(met, signal[met.rows]) for met in parts)
            factor.move(rate * factor.adam.step(np.asarray(gradient)))

    def learn(self, population: Population, runner: Runner) -> None:
        """Add values and factors of sites that draws from the prior have met."""
        for kind, parts in population.sites.items():
            if runner.site(kind[:2]).space != kind:
                continue  # an earlier site with this name and shape is of another kind
            factor = self.factors.get(kind)
            drawn = [met.take(met.are_finite & (~population.guided[met.rows] | (factor is None))) for met in parts]
            draws = np.concatenate([met.coordinates for met in drawn])
            if isinstance(factor, Categories):
                factor.learn(draws)
            elif factor is None:
                waiting = self._waiting.setdefault(kind, [])
                waiting.append(draws)
                if sum(map(len, waiting)) >= MIN_BATCH:
                    self._start(kind, runner.site(kind[:2]), np.concatenate(self._waiting.pop(kind)))

    def _start(self, kind: Kind, site: Site, draws: np.ndarray) -> None:
        # Where a support has dimensions of an event, its numbers constrain each other, as those of a multinomial do.
        by_number = base_support(site.distribution.support).event_dim == 0
        if not site.discrete:
            self.factors[kind] = Normals(draws)
        elif by_number and len(np.unique(draws)) <= _MAX_VALUES:
            ranges = [r or () for r in values_of(site)]
            few = all(len(r) <= _FEW_VALUES for r in ranges)
            self.factors[kind] = Categories(draws, sorted(set().union(*ranges)) if few else ())


def _proposal(kind: Kind, factor: Factor, noise: np.ndarray) -> Callable[..., Any]:
    """The draws of a factor, for executions that meet a site of its kind."""

    def propose(site: Site, parameters: list[np.ndarray], members: np.ndarray) -> Any:
        if site.space != kind:
            return None, np.zeros(len(members), bool)
        return factor.draw(site, parameters, noise[members])

    return propose


def _is_constant(site: Site) -> bool:
    """Whether the distribution of the site depends on no random value."""
    return not any(isinstance(x, Node) for x in site.inputs)
