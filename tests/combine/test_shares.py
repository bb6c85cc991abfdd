"""The probabilities of the values of a function, all at once, against expectations of their indicators, one by one."""

from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.stats import norm

import anabranch as ab
import wide
from anabranch.combine import Posterior
from anabranch.combine.blocks import blocks_of
from anabranch.combine.parts import MIN_DRAWS
from anabranch.errors import NotDiscrete

COUNT = 1_500


def curves(y):
    """Some paths with few draws, some with many, and one without real variables."""
    k = int(ab.sample("k", dist.Categorical(np.array([0.3, 0.3, 0.4]))))
    x = sum(ab.sample(f"x{i}", dist.StudentT(3.0, 0.0, 1.0)) for i in range(k))
    ab.observe("y", dist.Normal(x, 1.0), y)


def count(y):
    """One path with a discrete variable that has thousands of values, each as probable as the data say."""
    k = ab.sample("k", dist.Categorical(np.full(COUNT, 1 / COUNT)))
    ab.observe("y", dist.Normal(k, COUNT / 4), y)


def sides(draw):
    return tuple("above" if draw[f"x{i}"] > 0.5 else "below" for i in range(2) if f"x{i}" in draw)


def agrees_with_expectations(posterior, f):
    for value, p in (found := posterior.probability(f)).items():
        mean, error = posterior.expectation(lambda draw, value=value: float(f(draw) == value))
        assert p == pytest.approx(mean, abs=1e-12)
        assert found.errors[value] == pytest.approx(error, rel=1e-6, abs=1e-9)
    assert sum(found.values()) == pytest.approx(1.0)
    return found


@pytest.fixture(scope="module")
def posterior():
    return ab.infer(curves, 1.5, budget=6_000, tolerance=None)


def test_each_value_has_the_mean_and_the_error_of_its_indicator(posterior):
    assert blocks_of(posterior.solutions) is None
    assert len(agrees_with_expectations(posterior, sides)) == 7


def test_the_same_for_paths_with_few_draws():
    few = ab.infer(curves, 1.5, budget=300, tolerance=None)
    assert min(solution.estimate.ess for solution in few.solutions) < MIN_DRAWS
    agrees_with_expectations(few, sides)


def test_the_same_for_draws_in_independent_blocks():
    posterior = ab.infer(curves, 1.5, engine=ab.engines.SMC(particles=200), budget=2_000)
    assert blocks_of(posterior.solutions) is not None
    agrees_with_expectations(posterior, sides)


def test_a_function_may_have_thousands_of_texts():
    """As the structures of a wide program have."""
    posterior = ab.infer(count, COUNT / 3)
    found = posterior.probability(lambda draw: f"number {int(draw['k'])}")
    exact = norm.pdf(np.arange(COUNT), COUNT / 3, COUNT / 4)
    assert len(found) == COUNT
    assert [found[f"number {k}"] for k in range(COUNT)] == pytest.approx(exact / exact.sum(), rel=1e-9)


def test_thousands_of_reals_are_refused(posterior):
    with pytest.raises(NotDiscrete, match="different values"):
        posterior.probability(lambda draw: ("pair", float(draw.get("x0", 0.0))))


def test_what_heavy_paths_agree_on_is_doubted_where_the_mass_is_elsewhere():
    """Of what was found one path has all the mass, and what was not found may have more."""
    found = wide.posterior()
    first = max(found.solutions, key=lambda solution: solution.path.constants["z0"])
    heavy = replace(first, estimate=replace(first.estimate, log_evidence=first.log_evidence + 900.0))
    others = [each for each in found.solutions if each is not first]
    run = replace(found.run, log_possible_not_found=heavy.log_evidence + 20.0)
    posterior = Posterior(found.program, [heavy, *others], run)
    assert posterior.evidence.doubtful_share > 0.99
    of_function = posterior.probability(lambda draw: str(int(draw["z0"])))
    mean, error = posterior.expectation(lambda draw: float(draw["z0"]))
    assert mean == pytest.approx(1.0)
    light = np.mean([each.path.constants["z0"] == 0 for each in others])
    for each in (error, of_function.errors["1"], of_function.errors["0"], posterior.probability("z0").errors[0]):
        assert 0.95 * np.sqrt(light) < each <= 1.0
    assert posterior.probability("z0").errors[1] > 0.9 * np.sqrt(light)
