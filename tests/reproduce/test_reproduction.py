"""The experiments as a user runs them: what a run is measured by, what it leaves behind, and how it goes on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

import anabranch as ab
from anabranch import command, programs
from anabranch.reproduce import experiments, measures, records, reproduction
from anabranch.reproduce.records import Task
from anabranch.reproduce.truth import induction_truth


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first experiment with two methods that take no time."""
    engines = {"default": ab.DCC(executions=50, max_executions=50), "is": ab.engines.ImportanceSampling(batch=500)}
    of_mixture = replace(experiments.EXPERIMENTS["gmm"], engines=engines)
    monkeypatch.setitem(experiments.EXPERIMENTS, "gmm", of_mixture)


def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test does not look at, and takes the longest."""
    monkeypatch.setattr(reproduction.figures, "draw_all", lambda *_: None)


class Inline:
    """Runs tasks where it is, one after the other, as the pool of processes would."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Inline:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, function, *args):  # type: ignore[no-untyped-def]
        from concurrent.futures import Future

        future: Future = Future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future


# What a run is measured by --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_lppd_of_the_default_is_the_exact_one() -> None:
    experiment = experiments.EXPERIMENTS["induction"]
    posterior = ab.infer(experiment.program, *experiment.args, seed=5, budget=1_000_000, tolerance=0.02)
    measured = experiment.measure(posterior)
    assert abs(measured["lppd"] - induction_truth().lppd) < 0.1
    assert len(measured["functions"]["f"]) == 40
    assert set(measured["resources"]) == set(induction_truth().weights)
    for spent in measured["resources"].values():
        assert len(spent["evaluations"]) == len(spent["log_evidence"]) == len(spent["spent"]) > 0


def test_lppd_by_hand() -> None:
    """One path, all draws the same: the density of the test data at that function."""
    x, y = programs.function_induction_data()
    test_x, test_y = np.array([0.3, 1.0]), np.array([0.1, 0.9])
    posterior = ab.infer(programs.function_induction, np.concatenate([x, test_x]), y, budget=3_000, seed=0)
    [identity] = [each for each in posterior.solutions if measures.shape(each.path) == "x"]
    alone = ab.Posterior(posterior.program, [identity], posterior.run)
    expected = norm.logpdf(test_y, test_x, 0.5).sum()
    assert measures.lppd(alone, slice(-2, None), test_y) == pytest.approx(expected)


def test_every_path_of_the_grammar_has_a_shape_of_its_own() -> None:
    division = ab.find_paths(programs.function_induction, *programs.function_induction_data(), executions=20_000)
    assert sorted(map(measures.shape, division)) == sorted(induction_truth().weights)


def test_what_is_measured_of_a_mixture() -> None:
    experiment = experiments.EXPERIMENTS["gmm"]
    engine = ab.engines.RandomWalkMH(chains=20)
    measured = experiment.measure(ab.infer(experiment.program, *experiment.args, engine=engine, budget=400))
    assert sum(measured["probability"].values()) == pytest.approx(1)
    assert np.trapezoid(measured["predictive"]["density"], measured["predictive"]["y"]) == pytest.approx(1, abs=0.02)
    assert measured["chains"] == 20 > measured["chains_that_moved"]
    assert 1 <= measured["least_K"] <= min(map(int, measured["probability"]))


def test_the_best_means_in_the_plane_are_where_the_density_is_flat() -> None:
    """Given its covariance, the best mean of the only cluster is that of a conjugate normal model."""
    experiment = experiments.EXPERIMENTS["planar"]
    measured = experiment.measure(ab.infer(experiment.program, *experiment.args, budget=2_000, tolerance=None))
    [[(mean, covariance)], two] = measured["best"]
    y, precision = programs.planar_mixture_data(), np.linalg.inv(covariance)
    expected = np.linalg.solve(len(y) * precision + np.eye(2) / 9, len(y) * precision @ y.mean(axis=0))
    np.testing.assert_allclose(mean, expected, atol=1e-3)
    assert len(two) == 2


@pytest.mark.slow
def test_visits_of_chains_are_where_they_were_and_not_what_they_proposed() -> None:
    experiment = experiments.EXPERIMENTS["misspecified"]
    engine = ab.engines.RandomWalkMH(chains=5)
    posterior = ab.infer(experiment.program, *experiment.args, engine=engine, budget=200)
    visits = experiment.measure(posterior)["visits"]
    assert set(visits["chain"]) == set(range(5))
    assert min(visits["K"]) > 40
    assert max(visits["evaluations"]) <= posterior.run.evaluations


# What it leaves behind ------------------------------------------------------------------------------------------------


def test_a_run_leaves_a_record_and_is_not_made_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small(monkeypatch)
    task = Task("gmm", "is", 3, 2_000)
    assert not task.is_done(tmp_path)
    record = records.run(task, tmp_path)
    assert task.is_done(tmp_path)
    assert records.read_all(tmp_path, {"gmm": 2_000}) == [json.loads(json.dumps(record))]
    assert record["evaluations"] == 2_000
    assert record["history"]["evaluations"] == [500, 1_000, 1_500, 2_000]
    assert record["history"]["log_evidence"][-1] == pytest.approx(record["log_evidence"], rel=1e-6)
    task.file(tmp_path).write_text('{"budget": 20')  # cut short
    assert not task.is_done(tmp_path)
    assert not records.read_all(tmp_path, {"gmm": 2_000})


def test_runs_with_another_budget_are_kept_and_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small(monkeypatch)
    tasks = [Task("gmm", "is", 0, budget) for budget in (500, 1_000)]
    for task in tasks:
        assert not task.is_done(tmp_path)
        records.run(task, tmp_path)
    assert all(task.is_done(tmp_path) for task in tasks)
    [record] = records.read_all(tmp_path, {"gmm": 500, "induction": 1_000})
    assert record["budget"] == 500


def test_settings_that_changed_are_run_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small(monkeypatch)
    task = Task("gmm", "is", 0, 500)
    records.run(task, tmp_path)
    other = {"is": ab.engines.ImportanceSampling(batch=250)}
    monkeypatch.setitem(experiments.EXPERIMENTS, "gmm", replace(experiments.EXPERIMENTS["gmm"], engines=other))
    assert not task.is_done(tmp_path)


def test_an_estimate_made_at_the_end_has_a_history_of_smaller_budgets(tmp_path: Path) -> None:
    record = records.run(Task("gmm", "rmh_centred", 0, 50), tmp_path)
    assert record["history"]["evaluations"] == [1, 5, record["evaluations"]]


def test_the_first_runs_of_all_methods_come_first() -> None:
    tasks = reproduction.Settings(["gmm", "misspecified", "induction"], Path()).tasks()
    assert len(tasks) == 9 * 15 + 4 * 5 + 9 * 15
    assert [task.seed for task in tasks] == sorted(task.seed for task in tasks)
    assert {task.budget for task in tasks} == {1_000_000}


def test_an_interrupted_reproduction_goes_on_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(monkeypatch)
    monkeypatch.setattr(reproduction, "ProcessPoolExecutor", Inline)
    without_figures(monkeypatch)
    arguments = ["reproduce", "gmm", "--out", str(tmp_path), "--budget", "1_000", "--methods", "is"]
    assert command.main([*arguments, "--runs", "1"]) == 0
    runs = tmp_path / "runs/gmm/is/1000"
    first = (runs / "0.json").stat().st_mtime_ns
    assert command.main([*arguments, "--runs", "2"]) == 0
    assert (runs / "0.json").stat().st_mtime_ns == first
    assert (runs / "1.json").exists()
    assert "1 of 2 runs have a record already" in capsys.readouterr().out
    assert "1,000" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_tells_the_versions_that_made_the_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    small(monkeypatch)
    monkeypatch.setattr(reproduction, "ProcessPoolExecutor", Inline)
    without_figures(monkeypatch)
    arguments = ["reproduce", "gmm", "--out", str(tmp_path), "--budget", "500", "--methods", "is"]
    for version, runs in (("7.1", "1"), ("7.2", "2"), ("7.3", "2")):  # the last has nothing left to run
        monkeypatch.setattr(ab, "__version__", version)
        assert command.main([*arguments, "--runs", runs]) == 0
    assert "<dt>version</dt><dd>7.1, 7.2</dd>" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_that_fails_is_told_and_the_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small(monkeypatch)
    monkeypatch.setattr(reproduction, "ProcessPoolExecutor", Inline)
    without_figures(monkeypatch)

    class Broken:
        executions = 10

        def run(self, *_: object) -> ab.Posterior:
            raise ValueError("it is broken")

    engines = {**experiments.EXPERIMENTS["gmm"].engines, "default": Broken()}
    monkeypatch.setitem(experiments.EXPERIMENTS, "gmm", replace(experiments.EXPERIMENTS["gmm"], engines=engines))
    assert command.main(["reproduce", "gmm", "--out", str(tmp_path), "--budget", "500", "--runs", "1"]) == 1
    assert "gmm, default, run 0: ValueError: it is broken" in capsys.readouterr().err
    assert len(records.read_all(tmp_path, {"gmm": 500})) == 1
    assert (tmp_path / "report.html").exists()


# As a user types it ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["reproduce", "everything"], "invalid choice"),
        (["reproduce", "gmm", "--methods", "is,nuts"], "gmm has no method nuts"),
        (
            ["reproduce", "misspecified", "--methods", "is"],
            "misspecified has no method is; there are default, paper, rmh, rmh_single",
        ),
        (["reproduce", "gmm", "--runs", "0"], "must be a whole number, at least 1; got '0'"),
        (["reproduce", "gmm", "--runs", "abc"], "must be a whole number, at least 1; got 'abc'"),
        ([], "required"),
    ],
)
def test_bad_arguments_are_explained(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert said in capsys.readouterr().err


SMALLEST = {
    "gmm": (1_000, ("is",)),
    "uncertain": (1_000, ("is",)),
    "misspecified": (100, ("rmh",)),
    "induction": (3_000, ("default", "is")),
    "convergence": (3_000, ("default",)),
    "planar": (2_000, ("default",)),
}
"""Evaluations with which every method has something to show; paths of mixtures take long to compile, so few of them."""


@pytest.mark.parametrize(
    ("smallest", "workers"),
    [(SMALLEST, 1), pytest.param({}, 2, marks=pytest.mark.slow)],
    ids=["smallest", "as a user runs it"],
)
def test_the_quick_version(
    smallest: dict[str, tuple[int, tuple[str, ...]]],
    workers: int,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """All experiments and methods, in processes of their own: every record, figure, table and the page."""
    if smallest:
        request.getfixturevalue("processes_compile_quickly")
    for name, (budget, methods) in smallest.items():
        engines = {method: experiments.EXPERIMENTS[name].engines[method] for method in methods}
        smaller = replace(experiments.EXPERIMENTS[name], quick_budget=budget, engines=engines)
        monkeypatch.setitem(experiments.EXPERIMENTS, name, smaller)
    assert command.main(["reproduce", "all", "--quick", "--out", str(tmp_path), "--workers", str(workers)]) == 0
    spent = {name: each.quick_budget for name, each in experiments.EXPERIMENTS.items()}
    found = {(record["experiment"], record["method"]) for record in records.read_all(tmp_path, spent)}
    wanted = {(name, method) for name, each in experiments.EXPERIMENTS.items() for method in each.quick_methods}
    assert found == wanted
    names = {"predictive", "evidence", "probability", "visits", "misspecified_probability", "functions", "resources"}
    names |= {"clusters", "distance", "convergence"}
    for name in names:
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 10_000
        assert (tmp_path / "figures" / f"{name}.svg").exists()
    assert (tmp_path / "table.csv").exists()
    assert "Function induction" in (tmp_path / "report.html").read_text(encoding="utf-8")
