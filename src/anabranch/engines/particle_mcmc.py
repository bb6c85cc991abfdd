"""Particle MCMC: Markov chains whose proposals are particle filters (Andrieu, Doucet and Holenstein, 2010).

- `PIMH`, particle independent Metropolis-Hastings: a filter's choice replaces the state with probability Ẑ'/Ẑ.
- `ParticleGibbs`: a filter in which the state survives gives the next one (paper, section 7, "PG").
- `IPMCMC`, interacting particle MCMC: some filters of a pool are conditional, and exchange their part with the free
  ones by their evidence (Rainforth et al., 2016; paper, section 7, "IPMCMC").
- `PMMH`, particle marginal Metropolis-Hastings: parameters move by themselves, weighed by a filter over the rest.

All run several chains side by side, in one population of particles.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from anabranch import errors
from anabranch.divide import Constraints, Division
from anabranch.engines.markov import CHAINS, Chains, accepted
from anabranch.engines.particles import Filter, Swept, check_observations, picked
from anabranch.engines.resampling import SCHEME
from anabranch.engines.runner import Runner
from anabranch.engines.sampler import Sampler, Session, recordings_of
from anabranch.engines.single_site import Scales, log_acceptance, propose
from anabranch.engines.traces import Traces
from anabranch.settings import check, flag, names, share, whole

__all__ = ["IPMCMC", "PIMH", "PMMH", "ParticleGibbs"]

_ATTEMPTS = 20
_STEPS, _STEPS_IN_TIME = 2, 10
"""Steps of each chain that a budget, and a time, should allow for: in a time, one on the way at the end is lost."""
_CHAINS = 4
"""Chains that should remain where there is not enough for all: errors come from how they differ."""


@dataclass(frozen=True)
class _ParticleChains(Sampler):
    """What the four have in common."""

    particles: int = 100
    chains: int = 20
    resampling: str = "multinomial"
    threshold: float = 0.5
    warmup: float = 0.2

    has_evidence: ClassVar[bool] = False
    evidence_apart: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    saving: ClassVar[str] = ", or use fewer particles or chains"

    def __post_init__(self) -> None:
        check(self, particles=whole(2), **CHAINS, **SCHEME)

    def check(self, division: Division) -> None:
        check_observations(type(self).__name__, division)

    @property
    def filter(self) -> Filter:
        return Filter(self.particles, self.resampling, self.threshold)

    def cost(self, session: Session) -> int:
        """Executions of one chain in a step, at most."""
        return self.particles

    @property
    def first_cost(self) -> int:
        """Executions of one chain before its first step, if no filter has to be run again."""
        return self.particles

    def afforded(self, session: Session) -> Self:
        """The same with fewer chains, and then fewer particles, where the budget or the time is small."""

        def trial(n: int) -> Swept:
            return replace(self.filter, particles=n).sweep(session.runner, 1, session.rng)

        def total(engine: _ParticleChains, chains: int = 1) -> int:
            return chains * (engine.first_cost + steps * engine.cost(session))

        steps = _STEPS if session.limits.seconds is None else _STEPS_IN_TIME
        allowed = session.allowed(trial)
        chains = min(self.chains, max(allowed // total(self), _CHAINS))
        particles = max(min(self.particles, self.particles * allowed // total(self, chains)), 2)
        engine = replace(self, particles=particles)
        return replace(engine, chains=max(min(chains, allowed // total(engine)), 1))

    def sample(self, session: Session) -> None:
        engine = self.afforded(session)
        if engine.first_cost <= session.left:
            engine.run_chains(session)

    @abstractmethod
    def run_chains(self, session: Session) -> None:
        """Run the chains, for which there is enough of everything to start."""

    def first(self, session: Session, filters: int, given: Constraints | None = None) -> tuple[np.ndarray, Traces]:
        """log Ẑ of filters, and one particle of each; tried again for those in which no particle has any weight.

        These are no fair filters any more: their evidence is where chains start, and does not count.
        """
        swept = self.filter.sweep(session.runner, filters, session.rng, given)
        log_z, state, attempts = swept.log_evidence, swept.traces.take(picked(swept, session.rng)), 1
        most = min(_ATTEMPTS, 1 + session.left // (filters * self.particles))
        while (lost := log_z == -np.inf).any() and attempts < most:
            again = self.filter.sweep(session.runner, filters, session.rng, given)
            state = state.replaced(lost, again.traces.take(picked(again, session.rng)))
            log_z = np.where(lost, again.log_evidence, log_z)
            attempts += 1
        if lost.all():
            raise errors.EngineCannotRun(
                f"of the particles of {attempts * filters:,} filters of {self.particles} each none could have produced "
                "the data",
                remedy="Give it more particles, or use ab.DCC(), the default",
            )
        # A chain that found no place to start joins another.
        place = np.where(lost, np.resize(np.flatnonzero(~lost), filters), np.arange(filters))
        return log_z[place], state.take(place)

    def kept(self, session: Session, state: Traces) -> Chains:
        """What is kept of the chains, which start from here."""
        return Chains(session, state, self.warmup, self.cost(session), start_counts=True)

    def movable(self, session: Session, cost: int) -> int:
        """How many of the chains can make a step with what is left of the budget."""
        return max(min(self.chains, session.left // cost), 1)


@dataclass(frozen=True)
class PIMH(_ParticleChains):
    """Particle independent Metropolis-Hastings. Its filters are independent, and give the evidence.

    Args:
        particles: of a filter.
        chains: that run side by side; errors come from how they differ.
        resampling: "multinomial", "stratified" or "systematic".
        threshold: the effective share of the particles below which they are resampled; 1: always.
        warmup: the share of the budget whose states are not kept.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.engines.PIMH(), budget=100_000)
        >>> abs(posterior.log_evidence - -3.1495) < 4 * posterior.log_evidence_sd
        True
    """

    has_evidence: ClassVar[bool] = True

    def run_chains(self, session: Session) -> None:
        log_z, state = self.first(session, self.chains)
        chains, cost, runs = self.kept(session, state), self.cost(session), 0
        while session.goes_on(needs=cost):
            moved = self.movable(session, cost)
            new, log_z[:moved], swept = self.step(
                session.runner, state.take(np.arange(moved)), log_z[:moved], session.rng
            )
            state = state.followed_by(new)
            session.collection.add_evidence(swept.log_evidence, runs + np.arange(moved))
            runs += moved
            chains.add(state, moved=moved)

    def step(
        self, runner: Runner, state: Traces, log_z: np.ndarray, rng: np.random.Generator
    ) -> tuple[Traces, np.ndarray, Swept]:
        """One step of each chain: the executions after it with log Ẑ of their filters, and the filters proposed."""
        swept = self.filter.sweep(runner, len(state), rng)
        moved = accepted(swept.log_evidence - log_z, rng)
        state = state.replaced(moved, swept.traces.take(picked(swept, rng)))
        return state, np.where(moved, swept.log_evidence, log_z), swept


@dataclass(frozen=True)
class ParticleGibbs(_ParticleChains):
    """Particle Gibbs: iterated conditional SMC.

    Args:
        particles: of a filter, the state among them.
        chains: that run side by side; errors come from how they differ.
        resampling: of the first filter; a conditional one resamples by the multinomial scheme.
        threshold: the effective share of the particles below which they are resampled; 1: always.
        warmup: the share of the budget whose states are not kept.
        ancestor_sampling: whether the state may take another particle's past, which lets the beginning of a long
            execution move; it costs an execution of each particle for each resampling.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.engines.ParticleGibbs(), budget=100_000)
        >>> mean, sd = posterior.expectation(lambda draw: "z1" in draw)
        >>> abs(mean - 0.0769) < 5 * sd
        True
    """

    ancestor_sampling: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, ancestor_sampling=flag())

    def run_chains(self, session: Session) -> None:
        _, state = self.first(session, self.chains)
        chains, cost = self.kept(session, state), self.cost(session)
        while session.goes_on(needs=cost):
            moved = self.movable(session, cost)
            state = state.followed_by(self.step(session.runner, state.take(np.arange(moved)), session.rng))
            chains.add(state, moved=moved)

    def cost(self, session: Session) -> int:
        if not self.ancestor_sampling:
            return self.particles
        # Once more after each observation but the last, if all are resampled.
        observations = [len(recording.observations) for recording in recordings_of(session.division)]
        return self.particles * max(observations, default=1)

    def step(self, runner: Runner, state: Traces, rng: np.random.Generator) -> Traces:
        """One step of each chain: the executions after it."""
        conditional = replace(self.filter, ancestor_sampling=self.ancestor_sampling)
        swept = conditional.conditional_sweep(runner, state, rng)
        return swept.traces.take(picked(swept, rng))


@dataclass(frozen=True)
class IPMCMC(_ParticleChains):
    """Interacting particle MCMC: pools of filters, some conditional, which exchange their parts by their evidence.

    Args:
        particles: of a filter.
        chains: pools that run side by side; errors come from how they differ.
        resampling: of the free filters; a conditional one resamples by the multinomial scheme.
        threshold: the effective share of the particles below which they are resampled; 1: always.
        warmup: the share of the budget whose states are not kept.
        nodes: filters of a pool.
        conditional: how many of them are conditional.

    The free filters give the evidence.

    Example:
        >>> import anabranch as ab
        >>> from anabranch import programs
        >>> posterior = ab.infer(programs.branching, 2.0, engine=ab.engines.IPMCMC(), budget=100_000)
        >>> abs(posterior.log_evidence - -3.1495) < 4 * posterior.log_evidence_sd
        True
    """

    particles: int = 50
    chains: int = 16
    nodes: int = 8
    conditional: int = 4

    has_evidence: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, nodes=whole(2))
        words = f"a whole number, at least 1 and below nodes, which is {self.nodes}"
        check(self, conditional=replace(whole(1, self.nodes - 1), words=words))

    def cost(self, session: Session) -> int:
        return self.particles * self.nodes

    @property
    def first_cost(self) -> int:
        return self.particles * self.conditional

    def run_chains(self, session: Session) -> None:
        free, led, cost = self.nodes - self.conditional, self.conditional, self.cost(session)
        _, state = self.first(session, self.chains * led)
        chains = Chains(session, state, self.warmup, cost // led, start_counts=True)
        pool, runs = np.repeat(np.arange(self.chains), led), 0
        while session.goes_on(needs=cost):
            moved = self.movable(session, cost)
            new, log_z = self.step(session.runner, state.take(np.arange(moved * led)), session.rng)
            state = state.followed_by(new)
            session.collection.add_evidence(log_z.ravel(), runs + np.arange(moved * free))
            runs += moved * free
            chains.add(state, pool, moved * led)

    def step(self, runner: Runner, state: Traces, rng: np.random.Generator) -> tuple[Traces, np.ndarray]:
        """One step of each pool: the executions of its conditional filters after it, and log Ẑ of the free ones."""
        pools, nodes, led = len(state) // self.conditional, self.nodes, self.conditional
        place = np.tile(np.arange(nodes), pools)
        # A free filter has no reference; that of another stands in for it and is not used.
        reference = np.repeat(np.arange(pools), nodes) * led + np.where(place < led, place, 0)
        swept = self.filter.conditional_sweep(runner, state.take(reference), rng, place < led)
        log_z = swept.log_evidence.reshape(pools, nodes)
        chosen = _exchanged(log_z, led, rng)[:, :led].ravel()
        return swept.traces.take(picked(swept, rng)[chosen]), log_z[:, led:]


def _exchanged(log_z: np.ndarray, led: int, rng: np.random.Generator) -> np.ndarray:
    """For each place of each pool the filter that takes it: in turn, a conditional place is given to its own filter or
    to one of those that have no such place, in proportion to Ẑ."""
    pools, nodes = log_z.shape
    order = np.tile(np.arange(nodes), (pools, 1))
    rows = np.arange(pools)
    for place in range(led):
        candidates = [place, *range(led, nodes)]
        odds = np.take_along_axis(log_z, order[:, candidates], axis=1) + rng.gumbel(size=(pools, len(candidates)))
        other = np.array(candidates)[odds.argmax(axis=1)]
        order[rows, place], order[rows, other] = order[rows, other], order[rows, place]
    return order + rows[:, None] * nodes


@dataclass(frozen=True)
class PMMH(_ParticleChains):
    """Particle marginal Metropolis-Hastings: parameters move one at a time, by a filter over everything else.

    Args:
        particles: of a filter.
        chains: that run side by side; errors come from how they differ.
        resampling: "multinomial", "stratified" or "systematic".
        threshold: the effective share of the particles below which they are resampled; 1: always.
        warmup: the share of the budget whose states are not kept.
        parameters: names of the sites that are parameters, which must not depend on the others; by default those that
            come before the first observation.
        local_share: the share of moves that are local; the others draw a parameter from its prior.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> def walk(y):
        ...     drift = ab.sample("drift", dist.Normal(0.0, 1.0))
        ...     x = 0.0
        ...     for t in range(len(y)):
        ...         x = ab.sample(f"x{t}", dist.Normal(x + drift, 0.5))
        ...         ab.observe(f"y{t}", dist.Normal(x, 0.5), y[t])
        >>> engine = ab.engines.PMMH(parameters=["drift"])
        >>> posterior = ab.infer(walk, [1.0, 2.0, 3.0], engine=engine, budget=100_000)
        >>> mean, sd = posterior.expectation(lambda draw: draw["drift"])
        >>> abs(mean - 0.84) < 0.1
        True
    """

    parameters: Sequence[str] | None = None
    local_share: float = 0.5

    carries_values: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, parameters=names().or_none(), local_share=share())

    def check(self, division: Division) -> None:
        super().check(division)
        names = {name for path in division for name in path.addresses}
        for name in self.parameters or ():
            if name not in names:
                raise errors.EngineCannotRun(
                    f"PMMH is to move {name!r}, which is no site of {division.program.name}",
                    remedy=f"Its sites are: {', '.join(sorted(names)[:20])}",
                )

    def cost(self, session: Session) -> int:
        return self.particles + 1

    @property
    def first_cost(self) -> int:
        return 2 * self.particles

    def run_chains(self, session: Session) -> None:
        _, state = self.first(session, self.chains)
        log_z, state = self.first(session, self.chains, self._repeated(self._marginal(state)))
        chains, scales, cost = self.kept(session, state), Scales(), self.cost(session)
        while session.goes_on(needs=cost):
            if chains.warming_up:
                scales.learn(state)
            moved = self.movable(session, cost)
            new, log_z[:moved] = self.step(
                session.runner, state.take(np.arange(moved)), log_z[:moved], scales, session.rng
            )
            state = state.followed_by(new)
            chains.add(state, moved=moved)

    def step(
        self, runner: Runner, state: Traces, log_z: np.ndarray, scales: Scales, rng: np.random.Generator
    ) -> tuple[Traces, np.ndarray]:
        """One step of each chain: the executions after it, with log Ẑ given their parameters."""
        now = replace(self._marginal(state), log_likelihood=log_z)
        proposal = propose(now, runner, scales, self.local_share, rng)
        arrivals = runner.send(len(state), proposal.given)
        new = self._marginal(runner.traces(arrivals, len(state)))
        swept = self.filter.sweep(runner, len(state), rng, self._repeated(new))
        self._check_marginal(new, swept)
        new = replace(new, log_likelihood=np.where(new.path >= 0, swept.log_evidence, -np.inf))
        moved = accepted(log_acceptance(runner, now, new, proposal, arrivals), rng)
        state = state.replaced(moved, swept.traces.take(picked(swept, rng)))
        return state, np.where(moved, swept.log_evidence, log_z)

    def _marginal(self, traces: Traces) -> Traces:
        """The executions with their parameters alone."""
        if self.parameters is not None:
            kept = [key for key in traces.values if key[0] in self.parameters]
            columns = [{key: c[key] for key in kept} for c in (traces.values, traces.log_probs, traces.present)]
            return Traces(traces.paths, traces.path, traces.log_likelihood, *columns)
        out = Traces(traces.paths, traces.path, traces.log_likelihood)
        for path, rows in traces.by_path():
            observations = path.recording.observations
            first = observations[0].preceding if observations else len(path.recording.sites)
            for site in path.recording.sites[:first]:
                key = site.name, site.shape
                out.put(key, rows, traces.values[key][rows], traces.log_probs[key][rows])
        return out

    def _repeated(self, marginal: Traces) -> Constraints:
        """To run a filter with each of these parameters."""
        n = self.particles
        values = {key: np.repeat(column, n, axis=0) for key, column in marginal.values.items()}
        return Constraints(values, {key: np.repeat(mask, n) for key, mask in marginal.present.items()})

    def _check_marginal(self, marginal: Traces, swept: Swept) -> None:
        """The density of the parameters must be the same whatever the rest of the execution is."""
        usable = (swept.log_weights > -np.inf).ravel() & np.repeat(marginal.path >= 0, self.particles)
        for key, log_probs in marginal.log_probs.items():
            rows = usable & np.repeat(marginal.present[key], self.particles)
            expected = np.repeat(log_probs, self.particles)[rows]
            actual = swept.traces.log_probs.get(key, np.zeros(len(rows)))[rows]
            met = swept.traces.present.get(key, np.zeros(len(rows), bool))[rows]
            if not (met.all() and np.allclose(actual, expected, rtol=1e-8, atol=1e-8)):
                raise errors.EngineCannotRun(
                    f"the density of the parameter {key[0]!r} depends on sites that are not parameters",
                    site=key[0],
                    remedy="Name those as parameters, too, or use ParticleGibbs, which needs none",
                )
