"""The paper's own algorithm: exact answers, every line of algorithm 2, and the limits of a run."""

from __future__ import annotations

import _thread
import signal
import threading
from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest

import anabranch as ab
from anabranch import errors, programs
from anabranch.divide import divide
from anabranch.limits import Limits
from anabranch.paper.algorithm import Algorithm
from anabranch.progress import Progress
from engine_cases import CASES, scores
from exact import Exact, named
from helpers import use_false_clock

FIGURE = named("figure_two")
TRIED = {
    "normal_mean": (4_000, 0.04),
    "hidden_markov": (6_000, 0.2),
    "hidden_branches": (15_000, 1e-9),
    "stopped": (6_000, 0.06),
    "coin": (5_000, 0.01),
    "figure_two": (8_000, 0.15),
    "survival": (6_000, 0.06),
}
"""Budgets, and what the error of log Z never exceeds: about twice the largest of some seeds."""


def algorithm(program=programs.branching, args=(2.0,), budget=100_000, seed=0, **settings) -> Algorithm:
    """A run that has executed the program T_0 times."""
    division = divide(program, args, {})
    run = Algorithm(ab.DCC.paper(**settings), division, Limits(budget=budget), seed, Progress(), 0)
    run.execute_forward()
    run.activate()
    return run


def two_levels(y):
    """A count that the data put at 3, and the prior near 0: its paths are proposed, not executed."""
    n = ab.sample("n", dist.Poisson(0.05))
    total = sum((ab.sample(f"x{i}", dist.Normal(2.0, 0.1)) for i in range(int(n))), 0.0)
    ab.observe("y", dist.Normal(total, 0.5), y)


# Exact answers --------------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", [case for case in CASES if case.name in TRIED], ids=lambda case: case.name)
def test_the_answer_is_exact(case: Exact):
    budget, most = TRIED[case.name]
    posterior = ab.infer(case.program, *case.args, engine=ab.DCC.paper(), budget=budget, tolerance=None)
    assert posterior.log_evidence_sd < most
    for quantity, (z, sd) in scores(case, posterior).items():
        assert abs(z) < 4, quantity
        assert sd < 0.3, quantity


@pytest.mark.slow
@pytest.mark.parametrize("draws", ["mcmc", "importance"])
@pytest.mark.parametrize("case", [case for case in CASES if case.name in TRIED], ids=lambda case: case.name)
def test_the_answer_is_exact_over_ten_seeds(case: Exact, draws: str):
    budget, most = TRIED[case.name]
    engine, found = ab.DCC.paper(draws=draws), []
    for seed in range(10):
        posterior = ab.infer(case.program, *case.args, engine=engine, budget=2 * budget, tolerance=None, seed=seed)
        assert posterior.log_evidence_sd < most
        found.append([z for z, _ in scores(case, posterior).values()])
    assert np.abs(found).max() < 4
    assert np.abs(np.mean(found, axis=0)).max() < 4 / np.sqrt(10)


def test_importance_samples_as_draws_have_smaller_errors_here():
    """In two and three dimensions they are an efficient proposal (appendix D); Ẑ_k is the same."""

    def infer(draws):
        return ab.infer(FIGURE.program, *FIGURE.args, engine=ab.DCC.paper(draws=draws), budget=5_000, tolerance=None)

    chains, importance = infer("mcmc"), infer("importance")
    assert chains.log_evidence == importance.log_evidence
    for name, (function, truth) in FIGURE.expectations.items():
        by_chains, by_importance = chains.expectation(function), importance.expectation(function)
        assert abs(by_importance[0] - truth) < 4 * by_importance[1] < 0.4, name
        assert by_importance[1] < by_chains[1], name


def test_a_path_far_from_the_prior_is_proposed_and_found():
    """n = 3 has a prior probability of 2e-5: it is reached by proposals from n = 1 or 2, with their burn-in."""
    n = np.arange(8)
    logs = np.asarray(
        dist.Poisson(0.05).log_prob(n) + dist.Normal(2.0 * n, np.sqrt(0.25 + 0.01 * n)).log_prob(6.0), float
    )
    engine = ab.DCC.paper(T_0=20, C_0=1, T_init=10)
    posterior = ab.infer(two_levels, 6.0, engine=engine, budget=6_000, tolerance=None, seed=1)
    assert abs(posterior.log_evidence - np.logaddexp.reduce(logs)) < 4 * posterior.log_evidence_sd < 0.5
    truth = np.exp(logs[3] - np.logaddexp.reduce(logs))
    assert posterior.probability("n")[3] == pytest.approx(truth, abs=0.02)


@pytest.mark.slow
def test_five_clusters_are_visited_after_as_many_evaluations_as_in_the_paper():
    """The paper finds them after about 10,000 samples: here after 3,000 to 30,000 evaluations, the median of 15."""
    first = []
    for seed in range(15):
        posterior = ab.infer(
            programs.mixture, programs.mixture_data(), engine=ab.DCC.paper(), budget=20_000, tolerance=None, seed=seed
        )
        visits = posterior.history
        first.append(visits["evaluations"][visits["path"] == "extra = 4"].min())
    assert 3_000 <= np.nanmedian(first) <= 30_000
    assert np.isfinite(first).all()


# The lines of the algorithm -------------------------------------------------------------------------------------------


def test_every_hyper_parameter_has_its_place():
    run = algorithm(T_0=21, T_init=2, T_w=3, N=4, M=5, C_0=7, growth=0.5, max_active=6, delta=0.25, beta=0.75,
                    kappa=1.5, T_a=23)  # fmt: skip
    assert run.executions == 21
    assert (run.active.threshold, run.active.growth, run.active.max_active) == (7, 0.5, 6)
    assert (run.utility.delta, run.utility.beta, run.utility.kappa, run.utility.look_ahead) == (0.25, 0.75, 1.5, 23)
    record = run.new_models()[0]
    run.initialise(record)
    assert record.target.evaluations == 4 * (1 + 2 + 5)  # the starts, greedy steps, and importance samples
    assert len(record.state.chains) == 4
    assert record.state.weights.log_weights[0].shape == (4, 5)


def test_a_path_is_active_from_c_0_executions_or_proposals_on():
    run = algorithm(T_0=40, C_0=15)
    for key, record in run.table.records.items():
        assert (key in run.active.active) == (run.active.counts[key] >= 15), record.path
    assert sum(run.active.counts.values()) == 40


def test_greedy_steps_never_go_down_and_stay_on_the_path():
    run = algorithm()
    record = run.new_models()[0]
    chains = run.begun(record).start
    for _ in range(20):
        after = run.rmh(record).steps(chains, 1, greedy=True)
        assert (after.log_density >= chains.log_density).all()
        assert (after.path == chains.path).all()
        chains = after


def test_local_steps_stay_on_the_path_and_move():
    run = algorithm()
    for record in run.new_models():
        start = run.begun(record).start
        after = run.rmh(record).steps(start, 30)
        assert (after.path == run.runner.number(record.path)).all()
        assert (after.log_density != start.log_density).any()


def test_an_iteration_infers_one_path_and_keeps_the_largest_utility_first():
    posterior = ab.infer(FIGURE.program, *FIGURE.args, engine=ab.DCC.paper(N=3, M=4), budget=1_200, tolerance=None)
    start, step = 3 * (1 + 50 + 4), 3 * (1 + 4)  # of three chains, with four samples around each
    assert np.diff(posterior.history["evaluations"]).tolist()[:2] == [start, step]
    assert set(np.diff(posterior.history["evaluations"])) == {start, step}
    weights = dict(zip(posterior.paths["path"], posterior.paths["visits"], strict=True))
    assert posterior.history["path"].value_counts().to_dict() == {path: 1 + n for path, n in weights.items()}
    heaviest, lightest = posterior.paths["path"]
    assert weights[heaviest] > weights[lightest]


def test_a_global_proposal_changes_any_site_and_counts_into_its_path():
    run = algorithm(N=50)
    for record in run.new_models():
        run.initialise(record)
    best = run.select()
    before = dict(run.active.counts)
    run.explore(best)
    gained = {key: count - before[key] for key, count in run.active.counts.items()}
    assert sum(gained.values()) == 50
    assert all(gained.values())  # both paths of the program: z0 is one of the sites


def test_a_new_path_is_burnt_in_before_it_is_active():
    run = algorithm(two_levels, (6.0,), N=10, T_0=5, T_w=4, T_init=2, C_0=1)
    for record in run.new_models():
        run.initialise(record)
    known = set(run.table.records)
    while set(run.table.records) == known:
        run.explore(run.select())
    new = [record for key, record in run.table.records.items() if key not in known]
    for record in new:
        assert record.state.chains is None
        assert record.estimate is None
        steps = 4 if record.path.dim else 0
        assert record.target.evaluations == len(record.state.start) * (1 + steps)


def test_a_run_without_any_chain_ends():
    run = algorithm()
    assert not run.is_stuck
    for record in run.table:
        run.begun(record).start = run.begun(record).start.take(np.zeros(0, int))
        run.initialise(record)
    assert run.select() is None
    assert run.is_stuck


def test_a_bound_on_the_active_paths_lets_the_lightest_leave():
    engine = ab.DCC.paper(max_active=2, T_0=20, C_0=1, T_init=10)
    posterior = ab.infer(two_levels, 6.0, engine=engine, budget=3_000, tolerance=None, seed=1)
    assert max(posterior.probability("n"), key=posterior.probability("n").get) == 3
    assert len(posterior.solutions) > 2


# The run --------------------------------------------------------------------------------------------------------------


def test_it_is_an_engine_with_the_name_of_the_paper():
    engine = ab.DCC.paper(N=5)
    assert isinstance(engine, ab.DCC.paper)
    assert repr(engine).startswith("DCC.paper(T_0=1000, T_init=50, T_w=10, N=5,")
    assert replace(engine, N=10) == ab.DCC.paper()
    posterior = ab.infer(FIGURE.program, *FIGURE.args, engine=engine, budget=1_000, tolerance=None)
    assert posterior.run.settings == repr(engine)
    assert set(posterior.paths["method"]) == {"PI-MAIS"}


def test_the_same_seed_gives_the_same_answer_whatever_the_workers():
    def infer(seed, workers):
        posterior = ab.infer(FIGURE.program, *FIGURE.args, engine=ab.DCC.paper(), budget=2_000, seed=seed,
                             workers=workers, tolerance=None)  # fmt: skip
        return posterior.log_evidence, posterior.history["evaluations"].tolist()

    assert infer(3, 1) == infer(3, 2)
    assert infer(3, 1)[0] != infer(4, 1)[0]


def test_the_run_ends_at_the_tolerance():
    case = named("coin")
    posterior = ab.infer(case.program, *case.args, engine=ab.DCC.paper(), budget=10**6, tolerance=0.01)
    assert posterior.run.stopped == "The errors of log Z and of the path weights are below 0.01."
    assert posterior.run.evaluations < 40_000
    assert abs(posterior.log_evidence - case.log_evidence) < 4 * posterior.log_evidence_sd < 0.05


def test_a_budget_without_room_for_one_path_says_what_a_path_takes():
    with pytest.raises(errors.LimitTooSmall, match=r"budget of 100 .* 10 chains .* a path takes 610 evaluations"):
        ab.infer(FIGURE.program, *FIGURE.args, engine=ab.DCC.paper(), budget=100)


def test_time_is_kept_to(monkeypatch):
    use_false_clock(monkeypatch, step=0.001)
    engine = ab.DCC.paper(T_init=2)
    posterior = ab.infer(FIGURE.program, *FIGURE.args, engine=engine, seconds=5, budget=10**9, tolerance=None)
    assert posterior.run.stopped == "The 5 seconds are over."
    assert np.isfinite(posterior.log_evidence)


def test_an_interrupt_keeps_the_estimates_so_far():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(2.0, _thread.interrupt_main)
    timer.start()
    try:
        posterior = ab.infer(FIGURE.program, *FIGURE.args, engine=ab.DCC.paper(), budget=10**9, tolerance=None,
                             seconds=120)  # fmt: skip
    except KeyboardInterrupt:
        return
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert "interrupted" in posterior.run.stopped
    assert np.isfinite(posterior.log_evidence)


def test_a_program_that_leaves_jax_is_run_by_the_interpreter():
    def outside(y):
        x = float(ab.sample("x", dist.Normal(0.0, 1.0)))
        ab.observe("y", dist.Normal(x if x > 0 else 0.0, 1.0), y)

    posterior = ab.infer(
        outside, 1.0, engine=ab.DCC.paper(T_0=20, N=4, M=4, T_init=5, C_0=1), budget=400, tolerance=None
    )
    assert posterior.run.evaluations <= 400
    assert np.isfinite(posterior.log_evidence)


def test_a_program_that_takes_another_form_begins_again():
    """Many branches that only assign are rewritten as selects, and the first executions are void."""

    def clipped(y):
        total = 0.0
        for i in range(5):
            x = ab.sample(f"x{i}", dist.Normal(0.0, 1.0))
            if x > 0:
                total = total + x
        ab.observe("y", dist.Normal(total, 1.0), y)

    posterior = ab.infer(clipped, 1.0, engine=ab.DCC.paper(), budget=3_000, tolerance=None)
    assert len(posterior.solutions) == 1
    assert posterior.run.evaluations <= 3_000
