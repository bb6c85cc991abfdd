"""The programs of the paper: the paths they must have, and evidences from compiled densities against exact ones."""

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm, poisson

import anabranch as ab
from anabranch import programs

# log evidence of some paths of function induction, data of seed 0, by quadrature independent of this library:
# linear coefficients integrated in closed form, the others on grids refined until nothing changed by 1e-6.
INDUCTION_EVIDENCE = {
    "x": -342.3342765087657,
    "x2": -364.1434593255167,
    "sin(x)": -190.1876175127637,
    "x+x": -194.62454108983198,
    "sin(sin(x))": -184.5258876475966,
}
# The rules that lead to each of those shapes.
INDUCTION_RULES = {"x": [0], "x2": [1], "sin(x)": [2, 0], "x+x": [3, 0, 0], "sin(sin(x))": [2, 2, 0]}


def grid_evidence(path, size, limit=9.0):
    """log of the integral of the density over a box, by the midpoint rule in every coordinate."""
    edges = np.linspace(-limit, limit, size + 1)
    middle = (edges[1:] + edges[:-1]) / 2
    points = np.stack(np.meshgrid(*[middle] * path.dim, indexing="ij"), -1).reshape(-1, path.dim)
    return logsumexp(path.evaluate(points).log_density) + path.dim * np.log(edges[1] - edges[0])


@pytest.mark.parametrize("y", [2.0, -3.5])
def test_branching_has_two_paths_with_the_evidence_of_the_closed_form(y):
    division = ab.find_paths(programs.branching, y)
    assert sorted(path.addresses for path in division) == [("z0", "z1"), ("z0", "z2", "z3")]
    exact = {
        ("z0", "z1"): np.log(0.5) + norm.logpdf(y, -5, np.sqrt(8)),
        ("z0", "z2", "z3"): np.log(0.5) + norm.logpdf(y, 5, np.sqrt(12)),
    }
    # z0 only meets its guard and its own prior: the grid has an edge at zero, where the guard jumps.
    for path in division:
        assert abs(grid_evidence(path, size=120, limit=24.0) - exact[path.addresses]) < 1e-6


@pytest.fixture(scope="module")
def induction():
    return ab.find_paths(programs.function_induction, *programs.function_induction_data(), executions=2000)


def test_function_induction_has_exactly_26_paths(induction):
    division = induction
    assert len(division) == 26
    assert division.prior_mass_found == pytest.approx(1.0, abs=1e-12)
    assert division.python_runs == 26
    before = len(division)
    division.explore(20_000, seed=1)
    assert len(division) == before
    assert division.python_runs == 26


@pytest.mark.parametrize(
    ("shape", "size"), [("x", 400), ("x2", 400), ("sin(x)", 4000), ("x+x", 600), ("sin(sin(x))", 600)]
)
def test_function_induction_densities_integrate_to_the_exact_evidence(induction, shape, size):
    [path] = [p for p in induction if rules(p) == INDUCTION_RULES[shape]]
    assert abs(grid_evidence(path, size) - INDUCTION_EVIDENCE[shape]) < 1e-6


def rules(path):
    return [int(site.value) for site in path.sites if site.value is not None]


@pytest.mark.parametrize(("program", "rate"), [(programs.mixture, 9), (programs.misspecified_mixture, 90)])
def test_the_mixture_finds_every_number_of_clusters_that_its_prior_draws_contain(program, rate):
    division = ab.find_paths(program, programs.mixture_data(), executions=1000, seed=3)
    met = set()
    for executions in division.explore(1000, seed=3):
        met |= set(executions.values()["extra"].tolist())
        assert set(executions.values()["extra"].tolist()) == {executions.path.dim - 1}
    paths = {int(path.sites[0].value): path for path in division}
    assert set(paths) == met
    assert len(met) > 15
    for extra, path in paths.items():
        assert path.prior_probability == pytest.approx(poisson.pmf(extra, rate), rel=1e-10)
        assert path.description == f"extra = {extra}"
    assert division.prior_mass_found == pytest.approx(sum(poisson.pmf(extra, rate) for extra in met), rel=1e-10)


def test_the_mixture_density_is_the_one_written_by_hand():
    y = programs.mixture_data()
    division = ab.find_paths(programs.mixture, y, executions=300)
    path = next(p for p in division if p.dim == 5)
    draws = path.prior(20, seed=1).points
    mu = np.stack([path.values(draws)[f"mu{k}"] for k in range(5)], axis=1)
    likelihood = logsumexp(norm.logpdf(y[:, None], mu[:, None, :], 0.1) - np.log(5), axis=2).sum(axis=1)
    found = path.evaluate(draws)
    np.testing.assert_allclose(found.log_likelihood, likelihood, rtol=1e-12)
    np.testing.assert_allclose(found.log_prior - found.log_jacobian, poisson.logpmf(4, 9) - 5 * np.log(4), rtol=1e-12)
