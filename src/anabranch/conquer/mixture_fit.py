"""Student-t mixtures fitted to modes, to points, and to the weights of their own draws."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.random import Generator
from scipy.special import logsumexp

from anabranch.conquer.ascent import Modes
from anabranch.conquer.student import DF, StudentMixture, safe_cholesky
from anabranch.conquer.weights import effective_sample_size, systematic

__all__ = ["fit_to_modes", "fit_to_points", "fit_to_states", "fit_to_weights"]

Fit = Callable[[np.ndarray, np.ndarray], StudentMixture]

_MIN_DF = 1.5
"""Degrees of freedom of the heaviest tails that are fitted."""
_FORMER = 5.0
"""Draws as which a component counts when it is refitted to its weights; more keep those that had few draws."""
_MIN_SHARE = 1e-5
"""The share below which a component with little weight is dropped; more of it loses modes that are many and light."""
_MAX_COMPONENTS = 24
"""Components of a mixture fitted to points."""
_STATES_DF = 10.0
"""Degrees of freedom of a mixture fitted to states of chains."""
_MAX_RESAMPLED = 4_000
"""Draws to which a new mixture is fitted."""


def fit_to_modes(modes: Modes, depth: float) -> StudentMixture:
    """A component on each mode whose Laplace mass is within `depth` nats of the largest.

    Its share is the square root of the Laplace mass, since that is only an approximation.
    """
    modes = _without_repeats(modes, depth)
    scale_trils = np.array([safe_cholesky(np.linalg.inv(precision)) for precision in modes.precision])
    shares = np.exp(0.5 * (modes.log_mass - modes.log_mass.max()))
    return StudentMixture(modes.points, scale_trils, shares / shares.sum(), np.full(len(modes), DF))


def _without_repeats(modes: Modes, depth: float) -> Modes:
    """The modes that matter, each once and the heaviest first."""
    order = np.argsort(-modes.log_mass, kind="stable")
    kept: list[int] = []
    for i in order:
        if modes.log_mass[i] < modes.log_mass[order[0]] - depth:
            break
        offset = modes.points[kept] - modes.points[i]
        if all(x @ modes.precision[j] @ x > 1.0 for x, j in zip(offset, kept, strict=True)):
            kept.append(int(i))
    return modes.take(np.array(kept))


def fit_to_points(points: np.ndarray, rng: Generator) -> StudentMixture:
    """A mixture fitted to points: components begin at points far from each other, with a part of the whole scale."""
    n, d = points.shape
    mixture = _spread(points, int(np.clip(n // (10 * (d + 1)), 1, _MAX_COMPONENTS)), rng)
    for _ in range(20):
        mixture = mixture.refitted(points, np.full(n, 1 / n))
    return mixture


def fit_to_states(points: np.ndarray, rng: Generator) -> StudentMixture:
    """A mixture fitted to states of chains, which are worth far fewer independent points: scales are shrunk to their
    diagonals, since with few points most of their correlations within a component are noise.

    For 75 chains of ten exchangeable blocks of three coordinates, worth 500 points, log γ/q was 6.6 nats on average,
    where `fit_to_points` had 8.
    """
    n, d = points.shape
    mixture = _spread(points, int(np.clip(n // (4 * (d + 1)), 1, _MAX_COMPONENTS)), rng)
    for _ in range(25):
        mixture = mixture.refitted(points, np.full(n, 1 / n), to_diagonal=True)
    return mixture.with_df(_STATES_DF)


def _spread(points: np.ndarray, size: int, rng: Generator) -> StudentMixture:
    """So many components at points far from each other, each with a part of the whole scale."""
    n, d = points.shape
    scale = np.atleast_2d(np.cov(points.T)) + 1e-12 * np.eye(d)
    standard = points @ np.linalg.inv(safe_cholesky(scale)).T
    centres = [int(rng.integers(n))]
    distance = np.full(n, np.inf)
    for _ in range(size - 1):
        distance = np.minimum(distance, ((standard - standard[centres[-1]]) ** 2).sum(axis=1))
        centres.append(int(rng.choice(n, p=distance / distance.sum())) if distance.sum() > 0 else centres[0])
    scale_trils = np.tile(safe_cholesky(scale / size), (size, 1, 1))
    return StudentMixture(points[centres], scale_trils, np.full(size, 1 / size), np.full(size, DF))


def fit_to_weights(
    proposal: StudentMixture,
    broad: StudentMixture,
    points: np.ndarray,
    log_weights: np.ndarray,
    log_density: Callable[[StudentMixture], np.ndarray],
    rng: Generator | None = None,
) -> StudentMixture:
    """The mixture refitted to its weighted draws, with the tails that suit them best.

    Weights of which a few dominate are tempered first. Of several degrees of freedom the fit takes those whose weights
    have the smallest second moment, E_q'[(γ/q')²] = E_q[(γ/q)² q/q'], since the likelihood says little of the tails; or
    only the shares are fitted, where the components have too few draws for more. The second moment is taken over draws
    to which the candidate was not fitted: over its own, lighter tails and more parameters would always look better.
    `log_density` gives log q at the points, its defensive components included, for a mixture. With `rng`, another
    candidate is a new mixture, fitted to resampled draws: it may have more components, where there were few points when
    the first one was fitted.
    """
    weights = _tempered(log_weights, min_ess=20.0 + 2 * proposal.dim)
    held_out = np.arange(len(points)) % 2 == 1
    log_old = log_density(proposal)
    extended = _extended(proposal, broad, points, weights)
    now = float(extended.df.mean())

    def second_moment(fit: Fit) -> float:
        candidate = fit(points[~held_out], weights[~held_out])
        return float(logsumexp((2 * log_weights + log_old - log_density(candidate))[held_out]))

    # More degrees of freedom would make the tails too light; fewer, in many dimensions, too heavy.
    dfs = np.clip([now, now / 2, 2 * now], _MIN_DF, 8.0 + 2 * proposal.dim)
    fits: list[Fit] = [partial(_refitted, extended.with_df(df)) for df in dfs]
    fits.append(partial(extended.reshared, former=_FORMER))
    if rng is not None:
        fits.append(partial(_regrown, rng=rng))
    return min(fits, key=second_moment)(points, weights)


def _refitted(mixture: StudentMixture, points: np.ndarray, weights: np.ndarray) -> StudentMixture:
    """The mixture after two steps of expectation maximisation on weighted draws of it."""
    for _ in range(2):
        mixture = mixture.refitted(points, weights, former=_FORMER, min_share=_MIN_SHARE)
    return mixture


def _regrown(points: np.ndarray, weights: np.ndarray, rng: Generator) -> StudentMixture:
    """A mixture fitted to as many of the weighted draws as these are worth."""
    size = int(np.clip(1 / ((weights / weights.sum()) ** 2).sum(), 1, _MAX_RESAMPLED))
    return fit_to_points(points[systematic(weights / weights.sum(), size, rng)], rng)


def _tempered(log_weights: np.ndarray, min_ess: float) -> np.ndarray:
    """Normalised weights w^α, with the largest α of a few that leaves at least this effective sample size."""
    for power in (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05):
        scaled = power * log_weights
        if effective_sample_size(scaled) >= min_ess:
            break
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def _extended(
    proposal: StudentMixture, broad: StudentMixture, points: np.ndarray, weights: np.ndarray
) -> StudentMixture:
    """The mixture with one more component where points of the broad one alone have a good part of the weight."""
    scale_tril = broad.scale_trils[0]
    logs, _ = proposal.joined(broad, 0.05).log_parts(points)
    missed = logs[:, -1] >= logs[:, :-1].max(axis=1)
    share = float(weights[missed].sum())
    if share < 0.02 or share > 0.98:
        return proposal
    part = weights[missed] / share
    centre = part @ points[missed]
    centred = points[missed] - centre
    effective = 1 / (part**2).sum()
    trust = effective / (effective + 2 * proposal.dim)
    scale = trust * (centred * part[:, None]).T @ centred + (1 - trust) * 0.1 * scale_tril @ scale_tril.T
    return proposal.joined(StudentMixture.single(centre, safe_cholesky(scale), DF), share)
