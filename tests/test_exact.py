"""The references of `exact.py`, each checked against the density of the program's own paths.

A reference is a closed form over the whole program; the check is a quadrature over the coordinates of each path, which
knows nothing of conjugacy. Four kinds of rule do for most:

- quadratic: log γ is a quadratic in the coordinates, found by its differences, and its integral is that of a normal.
- product: a tensor product of rules for single coordinates; discrete coordinates are enumerated.
- separable: γ is a product over coordinates (given the discrete ones), so that lines through one point suffice.
- cells: step functions, a point in each cell of the places, quadratic in the levels.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, qmc

import anabranch as ab
from anabranch.divide import Path
from exact import EXACT, Exact, legendre, named

pytestmark = pytest.mark.one_in(8)

Nodes = tuple[np.ndarray, np.ndarray]
"""Where a rule for one coordinate looks, and the weight of each place."""


@dataclass(frozen=True)
class Rule:
    """Points of a path with weights, log of the mass each stands for: their sum is Z_k."""

    points: np.ndarray
    log_weights: np.ndarray


Integrate = Callable[[Path], Rule]


# Rules for one coordinate -----------------------------------------------------------------------------------------


def line(low: float, high: float, step: float) -> Nodes:
    """The trapezoid rule, which is accurate to all digits where a smooth density has ended on both sides."""
    nodes = np.arange(low, high, step)
    return nodes, np.full(len(nodes), step)


def panels(*edges: float, n: int = 24) -> Nodes:
    """Gauss and Legendre between the edges, at which the density may jump."""
    nodes, weights = zip(*(legendre(low, high, n) for low, high in itertools.pairwise(edges)), strict=True)
    return np.concatenate(nodes), np.concatenate(weights)


def each(values: Iterable[int]) -> Nodes:
    """All values of a discrete coordinate."""
    nodes = np.array(list(values), float)
    return nodes, np.ones(len(nodes))


# Rules for a path -------------------------------------------------------------------------------------------------


def log_density(path: Path, points: np.ndarray) -> np.ndarray:
    """Few points on the host; many compiled, in pieces."""
    if len(points) < 5000:
        return path.evaluate(points, compile=False).log_density
    pieces = np.array_split(points, len(points) // 50_000 + 1)
    return np.concatenate([path.evaluate(piece).log_density for piece in pieces])


def nodes_of(path: Path, by_site: Mapping[str, Nodes]) -> list[Nodes]:
    """The rule of every coordinate; a vector has the same for each of its own."""
    return [by_site[s.name] for s in path.sites if s.columns for _ in range(s.columns.stop - s.columns.start)]


def tensor(rules: list[Nodes]) -> tuple[np.ndarray, np.ndarray]:
    """The points of a product of rules, and their log weights."""
    size = int(np.prod([len(nodes) for nodes, _ in rules]))
    points = np.stack(np.meshgrid(*(nodes for nodes, _ in rules), indexing="ij"), axis=-1) if rules else np.zeros(0)
    weights = np.ones(1)
    for _, w in rules:
        weights = np.multiply.outer(weights, w)
    return points.reshape(size, len(rules)), np.log(weights.ravel())


def product(**by_site: Nodes) -> Integrate:
    """A tensor product of rules; a path without coordinates has one point."""

    def integrate(path: Path) -> Rule:
        points, log_weights = tensor(nodes_of(path, by_site))
        return Rule(points, log_weights + log_density(path, points))

    return integrate


def separable(**by_site: Nodes) -> Integrate:
    """∫ Π f_i = f(c) Π ∫ f(c with x_i) / f(c) dx_i; draws for expectations are those of a low-discrepancy sequence."""

    def integrate(path: Path) -> Rule:
        rules = nodes_of(path, by_site)
        combinations, _ = tensor([rule for rule, fixed in zip(rules, path.discrete, strict=True) if fixed])
        parts = [lines(path, rules, combination) for combination in combinations]
        return Rule(np.concatenate([p.points for p in parts]), np.concatenate([p.log_weights for p in parts]))

    def lines(path: Path, rules: list[Nodes], discrete: np.ndarray) -> Rule:
        # Two thirds along each rule: not far out in any of these programs, and beyond the guards of the rare path.
        centre = np.array([nodes[2 * len(nodes) // 3] for nodes, _ in rules])
        centre[path.discrete] = discrete
        uniform = qmc.Sobol(path.dim, seed=0).random(2048)
        points, log_centre = np.tile(centre, (2048, 1)), log_density(path, centre[None])[0]
        total = log_centre
        for column in np.flatnonzero(~path.discrete):
            nodes, weights = rules[column]
            along = np.tile(centre, (len(nodes), 1))
            along[:, column] = nodes
            terms = log_density(path, along) + np.log(weights)
            total += logsumexp(terms) - log_centre
            share = np.exp(terms - logsumexp(terms))
            points[:, column] = np.interp(uniform[:, column], np.cumsum(share) - share / 2, nodes)
        return Rule(points, np.full(2048, total - np.log(2048)))

    return integrate


def quadratic(path: Path) -> Rule:
    """The integral of a normal density, and points with its first three moments."""
    return quadratic_in(path, np.ones(path.dim, bool), np.zeros(path.dim))


def quadratic_in(path: Path, free: np.ndarray, start: np.ndarray) -> Rule:
    """The same over some of the coordinates, the others being held where they start."""
    columns, centre, scale = np.flatnonzero(free), start.copy(), np.ones(free.sum())
    d = len(columns)
    for _ in range(3):  # once would do but for rounding: a needle has to be seen from near
        gradient, hessian = differences(path, centre, columns, scale)
        covariance = -np.linalg.inv(hessian)
        centre[columns] += covariance @ gradient
        scale = np.sqrt(np.diag(covariance))
    log_peak = log_density(path, centre[None])[0]
    log_mass = log_peak + 0.5 * (d * np.log(2 * np.pi) + np.linalg.slogdet(covariance)[1])
    if d == 0:
        return Rule(centre[None], np.array([log_mass]))
    spread = np.sqrt(d) * np.linalg.cholesky(covariance).T
    points = shifted(centre, columns, np.concatenate([spread, -spread]))
    return Rule(points, np.full(2 * d, log_mass - np.log(2 * d)))


def shifted(centre: np.ndarray, columns: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Points beside another, in some of its coordinates."""
    points = np.tile(centre, (len(shifts), 1))
    points[:, columns] += shifts
    return points


def differences(
    path: Path, centre: np.ndarray, columns: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient and Hessian of a quadratic log density, exact up to rounding whatever the steps."""
    d = len(scale)
    steps = np.diag(scale)
    pairs = list(itertools.combinations(range(d), 2))
    both = np.array([steps[i] + steps[j] for i, j in pairs]).reshape(len(pairs), d)
    at = log_density(path, shifted(centre, columns, np.concatenate([np.zeros((1, d)), steps, -steps, both])))
    zero, up, down, across = at[0], at[1 : d + 1], at[d + 1 : 2 * d + 1], at[2 * d + 1 :]
    hessian = np.diag((up + down - 2 * zero) / scale**2)
    for (i, j), value in zip(pairs, across, strict=True):
        hessian[i, j] = hessian[j, i] = (value - up[i] - up[j] + zero) / (scale[i] * scale[j])
    return (up - down) / (2 * scale), hessian


def cells(path: Path) -> Rule:
    """A point in each cell of the places of a step function; a place has density one on the unit interval."""
    x = named("step_function").args[0]
    edges = np.array([0.0, *x, 1.0])
    places = [site.columns.start for site in path.sites if site.columns and site.name.startswith("place")]
    free = np.ones(path.dim, bool)
    free[places] = False
    parts = []
    for chosen in itertools.product(range(len(x) + 1), repeat=len(places)):
        middle = np.array([(edges[c] + edges[c + 1]) / 2 for c in chosen])
        start = np.zeros(path.dim)
        start[places] = np.log(middle / (1 - middle))
        rule = quadratic_in(path, free, start)
        # From the density of the coordinate, logit place, to that of the place; then times the width of the cell.
        factor = np.sum(np.log(np.diff(edges)[list(chosen)]) - np.log(middle * (1 - middle)))
        parts.append(Rule(rule.points, rule.log_weights + factor))
    return Rule(np.concatenate([p.points for p in parts]), np.concatenate([p.log_weights for p in parts]))


LOG_RATE = line(-16.0, 6.0, 0.05)
MEANS = line(-14.0, 14.0, 0.38)
RULES: dict[str, Integrate] = {
    "polynomial": quadratic,
    "wide_regression": quadratic,
    "variable_selection": quadratic,
    "heavy_tails": product(location=line(-40.0, 40.0, 0.02)),
    "needle": quadratic,
    "leaves_jax": quadratic,
    "banana": product(x=line(-8.005, 8.0, 0.01), height=line(-30.0, 30.0, 0.1)),
    "coin": product(bias=line(-40.0, 40.0, 0.05)),
    "counts": separable(rate=LOG_RATE, rates=LOG_RATE),
    "categories": separable(p=line(-40.0, 40.0, 0.05)),
    "survival": separable(rate=LOG_RATE, rates=LOG_RATE),
    "change_point": separable(early=LOG_RATE, late=LOG_RATE, tau=each(range(1, 10))),
    "change_point_split": separable(early=LOG_RATE, late=LOG_RATE),
    "geometric_count": quadratic,
    "compound_sum": quadratic,
    "figure_two": product(
        z0=panels(-18.0, 0.0, 18.0), z1=line(-25.0, 25.0, 0.5), z2=line(-20.0, 30.0, 0.5), z3=line(-20.0, 30.0, 0.5)
    ),
    "jumpy": product(x=panels(*range(-24, 25), n=8)),
    "step_function": cells,
    "alarm": product(),
    "sprinkler": product(cloudy=each((0, 1)), sprinkled=each((0, 1)), rain=each((0, 1))),
    "hmm_variables": product(**{f"state{t}": each((0, 1)) for t in range(5)}),
    "hmm_paths": product(),
    "three_components": product(means=MEANS),
    "unknown_components": product(mean0=MEANS, mean1=MEANS, mean2=MEANS),
}


# Answers by the rules ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masses:
    """What the rules find: draws of each path by name, each with the log of its mass."""

    draws: list[tuple[dict[str, np.ndarray], np.ndarray]]

    @property
    def log_total(self) -> float:
        return float(logsumexp(np.concatenate([log_weights for _, log_weights in self.draws])))

    def of_values(self, name: str, log_evidence: float) -> dict[Any, float]:
        """The mass on each value of a discrete quantity, as a share of the evidence."""
        out: dict[Any, float] = {}
        for draw, log_weights in self.draws:
            for value in np.unique(draw[name]):
                mass = np.exp(logsumexp(log_weights[draw[name] == value]) - log_evidence)
                out[value.item()] = out.get(value.item(), 0.0) + float(mass)
        return out

    def mean(self, function: Callable[[Mapping[str, Any]], Any]) -> float:
        total = self.log_total
        return float(sum(np.sum(np.exp(log_weights - total) * function(draw)) for draw, log_weights in self.draws))


def masses(paths: Iterable[Path], integrate: Integrate) -> Masses:
    """The rule applied to each of the paths."""
    return Masses([each for path in paths for each in drawn(path, integrate(path))])


def drawn(path: Path, rule: Rule) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """The points that matter with everything that has a name and is one number."""
    kept = rule.log_weights > rule.log_weights.max() - 50
    log_weights = rule.log_weights[kept]
    for outcome in path.outcomes(rule.points[kept]):
        size = len(outcome.index)
        scalars = {name: np.asarray(value) for name, value in (outcome.values | outcome.deterministics).items()}
        yield (
            {name: np.broadcast_to(v, size) for name, v in scalars.items() if v.shape in ((), (size,))},
            log_weights[outcome.index],
        )


def agree(case: Exact, found: Masses, mean_tolerance: float = 1e-6, skip: Iterable[str] = ()) -> None:
    """The evidence, all probabilities and all expectations of a reference are what the rules find."""
    assert found.log_total == pytest.approx(case.log_evidence, abs=1e-6)
    for name in case.probabilities.keys() - set(skip):
        shares = found.of_values(name, case.log_evidence)
        for value in shares.keys() | case.probabilities[name].keys():
            expected = case.probabilities[name].get(value, 0.0)
            assert shares.get(value, 0.0) == pytest.approx(expected, rel=1e-6, abs=1e-9), f"{name} = {value}"
    for name, (function, expected) in case.expectations.items():
        assert found.mean(function) == pytest.approx(expected, rel=mean_tolerance, abs=mean_tolerance), name


# The tests --------------------------------------------------------------------------------------------------------

LOOPS = {"geometric_count", "compound_sum"}
RESTAURANTS = {"chinese_restaurant", "chinese_restaurant_of_six", "chinese_restaurant_in_clumps"}
"""Programs with more paths than can be integrated."""
WHOLE = [case for case in EXACT if case.name not in RESTAURANTS | {"barrier", "rare_guard", "hidden_guard"}]


def identify(case: Exact) -> str:
    return case.name


def test_names_are_distinct():
    assert len({case.name for case in EXACT}) == len(EXACT) >= 18


@pytest.mark.parametrize("case", EXACT, ids=identify)
def test_probabilities_are_probabilities(case):
    assert np.isfinite(case.log_evidence)
    assert case.probabilities
    for name, of_values in case.probabilities.items():
        assert sum(of_values.values()) == pytest.approx(1.0, abs=1e-9), name
        assert min(of_values.values()) >= 0
        assert max(of_values.values()) < 0.98, "the answer is nearly certain: a method could guess it"


@pytest.mark.parametrize("case", EXACT, ids=identify)
def test_paths_are_found(case):
    division = ab.find_paths(case.program, *case.args, executions=200)
    assert len(division) >= 1
    assert division.prior_mass_found > 0
    assert any(path.interpreted for path in division) == (case.name == "leaves_jax")
    rows = [
        {**outcome.values, **outcome.deterministics}
        for path in division.paths[:3]
        for outcome in path.outcomes(path.prior(5, seed=1).points)
    ]
    for row in rows:
        assert case.probabilities.keys() | case.expectations.keys() <= row.keys()


@pytest.mark.parametrize("case", WHOLE, ids=identify)
def test_reference_is_the_integral_over_all_paths(case):
    executions = 20_000 if case.name in LOOPS else case.executions  # so that what is not met is below the tolerance
    paths = ab.find_paths(case.program, *case.args, executions=executions).paths
    # The means of a separable rule come from a low-discrepancy sequence; the largest of three means cuts its grid.
    loose = case.name in ("categories", "counts", "survival", "change_point", "change_point_split")
    skip = {"largest"} if case.name == "three_components" else ()
    agree(case, masses(paths, RULES[case.name]), 2e-3 if loose else 1e-6, skip)


def test_three_components_are_exchangeable():
    case = named("three_components")
    (path,) = ab.find_paths(case.program, *case.args, executions=10).paths
    points = path.prior(5, seed=2).points
    densities = [log_density(path, points[:, order]) for order in itertools.permutations(range(3))]
    np.testing.assert_allclose(densities, np.tile(densities[0], (6, 1)), rtol=1e-12)


# Restaurants: with four guests all of it can be integrated, with more the paths that matter most.


def test_restaurant_with_four_guests():
    case = named("chinese_restaurant")
    small = Exact("small", case.program, (np.array([-1.2, 0.9, 0.1, 1.8]),), case.parts)
    paths = ab.find_paths(small.program, *small.args).paths
    assert len(paths) == 15
    agree(small, masses(paths, quadratic))


@pytest.mark.parametrize("name", sorted(RESTAURANTS))
def test_restaurant_by_its_paths(name):
    case = named(name)
    guests, probabilities = len(case.args[0]), case.probabilities["partition"]
    likely = sorted(probabilities, key=lambda partition: -probabilities[partition])[:10]
    tables = np.array([list(f"{partition:0{guests}d}") for partition in likely]).astype(int)
    division = ab.find_paths(case.program, *case.args, executions=10)
    arrivals = division.route({f"table{i}": tables[:, i] for i in range(guests)})
    shares = masses([arrival.path for arrival in arrivals], quadratic).of_values("partition", case.log_evidence)
    assert shares.keys() == set(likely)
    for partition, share in shares.items():
        assert share == pytest.approx(probabilities[partition], rel=1e-7)


def test_partitions_are_all_there_and_spread():
    for name, count in (("chinese_restaurant_of_six", 203), ("chinese_restaurant", 4140)):  # the numbers of Bell
        probabilities = named(name).probabilities["partition"]
        assert len(probabilities) == count
        assert 0.03 < max(probabilities.values()) < 0.3


# A walk: the places of its positions are where the guards are simple.


def walked(path: Path) -> Rule:
    """Rules over the positions, all below the barrier but the last; steps are their differences."""
    below, above = legendre(-12.0, 1.0, 40), legendre(1.0, 12.0, 40)
    positions, log_weights = tensor([below] * (path.dim - 1) + [above])
    points = np.diff(positions, axis=1, prepend=0.0)
    return Rule(points, log_weights + log_density(path, points))


def test_barrier_by_its_paths():
    case = named("barrier")
    paths = ab.find_paths(case.program, *case.args).paths
    shares = masses([path for path in paths if path.dim <= 3], walked).of_values("steps", case.log_evidence)
    assert len(paths) == 5
    for steps in (1, 2, 3):
        assert shares[steps] == pytest.approx(case.probabilities["steps"][steps], rel=1e-7)


def test_barrier_by_orthants():
    """Given y the positions are normal, and a path is a box of them."""
    case = named("barrier")
    (y,) = case.args
    for steps in range(1, 6):
        times = np.arange(1, steps + 1)
        covariance, reach = np.minimum.outer(times, times).astype(float), steps + 0.25
        mean = 0.2 * times + times / reach * (y - 0.2 * steps)
        covariance -= np.outer(times, times) / reach
        low, high = np.full(steps, -np.inf), np.ones(steps)
        low[-1], high[-1] = (1.0, np.inf) if steps < 5 else (-np.inf, np.inf)
        rule: dict[str, Any] = {"maxpts": 400_000, "abseps": 1e-8, "lower_limit": low}
        if "rng" in signature(multivariate_normal.cdf).parameters:  # older versions of SciPy have a seed of their own
            rule["rng"] = np.random.default_rng(0)
        share = multivariate_normal.cdf(high, mean, covariance, **rule) * np.exp(
            -0.5 * (y - 0.2 * steps) ** 2 / reach - 0.5 * np.log(2 * np.pi * reach) - case.log_evidence
        )
        assert share == pytest.approx(case.probabilities["steps"][steps], abs=2e-6)


# Rare guards: with two sources all of it can be integrated, with more the rare path.


def test_rare_guard_with_two_sources():
    case = named("rare_guard")
    small = Exact("small", case.program, (np.array([1.1, 2.3]),), case.parts)
    paths = ab.find_paths(small.program, *small.args).paths
    assert len(paths) == 2
    agree(small, masses(paths, product(x=panels(-9.0, 1.0, 9.0, n=32), level=line(-8.0, 9.0, 0.15))))


@pytest.mark.parametrize("name", ["rare_guard", "hidden_guard"])
def test_rare_guard_by_its_path(name):
    case = named(name)
    sources = len(case.args[0])
    division = ab.find_paths(case.program, *case.args, executions=100)
    (arrival,) = division.route({"x": np.full((1, sources), 1.5)})
    rule = separable(x=panels(-9.0, 1.0, 9.0, n=64))
    rare = masses([arrival.path], rule).of_values("rare", case.log_evidence)
    assert rare[1] == pytest.approx(case.probabilities["rare"][1], rel=1e-7)
    assert case.probabilities["rare"][1] > 0.1
