"""The paper's rule (section 6.3 and appendix F): the arm with the largest utility is next,

    U_k = (1/S_k) ((1 − δ) τ_k / max τ + δ p_k / max p + β log ΣS / √S_k),

with S_k the visits. The first term is exploitation: the best asymptotic allocation is in proportion to

    τ_k = √(Z_k² + (1 + κ) σ_k²) = Z_k √(1 + (1 + κ) (σ_k/Z_k)²),

σ_k the standard deviation of a weight (Rainforth et al., 2018). The second is the chance that one of the next T_a
weights exceeds the largest so far of all arms, w_th, if log weights are normal with the moments seen, Ψ_k:

    p_k = 1 − Ψ_k(log w_th)^T_a.

The third is the boost of optimism of upper confidence bounds. Only ratios of τ and p enter, so that evidences thousands
of nats apart do no harm: everything up to the ratio is in logarithms.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from anabranch.allocate.path_summary import PathSummary
from anabranch.conquer.estimate import Estimate
from anabranch.settings import check, finite, share, whole

__all__ = ["UCB"]


@dataclass(frozen=True)
class UCB:
    """Upper confidence bounds, the paper's allocation rule.

    Within a round S_k grows with each choice, while the estimates stay. An arm where no mass was found, or that is new
    in this round, has only the boost; one whose error is unknown (infinite) counts as much as the best.

    Args:
        delta: δ, between 0 and 1: the share of exploration by the tail of the weights.
        beta: β, the boost of arms that were seldom visited.
        kappa: κ, how much the spread of the weights counts beside the evidence.
        look_ahead: T_a, for how many weights to look ahead.

    Example:
        >>> from anabranch.conquer.estimate import Estimate
        >>> def arm(visits, log_evidence):
        ...     draws = np.zeros((1, 1)), np.zeros(1)
        ...     return PathSummary(visits, Estimate.from_draws(*draws, log_evidence, 0.1, 100, "example"))
        >>> UCB().choose([arm(1, -900.0), arm(1, -1.0), PathSummary(0, None)], n=5, rng=np.random.default_rng(0))
        [2, 1, 1, 1, 1]
    """

    delta: float = 0.5
    beta: float = 0.1
    kappa: float = 1.0
    look_ahead: int = 1000

    def __post_init__(self) -> None:
        check(self, delta=share(), beta=finite(0), kappa=finite(0), look_ahead=whole(1))

    def choose(self, arms: Sequence[PathSummary], n: int, rng: np.random.Generator) -> list[int]:
        running = np.array([not arm.exact for arm in arms], bool)
        if not running.any():
            return []
        rewards, visits = self.rewards(arms), np.array([arm.visits for arm in arms])
        chosen = []
        for _ in range(n):
            utility = np.where(running, self.utilities(rewards, visits), -np.inf)
            chosen.append(int(np.argmax(utility)))
            visits[chosen[-1]] += 1
        return chosen

    def utilities(self, rewards: np.ndarray, visits: np.ndarray) -> np.ndarray:
        """U_k from what does not change within a round, and the visits; infinite for arms without a visit."""
        total, each = max(visits.sum(), 1), np.maximum(visits, 1)
        utility = (rewards + self.beta * np.log(total) / np.sqrt(each)) / each
        return np.where(visits > 0, utility, np.inf)

    def rewards(self, arms: Sequence[PathSummary]) -> np.ndarray:
        """(1 − δ) τ_k / max τ + δ p_k / max p for each arm."""
        log_tau = np.array([self._log_tau(arm.estimate) for arm in arms])
        probability = self._probability_of_more(arms)
        return (1 - self.delta) * _ratio(log_tau) + self.delta * _ratio(_log(probability))

    def _log_tau(self, estimate: Estimate | None) -> float:
        """log τ_k: minus infinity where no mass is known of, plus infinity where its error is unknown."""
        if estimate is None or not estimate.log_evidence > -np.inf:
            return -np.inf
        spread = np.nan_to_num(estimate.weight_sd, nan=np.inf, posinf=np.inf)
        log_variance = np.log1p(self.kappa) + 2 * _log(spread)
        return float(estimate.log_evidence + 0.5 * np.logaddexp(0.0, log_variance))

    def _probability_of_more(self, arms: Sequence[PathSummary]) -> np.ndarray:
        """p_k: of a weight above the largest so far of all arms; zero for arms without weights."""
        moments = [
            (e.log_weight_mean, e.log_weight_sd, e.log_weight_max) if (e := arm.estimate) else (-np.inf, 0.0, -np.inf)
            for arm in arms
        ]
        mean, sd, largest = np.nan_to_num(np.array(moments), nan=-np.inf, neginf=-np.inf, posinf=np.inf).T
        known = np.isfinite(mean) & (sd > 0)
        threshold = largest.max()
        standard = np.full(len(arms), np.inf)
        # An infinite sd gives zero standard deviations: even odds for each weight.
        standard[known] = (threshold - mean[known]) / sd[known]
        return -np.expm1(self.look_ahead * log_ndtr(standard))


def _log(values: np.ndarray | float) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _ratio(logs: np.ndarray) -> np.ndarray:
    """Each over the largest finite one; at most one, which is what an infinite one gives."""
    largest = np.max(logs, where=logs < np.inf, initial=-np.inf)
    return (logs == np.inf).astype(float) if largest == -np.inf else np.exp(np.minimum(logs - largest, 0.0))
