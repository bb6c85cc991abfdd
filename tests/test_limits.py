"""A limit is a limit: time, budget and interrupts, on programs of many kinds; and what was not looked at is said."""

import _thread
import contextlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad
from scipy.stats import binom, chi2, gamma, halfcauchy, multivariate_normal, norm

import anabranch as ab
from anabranch import errors, programs
from anabranch.conquer import HMC, SMC, PathTarget, RandomWalk, Variational
from anabranch.conquer.weights import extrapolated_log_mean, log_mean
from anabranch.divide import dispatch, host_gradient
from anabranch.divide.dispatch import Jitted
from anabranch.limits import LimitReached, Limits, checkpoint, enforced
from anabranch.workers import Workers
from helpers import disguised, use_false_clock

WATCHDOG = 240
"""Seconds after which a process that should have ended is taken to hang; it takes a few."""


def in_a_process(script: str) -> str:
    """What a script prints; it fails where the script does not end."""
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WATCHDOG, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


# Compiled calls -------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("processes_compile_quickly")
def test_gaussian_processes_do_not_block_each_other():
    """In plain jax, two threads with compiled functions like these block each other for ever on two cores."""
    out = in_a_process("""
        import jax.numpy as jnp, numpy as np, numpyro.distributions as dist, anabranch as ab

        x = np.linspace(0.0, 1.0, 15)

        def process(y):
            kernel = int(ab.sample("kernel", dist.DiscreteUniform(0, 2)))
            scale, length = ab.sample("scale", dist.LogNormal(0.0, 1.0)), ab.sample("length", dist.LogNormal(-1.0, 1.0))
            d = np.abs(x[:, None] - x) / length
            K = [jnp.exp(-d**2 / 2), jnp.exp(-d), (1 + d) * jnp.exp(-d)][kernel]
            ab.observe("y", dist.MultivariateNormal(jnp.zeros(15), scale**2 * K + 0.05 * jnp.eye(15)), y)

        posterior = ab.infer(process, np.sin(6 * x), budget=8_000, tolerance=None, workers=2)
        print(len(posterior.paths), posterior.run.evaluations)
    """)
    paths, evaluations = map(int, out.split())
    assert paths == 3
    assert evaluations > 7_600


def test_compiled_calls_run_one_at_a_time():
    inside, most = 0, 0
    compiled = Jitted(lambda x: (jnp.linalg.cholesky(jnp.eye(8) + x[:, None] * x),))
    compiled(np.zeros(8))
    one = compiled.compiled_for(np.zeros(8))

    def slow(*arrays):
        nonlocal inside, most
        inside, most = inside + 1, max(most, inside + 1)
        time.sleep(0.01)
        inside -= 1
        return one(*arrays)

    compiled._function.compiled = dict.fromkeys(compiled._function.compiled, slow)
    threads = [threading.Thread(target=compiled, args=(np.full(8, float(i)),)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == 1


# Time -----------------------------------------------------------------------------------------------------------------


def slow_simulator(y):
    """Milliseconds of Python for an execution."""
    rate = float(ab.sample("rate", dist.Gamma(2.0, 1.0)))
    start = float(ab.sample("start", dist.Normal(0.0, 1.0))) if ab.sample("moves", dist.Bernoulli(0.5)) else 0.0
    state = start
    for _ in range(200):
        state += 0.01 * (1.0 - rate * state)
    ab.observe("y", dist.Normal(state, 0.5), y)


def with_sorted(y):
    """Python's `sorted` compares: the program leaves for the interpreter, or has as many paths as orders."""
    x = sorted(ab.sample(f"x{i}", dist.Uniform(0.0, 1.0)) for i in range(5))
    ab.observe("y", dist.Normal(jnp.stack(x), 0.1), y)


def hidden_markov(y):
    states = int(ab.sample("states", dist.DiscreteUniform(2, 3)))
    mu, z = ab.sample("mu", dist.Normal(0.0, 3.0).expand([states])), 0
    for t, value in enumerate(y):
        z = ab.sample(f"z{t}", dist.Categorical(jnp.full(states, 0.2 / (states - 1)).at[z].set(0.8)))
        ab.observe(f"y{t}", dist.Normal(mu[z], 1.0), value)


def change_points(y):
    k = int(ab.sample("k", dist.DiscreteUniform(0, 3)))
    at = jnp.sort(jnp.stack([ab.sample(f"at{i}", dist.Uniform(0.0, 1.0)) for i in range(k)] + [jnp.full((), 2.0)]))
    level = jnp.stack([ab.sample(f"level{i}", dist.Normal(0.0, 3.0)) for i in range(k + 1)])
    ab.observe("y", dist.Normal(level[jnp.searchsorted(at[:k], np.linspace(0, 1, len(y)))], 1.0), y)


TIMED = {
    "simulator": (slow_simulator, (1.0,)),
    "sorted": (with_sorted, (np.linspace(0.1, 0.9, 5),)),
    "hidden Markov": (hidden_markov, (np.repeat([0.0, 3.0], 6),)),
    "change points": (change_points, (np.repeat([0.0, 4.0], 10),)),
}


@pytest.mark.parametrize("name", TIMED)
@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0])
def test_the_clock_is_asked_wherever_a_run_is(name, seconds, monkeypatch):
    """On a clock by which each look takes a hundredth of a second: hardly any is taken after the time is over."""
    program, data = TIMED[name]
    looks = [0]
    late = [0]

    def elapsed(limits):
        looks[0] += 1
        now = 0.002 * looks[0]
        late[0] += limits.seconds is not None and now > limits.seconds
        return now

    monkeypatch.setattr(Limits, "elapsed", property(elapsed))
    with contextlib.suppress(errors.LimitTooSmall):
        posterior = ab.infer(program, *data, seconds=seconds, tolerance=None, budget=10**9, workers=1)
        assert posterior.run.stopped == f"The {seconds:g} seconds are over."
        assert not np.isnan(posterior.log_evidence)
    # A share of the time ends exploring; each of a few layers above then looks once more.
    assert late[0] < 40


def log_evidence_of_simulator(y):
    """By quadrature over the rate: given that, the state at the end is linear in the one at the start."""

    def density(rate, moves):
        slope = (1 - 0.01 * rate) ** 200
        return gamma.pdf(rate, 2.0) * norm.pdf(y, (1 - slope) / rate, np.sqrt(0.25 + (slope**2 if moves else 0.0)))

    return np.log(sum(0.5 * quad(density, 1e-9, 40.0, args=(moves,))[0] for moves in (False, True)))


def test_a_first_answer_comes_in_a_short_time_and_says_what_it_is_worth(monkeypatch):
    use_false_clock(monkeypatch, step=0.0005)
    posterior = ab.infer(slow_simulator, 1.0, seconds=1.0, tolerance=None)
    assert "seconds" in posterior.run.stopped
    assert abs(posterior.log_evidence - log_evidence_of_simulator(1.0)) < 4 * posterior.log_evidence_sd < 10


@pytest.mark.parametrize(
    "step", [0.002, 0.001, *(pytest.param(step, marks=pytest.mark.slow) for step in (0.00065, 0.0005))]
)
def test_what_was_not_looked_at_is_in_the_error(step, monkeypatch):
    """The mixture, stopped early: most of its paths were never visited, the one with the mass among them or not."""
    use_false_clock(monkeypatch, step)
    posterior = ab.infer(programs.mixture, programs.mixture_data(), seconds=60.0, tolerance=None)
    assert "seconds" in posterior.run.stopped
    assert abs(posterior.log_evidence - -132.611687) < 4 * posterior.log_evidence_sd < np.inf
    if posterior.log_evidence_sd > 1:
        assert any("may have up to" in warning for warning in posterior.warnings)


def test_limits_are_those_of_the_context():
    checkpoint()
    with enforced(Limits(seconds=1e-9)):
        with pytest.raises(LimitReached):
            checkpoint()
        with enforced(None):
            checkpoint()
    checkpoint()


# Answers of short runs ------------------------------------------------------------------------------------------------


MEANS = (*(0.1 * k for k in range(8)), 4.0)


def shifted(y):
    """One of nine normals; the last is improbable a priori."""
    k = ab.sample("k", dist.Categorical(jnp.array([0.1225] * 8 + [0.02])))
    mu = ab.sample("mu", dist.Normal(MEANS[k], 1.0))
    ab.observe("y", dist.Normal(mu, 1.0), y)
    return k


@pytest.mark.parametrize("budget", [1_000, 2_250, 2_500, 2_800])
@pytest.mark.parametrize("y", [1.0, 4.0])
def test_a_path_whose_visit_had_too_few_evaluations_is_in_the_error(budget, y):
    truth = np.log(np.array([0.1225] * 8 + [0.02]) @ norm.pdf(y, MEANS, np.sqrt(2)))
    posterior = ab.infer(shifted, y, budget=budget, seed=1)
    assert posterior.run.evaluations <= 1.02 * budget
    assert np.isfinite(posterior.paths["log_evidence"]).all()
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd


def schools(y):
    mu = ab.sample("mu", dist.Normal(0.0, 5.0))
    tau = ab.sample("tau", dist.HalfCauchy(5.0))
    effects = ab.sample("effects", dist.Normal(mu, tau).expand([8]))
    ab.observe("y", dist.Normal(disguised(effects), 10.0), y)  # not integrated out


@pytest.mark.parametrize("budget", [3_000, 5_000])
def test_a_budget_that_finds_no_mode_gives_a_coarse_answer(budget):
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])

    def density(tau):
        covariance = 25.0 + np.eye(8) * (tau**2 + 100.0)
        return halfcauchy.pdf(tau, scale=5.0) * multivariate_normal(np.zeros(8), covariance).pdf(y)

    truth = np.log(quad(density, 0, 50, epsabs=0, epsrel=1e-9)[0] + quad(density, 50, np.inf, epsabs=0)[0])
    posterior = ab.infer(schools, y, budget=budget)
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd < 20
    assert any("effective sample size" in warning for warning in posterior.warnings)


def chosen(y):
    """Which of seven switches are on: 128 paths, and the mass on those with many."""
    on = sum(int(ab.sample(f"on{i}", dist.Bernoulli(0.5))) for i in range(7))
    x = ab.sample("x", dist.Normal(3.0 * on, 1.0))
    ab.observe("y", dist.Normal(x, 1.0), y)
    return on


@pytest.mark.parametrize("step", [0.02, 0.01, 0.007, 0.005, 0.003, 0.002])
def test_paths_not_found_in_time_are_in_the_error(step, monkeypatch):
    use_false_clock(monkeypatch, step)
    truth = np.log(binom.pmf(np.arange(8), 7, 0.5) @ norm.pdf(20.0, 3.0 * np.arange(8), np.sqrt(2)))
    try:
        posterior = ab.infer(chosen, 20.0, seconds=1, tolerance=None)
    except errors.LimitTooSmall:
        return
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd
    if posterior.run.log_possible_not_found is not None:
        assert any("were not found. Give the run more seconds" in warning for warning in posterior.warnings)


def walk(y):
    """So many statements that compiling them takes longer than the run may."""
    x = 0.0
    scale = 1.0 if ab.sample("fast", dist.Bernoulli(0.5)) else 0.1
    for t in range(150):
        x = ab.sample(f"x{t}", dist.Normal(x, scale))
        if t % 10 == 0:
            ab.observe(f"y{t}", dist.Normal(x, 0.1), y[t // 10])


def test_paths_that_there_is_no_time_to_compile_are_in_the_error(monkeypatch):
    monkeypatch.setattr(dispatch, "_COMPILE_SECONDS_SHORT", 1e3)
    monkeypatch.setattr(dispatch, "_COMPILE_SECONDS_LONG", 1e3)
    monkeypatch.setattr(host_gradient, "NUMBERS_PER_OPERATION", 0)  # gradients are compiled at once
    y = np.sin(np.arange(15.0))
    times = np.arange(0, 150, 10) + 1.0
    covariances = [scale**2 * np.minimum.outer(times, times) + 0.01 * np.eye(15) for scale in (1.0, 0.1)]
    truth = np.log(0.5 * sum(multivariate_normal(np.zeros(15), each).pdf(y) for each in covariances))
    posterior = ab.infer(walk, y, seconds=100)
    assert posterior.log_evidence_sd > 1
    assert abs(posterior.log_evidence - truth) < 4 * posterior.log_evidence_sd
    assert any("Give the run more seconds" in warning for warning in posterior.warnings)


def test_an_expectation_over_few_effective_draws_says_so(monkeypatch):
    use_false_clock(monkeypatch, step=0.0005)

    def narrow(y):
        x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
        ab.observe("y", dist.Normal(x, 0.01), y)

    posterior = ab.infer(narrow, 1.0, seconds=0.5, tolerance=None)
    mean, sd = posterior.expectation(lambda draw: draw["x"])
    assert posterior.paths["ess"][0] < 10
    assert abs(mean - 1.0) < 4 * sd
    assert sd > 0.1


# Budget ---------------------------------------------------------------------------------------------------------------


def urn(y):
    """Colours of three balls, and draws, as variables."""
    colours = ab.sample("colours", dist.Bernoulli(0.5).expand([3]).to_event(1))
    for i, value in enumerate(y):
        ball = ab.sample(f"ball{i}", dist.DiscreteUniform(0, 2))
        ab.observe(f"y{i}", dist.Normal(colours[ball].astype(float), 0.5), value)


def assigned(y):
    """A mixture with its assignments written out: summed out, each point takes many evaluations."""
    K = int(ab.sample("K", dist.DiscreteUniform(2, 3)))
    mu = ab.sample("mu", dist.Normal(0.0, 3.0).expand([K]).to_event(1))
    z = ab.sample("z", dist.Categorical(jnp.ones(K) / K).expand([len(y)]).to_event(1))
    ab.observe("y", dist.Normal(mu[z], 0.5), y)


BUDGETED = {
    "induction": (programs.function_induction, programs.function_induction_data(), None),
    "summed out": (assigned, (np.linspace(-3.0, 3.0, 20),), None),
    "change points": (change_points, (np.repeat([0.0, 4.0], 10),), None),
    "urn": (urn, (np.array([0.1, 0.9, 1.1, 0.0, 1.0]),), None),
    "interpreted": (slow_simulator, (1.0,), None),
    "SMC": (programs.branching, (2.0,), ab.DCC(strategy=SMC())),
    "HMC": (programs.branching, (2.0,), ab.DCC(strategy=HMC(warmup=100))),
    "variational": (programs.branching, (2.0,), ab.DCC(strategy=Variational())),
    "random walk": (programs.branching, (2.0,), ab.DCC(strategy=RandomWalk())),
    "paper": (programs.branching, (2.0,), ab.DCC.paper()),
}


@pytest.mark.one_in(4)
@pytest.mark.parametrize(
    ("name", "budget"),
    [(name, budget) for name in BUDGETED if name != "interpreted" for budget in (3_000, 30_000)]
    + [("interpreted", 1_000), pytest.param("interpreted", 3_000, marks=pytest.mark.slow)],
)
def test_the_budget_is_exceeded_by_two_percent_at_most(name, budget):
    program, data, engine = BUDGETED[name]
    posterior = ab.infer(program, *data, budget=budget, tolerance=None, engine=engine)
    assert posterior.run.evaluations <= 1.02 * budget
    assert not np.isnan(posterior.log_evidence)


def test_a_visit_ends_at_its_allowance_and_the_next_goes_on():
    """Tempering that is cut again and again comes to the same answer as in one go, within its error."""
    path = ab.find_paths(programs.branching, 2.0).paths[0]
    estimates = []
    for allowances in ([60_000], [700] * 80):
        target, rng, method = PathTarget(path), np.random.default_rng(1), SMC()
        state = method.start(target, rng)
        for allowance in allowances:
            target.allow(allowance)
            before = target.evaluations
            state = method.advance(target, state, rng, allowance)
            assert target.evaluations - before <= allowance
            assert not np.isnan(method.estimate(target, state).log_evidence)
        estimates.append(method.estimate(target, state))
    whole, parts = estimates
    error = np.hypot(whole.log_evidence_sd, parts.log_evidence_sd)
    assert abs(whole.log_evidence - parts.log_evidence) < 4 * error < 0.5


# Interrupts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def keyboard():
    """Interrupts raise KeyboardInterrupt, which they do not in a process that a test runner has started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("after", [0.3, 1.5, pytest.param(4.0, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("keyboard")
def test_an_interrupt_gives_a_posterior_or_itself(after):
    timer = threading.Timer(after, _thread.interrupt_main)
    timer.start()
    try:
        posterior = ab.infer(change_points, np.repeat([0.0, 4.0], 10), tolerance=None, budget=10**9, seconds=WATCHDOG)
    except KeyboardInterrupt:
        return
    finally:
        timer.cancel()
    assert "interrupted" in posterior.run.stopped
    assert not np.isnan(posterior.log_evidence)


@pytest.mark.parametrize("engine", [None, ab.engines.ImportanceSampling()], ids=["DCC", "importance sampling"])
def test_an_interrupt_whose_exception_is_lost_ends_a_run_all_the_same(engine):
    """Python drops an exception that is raised in a destructor or a callback."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    timer = threading.Timer(1.0, _thread.interrupt_main)
    timer.start()
    try:
        posterior = ab.infer(programs.branching, 2.0, tolerance=None, budget=10**12, engine=engine, seconds=WATCHDOG)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert "interrupted" in posterior.run.stopped
    assert np.isfinite(posterior.log_evidence)


def test_time_or_an_interrupt_ends_a_run_whose_worker_hangs():
    out = in_a_process("""
        import signal, threading, time, _thread
        from anabranch.limits import Limits
        from anabranch.workers import Workers

        with Workers(1, Limits(seconds=0.2)) as workers:
            print(workers.map(lambda x: time.sleep(100), [0]))

        signal.signal(signal.SIGINT, signal.default_int_handler)  # which is not so where a test runs in the background
        limits = Limits()
        with Workers(2, limits) as workers:
            threading.Timer(0.5, _thread.interrupt_main).start()
            print(workers.map(lambda x: time.sleep(100 * x) or "done", [0, 1]), limits.cancelled.is_set())
    """)
    assert out.splitlines() == ["[None]", "['done', None] True"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("ending", "code"), [("raise KeyboardInterrupt", -2), ("raise ValueError", 1), ("pass", 0)])
def test_python_exits_cleanly_while_a_thread_compiles(ending, code):
    """A compilation that an interrupt left behind: of an end without an exception, its end is waited for."""
    script = f"""
import signal, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from anabranch.divide import dispatch
from anabranch.limits import Limits
from anabranch.workers import Workers

began = threading.Event()

def compile(seconds):
    with dispatch.compilation():
        began.set()
        time.sleep(seconds)
    print("compiled", flush=True)

limits = Limits()
with Workers(1, limits) as workers:
    threading.Thread(target=workers.map, args=(compile, [{1 if ending == "pass" else 600}]), daemon=True).start()
    began.wait()
{ending}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == code, done.stderr
    assert ("compiled" in done.stdout) == (ending == "pass")


def test_nothing_is_compiled_for_which_there_is_no_time():
    def long(x):
        for _ in range(2_000):
            x = jnp.sin(x) + 1.0
        return (x,)

    function = Jitted(long)
    with enforced(Limits(seconds=20.0)), pytest.raises(ab.errors.CompilationTooLong, match=r"4,000 operations .* left"):
        function(np.ones(3))
    assert function.compilations == 0


def test_errors_of_workers_are_those_of_the_run():
    with Workers(2, Limits()) as workers, pytest.raises(ZeroDivisionError):
        workers.map(lambda x: 1 / x, [1, 0])


# What its own diagnostics do not vouch for ----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 3.0, 6.0, 10.0])
@pytest.mark.parametrize("n", [100, 2_000])
def test_the_shape_of_the_weights_says_what_their_mean_cannot(scale, n):
    """Log-normal weights with mean one: the mean of n of them is far below, its extrapolation is not."""
    rng = np.random.default_rng(int(10 * scale) + n)
    draws = scale * rng.standard_normal((200, n)) - 0.5 * scale**2
    extrapolated = np.array([extrapolated_log_mean(each) for each in draws])
    assert (extrapolated > -0.5).mean() > 0.7
    if scale > 5:
        assert np.median([log_mean(each) for each in draws]) < -3


def shell(d):
    """A thin shell in d dimensions beside a plain path, and the log evidence of both."""

    def program():
        if ab.sample("shell", dist.Bernoulli(0.5)):
            x = ab.sample("x", dist.Normal(0.0, 1.0).expand([d]).to_event(1))
            ab.observe("square", dist.Normal(jnp.sum(x**2), 0.01), float(d))
        else:
            ab.observe("square", dist.Normal(0.0, 1.0), 1.0)

    inside = quad(lambda u: chi2.pdf(u, d) * norm.pdf(d, u, 0.01), d - 0.1, d + 0.1, points=[d])[0]
    return program, np.log(0.5 * inside), np.log(0.5) + norm.logpdf(1.0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("d", [5, 9])
def test_a_path_whose_first_visit_failed_is_not_negligible(d):
    """The first visit of the shell has a handful of effective draws, and found a part of its mass at most."""
    program, log_shell, log_plain = shell(d)
    exact = np.logaddexp(log_shell, log_plain)
    posterior = ab.infer(program, budget=200_000, seed=1)
    assert abs(posterior.log_evidence - exact) < 4 * posterior.log_evidence_sd
    error = np.array(posterior.evidence.weight_sds)
    weight = posterior.probability("shell").get(1, 0.0)
    assert abs(weight - np.exp(log_shell - exact)) < 4 * error.max()


def test_a_doubted_path_is_named_with_what_it_may_have():
    program, _, _ = shell(9)
    posterior = ab.infer(program, budget=30_000, seed=0)
    named = [each for each in posterior.warnings if "may have up to" in each and "shell = 1" in each]
    assert named
    assert "effective draws" in named[0]
    assert posterior.log_evidence_sd > 0.05


def test_the_default_budget_is_smaller_where_the_interpreter_runs_the_program():
    compiled, interpreted = (Limits.given(None, None, 0.01).for_program(each) for each in (False, True))
    assert (compiled.budget, interpreted.budget) == (1_000_000, 20_000)
    assert Limits.given(5_000, None, 0.01).for_program(True).budget == 5_000
    assert "posterior.more(budget=20_000) goes on" in interpreted.exceeded(20_000)
    assert compiled.exceeded(20_000) == ""
