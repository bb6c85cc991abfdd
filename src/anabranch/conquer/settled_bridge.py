"""The evidence of settled chains: the bridge from their states to mixtures that are fitted to them.

Importance sampling from a mixture fitted to a posterior with ten exchangeable blocks has an efficiency of 0.1 %, and a
weight may be far larger than all that were drawn. The bridge (`bridge`) needs less: with w = γ/(Z q), n₁ independent
states and n₂ draws,

    Var log Ẑ ≈ (1/n₁) (1/E_p[1/(1 + w n₁/n₂)] − 1),

in which no weight counts for more than one. There, 1,000 independent states and 300,000 draws give an error of 0.035.
A mixture fitted to its own states makes Ẑ too low, so that each half of the chains has the mixture of the other half
(`crossed`). Draws that are not in order take no evaluation.

The fewer independent draws the states are taken to be worth (n₁), the less the bridge depends on them, and the more it
is importance sampling with a bound on the weights, which does not mind chains that mix badly. Of three numbers, the
independent draws by the weights, those by the coordinate that mixes worst, and the families, the one with the smallest
error is taken.

Where chains have too few or too many states in some place, what the draws find there contradicts them, and the answers
by these numbers differ. By how much they do, beyond their errors, is part of the error.

The error. Chains are independent once they have forgotten where they began, so that the scatter of their means counts,
with the autocorrelation in it. Two things show whether they have forgotten, and one what none of them has seen:

    families    chains that began from the same family must not be more alike than others; with s² the variance by
                chains and s_f² that by F families, it is (4 s² + (F − 2) s_f²)/(F + 2) where that is larger. The two
                halves have different families, and the error is at least half their difference
    drift       the first third of the states is left out. With Δ the change of log Ẑ that they would make, and m
                independent states in the rest of a chain, in the coordinate that mixes worst, Δ e^(−m) is left of where
                the chains began
    unseen      where no chain began, and none has come to, nothing differs. By the rule of succession F families leave
                out 1/(F + 1) of the mass. Where that is nearly all of the error, the population gets twice as many, and
                chains begin anew
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator

from anabranch.conquer.bridge import bridge, crossed
from anabranch.conquer.chains import chain_ess
from anabranch.conquer.estimate import Estimate
from anabranch.conquer.mixture_fit import fit_to_states
from anabranch.conquer.population import broad_as_prior
from anabranch.conquer.settled import Settled, effective_families
from anabranch.conquer.student import StudentMixture
from anabranch.conquer.symmetry import Exchangeable, fold, log_copies, ordered, unfold
from anabranch.conquer.target import Target

__all__ = ["SettledBridge"]

_BROAD = 0.1
"""The share of a component as wide as the prior, from which mass is found that the states have missed."""
_FITTED = 8_000
"""States to which a mixture is fitted, at most."""
_REPORTED = 6_000
"""States that are given as draws of the posterior, at most."""
_BATCH, _MAX_DRAWS = 8_000, 20
"""Draws at once; and draws for each evaluation, at most, where few are in order."""
_CERTAIN = 4.0
"""Observations for which it counts that families are no more alike than chains."""
_LEAST = 15.0
"""Independent draws that the states count as, at least: the bridge needs some overlap."""
_LACKING = 3.0
"""How many times the rest of the error the part for mass where no family began is, for chains to begin anew: they have
to find the rest again."""
_REFIT = 2.0
"""How many times as many evaluations the chains have taken when mixtures are fitted to them again."""


@dataclass(frozen=True)
class SettledBridge:
    """Mixtures fitted to both halves of settled chains, draws from them, and the evidence.

    Attributes:
        symmetries: the exchangeable blocks, of which the mixtures have one ordering.
        proposals: the mixture fitted to each half.
        log_ratios: log γ/q of the draws from each of them, minus infinity where they are not in order.
        fitted_to: evaluations of the chains to which they were fitted.
        former: the evidence and its error by the mixtures before, and their draws, until these have half as many.
        log_evidence, sd: the evidence and its error.
        unseen: the part of that for mass where no family began.
        ess: how many independent draws the states are worth, in the coordinate that mixes worst.
    """

    symmetries: tuple[Exchangeable, ...]
    proposals: tuple[StudentMixture, StudentMixture]
    log_ratios: tuple[np.ndarray, np.ndarray]
    fitted_to: int
    former: tuple[float, float, int] = (-np.inf, np.inf, 0)
    log_evidence: float = -np.inf
    sd: float = np.inf
    unseen: float = 0.0
    ess: float = 0.0

    @classmethod
    def fitted(
        cls,
        target: Target,
        settled: Settled,
        symmetries: Sequence[Exchangeable],
        rng: Generator,
        former: SettledBridge | None = None,
    ) -> SettledBridge:
        """Mixtures fitted to these chains, without draws; with those before."""
        states = settled.counted
        points, half = states.reshape(-1, states.shape[2]), np.tile(settled.half, len(states))
        tightest = tuple(each.with_tightest_key(points) for each in symmetries)
        points = fold(points, tightest)
        wide = broad_as_prior(target, points, rng, tightest)
        one, other = (_some(points[half == each], rng) for each in (0, 1))
        proposals = fit_to_states(one, rng).joined(wide, _BROAD), fit_to_states(other, rng).joined(wide, _BROAD)
        fresh = cls(tightest, proposals, (np.zeros(0), np.zeros(0)), settled.spent)
        return fresh if former is None else replace(fresh, former=(former.log_evidence, former.sd, former.draws))

    @property
    def draws(self) -> int:
        """Draws from both mixtures."""
        return sum(map(len, self.log_ratios))

    @property
    def lacks_families(self) -> bool:
        """Whether the error is for mass where no family began, and little else."""
        return self.unseen**2 > _LACKING**2 * (self.sd**2 - self.unseen**2)

    def is_outgrown(self, settled: Settled) -> bool:
        """Whether mixtures fitted to the present chains would be better."""
        return settled.spent >= _REFIT * self.fitted_to

    def drawn(self, target: Target, rng: Generator, evaluations: int) -> SettledBridge:
        """With more draws from both mixtures, for so many evaluations, more or less."""
        one, other = self.log_ratios
        one = np.concatenate([one, self._log_ratios(target, self.proposals[0], rng, evaluations // 2)])
        other = np.concatenate([other, self._log_ratios(target, self.proposals[1], rng, evaluations // 2)])
        return replace(self, log_ratios=(one, other))

    def _log_ratios(self, target: Target, proposal: StudentMixture, rng: Generator, evaluations: int) -> np.ndarray:
        """log γ/q of draws from a mixture."""
        found, left, draws = [np.zeros(0)], evaluations, 0
        while left > 0 and draws < _MAX_DRAWS * evaluations:
            points = proposal.draw(_BATCH, rng)
            inside = np.flatnonzero(ordered(points, self.symmetries) & np.isfinite(points).all(axis=1))[:left]
            last = inside[-1] + 1 if len(inside) == left else _BATCH
            log_ratio = np.full(last, -np.inf)
            if len(inside):
                density = target.evaluate(points[inside]).log_density + log_copies(self.symmetries)
                log_ratio[inside] = density - proposal.log_density(points[inside])
            found.append(np.where(np.isnan(log_ratio), -np.inf, log_ratio))
            left, draws = left - len(inside), draws + last
        return np.concatenate(found)

    def bridged(self, settled: Settled) -> SettledBridge:
        """With the evidence by these chains."""
        halves = tuple(self._half(settled, half) for half in (0, 1))
        answers = [_joined(halves, trusted) for trusted in zip(*(half.possible for half in halves), strict=True)]
        if 2 * self.draws < self.former[2]:
            answers.append(self.former[:2])
        log_z, sd = min(answers, key=lambda each: each[1])
        sd = float(np.hypot(sd, max(_contradiction(log_z, sd, *other) for other in answers)))
        unseen, ess = 1 / (settled.families + 1), sum(half.ess for half in halves)
        return replace(self, log_evidence=log_z, sd=float(np.hypot(sd, unseen)), unseen=unseen, ess=ess)

    def _half(self, settled: Settled, half: int) -> _Half:
        """The states of one half, and the draws from the mixture of the other."""
        chosen, first, proposal = settled.half == half, settled.left_out, self.proposals[1 - half]
        states, log_density = settled.states[:, chosen], settled.log_density[:, chosen]
        points = fold(states.reshape(-1, states.shape[2]), self.symmetries)
        density = proposal.log_density(points).reshape(log_density.shape)
        log_ratio, folded = log_density + log_copies(self.symmetries) - density, points.reshape(states.shape)[first:]
        ess = _ess(np.concatenate([folded, folded**2], axis=2))
        return _Half(log_ratio, first, self.log_ratios[1 - half], settled.founders[chosen], ess)

    def estimate(self, target: Target, settled: Settled) -> Estimate:
        """The evidence, and states evenly over the time, with random labels by a fixed seed."""
        states = settled.counted
        points = states[:: -(-states[:, :, 0].size // _REPORTED)].reshape(-1, target.dim)
        points = unfold(points, self.symmetries, np.random.default_rng(len(states)))
        evidence = self.log_evidence, self.sd, target.evaluations
        return Estimate.from_draws(points, np.zeros(len(points)), *evidence, "Bridge", ess=self.ess)


@dataclass(frozen=True)
class _Half:
    """Half of the chains, and draws from the mixture fitted to the other half.

    Attributes:
        log_ratio: log γ/q at the states (steps, chains).
        first: the steps at the start that do not count.
        drawn: log γ/q of the draws.
        founders: the family from which each chain began.
        ess: how many independent draws the states are worth, in the coordinate that mixes worst.
    """

    log_ratio: np.ndarray
    first: int
    drawn: np.ndarray
    founders: np.ndarray
    ess: float

    @property
    def possible(self) -> tuple[float, float, float]:
        """As how many independent draws the states may count: in the weights, in the worst coordinate, by families."""
        least = max(self.families, _LEAST)
        return max(_ess(self.log_ratio[self.first :, :, None]), least), max(self.ess, least), least

    @property
    def families(self) -> float:
        """How many families of the same size scatter as much as these."""
        return effective_families(self.founders)

    def bridged(self, trusted: float) -> tuple[float, float, float]:
        """log Ẑ where the states count as so many independent draws, its error by chains, and the variance by families
        over that by chains."""
        counted, zeros = self.log_ratio[self.first :], np.zeros(len(self.drawn))
        sides = counted.ravel(), np.zeros(counted.size), self.drawn, zeros, trusted
        log_z, sd = bridge(*sides, np.tile(np.arange(counted.shape[1]), len(counted)))
        _, by_family = bridge(*sides, np.tile(self.founders, len(counted)))
        return log_z, sd, (by_family / sd) ** 2 if np.isfinite([by_family, sd]).all() else 1.0

    def drift(self, log_z: float, trusted: float) -> float:
        """By how much the first states would change log Ẑ, times what is left of that."""
        if not self.first:
            return 1.0
        terms = 1 / (1 + trusted / len(self.drawn) * np.exp(np.minimum(self.log_ratio - log_z, 700.0)))
        change = abs(np.log(terms[: self.first].mean() / terms[self.first :].mean()))
        return float(change * np.exp(-self.ess / self.log_ratio.shape[1]))


def _joined(halves: Sequence[_Half], trusted: Sequence[float]) -> tuple[float, float]:
    """log Ẑ by both halves, whose states count as so many independent draws, and its error."""
    answers = [half.bridged(each) for half, each in zip(halves, trusted, strict=True)]
    log_z, sd = crossed(answers[0][:2], answers[1][:2])
    if not np.isfinite(sd):
        return log_z, sd
    observed = sum(half.families - 1 for half in halves)
    alike = sum((half.families - 1) * answer[2] for half, answer in zip(halves, answers, strict=True))
    raised = max((_CERTAIN + alike) / (_CERTAIN + observed), 1.0)
    drift = np.mean([half.drift(log_z, each) for half, each in zip(halves, trusted, strict=True)])
    return log_z, float(np.hypot(sd * np.sqrt(raised), drift))


def _contradiction(log_z: float, sd: float, other: float, other_sd: float) -> float:
    """By how much the difference from another answer exceeds the error of both."""
    return max(abs(log_z - other) - float(np.hypot(sd, other_sd)), 0.0) if np.isfinite(other_sd) else 0.0


def _ess(chains: np.ndarray) -> float:
    """How many independent draws states (steps, chains, coordinates) are worth, in the coordinate that mixes worst."""
    size = float(chain_ess(chains.swapaxes(0, 1)).min())
    return min(size, float(chains.shape[0] * chains.shape[1])) if np.isfinite(size) else float(chains.shape[1])


def _some(points: np.ndarray, rng: Generator) -> np.ndarray:
    return points[rng.permutation(len(points))[:_FITTED]]
