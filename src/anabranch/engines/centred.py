"""The evidence for chains, by importance samples centred on their states (paper, sections 6.1 and 7.1, appendix D).

States of the chains on a path, N of them at a time, are the centres of a mixture of Student-t distributions in the
coordinates of the path. For draws x from it, M around each centre, the weights and the estimate are

    w = γ_k(x) / ((1/N) Σ_n t(x; x_n, s)),        Ẑ_k = the mean of all w on the path,

and Ẑ = Σ_k Ẑ_k over the paths that the chains have visited. The mass of all other paths is missing.
"""

import numpy as np
from scipy.special import logsumexp

from anabranch.combine import Posterior, Solution, posterior_of
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.kernel import StudentKernel
from anabranch.divide import Path
from anabranch.engines.sampler import Session
from anabranch.limits import Pace

__all__ = ["centred_posterior"]

_CENTRES, _SAMPLES = 100, 10
"""Centres of a mixture, N, and samples around each, M: more centres have a better mixture at a higher cost."""
_COMPILE_FROM = 10_000
"""Samples on one path for which it pays to compile its density."""
_WIDER = 1.5
"""The scale of the kernel in standard deviations of one chain: a wider one has lighter weights and more variance."""
_MIN_VALUES = 5
"""Different values of a coordinate that a chain must have had for its standard deviation to count."""


def centred_posterior(session: Session) -> Posterior:
    """The posterior by importance samples around the kept states of the session, with the rest of the budget.

    If that, or the time, is too small for samples on every path, it is the posterior of the chains, without evidence.
    """
    session.finish()
    session.check_not_empty()
    solutions, evidence = session.collection.solutions(with_evidence=False)
    weighed = [(each, w) for each, w in zip(solutions, evidence.weights, strict=True) if len(each.points)]
    around, weights = [_CentredSamples(solution) for solution, _ in weighed], np.array([w for _, w in weighed])
    with session.until(1.0):
        _share_out(session, around, weights)
    if not around or not all(each.points for each in around):
        session.notes.append(
            "The rest of the budget or time was too small for importance samples on every path, so that the evidence "
            "was not estimated. Give it more budget or time."
        )
        return session.posterior()
    estimates = {each.solution.path: each.estimate() for each in around}
    out = [
        Solution(path, estimates.get(path) or Estimate.nothing(path.dim, 0, "RandomWalkMH"), visits=solution.visits)
        for solution in solutions
        for path in [solution.path]
    ]
    # The error contains the paths that the chains never visited, by their prior probability.
    found = min(1.0, sum(solution.path.prior_probability for solution in out))
    limits = session.limits
    shared = f"{limits.seconds:g} seconds are" if limits.seconds else f"budget of {limits.budget:,} evaluations is"
    session.stopped = session.stopped or limits.exceeded(session.runner.evaluations) or f"The {shared} shared out."
    return posterior_of(session.division.program, out, session.run(found))


class _CentredSamples:
    """Importance samples around the states that chains had on one path."""

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        width = _width(solution.path, solution.points, solution.blocks)
        self.kernel = StudentKernel(width, solution.path.discrete)
        self.points: list[np.ndarray] = []
        self.log_weights: list[np.ndarray] = []
        self.pace = Pace()

    def estimate(self) -> Estimate:
        points, log_weights = np.concatenate(self.points), np.concatenate(self.log_weights)
        return Estimate.from_weights(points, log_weights, len(points), "RandomWalkMH")

    def draw(self, session: Session, samples: int, until: float = 1.0) -> None:
        """Draw samples until the share `until` of the session is over; a rest too small for every centre is left."""
        path, states, rng = self.solution.path, self.solution.points, session.rng
        left = samples
        many = min(samples, session.expected - session.runner.evaluations) > _COMPILE_FROM
        while left >= max(min(_CENTRES, samples), 1) and session.progressed < until:
            n = self.pace.size(min(_SAMPLES * _CENTRES, left))
            centres = states[rng.choice(len(states), _CENTRES, p=self.solution.weights)]
            # Fewer draws than centres are around some of them; their density is that of the whole mixture.
            around = np.repeat(centres, n // _CENTRES, axis=0) if n >= _CENTRES else rng.permutation(centres)[:n]
            drawn = self.kernel.draw(around, rng)
            left -= len(drawn)
            parts = [self.kernel.log_densities(drawn, centre).sum(axis=-1) for centre in centres]
            log_mixture = logsumexp(parts, axis=0) - np.log(len(centres))
            with self.pace.measured(len(drawn)):
                log_density = path.evaluate(drawn, compile=many).log_density
            session.runner.evaluations += len(drawn)
            self.points.append(drawn)
            self.log_weights.append(log_density - log_mixture)


def _share_out(session: Session, around: list[_CentredSamples], weights: np.ndarray) -> None:
    """Draw one sample for each centre on every path, or as many as possible; then more on each path by its weight."""
    left = session.limits.budget - session.runner.evaluations
    each = min(_CENTRES, left // max(len(around), 1))
    for path in around:
        path.draw(session, each)
    left = session.limits.budget - session.runner.evaluations
    for path, weight, heavier in zip(around, weights, np.cumsum(weights[::-1])[::-1], strict=True):
        until = session.progressed + (1 - session.progressed) * weight / max(heavier, weight)
        path.draw(session, int(left * weight), until)


def _width(path: Path, states: np.ndarray, blocks: np.ndarray | None) -> np.ndarray:
    """The scale of the kernel: the median over chains of the standard deviation, without chains that hardly moved.

    If no chain has moved, it is the standard deviation of all states.
    """
    assert blocks is not None
    scales = []
    for block in np.unique(blocks):
        mine = np.sort(states[blocks == block], axis=0)
        different = 1 + (np.diff(mine, axis=0) > 0).sum(axis=0)
        told = np.where(path.discrete, len(mine) > 2, different >= _MIN_VALUES)
        scales.append(np.where(told, mine.std(axis=0), np.nan))
    columns = [column[~np.isnan(column)] for column in np.array(scales).T]
    width = np.array([np.median(column) if len(column) else 0.0 for column in columns])
    overall = states.std(axis=0)
    width = _WIDER * np.where(width > 0, width, np.where(overall > 0, overall, 1.0))
    return np.where(path.discrete, np.maximum(width, 0.5), width)
