"""What holds of every program, tried on random ones."""

import importlib.util
import itertools
import os
import pickle
import subprocess
import sys
from pathlib import Path as FilePath
from random import Random

import cloudpickle
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st

import anabranch as ab
from anabranch.divide.division import Division
from anabranch.divide.path import rebuild
from anabranch.divide.recording import Program
from anabranch.divide.select import selecting
from helpers import (
    batch,
    indicator,
    interpreted,
    member_values,
    named_log_density,
    numpyro_log_density,
    some_rows,
)
from random_programs import programs

TIMES = int(os.environ.get("ANABRANCH_EXAMPLES", "1"))
"""How many times as many examples: `make test-slow` takes more."""


def few(examples):
    """So many examples, the same each time. They are made from seeds, which it is of no use to shrink."""
    examples *= TIMES
    phases = [Phase.explicit, Phase.generate]
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None, phases=phases)


def assert_same_evaluation(one, other, tolerance=1e-10):
    """Everything the same, except that the parts of a density mean nothing outside the path."""
    assert np.array_equal(one.guard, other.guard)
    for part in ("log_prior", "log_likelihood", "log_jacobian"):
        a, b = getattr(one, part)[one.guard], getattr(other, part)[one.guard]
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=part)
    np.testing.assert_allclose(one.log_density, other.log_density, rtol=tolerance, atol=tolerance)


def nearby(points, discrete, seed=0, scale=0.5):
    """The points, and others around them."""
    moved = np.repeat(points, 4, axis=0)
    moved += np.random.default_rng(seed).normal(0, scale, moved.shape)
    moved[:, discrete] = np.repeat(points, 4, axis=0)[:, discrete]
    return np.concatenate([points, moved])


# Densities


@few(5)
@given(programs())
def test_density_is_numpyro_s(program):
    division = ab.find_paths(program, executions=100)
    for path, values in itertools.islice(some_rows(division.explore(100, seed=1), of_each=1), 6):
        points = path.points(batch(values))
        there = {name: value[0] for name, value in path.values(points).items()}
        for name, value in values.items():
            np.testing.assert_allclose(there[name], value, rtol=1e-9, atol=1e-9)
        expected = numpyro_log_density(program, (), there)
        assert named_log_density(path, points)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@few(2)
@given(programs())
def test_compiled_density_is_the_host_s(program):
    division = ab.find_paths(program, executions=100)
    for group in division.explore(30, seed=1)[:2]:
        points = nearby(group.path.points(group.values()), group.path.discrete)
        assert_same_evaluation(group.path.evaluate(points), group.path.evaluate(points, compile=False))


@few(4)
@given(programs())
def test_interpreted_density_is_the_host_s(program):
    division, slowly = ab.find_paths(program, executions=200), interpreted(program)
    for path, values in itertools.islice(some_rows(division.explore(20, seed=1), of_each=1), 4):
        [execution] = slowly.route(batch(values))
        assert execution.path.signature == path.signature
        assert execution.path.interpreted
        assert not execution.path.has_gradient
        points = path.points(batch(values))
        np.testing.assert_allclose(execution.path.points(batch(values)), points, rtol=1e-10, atol=1e-10)
        points = nearby(points, path.discrete)
        expected = execution.path.evaluate(points)
        if expected.guard.any():
            # A decision sequence that the exploration did not meet becomes known here.
            division.route(execution.path.values(points[expected.guard]))
        assert_same_evaluation(path.evaluate(points, compile=False), expected)


@few(2)
@given(programs(), st.sampled_from([0.0, 0.3, 1.0]))
def test_gradient_is_the_finite_difference(program, inverse_temperature):
    division = ab.find_paths(program, executions=100)
    group = max(division.explore(20, seed=1), key=lambda group: group.path.dim)
    points = group.path.points(group.values())[:5]
    evaluation, gradient = group.path.differentiate(points, inverse_temperature)
    assert_same_evaluation(evaluation, group.path.evaluate(points, compile=False))
    assert gradient.shape == points.shape
    assert (gradient[:, group.path.discrete] == 0).all()
    step = 1e-5
    for i in np.flatnonzero(~group.path.discrete):
        sides = [points.copy(), points.copy()]
        sides[0][:, i] -= step
        sides[1][:, i] += step
        below, above = (group.path.evaluate(side, compile=False) for side in sides)
        both = below.guard & above.guard
        change = above.log_prior - below.log_prior
        change += inverse_temperature * (above.log_likelihood - below.log_likelihood)
        np.testing.assert_allclose(gradient[both, i], change[both] / (2 * step), rtol=1e-5, atol=1e-5)


@few(2)
@given(programs())
def test_gradient_at_several_temperatures(program):
    """The tempered gradient is linear in the inverse temperature, and one function serves for all of them."""
    division = ab.find_paths(program, executions=100)
    group = max(division.explore(20, seed=1), key=lambda group: group.path.dim)
    points = group.path.points(group.values())
    prior, third, whole = (group.path.differentiate(points, t)[1] for t in (0.0, 0.3, 1.0))
    np.testing.assert_allclose(third, prior + 0.3 * (whole - prior), rtol=1e-9, atol=1e-9)


# Paths as a partition


@few(6)
@given(programs())
def test_every_execution_is_in_one_path(program):
    division = ab.find_paths(program, executions=200)
    for path, values in itertools.islice(some_rows(division.explore(100, seed=1), of_each=2), 12):
        assert [other for other in division if indicator(other, values)] == [path]


@few(6)
@given(programs())
def test_python_runs_once_per_decision_sequence(program):
    division = ab.find_paths(program, executions=200)
    executions = division.explore(100, seed=1)
    runs = division.python_runs
    assert runs == sum(len(path.recordings) for path in division)
    for group in executions:
        again = division.route(group.values())
        assert {each.path for each in again} == {group.path}
    assert division.python_runs == runs


# Prior probabilities


@few(6)
@given(programs())
def test_explored_is_the_sum_over_paths(program):
    division = ab.find_paths(program, executions=5)
    for seed in range(1, 12):
        assert division.prior_mass_found == pytest.approx(sum(path.prior_probability for path in division), rel=1e-12)
        assert 0 < division.prior_mass_found < 1 + 1e-9
        division.explore(20, seed)


@few(5)
@given(programs(finite=True))
def test_everything_is_explored_of_a_finite_program(program):
    division = ab.find_paths(program, executions=20_000)
    assert division.prior_mass_found == pytest.approx(1.0, abs=1e-9)
    for path in division:
        draws = path.prior(10)
        assert draws.log_probability == pytest.approx(np.log(path.prior_probability), abs=1e-9)
        assert draws.log_probability_sd < 1e-9


@few(6)
@given(programs())
def test_paths_are_as_frequent_as_they_say(program):
    known, fresh = 3000, 3000
    division = ab.find_paths(program, executions=known)
    stated = {path.signature: path.prior_probability for path in division}
    counts = dict.fromkeys(stated, 0)
    for group in division.explore(fresh, seed=1):
        counts[group.path.signature] = counts.get(group.path.signature, 0) + len(group.members)
    for signature, probability in stated.items():
        variance = probability * (1 - probability) * (1 / known + 1 / fresh)
        # What is set aside for answers never met is taken from those that were.
        assert counts[signature] / fresh == pytest.approx(probability, abs=5 * np.sqrt(variance) + 5 / known)


@few(5)
@given(programs())
def test_prior_draws_say_the_same_probability(program):
    known, n = 3000, 2000
    division = ab.find_paths(program, executions=known)
    for path in division.paths[:4]:
        draws = path.prior(n, seed=2)
        assert len(draws.points) == len(draws.log_weights) <= n
        evaluation = path.evaluate(draws.points, compile=False)
        assert evaluation.guard.all()
        assert np.isfinite(evaluation.log_prior).all()
        p = path.prior_probability
        error = np.hypot(draws.log_probability_sd, np.sqrt((1 - min(p, 1.0)) / p / known))
        assert draws.log_probability == pytest.approx(np.log(p), abs=5 * error + 5 / (known * p))


@few(2)
@given(programs())
def test_prior_draws_are_spread_over_the_sequences_of_a_path(program):
    """Draws within a path take its decision sequences as often as executions from the prior do."""
    division = ab.find_paths(program, executions=3000)
    several = [path for path in division.paths if len(path.recordings) > 1]
    assume(several)
    for path in several[:2]:
        draws = path.prior(1000, seed=3)
        weights = np.exp(draws.log_weights)
        for leaf in path._leaves:
            share = np.exp(leaf.log_probability() - path.log_prior_probability)
            lone = rebuild(path.program, [leaf.recording.choices])
            holds = lone.evaluate(lone.points(path.values(draws.points)), compile=False).guard
            error = np.sqrt(share * (1 - share) / len(weights))
            assert (weights * holds).sum() / weights.sum() == pytest.approx(share, abs=6 * error + 0.02)


# The same again


@few(4)
@given(programs())
def test_executions_follow_from_the_seed_alone(program):
    fresh = Division(Program(program))
    expected = member_values(fresh.explore(60, seed=5))
    known = ab.find_paths(program, executions=300, seed=1)
    again = member_values(known.explore(60, seed=5))
    assert expected.keys() == again.keys()
    for member, values in expected.items():
        assert values.keys() == again[member].keys()
        for name, value in values.items():
            assert np.array_equal(value, again[member][name])


@few(5)
@given(programs())
def test_another_seed_gives_other_executions(program):
    division = Division(Program(program))
    one, other = (member_values(division.explore(30, seed)) for seed in (5, 6))
    first = division.paths[0].addresses[0]
    drawn = {float(np.ravel(values[first])[0]) for values in [*one.values(), *other.values()]}
    assert len(drawn) == 60


@few(2)
@given(programs())
def test_interpreted_executions_differ_from_each_other(program):
    division = interpreted(program)
    executions = member_values(division.explore(25, seed=5))
    first = division.paths[0].addresses[0]
    assert len({float(np.ravel(values[first])[0]) for values in executions.values()}) == 25


@few(2)
@given(programs())
def test_interpreted_paths_are_those_of_the_division(program):
    n = 40
    division, slowly = ab.find_paths(program, executions=1000), interpreted(program)
    for group in slowly.explore(n, seed=5):
        [same] = division.route(group.values())
        assert same.path.signature == group.path.signature
    assert sum(len(group.members) for group in slowly.explore(5, seed=6)) == 5


# Crossing to another process


@few(3)
@given(programs())
def test_pickled_path_is_the_same(program):
    for path in ab.find_paths(program, executions=100).paths[:3]:
        again = pickle.loads(pickle.dumps(path))
        assert again.signature == path.signature
        assert again.description == path.description
        assert again.prior_probability == path.prior_probability
        points = nearby(path.prior(3).points, path.discrete)
        assert_same_evaluation(again.evaluate(points, compile=False), path.evaluate(points, compile=False), tolerance=0)


@few(3)
@given(programs())
def test_pickled_interpreted_path_is_the_same(program):
    division = interpreted(program)
    for group in division.explore(3, seed=1):
        again = pickle.loads(pickle.dumps(group.path))
        assert again.interpreted
        assert again.signature == group.path.signature
        points = group.path.points(group.values())
        assert_same_evaluation(again.evaluate(points), group.path.evaluate(points), tolerance=0)


@few(3)
@given(programs())
def test_path_from_its_answers_alone(program):
    for path in ab.find_paths(program, executions=100).paths[:3]:
        answers = path.choices
        again = rebuild(path.program, answers)
        assert again.signature == path.signature
        assert again.decisions == path.decisions
        points = nearby(path.prior(3).points, path.discrete)
        assert_same_evaluation(again.evaluate(points, compile=False), path.evaluate(points, compile=False), tolerance=0)


MODULE = """
import anabranch as ab
import numpyro.distributions as dist

def program(y):
    x = ab.sample(dist.Normal(0.0, 1.0))
    if x > 0:
        scale = ab.sample(dist.Exponential(1.0))
    else:
        scale = 1.0
    if ab.sample(dist.Bernoulli(0.3)):
        x = x + ab.sample("shift", dist.Uniform(x, x + 1.0))
    ab.observe(dist.Normal(x, scale), y)
"""
RECEIVER = """
import pickle, sys
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        path, points = pickle.load(file)
    evaluation = path.evaluate(points, compile=not path.interpreted)
    print(path.signature)
    print(evaluation.log_density.tolist())
"""


def closure(level):
    offset = np.array([0.5, level])

    def program(y):
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        if x > offset[0]:
            x = x + ab.sample(dist.Exponential(offset[1]))
        ab.observe("y", dist.Normal(x, 1.0), y)

    return program


def imported(file, name):
    spec = importlib.util.spec_from_file_location(name, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("processes_compile_quickly")
def test_paths_cross_to_another_process(tmp_path, monkeypatch):
    (tmp_path / "sent_program.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    module = imported(tmp_path / "sent_program.py", "sent_program")
    nameless = lambda y: ab.observe("y", dist.Normal(ab.sample("x", dist.Cauchy(0.0, 1.0)), 1.0), y)  # noqa: E731
    sent = module.program, closure(2.0), nameless
    paths = [path for program in sent for path in ab.find_paths(program, 0.4).paths[:2]]
    slowly = interpreted(closure(2.0), 0.4)
    slowly.explore(2)
    paths += slowly.paths
    files, expected = [], []
    for i, path in enumerate(paths):
        points = np.random.default_rng(i).normal(size=(4, path.dim))
        files.append(tmp_path / f"{i}.pickle")
        files[-1].write_bytes(pickle.dumps((path, points)))
        expected += [path.signature, path.evaluate(points, compile=False).log_density.tolist()]
    source = FilePath(ab.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(source)])}
    run = subprocess.run(
        [sys.executable, "-c", RECEIVER, *files],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    for line, value in zip(run.stdout.splitlines(), expected, strict=True):
        if isinstance(value, tuple):
            assert line == repr(value)
        else:
            received = [float(word) for word in line.strip("[]").split(",")]
            np.testing.assert_allclose(received, value, rtol=1e-12, atol=1e-12)


def test_program_goes_along_with_its_path():
    """A closure, which pickle alone refuses."""
    program = closure(1.0)
    with pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(program)
    [path, *_] = ab.find_paths(program, 0.1).paths
    assert pickle.loads(pickle.dumps(path)).signature == path.signature
    assert cloudpickle.loads(cloudpickle.dumps(path)).signature == path.signature


# Branches made selects


class SourceOf:
    """Writes programs of conditional assignments, as text."""

    def __init__(self, random: Random, whole: bool) -> None:
        self.random, self.whole = random, whole

    def choose(self, *options):
        return self.random.choice(options)

    def name(self):
        return self.choose("a", "b", "x", "y", "z")

    def expression(self, depth=1):
        if depth and self.random.random() < 0.6:
            a, b = self.expression(depth - 1), self.expression(depth - 1)
            forms = [f"{a} + {b}", f"0.5 * ({a}) - {b}", f"jnp.tanh({a})", f"jnp.maximum({a}, {b})", f"abs({a})"]
            forms.append(f"({a} if {self.condition(0)} else {b})")
            return self.choose(*forms)
        return self.choose(self.name(), self.name(), "0.25", "-1.5")

    def condition(self, depth=1):
        if depth and self.random.random() < 0.5:
            a, b = self.condition(depth - 1), self.condition(depth - 1)
            return self.choose(f"({a} and {b})", f"({a} or {b})", f"not {a}", f"not ({a} or not {b})")
        a, b = self.name(), self.expression(0)
        simple = [f"{a} > {b}", f"{a} <= {b}", f"-0.5 < {a} < {b}", f"{a} < {b} <= 1.5 > {self.name()}", "always"]
        return self.choose(*simple, *["k == 1", "k", "k != 2"] * self.whole)

    def block(self, depth, indent):
        return [line for _ in range(self.choose(1, 1, 2)) for line in self.statement(depth, indent)]

    def statement(self, depth, indent):
        space, target = "    " * indent, self.choose("x", "y", "z")
        match self.choose("assign", "augment", "ternary", *["if"] * 4 * bool(depth)):
            case "assign":
                return [f"{space}{target} = {self.expression()}"]
            case "augment":
                return [f"{space}{target} {self.choose('+=', '-=', '*=')} {self.expression()}"]
            case "ternary":
                return [f"{space}{target} = {self.expression()} if {self.condition()} else {self.expression()}"]
            case _:
                lines = [f"{space}if {self.condition()}:", *self.block(depth - 1, indent + 1)]
                for _ in range(self.choose(0, 0, 1, 2)):
                    lines += [f"{space}elif {self.condition()}:", *self.block(depth - 1, indent + 1)]
                if self.choose(True, False):
                    lines += [f"{space}else:", *self.block(depth - 1, indent + 1)]
                return lines

    def program(self):
        lines = ["import jax.numpy as jnp", "import numpyro", "import numpyro.distributions as dist", ""]
        lines += ["def program(always=True):"]
        lines += [
            '    a = numpyro.sample("a", dist.Normal(0.0, 1.0))',
            '    b = numpyro.sample("b", dist.Normal(0.3, 1.0))',
        ]
        lines += ['    k = numpyro.sample("k", dist.Categorical(jnp.array([0.3, 0.3, 0.4])))'] * self.whole
        lines += ["    x, y, z = 0.0, 0.5, a"]
        lines += [line for _ in range(3) for line in self.statement(2, 1)]
        lines += [f"    {name} = {self.expression()} if {self.condition()} else {name}" for name in "xyz"]
        lines += [f'    numpyro.sample("{name}", dist.Normal({name}, 1.0), obs=0.3)' for name in "xyz"]
        return "\n".join([*lines, "    return x, y, z", ""])


def random_source(seed, whole):
    return SourceOf(Random(seed), whole).program()


def written(directory, source, number=itertools.count()):  # noqa: B008
    """The program of a module with this source, which has a file, so that it can be inspected."""
    name = f"written_{next(number)}"
    file = directory / f"{name}.py"
    file.write_text(source)
    return imported(file, name).program


def sources(whole):
    return st.builds(random_source, seed=st.integers(0, 2**32), whole=st.just(whole))


def check_selects(program, select, executions):
    division = Division(Program(select, selecting=True))
    for path, values in itertools.islice(some_rows(division.explore(executions, seed=1), of_each=6), 12):
        points = path.points(batch(values))
        expected = numpyro_log_density(program, (), values)
        assert named_log_density(path, points)[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert numpyro_log_density(select, (), values) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    return division


@few(5)
@given(source=sources(whole=False))
def test_selects_have_the_density_of_the_branches(tmp_path_factory, source):
    program = written(tmp_path_factory.getbasetemp(), source)
    division = check_selects(program, selecting(program), 8)
    # Every branch of these programs can be made a select.
    assert [path.decisions for path in division] == [((),)]


@few(4)
@given(source=sources(whole=True))
def test_selects_leave_branches_on_discrete_values(tmp_path_factory, source):
    program = written(tmp_path_factory.getbasetemp(), source)
    check_selects(program, selecting(program), 8)


@few(2)
@given(source=sources(whole=False))
def test_selects_compile_and_have_gradients(tmp_path_factory, source):
    program = written(tmp_path_factory.getbasetemp(), source)
    division = Division(Program(selecting(program), selecting=True))
    [group] = division.explore(8, seed=1)
    points = group.path.points(group.values())
    evaluation, gradient = group.path.differentiate(points)
    assert_same_evaluation(evaluation, group.path.evaluate(points, compile=False))
    assert np.isfinite(gradient).all()


def test_selects_leave_lists_and_arrays_alone():
    """`+=` changes these in place, so the side that is not taken must not run."""

    def program():
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        terms, total, scale = [1.0], np.zeros(2), 1.0
        if x > 0:
            terms += [2.0]
        if x < 0:
            total += 1.0
        scale = 2.0 if x > 0.5 else scale
        ab.observe("y", dist.Normal(sum(terms) + total.sum(), scale), 0.3)

    select = selecting(program)
    check_selects(program, select or program, 8)


def test_selects_keep_the_addresses():
    """An unnamed site has the same address whether the program runs as it is written or with selects."""

    def program():
        x = ab.sample(dist.Normal(0.0, 1.0))
        y = 1.0 if x > 0 else 2.0
        y = ab.sample(dist.Normal(y, 1.0))
        if x > 0.5:
            y = y + 1
        for _ in range(2):
            ab.sample(dist.Normal(y, 1.0))
        ab.observe(dist.Normal(y, 1.0), 0.3)

    expected = ab.find_paths(program, executions=20).paths[0].addresses
    division = check_selects(program, selecting(program), 8)
    assert [path.addresses for path in division] == [expected]


def test_selects_are_used_when_sequences_explode():
    """Many branches on reals are one path without a decision, of the same density and with the same addresses."""

    def program(xs):
        place = ab.sample(dist.Normal(0.0, 1.0))
        left = ab.sample(dist.Normal(0.0, 1.0))
        right = ab.sample(dist.Normal(3.0, 1.0))
        for x in xs:
            level = left if x < place else right
            ab.observe(dist.Normal(level, 1.0), x)

    xs = np.linspace(-2.0, 2.0, 30)
    division = ab.find_paths(program, xs)
    [path] = division.paths
    assert not path.interpreted
    assert path.decisions == ((),)
    assert path.addresses == ("place", "left", "right")
    for path, values in some_rows(division.explore(5, seed=1), of_each=5):
        expected = numpyro_log_density(program, (xs,), values)
        assert named_log_density(path, path.points(batch(values)))[0] == pytest.approx(expected, rel=1e-9)
