"""Hamiltonian Monte Carlo on one path, with the evidence by bridge sampling: for many coordinates.

Several chains move by BlackJAX's kernels, all at once. A transition draws a momentum p and follows

    dx/dt = M⁻¹ p,  dp/dt = ∇ log γ_k(x)

by leapfrog steps: `HMC` for a random time, accepting the end by Metropolis' rule (Duane et al., 1987); `NUTS` until the
trajectory turns, choosing among all its points (Hoffman and Gelman, 2014). What leaves the path is rejected: the
density is zero there.

The mass matrix is a change of coordinates. With M⁻¹ = R Rᵀ and x = R z the momentum of z has unit mass, so the compiled
function moves z and takes R as an argument. Warming up goes by Stan's windows: dual averaging tunes the step size, and
at the end of windows of growing length R becomes the root of the covariance of the window's draws. All chains share
both: what one learns, the others know. One function is compiled for warming up and for sampling.

The chains give draws (paper, section 4.2); the evidence Z_k is that of `bridge`, from proposals fitted to the chains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from anabranch import errors
from anabranch.conquer.bridge import Side, crossed
from anabranch.conquer.chains import chain_ess, split_r_hat
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.population import climbed, spread_of
from anabranch.conquer.strategy import check_gradient
from anabranch.conquer.student import root_of
from anabranch.conquer.target import Target
from anabranch.divide import Path
from anabranch.divide.dispatch import Jitted
from anabranch.divide.jax_density import log_density_function
from anabranch.limits import LimitReached, checkpoint
from anabranch.settings import check, numeric, positive, share, whole

__all__ = ["HMC", "NUTS", "ChainState"]

_BLOCK = 25
"""Steps of every chain in one call of the compiled function."""
_FINAL = 2
"""Blocks at the end of warming up in which only the step size is tuned."""
_FEWEST = 4
"""Blocks of draws before the first bridge."""
_DEPTH = 10.0
"""A start may lie below the best by this many nats, and one for each coordinate."""
_STEP_SIZE = 0.5
"""Where the tuning of the step size begins, in units of R."""
_MOST_DRAWS = 40_000
"""Draws that are kept; with more, every second one goes, and from then on every second one is taken."""
_LEAST_LEAPFROGS = 4
"""Leapfrog steps of a transition that the evaluations left must allow for another block to begin."""
_DIVERGENT = 0.01
"""The share of divergent transitions that is worth a remark."""

LogDensity = Callable[[Any], Any]


@dataclass(frozen=True)
class ChainState:
    """The chains by now.

    Attributes:
        positions: where they are, (N, d); no rows where no point of the path is known.
        root: R, a lower triangular root of the inverse mass matrix.
        step_size: length of a leapfrog step, in units of R; zero before warming up.
        chains, log_density: what is kept of the draws, (N, T, d) and (N, T).
        thin: one draw in so many is kept.
        steps: steps of each chain since warming up.
        divergent: how many transitions since then met a density that falls off a cliff.
        warming: how far warming up has come; None before and after.
        sides: proposals fitted to the chains with even and with odd numbers; none before the first bridge.
        fitted_at: steps when they were.
    """

    positions: np.ndarray
    root: np.ndarray
    step_size: float
    chains: np.ndarray
    log_density: np.ndarray
    thin: int = 1
    steps: int = 0
    divergent: int = 0
    warming: Warming | None = None
    sides: tuple[Side, ...] = ()
    fitted_at: int = 0


@dataclass(frozen=True)
class Warming:
    """Warming up: the blocks so far, the state of dual averaging, and the draws of the window."""

    blocks: int
    averaging: np.ndarray
    window: tuple[np.ndarray, ...] = ()


class Transitions(NamedTuple):
    """Some steps of all chains: arrays whose first axes are chains and steps."""

    position: Any
    log_density: Any
    leapfrogs: Any
    divergent: Any


@dataclass(frozen=True)
class Chains:
    """What `HMC` and `NUTS` share: everything but the transition."""

    chains: int = 4
    warmup: int = 400
    acceptance: float = 0.8
    initial: np.ndarray | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        acceptance = share(zero=False, one=False)
        check(self, chains=whole(2), warmup=whole(1), acceptance=acceptance, initial=numeric().or_none())

    def _transition(self, key: Any, states: Any, log_density: LogDensity, step_size: Any) -> tuple[Any, Any, Any]:
        """One step of all chains: their states, BlackJAX's account, and whose acceptance the step size is tuned by."""
        raise NotImplementedError

    def start(self, target: Target, rng: np.random.Generator) -> ChainState:
        """Choose where the chains begin: at `initial`, or where points of the prior climb to."""
        _check(target, type(self).__name__)
        points, spread = _climbed(target, rng) if self.initial is None else _given(target, self.initial)
        if len(points):
            points = points[rng.permutation(len(points))[np.arange(self.chains) % len(points)]]
        nothing = np.zeros((self.chains, 0, target.dim)), np.zeros((self.chains, 0))
        return ChainState(points, np.diag(spread), 0.0, *nothing)

    def advance(self, target: Target, state: ChainState, rng: np.random.Generator, evaluations: int) -> ChainState:
        """Go on with the chains, and draw from the proposals.

        A new fit of the proposals is due whenever the chains have become four times as long. A visit that a limit ends
        is continued by the next, warming up included.
        """
        if not len(state.positions):
            return self.start(target, rng)
        limit = target.evaluations + evaluations
        run = _Runner(target, _compiled(self, target.path), rng)
        if not state.step_size:
            state = _warmed_up(run, state, self.warmup)
        if not state.step_size:
            return state
        blocks: list[Transitions] = []
        steps = state.steps
        try:
            while not blocks or steps < _FEWEST * _BLOCK or target.evaluations + _owed(state, steps) < limit:
                state, _, block = run(state, _averaging(state.step_size), adapting=False)
                blocks.append(block)
                steps += _BLOCK
        except LimitReached:
            pass
        state = _kept(state, blocks) if blocks else state
        try:
            return _proposed(target, state, rng) if state.steps else state
        except LimitReached:
            return state

    def estimate(self, target: Target, state: ChainState) -> Estimate:
        """The draws, equally weighted, and the evidence by the bridges of each half of the chains to the other."""
        name = type(self).__name__
        if not state.sides:
            found = "The chains are not warmed up yet" if len(state.positions) else "No point of the path was found"
            return Estimate.nothing(target.dim, target.evaluations, name, [f"{found}."])
        even, odd = state.sides
        log_z, sd = crossed(
            even.bridged(state.chains[1::2], state.log_density[1::2]),
            odd.bridged(state.chains[0::2], state.log_density[0::2]),
        )
        points = state.chains.reshape(-1, target.dim)
        return Estimate.from_draws(
            points,
            np.zeros(len(points)),
            log_z,
            sd,
            target.evaluations,
            name,
            ess=min(float(chain_ess(state.chains).min()), len(points)),
            r_hat=split_r_hat(state.chains),
            remarks=_remarks(state),
        )


@dataclass(frozen=True)
class HMC(Chains):
    """Hamiltonian Monte Carlo with trajectories of random length, and bridge sampling for the evidence.

    Attributes:
        chains: how many, moved at once.
        warmup: steps of each chain that tune the step size and the mass matrix, and are not kept.
        acceptance: the acceptance probability that the step size is tuned to.
        initial: points where the chains begin, rows of coordinates; without any, points of the prior climb.
        trajectory: the mean length of a trajectory, in units of the posterior's standard deviation.
        most: leapfrog steps of a trajectory at most.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer.target import PathTarget
        >>> def program():
        ...     ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), 1.0), 1.0)
        >>> target, rng = PathTarget(ab.find_paths(program).paths[0]), np.random.default_rng(0)
        >>> strategy = HMC()
        >>> state = strategy.advance(target, strategy.start(target, rng), rng, 10_000)
        >>> estimate = strategy.estimate(target, state)
        >>> exact = -0.25 - 0.5 * np.log(4 * np.pi)
        >>> abs(estimate.log_evidence - exact) < 3 * estimate.log_evidence_sd < 0.03
        True
    """

    trajectory: float = 2.0
    most: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, trajectory=positive(), most=whole(1))

    def _transition(self, key: Any, states: Any, log_density: LogDensity, step_size: Any) -> tuple[Any, Any, Any]:
        from blackjax import hmc

        kernel, unit_mass = hmc.build_kernel(), jnp.ones(states.position.shape[1])
        # A random length, since a fixed one may be the period of the motion; the same for all chains, which then wait
        # for none.
        length_key, key = jax.random.split(key)
        length = 2 * self.trajectory * jax.random.uniform(length_key)
        leapfrogs = jnp.clip(jnp.ceil(length / step_size), 1, self.most).astype(int)
        states, info = jax.vmap(lambda key, state: kernel(key, state, log_density, step_size, unit_mass, leapfrogs))(
            jax.random.split(key, self.chains), states
        )
        # A trajectory that calmly leaves the path is rejected whatever the step size; one that blows up is not calm.
        energy, energy_before = (
            jnp.square(momentum).sum(axis=1) for momentum in (info.proposal.momentum, info.momentum)
        )
        calm = energy < 10 * (energy_before + len(unit_mass))
        return states, info, jnp.isfinite(info.proposal.logdensity) | ~calm


@dataclass(frozen=True)
class NUTS(Chains):
    """The no-U-turn sampler, and bridge sampling for the evidence: `HMC` that chooses how far it goes by itself.

    Attributes:
        chains, warmup, acceptance, initial: as in `HMC`.
        max_doublings: a trajectory has at most 2 to this power leapfrog steps.

    Example:
        >>> NUTS(chains=2).max_doublings
        8
    """

    max_doublings: int = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self, max_doublings=whole(1, 30))

    def _transition(self, key: Any, states: Any, log_density: LogDensity, step_size: Any) -> tuple[Any, Any, Any]:
        from blackjax import nuts

        kernel, unit_mass = nuts.build_kernel(), jnp.ones(states.position.shape[1])
        states, info = jax.vmap(
            lambda key, state: kernel(key, state, log_density, step_size, unit_mass, self.max_doublings)
        )(jax.random.split(key, self.chains), states)
        return states, info, jnp.ones(self.chains, bool)


# Where the chains begin ---------------------------------------------------------------------------------------------


def _check(target: Target, name: str) -> None:
    """Raise `StrategyCannotRun` unless the target is a path with a gradient in every one of its coordinates."""
    if 0 < target.dim < target.path.dim:
        raise errors.StrategyCannotRun(
            f"{name}: the path ({target.path.description}) has coordinates that were summed out, and only the path "
            "itself can be compiled into the sampler",
            remedy="Use SMC for this path, or Auto",
        )
    check_gradient(target, name)


def _given(target: Target, initial: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The initial points that lie in the path, and their spread."""
    points = np.asarray(initial, np.float64)
    if points.ndim != 2 or points.shape[1] != target.dim or not len(points):
        raise ValueError(f"initial must have shape (n, {target.dim}), one row for each start; got {points.shape}")
    points = points[target.differentiate(points)[0].inside]
    if not len(points):
        raise ValueError("initial: none of the points lies in the path")
    return points, spread_of(points)


def _climbed(target: Target, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Where points of the prior climb to, those that are not far below the best; and the spread of the prior."""
    points, log_density, spread = climbed(target, rng)
    near = log_density >= log_density.max(initial=-np.inf) - _DEPTH - target.dim
    return points[np.isfinite(log_density) & near], spread


# Moving them --------------------------------------------------------------------------------------------------------

_functions: WeakKeyDictionary[Path, dict[tuple[Chains, int], Callable[..., Any]]] = WeakKeyDictionary()


def _compiled(strategy: Chains, path: Path) -> Callable[..., Any]:
    """The function that moves the chains through the path: compiled once, unless the path has grown since."""
    functions, key = _functions.setdefault(path, {}), (strategy, len(path.recordings))
    if key not in functions:
        functions[key] = _block_function(strategy, log_density_function(path))
    return functions[key]


def _block_function(strategy: Chains, log_density: LogDensity) -> Callable[..., Any]:
    """The function of a seed, positions z (N, d), R, the state of dual averaging, and whether that goes on."""
    # Here and not above: it takes a second to import.
    from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
    from blackjax.mcmc.hmc import init

    _, update, _ = dual_averaging_adaptation(strategy.acceptance)

    def block(seed: Any, positions: Any, root: Any, averaging: Any, adapting: Any) -> tuple[Any, Transitions]:
        def in_units(z: Any) -> Any:
            return log_density(root @ z)

        def step(carry: tuple[Any, Any], key: Any) -> tuple[Any, Transitions]:
            states, averaging = carry
            states, info, telling = strategy._transition(key, states, in_units, _step_size(averaging[0]))
            acceptance = (telling * jnp.nan_to_num(info.acceptance_rate)).sum() / jnp.maximum(telling.sum(), 1)
            tuned = update(DualAveragingAdaptationState(*averaging), acceptance)
            averaging = jnp.where(adapting & telling.any(), jnp.stack(tuned), averaging)
            leapfrogs = jnp.broadcast_to(info.num_integration_steps, telling.shape)
            return (states, averaging), Transitions(states.position, states.logdensity, leapfrogs, info.is_divergent)

        states = jax.vmap(lambda z: init(z, in_units))(positions)
        keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), _BLOCK)
        (_, averaging), told = jax.lax.scan(step, (states, averaging), keys)
        return averaging, Transitions(*(jnp.swapaxes(each, 0, 1) for each in told))

    return Jitted(block)


@dataclass(frozen=True)
class _Runner:
    """A block of steps of all chains, paid for."""

    target: Target
    block: Callable[..., Any]
    rng: np.random.Generator

    def __call__(
        self, state: ChainState, averaging: np.ndarray, adapting: bool
    ) -> tuple[ChainState, np.ndarray, Transitions]:
        checkpoint()
        if self.target.left < _LEAST_LEAPFROGS * _BLOCK * len(state.positions):
            raise LimitReached
        positions = np.linalg.solve(state.root, state.positions.T).T
        seed = self.rng.integers(2**32, dtype=np.uint32)
        averaging, told = self.block(seed, positions, state.root, averaging, adapting)
        told = told._replace(position=told.position @ state.root.T)
        self.target.charge(int(told.leapfrogs.sum()) + len(positions))
        return replace(state, positions=told.position[:, -1]), averaging, told


def _step_size(log_step_size: Any) -> Any:
    """At most one unit of R: a larger one would leap out of a path with guards, from which nothing is learned."""
    return jnp.exp(jnp.minimum(log_step_size, 0.0))


def _averaging(step_size: float) -> np.ndarray:
    """Dual averaging at its beginning: log step size, its average, iteration, average error, and where it is drawn."""
    return np.array([np.log(step_size), 0.0, 1.0, 0.0, np.log(10 * step_size)])


def _warmed_up(run: _Runner, state: ChainState, steps: int) -> ChainState:
    """Tune the step size and R, by windows that end after 1, 3, 7, ... blocks and shortly before the last.

    Where a limit comes before the end, the step size is still zero.
    """
    blocks = -(-steps // _BLOCK)
    last = blocks - _FINAL
    ends = {2**i - 1 for i in range(1, last.bit_length() + 1) if 2**i - 1 < last} | {last}
    warming = state.warming or Warming(0, _averaging(_STEP_SIZE))
    while warming.blocks < blocks:
        try:
            state, averaging, told = run(state, warming.averaging, adapting=True)
        except LimitReached:
            return replace(state, warming=warming)
        warming = Warming(warming.blocks + 1, averaging, (*warming.window, told.position))
        if warming.blocks in ends:
            state = replace(state, root=_root(np.concatenate(warming.window, axis=1), state.root))
            warming = Warming(warming.blocks, _averaging(_STEP_SIZE))
    return replace(state, step_size=float(_step_size(warming.averaging[1])), warming=None)


def _root(chains: np.ndarray, former: np.ndarray) -> np.ndarray:
    """A root of the covariance of draws (N, T, d), drawn to its diagonal by so much as there are few of them."""
    if not chains.std(axis=1).any():
        return 0.1 * former  # no chain has moved: every step left the path
    draws = chains.reshape(-1, chains.shape[2])
    covariance = np.atleast_2d(np.cov(draws.T))
    variance = np.maximum(np.diag(covariance), 1e-12 * (former**2).sum(axis=1))
    trust = len(draws) / (len(draws) + 5)
    return root_of(trust * covariance + (1 - trust) * np.diag(variance))


def _kept(state: ChainState, blocks: Sequence[Transitions]) -> ChainState:
    """The state with these steps taken: one in `thin` is kept, and more are thinned when they become too many."""
    position, log_density, _, divergent = (np.concatenate(each, axis=1) for each in zip(*blocks, strict=True))
    number = state.steps + 1 + np.arange(log_density.shape[1])
    taken = number % state.thin == 0
    chains = np.concatenate([state.chains, position[:, taken]], axis=1)
    log_densities = np.concatenate([state.log_density, log_density[:, taken]], axis=1)
    thin = state.thin
    while log_densities.size > _MOST_DRAWS:
        chains, log_densities, thin = chains[:, 1::2], log_densities[:, 1::2], 2 * thin
    return replace(
        state,
        chains=chains,
        log_density=log_densities,
        thin=thin,
        steps=int(number[-1]),
        divergent=state.divergent + int(divergent.sum()),
    )


def _stale(state: ChainState, steps: int) -> bool:
    """Whether to fit the proposals anew: the chains are four times as long as when they were fitted."""
    return not state.sides or steps >= 4 * state.fitted_at


def _owed(state: ChainState, steps: int) -> int:
    """How many draws of the proposals will be due after so many steps."""
    drawn = 0 if _stale(state, steps) else sum(len(side.log_target) for side in state.sides)
    return len(state.positions) * (steps // state.thin) - drawn


def _proposed(target: Target, state: ChainState, rng: np.random.Generator) -> ChainState:
    """As many draws of the proposal of each half of the chains as the half has."""
    halves = state.chains[0::2], state.chains[1::2]
    if _stale(state, state.steps):
        state = replace(state, sides=tuple(Side.fitted(h, state.root) for h in halves), fitted_at=state.steps)
    sides = (side.extended(target, h[..., 0].size, rng) for side, h in zip(state.sides, halves, strict=True))
    return replace(state, sides=tuple(sides))


def _remarks(state: ChainState) -> list[str]:
    share = state.divergent / (state.steps * len(state.positions))
    if share < _DIVERGENT:
        return []
    return [
        f"{share:.0%} of the transitions met a density that falls off a cliff: the end of the path, or a place too "
        "sharp for the step size. In the second case a higher `acceptance` helps."
    ]
