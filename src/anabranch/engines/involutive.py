"""Reversible jump with moves of the user's own, written as involutions.

A move draws auxiliary variables a ~ q(· | x) given the trace x, and maps both by an involution h, a function that is
its own inverse: (x', a') = h(x, a). With γ the density of the program, x' is accepted with probability

    α = min(1, γ(x') q(a' | x') / (γ(x) q(a | x)) · |det ∂(x'_c, a'_c)/∂(x_c, a_c)|),

where c are the continuous numbers; h keeps how many there are. For every move that could be accepted, the engine checks
that h is an involution, that x' and a' are traces of the program and of the proposal, and that the Jacobians there and
back multiply to one (Green, 1995; Cusumano-Towner, Lew and Mansinghka, 2020).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.engines.jump import Jump
from anabranch.engines.markov import ChainEngine, Chains
from anabranch.engines.moves import Move
from anabranch.engines.sampler import Session
from anabranch.engines.single_site import LocalMoves, single_site_step
from anabranch.settings import check, several, share, whole

__all__ = ["InvolutiveMH", "Move"]

logger = logging.getLogger("anabranch")


@dataclass(frozen=True)
class InvolutiveMH(ChainEngine):
    """Reversible jump: Metropolis-Hastings with moves between paths that the user writes as involutions.

    Args:
        moves: one or several `Move`s. One is chosen at random at each step, the same for all chains.
        chains: that run side by side; errors come from how they differ. More of them spend a budget in fewer steps.
        warmup: the share of the budget whose states are not kept.
        between: random-walk steps on single sites, as those of `RandomWalkMH`, after each move.
        local_share: the share of local moves among these; the others draw a site from its prior.

    Example:
        >>> import anabranch as ab, jax.numpy as jnp, numpy as np, numpyro.distributions as dist
        >>> from anabranch.engines.involutive import InvolutiveMH, Move
        >>> def trend(y):
        ...     level = ab.sample("level", dist.Normal(0.0, 1.0))
        ...     rises = ab.sample("rises", dist.Bernoulli(0.5))
        ...     slope = ab.sample("slope", dist.Normal(0.0, 1.0)) if rises else 0.0
        ...     ab.observe("y", dist.Normal(level + slope * jnp.arange(3.0), 0.5), y)
        >>> def proposal(trace):  # a slope to begin with, if there is none
        ...     if not trace["rises"]:
        ...         ab.sample("u", dist.Normal(0.5, 0.5))
        >>> def involution(trace, aux):  # with the slope comes a lower level, so that the line keeps its middle
        ...     if trace["rises"]:
        ...         slope = trace["slope"]
        ...         return {"rises": 0, "level": trace["level"] + slope}, {"u": slope}
        ...     return {"rises": 1, "level": trace["level"] - aux["u"], "slope": aux["u"]}, {}
        >>> engine = InvolutiveMH([Move(proposal, involution, name="slope")])
        >>> posterior = ab.infer(trend, np.array([0.1, 0.7, 1.2]), engine=engine, budget=30_000)
        >>> abs(posterior.probability("rises")[1] - 0.5300) < 0.03
        True
    """

    moves: Sequence[Move]
    chains: int = 100
    warmup: float = 0.2
    between: int = 1
    local_share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        moves = several(Move, "one or several Move(proposal, involution)")
        check(self, moves=moves, between=whole(), local_share=share())

    def sample(self, session: Session) -> None:
        runner, rng = session.runner, session.rng
        state, cost = self.start(session), 1 + self.between
        jumps = [Jump(move, runner) for move in self.moves]
        weights = np.array([move.weight for move in self.moves])
        chains, local = Chains(session, state, self.warmup, cost), LocalMoves(self.local_share)
        session.at_end.append(lambda: _report(jumps, session))
        while session.goes_on(needs=cost):
            moved = min(len(state), session.left // cost)
            new = jumps[rng.choice(len(jumps), p=weights / weights.sum())].step(state.take(np.arange(moved)), rng)
            if chains.warming_up:
                local.learn(new)
            for _ in range(self.between):
                new = single_site_step(runner, new, local, rng)
            state = state.with_rows(np.arange(moved), new)
            chains.add(state, moved=moved)


def _report(jumps: Sequence[Jump], session: Session) -> None:
    """Log how often each move was accepted, and tell the user if one never was."""
    for jump in jumps:
        logger.info("move %r: %d of %d accepted", jump.move.name, jump.accepted, jump.tried)
        if jump.tried and not jump.accepted:
            session.notes.append(f"The move {jump.move.name!r} was tried {jump.tried:,} times and never accepted.")
