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
from anabranch.conquer.smc_bridge import Bridge, FittedProposal, FromPrior, FromProposal, Particles, fitted
from anabranch.conquer.smc_moves import Moves, Shape, Tuning
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.target import Target
from anabranch.conquer.weights import log_mean, systematic
from anabranch.divide.support import prior_is_sampled
from anabranch.limits import LimitReached
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
        """Whole sweeps; one that the end of the visit cuts short goes on with the next visit."""
        end = target.evaluations + evaluations
        if state.tuning is None:
            state = self._prepared(target, state, rng, evaluations)
        while not state.lost:
            before = target.evaluations
            if state.under_way is None:
                try:
                    state = self._begun(target, state, self._size(target, state, end - before), rng)
                except LimitReached:
                    return state
            state = self._carried_on(target, state, rng)
            if state.under_way is not None:
                break
            # A last sweep with what remains would be too small to tell much; one that had nothing to start from would
            # not have more the next time.
            enough = state.cost * state.sweeps[-1].size / (2 if len(state.sweeps) > 1 else 1)
            if end - target.evaluations < enough or target.evaluations == before:
                break
        return state

    def estimate(self, target: Target, state: SMCState) -> Estimate:
        if not state.sweeps and state.under_way is not None:
            return state.under_way.estimate(target)
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

    def _prepared(self, target: Target, state: SMCState, rng: np.random.Generator, evaluations: int) -> SMCState:
        """Where to start from, and how to move."""
        points, proposal = np.zeros((0, target.dim)), None
        # Where each draw takes a run of the program, a few must do.
        n = min(self.particles, max(evaluations // 8, 8)) if target.path.interpreted else self.particles
        if self.proposal is None and prior_is_sampled(target.path):
            points = target.prior(n, rng).points
        if len(points) < min(n, _FEWEST):
            points = spread_out(target, n, rng)
            if not len(points):
                return replace(state, lost=True)
            proposal = fitted(points, target.discrete, self.proposal)
        tuning = Tuning(_moves_by_gradient(target, points))
        return replace(state, lost=False, proposal=proposal, tuning=tuning, cost=_FIRST_COST * target.cost)

    def _size(self, target: Target, state: SMCState, left: int) -> int:
        """Particles of the next sweep: what the evaluations allow, within the size that its turn has."""
        fewest = min(max(_FEWEST, _FEWEST_PER_COORDINATE * target.dim), self.particles, self._most(target, left))
        if not state.sweeps:
            return int(np.clip(left / state.cost / 4, fewest, max(self.particles / 2, fewest)))
        doublings = (len(state.sweeps) - 1) // _BEFORE_DOUBLING
        most = min(self.particles * 2**doublings, max(_LARGEST, self.particles))
        return int(np.clip(left / state.cost, fewest, most))

    @staticmethod
    def _most(target: Target, left: int) -> int:
        """Particles whose start the evaluations that are left allow at all."""
        return max(left // (2 * target.cost), 4)

    def _begun(self, target: Target, state: SMCState, n: int, rng: np.random.Generator) -> SMCState:
        """A sweep of n particles, at its start."""
        before, bridge = target.evaluations, _bridge(target, state)
        start = bridge.draw(n, rng)
        if not len(start.points):
            return replace(state, sweeps=(*state.sweeps, Sweep.empty(n, target.dim)))
        founders = _resampled(start.log_weights, n, rng)
        particles = bridge.at(start.points).take(founders)
        sweep = SweepUnderWay(
            particles, founders, np.zeros(len(start.points)), 0.0, start.log_evidence, start.log_evidence_sd**2
        )
        state = replace(state, under_way=sweep)
        if len(start.points) < n:
            state, _ = self._moved(bridge, state, rng)
        assert state.under_way is not None
        return replace(state, under_way=replace(state.under_way, spent=target.evaluations - before))

    def _carried_on(self, target: Target, state: SMCState, rng: np.random.Generator) -> SMCState:
        """The sweep from temperature to temperature, to the posterior unless a limit comes before."""
        bridge, complete = _bridge(target, state), True
        while complete and (sweep := state.under_way) is not None:
            before, n = target.evaluations, len(sweep.particles)
            higher = _next_temperature(sweep.particles.log_ratio, sweep.beta, state.ladder, self.share)
            raised = sweep.raised(higher, rng)
            if raised is None:
                return replace(state, sweeps=(*state.sweeps, Sweep.empty(n, target.dim)), under_way=None)
            state, complete = self._moved(bridge, replace(state, under_way=raised), rng)
            assert state.under_way is not None
            sweep = replace(state.under_way, spent=state.under_way.spent + target.evaluations - before)
            state = replace(state, under_way=sweep)
            if sweep.beta == 1:
                cost = max(sweep.spent / n, 1.0)
                state = replace(
                    state, sweeps=(*state.sweeps, sweep.finished()), under_way=None, ladder=sweep.climbed, cost=cost
                )
        return state

    def _moved(self, bridge: Bridge, state: SMCState, rng: np.random.Generator) -> tuple[SMCState, bool]:
        """The sweep under way with its particles moved, and whether they were moved as far as they should be."""
        sweep = state.under_way
        assert sweep is not None
        assert state.tuning is not None
        shape = Shape.of(sweep.particles.points, sweep.founders, bridge.target.discrete)
        moves = Moves(bridge, sweep.beta, shape)
        particles, tuning, complete = moves.run(sweep.particles, state.tuning, self.steps, rng)
        return replace(state, under_way=replace(sweep, particles=particles), tuning=tuning), complete


def _bridge(target: Target, state: SMCState) -> Bridge:
    return FromPrior(target) if state.proposal is None else FromProposal(target, state.proposal)


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
class SweepUnderWay:
    """A sweep on its way: its particles at the temperature β, and what led there.

    Attributes:
        particles: they follow γ_β.
        founders: for each of them the draw from the start that it descends from.
        influence: of each such draw, I_e so far.
        beta: β.
        log_evidence: log of the normaliser of γ_β.
        start_variance: the variance of that of the start.
        climbed: the temperatures so far.
        spent: evaluations so far.
    """

    particles: Particles
    founders: np.ndarray
    influence: np.ndarray
    beta: float
    log_evidence: float
    start_variance: float
    climbed: tuple[float, ...] = ()
    spent: int = 0

    def raised(self, beta: float, rng: np.random.Generator) -> SweepUnderWay | None:
        """The sweep at a higher temperature, weighted and resampled; None where no particle has a density there."""
        n, log_weights = len(self.particles), (beta - self.beta) * self.particles.log_ratio
        log_step = log_mean(log_weights)
        if log_step == -np.inf:
            return None
        influence = self.influence.copy()
        np.add.at(influence, self.founders, (np.exp(log_weights - log_step) - 1) / n)
        chosen = _resampled(log_weights, n, rng)
        return replace(
            self,
            particles=self.particles.take(chosen),
            founders=self.founders[chosen],
            influence=influence,
            beta=beta,
            log_evidence=self.log_evidence + log_step,
            climbed=(*self.climbed, beta),
        )

    @property
    def variance(self) -> float:
        """The variance of the log evidence so far."""
        return self.start_variance + float((self.influence**2).sum())

    def finished(self) -> Sweep:
        """What the sweep came to, at β = 1."""
        n, points = len(self.particles), self.particles.points
        ess = _effective_by_family(points, self.founders)
        return Sweep(n, float(self.log_evidence), max(np.sqrt(self.variance), 1 / n), points, ess)

    def estimate(self, target: Target) -> Estimate:
        """What can be said before the end: importance weights r^(1 − β) of the particles, in one step."""
        log_weights = (1 - self.beta) * self.particles.log_ratio
        remark = f"A limit ended the tempering at the inverse temperature {self.beta:.2g}: the estimate is rough."
        by_weight = Estimate.from_weights(self.particles.points, log_weights, target.evaluations, "SMC", [remark])
        return replace(
            by_weight,
            log_evidence=by_weight.log_evidence + self.log_evidence,
            log_evidence_sd=float(np.hypot(by_weight.log_evidence_sd, np.sqrt(self.variance))),
            log_weight_mean=by_weight.log_weight_mean + self.log_evidence,
            log_weight_max=by_weight.log_weight_max + self.log_evidence,
        )


@dataclass(frozen=True)
class SMCState:
    """The sweeps so far, the first of which learns, and the one under way; what they start from (None: the prior); the
    temperatures they follow and how they move; what a particle of one costs.

    `lost` says that no point of the path is known.
    """

    sweeps: tuple[Sweep, ...] = ()
    under_way: SweepUnderWay | None = None
    proposal: FittedProposal | None = None
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
