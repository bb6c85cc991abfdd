"""The chains of Hamiltonian Monte Carlo: compiled transitions, and the adaptation of step size and mass matrix.

The mass matrix is a change of coordinates. With M⁻¹ = R Rᵀ and x = R z the momentum of z has unit mass, so the compiled
function moves z and takes R as an argument: one function serves warm-up and sampling. Warm-up follows Stan's windows:
dual averaging tunes the step size, and at the end of windows of growing length R becomes the Cholesky factor of the
covariance of the window's draws. All chains share both.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.random import Generator

from anabranch.conquer.bridge import Side
from anabranch.conquer.student import safe_cholesky
from anabranch.conquer.target import Target
from anabranch.divide import Jitted
from anabranch.limits import LimitReached, checkpoint

__all__ = ["BLOCK", "ChainState", "LogDensity", "Runner", "Transitions", "kept", "warmed_up"]

BLOCK = 25
"""Steps of every chain in one call of the compiled function."""
_FINAL_BLOCKS = 2
"""Blocks at the end of warm-up in which only the step size is tuned."""
_STEP_SIZE = 0.5
"""The first step size, in units of R."""
_MIN_LEAPFROGS = 4
"""Leapfrog steps of each transition that the evaluations left must allow before another block begins."""

LogDensity = Callable[[Any], Any]


@dataclass(frozen=True)
class Warming:
    """The state of warm-up: the blocks so far, the state of dual averaging, and the draws of the window."""

    blocks: int
    averaging: np.ndarray
    window: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class ChainState:
    """The chains between visits.

    Attributes:
        positions: of the chains, (N, d); no rows where no point of the path was found.
        scale_tril: R, the Cholesky factor of the inverse mass matrix.
        step_size: length of a leapfrog step, in units of R; zero before warm-up.
        chains, log_density: the draws that are kept, (N, T, d) and (N, T).
        thin: one draw in so many is kept.
        steps: steps of each chain since warm-up.
        divergent: divergent transitions since then.
        warming: the state of warm-up; None before and after.
        sides: proposals fitted to the chains with even and with odd numbers; none before the first bridge.
        fitted_at: steps when they were fitted.
    """

    positions: np.ndarray
    scale_tril: np.ndarray
    step_size: float
    chains: np.ndarray
    log_density: np.ndarray
    thin: int = 1
    steps: int = 0
    divergent: int = 0
    warming: Warming | None = None
    sides: tuple[Side, ...] = ()
    fitted_at: int = 0


class Transitions(NamedTuple):
    """Some steps of all chains: arrays whose first axes are chains and steps."""

    position: Any
    log_density: Any
    leapfrogs: Any
    divergent: Any


def _compiled(sampler: Any, target: Target) -> Callable[..., Any]:
    """The function that moves the chains by `sampler.transition`, compiled again if the path has grown."""
    key = sampler, target.path.sequences
    samplers = target.samplers
    if key not in samplers:
        samplers[key] = _block_function(sampler, target.log_density_function())
    return samplers[key]


def _block_function(sampler: Any, log_density: LogDensity) -> Callable[..., Any]:
    """The function of a seed, positions z (N, d), R, the state of dual averaging, and whether that is updated."""
    # Here and not above: it takes a second to import.
    from blackjax.adaptation.step_size import DualAveragingAdaptationState, dual_averaging_adaptation
    from blackjax.mcmc.hmc import init

    _, update, _ = dual_averaging_adaptation(sampler.acceptance)

    def block(seed: Any, positions: Any, scale_tril: Any, averaging: Any, adapting: Any) -> tuple[Any, Transitions]:
        def in_units(z: Any) -> Any:
            return log_density(scale_tril @ z)

        def step(carry: tuple[Any, Any], key: Any) -> tuple[Any, Transitions]:
            states, averaging = carry
            states, info, tuning = sampler.transition(key, states, in_units, _step_size(averaging[0]))
            acceptance = (tuning * jnp.nan_to_num(info.acceptance_rate)).sum() / jnp.maximum(tuning.sum(), 1)
            tuned = update(DualAveragingAdaptationState(*averaging), acceptance)
            averaging = jnp.where(adapting & tuning.any(), jnp.stack(tuned), averaging)
            leapfrogs = jnp.broadcast_to(info.num_integration_steps, tuning.shape)
            return (states, averaging), Transitions(states.position, states.logdensity, leapfrogs, info.is_divergent)

        states = jax.vmap(lambda z: init(z, in_units))(positions)
        keys = jax.random.split(jax.random.key(seed, impl="threefry2x32"), BLOCK)
        (_, averaging), transitions = jax.lax.scan(step, (states, averaging), keys)
        return averaging, Transitions(*(jnp.swapaxes(each, 0, 1) for each in transitions))

    return Jitted(block)


class Runner:
    """Runs blocks of steps of all chains, and counts their evaluations."""

    def __init__(self, sampler: Any, target: Target, rng: Generator) -> None:
        self.target, self.rng, self._block = target, rng, _compiled(sampler, target)

    def sample(self, state: ChainState) -> tuple[ChainState, Transitions]:
        """A block with the step size that warm-up has found."""
        state, _, transitions = self.run(state, _averaging(state.step_size), adapts=False)
        return state, transitions

    def run(self, state: ChainState, averaging: np.ndarray, adapts: bool) -> tuple[ChainState, np.ndarray, Transitions]:
        checkpoint()
        if self.target.left < _MIN_LEAPFROGS * BLOCK * len(state.positions):
            raise LimitReached
        positions = np.linalg.solve(state.scale_tril, state.positions.T).T
        seed = self.rng.integers(2**32, dtype=np.uint32)
        averaging, transitions = self._block(seed, positions, state.scale_tril, averaging, adapts)
        transitions = transitions._replace(position=transitions.position @ state.scale_tril.T)
        self.target.charge(int(transitions.leapfrogs.sum()) + len(positions))
        return replace(state, positions=transitions.position[:, -1]), averaging, transitions


def _step_size(log_step_size: Any) -> Any:
    """At most one unit of R: larger steps would leave a path with guards at once."""
    return jnp.exp(jnp.minimum(log_step_size, 0.0))


def _averaging(step_size: float) -> np.ndarray:
    """The start of dual averaging: log step size, its average, iteration, average error, point of shrinkage."""
    return np.array([np.log(step_size), 0.0, 1.0, 0.0, np.log(10 * step_size)])


def warmed_up(runner: Runner, state: ChainState, steps: int) -> ChainState:
    """Tune the step size and R, by windows that end after 1, 3, 7, ... blocks and shortly before the last.

    The step size stays zero where a limit comes before the end.
    """
    blocks = -(-steps // BLOCK)
    last = blocks - _FINAL_BLOCKS
    ends = {2**i - 1 for i in range(1, last.bit_length() + 1) if 2**i - 1 < last} | {last}
    warming = state.warming or Warming(0, _averaging(_STEP_SIZE))
    while warming.blocks < blocks:
        try:
            state, averaging, transitions = runner.run(state, warming.averaging, adapts=True)
        except LimitReached:
            return replace(state, warming=warming)
        warming = Warming(warming.blocks + 1, averaging, (*warming.window, transitions.position))
        if warming.blocks in ends:
            state = replace(state, scale_tril=_adapted(np.concatenate(warming.window, axis=1), state.scale_tril))
            warming = Warming(warming.blocks, _averaging(_STEP_SIZE))
    return replace(state, step_size=float(_step_size(warming.averaging[1])), warming=None)


def _adapted(chains: np.ndarray, former: np.ndarray) -> np.ndarray:
    """R by the covariance of draws (N, T, d), which is shrunk to its diagonal where they are few."""
    if not chains.std(axis=1).any():
        return 0.1 * former  # no chain has moved: every step left the path
    draws = chains.reshape(-1, chains.shape[2])
    covariance = np.atleast_2d(np.cov(draws.T))
    variance = np.maximum(np.diag(covariance), 1e-12 * (former**2).sum(axis=1))
    trust = len(draws) / (len(draws) + 5)
    return safe_cholesky(trust * covariance + (1 - trust) * np.diag(variance))


def kept(state: ChainState, blocks: Sequence[Transitions], max_draws: int) -> ChainState:
    """The state with the draws of these blocks added; where they are too many, every second one is dropped."""
    position, log_density, _, divergent = (np.concatenate(each, axis=1) for each in zip(*blocks, strict=True))
    number = state.steps + 1 + np.arange(log_density.shape[1])
    taken = number % state.thin == 0
    chains = np.concatenate([state.chains, position[:, taken]], axis=1)
    log_densities = np.concatenate([state.log_density, log_density[:, taken]], axis=1)
    thin = state.thin
    while log_densities.size > max_draws:
        chains, log_densities, thin = chains[:, 1::2], log_densities[:, 1::2], 2 * thin
    state = replace(state, steps=int(number[-1]), divergent=state.divergent + int(divergent.sum()))
    return replace(state, chains=chains, log_density=log_densities, thin=thin)
