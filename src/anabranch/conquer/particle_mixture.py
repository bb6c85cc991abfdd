"""A mixture for importance sampling, fitted to the particles of a tempered population."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from anabranch.conquer.mixture_fit import fit_to_points
from anabranch.conquer.mode_mixture import ModeMixtureState
from anabranch.conquer.population import broad_as_prior, log_prior_mass
from anabranch.conquer.second_opinion import drawn_particles, may_be_fitted
from anabranch.conquer.smc import SMCState
from anabranch.conquer.symmetry import find_symmetries, fold
from anabranch.conquer.target import Target

__all__ = ["mixture_of_particles"]


def mixture_of_particles(target: Target, population: SMCState, rng: Generator) -> ModeMixtureState:
    """The state from which importance sampling starts, fitted to half of the families of a population."""
    points, families = drawn_particles(population, rng)
    fitting = may_be_fitted(families)
    if fitting.sum() < 4 * target.dim:  # those of the heaviest sweeps descend from few draws
        fitting[:] = True
    points = points[rng.permutation(np.flatnonzero(fitting))[:2_000]]
    points = fold(points, symmetries := find_symmetries(target, points))
    wide, mass = broad_as_prior(target, points, rng), log_prior_mass(target, rng)
    return ModeMixtureState(fit_to_points(points, rng), wide, tuple(symmetries), mass, is_of_points=True)
