"""The interpreter: what it costs beside the program, when it ends, and what it says of the line that needs it."""

from __future__ import annotations

import logging
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.extend.core import Primitive
from numpyro import handlers
from scipy import special

import anabranch as ab
from anabranch.divide import forms
from anabranch.divide.distributions import unwrapped
from anabranch.divide.execution_times import ExecutionTimes
from anabranch.divide.interpret import interpret, replay
from anabranch.divide.remedies import GENERAL, duration, hours_warning, remedy, remedy_of_branch
from anabranch.divide.terms import Terms
from anabranch.limits import LimitReached, Limits, enforced
from helpers import agrees_with_numpyro, interpreted

pytestmark = pytest.mark.one_in(4)

N01 = dist.Normal(0.0, 1.0)
DATA = np.linspace(-1.0, 2.0, 50)


def ten_sites(y):
    level = ab.sample("level", dist.Normal(0.0, 1.0))
    growth = ab.sample("growth", dist.Gamma(2.0, 2.0))
    share = ab.sample("share", dist.Beta(2.0, 3.0))
    start = ab.sample("start", dist.Uniform(0.1, 1.0))
    shifts = ab.sample("shifts", dist.Normal(0.0, 0.1).expand([4]).to_event(1))
    weights = ab.sample("weights", dist.Dirichlet(np.ones(3)))
    fast = ab.sample("fast", dist.Bernoulli(0.4))
    kind = ab.sample("kind", dist.Categorical(np.array([0.2, 0.3, 0.5])))
    count = ab.sample("count", dist.Poisson(3.0))
    noise = ab.sample("noise", dist.HalfNormal(1.0))
    state = float(start)
    for t in range(10):
        state += (0.2 if fast else 0.1) * float(growth) * state * (1.0 - float(share) * state) + float(shifts[t % 4])
    offset = [float(w) for w in weights][int(kind)] + 0.01 * float(count)
    mean = math.tanh(state) + offset + float(level) * special.expit(y)
    ab.observe("y", dist.Normal(mean, 0.1 + float(noise)), y)
    return offset


class Binds:
    """Counts the primitives that jax binds."""

    def __init__(self, monkeypatch):
        self.count = 0
        bind = Primitive.bind

        def counted(*args, **kwargs):
            self.count += 1
            return bind(*args, **kwargs)

        monkeypatch.setattr(Primitive, "bind", counted)


def test_evaluating_a_point_binds_no_primitives_of_jax(monkeypatch):
    """But for those by which the program makes its distributions: two for the Beta, and their broadcasts."""
    path = ab.find_paths(ten_sites, DATA, executions=5).paths[0]
    points = path.prior(30, seed=1).points
    values = path.values(points)
    path.evaluate(points)

    def bare():
        given = {name: value[0] for name, value in values.items()}
        with jax.enable_x64(True), handlers.seed(rng_seed=0), handlers.substitute(data=given):
            ten_sites(DATA)

    def binds(function):
        counter.count = 0
        function()
        return counter.count

    bare()
    counter = Binds(monkeypatch)
    by_the_program = binds(bare)
    for compute in (path.evaluate, path.values):
        few, many = binds(partial(compute, points[:10])), binds(partial(compute, points))
        assert (many - few) / 20 <= by_the_program + 10


def test_ten_sites_have_the_density_of_numpyro():
    division = ab.find_paths(ten_sites, DATA, executions=5)
    assert all(path.interpreted for path in division)
    agrees_with_numpyro(division, DATA, executions=5)


def test_points_together_are_points_one_by_one():
    path = ab.find_paths(ten_sites, DATA, executions=5).paths[0]
    points = path.prior(12, seed=3).points
    together = path.evaluate(points)
    for i, point in enumerate(points):
        alone = path.evaluate(point[None])
        for name in ("log_prior", "log_likelihood", "log_jacobian", "guard"):
            np.testing.assert_allclose(getattr(alone, name)[0], getattr(together, name)[i], rtol=1e-14)


# Distributions with parameters of Python, of NumPy, of jax, and random ones ------------------------------------------

DISTRIBUTIONS = {
    "normal": lambda x: dist.Normal(x, 2.0),
    "integers": lambda x: dist.Gamma(2, 3),
    "student": lambda x: dist.StudentT(4.0, x, 1.0),
    "expanded": lambda x: dist.Exponential(jnp.exp(x)).expand([3]),
    "event": lambda x: dist.Normal(jnp.stack([x, -x]), 1.0).to_event(1),
    "masked": lambda x: dist.Normal(x, 1.0).expand([3]).mask(np.array([True, False, True])),
    "masked by a constant": lambda x: dist.Normal(x, 1.0).mask(False),
    "uniform": lambda x: dist.Uniform(x, x + 3.0),
    "truncated": lambda x: dist.TruncatedNormal(0.0, 2.0, low=x),
    "half": lambda x: dist.HalfCauchy(np.float64(1.5)),
    "beta": lambda x: dist.Beta(jnp.exp(x), 2.0),
    "simplex": lambda x: dist.Dirichlet(jnp.array([1.0, 2.0, 0.5])),
    "ordered": lambda x: dist.TransformedDistribution(
        dist.Normal(jnp.zeros(3), 1.0).to_event(1), dist.transforms.OrderedTransform()
    ),
    "log normal": lambda x: dist.LogNormal(x, 0.5),
    "shifted": lambda x: dist.TransformedDistribution(
        dist.Exponential(1.0), dist.transforms.AffineTransform(x, 2.0, domain=dist.constraints.positive)
    ),
    "mirrored": lambda x: dist.TransformedDistribution(
        dist.Exponential(1.0), dist.transforms.AffineTransform(x, -2.0, domain=dist.constraints.positive)
    ),
    "multivariate": lambda x: dist.MultivariateNormal(jnp.stack([x, x]), np.array([[2.0, 0.3], [0.3, 1.0]])),
    "cholesky": lambda x: dist.LKJCholesky(3, 2.0),
    "mixture": lambda x: dist.MixtureSameFamily(
        dist.Categorical(np.array([0.3, 0.7])), dist.Normal(jnp.stack([x, 2 * x]), 1.0)
    ),
    "von Mises": lambda x: dist.VonMises(x, 2.0),
    "single precision": lambda x: dist.Normal(np.float32(0.1), np.float32(1.3)),
    "count": lambda x: dist.Poisson(jnp.exp(x)),
    "binomial": lambda x: dist.Binomial(5, jax.nn.sigmoid(x)),
    "logits": lambda x: dist.Categorical(logits=jnp.stack([x, 0.0, -x])),
    "multinomial": lambda x: dist.Multinomial(4, np.array([0.2, 0.3, 0.5])),
}


@pytest.mark.parametrize("label", DISTRIBUTIONS)
def test_a_site_and_an_observation_of_each_form(label):
    """Two executions: of the first the form is made, of the second it is used."""

    def program():
        x = ab.sample("x", N01)
        float(x)
        # A latent site cannot be masked: its prior would be gone.
        v = ab.sample("v", unwrapped(DISTRIBUTIONS[label](x), dist.MaskedDistribution))
        ab.observe("w", DISTRIBUTIONS[label](x), 1 * v)
        return v

    division = interpreted(program)
    division.explore(3, seed=0)
    agrees_with_numpyro(division, executions=4, of_each=2)


class Tilted(dist.Normal):
    """A distribution of the user's own, with a part that is no parameter of it."""

    def __init__(self, tilt):
        self.tilt = tilt
        super().__init__(0.0, 1.0)

    def log_prob(self, value):
        return super().log_prob(value) + self.tilt


def test_a_distribution_of_the_user_s_own_has_no_form():
    assert forms.described(Tilted(1.0)) is None
    assert forms.described(dist.Independent(Tilted(jnp.zeros(3)).expand([3]), 1)) is None

    def program():
        x = ab.sample("x", N01)
        ab.observe("y", Tilted(float(x)), 0.5)

    division = ab.find_paths(program, executions=3)
    [path] = division.paths
    evaluation = path.evaluate([[0.25], [2.0]])
    expected = -0.5 * 0.5**2 - 0.5 * math.log(2 * math.pi)
    np.testing.assert_allclose(evaluation.log_likelihood, [expected + 0.25, expected + 2.0])


def test_forms_differ_where_anything_but_the_parameters_differs():
    def form(distribution):
        return forms.described(distribution).form

    assert form(dist.Normal(0.0, 1.0)) is form(dist.Normal(3.0, 2.0))
    assert form(dist.Normal(0.0, 1.0)) is not form(dist.Normal(0, 1.0))
    assert form(dist.Normal(0.0, 1.0)) is not form(dist.Normal(np.zeros(2), 1.0))
    assert form(dist.Normal(0.0, 1.0).expand([2])) is not form(dist.Normal(0.0, 1.0).expand([3]))
    assert form(dist.Normal(0.0, 1.0).expand([2])) is not form(dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    assert form(dist.Normal(0.0, 1.0).mask(True)) is not form(dist.Normal(0.0, 1.0).mask(False))
    assert form(dist.Multinomial(4, np.ones(3) / 3)) is not form(dist.Multinomial(5, np.ones(3) / 3))


def test_a_function_that_does_not_give_what_the_distribution_gives_is_not_used(monkeypatch):
    monkeypatch.setattr(forms, "log_density", lambda distribution, value, scale=None: distribution.log_prob(value) + 1)

    def program():
        x = ab.sample("x", N01)
        ab.observe("y", dist.Normal(float(x), 2.0), 0.5)

    monkeypatch.setattr(forms, "_forms", {})
    division = ab.find_paths(program, executions=3)
    agrees_with_numpyro(division, executions=3)


def test_an_execution_for_which_python_computes_an_invalid_parameter_is_impossible(caplog):
    """A plain number may have been random: the program is not wrong, for all that is known."""

    def program():
        x = ab.sample("x", N01)
        ab.observe("y", dist.Normal(0.0, float(x)), 0.5)

    [path] = ab.find_paths(program, executions=20).paths
    evaluation = path.evaluate([[-0.5], [0.5]])
    assert evaluation.inside.tolist() == [False, True]
    assert evaluation.log_likelihood[1] == pytest.approx(-0.5 - math.log(0.5 * math.sqrt(2 * math.pi)))
    assert "count as impossible" in caplog.text
    assert "'y' (test_interpreter.py:" in caplog.text


def test_an_array_that_the_program_changes_afterwards():
    """The log densities are computed after the run: they must not see what became of the array."""

    def program():
        x = ab.sample("x", N01)
        mean = np.array([float(x), 1.0])
        ab.observe("y", dist.Normal(mean, 1.0), np.zeros(2))
        mean[:] = 100.0

    [path] = ab.find_paths(program, executions=3).paths
    likelihood = path.evaluate([[0.5], [0.5]]).log_likelihood
    np.testing.assert_allclose(likelihood, -0.5 * (0.25 + 1.0) - math.log(2 * math.pi))


def test_entries_of_a_known_vector():
    def program():
        v = ab.sample("v", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
        float(v[0])
        first, *others = v
        assert all(isinstance(entry, jax.Array) for entry in (first, v[-1], *others))
        beyond = v[5]  # as jax has it: the last
        ab.observe("y", dist.Normal(first + v[-1] + v.at[0].set(2.0)[0] + beyond, 1.0), others[0])
        return first

    agrees_with_numpyro(ab.find_paths(program, executions=3), executions=3)


def test_an_entry_of_a_discrete_vector_is_asked_about():
    def program():
        z = ab.sample("z", dist.Bernoulli(0.5).expand([2]).to_event(1))
        x = ab.sample("x", N01)
        float(x)
        if z[0]:
            ab.sample("w", N01)

    for division in (interpreted(program), interpreted(lambda: program())):
        division.explore(40, seed=0)
        assert len(division) == 4
        assert all(path.sites[0].value is not None for path in division)


# Limits ---------------------------------------------------------------------------------------------------------------


class Counted:
    """A program that leaves JAX and counts its runs; the run is cancelled after some of them."""

    def __init__(self):
        self.runs, self.limits, self.most = 0, Limits(), math.inf

    def __call__(self):
        self.runs += 1
        if self.runs >= self.most:
            self.limits.cancelled.set()
        x = ab.sample("x", N01)
        ab.observe("y", dist.Normal(float(x), 1.0), 0.5)


@pytest.mark.parametrize("what", ["evaluate", "values", "points", "prior", "explore"])
def test_a_limit_ends_the_loop_within_one_execution(what):
    program = Counted()
    division = ab.find_paths(program, executions=3)
    [path] = division.paths
    points = np.zeros((20, 1))
    path.evaluate(points[:1])
    program.runs, program.most = 0, 3
    with pytest.raises(LimitReached), enforced(program.limits):
        {
            "evaluate": lambda: path.evaluate(points),
            "values": lambda: path.values(points),
            "points": lambda: path.points({"x": np.zeros(20)}),
            "prior": lambda: path.prior(20),
            "explore": lambda: division.explore(20, seed=5),
        }[what]()
    assert program.runs == 3


# What is said ---------------------------------------------------------------------------------------------------------

REMEDIES = {
    "float(x)": "Drop float()",
    "math.exp(x)": "Use jnp.exp instead of math.exp",
    "math.atan2(x, y)": "Use jnp.atan2 instead of math.atan2",
    "math.lgamma(x)": "jax.scipy.special.gammaln",
    "math.erf(x)": "jax.scipy.special.erf",
    "cmath.sqrt(x)": "Use jnp.sqrt instead of cmath.sqrt",
    "sorted(values)": "jnp.sort",
    "values.sort()": "jnp.sort",
    "min(x, y)": "jnp.minimum",
    "max(values)": "jnp.maximum",
    "round(x, 2)": "jnp.round",
    "int(x)": "jnp.floor",
    "x.item()": "Drop .item()",
    "x.tolist()": "Drop .tolist()",
    "f'{x:.2f}'": "jax.debug.print",
    "str(x)": "jax.debug.print",
    "'%.2f' % x": "jax.debug.print",
    "'{:.2f}'.format(x)": "jax.debug.print",
    "x in [0.0, 1.0]": "jnp.isin",
    "x not in allowed": "jnp.isin",
    "np.interp(x, grid, table)": "Use jnp.interp instead of np.interp",
    "np.linalg.norm(x)": "Use jnp.linalg.norm instead of np.linalg.norm",
    "np.asarray(x)": "jnp.asarray",
    "np.random.normal(x)": "Draw with a sample statement",
    "random.gauss(x, 1.0)": "Draw with a sample statement",
    "scipy.special.expit(x)": "Use jax.scipy.special.expit instead of scipy.special.expit",
    "stats.norm.logpdf(x)": "Use jax.scipy.stats.norm.logpdf instead of stats.norm.logpdf",
    "scipy.integrate.quad(f, 0, x)": "has no counterpart in jax.scipy",
    "bisect.bisect_left(grid, x)": "jnp.searchsorted",
    "statistics.median(values)": "Use jnp.median instead of statistics.median",
    "simulator.run(x)": GENERAL,
    "external(x)": GENERAL,
    "x": GENERAL,
    "?": GENERAL,
    "": GENERAL,
}


@pytest.mark.parametrize("expression", REMEDIES)
def test_the_remedy_fits_the_expression(expression):
    assert REMEDIES[expression] in remedy(expression)


LINES = {
    "total += float(x)": "Drop float()",
    "if math.sqrt(x) > 1:": "Use jnp.sqrt",
    "while float(x) > 0:": "Drop float()",
    "else: y = x.item()": "Drop .item()",
    "for v in sorted(values):": "jnp.sort",
    "elif x in grid:": "jnp.isin",
    "return np.cumsum(x)": "Use jnp.cumsum instead of np.cumsum",
    "print(f'x = {x}')": "jax.debug.print",
    "answer = simulate(x)": GENERAL,
    "this is no Python": GENERAL,
}


@pytest.mark.parametrize("line", LINES)
def test_the_remedy_fits_the_line(line):
    assert LINES[line] in remedy("?", line)
    assert LINES[line] in remedy("x", line)


def test_the_remedy_knows_the_names_of_the_program():
    from math import exp

    names = {"m": math, "exp": exp, "float": lambda x: x, "expit": special.expit}
    assert remedy("m.exp(x)", "", names) == "Use jnp.exp instead of m.exp"
    assert remedy("exp(x)", "", names) == "Use jnp.exp instead of exp"
    assert remedy("float(x)", "", names) == GENERAL
    assert remedy("exp(x)", "", {"exp": np.exp}) == "Use jnp.exp instead of exp"


def test_the_remedy_of_a_branch():
    assert "jnp.sort" in remedy_of_branch("sorted(values)")
    assert "jnp.where" in remedy_of_branch("x > max(2, 3)", "if x > max(2, 3):")
    assert "jnp.floor" in remedy_of_branch("int(x)")


def said_of(program, caplog):
    with caplog.at_level(logging.WARNING, "anabranch"):
        division = ab.find_paths(program, executions=10)
    [said] = [record.getMessage() for record in caplog.records]
    return division, said


def test_the_log_names_the_line_the_remedy_and_the_pace(caplog):
    def program():
        x = ab.sample("x", N01)
        ab.observe("y", dist.Normal(math.exp(x), 1.0), 0.5)

    division, said = said_of(program, caplog)
    at = division.interpreted_at
    assert at.where.startswith("test_interpreter.py:")
    assert f"{at.where} uses a random real outside JAX (math.exp(x)). Use jnp.exp instead of math.exp." in said
    assert said.endswith(f"One execution takes {said.split('takes ')[1]}")
    assert division.seconds_per_run > 0


def test_a_line_inside_scipy_is_not_the_program_s(caplog):
    from scipy import stats

    def program():
        x = ab.sample("x", N01)
        ab.factor("f", stats.norm.logpdf(x))

    division, said = said_of(program, caplog)
    assert division.interpreted_at.where.startswith("test_interpreter.py:")
    assert "Use jax.scipy.stats.norm.logpdf instead of stats.norm.logpdf" in said


def test_many_decision_sequences_say_what_to_write(caplog):
    def program():
        v = ab.sample("v", dist.Normal(jnp.zeros(8), 1.0).to_event(1))
        ab.observe("y", dist.Normal(sorted(v)[0], 1.0), 0.5)

    with caplog.at_level(logging.WARNING, "anabranch"):
        division = ab.find_paths(program, executions=200)
    [said] = [record.getMessage() for record in caplog.records]
    assert "more than 64 decision sequences" in said
    assert "jnp.sort" in said
    assert "jnp.sort" in division.interpreted_at.remedy
    assert all(path.interpreted for path in division)


def test_a_program_that_stays_in_jax_left_nowhere():
    division = ab.find_paths(lambda: ab.sample("x", N01), executions=3)
    assert division.interpreted_at is None
    assert division.seconds_per_run is None


def test_the_pace_is_the_mean_without_the_first():
    pace = ExecutionTimes()
    assert pace.seconds_per_run is None
    pace.add(1.0)
    assert pace.seconds_per_run == 1.0
    pace.add(0.1)
    pace.add(0.3)
    pace.add_to_last(0.2)
    assert pace.seconds_per_run == pytest.approx(0.3)
    assert pace.runs == 3


def test_hours_are_announced():
    assert hours_warning(0.001, 1_000_000, None, "model.py:12", "Drop float()") is None
    said = hours_warning(0.014, 1_000_000, None, "model.py:12", "Drop float()")
    assert "At 14 ms for one execution, 1,000,000 evaluations take 3.9 hours" in said
    assert "model.py:12" in said
    assert "Drop float()" in said
    assert hours_warning(0.014, 1_000_000, 60.0, "model.py:12", "Drop float()") is None
    assert "of 2.0 hours allows 514,285 of them" in hours_warning(0.014, 1_000_000, 7200.0, "m.py:1", "Drop float()")
    assert "allows" not in hours_warning(0.014, 1_000_000, 1e9, "m.py:1", "Drop float()")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.00012, "0.12 ms"), (0.014, "14 ms"), (0.5, "500 ms"), (2.5, "2.5 s"), (42, "42 s"), (1200, "20 minutes"),
     (14_000, "3.9 hours"), (90_000, "25 hours"), (1e6, "12 days")],
)  # fmt: skip
def test_durations(seconds, words):
    assert duration(seconds) == words


def test_an_execution_replays_with_numpyro_s_check_of_values_turned_off():
    def program():
        x = ab.sample("x", dist.Uniform(0.0, 1.0))
        ab.observe("y", dist.Normal(float(x), 1.0), 0.5)

    division = ab.find_paths(program, executions=3)
    with numpyro.validation_enabled(False):
        run = interpret(division.program, replay({"x": np.array(0.25)}))
        assert float(run.once(Terms).prior[0].value) == 0.0
