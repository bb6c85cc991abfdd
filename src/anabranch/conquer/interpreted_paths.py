"""What `Auto` does otherwise where the interpreter runs a path: each evaluation is a run of the program, there is no
gradient, and tens of thousands of evaluations are many.

A Laplace estimate is kept. Its mixture is adapted once, with a few hundred draws; as soon as more draws would not lower
the error, the population is tempered, whole sweeps at a time, from few draws of the prior. Scouts climb by
Newton's method with differences of the density (`newton`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from anabranch.conquer.auto_state import LAPLACE, AutoState
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.second_opinion import are_good
from anabranch.conquer.target import Target
from anabranch.conquer.weights import effective_sample_size
from anabranch.settings import check, whole

__all__ = ["InterpretedPaths"]


@dataclass(frozen=True)
class InterpretedPaths:
    """The settings of `Auto` for paths that the interpreter runs.

    Args:
        sweep_evaluations: evaluations by which the size of sweeps is chosen; more make larger ones.
        min_chains: chains of a second opinion; fewer may all lie in the same modes.
        min_draws: draws of the mixture before it is asked for; fewer miss the tail of their own weights.
        max_spent: evaluations after which a second opinion is asked for, however poor the mixture is.
    """

    sweep_evaluations: int = 3_000
    min_chains: int = 22
    min_draws: int = 1_000
    max_spent: int = 4_000

    def __post_init__(self) -> None:
        check(self, sweep_evaluations=whole(1), min_chains=whole(), min_draws=whole(1), max_spent=whole())

    def sweep(self, left: int) -> int:
        """Evaluations by which the size of the next sweep is chosen."""
        return max(left, self.sweep_evaluations)

    def keeps(self, target: Target, state: AutoState) -> bool:
        """Whether a mixture is that of a Laplace estimate: without gradients there is no better search for modes."""
        return state.method == LAPLACE and target.path.interpreted and state.has_mixture

    def asks(self, target: Target, modes: ModeMixture, state: AutoState, unconfirmed_sd: float) -> bool:
        """Whether a second opinion is asked for about a Laplace estimate: more draws would not lower its error, or have
        not made it good, and there is room for two sweeps; or it was asked for before."""
        if state.population is not None or not self.keeps(target, state):
            return state.population is not None
        estimate = modes.estimate(target, state.state)
        is_precise = are_good(estimate) and estimate.log_evidence_sd < unconfirmed_sd
        return (is_precise or state.spent >= self.max_spent) and target.left >= 3 * self.sweep_evaluations

    def adapting(self, target: Target, modes: ModeMixture, state: ModeMixtureState, left: int) -> ModeMixtureState:
        """The mixture of a Laplace estimate, to be adapted if it is poor and was not adapted before."""
        if not target.path.interpreted or state.rounds or not state.pooled or state.log_weights is None:
            return state
        efficiency = effective_sample_size(state.log_weights) / len(state.log_weights)
        if efficiency > modes.efficiency or left < 2 * self.min_draws:
            return state
        return replace(state, adapting=True, former=None, pooled=False)
