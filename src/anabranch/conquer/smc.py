"""Sequential Monte Carlo: particles carried from the prior, or from a proposal, to the posterior by tempering.

A sweep raises the inverse temperature from 0 to 1 (`smc_sweep`); at each temperature chains move by kernels that leave
the tempered density unchanged, and all their states are particles (`smc_mutation`). It is another local estimator in
the sense of the paper's section 4.2 and theorem 1. Sweeps are repeated, and later ones are larger.

Particles that choose their own temperatures make Ẑ a little too small: they go too far where they happen to lack the
large weights (by 0.05 in log Ẑ for 512 independent ones in twenty dimensions). So a first, smaller sweep learns the
ladder that the others follow; its own evidence counts only as long as there is no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.block_moves import BlockProposal, can_move
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.jumps import is_climbable
from anabranch.conquer.population import overdispersed_points
from anabranch.conquer.smc_mutation import Mutation, Shape, Tuning
from anabranch.conquer.smc_sweep import Raised, Sweep, SweepUnderWay, next_temperature, pooled, resampled, scatter
from anabranch.conquer.smc_tempering import MixedProposal, Tempering, fitted
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.symmetry import Exchangeable
from anabranch.conquer.target import Target
from anabranch.divide import prior_is_sampled
from anabranch.limits import LimitReached
from anabranch.settings import check, instance, positive, several, share, whole

__all__ = ["SMC", "SMCState", "Sweep"]

_MIN_PER_COORDINATE = 4
"""Chains for each coordinate of the smallest sweep, which the covariance of the moves needs."""
_FIRST_COST = 150
"""Points evaluated for each chain of a sweep, before any has run."""

_FEW_DRAWS, _FEW_STARTS = 16, 2.0
"""Draws from the start for each chain, and effective ones after the first step, where each is a run of the program."""
_HIGHEST = 64
"""Draws from the start with the largest likelihood that are kept."""


@dataclass(frozen=True)
class SMC:
    """Adaptive tempering of particles. It runs on every path, with discrete coordinates and without gradients.

    Args:
        chains: of a sweep; fewer if the evaluations do not suffice, more in later sweeps.
        share: the fraction of the particles that the step to the next temperature leaves effective; more means more
            temperatures.
        steps: states of a chain at one temperature, at most.
        draws: from the prior at the start, for each chain; more find narrow modes, and take few evaluations.
        effective_starts: effective draws from the start that the first step leaves, for each chain; fewer make a longer
            step, and chains that have more of the draws in common.
        proposal: start from this distribution of the continuous coordinates instead of the prior.
        min_chains: of a sweep; fewer would not give the covariance of the moves.
        max_chains: of a sweep; more take more memory.
        sweeps_per_size: sweeps before the next are twice as large; more show their scatter better.
        gradient_from: coordinates from which on gradients move the particles; below, a random walk costs less.
        blocks: exchangeable ones, which are also moved as a whole (`block_moves`).

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def normal():
        ...     x = ab.sample("x", dist.Normal(0.0, 1.0))
        ...     ab.observe("y", dist.Normal(x, 1.0), 2.0)
        >>> estimate = solve(SMC(chains=64), PathTarget(ab.find_paths(normal).paths[0]), 5_000)
        >>> exact = -0.5 * (np.log(4 * np.pi) + 2.0)
        >>> abs(estimate.log_evidence - exact) < 3 * estimate.log_evidence_sd < 0.3
        True
    """

    chains: int = 128
    share: float = 0.5
    steps: int = 30
    draws: int = 128
    effective_starts: float = 16.0
    proposal: StudentMixture | None = None
    min_chains: int = 32
    max_chains: int = 4_096
    sweeps_per_size: int = 4
    gradient_from: int = 3
    blocks: tuple[Exchangeable, ...] | None = None

    def __post_init__(self) -> None:
        check(self, chains=whole(2), share=share(zero=False, one=False), steps=whole(2), draws=whole(1),
              effective_starts=positive(), proposal=instance(StudentMixture, "a StudentMixture").or_none(),
              min_chains=whole(2), max_chains=whole(2), sweeps_per_size=whole(1), gradient_from=whole(),
              blocks=several(Exchangeable, "exchangeable blocks").or_none())  # fmt: skip

    def start(self, target: Target, rng: Generator) -> SMCState:
        real = int((~target.discrete).sum())
        if self.proposal is not None and self.proposal.dim != real:
            raise ValueError(f"proposal must have {real} dimensions, as the path has; got {self.proposal.dim}")
        return SMCState()

    def advance(self, target: Target, state: SMCState, rng: Generator, evaluations: int) -> SMCState:
        """Whole sweeps; one that the end of the visit cuts short is continued by the next visit."""
        end = target.evaluations + evaluations
        if state.tuning is None:
            state = self._prepared(target, state, rng, evaluations)
        while not state.lost:
            before = target.evaluations
            if state.under_way is None:
                try:
                    state = self._begun(target, state, end - before, rng)
                except LimitReached:
                    return state
            state = self._continued(target, state, rng)
            if state.under_way is not None:
                break
            # A last sweep with the remaining evaluations would be too small to count.
            enough = state.cost * state.sweeps[-1].size / (2 if len(state.sweeps) > 1 else 1)
            if end - target.evaluations < enough or target.evaluations == before:
                break
            # Nor should one begin with few draws where the next visit has room for more.
            if target.left < self.draws * state.sweeps[-1].size / 8:
                break
        return state

    def estimate(self, target: Target, state: SMCState) -> Estimate:
        if not state.sweeps and state.under_way is not None:
            return state.under_way.estimate(target)
        return pooled(state.counted, target, _remarks(state))

    def _prepared(self, target: Target, state: SMCState, rng: Generator, evaluations: int) -> SMCState:
        """Choose the start and the kind of moves."""
        points, proposal = np.zeros((0, target.dim)), None
        # Where each draw takes an execution of the program, a few must do.
        n = min(self.chains, max(evaluations // 8, 8)) if target.path.interpreted else 2 * self.chains
        if self.proposal is None and prior_is_sampled(target.path):
            drawn = target.prior(n, rng)
            # Where the probability of the path is an estimate by splitting, that of a fitted start has a smaller error.
            points = drawn.points if drawn.pool is None else points
        if len(points) < min(n, self.min_chains):
            points = overdispersed_points(target, n, rng)
            if not len(points):
                return replace(state, lost=True)
            proposal = fitted(points, target.discrete, self.proposal)
        tuning = Tuning(target.dim >= self.gradient_from and is_climbable(target))
        return replace(state, lost=False, proposal=proposal, tuning=tuning, cost=_FIRST_COST)

    def _size(self, target: Target, state: SMCState, left: int) -> int:
        """Chains of the next sweep: as many as the evaluations left allow, within the size of its turn."""
        affordable = max(left // 4, 4)
        smallest = min(max(self.min_chains, _MIN_PER_COORDINATE * target.dim), self.chains, affordable)
        if not state.sweeps:
            return int(np.clip(left / state.cost / 4, smallest, max(self.chains / 2, smallest)))
        doublings = (len(state.sweeps) - 1) // self.sweeps_per_size
        largest = min(self.chains * 2**doublings, max(self.max_chains, self.chains))
        return int(np.clip(left / state.cost, smallest, largest))

    def _begun(self, target: Target, state: SMCState, left: int, rng: Generator) -> SMCState:
        """A sweep at its start, for so many evaluations."""
        n = self._size(target, state, left)
        assert state.tuning is not None
        state = replace(state, tuning=Tuning(state.tuning.gradient))  # that of the posterior does not suit the prior
        before, tempering = target.evaluations, Tempering(target, state.proposal)
        draws = min(self.draws * n, max(left // 8, (_FEW_DRAWS if target.path.interpreted else 8) * n))
        start = tempering.draw(int(min(draws, max(target.left // 2, n))), rng)
        if not len(start.points):
            return replace(state, sweeps=(*state.sweeps, Sweep.empty(n, target.dim, 0)))
        founders = resampled(start.log_weights, max(n, len(start.points)), rng)
        drawn = tempering.at(start.points)
        highest = start.points[np.argsort(-drawn.log_ratio, kind="stable")[:_HIGHEST]]
        influence, variance = np.zeros(len(start.points)), start.log_probability_sd**2
        sweep = SweepUnderWay(
            n, drawn.take(founders), founders, influence, 0.0, start.log_probability, variance, highest
        )
        if len(start.points) < n:
            chosen = sweep.raised(0.0, rng)
            assert chosen is not None
            sweep, state, _ = self._moved(tempering, chosen, state, rng)
        return replace(state, under_way=replace(sweep, spent=target.evaluations - before))

    def _continued(self, target: Target, state: SMCState, rng: Generator) -> SMCState:
        """The sweep from temperature to temperature, to the posterior unless a limit comes before."""
        tempering, complete = Tempering(target, state.proposal), True
        while complete and (sweep := state.under_way) is not None:
            before, n = target.evaluations, sweep.chains
            higher = next_temperature(
                sweep.particles.log_ratio, sweep.beta, state.ladder, self._effective(target, sweep)
            )
            raised = sweep.raised(higher, rng)
            if raised is None:
                empty = Sweep.empty(n, target.dim, len(sweep.influence))
                return replace(state, sweeps=(*state.sweeps, empty), under_way=None)
            sweep, state, complete = self._moved(tempering, raised, state, rng)
            sweep = replace(sweep, spent=sweep.spent + target.evaluations - before)
            state = replace(state, under_way=sweep)
            if sweep.beta == 1:
                sweeps, cost = (*state.sweeps, sweep.finished()), max(sweep.spent / n, 1.0)
                state = replace(state, sweeps=sweeps, under_way=None, ladder=sweep.climbed, cost=cost)
        return state

    def _effective(self, target: Target, sweep: SweepUnderWay) -> float:
        """The share of the particles that the next step leaves effective.

        Many draws from the start allow a long first step: chains then begin where the likelihood is high.
        """
        if sweep.climbed:
            return self.share
        effective = _FEW_STARTS if target.path.interpreted else self.effective_starts
        return min(self.share, effective * sweep.chains / len(sweep.particles))

    def _moved(
        self, tempering: Tempering, raised: Raised, state: SMCState, rng: Generator
    ) -> tuple[SweepUnderWay, SMCState, bool]:
        """The sweep with the states of its chains, the state with its tuning, and whether all moves were made."""
        assert state.tuning is not None
        sweep = raised.sweep
        shape = Shape.of(raised.reference, raised.founders, sweep.founders % 2, tempering.target.discrete)
        blocks = tuple(BlockProposal.of_halves(each, shape.points, rng) for each in self.blocks or () if can_move(each))
        mutation = Mutation(tempering, sweep.beta, shape, blocks)
        states, tuning, complete = mutation.run(sweep.particles, state.tuning, self.steps, rng)
        return sweep.moved(states), replace(state, tuning=tuning), complete


@dataclass(frozen=True)
class SMCState:
    """The state between visits.

    Attributes:
        sweeps: those finished; the first learns the ladder.
        under_way: the sweep that a limit has interrupted.
        proposal: the start; None for the prior.
        tuning: of the moves; None before the first sweep.
        ladder: the inverse temperatures that sweeps follow.
        cost: evaluations for each chain of a sweep.
        lost: whether no point of the path was found.
    """

    sweeps: tuple[Sweep, ...] = ()
    under_way: SweepUnderWay | None = None
    proposal: MixedProposal | None = None
    tuning: Tuning | None = None
    ladder: tuple[float, ...] = ()
    cost: float = _FIRST_COST
    lost: bool = False

    @property
    def counted(self) -> tuple[Sweep, ...]:
        """The sweeps that make the estimate."""
        return self.sweeps[1:] or self.sweeps

    @property
    def particles(self) -> int:
        """Particles of all finished sweeps."""
        return sum(len(sweep.points) for sweep in self.sweeps)


def _remarks(state: SMCState) -> list[str]:
    remarks = []
    if state.lost:
        remarks.append("No point of the path was found, neither before nor among draws from its prior.")
    if state.proposal is not None:
        remarks.append("Tempering started from a distribution fitted to points of the path, not from its prior.")
    if len(state.sweeps) == 1:
        remarks.append("Only the sweep that learns the temperatures has run; its evidence tends to be too low.")
    empty = sum(sweep.log_evidence == -np.inf for sweep in state.counted)
    if empty:
        remarks.append(f"{empty} of {len(state.counted)} sweeps lost all their particles.")
    if scatter(state.counted) > 9:
        remarks.append("The sweeps differ by more than their errors: the moves mix badly, so try more chains.")
    return remarks
