"""Successive halving (Karnin, Koren and Somekh, 2013; Jamieson and Talwalkar, 2016), as shares of the budget.

In each round the same budget is shared evenly by the arms that are left, and half of them, those with the least
evidence, leave: of K arms, k_r = ⌈K / 2^r⌉ are left in round r, until one is. The arm in place j therefore gets

    share_j = Σ_r 1[j < k_r] / k_r

of the budget of a round. Here the shares themselves are the rule: the next allocation goes to the arm whose visits are
the furthest behind its share. The places follow the estimates; an arm dropped too early or found late catches up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from anabranch.allocate.path_summary import PathSummary
from anabranch.settings import check, whole

__all__ = ["SuccessiveHalving"]


@dataclass(frozen=True)
class SuccessiveHalving:
    """Budget by the place that an arm has in the order of evidence.

    Args:
        factor: how many times fewer arms are left after each round.

    Example:
        >>> from anabranch.conquer.estimate import Estimate
        >>> def arm(log_evidence):
        ...     return PathSummary(1, Estimate.from_draws(np.zeros((1, 1)), np.zeros(1), log_evidence, 0.1, 9, "test"))
        >>> SuccessiveHalving().choose([arm(-900.0), arm(-1.0), arm(-2.0)], n=6, rng=np.random.default_rng(0))
        [1, 1, 1, 2, 1, 1]
    """

    factor: int = 2

    def __post_init__(self) -> None:
        check(self, factor=whole(2))

    def choose(self, arms: Sequence[PathSummary], n: int, rng: np.random.Generator) -> list[int]:
        running = [k for k, arm in enumerate(arms) if not arm.exact]
        if not running:
            return []
        visits = np.array([arms[k].visits for k in running])
        shares = self._shares(np.array([_log_evidence(arms[k]) for k in running]))
        chosen = []
        for _ in range(n):
            unvisited = np.flatnonzero(visits == 0)
            best = unvisited[0] if len(unvisited) else np.argmax(shares / (visits + 1))
            visits[best] += 1
            chosen.append(running[best])
        return chosen

    def _shares(self, log_evidence: np.ndarray) -> np.ndarray:
        """The share of each arm."""
        place = np.empty(len(log_evidence), int)
        place[np.argsort(-log_evidence, kind="stable")] = np.arange(len(log_evidence))
        left, shares = len(place), np.zeros(len(place))
        while True:
            shares += (place < left) / left
            if left == 1:
                return shares
            left = -(-left // self.factor)


def _log_evidence(arm: PathSummary) -> float:
    """log Ẑ_k; minus infinity without an estimate."""
    log_evidence = -np.inf if arm.estimate is None else arm.estimate.log_evidence
    return float(np.nan_to_num(log_evidence, nan=-np.inf, neginf=-np.inf))
