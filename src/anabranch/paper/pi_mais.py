"""PI-MAIS (paper, appendix D; Martino, Elvira, Luengo and Corander, 2017): the evidence of a path from its chains.

After each step t the states of the N chains are the centres of a mixture, and M points are drawn around each:

    q_t(x) = (1/N) Σ_n q(x | x_{n,t}),   w_{n,t,m} = γ_k(x_{n,t,m}) / q_t(x_{n,t,m}),   Ẑ_k = mean of all w.

The paper leaves q open ("e.g. a Gaussian"). Here it is a mixture of Student-t distributions in the coordinates of the
path, of three scales: half of the points have that of the chains, a quarter that of the prior, which bounds the
weights, and a quarter the geometric mean of the two. That of the chains is the median over them of the standard
deviation of the later half of their states; before there are enough of these, a hundredth of the prior's. It is known
before the points are drawn, so that the mean weight of every step has expectation Z_k.

*Error.* Given the steps before, each step has that expectation: the errors of different steps are uncorrelated. Two
estimates of the variance of Ẑ_k are the scatter of the means of the T steps, and the sum of the variances within the
N T groups of M weights; the error is the larger, since chains that have not converged show in the first alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.estimate import Estimate
from anabranch.conquer.kernel import StudentKernel
from anabranch.conquer.target import Target

__all__ = ["Centred", "PiMais"]

_MIN_STATES, _EVERY = 10, 1.2
"""States of a chain from which on they give the scale, and the growth of their number after which it is taken again."""
_AT_FIRST, _WIDER, _MIN_DISCRETE = 0.01, 1.2, 0.5
"""The narrow scale over the prior's at first, then over that of the chains, and its least value for whole numbers."""
_SCALE_OF = (0, 1, 0, 2)
"""Which of the three scales each of four points has."""


@dataclass
class Centred:
    """The proposal q: the scales of the prior and of the chains, (d,) each, and how many states of a chain gave it."""

    prior: np.ndarray
    narrow: np.ndarray
    states: int = 0

    @classmethod
    def of_prior(cls, scale: np.ndarray) -> Centred:
        """Before the chains have moved."""
        return cls(scale, _AT_FIRST * scale)

    def learn(self, states: Sequence[np.ndarray]) -> None:
        """Take the scale of the chains, (N, d) after each step, if there are many more steps than there were."""
        if len(states) < max(_MIN_STATES, _EVERY * self.states):
            return
        within = _WIDER * np.median(np.std(states[len(states) // 2 :], axis=0), axis=0)
        self.narrow, self.states = np.where(within > 0, within, self.narrow), len(states)

    def draw(self, target: Target, centres: np.ndarray, m: int, rng: Generator) -> tuple[np.ndarray, np.ndarray]:
        """M points around each of the centres (N, d), and the logs of their weights: (N, M, d) and (N, M)."""
        scales = np.stack([self.narrow, np.sqrt(self.narrow * self.prior), self.prior])
        scales = np.where(target.discrete, np.maximum(scales, _MIN_DISCRETE), scales)
        of = np.resize(_SCALE_OF, m)
        points = StudentKernel(scales[of], target.discrete).draw(centres[:, None], rng)
        log_parts = [
            StudentKernel(scales[j], target.discrete).log_densities(points[:, :, None], centres).sum(axis=-1)
            + np.log((of == j).mean() / len(centres))
            for j in np.unique(of)
        ]
        log_mixture = logsumexp(np.concatenate(log_parts, axis=-1), axis=-1)
        log_density = target.evaluate(points.reshape(len(centres) * m, target.dim)).log_density
        return points, log_density.reshape(log_mixture.shape) - log_mixture


@dataclass
class PiMais:
    """The weights so far, (N, M) after each step, and the logs of the sums that the estimate consists of."""

    log_weights: list[np.ndarray] = field(default_factory=list)
    log_sum: float = -np.inf
    log_squares: float = -np.inf
    log_step_squares: float = -np.inf
    log_variances: float = -np.inf
    moments: np.ndarray = field(default_factory=lambda: np.zeros(3))
    largest: float = -np.inf

    def add(self, log_weights: np.ndarray) -> None:
        """Add the weights of a step."""
        top = float(log_weights.max())
        self.log_weights.append(log_weights)
        if top == -np.inf:
            return
        weights, logs = np.exp(log_weights - top), log_weights[log_weights > -np.inf]
        self.log_sum = np.logaddexp(self.log_sum, top + np.log(weights.sum()))
        self.log_squares = np.logaddexp(self.log_squares, 2 * top + np.log((weights**2).sum()))
        self.log_step_squares = np.logaddexp(self.log_step_squares, 2 * (top + np.log(weights.mean())))
        variance = weights.var(axis=1, ddof=1).sum()
        self.log_variances = np.logaddexp(self.log_variances, 2 * top + np.log(variance) if variance > 0 else -np.inf)
        self.moments += len(logs), logs.sum(), (logs**2).sum()
        self.largest = max(self.largest, top)

    @property
    def size(self) -> int:
        """The number of weights."""
        return sum(weights.size for weights in self.log_weights[:1]) * len(self.log_weights)

    def summary(self, target: Target) -> Estimate:
        """The estimate without draws, from the sums alone: it takes no time, however many weights there are."""
        nothing = Estimate.nothing(target.dim, target.evaluations, "PI-MAIS")
        if self.log_sum == -np.inf:
            return nothing
        n, mean = self.moments[0], self.moments[1] / self.moments[0]
        log_z = self.log_sum - np.log(self.size)
        spread = np.sqrt(max(np.exp(self.log_squares - np.log(self.size) - 2 * log_z) - 1, 0.0))
        return Estimate(
            log_evidence=float(log_z), log_evidence_sd=self.error(target), points=nothing.points,
            log_weights=nothing.log_weights, ess=0.0, weight_sd=float(spread), log_weight_mean=float(mean),
            log_weight_sd=float(np.sqrt(max(self.moments[2] / n - mean**2, 0.0))), log_weight_max=self.largest,
            pareto_k=np.nan, evaluations=target.evaluations, method="PI-MAIS",
        )  # fmt: skip

    def error(self, target: Target) -> float:
        """The relative standard error of Ẑ_k; zero where the path has no variables."""
        if not target.dim:
            return 0.0
        steps, (n, m) = len(self.log_weights), self.log_weights[0].shape
        log_z = self.log_sum - np.log(self.size)
        within = np.exp(self.log_variances - np.log(m) - 2 * np.log(steps * n) - 2 * log_z)
        scatter = np.exp(self.log_step_squares - np.log(steps) - 2 * log_z) - 1
        between = scatter / (steps - 1) if steps > 1 else 0.0
        return float(np.sqrt(max(within, between, 0.0)))
