"""Windows looked at again where the posterior turns out to have its mass.

The windows were chosen at prior draws (`windows`). At draws of the posterior, the mass beyond them is

    E[Σ_(z outside) γ(x, z) / Σ_(z inside) γ(x, z)]

relative to Ẑ: the estimate states it. Where it is too large, it is part of the error, and the path starts again with
other windows.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.elimination.eliminate import eliminate
from anabranch.conquer.elimination.settings import Elimination
from anabranch.conquer.elimination.target import Eliminated
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.target import Target
from anabranch.conquer.weights import systematic

__all__ = ["rechecked"]

logger = logging.getLogger(__name__)

_DRAWS, _NUMBERS = 64, 2**25
"""Draws that are looked at, at most, and numbers in their tables."""
_TOO_MUCH = 1_000
"""How many times the permitted tail may lie beyond the windows at the draws before there are others."""


def rechecked(target: Target, estimate: Estimate, settings: Elimination, rng: Generator) -> tuple[Target, Estimate]:
    """The target, or one with other windows, and the estimate with the mass beyond its windows."""
    if not isinstance(target, Eliminated) or not target.cut or not len(estimate.points):
        return target, estimate
    n = int(np.clip(_NUMBERS // max(sum(each.numbers for each in target.tables), 1), 4, _DRAWS)) if target.dim else 1
    weights = np.exp(estimate.log_weights - estimate.log_weights.max())
    points = estimate.points[systematic(weights / weights.sum(), n, rng)]
    tail = float(target.tails(points).mean())
    if tail <= _TOO_MUCH * settings.tail:
        return target, replace(estimate, tail=tail)
    remark = (
        f"Up to {tail:.1g} of its mass lies beyond the values over which its discrete variables are summed. Give the "
        "run more budget, which goes into a sum over more of them."
    )
    sd = float(np.hypot(estimate.log_evidence_sd, tail))
    estimate = replace(estimate, tail=tail, log_evidence_sd=sd, remarks=(*estimate.remarks, remark))
    rows = target.executions(points, rng)
    other = eliminate(target.target, settings, rng, rows)
    if isinstance(other, Eliminated) and other.values == target.values:
        return target, estimate
    logger.info("the path (%s) starts again with other windows: %.1g of its mass lies beyond them",
                target.path.description, tail)  # fmt: skip
    log_weights = np.full(n, -np.log(n))
    return other, replace(estimate, points=rows[:, other.columns], log_weights=log_weights, ess=min(estimate.ess, n))
