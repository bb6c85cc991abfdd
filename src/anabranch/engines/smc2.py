"""SMC²: particles of the parameters, each with a particle filter over all other sites (Chopin, Jacob and
Papaspiliopoulos, 2013; paper, section 3).

R parameters θ_r come from the prior, and each has a filter of N particles. An observation weights them by what it adds
to the evidence of their filters,

    W_t^r = W_{t−1}^r Ẑ_t(θ_r)/Ẑ_{t−1}(θ_r).

Where these weights are unequal, parameters are resampled together with their filters, and each makes a step of PMMH up
to that observation: θ' is proposed, with a filter of its own from the beginning, and accepted with probability
min(1, Ẑ_t(θ') p(θ') q(θ | θ') / (Ẑ_t(θ) p(θ) q(θ' | θ))). The mean of the W at the end, with those at each resampling,
is an unbiased estimate of the evidence. Runs are independent, and go on side by side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from scipy.special import logsumexp

from anabranch.divide import Constraints, Division, Executions
from anabranch.engines.markov import accepted
from anabranch.engines.parameters import Parameters
from anabranch.engines.particle_filter import SCHEME, Filter, Sweep, Swept, effective_sizes, resampled
from anabranch.engines.sampler import Sampler, Session, recordings_of
from anabranch.engines.single_site import LocalMoves, log_acceptance, propose
from anabranch.engines.traces import Traces
from anabranch.settings import check, names, share, whole

__all__ = ["SMC2"]


@dataclass(frozen=True)
class SMC2(Sampler):
    """SMC²: parameters as particles that move by PMMH, each with a particle filter; run again and again.

    Args:
        particles: of the filter of each parameter; more estimate its evidence better.
        thetas: parameters of a run; fewer where the budget is too small for `min_runs` runs.
        parameters: names of sites that depend on no others; by default those before the first observation.
        rejuvenation: steps of PMMH of each parameter after it was resampled; each costs a filter.
        resampling: "multinomial", "stratified" or "systematic".
        threshold: the effective share of the particles, or parameters, below which they are resampled; 1: always.
        local_share: the share of moves that are local; the others draw a parameter from its prior.
        min_runs: runs that the budget should allow for: more of them estimate the error better.
        batch: particles of all runs at a time: more are faster and take more memory.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def walk(y):
        ...     drift = ab.sample("drift", dist.Normal(0.0, 1.0))
        ...     x = 0.0
        ...     for t in range(len(y)):
        ...         x = ab.sample(f"x{t}", dist.Normal(x + drift, 0.5))
        ...         ab.observe(f"y{t}", dist.Normal(x, 0.5), y[t])
        >>> engine = ab.engines.SMC2(particles=10, thetas=20)
        >>> posterior = ab.infer(walk, [1.0, 2.0, 3.0], engine=engine, budget=20_000)
        >>> mean, sd = posterior.expectation(lambda draw: draw["drift"])
        >>> abs(mean - 0.84) < 0.15
        True
    """

    particles: int = 50
    thetas: int = 50
    parameters: Sequence[str] | None = None
    rejuvenation: int = 1
    resampling: str = "systematic"
    threshold: float = 0.5
    local_share: float = 0.5
    min_runs: int = 20
    batch: int = 20_000

    sequential: ClassVar[bool] = True
    independent: ClassVar[bool] = True
    carries_values: ClassVar[bool] = True
    min_draws: ClassVar[int] = 50
    saving: ClassVar[str] = ", or use fewer particles or thetas"

    def __post_init__(self) -> None:
        check(self, particles=whole(1), thetas=whole(1), parameters=names().or_none(), rejuvenation=whole(), **SCHEME,
              local_share=share(), min_runs=whole(1), batch=whole(1))  # fmt: skip

    def check(self, division: Division) -> None:
        Parameters(self.particles, self.parameters).check_known(division, "SMC2")

    def sample(self, session: Session) -> None:
        engine = self._afforded(session)
        filters, runs, cost = Filter(engine.particles, self.resampling, self.threshold), 0, engine._cost(session)
        while session.goes_on(needs=cost):
            number = min(session.left // cost, max(self.batch // (engine.particles * engine.thetas), 1))
            swept, log_weights = _Outer(engine, filters, session, number).run()
            blocks = runs + np.arange(number)
            runs += number
            of_particles = np.repeat(blocks, engine.thetas * engine.particles)
            session.collection.add(swept.traces, log_weights.ravel(), of_particles, blocks)

    def _afforded(self, session: Session) -> SMC2:
        """The same with fewer particles and parameters where the limits are small: about as many of both."""
        allowed = Filter(self.particles, self.resampling, self.threshold).allowed(session) // self.min_runs
        one = replace(self, particles=1, thetas=1)._cost(session) // 2
        engine = replace(self, particles=min(self.particles, max(math.isqrt(allowed // one), 1)), thetas=1)
        return replace(engine, thetas=min(self.thetas, max(allowed // engine._cost(session), 1)))

    def _cost(self, session: Session) -> int:
        """The most executions of a run: a filter for each parameter, and one more for each that it tries, which it does
        after each observation but the last."""
        observations = [len(recording.observations) for recording in recordings_of(session.division)]
        tries = 1 + self.rejuvenation * (max(observations, default=1) - 1)
        return self.thetas * (1 + self.particles) * tries


class _Outer:
    """Some runs, side by side: the parameters, their weights and their filters."""

    def __init__(self, engine: SMC2, filters: Filter, session: Session, runs: int) -> None:
        self.engine, self.filters, self.runner, self.rng = engine, filters, session.runner, session.rng
        self.parameters = Parameters(engine.particles, engine.parameters)
        self.shape = runs, engine.thetas
        self.theta = self.parameters.of(self.runner.execute(runs * engine.thetas))
        self.sweep = self._begun(self.theta)
        self.log_past = np.zeros(runs)  # the log of the mean weights at each resampling
        self.log_before = np.zeros(runs * engine.thetas)  # log Ẑ of each filter when its weight was last one

    def run(self) -> tuple[Swept, np.ndarray]:
        """The filters at the end, and the log weights of their particles, whose sum over a run is its Ẑ."""
        while self.sweep.observe():
            self._resample()
            self.sweep.resample()
        swept = self.sweep.swept()
        self.parameters.check(self.theta, swept)
        log_z = swept.log_evidence
        within = swept.log_weights - np.where(log_z > -np.inf, log_z, 0.0)[:, None] - np.log(self.engine.particles)
        outer = self.log_weights - np.log(self.shape[1]) + self.log_past[:, None]
        return swept, within + outer.reshape(-1, 1)

    @property
    def log_weights(self) -> np.ndarray:
        """log W of each parameter (runs, R)."""
        before = np.where(self.log_before > -np.inf, self.log_before, 0.0)
        return (self.sweep.log_evidence - before).reshape(self.shape)

    def _resample(self) -> None:
        """Resample and move the parameters of the runs in which the weights are unequal."""
        log_weights, (runs, thetas) = self.log_weights, self.shape
        poor = effective_sizes(log_weights) < self.engine.threshold * thetas
        if not poor.any():
            return
        chosen = np.tile(np.arange(thetas), (runs, 1))
        chosen[poor] = resampled(log_weights[poor], self.engine.resampling, self.rng)
        self.log_past = self.log_past + np.where(poor, logsumexp(log_weights, axis=1) - np.log(thetas), 0.0)
        self._take((np.arange(runs)[:, None] * thetas + chosen).ravel())
        moving = np.repeat(poor, thetas)
        for _ in range(self.engine.rejuvenation):
            self._move(moving)
        self.log_before = np.where(moving, self.sweep.log_evidence, self.log_before)
        given = self.parameters.repeated(self.theta)
        self.sweep.arrivals = [_with(arrival, given) for arrival in self.sweep.arrivals]

    def _take(self, ancestors: np.ndarray) -> None:
        """Replace each parameter, with its filter, by a copy of its ancestor."""
        n = self.engine.particles
        self.theta, self.log_before = self.theta.take(ancestors), self.log_before[ancestors]
        self.sweep.log_weights = self.sweep.log_weights[ancestors]
        self.sweep.take((ancestors[:, None] * n + np.arange(n)).ravel())

    def _move(self, moving: np.ndarray) -> None:
        """One step of PMMH up to this observation."""
        sweep = self.sweep
        now = replace(self.theta, log_likelihood=sweep.log_evidence)
        proposal = propose(self.runner, now, LocalMoves(self.engine.local_share), self.rng)
        arrivals = self.runner.send(len(now), proposal.given)
        proposed = self.parameters.of(self.runner.traces(arrivals, len(now)))
        other = self._begun(proposed)
        while other.observed < sweep.observed:
            if other.observed:
                other.resample()
            other.observe()
        self.runner.evaluations += other.log_weights.size
        possible = np.where(proposed.path >= 0, other.log_evidence, -np.inf)
        proposed = replace(proposed, log_likelihood=possible)
        moves = moving & accepted(log_acceptance(self.runner, now, proposed, proposal, arrivals), self.rng)
        self.theta = self.theta.replaced(moves, proposed)
        particles = np.repeat(moves, self.engine.particles)
        sweep.log_weights = np.where(moves[:, None], other.log_weights, sweep.log_weights)
        sweep.log_likelihood = np.where(particles, other.log_likelihood, sweep.log_likelihood)
        sweep.arrivals = [*_members(sweep.arrivals, ~particles), *_members(other.arrivals, particles)]

    def _begun(self, theta: Traces) -> Sweep:
        given = self.parameters.repeated(theta)
        return Sweep(self.filters, self.runner, self.rng, given, np.zeros(len(theta), bool))


def _members(arrivals: Sequence[Executions], kept: np.ndarray) -> list[Executions]:
    """Those of the particles that are kept."""
    out = []
    for arrival in arrivals:
        index = np.flatnonzero(kept[arrival.members])
        if len(index):
            out.append(replace(arrival, batch=arrival.batch.take(index, arrival.batch.key)))
    return out


def _with(arrival: Executions, given: Constraints) -> Executions:
    """The particles with other constraints on the sites to come."""
    return replace(arrival, batch=replace(arrival.batch, constraints=given))
