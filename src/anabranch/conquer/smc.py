"""Sequential Monte Carlo: particles carried from the prior, or from a proposal, to the posterior by tempering.

A sweep follows γ_β = s r^β over temperatures 0 = β_0 < … < β_T = 1 (see `smc_bridge`). At each of them the particles
are weighted, resampled and moved by kernels that leave γ_β unchanged (see `smc_moves`); with w_i = r(x_i)^(β_t − β_t−1)

    Ẑ = Z_0 Π_t (1/N) Σ_i w_i

is an estimate of Z_k (Del Moral, Doucet and Jasra, 2006), unbiased but for the adaptation: another local estimator in
the sense of the paper's section 4.2 and theorem 1. The next temperature is the one at which the conditional effective
sample size (Σ w)² / Σ w² is a given share of N.

The variance of log Ẑ comes from the genealogy (Chan and Lai, 2013). A draw e from the start has the influence

    I_e = (1/N) Σ_t Σ_{i descends from e} (w_i / w̄ − 1),   Var log Ẑ ≈ Σ_e I_e²

which sees both the weights and how well the moves mix. Sweeps are repeated, and larger ones follow: Ẑ is the mean over
all particles, and how the sweeps scatter corrects the variance that the sweeps state.

Particles that choose their own temperatures make Ẑ a little too small: they go too far where they happen to lack the
large weights (by 0.05 in log Ẑ for 512 of them in twenty dimensions). So a first, smaller sweep learns the ladder that
the others follow; its own evidence counts only as long as there is no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import logsumexp

from anabranch import errors
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.population import spread_out
from anabranch.conquer.smc_bridge import Bridge, FromPrior, FromProposal, Particles, Proposal, fitted
from anabranch.conquer.smc_moves import Moves, Shape, Tuning
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.target import Target
from anabranch.conquer.weights import log_mean, systematic
from anabranch.divide.support import prior_is_sampled
from anabranch.settings import check, instance, share, whole

__all__ = ["SMC", "SMCState", "Sweep"]

_FEWEST, _FEWEST_PER_COORDINATE = 64, 10
"""Particles of the smallest sweep: with too few of them, the moves do not know the shape of the target."""
_LARGEST = 2**15
"""Particles of the largest sweep."""
_BEFORE_DOUBLING = 4
"""Sweeps of one size before the next are twice as large."""
_FIRST_COST = 40
"""Points evaluated for each particle of a sweep, before any has run."""
_GRADIENT_FROM = 6
"""Coordinates from which on a gradient, with what it costs, makes better moves than a random walk."""
_STATED = 4.0
"""For how many observations of scatter between sweeps the variance stated by the sweeps counts."""


@dataclass(frozen=True)
class SMC:
    """Adaptive tempering of a population of particles. It runs on every path: no gradient is needed, discrete
    coordinates and guards are welcome.

    Args:
        particles: in a sweep; fewer if the evaluations do not suffice, more as more of them come.
        share: the share of the particles that the step to the next temperature leaves effective.
        steps: moves of every particle at one temperature, at most.
        proposal: start from this distribution of the continuous coordinates instead of the prior.

    Example:
        >>> import anabranch as ab, numpyro.distributions as dist
        >>> from anabranch.conquer.target import PathTarget
        >>> def normal():
        ...     x = ab.sample("x", dist.Normal(0.0, 1.0))
        ...     ab.observe("y", dist.Normal(x, 1.0), 2.0)
        >>> target = PathTarget(ab.find_paths(normal, executions=10).paths[0])
        >>> method, rng = SMC(particles=200), np.random.default_rng(0)
        >>> state = method.advance(target, method.start(target, rng), rng, evaluations=2_000)
        >>> estimate = method.estimate(target, state)
        >>> exact = -0.5 * (np.log(4 * np.pi) + 2.0)
        >>> abs(estimate.log_evidence - exact) < 3 * estimate.log_evidence_sd < 0.3
        True
    """

    particles: int = 512
    share: float = 0.7
    steps: int = 50
    proposal: StudentMixture | None = None

    def __post_init__(self) -> None:
        proposal = instance(StudentMixture, "a StudentMixture").or_none()
        check(self, particles=whole(2), share=share(zero=False, one=False), steps=whole(1), proposal=proposal)

    def start(self, target: Target, rng: np.random.Generator) -> SMCState:
        real = int((~target.discrete).sum())
        if self.proposal is not None and self.proposal.dim != real:
            raise ValueError(f"proposal must have {real} dimensions, as the path has; got {self.proposal.dim}")
        return SMCState()

    def advance(self, target: Target, state: SMCState, rng: np.random.Generator, evaluations: int) -> SMCState:
        end = target.evaluations + evaluations
        if state.tuning is None:
            state = self._prepared(target, state, rng)
        while not state.lost:
            before, n = target.evaluations, self._size(target, state, end - target.evaluations)
            state = self._swept(target, state, n, rng)
            # A last sweep with what remains would be too small to tell much; one that had nothing to start from would
            # not have more the next time.
            enough = state.cost * n / (2 if len(state.sweeps) > 1 else 1)
            if end - target.evaluations < enough or target.evaluations == before:
                break
        return state

    def estimate(self, target: Target, state: SMCState) -> Estimate:
        remarks, sweeps = _remarks(state), state.counted
        log_evidence = _log_evidence(sweeps)
        if log_evidence == -np.inf:
            return Estimate.nothing(target.dim, target.evaluations, "SMC", remarks)
        logs = [np.full(len(sweep.points), sweep.log_evidence) for sweep in sweeps]
        return Estimate.from_draws(
            np.concatenate([sweep.points for sweep in sweeps]),
            np.concatenate(logs),
            log_evidence,
            _log_evidence_sd(sweeps),
            target.evaluations,
            "SMC",
            ess=_effective(sweeps),
            remarks=remarks,
        )

    def _prepared(self, target: Target, state: SMCState, rng: np.random.Generator) -> SMCState:
        """Where to start from, and how to move."""
        points, proposal = np.zeros((0, target.dim)), None
        if self.proposal is None and prior_is_sampled(target.path):
            points = target.prior(self.particles, rng).points
        if len(points) < min(self.particles, _FEWEST):
            points = spread_out(target, self.particles, rng)
            if not len(points):
                return replace(state, lost=True)
            proposal = fitted(points, target.discrete, self.proposal)
        before = target.evaluations
        target.evaluate(points[:1])  # a point of a density with coordinates summed out takes several evaluations
        cost = _FIRST_COST * (target.evaluations - before)
        tuning = Tuning(_moves_by_gradient(target, points))
        return replace(state, lost=False, proposal=proposal, tuning=tuning, cost=cost)

    def _size(self, target: Target, state: SMCState, left: int) -> int:
        """Particles of the next sweep: what the evaluations allow, within the size that its turn has."""
        fewest = min(max(_FEWEST, _FEWEST_PER_COORDINATE * target.dim), self.particles)
        if not state.sweeps:
            return int(np.clip(left / state.cost / 4, fewest, max(self.particles / 2, fewest)))
        doublings = (len(state.sweeps) - 1) // _BEFORE_DOUBLING
        most = min(self.particles * 2**doublings, max(_LARGEST, self.particles))
        return int(np.clip(left / state.cost, fewest, most))

    def _swept(self, target: Target, state: SMCState, n: int, rng: np.random.Generator) -> SMCState:
        before = target.evaluations
        bridge = FromPrior(target) if state.proposal is None else FromProposal(target, state.proposal)
        assert state.tuning is not None
        sweep, tuning, ladder = self._sweep(bridge, n, state.tuning, state.ladder, rng)
        cost = max((target.evaluations - before) / n, 1.0)
        return replace(state, sweeps=(*state.sweeps, sweep), tuning=tuning, ladder=ladder, cost=cost)

    def _sweep(
        self, bridge: Bridge, n: int, tuning: Tuning, ladder: tuple[float, ...], rng: np.random.Generator
    ) -> tuple[Sweep, Tuning, tuple[float, ...]]:
        """One population from the start to the posterior, and what it has learned for the next."""
        start = bridge.draw(n, rng)
        if not len(start.points):
            return Sweep.empty(n, bridge.target.dim), tuning, ladder
        founders = _resampled(start.log_weights, n, rng)
        particles = bridge.at(start.points).take(founders)
        if len(start.points) < n:
            particles, tuning = self._moved(bridge, particles, founders, 0.0, tuning, rng)
        beta, log_evidence, influence = 0.0, start.log_evidence, np.zeros(len(start.points))
        climbed: tuple[float, ...] = ()
        while beta < 1:
            higher = _next_temperature(particles.log_ratio, beta, ladder, self.share)
            climbed = (*climbed, higher)
            log_weights = (higher - beta) * particles.log_ratio
            log_step = log_mean(log_weights)
            if log_step == -np.inf:
                return Sweep.empty(n, bridge.target.dim), tuning, ladder
            np.add.at(influence, founders, (np.exp(log_weights - log_step) - 1) / n)
            log_evidence += log_step
            chosen = _resampled(log_weights, n, rng)
            particles, founders, beta = particles.take(chosen), founders[chosen], higher
            particles, tuning = self._moved(bridge, particles, founders, beta, tuning, rng)
        variance = start.log_evidence_sd**2 + float((influence**2).sum())
        ess = _effective_by_family(particles.points, founders)
        return Sweep(n, float(log_evidence), max(np.sqrt(variance), 1 / n), particles.points, ess), tuning, climbed

    def _moved(
        self,
        bridge: Bridge,
        particles: Particles,
        founders: np.ndarray,
        beta: float,
        tuning: Tuning,
        rng: np.random.Generator,
    ) -> tuple[Particles, Tuning]:
        shape = Shape.of(particles.points, founders, bridge.target.discrete)
        return Moves(bridge, beta, shape).run(particles, tuning, self.steps, rng)


@dataclass(frozen=True)
class Sweep:
    """One sweep: its particles, its evidence, and the standard error of that as the genealogy tells it."""

    size: int
    log_evidence: float
    log_evidence_sd: float
    points: np.ndarray
    ess: float

    @classmethod
    def empty(cls, size: int, dim: int) -> Sweep:
        """No particle had positive density: an estimate of zero, which may be all wrong."""
        return cls(size, -np.inf, 1.0, np.zeros((0, dim)), 0.0)


@dataclass(frozen=True)
class SMCState:
    """The sweeps so far, the first of which learns; what they start from (None: the prior); the temperatures they
    follow and how they move; what a particle of one costs.

    `lost` says that no point of the path is known.
    """

    sweeps: tuple[Sweep, ...] = ()
    proposal: Proposal | None = None
    tuning: Tuning | None = None
    ladder: tuple[float, ...] = ()
    cost: float = _FIRST_COST
    lost: bool = False

    @property
    def counted(self) -> tuple[Sweep, ...]:
        return self.sweeps[1:] or self.sweeps


def _moves_by_gradient(target: Target, points: np.ndarray) -> bool:
    """Whether Hamiltonian moves suit: enough coordinates, all continuous, and a gradient that can be had."""
    if target.dim < _GRADIENT_FROM or target.discrete.any() or not target.has_gradient:
        return False
    try:
        target.differentiate(points[:1])
    except errors.NoGradient:
        return False
    return True


def _next_temperature(log_ratio: np.ndarray, beta: float, ladder: tuple[float, ...], share: float) -> float:
    """The next temperature of the ladder, or, where it has none or far too few particles would be left, a new one."""
    ratio = log_ratio[log_ratio > -np.inf]
    following = next((rung for rung in ladder if rung > beta), None)
    if following is not None and (not len(ratio) or _conditional_share((following - beta) * ratio) >= share / 3):
        return following
    return _temperature_leaving(ratio, beta, share)


def _temperature_leaving(ratio: np.ndarray, beta: float, share: float) -> float:
    """The highest temperature that leaves this share of the particles effective, of those inside the path."""
    if not len(ratio) or _conditional_share((1 - beta) * ratio) >= share:
        return 1.0
    low, high = 0.0, 1 - beta
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _conditional_share(middle * ratio) >= share else (low, middle)
    # Always on by a little, so that there is an end.
    return min(max(beta + low, 1.01 * beta, 1e-12), 1.0)


def _conditional_share(log_weights: np.ndarray) -> float:
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum() / len(weights))


def _resampled(log_weights: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Indices, each as often as its weight says up to rounding."""
    return systematic(np.exp(log_weights - logsumexp(log_weights)), n, rng)


def _effective_by_family(points: np.ndarray, founders: np.ndarray) -> float:
    """The effective size of equally weighted draws of which those with the same founder may depend on each other.

    With S_e the sum over a family of deviations from the mean, the mean has the variance Σ S_e² / n².
    """
    n = len(points)
    deviations = points - points.mean(axis=0)
    sums = np.zeros((int(founders.max()) + 1, points.shape[1]))
    np.add.at(sums, founders, deviations)
    spread, of_families = (deviations**2).sum(axis=0), (sums**2).sum(axis=0)
    return float(n * np.min(spread / np.maximum(of_families, spread), where=spread > 0, initial=1.0))


# Sweeps together ------------------------------------------------------------------------------------------------------


def _log_evidence(sweeps: tuple[Sweep, ...]) -> float:
    """The mean of the evidences, by their sizes."""
    if not sweeps:
        return -np.inf
    sizes = np.array([sweep.size for sweep in sweeps], float)
    return float(logsumexp([sweep.log_evidence for sweep in sweeps], b=sizes / sizes.sum()))


def _stated(sweeps: tuple[Sweep, ...]) -> float:
    """The variance of log Ẑ by one particle, as the sweeps state it; that of a sweep is this over its size."""
    sizes = np.array([sweep.size for sweep in sweeps], float)
    variances = np.array([sweep.log_evidence_sd**2 for sweep in sweeps])
    return float((sizes**2 * variances).sum() / sizes.sum())


def _scatter(sweeps: tuple[Sweep, ...]) -> float:
    """How far the sweeps are from their mean, squared and in units of the errors they state, on average."""
    log_evidence = _log_evidence(sweeps)
    if len(sweeps) < 2 or log_evidence == -np.inf:
        return 1.0
    sizes = np.array([sweep.size for sweep in sweeps], float)
    logs = np.array([sweep.log_evidence for sweep in sweeps]) - log_evidence
    deviations = np.where(logs > -np.inf, logs, -1.0)  # to first order an evidence of zero is below by all of it
    return float((sizes * deviations**2).sum() / _stated(sweeps) / (len(sweeps) - 1))


def _log_evidence_sd(sweeps: tuple[Sweep, ...]) -> float:
    """The stated error, corrected by the scatter as far as there are sweeps to tell."""
    observed = len(sweeps) - 1
    correction = (_STATED + observed * _scatter(sweeps)) / (_STATED + observed)
    return float(np.sqrt(_stated(sweeps) / sum(sweep.size for sweep in sweeps) * correction))


def _effective(sweeps: tuple[Sweep, ...]) -> float:
    found = [sweep for sweep in sweeps if sweep.ess > 0]
    logs = np.array([np.log(sweep.size) + sweep.log_evidence for sweep in found])
    shares = np.exp(logs - logsumexp(logs))
    return float(1 / (shares**2 / [sweep.ess for sweep in found]).sum())


def _remarks(state: SMCState) -> list[str]:
    remarks = []
    if state.lost:
        remarks.append("No point of the path is known, and none was drawn from its prior.")
    if state.proposal is not None:
        remarks.append("Tempering started from a distribution fitted to points of the path, not from its prior.")
    if len(state.sweeps) == 1:
        remarks.append("Only the sweep that learns the temperatures has run; its evidence tends to be too low.")
    empty = sum(sweep.log_evidence == -np.inf for sweep in state.counted)
    if empty:
        remarks.append(f"{empty} of {len(state.counted)} sweeps lost all their particles.")
    if _scatter(state.counted) > 9:
        remarks.append("The sweeps differ by more than their errors: the moves mix badly, so try more particles.")
    return remarks
