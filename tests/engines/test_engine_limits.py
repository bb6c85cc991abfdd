"""Limits of engines: the budget is not exceeded, the time is kept from the first moment on, interrupts lose nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import engines, errors
from anabranch.combine import Posterior
from anabranch.divide import find_paths, graph
from anabranch.engines.centred import _width
from anabranch.engines.collection import Collection
from anabranch.engines.markov import ChainSteps
from anabranch.engines.path_loop import PathLoop
from anabranch.engines.runner import Runner
from anabranch.engines.sampler import Session
from anabranch.engines.walk import Walk
from anabranch.limits import LimitReached, Limits, Pace, enforced
from helpers import use_false_clock

pytestmark = pytest.mark.one_in(6)

SECONDS = 1.0


def compiled(y: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    wide = ab.sample("wide", dist.Bernoulli(0.5))
    scale = ab.sample("scale", dist.Gamma(4.0, 2.0)) if wide else 1.0
    ab.observe("y0", dist.Normal(x, scale), y)
    ab.observe("y1", dist.Normal(x, 1.0), y)


def interpreted(y: float) -> None:
    x = ab.sample("x", dist.Normal(0.0, 1.0))
    scale = ab.sample("scale", dist.Gamma(4.0, 2.0)) if float(x) > 1 else 1.0
    ab.observe("y0", dist.Normal(float(x), scale), y)
    ab.observe("y1", dist.Normal(x, 1.0), y)


def guide(y: float) -> None:
    ab.sample("x", dist.Normal(0.5 * y, 1.0))


def fitted_guide(y: float) -> None:
    ab.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))


STAY = engines.Move(lambda trace: None, lambda trace, aux: (trace, aux), name="stay")
ALL: dict[str, Any] = {
    "Rejection": engines.Rejection(log_bound=0.0),
    "ImportanceSampling": engines.ImportanceSampling(),
    "ImportanceSampling, guided": engines.ImportanceSampling(guide=guide),
    "SMC": engines.SMC(),
    "SMC, resample-move": engines.SMC(rejuvenation=2),
    "SMC2": engines.SMC2(),
    "ParticleGibbs": engines.ParticleGibbs(),
    "ParticleGibbs, ancestors": engines.ParticleGibbs(ancestor_sampling=True),
    "PIMH": engines.PIMH(),
    "PMMH": engines.PMMH(parameters=["x"]),
    "IPMCMC": engines.IPMCMC(),
    "LightweightMH": engines.LightweightMH(),
    "RandomWalkMH": engines.RandomWalkMH(),
    "RandomWalkMH, centred": engines.RandomWalkMH(importance_samples=0.5),
    "InvolutiveMH": engines.InvolutiveMH(STAY),
    "BBVI": engines.BBVI(),
    "SVI": engines.SVI(fitted_guide),
}
PROGRAMS = {"compiled": compiled, "interpreted": interpreted}
MOST_EVALUATIONS = 10**9


def inferred(name: str, program: Callable[..., Any] = compiled, **limits: Any) -> Posterior:
    return ab.infer(program, 1.0, engine=ALL[name], **{"tolerance": None, "budget": MOST_EVALUATIONS} | limits)


def log_evidence_of_compiled() -> float:
    """By quadrature."""
    x, s = np.linspace(-6, 6, 801)[:, None], np.linspace(1e-3, 15, 3001)[None]
    prior = np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi)
    gamma = s**3 * np.exp(-2 * s) * 2.0**4 / 6
    near = np.exp(-0.5 * (1 - x) ** 2) / np.sqrt(2 * np.pi)
    wide = prior * gamma * near * np.exp(-0.5 * ((1 - x) / s) ** 2) / (s * np.sqrt(2 * np.pi))
    narrow = prior * near**2
    step_x, step_s = x[1, 0] - x[0, 0], s[0, 1] - s[0, 0]
    return float(np.log(0.5 * wide.sum() * step_x * step_s + 0.5 * narrow.sum() * step_x))


# The time -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [2, 300, 3_000])
@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", ALL)
def test_the_time_is_kept_from_the_first_moment_on(
    name: str, program: str, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock goes on only when it is asked: what it says in the end tells what was done once the time was over."""
    use_false_clock(monkeypatch, step=SECONDS / asked)
    try:
        posterior = inferred(name, PROGRAMS[program], seconds=SECONDS)
    except errors.LimitTooSmall as error:
        message = str(error)
        assert "has no posterior after 1 seconds" in message
        assert asked <= 300 or name not in ("Rejection", "ImportanceSampling", "SMC")
        return
    assert "1 seconds are over" in posterior.run.stopped
    late = (posterior.run.seconds - SECONDS) * asked / SECONDS
    assert late <= 12
    assert posterior.run.evaluations > 0
    weights = posterior.evidence.weights
    assert not len(weights) or weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", ["ImportanceSampling", "SMC", "LightweightMH"])
def test_an_interpreted_program_is_not_run_once_the_time_is_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use_false_clock(monkeypatch, step=SECONDS / 2_000)
    clock = Limits(seconds=SECONDS)
    runs = []

    def program(y: float) -> None:
        runs.append(clock.elapsed)
        interpreted(y)

    inferred(name, program, seconds=SECONDS)
    assert max(runs) <= SECONDS + 2 * SECONDS / 2_000


@pytest.mark.parametrize("name", ["ImportanceSampling", "SMC", "PIMH"])
def test_what_the_time_ends_leaves_no_bias(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of Ẑ over many runs, each ended by the time, is Z."""
    estimates = []
    for seed in range(25):
        use_false_clock(monkeypatch, step=SECONDS / 2_000)
        estimates.append(np.exp(inferred(name, seconds=SECONDS, seed=seed).log_evidence))
    sd = np.std(estimates) / np.sqrt(len(estimates))
    assert abs(np.mean(estimates) - np.exp(log_evidence_of_compiled())) < 4 * sd < 0.4 * np.mean(estimates)


def test_chains_that_were_quick_do_not_count_for_more() -> None:
    walked = ChainSteps.begun(4, np.array([True, True, False]), every=1)
    walked.clock[:] = 4, 2, 0
    assert walked.whole == 2
    assert walked.on_the_way.tolist() == [False, True, False]


def test_a_guide_that_takes_long_is_explored_for_a_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    use_false_clock(monkeypatch, step=SECONDS / 2_000)
    runs = itertools.count()

    def program(y: float) -> None:
        for k in range(20):
            x = ab.sample("x" if k == 0 else f"unused{k}", dist.Normal(0.0, 1.0))
        ab.observe("y", dist.Normal(x, 1.0), y)

    def guide(y: float) -> None:
        next(runs)
        for k in range(20):
            float(ab.sample("x" if k == 0 else f"unused{k}", dist.Normal(0.0, 1.0)))

    posterior = ab.infer(
        program, 1.0, engine=engines.ImportanceSampling(guide=guide), seconds=SECONDS, budget=MOST_EVALUATIONS
    )
    assert posterior.run.evaluations > 0
    assert next(runs) > posterior.run.evaluations


def test_without_a_time_the_clock_is_of_no_importance(monkeypatch: pytest.MonkeyPatch) -> None:
    times = np.random.default_rng(0)
    for name in ALL:
        one = inferred(name, budget=1_500, seed=2)
        with monkeypatch.context() as erratic:
            erratic.setattr(Limits, "elapsed", property(lambda limits: float(times.exponential(100.0))))
            two = inferred(name, budget=1_500, seed=2)
        assert one.evidence.weights.tolist() == two.evidence.weights.tolist()
        assert one.run.evaluations == two.run.evaluations


# The budget ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [1, 7, 101, 1_003, 10_000])
@pytest.mark.parametrize("name", ALL)
def test_the_budget_is_not_exceeded(name: str, budget: int) -> None:
    try:
        posterior = inferred(name, budget=budget)
    except errors.LimitTooSmall as error:
        message = str(error)
        assert f"after a budget of {budget} executions" in message
        assert budget <= 7
        return
    assert (0.9 * budget if budget > 7 else 1) <= posterior.run.evaluations <= budget
    assert sum(posterior.evidence.weights) == pytest.approx(1) or budget <= 7


@pytest.mark.parametrize("name", ["ImportanceSampling", "SMC", "IPMCMC", "PMMH", "BBVI"])
def test_a_larger_budget_is_not_exceeded(name: str) -> None:
    assert 99_000 <= inferred(name, budget=100_000).run.evaluations <= 100_000


@pytest.mark.parametrize("name", ["LightweightMH", "InvolutiveMH", "PIMH"])
def test_looking_for_a_start_is_within_the_budget(name: str) -> None:
    def program(y: float) -> None:
        x = ab.sample("x", dist.Normal(0.0, 1.0))
        ab.factor("never", jnp.where(x > 50.0, 0.0, -jnp.inf))

    with pytest.raises(errors.EngineCannotRun, match=r"(none|no particle) of") as caught:
        inferred(name, program, budget=500)
    numbers = [int(word.replace(",", "")) for word in str(caught.value).split() if word.replace(",", "").isdigit()]
    assert np.prod(numbers) <= 500


def test_a_run_without_filters_to_spare_has_no_evidence() -> None:
    posterior = ab.infer(compiled, 1.0, engine=engines.IPMCMC(nodes=4, conditional=2), budget=7)
    assert posterior.log_evidence is None
    assert any("before the warm-up did" in warning for warning in posterior.warnings)


def test_paths_without_importance_samples_leave_the_evidence_open() -> None:
    def program() -> None:
        k = ab.sample("k", dist.DiscreteUniform(0, 39))
        ab.observe("y", dist.Normal(ab.sample(f"x{int(k)}", dist.Normal(0.0, 1.0)), 1.0), 1.0)

    engine = engines.RandomWalkMH(chains=40, importance_samples=0.05)
    posterior = ab.infer(program, engine=engine, budget=400)
    assert posterior.log_evidence is None
    assert any("too small for importance samples on every path" in warning for warning in posterior.warnings)


def test_chains_that_have_hardly_moved_say_nothing_of_a_spread() -> None:
    """As after a short run: else the samples around their states would all be in the same few places."""
    path = find_paths(compiled, 1.0).paths[0]
    rng = np.random.default_rng(0)
    blocks = np.repeat(np.arange(50), 3)
    places = rng.normal(size=(50, path.dim))[blocks]
    width = _width(path, places + 1e-16 * rng.normal(size=places.shape), blocks)
    assert (width[~path.discrete] > 1).all()
    settled = np.repeat(np.arange(50), 20)
    moving = 0.1 * rng.normal(size=(1_000, path.dim)) + rng.normal(size=(50, path.dim))[settled]
    assert (_width(path, moving, settled)[~path.discrete] < 0.2).all()


# Interrupts ---------------------------------------------------------------------------------------------------------


def interrupting(function: Callable[..., Any], at: int, after: bool = False) -> Callable[..., Any]:
    """The function, interrupted at its n-th call: before it does anything, or once it has done all."""
    calls = itertools.count(1)

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        number = next(calls)
        if number == at and not after:
            raise KeyboardInterrupt
        result = function(*args, **kwargs)
        if number == at:
            raise KeyboardInterrupt
        return result

    return interrupted


@pytest.mark.parametrize("at", [1, 2, 5, 12])
@pytest.mark.parametrize("name", ALL)
def test_an_interrupt_loses_nothing(name: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Runner, "traces", interrupting(Runner.traces, at))
    met: list[Collection] = []
    add_all = Collection.add_all
    monkeypatch.setattr(Collection, "add_all", lambda self, *args: (met.append(self), add_all(self, *args))[1])
    try:
        posterior = inferred(name, budget=3_000)
    except KeyboardInterrupt:
        assert all(collection.is_empty for collection in met)
        return
    assert posterior.run.evaluations <= 3_000
    assert sum(posterior.evidence.weights) == pytest.approx(1)
    assert sum(len(solution.points) for solution in posterior.solutions) > 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("part", [(Collection, "add_all"), (Collection, "_taken"), (np, "unique")])
def test_an_interrupt_while_draws_are_added_leaves_all_of_them_or_none(
    part: tuple[Any, str], after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines.ImportanceSampling(batch=500)
    whole = {n: ab.infer(compiled, 1.0, engine=engine, budget=500 * n, tolerance=None) for n in (2, 3)}
    monkeypatch.setattr(Collection, "add_all", _with_interrupts(Collection.add_all, part, after))
    posterior = ab.infer(compiled, 1.0, engine=engine, budget=5_000, tolerance=None)
    assert "interrupted" in posterior.run.stopped
    expected = whole[3 if after and part[1] == "add_all" else 2]
    assert posterior.log_evidence == expected.log_evidence
    assert posterior.evidence.weights.tolist() == expected.evidence.weights.tolist()


def _with_interrupts(add_all: Callable[..., Any], part: tuple[Any, str], after: bool) -> Callable[..., Any]:
    """`add_all` of which the third call is interrupted, by itself or in a function that it calls."""
    if part[1] == "add_all":
        return interrupting(add_all, 3, after)
    calls = itertools.count(1)

    def interrupted(*args: Any) -> None:
        if next(calls) != 3:
            add_all(*args)
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*part, interrupting(getattr(*part), 1, after))
            add_all(*args)

    return interrupted


@pytest.mark.parametrize("at", [1, 40, 103, 150])
def test_an_interrupt_inside_the_program(at: int) -> None:
    program = interrupting(interpreted, at)
    try:
        posterior = ab.infer(lambda y: program(y), 1.0, engine=engines.ImportanceSampling(batch=10), budget=100)
    except KeyboardInterrupt:
        assert at < 112
        return
    assert "interrupted" in posterior.run.stopped
    assert posterior.run.evaluations == 40


@pytest.mark.parametrize("end", [KeyboardInterrupt, pytest.param(LimitReached, marks=pytest.mark.slow)])
def test_chains_that_are_ended_within_a_path_are_somewhere(end: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps that all chains have made count, and the state of a chain is that of an execution."""
    monkeypatch.setattr(Walk, "min_visits", 2)
    sessions: list[Session] = []
    goes_on, advance = Session.goes_on, PathLoop._arguments
    monkeypatch.setattr(Session, "goes_on", lambda self, needs=1: (sessions.append(self), goes_on(self, needs))[1])

    def ended(self: PathLoop, *args: Any) -> Any:
        if sessions[-1].progressed > 0.8:
            sessions[-1].limits.cancelled.set()
            raise end
        return advance(self, *args)

    monkeypatch.setattr(PathLoop, "_arguments", ended)
    posterior = inferred("RandomWalkMH", budget=100_000, seed=1)
    assert 80_000 < posterior.run.evaluations < 100_000
    mean, sd = posterior.expectation(lambda draw: float(draw["wide"]))
    assert abs(mean - 0.4099) < 4 * sd < 0.1


# In pieces ------------------------------------------------------------------------------------------------------------


def test_pieces_grow_while_they_are_quick_and_are_whole_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Pace().size(1_000) == 1_000
    use_false_clock(monkeypatch, step=0.001)
    pace, sizes = Pace(), []
    with enforced(Limits(seconds=1.0)):
        for _ in range(5):
            sizes.append(pace.size(100))
            with pace.measured(sizes[-1]):
                pass
        assert sizes == [1, 4, 16, 64, 100]
        with pytest.raises(LimitReached), pace.measured(50):
            raise LimitReached
        assert pace.size(100) == 100


def test_a_step_in_pieces_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        x = ab.sample("x", dist.Normal(0.0, 1.0).expand([30]).to_event(1))
        ab.observe("y", dist.Normal(jnp.linalg.norm(jnp.outer(x, x) + jnp.eye(30)), 1.0), 2.0)

    division = find_paths(program, executions=10)
    [group] = division.explore(50, seed=3)
    whole = group.scores()
    use_false_clock(monkeypatch, step=0.03)
    sizes = []
    apply = graph.numpy_backend.apply
    monkeypatch.setattr(
        graph.numpy_backend, "apply", lambda p, q, values: (sizes.append(max(map(len, values))), apply(p, q, values))[1]
    )
    with enforced(Limits(seconds=1e6)):
        [again] = division.explore(50, seed=3)
        pieces = again.scores()
    assert any(1 < size < 50 for size in sizes)
    np.testing.assert_array_equal(pieces.log_likelihood, whole.log_likelihood)
