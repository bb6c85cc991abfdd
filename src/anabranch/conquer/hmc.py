"""Hamiltonian Monte Carlo on one path, with the evidence by bridge sampling: for many coordinates.

Several chains move together by BlackJAX's kernels (`hmc_chains`). A transition draws a momentum p and follows

    dx/dt = M⁻¹ p,  dp/dt = ∇ log γ_k(x)

by leapfrog steps: `HMC` for a random time, accepting the end by Metropolis' rule (Duane et al., 1987); `NUTS` until the
trajectory turns, choosing among all its points (Hoffman and Gelman, 2014). Points outside the path are rejected, since
the density is zero there. The evidence Z_k is that of `bridge`, from proposals fitted to the chains.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from anabranch.conquer.bridge import Side, crossed
from anabranch.conquer.chains import chain_ess, split_r_hat
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.hmc_chains import BLOCK, ChainState, LogDensity, Runner, Transitions, kept, warmed_up
from anabranch.conquer.population import climbed, coordinate_sd
from anabranch.conquer.strategy import check_gradient
from anabranch.conquer.target import Target
from anabranch.limits import LimitReached
from anabranch.settings import check, finite, numeric, positive, share, whole

__all__ = ["HMC", "NUTS", "ChainState", "Chains"]

_MIN_BLOCKS = 4
"""Blocks of draws before the first bridge."""


@dataclass(frozen=True)
class Chains:
    """What `HMC` and `NUTS` share: everything but the transition."""

    chains: int = 4
    warmup: int = 400
    acceptance: float = 0.9
    initial: np.ndarray | None = field(default=None, compare=False, repr=False)
    depth: float = 10.0
    max_draws: int = 40_000
    max_divergent: float = 0.01

    def __post_init__(self) -> None:
        check(self, chains=whole(2), warmup=whole(1), acceptance=share(zero=False, one=False),
              initial=numeric().or_none(), depth=finite(0), max_draws=whole(1), max_divergent=share())  # fmt: skip

    def transition(self, key: Any, states: Any, log_density: LogDensity, step_size: Any) -> tuple[Any, Any, Any]:
        """The states after a step of all chains, BlackJAX's information, and which chains tune the step size."""
        raise NotImplementedError

    def start(self, target: Target, rng: Generator) -> ChainState:
        """The chains at `initial`, or where points of the prior climb to."""
        _check(target, type(self).__name__)
        points, sd = self._climbed(target, rng) if self.initial is None else _given(target, self.initial)
        if len(points):
            points = points[rng.permutation(len(points))[np.arange(self.chains) % len(points)]]
        nothing = np.zeros((self.chains, 0, target.dim)), np.zeros((self.chains, 0))
        return ChainState(points, np.diag(sd), 0.0, *nothing)

    def advance(self, target: Target, state: ChainState, rng: Generator, evaluations: int) -> ChainState:
        """Continue the chains, warm-up included, and draw from the proposals.

        The proposals are fitted again whenever the chains have become four times as long.
        """
        if not len(state.positions):
            return self.start(target, rng)
        limit = target.evaluations + evaluations
        runner = Runner(self, target, rng)
        if not state.step_size:
            state = warmed_up(runner, state, self.warmup)
        if not state.step_size:
            return state
        blocks: list[Transitions] = []
        steps = state.steps
        try:
            while not blocks or steps < _MIN_BLOCKS * BLOCK or target.evaluations + _owed(state, steps) < limit:
                state, block = runner.sample(state)
                blocks.append(block)
                steps += BLOCK
        except LimitReached:
            pass
        state = kept(state, blocks, self.max_draws) if blocks else state
        try:
            return _proposed(target, state, rng) if state.steps else state
        except LimitReached:
            return state

    def estimate(self, target: Target, state: ChainState) -> Estimate:
        """The draws, equally weighted, and the evidence by the bridges of each half of the chains to the other."""
        name = type(self).__name__
        if not state.sides:
            found = "Warm-up is not over" if len(state.positions) else "No point of the path was found"
            return Estimate.nothing(target.dim, target.evaluations, name, [f"{found}."])
        even, odd = state.sides
        log_z, sd = crossed(
            even.bridged(state.chains[1::2], state.log_density[1::2]),
            odd.bridged(state.chains[0::2], state.log_density[0::2]),
        )
        points = state.chains.reshape(-1, target.dim)
        ess = min(float(chain_ess(state.chains).min()), len(points))
        return Estimate.from_draws(
            points, np.zeros(len(points)), log_z, sd, target.evaluations, name,
            ess=ess, r_hat=split_r_hat(state.chains), remarks=self._remarks(state),
        )  # fmt: skip

    def _climbed(self, target: Target, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
        """The ends of climbs that are not far below the best, and the standard deviations of the prior."""
        points, log_density, sd = climbed(target, rng)
        near = log_density >= log_density.max(initial=-np.inf) - self.depth - target.dim
        return points[np.isfinite(log_density) & near], sd

    def _remarks(self, state: ChainState) -> list[str]:
        divergent = state.divergent / (state.steps * len(state.positions))
        if divergent < self.max_divergent:
            return []
        return [
            f"{divergent:.0%} of the transitions were divergent: they left the path, or the step size is too large for "
            "the curvature. In the second case a higher `acceptance` helps."
        ]


@dataclass(frozen=True)
class HMC(Chains):
    """Hamiltonian Monte Carlo with trajectories of random length, and bridge sampling for the evidence.

    Attributes:
        chains: their number; they move together.
        warmup: steps of each chain that tune the step size and the mass matrix, and are not kept.
        acceptance: the acceptance probability to which the step size is tuned; more means smaller steps.
        initial: points where the chains begin, rows of coordinates; by default, points of the prior climb.
        depth: chains begin at most this many nats, and one for each coordinate, below the best point.
        max_draws: draws that are kept; of more, every second one is dropped.
        max_divergent: the fraction of divergent transitions that is worth a remark.
        trajectory: the mean length of a trajectory, in units of the posterior's standard deviation.
        max_leapfrogs: leapfrog steps of a trajectory; fewer bound the cost of a step.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer import PathTarget, solve
        >>> def program():
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)
        >>> estimate = solve(HMC(), PathTarget(ab.find_paths(program).paths[0]), 10_000)
        >>> exact = -0.25 - 0.5 * np.log(4 * np.pi)
        >>> abs(estimate.log_evidence - exact) < 3 * estimate.log_evidence_sd < 0.03
        True
    """

    trajectory: float = 2.0
    max_leapfrogs: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, trajectory=positive(), max_leapfrogs=whole(1))

    def transition(self, key: Any, states: Any, log_density: LogDensity, step_size: Any) -> tuple[Any, Any, Any]:
        from blackjax import hmc

        kernel, unit_mass = hmc.build_kernel(), jnp.ones(states.position.shape[1])
        # The length is random, since a fixed one may be the period of the motion; chains share it, so that none waits.
        length_key, key = jax.random.split(key)
        length = 2 * self.trajectory * jax.random.uniform(length_key)
        leapfrogs = jnp.clip(jnp.ceil(length / step_size), 1, self.max_leapfrogs).astype(int)
        states, info = jax.vmap(lambda key, state: kernel(key, state, log_density, step_size, unit_mass, leapfrogs))(
            jax.random.split(key, self.chains), states
        )
        # A trajectory that leaves the path with little kinetic energy is rejected whatever the step size.
        energy, energy_before = (jnp.square(p).sum(axis=1) for p in (info.proposal.momentum, info.momentum))
        calm = energy < 10 * (energy_before + len(unit_mass))
        return states, info, jnp.isfinite(info.proposal.logdensity) | ~calm


@dataclass(frozen=True)
class NUTS(Chains):
    """The no-U-turn sampler, and bridge sampling for the evidence: `HMC` that chooses the length of its trajectories.

    Attributes:
        chains, warmup, acceptance, initial, depth, max_draws, max_divergent: as in `HMC`.
        max_doublings: a trajectory has at most 2 to this power leapfrog steps.

    Example:
        >>> NUTS(chains=2).max_doublings
        8
    """

    max_doublings: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, max_doublings=whole(1, 30))

    def transition(self, key: Any, states: Any, log_density: LogDensity, step_size: Any) -> tuple[Any, Any, Any]:
        from blackjax import nuts

        kernel, unit_mass = nuts.build_kernel(), jnp.ones(states.position.shape[1])
        states, info = jax.vmap(
            lambda key, state: kernel(key, state, log_density, step_size, unit_mass, self.max_doublings)
        )(jax.random.split(key, self.chains), states)
        return states, info, jnp.ones(self.chains, bool)


def _check(target: Target, name: str) -> None:
    check_gradient(target, name)


def _given(target: Target, initial: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The initial points that lie in the path, and their standard deviations."""
    points = np.asarray(initial, np.float64)
    if points.ndim != 2 or points.shape[1] != target.dim or not len(points):
        raise ValueError(f"initial must have shape (n, {target.dim}), one row for each start; got {points.shape}")
    points = points[target.differentiate(points)[0].inside]
    if not len(points):
        raise ValueError("initial: none of the points lies in the path")
    return points, coordinate_sd(points)


def _stale(state: ChainState, steps: int) -> bool:
    """Whether to fit the proposals again: the chains are four times as long as at the last fit."""
    return not state.sides or steps >= 4 * state.fitted_at


def _owed(state: ChainState, steps: int) -> int:
    """The number of draws of the proposals that will be due after so many steps."""
    drawn = 0 if _stale(state, steps) else sum(len(side.log_target) for side in state.sides)
    return len(state.positions) * (steps // state.thin) - drawn


def _proposed(target: Target, state: ChainState, rng: Generator) -> ChainState:
    """The state with as many draws of the proposal of each half of the chains as the half has."""
    halves = state.chains[0::2], state.chains[1::2]
    if _stale(state, state.steps):
        state = replace(state, sides=tuple(Side.fitted(h, state.scale_tril) for h in halves), fitted_at=state.steps)
    sides = (side.extended(target, h[..., 0].size, rng) for side, h in zip(state.sides, halves, strict=True))
    return replace(state, sides=tuple(sides))
