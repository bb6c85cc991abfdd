"""A Laplace estimate of a path, on the host: Newton's method from the best of a few prior draws, without gradients.

Most paths of a large program have no mass: a Laplace estimate takes a few hundred evaluations and no compilation. The
curvature at the modes gives a mixture for importance sampling (`ModeMixture`), which corrects its errors.
"""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from anabranch.conquer.ascent import distinct, widths
from anabranch.conquer.mixture_fit import fit_to_modes
from anabranch.conquer.mode_mixture import ModeMixture, ModeMixtureState
from anabranch.conquer.newton import newton, newton_cost
from anabranch.conquer.population import broad, log_prior_mass, overdispersed_points
from anabranch.conquer.symmetry import find_symmetries, fold
from anabranch.conquer.target import Target
from anabranch.divide import Path, is_prior_alone, quadratic_columns
from anabranch.settings import check, whole

__all__ = ["Laplace", "laplace_cost", "laplace_start"]

_POPULATION, _STARTS, _ROUNDS = 32, 2, 2
"""Prior draws, those of them from which Newton's method starts, and how often it goes on from the better end, at most,
where it has not converged: with two more rounds it does nearly always, without them from half of the starts."""


_LEAST_DRAWS = 100
"""Evaluations that are left for importance draws."""


@dataclass(frozen=True)
class Laplace:
    """When `Auto` makes do with a Laplace estimate.

    Args:
        below: evaluations of the first visit below which it is made; above, modes are found by compiled gradients.
        max_dim: dimensions up to which it is made; its cost grows with their square.
        draws: importance draws at the modes that it finds.
        attempts: at a path, if the first finds no mode, before more is spent.
        max_spent: evaluations of all visits up to which it suffices.
    """

    below: int = 2_500
    max_dim: int = 8
    draws: int = 200
    attempts: int = 2
    max_spent: int = 10_000

    def __post_init__(self) -> None:
        check(self, below=whole(), max_dim=whole(), draws=whole(1), attempts=whole(), max_spent=whole())

    def can_scout(self, path: Path) -> bool:
        """Whether a few hundred evaluations show the modes of a path, which are neither integrated nor summed over."""
        is_climbed = not path.interpreted and not path.discrete.any() and path.has_gradient
        return is_climbed and not is_prior_alone(path) and not quadratic_columns(path).size

    def fits(self, target: Target, left: int) -> bool:
        """Whether the evaluations left suffice for an estimate of this target."""
        return target.dim <= self.max_dim and laplace_cost(target.dim) < max(0.75 * left, 2 * self.draws)


def laplace_cost(dim: int) -> int:
    """Evaluations of Newton's method, before the first importance draw."""
    return _POPULATION + _STARTS * newton_cost(dim)


def laplace_start(target: Target, rng: Generator, strategy: ModeMixture) -> ModeMixtureState:
    """The state from which importance sampling starts, at the modes that Newton's method finds."""
    population = overdispersed_points(target, _POPULATION, rng)
    log_density = target.evaluate(population).log_density
    inside = np.isfinite(log_density)
    if not inside.any():
        return ModeMixtureState(failed="no point of positive density was found to start from")
    population, log_density = population[inside], log_density[inside]
    wide = broad(population)
    scales = wide.scales
    modes, converged = newton(target, population[distinct(population, log_density, scales, _STARTS)], scales)
    for _ in range(_ROUNDS):
        if converged or target.left < newton_cost(target.dim) + _LEAST_DRAWS:
            break
        modes, converged = newton(target, modes.points[[modes.log_density.argmax()]], scales)
    if not converged:
        return ModeMixtureState(failed="Newton's method did not converge to a mode")
    symmetries = find_symmetries(target, population)
    if symmetries:
        symmetries = [each.with_best_key(modes.points, widths(modes.precision, scales)) for each in symmetries]
        modes, _ = newton(target, fold(modes.points, symmetries), scales)
    mixture = fit_to_modes(modes, strategy.depth)
    return ModeMixtureState(mixture, wide, tuple(symmetries), log_prior_mass(target, rng))
