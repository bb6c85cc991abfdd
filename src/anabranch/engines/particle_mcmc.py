"""Particle MCMC: Markov chains whose proposals are particle filters (Andrieu, Doucet and Holenstein, 2010).

All run several chains side by side, in one population of particles.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.random import Generator

from anabranch import errors
from anabranch.divide import Constraints, Division
from anabranch.engines.markov import ChainEngine, Chains, accepted
from anabranch.engines.parameters import Parameters
from anabranch.engines.particle_filter import SCHEME, Filter, Swept
from anabranch.engines.runner import Runner
from anabranch.engines.sampler import Session, recordings_of
from anabranch.engines.single_site import LocalMoves, log_acceptance, propose
from anabranch.engines.traces import Traces
from anabranch.settings import check, flag, names, share, whole

__all__ = ["IPMCMC", "PIMH", "PMMH", "ParticleGibbs"]


@dataclass(frozen=True)
class _ParticleChains(ChainEngine):
    """What the four have in common."""

    particles: int = 100
    chains: int = 20
    resampling: str = "multinomial"
    threshold: float = 0.5
    warmup: float = 0.2

    carries_values: ClassVar[bool] = False
    evidence_apart: ClassVar[bool] = True
    sequential: ClassVar[bool] = True
    saving: ClassVar[str] = ", or use fewer particles or chains"
    max_attempts: ClassVar[int] = 20
    min_steps: ClassVar[int] = 2
    min_chains: ClassVar[int] = 4
    """Chains that a small budget leaves: fewer have more particles each, but errors come from how chains differ."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, particles=whole(2), **SCHEME)

    @property
    def filter(self) -> Filter:
        return Filter(self.particles, self.resampling, self.threshold)

    def cost(self, session: Session) -> int:
        """The largest number of executions of one chain in a step."""
        return self.particles

    @property
    def first_cost(self) -> int:
        """Executions of one chain before its first step, if no filter is run again."""
        return self.particles

    def afforded(self, session: Session) -> Self:
        """The same with fewer chains, and then fewer particles, where the budget or the time is small."""

        def total(engine: _ParticleChains, chains: int = 1) -> int:
            return chains * (engine.first_cost + steps * engine.cost(session))

        # Under a limit on the time the last step may be lost, so that there should be more of them.
        steps = self.min_steps if session.limits.seconds is None else 5 * self.min_steps
        allowed = self.filter.allowed(session)
        chains = min(self.chains, max(allowed // total(self), self.min_chains))
        particles = max(min(self.particles, self.particles * allowed // total(self, chains)), 2)
        engine = replace(self, particles=particles)
        return replace(engine, chains=max(min(chains, allowed // total(engine)), 1))

    def sample(self, session: Session) -> None:
        engine = self.afforded(session)
        if engine.first_cost <= session.left:
            engine.run_chains(session)

    @abstractmethod
    def run_chains(self, session: Session) -> None:
        """Run the chains; the budget allows for their start."""

    def advance(self, session: Session, state: Traces, step: Callable[[Traces], Traces], per_chain: int = 1) -> None:
        """Advance the chains step by step until the session ends; at the end of the budget, the first of them alone."""
        cost, blocks = self.cost(session), np.repeat(np.arange(self.chains), per_chain)
        chains = Chains(session, state, self.warmup, cost // per_chain, start_counts=True)
        while session.goes_on(needs=cost):
            moved = max(min(self.chains, session.left // cost), 1) * per_chain
            first = np.arange(moved)
            state = state.with_rows(first, step(state.take(first)))
            chains.add(state, blocks, moved)

    def first(self, session: Session, filters: int, given: Constraints | None = None) -> tuple[np.ndarray, Traces]:
        """log Ẑ of filters, and one particle of each. Filters in which no particle has any weight are run again.

        Therefore these Ẑ are biased, and do not count in the evidence.
        """
        swept = self.filter.sweep(session.runner, filters, session.rng, given)
        log_z, state, attempts = swept.log_evidence, swept.picked(session.rng), 1
        max_attempts = min(self.max_attempts, 1 + session.left // (filters * self.particles))
        while (lost := log_z == -np.inf).any() and attempts < max_attempts:
            again = self.filter.sweep(session.runner, filters, session.rng, given)
            state = state.replaced(lost, again.picked(session.rng))
            log_z = np.where(lost, again.log_evidence, log_z)
            attempts += 1
        if lost.all():
            raise errors.EngineCannotRun(
                f"no particle of {attempts * filters:,} filters of {self.particles} can have produced the data",
                remedy="Give it more particles, or use ab.DCC(), the default",
            )
        # A chain without a starting point starts where another does.
        place = np.where(lost, np.resize(np.flatnonzero(~lost), filters), np.arange(filters))
        return log_z[place], state.take(place)


@dataclass(frozen=True)
class PIMH(_ParticleChains):
    """Particle independent MH: a particle of a new filter replaces the state with probability min(1, Ẑ'/Ẑ).

    The filters are independent and estimate the evidence.

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
        def step(state: Traces) -> Traces:
            n = len(state)
            new, log_z[:n], swept = self.step(session.runner, state, log_z[:n], session.rng)
            session.collection.add_evidence(swept.log_evidence)
            return new

        log_z, state = self.first(session, self.chains)
        self.advance(session, state, step)

    def step(
        self, runner: Runner, state: Traces, log_z: np.ndarray, rng: Generator
    ) -> tuple[Traces, np.ndarray, Swept]:
        """The executions after one step of each chain, with log Ẑ of their filters, and the filters proposed."""
        swept = self.filter.sweep(runner, len(state), rng)
        moved = accepted(swept.log_evidence - log_z, rng)
        state = state.replaced(moved, swept.picked(rng))
        return state, np.where(moved, swept.log_evidence, log_z), swept


@dataclass(frozen=True)
class ParticleGibbs(_ParticleChains):
    """Particle Gibbs: the next state is a particle of a filter in which the state survives (paper, section 7, "PG").

    Args:
        particles, chains, threshold, warmup: as for `PIMH`.
        resampling: of the first filter; a conditional one resamples by the multinomial scheme.
        ancestor_sampling: whether the state may take the past of another particle, so that the beginning of a long
            execution can change; it costs an execution of each particle for each resampling.

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
        self.advance(session, state, lambda state: self.step(session.runner, state, session.rng))

    def cost(self, session: Session) -> int:
        if not self.ancestor_sampling:
            return self.particles
        # Each resampling costs an execution of each particle; the last observation has none.
        observations = [len(recording.observations) for recording in recordings_of(session.division)]
        return self.particles * max(observations, default=1)

    def step(self, runner: Runner, state: Traces, rng: Generator) -> Traces:
        """The executions after one step of each chain."""
        conditional = replace(self.filter, ancestor_sampling=self.ancestor_sampling)
        return conditional.conditional_sweep(runner, state, rng).picked(rng)


@dataclass(frozen=True)
class IPMCMC(_ParticleChains):
    """Interacting particle MCMC: in pools of filters, conditional and free ones exchange places by their evidence.

    The free filters estimate the evidence (Rainforth et al., 2016; paper, section 7, "IPMCMC").

    Args:
        particles, threshold, warmup: as for `PIMH`.
        chains: pools that run side by side; errors come from how they differ.
        resampling: of the free filters; a conditional one resamples by the multinomial scheme.
        nodes: filters of a pool.
        conditional: how many of them are conditional.

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
        def step(state: Traces) -> Traces:
            new, log_z = self.step(session.runner, state, session.rng)
            session.collection.add_evidence(log_z.ravel())
            return new

        _, state = self.first(session, self.chains * self.conditional)
        self.advance(session, state, step, self.conditional)

    def step(self, runner: Runner, state: Traces, rng: Generator) -> tuple[Traces, np.ndarray]:
        """The executions of the conditional filters after one step of each pool, and log Ẑ of the free filters."""
        pools, nodes, led = len(state) // self.conditional, self.nodes, self.conditional
        place = np.tile(np.arange(nodes), pools)
        # A free filter has no reference; it is given that of another, which it does not use.
        reference = np.repeat(np.arange(pools), nodes) * led + np.where(place < led, place, 0)
        swept = self.filter.conditional_sweep(runner, state.take(reference), rng, place < led)
        log_z = swept.log_evidence.reshape(pools, nodes)
        chosen = _exchanged(log_z, led, rng)[:, :led].ravel()
        return swept.traces.take(swept.picked_rows(rng)[chosen]), log_z[:, led:]


def _exchanged(log_z: np.ndarray, led: int, rng: Generator) -> np.ndarray:
    """The filter that takes each place of each pool: its own, or in a conditional place a free one, by their Ẑ."""
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
    """Particle marginal Metropolis-Hastings: parameters move one at a time, with a filter over all other sites.

    Args:
        particles, chains, resampling, threshold, warmup: as for `PIMH`.
        parameters: names of sites that depend on no others; by default those before the first observation.
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
        self._parameters.check_known(division, "PMMH")

    @property
    def _parameters(self) -> Parameters:
        return Parameters(self.particles, self.parameters)

    def cost(self, session: Session) -> int:
        return self.particles + 1

    @property
    def first_cost(self) -> int:
        return 2 * self.particles

    def run_chains(self, session: Session) -> None:
        def step(state: Traces) -> Traces:
            n = len(state)
            if session.progressed < self.warmup:
                local.learn(state)
            new, log_z[:n] = self.step(session.runner, state, log_z[:n], local, session.rng)
            return new

        local = LocalMoves(self.local_share)
        _, state = self.first(session, self.chains)
        log_z, state = self.first(session, self.chains, self._parameters.repeated(self._parameters.of(state)))
        self.advance(session, state, step)

    def step(
        self, runner: Runner, state: Traces, log_z: np.ndarray, local: LocalMoves, rng: Generator
    ) -> tuple[Traces, np.ndarray]:
        """The executions after one step of each chain, with log Ẑ given their parameters."""
        now = replace(self._parameters.of(state), log_likelihood=log_z)
        proposal = propose(runner, now, local, rng)
        arrivals = runner.send(len(state), proposal.given)
        new = self._parameters.of(runner.traces(arrivals, len(state)))
        swept = self.filter.sweep(runner, len(state), rng, self._parameters.repeated(new))
        self._parameters.check(new, swept)
        new = replace(new, log_likelihood=np.where(new.path >= 0, swept.log_evidence, -np.inf))
        moved = accepted(log_acceptance(runner, now, new, proposal, arrivals), rng)
        return state.replaced(moved, swept.picked(rng)), np.where(moved, swept.log_evidence, log_z)
