"""The loop: when it stops, what it spends its evaluations on, and what it finds."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch.allocate import UCB, SuccessiveHalving, Uniform
from anabranch.conquer import HMC, NUTS, SMC, Auto, Elimination, Variational
from anabranch.limits import Limits
from exact import named
from helpers import disguised, use_false_clock

pytestmark = pytest.mark.one_in(3)

FIGURE = named("figure_two")
CORE = ("divide", "conquer", "allocate", "search", "engines")


def figure(**settings: Any) -> Any:
    return ab.infer(FIGURE.program, *FIGURE.args, **settings)


# Limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1_000, 5_000, 30_000])
@pytest.mark.parametrize("tolerance", [None, 1e-9])
def test_the_budget_is_kept_to(budget, tolerance):
    posterior = figure(budget=budget, tolerance=tolerance)
    assert "budget" in posterior.run.stopped
    assert f"{budget:,}" in posterior.run.stopped
    assert 0.97 * budget <= posterior.run.evaluations <= 1.02 * budget


def test_a_budget_of_one_still_gives_an_answer():
    posterior = figure(budget=1)
    assert "budget" in posterior.run.stopped
    assert np.isfinite(posterior.log_evidence)


def test_the_budget_is_kept_to_where_there_are_many_paths():
    def program():
        total = 0.0
        for i in range(7):
            if ab.sample(f"z{i}", dist.Bernoulli(0.5)):
                total = total + disguised(ab.sample(f"x{i}", dist.Normal(0.0, 1.0)))
        ab.observe("y", dist.Normal(total, 1.0), 1.0)

    posterior = ab.infer(program, budget=20_000, tolerance=None)
    assert "budget" in posterior.run.stopped
    assert posterior.run.evaluations <= 20_400


def test_time_is_kept_to(monkeypatch):
    use_false_clock(monkeypatch, step=0.001)
    posterior = figure(seconds=3, tolerance=None, budget=10**9)
    assert posterior.run.stopped == "The 3 seconds are over."
    assert posterior.run.seconds >= 3
    assert posterior.run.evaluations < 10**9
    assert np.isfinite(posterior.log_evidence)


@pytest.mark.parametrize("step", [0.5, 0.02, 0.007, 0.005, 0.003, 0.0025, 0.002, 0.0015, 0.0012, 0.001, 0.0005])
def test_whenever_the_time_ends_there_is_an_answer_with_its_error_or_a_clear_end(step, monkeypatch):
    use_false_clock(monkeypatch, step)
    try:
        posterior = figure(seconds=1, tolerance=None)
    except ab.errors.LimitTooSmall:
        assert step >= 0.002
        return
    assert abs(posterior.log_evidence - FIGURE.log_evidence) < 4 * posterior.log_evidence_sd < np.inf


@pytest.mark.parametrize("tolerance", [0.05, 0.01])
def test_a_tolerance_is_met_and_not_by_far(tolerance):
    posterior = figure(tolerance=tolerance, budget=10**7)
    assert posterior.run.stopped == f"The errors of log Z and of the path weights are below {tolerance:g}."
    assert posterior.log_evidence_sd <= tolerance
    assert posterior.paths["weight_sd"].max() <= tolerance
    assert posterior.run.evaluations < 200_000


def test_what_is_solved_exactly_needs_no_more():
    case = named("alarm")
    posterior = ab.infer(case.program, *case.args, tolerance=None)
    assert "exactly" in posterior.run.stopped
    assert posterior.log_evidence_sd == pytest.approx(0.0, abs=1e-12)
    assert posterior.run.evaluations <= 10


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": 0}, "budget must be"),
        ({"budget": 2.5}, "budget must be"),
        ({"budget": True}, "budget must be"),
        ({"budget": float("inf")}, "budget must be"),
        ({"budget": "many"}, "budget must be"),
        ({"seconds": -1}, "seconds must be a positive number"),
        ({"seconds": float("nan")}, "seconds must be a positive number"),
        ({"tolerance": 0}, "tolerance must be a positive number"),
        ({"tolerance": float("nan")}, "tolerance must be a positive number"),
        ({"workers": 0}, "workers must be a whole number"),
        ({"max_sites": 0}, "max_sites must be a whole number, at least 1"),
        ({"seed": 1.5}, "seed must be a whole number"),
        ({"seed": True}, "seed must be a whole number"),
        ({"seed": -1}, "seed"),
        ({"engine": "DCC"}, "engine"),
        ({"engine": ab.DCC}, "engine"),
        ({"engine": 3}, "engine"),
    ],
    ids=str,
)
def test_wrong_arguments_are_named(wrong, message):
    with pytest.raises((ValueError, TypeError), match=message):
        figure(**wrong)


def test_a_misspelt_setting_is_recognised():
    with pytest.raises(TypeError, match=r"figure_two cannot be called with .*Did you mean tolerance, of infer\?"):
        figure(tolernace=0.1)


@pytest.mark.parametrize("program", [3, None, "coin"])
def test_a_program_is_a_function(program):
    with pytest.raises(TypeError, match="program must be a function"):
        ab.infer(program)


@pytest.mark.parametrize(
    "name",
    ["executions", "max_executions", "allocations", "evaluations_per_visit", "proposals"],
)
def test_settings_are_checked(name):
    with pytest.raises(ValueError, match=name):
        ab.DCC(**{name: -1})


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"strategy": "SMC"},
            r"strategy must be an object with start, advance, estimate, such as .*SMC\(\); got 'SMC'",
        ),
        ({"strategy": SMC}, r"strategy must be .*; got the class SMC: write SMC\(\)"),
        ({"strategy": UCB()}, r"strategy must be .*; got UCB\("),
        ({"allocator": "ucb"}, r"allocator must be an object with choose, such as .*UCB\(\); got 'ucb'"),
        ({"allocator": UCB}, r"allocator must be .*; got the class UCB: write UCB\(\)"),
    ],
    ids=str,
)
def test_a_strategy_and_an_allocator_are_objects(wrong, message):
    with pytest.raises(TypeError, match=message):
        ab.DCC(**wrong)


def test_limits_say_which_was_reached():
    assert Limits(budget=10).exceeded(9) == ""
    assert "10 evaluations" in Limits(budget=10).exceeded(10)
    assert "seconds" in Limits(seconds=1e-9).exceeded(0)


# What it spends and finds ---------------------------------------------------------------------------------------------


def test_every_path_is_visited():
    case = named("unknown_components")
    posterior = ab.infer(case.program, *case.args, tolerance=0.05)
    assert (posterior.paths["visits"] >= 1).all()
    assert posterior.run.prior_mass_found == pytest.approx(1.0)
    assert posterior.warnings == []


def lopsided():
    """One path has the mass, ten have e^-500 of it."""
    k = int(ab.sample("k", dist.DiscreteUniform(0, 10)))
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    ab.observe("y", dist.Normal(disguised(x) + 40.0 * k, 1.0), 0.5)


def test_negligible_paths_get_little():
    posterior = ab.infer(lopsided, tolerance=0.002, budget=200_000)
    heavy, *others = posterior.solutions
    assert posterior.paths["weight"][0] == pytest.approx(1.0)
    assert heavy.visits > 2
    assert {each.visits for each in others} == {2}  # a scout, and the first visit
    assert heavy.estimate.evaluations > 3 * max(each.estimate.evaluations for each in others)
    assert posterior.log_evidence == pytest.approx(-np.log(11) - 0.5 * np.log(4 * np.pi) - 0.0625, abs=0.01)


def test_paths_that_the_prior_does_not_reach_are_found():
    """The guard holds for one execution in ten thousand: 100 executions from the prior do not meet it."""
    case = named("hidden_guard")
    posterior = ab.infer(case.program, *case.args, engine=ab.DCC(executions=100), tolerance=0.02)
    assert abs(posterior.log_evidence - case.log_evidence) < 4 * posterior.log_evidence_sd < 0.1
    assert posterior.probability("rare")[1] == pytest.approx(case.probabilities["rare"][1], abs=0.03)


def test_loops_are_followed_to_where_the_mass_is():
    """The count is about seven, where the prior puts 0.6^7: from few executions, the paths beyond are proposed."""
    case = named("geometric_count")
    posterior = ab.infer(case.program, *case.args, engine=ab.DCC(executions=5))
    assert posterior.log_evidence == pytest.approx(case.log_evidence, abs=0.01)


@pytest.mark.parametrize(
    ("settings", "method", "budget"),
    [
        ({"strategy": SMC()}, "SMC", 40_000),
        ({"strategy": HMC(warmup=100)}, "HMC", 20_000),
        pytest.param({"strategy": NUTS(warmup=100)}, "NUTS", 200_000, marks=pytest.mark.slow),
        ({"strategy": Variational()}, "Variational", 80_000),
        ({"allocator": Uniform()}, "ModeMixture", 40_000),
        ({"allocator": SuccessiveHalving()}, "ModeMixture", 20_000),
        ({"systematic": False}, "ModeMixture", 20_000),
        ({"prune_negligible": False}, "ModeMixture", 20_000),
    ],
    ids=str,
)
def test_every_setting_leads_to_the_exact_answer(settings, method, budget):
    posterior = figure(engine=ab.DCC(**settings), budget=budget, tolerance=None)
    assert set(posterior.paths["method"]) == {method}
    assert abs(posterior.log_evidence - FIGURE.log_evidence) < 4 * posterior.log_evidence_sd < 0.2
    mean, sd = posterior.expectation(lambda draw: float(draw["left"]))
    assert abs(mean - FIGURE.probabilities["left"][True]) < 4 * sd < 0.05


@dataclass(frozen=True)
class Watched:
    """Auto, with a list of what it was given."""

    inner: Auto = field(default_factory=Auto)
    given: list[tuple[str, int]] = field(default_factory=list)

    def start(self, target, rng):
        return self.inner.start(target, rng)

    def advance(self, target, state, rng, evaluations):
        self.given.append((target.path.description, evaluations))
        return self.inner.advance(target, state, rng, evaluations)

    def estimate(self, target, state):
        return self.inner.estimate(target, state)


def test_a_strategy_is_three_functions():
    watched = Watched()
    posterior = figure(engine=ab.DCC(strategy=watched), tolerance=0.02, workers=1)
    assert {path for path, _ in watched.given} == set(posterior.paths["path"])
    assert all(evaluations >= 1 for _, evaluations in watched.given)


def test_interpreted_paths_get_less_at_once():
    def by_floats():
        x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
        ab.observe("y", dist.Normal(x, 1.0), 0.5)

    watched = Watched()
    engine = ab.DCC(strategy=watched, executions=20, evaluations_per_first_visit=30_000)
    ab.infer(by_floats, engine=engine, tolerance=0.2, budget=60_000)
    assert watched.given[0][1] == 3_000


def test_discrete_variables_are_summed_out_of_paths():
    def program():
        k = ab.sample("k", dist.Bernoulli(0.3))
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x + 3.0 * k, 1.0), 2.0)

    exact = np.log(sum(p * np.exp(-((2 - 3 * k) ** 2) / 4) for k, p in ((0, 0.7), (1, 0.3)))) - 0.5 * np.log(4 * np.pi)
    for elimination in (Elimination(), None):
        posterior = ab.infer(program, engine=ab.DCC(elimination=elimination), tolerance=0.02)
        assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd < 0.1
        assert ("ModeMixture" in set(posterior.paths["method"])) == (elimination is not None)
        share = 0.3 * np.exp(-0.25) / (0.3 * np.exp(-0.25) + 0.7 * np.exp(-1.0))
        assert posterior.probability("k")[1] == pytest.approx(share, abs=0.04)


def test_a_site_to_split_on_that_is_never_met_is_in_the_warnings():
    case = named("alarm")
    posterior = ab.infer(case.program, *case.args, split=["nowhere"])
    assert "split names the site 'nowhere', which no execution has met. Check its spelling." in posterior.warnings


def test_the_core_does_not_import_the_display():
    source = Path(ab.__file__).parent
    core = [source / "dcc.py", *(file for stage in CORE for file in (source / stage).rglob("*.py"))]
    assert [file for file in core if "anabranch.report" in file.read_text(encoding="utf-8")] == []


def test_arguments_of_the_program_are_passed_on():
    def program(y, *, sd=1.0):
        ab.observe("y", dist.Normal(ab.sample("x", dist.Normal(0.0, 1.0)), sd), y)

    posterior = ab.infer(program, 1.0, sd=jnp.sqrt(3.0), tolerance=0.02)
    assert posterior.log_evidence == pytest.approx(-0.125 - 0.5 * np.log(8 * np.pi), abs=0.06)
