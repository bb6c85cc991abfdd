"""Reversible jump: moves leave exact posteriors as they are, find them from elsewhere, and are caught when wrong.

The test of invariance draws a population exactly from a posterior, applies moves to it, and asks of functions of the
executions whether their means have changed, by more than four standard errors of the paired differences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
import exact
from anabranch import errors
from anabranch.divide.batch import Constraints
from anabranch.engines.involutive import InvolutiveMH, Move
from anabranch.engines.jump import Jump
from anabranch.engines.runner import Runner
from anabranch.engines.traces import Traces

# Populations drawn from an exact posterior ----------------------------------------------------------------------------

Values = Mapping[str, np.ndarray]


def population(
    program: Callable[..., Any], args: tuple[Any, ...], values: Values, present: Values | None = None
) -> tuple[Runner, Traces]:
    """Executions with the given values, and what executes more."""
    runner = Runner(ab.find_paths(program, *args, executions=100), seed=0)
    n = len(next(iter(values.values())))
    return runner, runner.execute(n, Constraints(values, present or {}))


def moved(runner: Runner, state: Traces, moves: Sequence[Move], rounds: int = 1, seed: int = 0) -> Traces:
    """The population after so many rounds of the moves."""
    rng, jumps = np.random.default_rng(seed), [Jump(move, runner) for move in moves]
    for _ in range(rounds):
        for jump in jumps:
            state = jump.step(state, rng)
    for jump in jumps:
        assert 0.05 < jump.accepted / jump.tried < 0.95
    return state


def z_scores(before: Traces, after: Traces, functions: Callable[[Traces], list[np.ndarray]]) -> np.ndarray:
    """How many standard errors the means of functions have moved by."""
    differences = np.array(functions(after), float) - np.array(functions(before), float)
    return differences.mean(axis=1) / (differences.std(axis=1) / np.sqrt(len(before)))


def value(traces: Traces, name: str) -> np.ndarray:
    """A scalar site, zero where an execution does not have it."""
    return np.where(traces.present[name, ()], traces.values[name, ()], 0.0)


# A fixed number of values ---------------------------------------------------------------------------------------------

Y = np.array([1.2, 0.4, 2.1, 1.5])


def normal(y):
    ab.observe("y", dist.Normal(ab.sample("mu", dist.Normal(0.0, 2.0)), 1.0), y)


def draw_step(trace):
    ab.sample("u", dist.Normal(0.0, 0.8))


def walk(trace, aux):
    return {"mu": trace["mu"] + aux["u"]}, {"u": -aux["u"]}


def events(count):
    ab.observe("count", dist.Poisson(ab.sample("rate", dist.Gamma(2.0, 1.0))), count)


def stretch(trace, aux):
    return {"rate": trace["rate"] * jnp.exp(aux["u"])}, {"u": -aux["u"]}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_random_walk_finds_the_mean(seed):
    truth = exact.same_mean(Y, 0.0, 2.0, 1.0).mean[0]
    posterior = ab.infer(normal, Y, engine=InvolutiveMH([Move(draw_step, walk)], between=0), budget=20_000, seed=seed)
    mean, sd = posterior.expectation(lambda draw: draw["mu"])
    assert abs(mean - truth) < 4 * sd
    assert sd < 0.03
    assert posterior.run.evaluations >= 20_000


def test_a_random_walk_leaves_the_posterior_as_it_is():
    answer, rng = exact.same_mean(Y, 0.0, 2.0, 1.0), np.random.default_rng(1)
    draws = rng.normal(answer.mean[0], np.sqrt(answer.covariance[0, 0]), 20_000)
    runner, before = population(normal, (Y,), {"mu": draws})
    after = moved(runner, before, [Move(draw_step, walk)])
    scores = z_scores(before, after, lambda t: [value(t, "mu"), value(t, "mu") ** 2, np.abs(value(t, "mu") - 1)])
    assert np.abs(scores).max() < 4


def test_the_jacobian_counts(monkeypatch):
    draws = np.random.default_rng(2).gamma(2.0 + 5, 1 / 2.0, 20_000)
    runner, before = population(events, (5,), {"rate": draws})

    def functions(traces):
        return [value(traces, "rate"), value(traces, "rate") ** 2, np.log(value(traces, "rate"))]

    after = moved(runner, before, [Move(draw_step, stretch)])
    assert np.abs(z_scores(before, after, functions)).max() < 4
    # Without it, the same test is failed by far.
    right = Jump._log_jacobian
    monkeypatch.setattr(Jump, "_log_jacobian", lambda *args: 0 * right(*args))
    after = moved(runner, before, [Move(draw_step, stretch)])
    assert np.abs(z_scores(before, after, functions)).max() > 20


def test_a_simplex_has_one_number_fewer():
    def shares():
        ab.sample("w", dist.Dirichlet(np.array([1.5, 2.0, 4.0])))

    def tilt(trace, aux):
        tilted = trace["w"] * jnp.exp(aux["u"] * jnp.array([1.0, 0.0, 0.0]))
        return {"w": tilted / tilted.sum()}, {"u": -aux["u"]}

    draws = np.random.default_rng(3).dirichlet([1.5, 2.0, 4.0], 20_000)
    runner, before = population(shares, (), {"w": draws})
    after = moved(runner, before, [Move(draw_step, tilt)])

    def functions(traces):
        w = traces.values["w", (3,)]
        return [w[:, 0], w[:, 0] ** 2, w[:, 1] * w[:, 2], w[:, 2] ** 2]

    assert np.abs(z_scores(before, after, functions)).max() < 4


def test_values_outside_a_support_are_refused():
    def nested():
        ab.sample("b", dist.Uniform(0.0, ab.sample("a", dist.Uniform(0.0, 1.0))))

    def draw_steps(trace):
        ab.sample("a", dist.Normal(0.0, 0.3))
        ab.sample("b", dist.Normal(0.0, 0.3))

    def both(trace, aux):
        return {name: trace[name] + aux[name] for name in trace}, {name: -aux[name] for name in aux}

    rng = np.random.default_rng(4)
    a = rng.random(20_000)
    runner, before = population(nested, (), {"a": a, "b": a * rng.random(20_000)})
    after = moved(runner, before, [Move(draw_steps, both)])
    a, b = value(after, "a"), value(after, "b")
    assert ((b > 0) & (b < a) & (a < 1)).all()
    scores = z_scores(before, after, lambda t: [value(t, "a"), value(t, "b"), value(t, "a") * value(t, "b")])
    assert np.abs(scores).max() < 4


def test_draws_that_the_proposal_cannot_make_on_the_way_back_are_refused():
    def lopsided(trace):
        ab.sample("u", dist.Uniform(-0.5, jnp.where(trace["mu"] > 1.3, 0.2, 1.0)))

    answer = exact.same_mean(Y, 0.0, 2.0, 1.0)
    draws = np.random.default_rng(8).normal(answer.mean[0], np.sqrt(answer.covariance[0, 0]), 20_000)
    runner, before = population(normal, (Y,), {"mu": draws})
    after = moved(runner, before, [Move(lopsided, walk)])
    scores = z_scores(before, after, lambda t: [value(t, "mu"), value(t, "mu") ** 2, value(t, "mu") > 1.3])
    assert np.abs(scores).max() < 4


def test_the_program_is_not_executed_with_what_it_cannot_draw():
    def table(y):
        k = ab.sample("k", dist.DiscreteUniform(0, 2))
        ab.observe("y", dist.Normal([0.0, 1.0, 3.0][k], 1.0), y)

    def choose(trace):
        ab.sample("up", dist.Bernoulli(0.5))

    def step(trace, aux):
        return {"k": trace["k"] + (1 if aux["up"] else -1)}, {"up": 1 - aux["up"]}

    posterior = ab.infer(table, 1.8, engine=InvolutiveMH([Move(choose, step)], between=0), budget=10_000)
    weights = np.exp(exact.log_normal(1.8, np.array([0.0, 1.0, 3.0]), 1.0))
    mean, sd = posterior.expectation(lambda draw: draw["k"])
    assert abs(mean - weights @ np.arange(3) / weights.sum()) < 4 * sd < 0.4
    assert sd < 0.05


def test_where_all_digits_are_lost():
    """Steps far into the tails of a logistic curve, which rounds to one: refused, and no fault of the move."""

    def unit():
        ab.sample("w", dist.Uniform(0.0, 1.0))

    def far(trace):
        ab.sample("u", dist.Normal(0.0, jnp.array([1.0, 40.0])[ab.sample("far", dist.Bernoulli(0.5))]))

    def logistic(trace, aux):
        return {"w": jax.nn.sigmoid(jnp.log(trace["w"]) - jnp.log1p(-trace["w"]) + aux["u"])}, aux | {"u": -aux["u"]}

    runner, before = population(unit, (), {"w": np.random.default_rng(9).random(20_000)})
    after = moved(runner, before, [Move(far, logistic)])
    scores = z_scores(before, after, lambda t: [value(t, "w"), value(t, "w") ** 2, value(t, "w") > 0.9])
    assert np.abs(scores).max() < 4


@pytest.mark.parametrize("decides", [False, True])
def test_a_discrete_site_may_be_moved_without_auxiliary_variables(decides):
    def two(y):
        z = ab.sample("z", dist.Bernoulli(0.3))
        mean = (2.0 if z else -1.0) if decides else jnp.where(z, 2.0, -1.0)
        ab.observe("y", dist.Normal(mean, 1.5), y)

    move = Move(lambda trace: None, lambda trace, aux: ({"z": 1 - trace["z"]}, {}), name="flip")
    odds = 0.3 / 0.7 * np.exp(exact.log_normal(1.0, 2.0, 1.5) - exact.log_normal(1.0, -1.0, 1.5))
    posterior = ab.infer(two, 1.0, engine=InvolutiveMH(move, between=0), budget=10_000)
    probability, sd = posterior.expectation(lambda draw: draw["z"] == 1)
    assert abs(probability - odds / (1 + odds)) < 4 * sd < 0.4
    assert sd < 0.02


def test_a_program_that_leaves_jax_can_be_moved():
    def outside(y):
        ab.observe("y", dist.Normal(float(ab.sample("mu", dist.Normal(0.0, 2.0))), 1.0), y)

    engine = InvolutiveMH([Move(draw_step, walk)], chains=20, between=0)
    posterior = ab.infer(outside, Y, engine=engine, budget=400)
    mean, sd = posterior.expectation(lambda draw: draw["mu"])
    assert abs(mean - exact.same_mean(Y, 0.0, 2.0, 1.0).mean[0]) < 4 * sd < 2
    assert sd < 0.3


# Between paths --------------------------------------------------------------------------------------------------------

X = np.arange(3.0)
LINE = np.array([0.1, 0.7, 1.2])


def trend(y):
    level = ab.sample("level", dist.Normal(0.0, 1.0))
    rises = ab.sample("rises", dist.Bernoulli(0.5))
    slope = ab.sample("slope", dist.Normal(0.0, 1.0)) if rises else 0.0
    ab.observe("y", dist.Normal(level + slope * X, 0.5), y)


def draw_slope(trace):
    if not trace["rises"]:
        ab.sample("u", dist.Normal(0.25, 0.25))


def birth_death(trace, aux):
    """The line keeps its middle; the slope is twice the auxiliary variable, so that the Jacobian is 2."""
    if trace["rises"]:
        return {"rises": 0, "level": trace["level"] + trace["slope"]}, {"u": trace["slope"] / 2}
    return {"rises": 1, "level": trace["level"] - 2 * aux["u"], "slope": 2 * aux["u"]}, {}


def draw_steps_of(trace):
    for name in sorted(trace.keys() - {"rises"}):
        ab.sample(name, dist.Normal(0.0, 0.3))


def walk_all(trace, aux):
    return trace | {name: trace[name] + aux[name] for name in aux}, {name: -aux[name] for name in aux}


LINE_MOVES = [Move(draw_slope, birth_death, name="birth-death"), Move(draw_steps_of, walk_all, name="walk")]


def line_answers():
    return [exact.linear(LINE, X[:, None] ** np.arange(p), 0.0, 1.0, 0.5) for p in (1, 2)]


def line_probability():
    flat, rising = (np.exp(answer.log_evidence) for answer in line_answers())
    return rising / (flat + rising)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("between", [0, 1])
def test_birth_and_death_find_the_weights_of_paths(seed, between):
    moves = LINE_MOVES[: 2 - between]
    posterior = ab.infer(trend, LINE, engine=InvolutiveMH(moves, between=between), budget=20_000, seed=seed)
    probability, sd = posterior.expectation(lambda draw: draw["rises"] == 1)
    assert abs(probability - line_probability()) < 4 * sd < 0.4
    assert sd < 0.03
    assert posterior.probability("rises")[1] == pytest.approx(probability, abs=1e-3)


def test_birth_and_death_leave_the_posterior_as_it_is():
    n, rng = 20_000, np.random.default_rng(5)
    rises = rng.random(n) < line_probability()
    flat, rising = (rng.multivariate_normal(answer.mean, answer.covariance, n) for answer in line_answers())
    values = {"rises": rises.astype(int), "level": np.where(rises, rising[:, 0], flat[:, 0]), "slope": rising[:, 1]}
    runner, before = population(trend, (LINE,), values, {"slope": rises})
    after = moved(runner, before, LINE_MOVES[:1])

    def functions(t):
        rises, level, slope = value(t, "rises"), value(t, "level"), value(t, "slope")
        return [rises, level, level**2, slope, slope**2, level * slope, level * rises]

    assert np.abs(z_scores(before, after, functions)).max() < 4
    assert (value(after, "rises") != value(before, "rises")).mean() > 0.3


def test_the_python_of_a_move_runs_once_for_each_way_it_goes():
    values = {"rises": np.tile([0, 1], 500), "level": np.zeros(1000), "slope": np.ones(1000)}
    runner, state = population(trend, (LINE,), values)
    jump = Jump(LINE_MOVES[0], runner)
    for seed in range(5):
        state = jump.step(state, np.random.default_rng(seed))
    assert [each.tree.runs for each in jump._by_path.values()] == [1, 1]


def test_same_seed_same_answer():
    runs = [ab.infer(trend, LINE, engine=InvolutiveMH(LINE_MOVES), budget=4_000, seed=3) for _ in range(2)]
    one, other = (run.draws(50, seed=1)["level"] for run in runs)
    np.testing.assert_array_equal(one, other)
    assert runs[0].probability("rises") == runs[1].probability("rises")


# A mixture ------------------------------------------------------------------------------------------------------------

GROWS = {1: 1.0, 2: 0.5, 3: 0.0}


def draw_split(trace):
    K = trace["extra"] + 1
    if ab.sample("grow", dist.Bernoulli(GROWS[K])):
        ab.sample("j", dist.DiscreteUniform(0, K - 1))
        ab.sample("w", dist.Normal(0.0, 1.5))
    else:
        ab.sample("j", dist.DiscreteUniform(0, K - 2))


def split_merge(trace, aux):
    K, j = trace["extra"] + 1, aux["j"]
    mine = trace[f"mean{j}"]
    if aux["grow"]:
        parts = {"extra": K, f"mean{j}": mine - aux["w"], f"mean{K}": mine + aux["w"]}
        return trace | parts, {"grow": 0, "j": j}
    last = trace.pop(f"mean{K - 1}")
    merged = {"extra": K - 2, f"mean{j}": (mine + last) / 2}
    return trace | merged, {"grow": 1, "j": j, "w": (last - mine) / 2}


def draw_birth(trace):
    if ab.sample("grow", dist.Bernoulli(GROWS[trace["extra"] + 1])):
        ab.sample("mean", dist.Normal(0.0, 2.5))


def add_remove(trace, aux):
    K = trace["extra"] + 1
    if aux["grow"]:
        return trace | {"extra": K, f"mean{K}": aux["mean"]}, {"grow": 0}
    last = trace.pop(f"mean{K - 1}")
    return trace | {"extra": K - 2}, {"grow": 1, "mean": last}


def draw_means(trace):
    for k in range(trace["extra"] + 1):
        ab.sample(f"mean{k}", dist.Normal(0.0, 0.6))


MIXTURE_MOVES = [
    Move(draw_split, split_merge, name="split-merge"),
    Move(draw_birth, add_remove, name="birth-death"),
    Move(draw_means, walk_all, name="walk", weight=2),
]


def mixture_draws(y: np.ndarray, n: int, rng: np.random.Generator) -> tuple[Values, Values]:
    """Exact draws of the mixture's posterior: the assignment of the data first, then the means."""
    parts = []
    for K, prior in ((1, 0.3), (2, 0.3), (3, 0.4)):
        labels = np.array(list(itertools.product(range(K), repeat=len(y))))
        size, total = (np.stack([part(labels == k) for k in range(K)], axis=1) for part in (sum_of, y.__rmatmul__))
        variance = 1 / (1 / 2.5**2 + size)
        mean = variance * total
        log_weight = np.log(prior) - len(y) * np.log(K) + (np.log(variance / 2.5**2) + mean**2 / variance).sum(1) / 2
        pad = ((0, 0), (0, 3 - K))
        parts.append((np.full(len(labels), K - 1), log_weight, np.pad(mean, pad), np.pad(variance, pad)))
    extra, log_weight, mean, variance = (np.concatenate(part) for part in zip(*parts, strict=True))
    weights = np.exp(log_weight - log_weight.max())
    chosen = rng.choice(len(weights), n, p=weights / weights.sum())
    means = mean[chosen] + np.sqrt(variance[chosen]) * rng.standard_normal((n, 3))
    values = {"extra": extra[chosen]} | {f"mean{k}": means[:, k] for k in range(3)}
    return values, {f"mean{k}": extra[chosen] >= k for k in range(3)}


def sum_of(mask: np.ndarray) -> np.ndarray:
    return mask.sum(axis=1)


def mixture_functions(traces: Traces) -> list[np.ndarray]:
    means = np.array([value(traces, f"mean{k}") for k in range(3)])
    three = value(traces, "extra") == 2
    return [three, means.sum(axis=0), (means**2).sum(axis=0), three * (means**2).sum(axis=0), means.max(axis=0)]


@pytest.mark.parametrize("number", range(3))
def test_moves_of_a_mixture_leave_the_posterior_as_it_is(number):
    values, present = mixture_draws(exact.CLUMPS, 20_000, np.random.default_rng(6))
    runner, before = population(exact.unknown_components, (exact.CLUMPS,), values, present)
    truth = exact.named("unknown_components").probabilities["K"]
    assert abs((value(before, "extra") == 2).mean() - truth[3]) < 4 * np.sqrt(truth[3] * truth[2] / len(before))
    after = moved(runner, before, [MIXTURE_MOVES[number]], rounds=2)
    functions = mixture_functions if number < 2 else lambda traces: mixture_functions(traces)[1:]
    assert np.abs(z_scores(before, after, functions)).max() < 4


@pytest.mark.one_in(2)
@pytest.mark.parametrize("seed", [0, 1])
def test_split_merge_and_birth_death_find_the_posterior_of_a_mixture(seed):
    case = exact.named("unknown_components")
    engine = InvolutiveMH(MIXTURE_MOVES, chains=400, between=0)
    posterior = ab.infer(case.program, *case.args, engine=engine, budget=60_000, seed=seed)
    probability, sd = posterior.expectation(lambda draw: draw["K"] == 3)
    assert abs(probability - case.probabilities["K"][3]) < 4 * sd
    assert sd < 0.02
    for function, truth in case.expectations.values():
        mean, sd = posterior.expectation(function)
        assert abs(mean - truth) < 4 * sd < 1
        assert sd < 0.5


# What a move may use --------------------------------------------------------------------------------------------------


def test_functions_may_take_the_arguments_of_the_program():
    def towards_the_data(trace, y, scale=0.8):
        ab.sample("u", dist.Normal(0.5 * (jnp.mean(y) - trace["mu"]), scale))

    draws, answer = np.random.default_rng(7), exact.same_mean(Y, 0.0, 2.0, 1.0)
    mu = draws.normal(answer.mean[0], np.sqrt(answer.covariance[0, 0]), 20_000)
    runner, before = population(normal, (Y,), {"mu": mu})
    after = moved(runner, before, [Move(towards_the_data, lambda trace, aux, y: walk(trace, aux))])
    assert np.abs(z_scores(before, after, lambda t: [value(t, "mu"), value(t, "mu") ** 2])).max() < 4


def test_auxiliary_variables_need_no_name():
    def unnamed(trace):
        u = ab.sample(dist.Normal(0.0, 0.8))  # noqa: F841

    posterior = ab.infer(normal, Y, engine=InvolutiveMH([Move(unnamed, walk)], between=0), budget=1_000)
    assert posterior.run.evaluations >= 1_000


def test_a_vector_of_discrete_values_stays_a_variable():
    y = np.array([-2.0, 1.8])

    def labels(y):
        z = ab.sample("z", dist.Bernoulli(0.5).expand([2]).to_event(1))
        ab.observe("y", dist.Normal(2.0 * z - 1.0, 1.0), y)

    def choose(trace):
        ab.sample("i", dist.DiscreteUniform(0, 1))

    def flip(trace, aux):
        return {"z": trace["z"].at[aux["i"]].set(1 - trace["z"][aux["i"]])}, aux

    engine = InvolutiveMH([Move(choose, flip)], between=0)
    posterior = ab.infer(labels, y, engine=engine, budget=10_000)
    mean, sd = posterior.expectation(lambda draw: draw["z"][..., 1])
    assert abs(mean - 1 / (1 + np.exp(-2 * 1.8))) < 4 * sd < 0.4
    assert sd < 0.02


# Wrong moves are caught -----------------------------------------------------------------------------------------------


def caught(proposal, involution, program=trend, data=LINE, **settings):
    engine = InvolutiveMH([Move(proposal, involution, name="wrong")], chains=50, between=0)
    with pytest.raises(errors.EngineCannotRun) as raised:
        ab.infer(program, data, engine=engine, budget=2_000, **settings)
    assert "'wrong'" in str(raised.value)
    return raised.value


def test_what_is_not_an_involution():
    error = caught(draw_step, lambda trace, aux: ({"mu": trace["mu"] + aux["u"]}, aux), normal, Y)
    assert "h(h(x, a)) differs from (x, a) by" in str(error)
    assert "is not an involution" in str(error)
    assert error.site == "mu"


def test_what_does_not_return_to_the_same_path():
    def three(y):
        k = ab.sample("k", dist.DiscreteUniform(0, 2))
        ab.observe("y", dist.Normal(float(k), 1.0), y)

    error = caught(lambda trace: None, lambda trace, aux: ({"k": (trace["k"] + 1) % 3}, {}), three, 1.0)
    assert "differs from (x, a) by 2" in str(error) or "differs from (x, a) by 1" in str(error)


def test_a_number_of_continuous_values_that_changes():
    def involution(trace, aux):
        if trace["rises"]:
            return {"rises": 0, "level": trace["level"]}, {}
        return {"rises": 1, "level": trace["level"], "slope": 0.5}, {}

    error = caught(lambda trace: None, involution)
    assert "an involution must keep the number of continuous values" in str(error)
    assert "2 went in, 1 came out" in str(error) or "1 went in, 2 came out" in str(error)


def test_a_site_that_is_missing():
    def involution(trace, aux):
        if trace["rises"]:
            return {"rises": 0, "level": trace["level"]}, {"u": trace["slope"]}
        return {"rises": 1, "level": trace["level"]}, {}

    error = caught(draw_slope, involution)
    assert error.site == "slope"
    assert "leads from the path (rises = 0) to (rises = 1), and returns no value" in str(error)


def test_a_site_that_the_program_does_not_have():
    def involution(trace, aux):
        return {**walk(trace, aux)[0], "nu": 0.0}, {"u": -aux["u"]}

    error = caught(draw_step, involution, normal, Y)
    assert error.site == "nu"
    assert "has no such site" in str(error)


def test_a_site_of_another_shape():
    error = caught(draw_step, lambda trace, aux: ({"mu": jnp.stack([trace["mu"]] * 2)}, aux), normal, Y)
    assert error.site == "mu"
    assert "returns no value of the shape ()" in str(error)


def test_auxiliary_variables_that_are_missing_or_too_many():
    def lacks(trace, aux):
        return birth_death(trace, aux)[0], {}

    error = caught(draw_slope, lacks)
    assert error.site == "u"
    assert "cannot be undone from the path (rises = 0)" in str(error)
    assert "returns no value for it" in str(error)

    error = caught(draw_step, lambda trace, aux: (walk(trace, aux)[0], {"u": -aux["u"], "v": 1.0}), normal, Y)
    assert error.site == "v"
    assert "does not draw it" in str(error)


def test_a_hidden_derivative():
    def involution(trace, aux):
        return {"mu": jax.lax.stop_gradient(trace["mu"]) + aux["u"]}, {"u": -aux["u"]}

    error = caught(draw_step, involution, normal, Y)
    assert "multiply to 0 instead of 1" in str(error)
    assert "stop_gradient" in str(error)


def test_a_derivative_that_is_not_a_number():
    def involution(trace, aux):
        nothing = jnp.sqrt(trace["mu"] - trace["mu"])  # whose slope is infinite, times zero
        return {"mu": trace["mu"] + aux["u"] + nothing}, {"u": -aux["u"]}

    assert "multiply to nan instead of 1" in str(caught(draw_step, involution, normal, Y))


def test_a_discrete_site_that_is_given_a_real_number():
    error = caught(draw_slope, lambda trace, aux: ({**trace, "rises": 0.5}, aux))
    assert error.site == "rises"
    assert "gives it the value 0.5, and it is discrete" in str(error)

    def choose(trace):
        ab.sample("c", dist.Bernoulli(0.5))

    error = caught(choose, lambda trace, aux: (trace, {"c": 0.25}), normal, Y)
    assert error.site == "c"


def test_a_move_that_leaves_jax():
    error = caught(draw_step, lambda trace, aux: ({"mu": float(trace["mu"])}, aux), normal, Y)
    assert "uses a real number outside JAX" in str(error)
    assert error.where is not None
    assert error.where.startswith("test_involutive.py")


def test_a_proposal_that_observes():
    def observes(trace):
        ab.factor("f", trace["mu"])

    assert caught(observes, walk, normal, Y).site == "f"

    def certain(trace):
        ab.sample("u", dist.Delta(1.0))

    assert "Delta" in str(caught(certain, walk, normal, Y))


def test_a_proposal_without_end():
    def endless(trace):
        for i in range(1000):
            ab.sample(f"u{i}", dist.Normal(0.0, 1.0))

    assert "max_sites" in str(caught(endless, walk, normal, Y, max_sites=10))


def test_a_site_whose_numbers_hang_together():
    def correlated():
        ab.sample("L", dist.LKJCholesky(2))

    def turn(trace, aux):
        return {"L": trace["L"] * jnp.array([[1.0, 1.0], [-1.0, 1.0]])}, {"u": -aux["u"]}

    with pytest.raises(errors.EngineCannotRun, match="cannot vary by themselves") as raised:
        ab.infer(correlated, engine=InvolutiveMH([Move(draw_step, turn)], between=0), budget=1_000)
    assert raised.value.site == "L"
    # Handed on as it is, it does no harm.
    engine = InvolutiveMH([Move(draw_step, lambda trace, aux: (trace, {"u": -aux["u"]}))], between=0)
    ab.infer(correlated, engine=engine, budget=1_000)


def test_what_an_involution_returns():
    with pytest.raises(TypeError, match="must return two dictionaries") as raised:
        ab.infer(normal, Y, engine=InvolutiveMH([Move(draw_step, lambda trace, aux: trace)], between=0), budget=1_000)
    assert any("from the path (always)" in note for note in raised.value.__notes__)


def test_moves_that_never_come_about():
    def far(trace):
        ab.sample("u", dist.Normal(1e6, 1.0))

    posterior = ab.infer(normal, Y, engine=InvolutiveMH([Move(far, walk, name="far")]), budget=2_000)
    assert any("'far'" in text and "never accepted" in text for text in posterior.warnings)


def test_settings_are_checked():
    move = Move(draw_step, walk, weight=2)
    assert repr(move) == "Move('walk', weight=2)"
    settings = "moves=(Move('walk', weight=2),), chains=100, warmup=0.2, between=1, local_share=0.5"
    assert repr(InvolutiveMH(move)) == f"InvolutiveMH({settings})"
    with pytest.raises(TypeError, match="one or several Move"):
        InvolutiveMH([])
    with pytest.raises(TypeError, match="one or several Move"):
        InvolutiveMH([walk])
    with pytest.raises(ValueError, match="between"):
        InvolutiveMH([move], between=-1)
    with pytest.raises(ValueError, match="chains"):
        InvolutiveMH([move], chains=0)
    with pytest.raises(TypeError, match="involution must be a function"):
        Move(draw_step, None)
    with pytest.raises(ValueError, match="weight"):
        Move(draw_step, walk, weight=0)
