"""An evidence for chains: importance samples centred on their states (paper, sections 5.2 and 7, and appendix D).

The states that the chains had on a path, N of them at a time, are the centres of a mixture of Student-t distributions
in the coordinates of the path. Of the draws x from it, M around each centre, the weights and the estimate are

    w = γ_k(x) / ((1/N) Σ_n t(x; x_n, s)),        Ẑ_k = the mean of all w on the path,

and Ẑ = Σ_k Ẑ_k over the paths that the chains have visited. A path that they never visited is missing from it.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from anabranch.combine import Posterior, Solution
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.kernel import StudentKernel
from anabranch.divide import Path
from anabranch.engines.sampler import Session

__all__ = ["centred_posterior"]

_CENTRES, _SAMPLES = 100, 10
_WIDER = 1.5
"""By how much the kernel is wider than the states of one chain around their mean."""


def centred_posterior(session: Session) -> Posterior:
    """The posterior by importance samples around the kept states of the session, with what is left of the budget."""
    session.finish()
    solutions, evidence = session.collection.solutions(with_evidence=False)
    left, weight_left = session.left, float(evidence.weights.sum())
    out = []
    for solution, weight in zip(solutions, evidence.weights, strict=True):
        # By its weight, but at least one for each centre.
        samples = max(int(left * weight), _CENTRES) if left > 1 else 0
        until = session.progressed + (1 - session.progressed) * weight / max(weight_left, weight)
        weight_left -= weight
        estimate = _importance(solution, samples, until, session)
        out.append(Solution(solution.path, estimate, visits=solution.visits))
    # What the chains never visited is missing, and the error says so, as far as its prior probability is known.
    explored = min(1.0, sum(solution.path.prior_probability for solution in out))
    limits = session.limits
    shared = f"{limits.seconds:g} seconds are" if limits.seconds else f"budget of {limits.budget:,} evaluations is"
    session.stopped = session.stopped or limits.exceeded(session.runner.evaluations) or f"The {shared} shared out."
    return Posterior(session.division.program, out, session.run(explored))


def _importance(solution: Solution, samples: int, until: float, session: Session) -> Estimate:
    path, states, rng = solution.path, solution.points, session.rng
    if not len(states) or not samples:
        return Estimate.nothing(path.dim, 0, "RandomWalkMH")
    kernel = StudentKernel(_width(path, states, solution.blocks), path.discrete)
    points: list[np.ndarray] = []
    log_weights: list[np.ndarray] = []
    left = samples
    while left >= _CENTRES and not (points and session.progressed >= until):
        centres = states[rng.choice(len(states), _CENTRES, p=solution.weights)]
        drawn = kernel.draw(np.repeat(centres, min(_SAMPLES, left // _CENTRES), axis=0), rng)
        left -= len(drawn)
        parts = [kernel.log_densities(drawn, centre).sum(axis=-1) for centre in centres]
        log_mixture = logsumexp(parts, axis=0) - np.log(_CENTRES)
        session.runner.evaluations += len(drawn)
        points.append(drawn)
        log_weights.append(path.evaluate(drawn, compile=samples > 10_000).log_density - log_mixture)
    return Estimate.from_weights(np.concatenate(points), np.concatenate(log_weights), samples - left, "RandomWalkMH")


def _width(path: Path, states: np.ndarray, blocks: np.ndarray | None) -> np.ndarray:
    """The scale of the kernel: the spread within a chain, by the median of them; of all states if that is nothing."""
    assert blocks is not None
    spreads = [states[blocks == block].std(axis=0) for block in np.unique(blocks) if (blocks == block).sum() > 2]
    width = np.median(spreads, axis=0) if spreads else states.std(axis=0)
    overall = states.std(axis=0)
    width = _WIDER * np.where(width > 0, width, np.where(overall > 0, overall, 1.0))
    return np.where(path.discrete, np.maximum(width, 0.5), width)
