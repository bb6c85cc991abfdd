"""The densities of benchmarks/densities.py: their references are right, and their programs are what they say.

A reference takes the arguments of its program, so that it can be compared with draws from the prior on data for which
the prior is a good proposal; on the data of the benchmark, a finer quadrature must give the same.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp

import anabranch as ab

pytestmark = pytest.mark.one_in(6)


def _load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent.parent / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up, and so do the other benchmarks
    spec.loader.exec_module(module)
    return module


densities = _load("densities")
BY_NAME = densities.BY_NAME
SHORT = (np.arange(5) + 0.5) / 5, np.array([2, 4, 3, 6, 9])
LINE = np.linspace(0.0, 1.0, 4)

EASY = {
    "squares": (densities.squares, np.array([1.0, 0.6]), 0.3),
    "magnitudes": (densities.magnitudes, np.array([1.0, 0.6]), 0.3),
    "squares_and_sum": (densities.squares_and_sum, np.array([1.0, 0.6, 1.2]), 0.3, 1.0, 0.7),
    "shell": (densities.shell, 3, 4.0, 0.5),
    "ring": (densities.ring, 4.0, 0.5),
    "banana": (densities.banana, 2, 0.8),
    "rosenbrock": (densities.rosenbrock, 3, 0.5),
    "egg_box": (densities.egg_box,),
    "bumps": (densities.bumps, 2, 1.0, (densities.Bump(0.3, 0.5, 0.5), densities.Bump(-0.2, -1.0, 0.3)), 0.1),
    "mixture of two": (densities.mixture, [-1.0, 1.5], [1.0, 2.0], [0.3, 0.7], np.array([-1.0, 0.5, 2.0])),
    "mixture of three": (densities.mixture, [0.0, 1.0, 2.0], [1.0, 1.5, 1.2], [0.2, 0.3, 0.5], np.array([0.0, 3.0])),
    "nested": (densities.nested, 4, 0.02, 0.01),
    "cauchy": (densities.cauchy, 3, 2.0),
    "cauchy_sum": (densities.cauchy_sum, 3, 4.0),
    "student": (densities.student, np.array([1.0, 2.0, 5.0]), 3.0, np.array([-4.0, 2.0, 6.0])),
    "funnel": (densities.funnel, 9),
    "funnel_data": (densities.funnel_data, np.array([0.3, -2.0, 1.0])),
    "process": (densities.gaussian_process, LINE, np.array([0.1, 0.9, 0.5, -0.3]), None),
    "process of known length": (densities.gaussian_process, LINE, np.array([0.1, 0.9, 0.5, -0.3]), 0.3),
    "centred": (densities.centred, np.array([1.0, 2.0, 0.2]), np.array([0.5, 1.0, 0.7]), "normal"),
    "noncentred": (densities.noncentred, *densities.SCHOOLS, "cauchy"),
    "regression": (densities.regression, *densities.designed(2, 3)),
    "ordered": (densities.ordered, np.array([-0.5, 0.3, 1.5]), 0.8),
    "sorted_by_factor": (densities.sorted_by_factor, np.array([0.3, 0.1, 0.5]), 1.0),
    "dirichlet": (densities.dirichlet, np.array([0.7, 1.0, 2.0]), np.array([3, 1, 0])),
    "lkj": (densities.lkj, 3, 1.5),
    "lkj of four": (densities.lkj, 4, 2.5),
    "wishart": (densities.wishart, 4.0, np.array([[0.5, -0.3], [1.0, 0.2]])),
    "conjugates": (densities.conjugates, np.array([3]), np.array([2.0]), 0, 3),
    "wide_rates": (densities.wide_rates, np.array([0, 3])),
    "tiny_shapes": (densities.tiny_shapes, np.array([0, 3])),
    "noisy_count": (densities.noisy_count, 11.3, 0.4),
    "unknown_trials": (densities.unknown_trials, np.array([7, 9, 12])),
    "assignments": (densities.assignments, np.array([-1.0, 0.5, 2.0])),
    "one change point": (densities.change_points, 1, *SHORT),
    "two change points": (densities.change_points, 2, *SHORT),
    "three change points": (densities.change_points, 3, *SHORT),
    "box": (densities.box, np.array([0.2, 0.3]), np.array([0.5, 0.9]), -1.0),
    "signs_and_regression": (densities.signs_and_regression, np.array([1.0]), 0.3, *densities.designed(2, 3)),
    "any_change_points": (densities.any_change_points, *SHORT),
    "any_shell": (densities.any_shell, (3, 5), 4.0, 0.5),
    "guarded": (densities.guarded, 1.3),
}
REFERENCES = {density.program: density.reference for density in densities.DENSITIES}


def by_prior(program, args, n):
    """log Z by draws from the prior of each path, and its standard error."""
    estimates, errors = [], []
    for i, path in enumerate(ab.find_paths(program, *args).paths):
        drawn = path.prior(n, seed=i)
        assert np.ptp(drawn.log_weights) == 0
        log_weights = path.evaluate(drawn.points).log_likelihood
        top = log_weights.max()
        weights = np.exp(log_weights - top)
        estimates.append(drawn.log_probability + top + np.log(weights.mean()))
        errors.append(weights.std() / np.sqrt(n) / weights.mean())
    total = logsumexp(estimates)
    return total, np.sqrt(np.sum((np.exp(np.array(estimates) - total) * errors) ** 2))


def test_there_are_many_densities_with_names_of_their_own():
    assert len(BY_NAME) == len(densities.DENSITIES) >= 42
    assert {program for program, *_ in EASY.values()} == set(REFERENCES)


def marked(names):
    """The names, those of Wishart distributions as slow: their Bartlett decomposition takes long to compile."""
    return [pytest.param(name, marks=pytest.mark.slow) if name.startswith("wishart") else name for name in names]


@pytest.mark.parametrize("name", marked(EASY))
def test_a_reference_agrees_with_draws_from_the_prior(name):
    program, *args = EASY[name]
    estimate, sd = by_prior(program, args, 300_000 if name == "egg_box" else 100_000)
    assert sd < 0.06
    assert abs(estimate - REFERENCES[program](*args)) < 4 * sd + 1e-9


@pytest.mark.parametrize("name", marked(BY_NAME))
def test_a_program_divides_into_its_paths(name):
    density = BY_NAME[name]
    division = ab.find_paths(density.program, *density.args)
    assert len(division.paths) == density.paths
    assert max(path.dim for path in division.paths) == density.dim
    for path in division.paths:
        points = path.prior(30_000 if name.endswith("-hard") else 200, seed=0).points
        assert np.isfinite(path.evaluate(points, compile=False).log_density).any()
    assert np.isfinite(density.log_evidence)


@pytest.mark.slow
def test_finer_quadrature_gives_the_same(monkeypatch):
    truths = {name: density.log_evidence for name, density in BY_NAME.items()}
    coarse = densities.rule
    monkeypatch.setattr(densities, "rule", lambda *breaks, panels=200: coarse(*breaks, panels=int(1.5 * panels)))
    for name, density in BY_NAME.items():
        assert density.reference(*density.args) == pytest.approx(truths[name], abs=1e-7, rel=0), name


@pytest.mark.parametrize(
    ("name", "step"),
    [("banana-10-chain", 0.013), ("symmetric-2", 0.05), ("symmetric-2-nearly", 0.05), ("symmetric-3", 0.23),
     ("ordered-5", 0.0013), ("ordered-4-factor", 0.0005)],
)  # fmt: skip
def test_a_finer_grid_gives_the_same(name, step):
    density = BY_NAME[name]
    assert density.reference(*density.args, step=step) == pytest.approx(density.log_evidence, abs=1e-6, rel=0)
