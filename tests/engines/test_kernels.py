"""Every Markov kernel leaves the posterior as it is: exact draws stay exact draws after a step.

The draws come from rejection, of which thousands are exact and independent. Expectations after a step are compared with
the exact ones, and the step must have moved something. A kernel with a wrong ratio fails: see the last test.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import engines
from anabranch.divide.batch import Constraints
from anabranch.engines import single_site
from anabranch.engines.particle_filter import Filter
from anabranch.engines.runner import Runner
from anabranch.engines.single_site import LocalMoves, single_site_step
from anabranch.engines.traces import Traces
from engine_cases import BOUNDS, CASES, SERIES, hidden_branches
from exact import Exact, named

pytestmark = pytest.mark.one_in(5)

Step = Callable[[Runner, Traces, np.random.Generator], Traces]

TRIED = [case for case in CASES if case.name in ("normal_mean", "hidden_branches", "stopped", "coin", "barrier")]


def runner_of(case: Exact, seed: int) -> Runner:
    return Runner(ab.find_paths(case.program, *case.args, executions=10).sequential(), seed)


def exact_draws(runner: Runner, n: int, rng: np.random.Generator, log_bound: float = 0.0) -> Traces:
    """Executions from the posterior, by rejection."""
    kept: list[Traces] = []
    while sum(map(len, kept)) < n:
        traces = runner.execute(10_000)
        kept.append(traces.take(np.flatnonzero(np.log(rng.random(len(traces))) < traces.log_likelihood - log_bound)))
    return Traces.joined(kept).take(np.arange(n))


def z_scores(case: Exact, traces: Traces) -> dict[str, float]:
    """The errors of the means over the executions, in their standard errors."""
    values: dict[str, np.ndarray] = {}
    for path, rows in traces.by_path():
        points = path.coordinates(traces.named(path, rows))
        for outcome in path.outcomes(points):
            for name in [*case.probabilities, *case.expectations]:
                known = {**outcome.values, **outcome.deterministics}[name]
                values.setdefault(name, np.zeros(len(traces)))[rows[outcome.index]] = known
    truths = {name: (values[name], truth) for name, (_, truth) in case.expectations.items()}
    for name, of_values in case.probabilities.items():
        value = max(of_values, key=of_values.__getitem__)
        truths[f"{name} = {value}"] = (values[name] == value).astype(float), of_values[value]
    return {
        name: float((value.mean() - truth) / (value.std() / np.sqrt(len(value))))
        for name, (value, truth) in truths.items()
    }


def lightweight(runner: Runner, state: Traces, rng: np.random.Generator) -> Traces:
    return single_site_step(runner, state, LocalMoves(0.0), rng)


def random_walk(runner: Runner, state: Traces, rng: np.random.Generator) -> Traces:
    return single_site_step(runner, state, LocalMoves(0.9), rng)


def particle_gibbs(runner: Runner, state: Traces, rng: np.random.Generator) -> Traces:
    return engines.ParticleGibbs(particles=3, threshold=0.9).step(runner, state, rng)


def with_ancestors(runner: Runner, state: Traces, rng: np.random.Generator) -> Traces:
    return engines.ParticleGibbs(particles=3, threshold=0.9, ancestor_sampling=True).step(runner, state, rng)


def interacting(runner: Runner, state: Traces, rng: np.random.Generator) -> Traces:
    return engines.IPMCMC(particles=2, nodes=4, conditional=2).step(runner, state, rng)[0]


def extended(runner: Runner, state: Traces, rng: np.random.Generator, particles: int) -> tuple[Traces, np.ndarray]:
    """Draws with log Ẑ of a filter that they could have come from: by a conditional filter."""
    swept = Filter(particles, "multinomial").conditional_sweep(runner, state, rng)
    return swept.picked(rng), swept.log_evidence


def independent(runner: Runner, state: Traces, rng: np.random.Generator) -> Traces:
    return engines.PIMH(particles=3).step(runner, *extended(runner, state, rng, 3), rng)[0]


KERNELS: list[Step] = [lightweight, random_walk, particle_gibbs, with_ancestors, interacting, independent]


@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.name)
@pytest.mark.parametrize("step", KERNELS, ids=lambda step: step.__name__)
def test_kernel_leaves_the_posterior_unchanged(step: Step, case: Exact) -> None:
    runner, rng = runner_of(case, 1), np.random.default_rng(1)
    before = exact_draws(runner, 6_000, rng, BOUNDS.get(case.name, 0.0))
    after = before
    for _ in range(3):
        after = step(runner, after, rng)
    assert (after.log_density != before.log_density).mean() > 0.1
    assert all(abs(z) < 4 for z in z_scores(case, before).values())
    assert all(abs(z) < 4 for z in z_scores(case, after).values()), z_scores(case, after)


@pytest.mark.parametrize("parameters", [None, ["mu"]])
def test_marginal_kernel_leaves_the_posterior_unchanged(parameters: list[str] | None) -> None:
    """Given its parameters, an execution is drawn anew by a conditional filter, with the estimate that goes with it."""
    case = next(case for case in CASES if case.name == "stopped")
    runner, rng = runner_of(case, 2), np.random.default_rng(2)
    engine = engines.PMMH(particles=3, parameters=parameters)
    state = exact_draws(runner, 10_000, rng)
    marginal = engine._parameters.of(state)
    given = engine._parameters.repeated(marginal)
    led = Filter(3, "multinomial")
    own = led._led_by(state, np.ones(len(state), bool))
    both = {key: np.where(own.present[key].reshape(-1, *[1] * len(key[1])), own.values[key],
                          given.values.get(key, own.values[key])) for key in own.values}  # fmt: skip
    present = {key: own.present[key] | given.present.get(key, np.zeros(len(own.present[key]), bool)) for key in both}
    swept = led._sweep(runner, len(state), rng, Constraints(both, present), np.ones(len(state), bool))
    state, log_z = swept.picked(rng), swept.log_evidence
    before = state
    for _ in range(3):
        state, log_z = engine.step(runner, state, log_z, LocalMoves(engine.local_share), rng)
    assert (state.log_density != before.log_density).mean() > 0.1
    assert all(abs(z) < 4 for z in z_scores(case, state).values()), z_scores(case, state)


def test_sites_that_cannot_keep_their_value_are_counted_both_ways() -> None:
    """The support of a site depends on another: a move that could not be undone must be refused."""

    def program() -> None:
        wide = ab.sample("wide", dist.Bernoulli(0.3))
        x = ab.sample("x", dist.Uniform(0.0, 2.0 if wide else 1.0))
        ab.observe("y", dist.Normal(x, 0.5), 0.9)

    runner, rng = Runner(ab.find_paths(program), 0), np.random.default_rng(0)
    before = exact_draws(runner, 20_000, rng)
    after = before
    for _ in range(3):
        after = lightweight(runner, after, rng)
    key = ("wide", ())
    p, q = before.values[key].mean(), after.values[key].mean()
    assert abs(p - q) < 4 * np.sqrt(2 * p * (1 - p) / 20_000)
    inside = [each.values["x", ()] * (each.values["x", ()] < 0.5) for each in (before, after)]
    assert abs(inside[0].mean() - inside[1].mean()) < 4 * np.sqrt(2) * inside[0].std() / np.sqrt(20_000)


def test_a_step_that_is_rounded_out_of_the_support_is_refused() -> None:
    """The value is then drawn from the prior, and is not where the step leads to."""

    def program() -> None:
        x = ab.sample("x", dist.HalfNormal(1.0))
        ab.observe("y", dist.Normal(x, 1.0), 0.5)

    runner, key = Runner(ab.find_paths(program), 0), ("x", ())
    state = runner.execute(4, Constraints({key: np.array([1e-300, 0.5, 0.5, 2.0])}))
    steps = np.array([-100.0, -1.0, 0.1, 0.5])
    given = Constraints(dict(state.values), dict(state.present), {key: steps}, redraw_outside=True)
    proposal = single_site.SiteProposal([key], np.zeros(4, int), np.zeros(4, bool), given)
    executions = runner.send(4, proposal.given)
    new = runner.traces(executions, 4)
    log_alpha = single_site.log_acceptance(runner, state, new, proposal, executions)
    assert log_alpha[0] == -np.inf
    assert np.isfinite(log_alpha[1:]).all()
    assert new.values[key][1:] == pytest.approx(state.values[key][1:] * np.exp(steps[1:]))


@pytest.mark.parametrize("broken", ["number of sites", "fresh sites", "jacobian", "undo"])
def test_the_tests_would_notice_a_wrong_ratio(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = named("survival") if broken == "jacobian" else next(case for case in CASES if case.name == "stopped")
    if broken == "undo":
        monkeypatch.setattr(single_site, "_cannot_be_undone", lambda *_: np.zeros(20_000, bool))
        with pytest.raises(AssertionError):
            test_sites_that_cannot_keep_their_value_are_counted_both_ways()
        return
    correct = single_site._log_ratio

    def wrong(state: Traces, new: Traces, proposal: single_site.SiteProposal) -> tuple[np.ndarray, np.ndarray]:
        ratio, refused = correct(state, new, proposal)
        if broken == "number of sites":
            return ratio - np.log(state.sites) + np.log(np.maximum(new.sites, 1)), refused
        return new.log_likelihood - state.log_likelihood + 0.3 * (new.sites - state.sites), refused

    if broken == "jacobian":
        monkeypatch.setattr(single_site, "_log_jacobians", lambda state, *_: np.zeros(len(state)))
    else:
        monkeypatch.setattr(single_site, "_log_ratio", wrong)
    runner, rng = runner_of(case, 3), np.random.default_rng(3)
    state = exact_draws(runner, 20_000 if broken != "jacobian" else 5_000, rng, BOUNDS.get(case.name, 0.0))
    for _ in range(30 if broken == "jacobian" else 6):
        state = random_walk(runner, state, rng)
    assert any(abs(z) > 4 for z in z_scores(case, state).values())


def test_particles_stop_where_a_later_decision_is_not_taken_yet() -> None:
    """A state that is decided on after it was observed must be weighed with the value of each particle."""
    runner = Runner(ab.find_paths(hidden_branches, SERIES[:3], executions=10).sequential(), 0)
    rng = np.random.default_rng(0)
    log_z = Filter(200).sweep(runner, 400, rng).log_evidence
    truth = Exact("", hidden_branches, (SERIES[:3],), CASES[2].parts).log_evidence
    weights = np.exp(log_z - truth)
    assert abs(weights.mean() - 1) < 4 * weights.std() / 20
